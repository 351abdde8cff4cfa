"""What torchtitan 0.3 enforces beyond arithmetic, and what it would not run as meant.

Each rule says where it comes from: ``dims`` (``ParallelDims``), ``model`` (``update_from_config`` of its models),
``stages`` (its division of layers), ``trainer`` or ``sharding``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import SCHEDULES, Strategies, Strategy, enum_code
from shardwise.hardware_profiles.errors import InputError

from .facts import model_facts
from .megatron_shared import VENDORS, device_values
from .rule import Allowed, Rule, as_allowed, divisors, nearest
from .torchtitan_stages import Weights, weights_for
from .torchtitan_tables import shipped_for
from .universal import divides_all

_GATHER = enum_code("cp_comm", "all_gather")
_SINGLE = frozenset({"gpipe", "1f1b"})


def torchtitan_rules() -> tuple[Rule, ...]:
    """Rules of torchtitan 0.3 in addition to the universal ones and the capability table."""
    return (
        Rule("accelerator", "torchtitan has no kernels for {device} ({vendor})",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor in VENDORS), values=device_values,
             scope="machine", fix="choose another cluster, or another launcher"),
        # model: whole key-value heads on every tensor rank; none is repeated.
        Rule("tp-kv-heads", "torchtitan needs tp = {tp} to divide the key-value heads {kv_heads}; the nearest tp that "
             "does is {hint}", lambda p, s: _latent(p) | divides_all(model_facts(p).kv_heads, s.tp), values=_kv_values),
        # its context parallelism gathers keys and values; there is no ring any more.
        Rule("context-gather", "torchtitan's context parallelism gathers keys and values: with cp = {cp} use cp_comm = "
             "all_gather, not {cp_comm}", lambda p, s: (s.cp == 1) | (s.cp_comm == _GATHER)),
        # trainer
        Rule("sequence-2cp-tp", "the sequence of {sequence} tokens must be a multiple of 2·cp·tp = 2·{cp}·{tp} with sp "
             "(of 2·cp = 2·{cp} without); the nearest cp that fits is {hint}",
             lambda p, s: (s.cp == 1) | (p.workload.sequence_length % (2 * s.cp * np.where(s.sp, s.tp, 1)) == 0),
             values=_sequence_values),
        # model
        Rule("tied-pipeline", "{model} ties its head to the embedding, which torchtitan cannot do with pp = {pp}: use "
             "pp = 1", lambda p, s: (s.pp == 1) | np.bool_(not p.model.tied_embeddings)),
        # stages
        Rule("stage-weights", "torchtitan divides {layers} layers itself, by weights of the first and the last stage: "
             "none gives layers_per_stage = {layers_per_stage} for pp·vpp = {pp}·{vpp}", _even_expressible,
             _split_expressible),
        # dims: the sparse mesh covers the ranks of one set of shards.
        Rule("ep-in-shards", "ep = {ep} must divide the {inside} ranks of one set of shards (zero_group·tp, or all of "
             "tp·cp·dp); the nearest ep that does is {hint}", lambda p, s: _inside(s) % s.ep == 0,
             values=_inside_values),
        # sharding: experts are divided over ep, or over tp where there is no ep; never over both.
        Rule("etp", "torchtitan divides experts over ep alone, or with ep = 1 over tp: with ep = {ep} and tp = {tp} "
             "use etp = {hint}, not {etp}",
             lambda p, s: np.bool_(not model_facts(p).is_moe) | (s.etp == np.where(s.ep > 1, 1, s.tp)),
             values=lambda p, s: {"hint": 1 if s.ep > 1 else s.tp}),
        # dims: shards lie over dp_shard·cp.
        Rule("zero-group-cp", "a set of shards spans all of cp: zero_group = {zero_group} must be a multiple of "
             "cp = {cp}", lambda p, s: (s.zero_group == 0) | (s.zero_group % s.cp == 0)),
        # model: the collectives that are pipelined are those of sequence parallelism.
        Rule("tp-overlap-needs-sp", "tp_overlap needs sp = on", lambda p, s: ~s.tp_overlap | s.sp),
        # options: the collectives are pipelined by the compiler, which some configurations leave to the loss.
        Rule("tp-overlap-compiled", "tp_overlap needs a compiled model, which torchtitan's configuration of {model} "
             "leaves out: use tp_overlap = off", lambda p, s: ~s.tp_overlap | np.bool_(_compiled(p))),
        # trainer: its policies cover every layer.
        Rule("recompute-all", "torchtitan recomputes every layer or none: recompute_per_stage = {recompute_per_stage} "
             "leaves some out", lambda p, s: np.ones(len(s), dtype=np.bool_),
             lambda p, s: s.recompute_per_stage is None),
    )  # fmt: skip


def check_model(problem: Problem) -> None:
    """Raise InputError naming what torchtitan cannot train."""
    model, work = problem.model, problem.workload
    shipped_for(model)
    if work.train_mtp and model.mtp:
        raise InputError(f"{model.name}: the head: torchtitan's configurations cannot express multi-token prediction "
                         "(leave it out: --no-mtp)")  # fmt: skip
    if work.dtype != "bf16":
        raise InputError(f"{model.name}: the workload: torchtitan's options cannot express training in {work.dtype}")
    if work.optimizer != "adam":
        raise InputError(
            f"{model.name}: the workload: torchtitan's options cannot express the optimizer {work.optimizer}"
        )


def stage_weights(problem: Problem, s: Strategy) -> Weights | None:
    """The options that give the strategy's layer split; None where there are none."""
    layers, stages = problem.model.num_layers, s.pp * s.vpp
    default = s.pp * (1 if s.schedule in _SINGLE else 2)
    return weights_for(layers, stages, default, s.layers_per_stage or even_split(layers, stages))


def _even_expressible(problem: Problem, s: Strategies) -> Allowed:
    layers = problem.model.num_layers
    triples = np.stack([s.pp, s.vpp, np.isin(s.schedule, [SCHEDULES.index(n) for n in _SINGLE])], axis=1)
    distinct, index = np.unique(triples, axis=0, return_inverse=True)
    fine = []
    for pp, vpp, single in distinct.tolist():
        stages = pp * vpp
        inside = 1 <= stages <= layers
        split = even_split(layers, stages) if inside else ()
        fine.append(not inside or weights_for(layers, stages, pp * (1 if single else 2), split) is not None)
    # Explicit splits are judged one by one; the even one is what arrays of strategies stand for.
    return as_allowed(np.array(fine, dtype=np.bool_)[index.reshape(-1)] if fine else np.ones(0, dtype=np.bool_))


def _split_expressible(problem: Problem, s: Strategy) -> bool:
    if s.layers_per_stage is None or len(s.layers_per_stage) != s.pp * s.vpp:
        return True
    return sum(s.layers_per_stage) != problem.model.num_layers or stage_weights(problem, s) is not None


def _compiled(problem: Problem) -> bool:
    try:
        return shipped_for(problem.model).compiles_model
    except InputError:
        return True


def _latent(problem: Problem) -> np.bool_:
    return np.bool_(model_facts(problem).has_mla)


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    heads = model_facts(problem).kv_heads
    common = int(np.gcd.reduce(heads)) if heads else 1
    return {"kv_heads": ", ".join(map(str, heads)), "hint": nearest(s.tp, divisors(common))}


def _sequence_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sequence, unit = problem.workload.sequence_length, 2 * (s.tp if s.sp else 1)
    return {"hint": nearest(s.cp, [1, *(d for d in divisors(sequence) if sequence % (d * unit) == 0)])}


def _inside(s: Strategies) -> Any:
    return np.where(s.zero_group > 0, s.zero_group, s.dp * s.cp) * s.tp


def _inside_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    inside = (s.zero_group or s.dp * s.cp) * s.tp
    experts = model_facts(problem).experts
    return {"inside": inside, "hint": nearest(s.ep, [d for d in divisors(inside) if all(n % d == 0 for n in experts)])}

"""Rules that hold for any training framework: the arithmetic of meshes, batches, heads, experts and sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.host import host_room_bytes, optimizer_host_bytes
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import layers_by_rank
from shardwise.costmodel.strategy import Strategies, Strategy, enum_code

from .facts import model_facts
from .rule import Allowed, Rule, as_allowed, divisors, everything, nearest

_DEGREES = ("tp", "cp", "ulysses", "pp", "vpp", "dp", "ep", "etp", "micro_batch_size", "num_microbatches")
_P2P, _GATHER = enum_code("cp_comm", "p2p"), enum_code("cp_comm", "all_gather")
_A2A, _USP = enum_code("cp_comm", "a2a"), enum_code("cp_comm", "a2a+p2p")
_PLAIN, _INTERLEAVED = enum_code("schedule", "1f1b"), enum_code("schedule", "interleaved")
_ZBV, _DUALPIPE = enum_code("schedule", "zb-v"), enum_code("schedule", "dualpipe")
_ZBH1 = enum_code("schedule", "zb-h1")
_GIB = float(1 << 30)
_NONE, _FULL = enum_code("recompute", "none"), enum_code("recompute", "full")


@cache
def universal_rules() -> tuple[Rule, ...]:
    """The rules that every launcher has: what they refuse, no framework can run."""
    return (*_mesh_rules(), *_model_rules(), *_sequence_rules(), *_pipeline_rules(), *_state_rules(), *_device_rules())


def divides_all(sizes: tuple[int, ...], degree: NDArray[np.int64]) -> Allowed:
    """Where ``degree`` divides every one of ``sizes``."""
    return math.gcd(*sizes) % degree == 0 if sizes else np.ones(degree.shape, dtype=np.bool_)


def multiple_or_divisor(sizes: tuple[int, ...], degree: NDArray[np.int64]) -> Allowed:
    """Where every size is a multiple or a divisor of ``degree``: heads are split, or whole heads are repeated."""
    fine = np.ones(degree.shape, dtype=np.bool_)
    for size in sizes:
        fine &= (size % degree == 0) | (degree % size == 0)
    return fine


# ---- device


_HARDWARE_SCALES = frozenset({"mxfp8", "nvfp4"})


def _device_rules() -> tuple[Rule, ...]:
    return (
        # kernel: hardware block scales cannot be emulated.
        Rule("block-scales", "{device} has no {dtype} units: use another dtype",
             lambda p, s: np.full(len(s), p.workload.dtype not in _HARDWARE_SCALES
                                  or p.workload.dtype in p.cluster.accelerator.peak_flops),
             values=lambda p, s: {"device": p.cluster.accelerator.name}, scope="workload",
             fix="train in another dtype, such as bf16, or on a device with {dtype} units"),
    )  # fmt: skip


# ---- meshes and batch


def _mesh_rules() -> tuple[Rule, ...]:
    return (
        Rule("positive-degrees", "every degree must be 1 or more: tp={tp} cp={cp} pp={pp} vpp={vpp} dp={dp} ep={ep} "
             "etp={etp} ulysses={ulysses} mbs={micro_batch_size} m={num_microbatches}", _positive),
        Rule("world-size", "tp·cp·dp·pp = {tp}·{cp}·{dp}·{pp} = {world_size}, but the cluster has {gpus} GPUs{hint}",
             lambda p, s: s.world_size == p.cluster.num_gpus, values=_world_hint),
        Rule("expert-mesh", "ep·etp = {ep}·{etp} does not divide tp·cp·dp = {mesh}; the nearest ep that does is {hint}",
             lambda p, s: (s.tp * s.cp * s.dp) % (s.ep * s.etp) == 0, values=_expert_mesh_hint),
        Rule("global-batch", "mbs·dp·m = {micro_batch_size}·{dp}·{num_microbatches} = {samples}, but the global batch "
             "is {global_batch} sequences{hint}",
             lambda p, s: s.micro_batch_size * s.dp * s.num_microbatches == p.workload.global_batch_size,
             values=_batch_hint),
        # The dense and the expert mesh must have the same pipelines; cp between replicas is not priced.
        Rule("rank-order", "rank_order = {rank_order} needs cp = 1 and experts within tp, not cp = {cp} and ep·etp = "
             "{ep}·{etp}", lambda p, s: (s.rank_order == 0) | ((s.cp == 1) & _experts_in_tp(p, s))),
    )  # fmt: skip


def _experts_in_tp(problem: Problem, s: Strategies) -> Allowed:
    return as_allowed((s.ep * s.etp == s.tp) | (not model_facts(problem).is_moe))


def _positive(problem: Problem, s: Strategies) -> Allowed:
    return as_allowed(np.logical_and.reduce([getattr(s, name) >= 1 for name in _DEGREES]))


def _world_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    model = s.tp * s.cp * s.pp
    if model >= 1 and problem.cluster.num_gpus % model == 0:
        return {"hint": f"; dp = {problem.cluster.num_gpus // model} would fill it"}
    return {"hint": f"; tp·cp·pp = {model} does not divide it"}


def _expert_mesh_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    room = s.tp * s.cp * s.dp
    experts = model_facts(problem).experts
    fitting = [d for d in divisors(room) if room % (d * s.etp) == 0 and all(n % d == 0 for n in experts)]
    return {"hint": nearest(s.ep, fitting)}


def _batch_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    samples = s.micro_batch_size * s.dp
    batch = problem.workload.global_batch_size
    fits = samples >= 1 and batch % samples == 0
    hint = f"; m = {batch // samples} would fit" if fits else f"; mbs·dp = {samples} does not divide it"
    return {"samples": samples * s.num_microbatches, "hint": hint}


# ---- the model's sizes


def _model_rules() -> tuple[Rule, ...]:
    return (
        Rule("heads", "tp = {tp} does not divide the attention heads {heads}; the nearest tp that does is {hint}",
             lambda p, s: divides_all((*model_facts(p).heads, *model_facts(p).recurrent_heads), s.tp),
             values=_head_hint),
        Rule("kv-heads", "tp = {tp} is neither a divisor nor a multiple of the key-value heads {kv_heads}; the nearest "
             "tp that is: {hint}", _kv_heads, values=_kv_hint),
        Rule("ulysses-heads", "all-to-all context parallelism splits heads: tp·ulysses = {tp}·{ulysses} must divide "
             "the attention heads {heads}; the nearest ulysses that does is {hint}", _ulysses_heads,
             values=_ulysses_hint),
        Rule("ffn-width", "tp = {tp} does not divide the feed-forward widths {widths}; the nearest tp that does is "
             "{hint}", lambda p, s: divides_all(model_facts(p).widths, s.tp), values=_width_hint),
        Rule("ep-needs-moe", "ep = {ep} and etp = {etp} split experts, but {model} has none: use ep = 1 and etp = 1",
             lambda p, s: ((s.ep == 1) & (s.etp == 1)) | model_facts(p).is_moe),
        Rule("experts", "ep = {ep} does not divide the experts {experts}; the nearest ep that does is {hint}",
             lambda p, s: divides_all(model_facts(p).experts, s.ep), values=_expert_hint),
        Rule("expert-width", "etp = {etp} does not divide the expert widths {widths}; the nearest etp that does is "
             "{hint}", lambda p, s: divides_all(model_facts(p).expert_widths, s.etp), values=_expert_width_hint),
        Rule("vocabulary", "tp = {tp} does not divide the vocabulary of {vocab} and this runtime does not pad it",
             lambda p, s: (p.model.vocab_size % s.tp == 0) | (p.runtime.vocab_multiple > 1)),
    )  # fmt: skip


def _kv_heads(problem: Problem, s: Strategies) -> Allowed:
    facts = model_facts(problem)
    return multiple_or_divisor((*facts.kv_heads, *facts.recurrent_key_heads), s.tp)


def _ulysses_heads(problem: Problem, s: Strategies) -> Allowed:
    facts = model_facts(problem)
    split = s.tp * s.ulysses
    return (s.ulysses <= 1) | (divides_all(facts.heads, split) & multiple_or_divisor(facts.kv_heads, split))


def _common_divisor(sizes: tuple[int, ...]) -> int:
    return math.gcd(*sizes) if sizes else 1


def _show(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def _head_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    facts = model_facts(problem)
    sizes = (*facts.heads, *facts.recurrent_heads)
    return {"heads": _show(sizes), "hint": nearest(s.tp, divisors(_common_divisor(sizes)))}


def _kv_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    facts = model_facts(problem)
    sizes = (*facts.kv_heads, *facts.recurrent_key_heads)
    choices = np.array(divisors(_common_divisor((*facts.heads, *facts.recurrent_heads))))
    return {"kv_heads": _show(sizes), "hint": nearest(s.tp, choices[multiple_or_divisor(sizes, choices)].tolist())}


def _ulysses_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    facts = model_facts(problem)
    fitting = [d for d in divisors(_common_divisor(facts.heads)) if _common_divisor(facts.heads) % (d * s.tp) == 0]
    return {"heads": _show(facts.heads), "hint": nearest(s.ulysses, fitting)}


def _width_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    widths = model_facts(problem).widths
    return {"widths": _show(widths), "hint": nearest(s.tp, divisors(_common_divisor(widths)))}


def _expert_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    experts = model_facts(problem).experts
    return {"experts": _show(experts), "hint": nearest(s.ep, divisors(_common_divisor(experts)))}


def _expert_width_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    widths = model_facts(problem).expert_widths
    return {"widths": _show(widths), "hint": nearest(s.etp, divisors(_common_divisor(widths)))}


# ---- the sequence


def _sequence_rules() -> tuple[Rule, ...]:
    return (
        Rule("ulysses-degree", "cp_comm = {cp_comm} with cp = {cp} needs ulysses = {hint}, not {ulysses}",
             _ulysses_consistent, values=_ulysses_degree_hint),
        Rule("sequence-cp", "the sequence of {sequence} tokens is not a multiple of {unit} = {needed} (load-balanced "
             "causal blocks need 2·cp); the nearest cp that fits is {hint}", _sequence_cp, values=_cp_hint),
        Rule("sequence-sp", "with sp the sequence of {sequence} tokens must be a multiple of tp·cp = {tp}·{cp}; the "
             "nearest tp that fits is {hint}",
             lambda p, s: ~s.sp | (p.workload.sequence_length % (s.tp * s.cp) == 0), values=_sp_hint),
        Rule("sp-needs-tp", "sp splits the norm regions over the tensor parallel group: with tp = 1 use sp = off",
             lambda p, s: ~s.sp | (s.tp > 1)),
        Rule("tp-overlap-needs-tp", "tp_overlap hides tensor parallel traffic: with tp = 1 use tp_overlap = off",
             lambda p, s: ~s.tp_overlap | (s.tp > 1)),
        Rule("ep-overlap-needs-ep", "ep_overlap hides the experts' all-to-all: with ep = 1 use ep_overlap = off",
             lambda p, s: ~s.ep_overlap | (s.ep > 1)),
    )  # fmt: skip


def _ulysses_consistent(problem: Problem, s: Strategies) -> Allowed:
    ring = (s.cp_comm == _P2P) | (s.cp_comm == _GATHER)
    mixed = (s.ulysses > 1) & (s.ulysses < s.cp) & (s.cp % s.ulysses == 0)
    return as_allowed(np.where(ring, s.ulysses == 1, np.where(s.cp_comm == _A2A, s.ulysses == s.cp, mixed)))


def _ulysses_degree_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    if s.cp_comm in ("p2p", "all_gather"):
        return {"hint": 1}
    if s.cp_comm == "a2a":
        return {"hint": s.cp}
    inner = [d for d in divisors(s.cp) if 1 < d < s.cp]
    return {"hint": nearest(s.ulysses, inner) if inner else "a divisor between 1 and cp, which there is none"}


def _sequence_cp(problem: Problem, s: Strategies) -> Allowed:
    unit = np.where(s.cp_comm == _A2A, s.cp, 2 * s.cp)
    return as_allowed((s.cp == 1) | (problem.workload.sequence_length % unit == 0))


def _cp_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    factor = 1 if s.cp_comm == "a2a" else 2
    sequence = problem.workload.sequence_length
    fitting = [1, *(d for d in divisors(sequence) if sequence % (factor * d) == 0)]
    unit = "cp" if factor == 1 else "2·cp"
    return {"unit": unit, "needed": factor * s.cp, "hint": nearest(s.cp, fitting)}


def _sp_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sequence = problem.workload.sequence_length
    return {"hint": nearest(s.tp, [d for d in divisors(sequence) if sequence % (d * s.cp) == 0])}


# ---- the pipeline


def _pipeline_rules() -> tuple[Rule, ...]:
    return (
        Rule("pipeline-depth", "pp·vpp = {pp}·{vpp} stages, but {model} has only {layers} layers",
             lambda p, s: s.pp * s.vpp <= p.model.num_layers),
        Rule("schedule-needs-pp", "schedule = {schedule} needs pp > 1: with pp = 1 use schedule = 1f1b",
             lambda p, s: (s.schedule == _PLAIN) | (s.pp > 1)),
        Rule("vpp-schedule", "schedule = {schedule} needs {hint}, not vpp = {vpp}", _vpp_schedule, values=_vpp_hint),
        # With fewer, ranks wait for a micro-batch that is elsewhere: the closed forms of the bubble do not hold.
        Rule("schedule-microbatches", "schedule = {schedule} needs at least pp = {pp} micro-batches, not "
             "{num_microbatches}: use schedule = 1f1b", _enough_microbatches),
        Rule("dualpipe", "schedule = dualpipe needs an even pp and an even m of at least 2·pp, not pp = {pp} and "
             "m = {num_microbatches}", _dualpipe),
        Rule("layer-split", "{problem}", everything, _layer_split, _split_hint),
        Rule("recompute-layers", "recompute = {recompute} with recompute_layers = {recompute_layers}: {hint}",
             _recompute_layers, _recompute_split, _recompute_hint),
    )  # fmt: skip


def _vpp_schedule(problem: Problem, s: Strategies) -> Allowed:
    two = s.schedule == _ZBV
    many = s.schedule == _INTERLEAVED
    return np.where(two, s.vpp == 2, np.where(many, s.vpp > 1, s.vpp == 1))


def _vpp_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    return {"hint": {"zb-v": "vpp = 2", "interleaved": "vpp > 1"}.get(s.schedule, "vpp = 1")}


def _enough_microbatches(p: Problem, s: Strategies) -> Allowed:
    counted = (s.schedule == _INTERLEAVED) | (s.schedule == _ZBH1) | (s.schedule == _ZBV)
    return as_allowed(~counted | (s.num_microbatches >= s.pp))


def _dualpipe(problem: Problem, s: Strategies) -> Allowed:
    fine = (s.pp % 2 == 0) & (s.num_microbatches % 2 == 0) & (s.num_microbatches >= 2 * s.pp)
    return as_allowed((s.schedule != _DUALPIPE) | fine)


def _split_problem(problem: Problem, s: Strategy) -> str:
    split, per_rank = s.layers_per_stage, s.recompute_per_stage
    if split is not None and len(split) != s.pp * s.vpp:
        return f"layers_per_stage has {len(split)} entries, but pp·vpp = {s.pp * s.vpp}"
    if split is not None and sum(split) != problem.model.num_layers:
        return f"layers_per_stage adds up to {sum(split)} layers, but the model has {problem.model.num_layers}"
    if split is not None and min(split) < 0:
        return f"layers_per_stage has a negative entry: {min(split)}"
    if split is not None and s.schedule != "zb-v" and min(split[1:-1], default=1) < 1:
        return "layers_per_stage has an empty stage between the first and the last"
    if per_rank is not None and len(per_rank) != s.pp:
        return f"recompute_per_stage has {len(per_rank)} entries, but pp = {s.pp}"
    return ""


def _layer_split(problem: Problem, s: Strategy) -> bool:
    return not _split_problem(problem, s)


def _split_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    return {"problem": _split_problem(problem, s)}


def _recompute_layers(problem: Problem, s: Strategies) -> Allowed:
    full = s.recompute == _FULL
    return np.where(
        full, (s.recompute_layers >= -1) & (s.recompute_layers <= _most_layers(problem, s)), s.recompute_layers == -1
    )


def _most_layers(problem: Problem, s: Strategies) -> NDArray[np.int64]:
    """Layers that a pipeline rank can hold, ``[n]``: the first and the last stage may be empty, under zb-v any."""
    inside = np.where(s.schedule == _DUALPIPE, s.pp - 4, np.where(s.schedule == _ZBV, 0, s.pp - 3))
    return np.asarray(problem.model.num_layers - np.maximum(0, inside))


def _recompute_split(problem: Problem, s: Strategy) -> bool:
    if s.recompute_per_stage is None:
        return True
    if s.recompute != "full" or min(s.recompute_per_stage) < 0:
        return False
    if s.layers_per_stage is None or not _layer_split(problem, s):
        return max(s.recompute_per_stage) <= problem.model.num_layers
    held = layers_by_rank(s.layers_per_stage, s.pp, s.vpp, s.schedule)
    return all(r <= h for r, h in zip(s.recompute_per_stage, held, strict=True))


def _recompute_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    if s.recompute != "full":
        return {"hint": "a number of layers goes with recompute = full only; leave it at -1"}
    most = int(_most_layers(problem, Strategies.of([s]))[0])
    return {"hint": f"a pipeline rank holds at most {most} layers, and those of its split"}


# ---- states


def _state_rules() -> tuple[Rule, ...]:
    return (
        Rule("zero-group", "zero_group = {zero_group} must divide dp·cp = {dp}·{cp} and go with zero 1 to 3 (zero = "
             "{zero}); the nearest that does is {hint}", _zero_group, values=_zero_hint),
        Rule("offload-share", "offload_optimizer = {offload_optimizer} is not a share from 0 to 1",
             lambda p, s: (s.offload_optimizer >= 0.0) & (s.offload_optimizer <= 1.0)),
        Rule("host-memory", "offload_optimizer = {offload_optimizer} puts {needed} GiB per GPU into the host's memory, "
             "which has room for {room}: offload {hint} or less", _host_memory, values=_host_hint),
        Rule("offload-activations-recompute", "offload_activations keeps what recompute = full drops: use one of them",
             lambda p, s: ~s.offload_activations | (s.recompute != _FULL)),
        # Both would free the attention's queries, keys and values.
        Rule("offload-activations-latent", "offload_activations moves what selective recomputation of latent attention "
             "drops: use recompute = none",
             lambda p, s: ~s.offload_activations | (s.recompute == _NONE) | ~np.bool_(model_facts(p).has_mla)),
        Rule("zero-stage", "zero = {zero} is not a stage from 0 to 3", lambda p, s: (s.zero >= 0) & (s.zero <= 3)),
    )  # fmt: skip


def _host_memory(problem: Problem, s: Strategies) -> Allowed:
    """Only what offloads is looked at."""
    fine = np.ones(len(s), dtype=np.bool_)
    at = np.flatnonzero(s.offload_optimizer > 0.0)
    if len(at):
        fine[at] = optimizer_host_bytes(problem, s.take(at)) <= host_room_bytes(problem)
    return fine


def _host_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    needed, room = float(optimizer_host_bytes(problem, Strategies.of([s]))[0]), host_room_bytes(problem)
    share = math.floor(100.0 * s.offload_optimizer * room / needed) / 100.0 if needed > room else s.offload_optimizer
    return {"needed": f"{needed / _GIB:.1f}", "room": f"{room / _GIB:.1f}", "hint": f"{share:g}"}


def _zero_group(problem: Problem, s: Strategies) -> Allowed:
    divides = (s.dp * s.cp) % np.maximum(s.zero_group, 1) == 0
    return as_allowed((s.zero_group == 0) | ((s.zero_group > 0) & divides & (s.zero > 0)))


def _zero_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    return {"hint": nearest(s.zero_group, divisors(s.dp * s.cp)) if s.zero else "0"}

"""What Megatron-Core 0.19 enforces beyond arithmetic, and what it accepts but would fail or change at run time.

Each rule says where it comes from: ``parser`` (refused by argument validation), ``groups`` (refused when process
groups are made), ``run`` (refused or silently changed only once training starts) or ``kernel`` (refused by
Transformer Engine, which Megatron's context parallelism runs on).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategies, Strategy, enum_code

from .facts import model_facts
from .megatron_shared import device_values, shared_rules
from .rule import Allowed, Rule, as_allowed, divisors, everything, nearest
from .universal import divides_all

_GATHER, _A2A = enum_code("cp_comm", "all_gather"), enum_code("cp_comm", "a2a")
_FULL, _INTERLEAVED = enum_code("recompute", "full"), enum_code("schedule", "interleaved")


def megatron_rules(title: str = "Megatron-LM") -> tuple[Rule, ...]:
    """Rules of Megatron-Core 0.19 in addition to the universal ones and the capability table."""
    return (*_shape_rules(title), *_context_rules(), *_pipeline_rules(), *_expert_rules(), *_state_rules())


def is_blackwell(problem: Problem) -> bool:
    """Whether the device is an NVIDIA one with FP4 units (compute capability 10 and later)."""
    device = problem.cluster.accelerator
    return device.vendor == "NVIDIA" and "nvfp4" in device.peak_flops


def _shape_rules(title: str) -> tuple[Rule, ...]:
    return (
        *shared_rules(title),
        # kernel: scaled formats work on blocks of 16 (32 in MXFP8) along every dimension of a matrix.
        Rule("low-precision-shape", "{dtype} needs widths per tensor rank and tokens per rank that are multiples of "
             "{block}; tp = {tp}, cp = {cp}, etp = {etp}, mbs = {micro_batch_size} leave others", _low_precision,
             values=lambda p, s: {"block": _BLOCKS.get(p.workload.dtype, 1)}),
    )  # fmt: skip


_BLOCKS = {"fp8": 16, "fp8_block": 16, "mxfp8": 32, "nvfp4": 16}


def _low_precision(problem: Problem, s: Strategies) -> Allowed:
    block = _BLOCKS.get(problem.workload.dtype)
    if block is None:
        return np.ones(len(s), dtype=np.bool_)
    facts = model_facts(problem)
    tokens = s.micro_batch_size * problem.workload.sequence_length // (s.cp * np.where(s.sp, s.tp, 1))
    widths = divides_all(facts.widths, s.tp * block) & divides_all(facts.expert_widths, s.etp * block)
    return as_allowed(widths & (tokens % block == 0))


def _context_rules() -> tuple[Rule, ...]:
    return (
        # parser: also for all-to-all, where the arithmetic alone would allow a multiple of cp.
        Rule("sequence-2cp", "Megatron needs a sequence that is a multiple of 2·cp: {sequence} is not one of {needed}; "
             "the nearest cp that fits is {hint}",
             lambda p, s: (s.cp == 1) | (p.workload.sequence_length % (2 * s.cp) == 0), values=_cp_hint),
        # kernel: all-to-all gives each rank whole heads, so the local key-value heads are divided too.
        Rule("ulysses-kv-heads", "all-to-all context parallelism needs the {kv_heads} key-value heads on a tensor rank "
             "(at least one) to be a multiple of ulysses = {ulysses}", _ulysses_kv, values=_kv_values),
        # kernel: hidden queries/keys and values of different size go through the ring only.
        Rule("mla-cp-comm", "latent attention has no context parallelism of kind {cp_comm}: use p2p or a2a+p2p",
             lambda p, s: (s.cp == 1) | ~_whole_sequence(s) | ~_flag(model_facts(p).has_mla)),
        # kernel: the ring cannot express a window.
        Rule("window-cp-comm", "sliding-window attention has no context parallelism of kind {cp_comm}: use all_gather "
             "or a2a",
             lambda p, s: (s.cp == 1) | _whole_sequence(s) | ~_flag(model_facts(p).has_window)),
        # kernel: the ring and the gather have no softmax with sinks.
        Rule("sinks-cp-comm", "attention with sinks has no context parallelism of kind {cp_comm}: use a2a",
             lambda p, s: (s.cp == 1) | (s.cp_comm == _A2A) | ~_flag(model_facts(p).has_sinks)),
        # parser
        Rule("tp-overlap-needs-sp", "tp_overlap needs sp = on", lambda p, s: ~s.tp_overlap | s.sp),
        # run: before Blackwell hidden tensor traffic wants one device connection, FSDP and ep_overlap want several.
        Rule("overlap-connections", "on {device} tp_overlap wants CUDA_DEVICE_MAX_CONNECTIONS = 1, but zero 2, 3 and "
             "ep_overlap want more: switch one of them off",
             lambda p, s: ~s.tp_overlap | ~((s.zero >= 2) | s.ep_overlap) | _flag(is_blackwell(p)),
             values=device_values),
        # run: Transformer Engine's user buffers rest on CUDA multicast, which needs in-switch reduction (Hopper on).
        Rule("tp-overlap-multicast", "tp_overlap needs a scale-up network with multicast, which {device} has not",
             lambda p, s: ~s.tp_overlap | p.cluster.tiers[0].nvls, values=device_values),
        # run: its buffers are written by peers, which must share the scale-up network.
        Rule("tp-overlap-domain", "tp_overlap needs tp = {tp} within the {domain} GPUs of a {tier} domain",
             lambda p, s: ~s.tp_overlap | (s.tp <= p.cluster.tiers[0].size),
             values=lambda p, s: {"domain": p.cluster.tiers[0].size, "tier": p.cluster.tiers[0].name}),
    )  # fmt: skip


def _whole_sequence(s: Strategies) -> Allowed:
    """Kinds whose ranks see the keys of the whole sequence."""
    return as_allowed((s.cp_comm == _GATHER) | (s.cp_comm == _A2A))


def _flag(value: bool) -> np.bool_:
    return np.bool_(value)


def _cp_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sequence = problem.workload.sequence_length
    fitting = [1, *(d for d in divisors(sequence) if sequence % (2 * d) == 0)]
    return {"needed": 2 * s.cp, "hint": nearest(s.cp, fitting)}


def _ulysses_kv(problem: Problem, s: Strategies) -> Allowed:
    fine = np.ones(len(s), dtype=np.bool_)
    for heads in model_facts(problem).kv_heads:
        fine &= np.maximum(heads // s.tp, 1) % s.ulysses == 0
    return (s.ulysses <= 1) | fine


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    return {"kv_heads": ", ".join(str(max(h // s.tp, 1)) for h in model_facts(problem).kv_heads)}


def _pipeline_rules() -> tuple[Rule, ...]:
    return (
        # run: with the default micro-batch group (pp), the last group may not be shorter than the pipeline.
        Rule("interleave-microbatches", "interleaving needs m to be a multiple of pp = {pp}, not {num_microbatches}; "
             "the nearest that divides the batch is {hint}",
             lambda p, s: (s.schedule != _INTERLEAVED) | (s.num_microbatches % s.pp == 0), values=_microbatch_hint),
        # run: `block` counts layers per model chunk, one number for all ranks.
        Rule("recompute-chunks", "recompute_layers = {recompute_layers} is counted per model chunk by Megatron: use a "
             "multiple of vpp = {vpp}, or -1 for all layers",
             lambda p, s: (s.recompute_layers <= 0) | (s.recompute_layers % s.vpp == 0)),
        # run: zero layers in `block` is no recomputation, which is spelled differently.
        Rule("recompute-some", "recompute = full with recompute_layers = 0 recomputes nothing: use recompute = none",
             lambda p, s: (s.recompute != _FULL) | (s.recompute_layers != 0)),
        # parser: one --recompute-num-layers for every stage.
        Rule("recompute-one-number", "Megatron takes one number of recomputed layers per model chunk for all pipeline "
             "ranks; recompute_layers = {recompute_layers} and recompute_per_stage = {recompute_per_stage} cannot be "
             "written that way for layers_per_stage = {layers_per_stage}", everything, _recompute_expressible),
    )  # fmt: skip


def _microbatch_hint(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    batch = problem.workload.global_batch_size
    return {"hint": nearest(s.num_microbatches, [m for m in divisors(batch) if m % s.pp == 0])}


def recompute_per_chunk(problem: Problem, strategy: Strategy, split: tuple[int, ...]) -> int | None:
    """Megatron's ``--recompute-num-layers`` that gives the strategy's recomputation, None if there is none.

    ``split`` is the number of layers of every virtual stage in model order.
    """
    wanted = strategy.recompute_per_stage
    if wanted is None:
        return max(split) if strategy.recompute_layers < 0 else strategy.recompute_layers // strategy.vpp
    for count in range(1, max(split) + 1):
        recomputed = [sum(min(count, n) for n in split[rank :: strategy.pp]) for rank in range(strategy.pp)]
        if recomputed == list(wanted):
            return count
    return None


def layer_split(problem: Problem, strategy: Strategy) -> tuple[int, ...]:
    """The explicit split, or the even one."""
    return strategy.layers_per_stage or even_split(problem.model.num_layers, strategy.pp * strategy.vpp)


def _recompute_expressible(problem: Problem, s: Strategy) -> bool:
    split = layer_split(problem, s)
    if s.recompute != "full" or len(split) != s.pp * s.vpp:
        return True
    if s.recompute_per_stage is None:
        # Chunks of unequal size: one with fewer layers than the number recomputes fewer.
        each = max(s.recompute_layers, 0) // s.vpp
        chunks = [split[rank :: s.pp] for rank in range(s.pp)]
        return all(sum(min(each, n) for n in c) == min(each * s.vpp, sum(c)) for c in chunks)
    return len(s.recompute_per_stage) != s.pp or recompute_per_chunk(problem, s, split) is not None


def _expert_rules() -> tuple[Rule, ...]:
    return (
        # run: the layer raises in its first forward pass.
        Rule("moe-tp-needs-sp", "experts with tp = {tp} need sp = on",
             lambda p, s: ~_flag(model_facts(p).is_moe) | (s.tp == 1) | s.sp),
        # parser: a bias on the experts' linear layers is not divided.
        Rule("expert-bias", "experts with a bias need etp = 1, not {etp}",
             lambda p, s: ~_flag(model_facts(p).has_expert_bias) | (s.etp == 1)),
        # parser
        Rule("ep-overlap-pipeline", "ep_overlap with pp = {pp} needs interleaving (vpp > 1)",
             lambda p, s: ~s.ep_overlap | (s.pp == 1) | (s.vpp > 1)),
        Rule("ep-overlap-recompute", "ep_overlap cannot be combined with recompute = full",
             lambda p, s: ~s.ep_overlap | (s.recompute != _FULL)),
        Rule("ep-overlap-dispatcher", "ep_overlap needs an all-to-all dispatcher, not {dispatcher}",
             lambda p, s: ~s.ep_overlap | (p.runtime.moe_dispatcher != "allgather"),
             values=lambda p, s: {"dispatcher": p.runtime.moe_dispatcher}),
        Rule("ep-overlap-dtype", "ep_overlap needs 16-bit activations, not {dtype}",
             lambda p, s: ~s.ep_overlap | (p.workload.dtype != "fp32")),
        Rule("ep-overlap-mtp", "ep_overlap allows one multi-token prediction layer, the model has {mtp}",
             lambda p, s: ~s.ep_overlap | (model_facts(p).mtp_layers <= 1),
             values=lambda p, s: {"mtp": model_facts(p).mtp_layers}),
    )  # fmt: skip


_PRECISION_AWARE = frozenset({"adam_bf16_moments", "adam_8bit"})


def _state_rules() -> tuple[Rule, ...]:
    return (
        # run: sharded gradients would be reduced for every micro-batch of every stage.
        Rule("fsdp-pipeline", "zero = {zero} is Megatron-FSDP, which does not go with pp = {pp}: use zero = 1",
             lambda p, s: (s.zero < 2) | (s.pp == 1)),
        # Megatron-Bridge's check: its mesh has the replicas outermost.
        Rule("fsdp-rank-order", "zero = {zero} is Megatron-FSDP, which does not go with rank_order = {rank_order}",
             lambda p, s: (s.zero < 2) | (s.rank_order == 0)),
        # parser
        Rule("fsdp-optimizer", "zero = {zero} is Megatron-FSDP, which has no {optimizer} optimizer",
             lambda p, s: (s.zero < 2) | (p.workload.optimizer != "muon")),
        # parser: FSDP wants several device connections, ep overlap too, but both together are untested.
        Rule("fsdp-ep-overlap", "zero = {zero} is Megatron-FSDP, which does not go with ep_overlap",
             lambda p, s: (s.zero < 2) | ~s.ep_overlap),
        # groups: the expert shards are divided into the same number of instances.
        Rule("zero-group-experts", "zero_group = {zero_group} makes {instances} optimizer instances, which must divide "
             "the experts' data parallel degree {edp} too", _expert_instances, values=_instances),
        # run: the layer-wise optimizer has one instance.
        Rule("zero-group-muon", "the muon optimizer shards over all of dp·cp: use zero_group = 0",
             lambda p, s: (s.zero_group == 0) | (s.zero_group == s.dp * s.cp) | (p.workload.optimizer != "muon")),
        # parser: the precision-aware optimizer is an Adam over the distributed optimizer.
        Rule("offload-optimizer", "offload_optimizer needs an Adam optimizer and zero = 1, not {optimizer} and "
             "zero = {zero}", _offload),
        # run: a graph cannot hold modules whose inputs are copied away.
        Rule("offload-activations-graphs", "offload_activations does not go with CUDA graphs of the attention, which "
             "runtime {runtime} has", lambda p, s: ~s.offload_activations | ~_flag(p.runtime.cuda_graphs),
             values=lambda p, s: {"runtime": p.runtime.name}),
        # Not among the features that its documentation lists as working together.
        Rule("offload-activations-fsdp", "zero = {zero} is Megatron-FSDP, which does not go with offload_activations",
             lambda p, s: ~s.offload_activations | (s.zero < 2)),
        Rule("precision-aware-zero", "{optimizer} keeps low-precision moments, which needs zero 1 to 3, not {zero}",
             lambda p, s: ~_flag(p.workload.optimizer in _PRECISION_AWARE) | (s.zero > 0)),
    )  # fmt: skip


def _expert_instances(problem: Problem, s: Strategies) -> Allowed:
    shards = np.where(s.zero_group > 0, s.zero_group, s.dp * s.cp)
    instances = np.maximum((s.dp * s.cp) // np.maximum(shards, 1), 1)
    return as_allowed(~_flag(model_facts(problem).is_moe) | (s.edp % instances == 0))


def _instances(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    return {"instances": s.dp * s.cp // s.zero_group if s.zero_group else 1, "edp": s.edp}


def _offload(problem: Problem, s: Strategies) -> Allowed:
    adam = problem.workload.optimizer.startswith("adam")
    return as_allowed((s.offload_optimizer == 0.0) | (_flag(adam) & (s.zero == 1)))

"""What Hugging Face Accelerate 1.15 enforces with FSDP2, or silently does otherwise.

Each rule says where it comes from: ``config`` (refused by ``ParallelismConfig``), ``run`` (the training fails, or does
something else) or ``kernel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy

from .accelerate_models import CLASSES
from .facts import model_facts
from .megatron_shared import VENDORS, device_values
from .rule import Allowed, Rule, as_allowed, divisors, nearest
from .universal import divides_all


def accelerate_rules() -> tuple[Rule, ...]:
    """Rules of Accelerate in addition to the universal ones and the capability table."""
    return (*_mesh_rules(), *_model_rules(), *_device_rules())


def _mesh_rules() -> tuple[Rule, ...]:
    return (
        # config: "the parallelism config has no dimension for FSDP to shard across".
        Rule("fsdp-ranks", "FSDP2 needs ranks to divide the states over: dp·cp = {dp}·{cp} is 1", _shards),
        # config: zero_group = dp_shard_size·cp_size, so a group holds whole context parallel groups.
        Rule("hsdp-group", "a group of FSDP2 is dp_shard_size·cp_size ranks: zero_group = {zero_group} must be a "
             "multiple of cp = {cp} that holds two or more of the dp = {dp} ranks; the nearest is {hint}", _hybrid,
             values=_hybrid_values),
    )  # fmt: skip


def _shards(problem: Problem, s: Strategies) -> Allowed:
    return as_allowed(s.dp * s.cp > 1)


def _hybrid(problem: Problem, s: Strategies) -> Allowed:
    """dp_shard_size = zero_group / cp must be a whole number, and above 1 where replicas are made of it."""
    parts = s.zero_group // np.maximum(s.cp, 1)
    replicas = np.where(s.zero_group > 0, s.dp * s.cp // np.maximum(s.zero_group, 1), 1)
    fine = (s.zero_group % np.maximum(s.cp, 1) == 0) & ((parts > 1) | (replicas == 1))
    return as_allowed((s.zero_group == 0) | fine)


def _hybrid_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    fitting = [d * s.cp for d in divisors(s.dp) if d > 1]
    return {"hint": nearest(s.zero_group, fitting)}


def _model_rules() -> tuple[Rule, ...]:
    return (
        # run: no plan, or one that leaves the attention whole.
        Rule("tp-plan", "transformers has no tensor parallel plan for all of {architecture}: with tp = {tp} parts of a "
             "layer would stay whole; use tp = 1",
             lambda p, s: (s.tp == 1) | np.bool_(p.model.architecture in CLASSES and CLASSES[p.model.architecture].tp),
             values=lambda p, s: {"architecture": p.model.architecture or p.model.name}),
        # run: whole key-value heads are split, and never repeated.
        Rule("kv-heads-split", "the plan splits the key-value heads {kv_heads}: tp = {tp} must divide them; the "
             "nearest tp that does is {hint}", lambda p, s: divides_all(model_facts(p).kv_heads, s.tp),
             values=_kv_values),
        # run: the plan splits experts the way it splits everything else.
        Rule("experts-under-tp", "the tensor parallel plan splits the experts too: etp = {etp} must be tp = {tp}",
             lambda p, s: (s.etp == s.tp) | ~np.bool_(model_facts(p).is_moe)),
        # run: PyTorch's context parallel attention knows one mask, the causal one of the whole sequence.
        Rule("cp-attention", "PyTorch's context parallelism shards plain causal attention only, and {model} has "
             "{what}: with cp = {cp} it fails; use cp = 1", lambda p, s: (s.cp == 1) | np.bool_(not _odd_attention(p)),
             values=lambda p, s: {"what": _odd_attention(p) or "it"}),
    )  # fmt: skip


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sizes = model_facts(problem).kv_heads
    common = int(np.gcd.reduce(sizes)) if sizes else 1
    return {"kv_heads": ", ".join(map(str, sizes)), "hint": nearest(s.tp, divisors(common))}


def _odd_attention(problem: Problem) -> str:
    """What keeps the model from PyTorch's context parallel attention; empty when nothing does."""
    facts = model_facts(problem)
    if facts.has_window:
        return "windows of keys"
    if facts.has_sinks:
        return "attention sinks"
    if facts.has_mla:
        return "value heads of another size than key heads"
    if facts.recurrent_heads:
        return "recurrent layers"
    return "ALiBi positions" if problem.model.architecture in ("BloomForCausalLM", "FalconForCausalLM") else ""


def _device_rules() -> tuple[Rule, ...]:
    return (
        # kernel: other vendors' builds are other packages, and the figures are of CUDA kernels.
        Rule("accelerator", "this launcher writes for CUDA and ROCm builds of PyTorch, and {device} is {vendor}'s",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor in VENDORS), values=device_values,
             scope="machine", fix="choose another cluster, or another launcher"),
    )  # fmt: skip

"""What nanotron enforces beyond arithmetic, or silently does otherwise.

Each rule says where it comes from: ``config`` (refused when the file is loaded), ``build`` (the division of the model)
or ``kernel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError

from .facts import model_facts
from .megatron_shared import device_values
from .nanotron_model import check_model, stage_layers
from .refusal import show
from .rule import Allowed, Rule, as_allowed, divisors, nearest
from .universal import divides_all


def nanotron_rules() -> tuple[Rule, ...]:
    """Rules of nanotron in addition to the universal ones and the capability table."""
    return (
        # config: num_key_value_heads >= tp; and whole heads are split, never repeated.
        Rule("kv-heads-split", "nanotron splits the key-value heads {kv_heads}: tp = {tp} must divide them; the "
             "nearest tp that does is {hint}", lambda p, s: divides_all(model_facts(p).kv_heads, s.tp),
             values=_kv_values),
        # run: only the sequence parallel linear layers have asynchronous gathers.
        Rule("tp-overlap-needs-sp", "tp_linear_async_communication works with REDUCE_SCATTER: tp_overlap = "
             "{tp_overlap} needs sp = on, not {sp}", lambda p, s: ~s.tp_overlap | s.sp),
        # build: by the cost of the blocks, the head counted; a file cannot say it otherwise.
        Rule("nanotron-stages", "nanotron divides the layers over pp = {pp} stages itself: layers_per_stage must be "
             "its {own}, not {layers_per_stage}", _even_is_its_own, _as_divided, _own_values, by_split=True),
        # kernel: FlashAttention and NCCL.
        Rule("accelerator", "nanotron has no kernels for {device} ({vendor})",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor == "NVIDIA"), values=device_values,
             scope="machine", fix="choose another cluster, or another launcher"),
    )  # fmt: skip


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sizes = model_facts(problem).kv_heads
    common = int(np.gcd.reduce(sizes)) if sizes else 1
    return {"kv_heads": ", ".join(map(str, sizes)), "hint": nearest(s.tp, divisors(common))}


def _own(problem: Problem, tp: int, pp: int) -> tuple[int, ...] | None:
    try:
        check_model(problem)
    except InputError:
        # Writing refuses the model itself, in its own words.
        return even_split(problem.model.num_layers, pp)
    return stage_layers(problem, tp, pp)


def _even_is_its_own(problem: Problem, s: Strategies) -> Allowed:
    fine = np.ones(len(s), dtype=np.bool_)
    tps, pps = np.asarray(s.tp), np.asarray(s.pp)
    for tp, pp in {(int(a), int(b)) for a, b in zip(tps, pps, strict=True) if 1 < b <= problem.model.num_layers}:
        if _own(problem, max(tp, 1), pp) != even_split(problem.model.num_layers, pp):
            fine &= (tps != tp) | (pps != pp)
    return as_allowed(fine)


def _as_divided(problem: Problem, s: Strategy) -> bool:
    if s.layers_per_stage is None or s.pp <= 1 or s.pp > problem.model.num_layers:
        return True
    return s.layers_per_stage == _own(problem, max(s.tp, 1), s.pp)


def _own_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    own = _own(problem, max(s.tp, 1), s.pp) if 1 <= s.pp <= problem.model.num_layers else None
    shown = "/".join(map(str, own)) if own else "own, which leaves a stage without layers"
    return {"own": shown, "layers_per_stage": show(s.layers_per_stage)}

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
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .facts import model_facts
from .megatron_shared import device_values
from .nanotron_model import check_model, stage_layers
from .rule import Rule, divisors, nearest
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
        # kernel: FlashAttention and NCCL.
        Rule("accelerator", "nanotron has no kernels for {device} ({vendor})",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor == "NVIDIA"), values=device_values,
             scope="machine", fix="choose another cluster, or another launcher"),
    )  # fmt: skip


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    sizes = model_facts(problem).kv_heads
    common = int(np.gcd.reduce(sizes)) if sizes else 1
    return {"kv_heads": ", ".join(map(str, sizes)), "hint": nearest(s.tp, divisors(common))}


def nanotron_splits(problem: Problem, tp: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """nanotron's one division of the layers: by the cost of the blocks, the head counted. No setting changes it."""
    try:
        check_model(problem)
    except InputError:
        # Writing refuses the model itself, in its own words.
        return (even_split(problem.model.num_layers, pp),)
    own = stage_layers(problem, tp, pp)
    return () if own is None else (own,)

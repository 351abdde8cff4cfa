"""Memory of the host that offloaded optimizer states take."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .operators import rank_parameters
from .problem import Array, Problem
from .step import optimizer_state_bytes
from .strategy import Strategies

HOST_SHARE = 0.8
"""Of the host's memory; the rest is left to the system, data loaders and checkpoints. Assumed."""

GRADIENT_BYTES = 4.0
"""Per offloaded parameter: its gradient in FP32, which the optimizer on the host works on (ZeRO-Offload, arXiv
2101.06840, section 3, moves 16-bit gradients and holds the FP32 copy)."""


def optimizer_host_bytes(problem: Problem, strategies: Strategies) -> Array:
    """Host bytes per accelerator, the mean over pipeline ranks, ``[n]``; degrees under 1 count as 1."""
    s, model = strategies, problem.model
    tp, ep, etp, pp = (np.maximum(getattr(s, name), 1).astype(np.float64) for name in ("tp", "ep", "etp", "pp"))
    dense = np.asarray((model.embedding_parameters + model.head_parameters) / tp)
    expert = np.zeros(len(s))
    for kind, count in Counter(model.layers).items():
        per_rank = rank_parameters(model.kinds[kind], tp, ep, etp)
        dense, expert = dense + count * per_rank[0], expert + count * per_rank[1]
    sharded = s.zero >= 1
    a, b = (np.where(sharded, np.maximum(x, 1.0), 1.0) for x in s.zero_shards)
    each = optimizer_state_bytes(problem) + GRADIENT_BYTES
    return np.asarray(each * s.offload_optimizer * (dense / a + expert / b) / pp)


def host_room_bytes(problem: Problem) -> float:
    """Host bytes per accelerator that offloaded states may take."""
    return HOST_SHARE * problem.cluster.host_memory_bytes_per_gpu

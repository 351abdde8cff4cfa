"""Messages between pipeline stages: their bytes, and how long a neighbour waits for one."""

from __future__ import annotations

import numpy as np

from shardwise.hardware_profiles.cluster import Cluster

from .group import Group
from .problem import Array, Ints, Problem
from .strategy import Strategies


def boundary_messages(problem: Problem, s: Strategies) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Forward and backward: bytes a rank sends over a stage boundary per micro-batch, and bytes its TP group gathers
    after receiving them.

    Every TP rank holds the whole output. Under sequence parallelism it sends its part of it, or, in frameworks that
    scatter and gather (Narayanan et al., arXiv 2104.04473, section 4.1), a slice that the receivers put together.
    """
    tokens = s.micro_batch_size * problem.workload.sequence_length / s.cp
    whole = tokens * problem.model.hidden_size * problem.activation_bytes / np.where(s.sp, s.tp, 1)
    kept, gathered = (whole, np.zeros_like(whole)), np.where(~s.sp & (s.tp > 1), whole, 0.0)
    sliced = (whole / np.where(gathered > 0, s.tp, 1), gathered)
    how = problem.runtime.pp_scatter_gather
    return (kept if how == "none" else sliced), (sliced if how == "both" else kept)


def p2p_s(group: Group) -> Array:
    """Mean seconds of a stage-boundary message, ``[n]``."""
    s, problem = group.strategies, group.problem
    if group.pp == 1:
        return np.zeros(len(s))
    first, inverse = s.distinct(("tp", "sp", "cp", "dp", "micro_batch_size", "rank_order"))
    few = s.take(first)
    forward, backward = boundary_messages(problem, few)
    one = message_s(problem, few, *forward)
    if backward is not forward:
        one = (one + message_s(problem, few, *backward)) / 2.0
    return np.asarray(one[inverse])


def message_s(problem: Problem, s: Strategies, nbytes: Array, gathered: Array) -> Array:
    """Mean seconds to send to the neighbouring stage, which only some boundaries leave a domain for, and to gather."""
    seconds = neighbour_s(problem.cluster, nbytes, s.pp, s.stage_stride)
    if np.any(gathered):
        seconds = seconds + problem.cluster.collective_time_s("all_gather", gathered, s.tp, np.ones_like(s.tp))
    return seconds


def neighbour_s(cluster: Cluster, nbytes: Array, pp: Ints, stride: Ints) -> Array:
    """Mean seconds to send to the neighbouring stage, ``stride`` ranks away: only some boundaries leave a domain."""
    near, far = (cluster.collective_time_s("p2p", nbytes, size, stride) for size in (np.full_like(pp, 2), pp))
    block, domain = pp * stride, cluster.domains[0]
    straddles = (block < min(domain, cluster.num_gpus)) & (domain % block != 0)
    crossing = np.maximum(np.ceil(block / domain) - 1.0, straddles)
    return np.asarray(near + (far - near) * np.clip(crossing / np.maximum(pp - 1, 1), 0.0, 1.0))

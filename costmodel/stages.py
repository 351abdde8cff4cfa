"""The inner problem of one strategy: which layers on which virtual stage, and how many of them recomputed.

The same figures as ``evaluate`` and ``estimate`` read, laid out per layer kind so that a solver can add them up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .evaluate import capacity_bytes, single_group
from .layers import layer_table
from .problem import Array, Problem
from .schedule import in_flight
from .splits import chunk_ranks, rank_counts
from .step import Group, communicators, state_bytes
from .strategy import Strategies, Strategy


@dataclass(frozen=True, slots=True)
class StageProblem:
    """Per layer kind ``[kind]``, per pipeline rank ``[rank]`` and per virtual stage ``[chunk]``.

    Times are seconds per micro-batch; bytes are per rank. ``time_s`` has no full recomputation in it, ``recompute_s``
    is what recomputing one layer adds. A rank's memory is fixed + states + in_flight · kept + transient.
    """

    num_chunks: int
    chunk_rank: tuple[int, ...]
    layer_kind: tuple[int, ...]
    time_s: Array
    recompute_s: Array
    saved_bytes: Array
    boundary_bytes: Array
    state_bytes: Array
    workspace_bytes: Array
    first_time_s: float
    last_time_s: float
    first_state_bytes: float
    last_state_bytes: float
    last_saved_bytes: float
    last_workspace_bytes: float
    """Logits: held once, not per micro-batch in flight."""
    in_flight: Array
    fixed_bytes: float
    fragmentation: float
    """Share added to activations, logits and workspaces for the allocator's losses."""
    capacity_bytes: float
    num_microbatches: int
    fill_weight: float
    """Weight of the ranks' summed time beside the slowest one's: 1 for 1f1b, 1/vpp interleaved."""

    def pipeline_s(self, slowest_s: float, summed_s: float) -> float:
        """Seconds in the pipeline: steady state on the slowest rank, and one filling over the others."""
        return self.num_microbatches * slowest_s + self.fill_weight * max(0.0, summed_s - slowest_s)


def stage_problem(problem: Problem, strategy: Strategy) -> StageProblem:
    """Lay out the inner problem of a strategy (its own layer split is ignored)."""
    s = Strategies.of([strategy])
    pp, vpp, schedule = strategy.pp, strategy.vpp, strategy.schedule
    group = single_group(problem, layer_table(problem, s), s, rank_counts(problem, pp, vpp, schedule))
    t = group.table
    kinds = len(problem.model.kinds)
    seconds = (t.forward + t.backward + t.weight).sum(axis=0)[:, 0]
    selective = strategy.recompute == "selective"
    if selective:
        seconds = seconds + t.selective[:, 0]
    saved = (t.saved_selective if selective else t.saved)[:, 0]
    mtp = float(len(problem.model.mtp)) if problem.workload.train_mtp else 0.0
    states = _states(group, t.dense[:, 0], t.expert[:, 0])
    flight = in_flight(schedule, pp, vpp, s.num_microbatches)[:, 0]
    fixed = float(communicators(s)[0]) * problem.runtime.communicator_bytes + problem.runtime.context_bytes
    fill = {"gpipe": 1.0, "1f1b": 1.0, "interleaved": 1.0 / vpp, "zb-h1": 1.0}.get(schedule, 0.0)
    return StageProblem(
        num_chunks=pp * vpp,
        chunk_rank=chunk_ranks(pp, vpp, schedule),
        layer_kind=problem.model.layers,
        time_s=seconds[:kinds],
        recompute_s=t.forward.sum(axis=0)[:kinds, 0],
        saved_bytes=saved[:kinds],
        boundary_bytes=t.boundary[:kinds, 0],
        state_bytes=states[:kinds],
        workspace_bytes=t.workspace[:kinds, 0],
        first_time_s=float(seconds[t.embedding]),
        last_time_s=float(seconds[t.head] + mtp * seconds[t.mtp]),
        first_state_bytes=float(states[t.embedding]),
        last_state_bytes=float(states[t.head] + mtp * states[t.mtp]),
        last_saved_bytes=float(mtp * saved[t.mtp]),
        last_workspace_bytes=float(t.workspace[t.head, 0]),
        in_flight=flight,
        fixed_bytes=fixed,
        fragmentation=problem.runtime.fragmentation,
        capacity_bytes=capacity_bytes(problem),
        num_microbatches=strategy.num_microbatches,
        fill_weight=fill,
    )


def _states(group: Group, dense: Array, expert: Array) -> Array:
    """Bytes of weights, gradients and optimizer states of one layer of each kind."""
    parts = state_bytes(group, dense[:, None], expert[:, None])
    return np.asarray(parts["weights"] + parts["gradients"] + parts["optimizer"])[:, 0]

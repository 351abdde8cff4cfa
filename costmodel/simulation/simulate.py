"""One training step, simulated: every pipeline rank's passes in the schedule's order, and what comes around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layers import LayerTable, key_of, layer_table
from ..problem import Array, Problem
from ..strategy import Strategies, Strategy
from .durations import Durations, durations
from .graph import KINDS, Graph, graph
from .orders import FORWARD, WEIGHT, WHOLE
from .trace import chrome_trace


@dataclass(frozen=True, slots=True)
class Simulation:
    """When everything in a step happens. Seconds from the start of the step; ``[n]`` arrays follow ``graph``.

    A rank's time is the sum of its ``parts_by_rank_s``, which is the step for every rank: what the rank does not
    compute, send or wait for by name is ``pp_bubble``.
    """

    problem: Problem
    strategy: Strategy
    step_time_s: float
    graph: Graph
    durations: Durations
    begin_s: Array
    """When a pass's own work begins: what it waits for by name lies before."""
    end_s: Array
    rank_end_s: Array
    """When each rank's gradients are reduced, ``[pp]``."""
    meet_s: float
    """When all ranks have met, and the optimizer starts."""
    parts_by_rank_s: tuple[dict[str, float], ...]

    @property
    def busy_by_rank_s(self) -> tuple[float, ...]:
        """Seconds that each rank computes: its passes, recomputation included, and its optimizer step."""
        return tuple(sum(parts[k] for k in ("compute", "recompute", "optimizer")) for parts in self.parts_by_rank_s)

    @property
    def bubble_by_rank_s(self) -> tuple[float, ...]:
        """Seconds that each rank waits for other ranks."""
        return tuple(parts["pp_bubble"] for parts in self.parts_by_rank_s)

    @property
    def exposed_comm_by_rank_s(self) -> tuple[float, ...]:
        """Seconds of stage-boundary and data parallel traffic that each rank waits for.

        Tensor, context and expert parallel traffic is part of the passes, as in ``Estimate.time_parts_s``.
        """
        return tuple(parts["pp_comm"] + parts["dp_comm"] for parts in self.parts_by_rank_s)

    @property
    def in_flight_by_rank(self) -> tuple[float, ...]:
        """Micro-batches whose activations each rank holds at its peak, in units of its whole share.

        As ``schedule.in_flight``, whatever the micro-batch group: activations are kept until the weight gradient.
        """
        g, frees = self.graph, [KINDS.index(WEIGHT), KINDS.index(WHOLE)]
        change = np.where(g.kind == KINDS.index(FORWARD), 1, 0) - np.isin(g.kind, frees)
        return tuple(float(np.cumsum(change[g.rank == rank]).max()) / g.chunks for rank in range(g.pp))

    @property
    def slowest_rank(self) -> int:
        """The rank that waits least for others."""
        return int(np.argmin(self.bubble_by_rank_s))

    @property
    def time_parts_s(self) -> dict[str, float]:
        """The step by named part on the slowest rank; sums to ``step_time_s``."""
        return self.parts_by_rank_s[self.slowest_rank]

    def trace(self) -> dict[str, Any]:
        """The step as a Chrome trace, plain values for JSON: one process per pipeline rank, one thread per stream."""
        return chrome_trace(self)


class Simulator:
    """Simulates many strategies of one problem; layers that were costed once are not costed again."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._tables: dict[tuple[object, ...], LayerTable] = {}

    def step_s(self, strategy: Strategy, *, microbatch_group: int = 0, buckets: int = 0) -> float:
        """Seconds of one step; arguments and errors as ``simulate``."""
        known, times = self._prepared(strategy, microbatch_group, buckets)
        end = _ends_s(known, times, times.table[known.kind, known.rank, known.chunk])
        meet = _meet_s(times, end[known.last] + times.reductions)
        return meet + float((times.optimizer + times.offload).max()) + times.fixed

    def simulate(self, strategy: Strategy, *, microbatch_group: int = 0, buckets: int = 0) -> Simulation:
        """One step in full; arguments and errors as ``simulate``."""
        known, times = self._prepared(strategy, microbatch_group, buckets)
        passes = times.table[known.kind, known.rank, known.chunk]
        end = _ends_s(known, times, passes)
        rank_end = end[known.last] + times.reductions
        meet = _meet_s(times, rank_end)
        step = meet + float((times.optimizer + times.offload).max()) + times.fixed
        around = np.where(known.kind == KINDS.index(WEIGHT), 0.0, times.wait)
        return Simulation(
            problem=self.problem,
            strategy=strategy,
            step_time_s=step,
            graph=known,
            durations=times,
            begin_s=end - passes + around,
            end_s=end,
            rank_end_s=rank_end,
            meet_s=meet,
            parts_by_rank_s=tuple(_parts_s(known, times, rank, step) for rank in range(known.pp)),
        )

    def _prepared(self, strategy: Strategy, group: int, buckets: int) -> tuple[Graph, Durations]:
        known = _graph(self.problem, strategy, group)
        key = key_of(strategy)
        if key not in self._tables:
            self._tables[key] = layer_table(self.problem, Strategies.of([strategy]))
        return known, durations(self.problem, strategy, buckets, self._tables[key])


def simulate(problem: Problem, strategy: Strategy, *, microbatch_group: int = 0, buckets: int = 0) -> Simulation:
    """Simulate one step of a strategy, its explicit layer split and recomputation included.

    ``microbatch_group``: micro-batches that an interleaved rank runs through one chunk in turn (from pp, the default,
    to m); ``buckets``: gradient buckets per rank (a layer each by default).

    Raises InputError where ``estimate`` does, where the schedule does not exist for these pp and m, and for a group
    that Megatron refuses.
    """
    return Simulator(problem).simulate(strategy, microbatch_group=microbatch_group, buckets=buckets)


def simulated_step_s(problem: Problem, strategy: Strategy, *, microbatch_group: int = 0, buckets: int = 0) -> float:
    """``simulate(...).step_time_s`` and nothing else. A loop over many strategies is quicker with a ``Simulator``."""
    return Simulator(problem).step_s(strategy, microbatch_group=microbatch_group, buckets=buckets)


def _graph(problem: Problem, strategy: Strategy, group: int) -> Graph:
    schedule = "1f1b" if strategy.pp == 1 and strategy.vpp == 1 else strategy.schedule
    pending = problem.runtime.zb_pending if schedule == "zb-h1" else 1.0
    return graph(schedule, strategy.pp, strategy.vpp, strategy.num_microbatches, group, pending)


def _ends_s(known: Graph, times: Durations, passes: Array) -> Array:
    delay = np.where(known.filling, times.delay, 0.0) if times.delay else 0.0
    return known.ends_s(passes, delay, times.gathers)


def _meet_s(times: Durations, rank_end: Array) -> float:
    """When every rank is done; the two ends of the model reduce a tied embedding first."""
    tied = max(float(rank_end[0]), float(rank_end[-1])) + times.tied
    return max(float(rank_end.max()), tied)


def _parts_s(known: Graph, times: Durations, rank: int, step: float) -> dict[str, float]:
    """Where a rank's time goes; sums to the step."""
    mine = known.rank == rank
    chunks = known.chunk[mine & (known.kind == 0)]
    passes = len(chunks)
    compute = times.forward + times.backward + times.weight
    traffic = times.forward_traffic + times.backward_traffic
    ends = times.tied if rank in (0, known.pp - 1) else 0.0
    parts = {
        "compute": float(compute[rank, chunks].sum()),
        "recompute": float(times.recompute[rank, chunks].sum()),
        "pp_comm": 2.0 * passes * (times.wait - times.host),
        "dp_comm": float(traffic[rank, chunks].sum() + times.gathers[rank] + times.reductions[rank]) + ends,
        "optimizer": float(times.optimizer[rank]),
        "offload": float(times.offload[rank]),
        "host_per_microbatch": 2.0 * passes * times.host,
        "fixed": times.fixed,
    }
    return {**parts, "pp_bubble": step - sum(parts.values())}

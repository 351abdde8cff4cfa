"""The inner problem, solved by CP-SAT: layers per virtual stage and recomputed layers per rank, slowest stage fastest.

Integers: seconds in units of 2^-22 of the mean stage, rounded down, so that the solver's bound is a bound; bytes in
units of 2^-26 of the capacity, rounded so that what it accepts fits. Both lie below 1e-4 of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.schedule import others_divisor
from shardwise.costmodel.splits import chunk_ranks, even_split
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.base import Launcher

from .rows import KindRows, kind_rows

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_TIME_STEPS, _BYTE_STEPS = 1 << 22, 1 << 26
_GRAIN = 64
"""Parts of a layer that a relaxed model may recompute: ranks that mix kinds recompute the same share of each."""

_FLOOR_GAP = 3e-5
"""How close to a known floor a split is as good as the best."""

_LEAST_S = 0.02
"""Seconds that CP-SAT has at least where a time limit is given."""

_WORK_LIMIT, _LITTLE_WORK = 2.0, 0.02
"""CP-SAT's deterministic time for one strategy, and where near the best will do: the same answer on any machine."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split and its recomputation as a strategy; ``pipeline_s`` bounds the pipeline seconds of every other split."""

    strategy: Strategy
    pipeline_s: float
    optimal: bool


def splittable(problem: Problem, launcher: Launcher, strategy: Strategy) -> bool:
    """Whether the launcher can express an uneven layer split of a strategy."""
    if strategy.pp == 1:
        return False
    even = even_split(problem.model.num_layers, strategy.pp * strategy.vpp)
    # Stages of one layer each: only those at the ends may have none.
    odd = [(even[0] + 1, even[1] - 1, *even[2:]), (even[0] - 1, even[1] + 1, *even[2:])]
    return any(not launcher.violations(problem, replace(strategy, layers_per_stage=split)) for split in odd)


def one_number(problem: Problem, launcher: Launcher, strategy: Strategy) -> bool:
    """Whether the launcher recomputes the same number of layers in every model chunk."""
    even = even_split(problem.model.num_layers, strategy.pp * strategy.vpp)
    uneven = (1,) + (0,) * (strategy.pp - 1)
    full = replace(strategy, recompute="full", layers_per_stage=even, recompute_per_stage=uneven)
    return bool(launcher.violations(problem, full))


def solve_split(
    problem: Problem,
    strategy: Strategy,
    *,
    uniform: bool,
    pipeline_limit_s: float,
    numbers: Sequence[int] | None = None,
    slack_bytes: float = 0.0,
    params_below: float = math.inf,
    gap: float = 0.0,
    relaxed: bool = False,
    tidy: bool = False,
    pipeline_floor_s: float = 0.0,
    work: float = 0.0,
    left_s: float | None = None,
) -> Split | None:
    """The best split of one strategy whose pipeline takes less than ``pipeline_limit_s``; None if there is none.

    No split's pipeline takes less than ``pipeline_floor_s``: one that close to it is the best.

    ``uniform``: one number of recomputed layers for every chunk. ``numbers``: instead, those that full recomputation
    may repeat on every rank (all where it has fewer). ``slack_bytes`` is kept free on every rank, and every rank has
    fewer than ``params_below`` parameters. With a ``gap`` above 0 a split within that share of the best does.
    ``relaxed`` lets ranks recompute any part of any layer and rounds memory down: a bound, not an answer. ``tidy``
    asks for the split nearest to the even one among those within the limit. ``work`` limits CP-SAT's deterministic
    time where it is given, ``left_s`` its seconds.
    """
    (_, group), *_ = groups(problem, Strategies.of([strategy]))
    model = _Model(problem, kind_rows(group), strategy, uniform, numbers, slack_bytes, relaxed, pipeline_limit_s)
    if math.isfinite(params_below):
        model.limit_params(params_below)
    if tidy:
        model.prefer_even()
    if pipeline_floor_s > 0.0:
        model.start_from(pipeline_floor_s)
    return model.solve(pipeline_limit_s, gap, work or (_LITTLE_WORK if gap else _WORK_LIMIT), left_s)


class _Model:
    """The CP-SAT model of one strategy."""

    def __init__(
        self,
        problem: Problem,
        rows: KindRows,
        strategy: Strategy,
        uniform: bool,
        numbers: Sequence[int] | None,
        slack_bytes: float,
        relaxed: bool,
        limit_s: float,
    ) -> None:
        from ortools.sat.python import cp_model

        self._cp = cp_model
        self.problem, self.rows, self.strategy = problem, rows, strategy
        self.uniform, self.numbers = uniform, numbers
        self.count: Any = None
        """The one number of recomputed layers, of every chunk or of every rank."""
        self.model = cp_model.CpModel()
        self.relaxed, self.grain = relaxed, _GRAIN if relaxed else 1
        self.pp, self.vpp = strategy.pp, strategy.vpp
        self.kinds = rows.used
        self.total = problem.model.num_layers
        self.floor, self.limit_s = 0, limit_s
        self.full = strategy.recompute == "full"
        mean = float((rows.layers @ rows.time[: rows.num_kinds] + rows.first_s + rows.last_s)[0]) / self.pp
        self.second = mean / _TIME_STEPS
        self.byte = rows.capacity / _BYTE_STEPS
        self.room = rows.capacity - slack_bytes - float(rows.fixed[0])
        self.chunks: list[cp_model.IntVar] = []
        self.inside: list[dict[int, Any]] = []
        """Layers of each kind in each chunk, where chunks matter one by one."""
        self.held = self._layers()
        self.again = self._recomputed() if self.full else []
        self._memory()
        self._objective()

    # ---- layers

    def _layers(self) -> list[dict[int, Any]]:
        """Variables (or sums) for the layers of each kind on each rank."""
        if len(self.kinds) == 1 and self.strategy.schedule != "interleaved":
            return self._rank_totals()
        return self._cuts()

    def _rank_totals(self) -> list[dict[int, Any]]:
        """One kind of layer, ranks that do not take turns: only the total of a rank matters, its chunks share it."""
        held = []
        for rank in range(self.pp):
            least = self.vpp - (1 if rank in (0, self.pp - 1) else 0)
            held.append({self.kinds[0]: self.model.new_int_var(least, self.total, f"n{rank}")})
        self.model.add(sum(h[self.kinds[0]] for h in held) == self.total)
        if self.strategy.schedule == "zb-v":
            return held
        even = self._even()
        for rank in range(self.pp):
            self.model.add_hint(held[rank][self.kinds[0]], sum(even[rank :: self.pp]))
        return held

    def _even(self) -> tuple[int, ...]:
        return even_split(self.total, self.pp * self.vpp)

    def _cuts(self) -> list[dict[int, Any]]:
        """Where to cut the list of layers into chunks."""
        layers = np.array(self.problem.model.layers)
        count = self.pp * self.vpp
        even = self._even()
        cuts: list[Any] = [0]
        most = self._longest_chunk()
        for c in range(count):
            n = self.model.new_int_var(0 if c in (0, count - 1) else 1, most, f"n{c}")
            self.model.add_hint(n, even[c])
            self.chunks.append(n)
            cut = self.model.new_int_var(0, self.total, f"cut{c}")
            self.model.add(cut == cuts[-1] + n)
            cuts.append(cut)
        self.model.add(cuts[-1] == self.total)
        self.inside = [dict.fromkeys(self.kinds, 0) for _ in range(count)]
        for kind in self.kinds[:-1]:
            running = [0, *np.cumsum(layers == kind).tolist()]
            marks: list[Any] = [0]
            for c in range(count):
                mark = self.model.new_int_var(0, running[-1], f"k{kind}c{c}")
                self.model.add_element(cuts[c + 1], running, mark)
                self.inside[c][kind] = mark - marks[-1]
                marks.append(mark)
        for c, inside in enumerate(self.inside):
            inside[self.kinds[-1]] = self.chunks[c] - sum(inside[k] for k in self.kinds[:-1])
        ranks = chunk_ranks(self.pp, self.vpp, self.strategy.schedule)
        mine = [[inside for r, inside in zip(ranks, self.inside, strict=True) if r == rank] for rank in range(self.pp)]
        # A new sum of each: adding to an expression in place would change the chunk's own.
        total = self._cp.LinearExpr.sum
        return [{kind: total([inside[kind] for inside in chunks]) for kind in self.kinds} for chunks in mine]

    def _longest_chunk(self) -> int:
        """Layers of a chunk at most: every micro-batch passes it once within the limit."""
        quickest = float(self.rows.time[self.kinds, 0].min())
        if not (quickest > 0.0 and math.isfinite(self.limit_s)):
            return self.total
        most = self.limit_s / self.strategy.num_microbatches / quickest
        return min(self.total, max(math.floor(most * (1.0 + 1e-9)) + 1, -(-self.total // (self.pp * self.vpp))))

    def _recomputed(self) -> list[dict[int, Any]]:
        """Variables for the recomputed layers of each kind on each rank."""
        out = []
        for rank, held in enumerate(self.held):
            mine = {}
            for kind in self.kinds:
                y = self.model.new_int_var(0, self.grain * self.total, f"y{rank}k{kind}")
                self.model.add(y <= self.grain * held[kind])
                mine[kind] = y
            out.append(mine)
        if self.uniform or self.numbers is not None:
            self._one_number(out)
        return out

    def _one_number(self, again: list[dict[int, Any]]) -> None:
        of = self._cp.Domain.from_values(self.numbers) if self.numbers is not None else self._cp.Domain(0, self.total)
        self.count = count = self.model.new_int_var_from_domain(of, "count")
        ranks = chunk_ranks(self.pp, self.vpp, self.strategy.schedule)
        wanted: list[list[Any]] = [[] for _ in range(self.pp)]
        if self.chunks and self.numbers is None:
            for c, n in enumerate(self.chunks):
                least = self.model.new_int_var(0, self.total, f"r{c}")
                self.model.add_min_equality(least, [count, n])
                wanted[ranks[c]].append(least)
        else:
            for rank, held in enumerate(self.held):
                least = self.model.new_int_var(0, self.total, f"r{rank}")
                most = count if self.numbers is not None else count * self.vpp
                self.model.add_min_equality(least, [most, self._cp.LinearExpr.sum(list(held.values()))])
                wanted[rank].append(least)
        for rank, (mine, parts) in enumerate(zip(again, wanted, strict=True)):
            if self.relaxed and self.rows.num_mtp and rank == self._last_rank():
                continue  # part of the share falls on the multi-token prediction layers
            self.model.add(sum(mine.values()) == self.grain * sum(parts))

    # ---- memory

    def _memory(self) -> None:
        rows, k = self.rows, self.rows.num_kinds
        lost = 1.0 + rows.fragmentation
        for rank in range(self.pp):
            flight = lost * float(rows.flight[rank, 0])
            room = self.room
            if rank == 0:
                room -= float(rows.state[k, 0])
            if rank == self._last_rank():
                kept = float(rows.boundary[k + 2, 0] if self.relaxed and self.full else rows.saved[k + 2, 0])
                mtp = float(rows.state[k + 2, 0]) + flight * kept
                room -= float(rows.state[k + 1, 0]) + rows.num_mtp * mtp + lost * float(rows.workspace[k + 1, 0])
            used: list[Any] = []
            for kind in self.kinds:
                each = float(rows.state[kind, 0]) + flight * float(rows.saved[kind, 0])
                used.append(self._bytes(each) * self.held[rank][kind])
                if self.full:
                    drop = max(0.0, flight * float(rows.saved[kind, 0] - rows.boundary[kind, 0])) / self.grain
                    less = math.ceil(drop / self.byte) if self.relaxed else math.floor(drop / self.byte)
                    used.append(-less * self.again[rank][kind])
            used.append(self._transient(rank, lost))
            self.model.add(sum(used) <= math.floor(room / self.byte) + self.relaxed)

    def _transient(self, rank: int, lost: float) -> Any:
        """Workspace of the largest kind held, and of replaying the largest one when any is recomputed."""
        rows = self.rows
        largest = {kind: self._bytes(lost * float(rows.workspace[kind, 0])) for kind in self.kinds}
        scratch = self.model.new_int_var(0, max(largest.values()), f"scratch{rank}")
        replay: Any = 0
        again = None
        if self.full:
            sizes = {kind: self._bytes(lost * float(rows.saved[kind, 0])) for kind in self.kinds}
            replay = self.model.new_int_var(0, max(sizes.values()), f"replay{rank}")
            again = self.model.new_bool_var(f"again{rank}")
            self.model.add(sum(self.again[rank].values()) <= self.grain * self.total * again)
        for kind in self.kinds:
            present = self.model.new_bool_var(f"has{rank}k{kind}")
            self.model.add(self.held[rank][kind] <= self.total * present)
            self.model.add(scratch >= largest[kind] * present)
            if again is not None:
                self.model.add(replay >= sizes[kind] * (present + again - 1))
        return scratch + replay

    def _bytes(self, value: float) -> int:
        return math.floor(value / self.byte) if self.relaxed else math.ceil(value / self.byte)

    def _last_rank(self) -> int:
        return chunk_ranks(self.pp, self.vpp, self.strategy.schedule)[-1]

    def limit_params(self, below: float) -> None:
        """Every rank holds fewer parameters than this (in units of 2^-26 of it, rounded down)."""
        rows, k, unit = self.rows, self.rows.num_kinds, below / _BYTE_STEPS
        each = rows.params.sum(axis=0)[:, 0]
        for rank in range(self.pp):
            room = below
            if rank == 0:
                room -= float(each[k])
            if rank == self._last_rank():
                room -= float(each[k + 1] + rows.num_mtp * each[k + 2])
            used = sum(math.floor(float(each[kind]) / unit) * self.held[rank][kind] for kind in self.kinds)
            self.model.add(used <= math.floor(room / unit) - self.total - 1)

    # ---- time

    def _objective(self) -> None:
        """m·slowest + fill·(sum - slowest), as ``schedule.bubble_s``; times ``others_divisor``, so that it is whole.

        Interleaved ranks take turns, each as long as its slowest chunk: all turns together pace the pipeline too, and
        the other chunks of the longest turn are idle time (``costmodel.turns``).
        """
        rows = self.rows
        slowest = self.model.new_int_var(0, 1 << 40, "slowest")
        loads = []
        for rank in range(self.pp):
            load: Any = 0
            if rank == 0:
                load += math.floor(float(rows.first_s[0]) / self.second)
            if rank == self._last_rank():
                load += math.floor(float(rows.last_s[0]) / self.second)
            for kind in self.kinds:
                load += math.floor(float(rows.time[kind, 0]) / self.second) * self.held[rank][kind]
                if self.full:
                    again = float(rows.again[kind, 0]) / self.grain
                    load += math.floor(again / self.second) * self.again[rank][kind]
            self.model.add(slowest >= load)
            loads.append(load)
        m = self.strategy.num_microbatches
        self.scale = others_divisor(self.strategy.schedule, self.vpp) or 1
        fill = 0 if self.strategy.schedule == "zb-v" else 1
        self.cost = (m * self.scale - fill) * slowest + fill * sum(loads)
        if self.strategy.schedule == "interleaved":
            self.cost = m * self.scale * slowest + self._interleaved_idle(slowest, loads)
        self.model.minimize(self.cost)

    def _interleaved_idle(self, slowest: cp_model.IntVar, loads: list[Any]) -> cp_model.IntVar:
        """Idle time times ``scale``, and the turns that pace the slowest rank; nothing recomputed."""
        rows = self.rows
        ends = {0: float(rows.first_s[0]), len(self.inside) - 1: float(rows.last_s[0])}
        idle = self.model.new_int_var(0, 1 << 46, "idle")
        self.model.add(idle >= sum(loads) - slowest)
        chunks: list[list[Any]] = [[] for _ in range(self.vpp)]
        for c, inside in enumerate(self.inside):
            seconds = [math.floor(float(rows.time[kind, 0]) / self.second) * inside[kind] for kind in self.kinds]
            chunks[c // self.pp].append(sum(seconds) + math.floor(ends.get(c, 0.0) / self.second))
        turns = []
        for k, turn in enumerate(chunks):
            longest = self.model.new_int_var(0, 1 << 40, f"turn{k}")
            self.model.add_max_equality(longest, turn)
            self.model.add(idle >= self.scale * (sum(turn) - longest))
            turns.append(longest)
        self.model.add(slowest >= sum(turns))
        return idle

    def prefer_even(self) -> None:
        """Minimise how far the split is from the even one instead of its time."""
        sizes = self.chunks or [held[self.kinds[0]] for held in self.held]
        even = self._even()
        wanted = even if self.chunks else [sum(even[rank :: self.pp]) for rank in range(self.pp)]
        off = [self.model.new_int_var(0, self.total, f"off{i}") for i in range(len(sizes))]
        for far, size, want in zip(off, sizes, wanted, strict=True):
            self.model.add(far >= size - want)
            self.model.add(far >= want - size)
        self.model.minimize(sum(off))

    def start_from(self, pipeline_s: float) -> None:
        """No split takes less: seconds are rounded down for every layer and both ends, in every turn."""
        lost = (self.strategy.num_microbatches + 1) * self.scale * (self.total + 2 * self.vpp)
        self.floor = math.floor(pipeline_s * self.scale / self.second) - lost
        self.model.add(self.cost >= self.floor)

    def solve(self, pipeline_limit_s: float, gap: float, work: float, left_s: float | None) -> Split | None:
        """Minimise under the limit, to within the gap, with so much deterministic time and so many seconds."""
        unit = self.second / self.scale
        if math.isfinite(pipeline_limit_s):
            self.model.add(self.cost <= max(0, math.ceil(pipeline_limit_s / unit)))
        solver = self._cp.CpSolver()
        # Ctrl-C must reach Python, which answers with the best layout so far.
        solver.parameters.catch_sigint_signal = False
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.relative_gap_limit = max(gap, _FLOOR_GAP if self.floor else 0.0)
        solver.parameters.max_deterministic_time = work
        if left_s is not None:
            solver.parameters.max_time_in_seconds = max(left_s, _LEAST_S)
        status = solver.solve(self.model)
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            least = max(0.0, solver.best_objective_bound * unit) if status == self._cp.UNKNOWN else 0.0
            return None if status == self._cp.INFEASIBLE else Split(self.strategy, least, False)
        optimal = status == self._cp.OPTIMAL
        return Split(self._strategy(solver), solver.best_objective_bound * unit, optimal)

    def _strategy(self, solver: cp_model.CpSolver) -> Strategy:
        layers = self._chunk_layers(solver)
        if not self.full or self.relaxed:
            return replace(self.strategy, layers_per_stage=layers)
        if self.numbers is not None:
            n = int(solver.value(self.count))
            return replace(self.strategy, layers_per_stage=layers, recompute_layers=-1 if n == self.total else n)
        again = tuple(int(sum(solver.value(y) for y in mine.values())) for mine in self.again)
        if not any(again):
            return replace(self.strategy, layers_per_stage=layers, recompute="none", recompute_layers=-1)
        return replace(self.strategy, layers_per_stage=layers, recompute_layers=-1, recompute_per_stage=again)

    def _chunk_layers(self, solver: cp_model.CpSolver) -> tuple[int, ...]:
        if self.chunks:
            return tuple(int(solver.value(n)) for n in self.chunks)
        totals = [int(solver.value(h[self.kinds[0]])) for h in self.held]
        return spread(totals, self.vpp, self.strategy.schedule)


def spread(totals: list[int], vpp: int, schedule: str) -> tuple[int, ...]:
    """Layers per virtual stage for given layers per rank: each rank's chunks even, the model's two ends lightest."""
    pp = len(totals)
    ranks = chunk_ranks(pp, vpp, schedule)
    layers = [0] * (pp * vpp)
    for rank, total in enumerate(totals):
        mine = [c for c, r in enumerate(ranks) if r == rank]
        base, rest = divmod(total, vpp)
        inner = sorted(mine, key=lambda c: (c == 0 or c == pp * vpp - 1, c))
        for i, c in enumerate(inner):
            layers[c] = base + (i < rest)
    return tuple(layers)

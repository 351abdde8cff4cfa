"""Folded schedules (zb-v, dualpipe) over several kinds of layer: each rank takes a stretch from either end.

From the outside in: the rank at level 0 holds the first and the last layers, the next one the first and the last of
what is left, the innermost all that remains. States are ``[a, b]``, the layers ``a`` to ``b`` left; a step takes ``x``
from the left and ``y`` from the right. Every rank but the first and the last is alike (all have as many micro-batches
in flight), so one table per ``(x, y)`` serves them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.strategy import Strategy

from .cuts import Cut, paced_s, running_counts, unfolded, written
from .loads import Loads, Settled

_FIRST_LIMIT, _WIDER = 1.25, 1.6
"""The slowest rank looked for at first, in mean loads, and how much further when there is none."""

_AT_ONCE = 1 << 16
"""Possible slowest ranks priced at once."""


@dataclass(frozen=True, slots=True)
class _Step:
    """``x`` layers from the left and ``y`` from the right, by state ``[a, b]`` before it."""

    x: int
    y: int
    ranks: Settled


def best_fold(problem: Problem, strategy: Strategy, loads: Loads) -> Cut:
    """``cuts.best_cut`` for one number of recomputed layers."""
    levels = strategy.pp // 2 if strategy.schedule == "dualpipe" else strategy.pp
    limit = _FIRST_LIMIT * loads.whole_s / strategy.pp
    most = min(loads.longest_s * (1.0 + 1e-9), loads.most_s)
    while True:
        fold = _Fold(problem, strategy, loads, levels, min(limit, most))
        least = fold.least_s
        # A slower rank pays only while its micro-batches alone take less than the best pipeline found.
        worth = fold.pipeline_s(least)[0] / strategy.num_microbatches if math.isfinite(least) else limit * _WIDER
        if limit >= most or worth <= limit:
            break
        limit = worth
    if not math.isfinite(least):
        return Cut(math.inf, None)
    pipeline, pairs, again = fold.best(min(worth, most))
    return Cut(pipeline, written(problem, strategy, loads, unfolded(pairs), again))


class _Fold:
    """All splits whose ranks stay within a limit."""

    def __init__(self, problem: Problem, strategy: Strategy, loads: Loads, levels: int, limit: float) -> None:
        self.strategy, self.loads, self.levels, self.limit = strategy, loads, levels, limit
        self.total = problem.model.num_layers
        self.running = running_counts(problem)
        self.least = 1 if strategy.schedule == "dualpipe" else 0
        ends = loads.parts(self.running).beside(loads.parts(self.running[-1] - self.running))
        inside = self.running[None] - self.running[:, None]
        self.outer = self._within(loads.settle(ends, 0, True, True), inside.sum(axis=-1) >= 0)
        held = inside.sum(axis=-1)
        lone = levels == 1
        rest = loads.settle(loads.parts(np.maximum(inside, 0.0)), levels - 1, lone, lone)
        self.inner = self._within(rest, held >= 2 * self.least * (not lone))
        self.steps = list(self._steps()) if levels > 2 else []

    def _within(self, ranks: Settled, exists: NDArray[np.bool_]) -> Settled:
        fine = exists & (ranks.total <= self.limit)
        return replace(ranks, total=np.where(fine, ranks.total, np.inf))

    def _steps(self) -> Iterator[_Step]:
        """Every step that some rank between the first and the last may take within the limit."""
        run, n = self.running, self.total
        sides = [self.loads.parts(run[x:] - run[: n + 1 - x]) for x in range(n + 1)]
        left = [np.arange(n + 1 - x)[:, None] for x in range(n + 1)]
        for x in range(self.least, n + 1):
            if float(self.loads.least_s(x + self.least)) > self.limit:
                return
            for y in range(self.least, n + 1 - x):
                if float(self.loads.least_s(x + y)) > self.limit:
                    break
                exists = left[x] + (x + y) <= np.arange(y, n + 1)[None]
                ranks = self.loads.settle(sides[x].beside(sides[y]), 1, False, False)
                ranks = self._within(ranks, exists)
                if np.isfinite(ranks.total).any():
                    yield _Step(x, y, ranks)

    @cached_property
    def before(self) -> list[Array]:
        """The least slowest rank outside the state ``[a, b]``, before each level from 1 on (``before[0]`` unused)."""
        out = [np.empty(0), self.outer.total]
        for _ in range(1, self.levels - 1):
            new, last = np.full_like(out[-1], np.inf), out[-1]
            n = self.total + 1
            for s in self.steps:
                came = np.maximum(last[: n - s.x, s.y :], s.ranks.total)
                view = new[s.x :, : n - s.y]
                np.minimum(view, came, out=view)
            out.append(new)
        return out

    @cached_property
    def after(self) -> list[Array]:
        """The least slowest rank from each level on, by the state ``[a, b]`` it starts from."""
        out = [self.inner.total]
        n = self.total + 1
        for _ in range(1, self.levels - 1):
            new, last = np.full_like(out[0], np.inf), out[0]
            for s in self.steps:
                view = new[: n - s.x, s.y :]
                np.minimum(view, np.maximum(last[s.x :, : n - s.y], s.ranks.total), out=view)
            out.insert(0, new)
        return [np.empty(0), *out] if self.levels > 1 else out

    @property
    def least_s(self) -> float:
        """The least slowest rank of any split."""
        if self.levels == 1:
            return float(self.inner.total[0, -1])
        return float(np.maximum(self.before[self.levels - 1], self.after[self.levels - 1]).min())

    def pipeline_s(self, limit: float) -> tuple[float, tuple[int, int, int, int, int]]:
        """The least pipeline of splits whose slowest rank is within a limit, and that rank: level, a, b, x, y."""
        best, where = math.inf, (0, 0, 0, 0, 0)
        for level, x, y, ranks, beside in self._candidates():
            a, b = np.nonzero((ranks.total <= limit) & (beside <= ranks.total))
            for start in range(0, len(a), _AT_ONCE):
                i, j = a[start : start + _AT_ONCE], b[start : start + _AT_ONCE]
                value = paced_s(self.loads, ranks.forward[i, j], ranks.backward[i, j], ranks.weight[i, j], 0.0)
                k = int(np.argmin(value))
                if value[k] < best:
                    best, where = float(value[k]), (level, int(i[k]), int(j[k]) + y, x, y)
        return best, where

    def _candidates(self) -> Iterator[tuple[int, int, int, Settled, Array]]:
        """Every rank that may be the slowest with the least slowest of the others: level, step, ranks, beside."""
        n, last = self.total + 1, self.levels - 1
        if last == 0:
            alone = np.full_like(self.inner.total, np.inf)
            alone[0, -1] = -np.inf
            yield 0, 0, 0, self.inner, alone
            return
        yield 0, 0, 0, self.outer, self.after[1]
        yield last, 0, 0, self.inner, self.before[last]
        for level in range(1, last):
            for s in self.steps:
                beside = np.maximum(self.before[level][: n - s.x, s.y :], self.after[level + 1][s.x :, : n - s.y])
                yield level, s.x, s.y, s.ranks, beside

    def best(self, limit: float) -> tuple[float, list[tuple[int, int]], list[int]]:
        """The least pipeline, each rank's two stretches, and the layers each recomputes."""
        pipeline, (level, a, b, x, y) = self.pipeline_s(limit)
        pace = self._at(level, a, b, x, y)
        if level == 0:
            left, state = [], (a, b)
            taken = [(a, self.total - b)] if self.levels > 1 else []
            taken += self._onwards(1, state, pace)
        else:
            left = self._backwards(level, (a, b), pace)
            taken = [*left]
            if level < self.levels - 1:
                taken += [(x, y), *self._onwards(level + 1, (a + x, b - y), pace)]
            else:
                taken += self._halved((a, b))
        if self.levels == 1:
            taken = self._halved((0, self.total))
        return pipeline, taken, self._again(taken)

    def _at(self, level: int, a: int, b: int, x: int, y: int) -> float:
        if level == 0 and self.levels > 1:
            return float(self.outer.total[a, b])
        if level == self.levels - 1:
            return float(self.inner.total[a, b])
        step = next(s for s in self.steps if (s.x, s.y) == (x, y))
        return float(step.ranks.total[a, b - y])

    def _halved(self, state: tuple[int, int]) -> list[tuple[int, int]]:
        held = state[1] - state[0]
        return [(held // 2, held - held // 2)]

    def _onwards(self, level: int, state: tuple[int, int], limit: float) -> list[tuple[int, int]]:
        """Steps from a state at ``level`` to the innermost rank, all within a limit."""
        out = []
        a, b = state
        for r in range(level, self.levels - 1):
            for s in self.steps:
                fits = a + s.x <= b - s.y and s.ranks.total[a, b - s.y] <= limit
                if fits and self.after[r + 1][a + s.x, b - s.y] <= limit:
                    out.append((s.x, s.y))
                    a, b = a + s.x, b - s.y
                    break
        return out + (self._halved((a, b)) if level < self.levels else [])

    def _backwards(self, level: int, state: tuple[int, int], limit: float) -> list[tuple[int, int]]:
        """Steps of the levels before ``level`` that lead to a state, all within a limit."""
        out: list[tuple[int, int]] = []
        a, b = state
        for r in range(level - 1, 0, -1):
            for s in self.steps:
                fits = a >= s.x and b + s.y <= self.total and s.ranks.total[a - s.x, b] <= limit
                if fits and self.before[r][a - s.x, b + s.y] <= limit:
                    out.insert(0, (s.x, s.y))
                    a, b = a - s.x, b + s.y
                    break
        return [(a, self.total - b), *out]

    def _again(self, taken: list[tuple[int, int]]) -> list[int]:
        """Layers that each rank recomputes."""
        out, a, b = [], 0, self.total
        for level, (x, y) in enumerate(taken):
            layers = self.running[a + x] - self.running[a] + self.running[b] - self.running[b - y]
            end = level == 0
            out.append(int(self.loads.settle(self.loads.parts(layers), level, end, end).again))
            a, b = a + x, b - y
        return out

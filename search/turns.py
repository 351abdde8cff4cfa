"""The least time that an interleaved pipeline takes, from its turns alone, by dynamic programming.

While one rank runs its k-th chunk the others run theirs, so a turn lasts as long as its slowest chunk. The chunks of a
turn are consecutive in the model: over every way to cut the layers into turns and the turns into chunks, memory and the
sums of each rank left aside, the least sum of turns bounds the pipeline from below.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.strategy import Strategy

from .cuts import running_counts
from .rows import KindRows

_EXACT = 1e-6
_EVALUATIONS = 48
"""Limits on the filling that are looked at, at most; the bound is within their spacing of the best of its kind."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The least time that turns take together under a limit on how long the pipeline fills, by dynamic programming.

    Seconds per micro-batch of consecutive layers ``[i, j]`` as one turn: ``slowest`` its slowest chunk at least,
    ``whole`` all its chunks together; the first turn begins at layer 0 with the embedding, the last one ends with the
    head.
    """

    first: tuple[Array, Array]
    inner: tuple[Array, Array] | None
    """None where there are two turns only."""
    last: tuple[Array, Array]
    count: int

    @classmethod
    def of(cls, problem: Problem, strategy: Strategy, rows: KindRows) -> Turns:
        """For the rows of one interleaved strategy."""
        run = np.cumsum(np.diff(running_counts(problem), axis=0) @ rows.time[: rows.num_kinds, 0])
        run = np.concatenate([[0.0], run])
        stretch = run[None, :] - run[:, None]
        held = np.arange(len(run))[None, :] - np.arange(len(run))[:, None]
        chunk = np.where(held >= 1, stretch, np.inf)
        # The model's first and last chunk may hold nothing but the embedding or the head.
        first = np.where(held[0] >= 0, stretch[0] + rows.first_s[0], np.inf)
        last = np.where(held[:, -1] >= 0, stretch[:, -1] + rows.last_s[0], np.inf)
        begun, ended = first, last
        for _ in range(strategy.pp - 1):
            begun = np.maximum(begun[:, None], chunk).min(axis=0)
            ended = np.maximum(chunk, ended[None, :]).min(axis=1)
        inner = (_split(chunk, strategy.pp), stretch) if strategy.vpp > 2 else None
        return cls((begun, stretch[0] + rows.first_s[0]), inner, (ended, stretch[:, -1] + rows.last_s[0]), strategy.vpp)

    def least_s(self, fill_s: float) -> float:
        """Seconds of all turns together where the chunks of a turn but its slowest take ``fill_s`` at most."""
        reached = self.reached(fill_s)
        return float((reached[-1] + _within(self.last, fill_s)).min())

    def reached(self, fill_s: float) -> list[Array]:
        """The least seconds of the first, the first two … turns but the last by the layer ``[j]`` they end at."""
        out = [_within(self.first, fill_s)]
        if self.inner is not None:
            inner = _within(self.inner, fill_s)
            for _ in range(self.count - 2):
                out.append((out[-1][:, None] + inner).min(axis=0))
        return out

    @property
    def widest_s(self) -> float:
        """Seconds of the largest stretch of layers that a turn may be."""
        sides = [side for side in (self.first, self.inner, self.last) if side is not None]
        return max(float(np.max(whole[np.isfinite(slow)], initial=0.0)) for slow, whole in sides)


def _within(turn: tuple[Array, Array], fill_s: float) -> Array:
    """Seconds of turns whose chunks but the slowest take ``fill_s`` at most."""
    slowest, whole = turn
    return np.maximum(slowest, whole - fill_s)


@dataclass(frozen=True, slots=True)
class Least:
    """No split takes less in the pipeline than ``pipeline_s``; one that fills it for ``fill_s`` at most may be best."""

    pipeline_s: float
    fill_s: float


def least_pipeline_s(turns: Turns, strategy: Strategy, whole_s: float) -> Least:
    """Seconds in an interleaved pipeline that no split undercuts; ``whole_s`` per micro-batch of all ranks together.

    ``m · turns + max(others / v, fill)`` as ``step.pipeline_s`` has it: turns may be shorter where the pipeline may
    fill for longer. Every stretch of limits on the filling is bounded by its quickest turns and its shortest filling;
    the stretch of the least bound is halved until the bound is attained or ``_EVALUATIONS`` are made.
    """
    m, v = strategy.num_microbatches, strategy.vpp

    def pipeline(together: float, fill: float) -> float:
        return m * together + max((whole_s - together) / v, fill)

    loosest = turns.least_s(math.inf)
    if not math.isfinite(loosest):
        return Least(math.inf, math.inf)
    widest = turns.widest_s
    # (bound, shortest filling, longest filling, turns at the longest)
    stretches = [(pipeline(loosest, 0.0), 0.0, widest, loosest)]
    for _ in range(_EVALUATIONS):
        bound, low, high, together = stretches[0]
        if bound >= pipeline(together, high) * (1.0 - _EXACT):
            break
        heapq.heappop(stretches)
        middle = (low + high) / 2.0
        tighter = turns.least_s(middle)
        if math.isfinite(tighter):
            heapq.heappush(stretches, (pipeline(tighter, low), low, middle, tighter))
        heapq.heappush(stretches, (pipeline(together, middle), middle, high, together))
    return Least(stretches[0][0], stretches[0][2])


def _split(chunk: Array, parts: int) -> Array:
    """The least slowest of ``parts`` consecutive chunks from ``i`` to ``j``, ``[i, j]``; squares as in fast powers."""
    out: Array | None = None
    while parts:
        if parts & 1:
            out = chunk if out is None else _joined(out, chunk)
        parts >>= 1
        if parts:
            chunk = _joined(chunk, chunk)
    assert out is not None
    return out


def _joined(left: Array, right: Array) -> Array:
    """Stretches in two parts, cut where the slower part is fastest."""
    out = np.full_like(left, np.inf)
    for i in range(len(left)):
        out[i, i:] = np.maximum(left[i, i:, None], right[i:, i:]).min(axis=0)
    return out

"""All feasible strategies that a search evaluated, for runners-up and the frontier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.evaluate import capacity_bytes
from shardwise.costmodel.problem import Array, Ints
from shardwise.costmodel.strategy import Strategies, Strategy

from .exact import Found, with_split
from .plan import ParetoPoint

DISTINCT = ("tp", "cp", "pp", "ep", "etp", "micro_batch_size")
"""Dimensions in which two recommendations differ to be worth showing both."""

_MOST_POINTS = 32
_DEPTH = 4096
"""Strategies looked at for runners-up: those of the shortest steps."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Strategies that fit with their layers split evenly; arrays ``[n]``, fastest first."""

    strategies: Strategies
    step_s: Array
    peak_bytes: Array

    @classmethod
    def of(cls, found: Found) -> Pool:
        """Everything feasible that a search evaluated."""
        c = found.candidates
        parts = [(c.strategies.take(c.fits), c.step_s[c.fits], c.peak_bytes[c.fits])]
        parts += [(o.strategies.take(o.fits), o.step_s[o.fits], o.peak_bytes[o.fits]) for o in found.opened]
        step = np.concatenate([p[1] for p in parts])
        peak = np.concatenate([p[2] for p in parts])
        order = np.lexsort((peak, step))
        return cls(Strategies.concatenate([p[0] for p in parts]).take(order), step[order], peak[order])

    def __len__(self) -> int:
        return len(self.step_s)


def runners_up(found: Found, pool: Pool, count: int) -> list[Estimate]:
    """The best strategies that differ from the incumbent and from each other in mesh or micro-batch, best first."""
    ranked: list[tuple[float, Strategy]] = sorted(found.splits, key=lambda x: x[0])
    head = pool.strategies.take(np.arange(min(len(pool), _DEPTH)))
    codes = np.stack([getattr(head, name) for name in DISTINCT]) if len(head) else np.empty((len(DISTINCT), 0))
    _, first = np.unique(codes, axis=1, return_index=True)
    ranked += [(float(pool.step_s[i]), head[int(i)]) for i in np.sort(first)[: 4 * count + 4]]
    seen = {_key(found.best)} if found.best else set()
    out: list[Estimate] = []
    for _, strategy in sorted(ranked, key=lambda x: x[0]):
        if len(out) >= count:
            break
        if _key(strategy) not in seen:
            seen.add(_key(strategy))
            out.append(estimate(found.problem, with_split(found.problem, strategy)))
    return sorted(out, key=lambda e: e.step_time_s)


def _key(s: Strategy) -> tuple[object, ...]:
    return tuple(getattr(s, name) for name in DISTINCT)


def frontier(found: Found, pool: Pool, best: Estimate) -> tuple[ParetoPoint, ...]:
    """Strategies that none beats in both step time and memory, fastest first; thinned to a readable number."""
    capacity = capacity_bytes(found.problem)
    points = [ParetoPoint(best.strategy, best.step_time_s, best.peak_memory_bytes, capacity - best.peak_memory_bytes)]
    if len(pool):
        least = np.minimum.accumulate(np.concatenate([[np.inf], pool.peak_bytes]))[:-1]
        on = np.flatnonzero(
            (pool.peak_bytes < np.minimum(least, best.peak_memory_bytes)) & (pool.step_s > best.step_time_s)
        )
        for i in _thinned(on):
            peak = float(pool.peak_bytes[i])
            points.append(ParetoPoint(pool.strategies[int(i)], float(pool.step_s[i]), peak, capacity - peak))
    return tuple(points)


def _thinned(index: Ints) -> list[int]:
    if len(index) <= _MOST_POINTS:
        return [int(i) for i in index]
    chosen = np.unique(np.linspace(0, len(index) - 1, _MOST_POINTS).round().astype(int))
    return [int(index[i]) for i in chosen]

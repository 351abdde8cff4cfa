"""The proven front of step time against memory headroom: the same search with less and less memory."""

from __future__ import annotations

import copy
from dataclasses import replace

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.evaluate import capacity_bytes
from shardwise.hardware_profiles.errors import InputError

from .exact import Found, Progress, search, with_split
from .plan import ParetoPoint
from .proof import Clock

MOST_POINTS = 32
"""Points of a front, at most: each is a search of its own."""


def check_points(points: int) -> None:
    """Raises InputError unless a front may have so many points (0: no proven front)."""
    if not 0 <= points <= MOST_POINTS:
        raise InputError(f"pareto_points = {points}: expected 0 to {MOST_POINTS}")


def proven_front(
    found: Found, best: Estimate, points: int, clock: Clock, progress: Progress | None = None
) -> tuple[ParetoPoint, ...]:
    """For each ``1/points`` of the usable memory left free, the fastest layout that leaves as much: fastest first.

    A layout that leaves more than it must stands for the next shares too, so there may be fewer points. The first is
    the plan. ``bound_s`` of a point: no layout of the space that leaves as much free as was asked is faster.
    """
    capacity = capacity_bytes(found.problem)
    first = min(best.step_time_s, found.step_s, found.open_bound_s)
    front = [
        ParetoPoint(best.strategy, best.step_time_s, best.peak_memory_bytes, capacity - best.peak_memory_bytes, first)
    ]
    for share in range(1, points):
        allowed = capacity * (1.0 - share / points)
        if front[-1].peak_memory_bytes <= allowed:
            continue
        if clock.expired:
            break
        try:
            less = within(found, allowed, clock, progress)
        except KeyboardInterrupt:  # the points so far stand
            break
        if less.best is None:
            break
        e = estimate(found.problem, with_split(found.problem, less.best))
        bound = min(e.step_time_s, less.step_s, less.open_bound_s)
        front.append(ParetoPoint(e.strategy, e.step_time_s, e.peak_memory_bytes, capacity - e.peak_memory_bytes, bound))
        if less.stopped_by == "interrupt":
            break
    return tuple(front)


def within(found: Found, allowed_bytes: float, clock: Clock, progress: Progress | None = None) -> Found:
    """The search of the same space with less memory; its candidates are those of the search before."""
    problem, c = found.problem, found.candidates
    margin = 1.0 - allowed_bytes / problem.cluster.accelerator.memory_bytes
    space = copy.copy(found.space)
    space.problem = replace(problem, memory_margin=margin)
    fits = c.real & (c.peak_bytes <= capacity_bytes(space.problem))
    return search(space, clock, prepared=replace(c, fits=fits), progress=progress)

"""The best strategy with a proof: enumeration, bounds, and CP-SAT on the layer splits that bounds leave open.

1. Every candidate is evaluated at the fastest setting of its knobs: a bound for all settings and splits.
2. Best bound first, candidates are opened: each setting of the knobs is evaluated under the even split.
3. For pipelines a tighter bound counts whole layers and memory; CP-SAT solves the splits it leaves open.
4. The answer is proven when no bound left is under the incumbent.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy

from .bounds import SplitBounds, split_bounds
from .closing import Band, Closer, Unit, tidied
from .opening import Candidates, Opened, can_fit, candidates, open_candidates
from .proof import TOLERANCE, Clock, Proof
from .space import Space

FIRST_BATCH = 256
"""Candidates opened at once at first; each further batch is twice the last."""

FIRST_DIVES = 4
"""Pipelines closed right after the first batch is opened; one less with each further batch, at least one."""

WORTH_REBOUNDING = 0.002
"""A new incumbent this much faster makes the bounds of what is left worth computing again."""

_TOGETHER = 32
"""Strategies tightened together, at most."""

FREE_SOLVES, MAX_SOLVES = 20, 32
"""Layer splits given to CP-SAT when no time limit is given, a limit that is the same on any machine: after the first
number a gap of ``SMALL_GAP`` is good enough, after the second the search ends with the gap it has."""

SMALL_GAP = 0.02
"""A gap far below the error of any prediction: not worth seconds of solving unless a time limit allows them."""

FEW_SOLVES, BAND_GAP = 8, 0.01
"""After so many splits given to CP-SAT a gap under this is good enough, where all that is left are splits of fewer
parameters than the best of their strategy."""

Progress = Callable[[str, float, float], None]
"""Called with a phase, the incumbent and the bound (seconds); for display only."""


@dataclass(slots=True)
class Found:
    """What a search knows when it ends. ``best`` is None when nothing fits."""

    space: Space
    candidates: Candidates
    opened: list[Opened] = field(default_factory=list)
    best: Strategy | None = None
    step_s: float = math.inf
    peak_bytes: float = math.inf
    pipeline_s: float = math.inf
    """What CP-SAT has the incumbent's pipeline take, where the incumbent is one of its splits."""
    splits: list[tuple[float, Strategy]] = field(default_factory=list)
    """Solved splits that fit, with their step times."""
    open_bound_s: float = math.inf
    """The least bound of what was left unexplored, infinite when nothing was."""
    evaluated: int = 0
    solved: int = 0
    stopped_by: str | None = None

    @property
    def problem(self) -> Problem:
        """The problem searched."""
        return self.space.problem

    def offer(self, strategy: Strategy, step_s: float, peak_bytes: float) -> None:
        """Make a strategy that fits the incumbent if it is faster, or as fast in less memory."""
        if (step_s, peak_bytes) < (self.step_s, self.peak_bytes):
            self.best, self.step_s, self.peak_bytes, self.pipeline_s = strategy, step_s, peak_bytes, math.inf

    def stop(self, reason: str, bound_s: float) -> None:
        """Note that the search ends early, with something of this bound left."""
        self.stopped_by = reason
        self.open_bound_s = min(self.open_bound_s, bound_s)

    def beats(self, bound_s: float) -> bool:
        """Whether something with this bound might still be faster than the incumbent."""
        return bound_s < self.step_s * (1.0 - TOLERANCE)

    def proof(self, time_s: float) -> Proof:
        """The account of the search so far."""
        tally = self.space.tally
        bound = min(self.step_s, self.open_bound_s)
        gap = 0.0 if self.step_s - bound <= TOLERANCE * self.step_s else (self.step_s - bound) / self.step_s
        removed = {name: count for name, count in tally.removed.items() if count}
        left = tally.considered - sum(removed.values()) - self.evaluated
        return Proof(
            incumbent_s=self.step_s, best_bound_s=bound if gap else self.step_s, gap=gap, tolerance=TOLERANCE,
            considered=tally.considered, removed_by_rule=removed, evaluated=self.evaluated, bounded_out=max(0, left),
            candidates=tally.candidates, solved=self.solved, time_s=time_s,
            finished=not gap and self.stopped_by is None, stopped_by=self.stopped_by,
        )  # fmt: skip


def search(
    space: Space,
    clock: Clock | None = None,
    *,
    splits: bool = True,
    below_s: float = math.inf,
    prepared: Candidates | None = None,
    progress: Progress | None = None,
) -> Found:
    """Search a space to the end, to the clock's limit, or to Ctrl-C once there is something to return.

    ``splits=False`` leaves every split even (quick answers to what-if questions) where the launcher may choose. Only
    steps under ``below_s`` are looked for: where there is none, ``best`` is None and ``step_s`` stays ``below_s``.
    ``prepared`` are the space's candidates where they are known already.
    """
    clock = clock or Clock(None)
    report = progress or (lambda phase, incumbent, bound: None)
    found = Found(space, prepared or candidates(space), step_s=below_s)
    found.evaluated = len(found.candidates)
    try:
        _take_real(found)
        report("enumerated", found.step_s, float(found.candidates.bound_s.min(initial=math.inf)))
        _explore(found, clock, report, splits)
    except KeyboardInterrupt:
        if found.best is None:
            raise
        found.stopped_by = "interrupt"
        found.open_bound_s = min(found.open_bound_s, float(found.candidates.bound_s.min(initial=math.inf)))
    return found


def _take_real(found: Found) -> None:
    """The best candidate that fits as it is."""
    c = found.candidates
    fits = np.flatnonzero(c.fits)
    if len(fits):
        order = np.lexsort((c.peak_bytes[fits], c.step_s[fits]))
        i = int(fits[order[0]])
        found.offer(c.strategies[i], float(c.step_s[i]), float(c.peak_bytes[i]))


def _explore(found: Found, clock: Clock, report: Progress, splits: bool) -> None:
    """Open candidates by their bound until none is under the incumbent, then close the pipelines still open.

    Early answers decide how much is left to do, so the most promising pipelines of each batch are closed at once.
    """
    c, closer = found.candidates, Closer(found, clock)
    order = np.argsort(c.bound_s, kind="stable")
    start, size, dives = 0, FIRST_BATCH, FIRST_DIVES
    waiting: list[Opened] = []
    while start < len(order):
        batch = order[start : start + size]
        batch = batch[c.bound_s[batch] < found.step_s]
        if not len(batch):
            break
        if clock.expired:
            found.stop("time limit", float(c.bound_s[batch].min()))
            break
        opened = open_candidates(found.space, c, batch[can_fit(found.space, c.strategies.take(batch))])
        take_opened(found, opened)
        report("opened", found.step_s, float(c.bound_s[batch].min()))
        if splits or found.space.launcher.own_splits is not None:
            waiting.append(_close(found, closer, opened, clock, report, dives))
        start, size, dives = start + size, size * 2, max(1, dives - 1)
    if waiting:
        _close(found, closer, Opened.concatenate(waiting), clock, report)
        _close_bands(found, closer, clock, report)
        if not clock.expired:
            closer.share_again()
    found.solved = closer.solved
    found.best = tidied(found)


def take_opened(found: Found, opened: Opened) -> None:
    """Keep opened strategies and make the best of them the incumbent if it is better."""
    found.evaluated += len(opened)
    found.opened.append(opened)
    fits = np.flatnonzero(opened.fits)
    if len(fits):
        order = np.lexsort((opened.peak_bytes[fits], opened.step_s[fits]))
        i = int(fits[order[0]])
        found.offer(opened.strategies[i], float(opened.step_s[i]), float(opened.peak_bytes[i]))


def _close(
    found: Found, closer: Closer, opened: Opened, clock: Clock, report: Progress, most: int | None = None
) -> Opened:
    """CP-SAT on the opened pipelines whose tight bound is under the incumbent, best bound first.

    Closes ``most`` of them (all without it) and returns those left open. With a limit those wait that CP-SAT cannot
    state exactly: they cost most, and the answers of the others rule most of them out.
    """
    closed = 0
    while True:
        opened, tight = _open_pipelines(found, opened)
        incumbent = found.step_s
        queue, tightened = list(zip(tight.bound_s.tolist(), range(len(opened)), strict=True)), dict[int, Unit]()
        waiting: list[int] = []
        together = 1
        while queue:
            bound, i = queue[0]
            if closed == most or not found.beats(bound):
                return opened.take(np.array([*waiting, *(j for _, j in queue)], dtype=np.int64))
            if clock.expired or (clock.unlimited and _enough(closer.solved, bound, found.step_s)):
                least = min([bound, *(float(opened.bound_s[j]) for j in waiting)])
                found.stop("time limit" if clock.expired else "split limit", least)
                return opened.take(np.arange(0))
            if i not in tightened:
                untried = (item for item in queue if item[1] not in tightened and found.beats(item[0]))
                chosen = [j for _, j in heapq.nsmallest(together, untried)]
                units = _tightened(closer, opened, tight, chosen)
                tightened |= units
                queue = [item for item in queue if item[1] not in chosen]
                queue += [(unit.bound_s, j) for j, unit in units.items()]
                heapq.heapify(queue)
                # The next in line will be asked about as well, the more surely the longer the search goes on.
                together = min(2 * together, _TOGETHER)
                continue
            heapq.heappop(queue)
            if most is not None and not closer.is_exact(opened.strategies[i]):
                waiting.append(i)
                continue
            left, fewer = closer.close(Band(tightened[i]))
            found.open_bound_s = min(found.open_bound_s, left)
            closer.bands += [fewer] if fewer else []
            closed += not (fewer and fewer.effort)
            report("split", found.step_s, bound)
            if found.step_s < incumbent * (1.0 - WORTH_REBOUNDING):
                break
        else:
            return opened.take(np.array(waiting, dtype=np.int64))
        opened = opened.take(np.array([*waiting, *(j for _, j in queue)], dtype=np.int64))


def _tightened(closer: Closer, opened: Opened, tight: SplitBounds, chosen: list[int]) -> dict[int, Unit]:
    """Some opened strategies with tightened bounds, noted in ``opened``; those that hold no answer are left out."""
    units = closer.tightened([Unit.at(opened.strategies, tight, i) for i in chosen])
    left = {i: unit for i, unit in zip(chosen, units, strict=True) if unit is not None}
    for i, unit in left.items():
        opened.bound_s[i] = unit.bound_s
    return left


def _close_bands(found: Found, closer: Closer, clock: Clock, report: Progress) -> None:
    """The splits of fewer parameters than the best of their strategy, best bound first: they rarely hold the answer."""
    while closer.bands:
        band = min(closer.bands, key=lambda band: band.unit.bound_s)
        bound = band.unit.bound_s
        if not found.beats(bound):
            return
        few = not band.effort and closer.solved >= FEW_SOLVES
        near = few and found.step_s - bound <= BAND_GAP * found.step_s
        enough = clock.unlimited and (near or _enough(closer.solved, bound, found.step_s))
        if found.stopped_by or clock.expired or enough:
            found.stop(found.stopped_by or ("time limit" if clock.expired else "split limit"), bound)
            return
        closer.bands.remove(band)
        left, fewer = closer.close(band)
        found.open_bound_s = min(found.open_bound_s, left)
        closer.bands += [fewer] if fewer else []
        report("split", found.step_s, bound)


def _enough(solved: int, bound_s: float, step_s: float) -> bool:
    """Whether a search without a time limit has solved as many splits as its gap is worth."""
    return solved >= MAX_SOLVES or (solved >= FREE_SOLVES and step_s - bound_s <= SMALL_GAP * step_s)


def _open_pipelines(found: Found, opened: Opened) -> tuple[Opened, SplitBounds]:
    """The pipelines whose tight bound is under the incumbent of now, best first, with their bounds."""
    opened = opened.take((opened.strategies.pp > 1) & (opened.bound_s < found.step_s))
    tight = split_bounds(found.problem, opened.strategies, opened.bound_s, found.step_s)
    order = np.argsort(tight.bound_s, kind="stable")
    order = order[: int(np.searchsorted(tight.bound_s[order], found.step_s))]
    return opened.take(order), tight.take(order)


def with_split(problem: Problem, strategy: Strategy) -> Strategy:
    """The strategy with its layer split written out, so that every framework splits the same way."""
    if strategy.pp == 1 or strategy.layers_per_stage is not None:
        return strategy
    return replace(strategy, layers_per_stage=even_split(problem.model.num_layers, strategy.pp * strategy.vpp))

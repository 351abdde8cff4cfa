"""Closing one strategy whose bound leaves it open: CP-SAT on its layer split, then a bound on all other splits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.layers import key_of
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.step import FULL, Group
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.base import Launcher
from shardwise.launchers.own_splits import splits_of
from shardwise.launchers.rule import violations

from .axes import offers
from .bounds import SplitBounds, repeated_pipeline_s, split_bounds
from .compositions import Compositions, compositions, least_rests_s, rank_params
from .cuts import best_cut, group_of
from .loads import Loads
from .opening import least_share
from .proof import Clock
from .rows import KindRows, kind_rows
from .split import Split, one_number, solve_split, splittable
from .turn_cuts import quickest_turns
from .turns import Least, Turns, least_pipeline_s

if TYPE_CHECKING:
    from .exact import Found

_TIDY_GAP = 0.02
"""How close to the most even split is even enough."""

_ROUNDS = 6
"""Bands of the fullest rank's parameters closed one after the other, at most."""

_OUTSIDE = frozenset({"pp_comm", "dp_comm", "optimizer", "offload", "host_per_microbatch", "fixed"})
"""Parts of a step that are not work in the pipeline or waiting for other ranks' work."""

_BAND_WORK = 0.02
"""CP-SAT's deterministic time for splits of fewer parameters than one that is known."""

_FIRST_WORK = 0.1
"""And for any at first: most need no more."""

_MOST_EFFORT = 2
"""Of ``Band.effort``."""

_SAME = 2e-5
"""Relative difference under which a split takes the least turns there are: well below the tolerance of a proof."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A strategy with its knobs set and the bounds of ``SplitBounds`` on its splits."""

    strategy: Strategy
    bound_s: float
    pipeline_s: float
    rest_s: float
    longest_s: float

    @classmethod
    def at(cls, strategies: Strategies, bounds: SplitBounds, i: int) -> Unit:
        """One of many strategies."""
        figures = (bounds.bound_s, bounds.pipeline_s, bounds.rest_s, bounds.longest_s)
        return cls(strategies[i], *(float(x[i]) for x in figures))


@dataclass(frozen=True, slots=True)
class Band:
    """Splits of a unit whose every rank has fewer parameters than ``below``."""

    unit: Unit
    below: float = math.inf
    turn: int = 0
    """Bands of the unit closed before."""
    effort: int = 0
    """0: all that needs no CP-SAT; 1: CP-SAT for a short time, under a better incumbent by then; 2: for longer."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What CP-SAT has shown of an interleaved pipeline: no split takes less than ``pipeline_s``; ``layers`` does."""

    rows: KindRows
    pipeline_s: float
    layers: tuple[int, ...] | None

    def has_room_of(self, rows: KindRows) -> bool:
        """Whether whatever fits another strategy of the same turns fits this one."""
        mine = self.rows
        return bool(
            (mine.state <= rows.state).all() and (mine.fixed <= rows.fixed).all()
            and (mine.saved <= rows.saved).all() and (mine.workspace <= rows.workspace).all()
            and (mine.gathered <= rows.gathered).all()
        )  # fmt: skip


def _turns_key(s: Strategy) -> tuple[object, ...]:
    """What the turns of an interleaved strategy depend on."""
    return (key_of(s), s.pp, s.vpp, s.num_microbatches, "none" if s.recompute == "full" else s.recompute)


class Closer:
    """Closes the units of one search, remembering what the launcher can express."""

    def __init__(self, found: Found, clock: Clock) -> None:
        self.found = found
        self.clock = clock
        self.solved = 0
        self.bands: list[Band] = []
        """Left over from what was closed."""
        self._last: tuple[Strategy, Group] | None = None
        self._abilities: dict[tuple[object, ...], tuple[bool, bool]] = {}
        self._turns: dict[tuple[object, ...], tuple[Turns, Least]] = {}
        self._shown: dict[tuple[object, ...], list[_Shown]] = {}

    def tightened(self, units: Sequence[Unit]) -> list[Unit | None]:
        """Units with the bounds that their turns and the loads of their ranks give; None where no answer is left.

        A launcher's own splits, few as they are, are judged at once.
        """
        out = [self._turned(unit) for unit in units]
        alive = [(i, unit) for i, unit in enumerate(out) if unit is not None]
        rows = Strategies.of(unit.strategy for _, unit in alive)
        parts = list(groups(self.found.problem, rows)) if alive else []
        for where, group in parts:
            full = rows.recompute[where] == FULL
            for some in (np.flatnonzero(full), np.flatnonzero(~full)):
                mine = [alive[k] for k in where[some]]
                if not mine:
                    continue
                pipeline, longest = (np.array([getattr(u, n) for _, u in mine]) for n in ("pipeline_s", "longest_s"))
                rests = least_rests_s(kind_rows(group).take(some), pipeline, longest, self.found.step_s)
                for (i, unit), bound in zip(mine, (pipeline + rests).tolist(), strict=True):
                    tight = replace(unit, bound_s=max(unit.bound_s, bound))
                    out[i] = tight if self.found.beats(tight.bound_s) else None
        return out

    def _turned(self, unit: Unit) -> Unit | None:
        own = splits_of(self.found.space.launcher, self.found.problem, unit.strategy)
        if own is not None:
            for strategy in own:
                self._judge(Split(strategy, math.inf, True))
            return None
        if not (self.found.beats(unit.bound_s) and self._can(unit.strategy)[0]):
            return None
        turns = 0.0
        if unit.strategy.schedule == "interleaved":
            turns = self._least_turns(unit.strategy)[1].pipeline_s
            unit = replace(unit, pipeline_s=max(unit.pipeline_s, turns, self._shown_s(unit.strategy)))
        if self._can(unit.strategy)[1]:
            again = repeated_pipeline_s(kind_rows(self._group(unit.strategy)), turns)
            unit = replace(unit, pipeline_s=max(unit.pipeline_s, again))
        return unit if self.found.beats(unit.pipeline_s + unit.rest_s) else None

    def close(self, band: Band) -> tuple[float, Band | None]:
        """Solve the splits of one tightened strategy, or those of a band that closing it left.

        Returns the bound that remains on those whose fullest rank has as many parameters as that of the best split or
        more (infinite where they are settled), and the band of the others while it may hold an answer; or, where CP-SAT
        has been put off or has looked for a short time only, all of them again.
        """
        unit, _ = self._refreshed(band.unit)
        if not self.found.beats(unit.bound_s):
            return math.inf, None
        _, uniform = self._can(unit.strategy)
        if not self.is_exact(unit.strategy):
            self._solve(unit, uniform)
            unit, _ = self._refreshed(unit)
            return self._relaxed(unit, uniform) if self.found.beats(unit.bound_s) else math.inf, None
        chunked = unit.strategy.schedule == "interleaved"
        split = self._interleaved(band, unit, uniform) if chunked else self._cut(unit, uniform, band.below)
        if split is None:
            return math.inf, None
        unit, loads = self._refreshed(unit, split.pipeline_s)
        remains = max(unit.bound_s, split.pipeline_s + unit.rest_s)
        if not self.found.beats(remains):
            return math.inf, None
        if not (split.optimal or band.effort == _MOST_EFFORT or math.isfinite(band.below)):
            return math.inf, Band(replace(unit, bound_s=remains), effort=band.effort + 1)
        if band.turn == _ROUNDS or loads is None or split.strategy.layers_per_stage is None:
            return remains, None
        below = rank_params(self.found.problem, split.strategy)
        left = max(remains, split.pipeline_s + loads.rest_above(below))
        fewer = Band(replace(unit, bound_s=remains), below, band.turn + 1)
        return left if self.found.beats(left) else math.inf, fewer

    def _cut(self, unit: Unit, uniform: bool, below: float) -> Split | None:
        """The quickest split by dynamic programming, judged; None where none is under the incumbent."""
        numbers = self._wished or _any_number(self.found.problem, uniform)
        cut = best_cut(
            self.found.problem, unit.strategy, numbers=numbers, params_below=below, longest_s=unit.longest_s,
            group=self._group(unit.strategy),
        )  # fmt: skip
        if math.isinf(cut.pipeline_s):
            return None
        split = Split(cut.strategy or unit.strategy, cut.pipeline_s, True)
        self._judge(split)
        return split

    def _interleaved(self, band: Band, unit: Unit, uniform: bool) -> Split | None:
        """The quickest split of interleaved chunks: the least turns where they fit, else by CP-SAT, if not put off."""
        s = unit.strategy
        if math.isfinite(band.below):
            return self._solve(unit, uniform, band.below, _BAND_WORK)
        later, work = band.effort == 0, 0.0 if band.effort == _MOST_EFFORT else _FIRST_WORK
        if s.recompute == "full":
            return Split(s, unit.pipeline_s, False) if later else self._solve(unit, uniform, work=work)
        turns, least = self._least_turns(s)
        quickest = quickest_turns(self.found.problem, s, kind_rows(self._group(s)), turns, least.fill_s)
        shown, floor = self._shown.setdefault(_turns_key(s), []), max(unit.pipeline_s, self._shown_s(s))
        near = (one.layers for one in shown if one.pipeline_s <= floor * (1.0 + _SAME))
        for layers in (quickest, *near):
            split = Split(replace(s, layers_per_stage=layers), floor, True)
            answer = self._judge(split)
            if answer is not None and answer.fits and in_pipeline_s(answer) <= floor * (1.0 + _SAME):
                return split
        if later:
            return Split(s, floor, False)
        limit, rows = self.found.step_s - unit.rest_s, kind_rows(self._group(s))
        solved = self._solve(replace(unit, pipeline_s=floor), uniform, work=work)
        if solved is None:
            shown.append(_Shown(rows, limit, None))
        else:
            shown.append(_Shown(rows, solved.pipeline_s, solved.strategy.layers_per_stage))
        return solved

    def _shown_s(self, strategy: Strategy) -> float:
        """What CP-SAT has shown pipelines to take at least that differ in having more memory for their layers.

        Nothing is known of those that recompute layers in full: they fit where others do not.
        """
        shown = self._shown.get(_turns_key(strategy))
        if not shown or strategy.recompute == "full":
            return 0.0
        rows = kind_rows(self._group(strategy))
        return max((one.pipeline_s for one in shown if one.has_room_of(rows)), default=0.0)

    def _least_turns(self, strategy: Strategy) -> tuple[Turns, Least]:
        """The turns of an interleaved strategy and the least time they take: the same for many strategies."""
        s, key = strategy, _turns_key(strategy)
        if key not in self._turns:
            self._turns[key] = turns_of(self.found.problem, s, kind_rows(self._group(s)))
        return self._turns[key]

    def _group(self, strategy: Strategy) -> Group:
        """The group of the strategy being closed: its layer table is asked for many times."""
        if self._last is None or self._last[0] is not strategy:
            self._last = (strategy, group_of(self.found.problem, strategy))
        return self._last[1]

    @cached_property
    def _wished(self) -> list[int] | None:
        """The numbers of layers that the request or the launcher has every rank recompute in full; None: any."""
        most = self.found.problem.model.num_layers
        wished = [int(v) for v in self.found.space.constraints.values("recompute_layers")]
        if not wished:
            return _all_or_none(self.found.problem, self.found.space.launcher)
        return [most if n < 0 else n for n in wished]

    def _relaxed(self, unit: Unit, uniform: bool) -> float:
        """A bound from CP-SAT on a strategy that it cannot state exactly."""
        limit = self.found.step_s - unit.rest_s
        self.solved += 1
        split = solve_split(
            self.found.problem, unit.strategy, uniform=uniform, numbers=self._wished, pipeline_limit_s=limit,
            relaxed=True, left_s=self.clock.left_s,
        )  # fmt: skip
        if split is None:
            return math.inf
        unit, _ = self._refreshed(unit, split.pipeline_s)
        return unit.bound_s if self.found.beats(unit.bound_s) else math.inf

    def _refreshed(self, unit: Unit, pipeline_s: float = 0.0) -> tuple[Unit, Compositions | None]:
        """The unit's bounds under the incumbent of now, with the loads that its fullest rank may have.

        ``pipeline_s``: what the splits still of interest have been shown to take at least in the pipeline.
        """
        problem, step = self.found.problem, self.found.step_s
        group = self._group(unit.strategy)
        alone, known = [(np.zeros(1, dtype=np.int64), group)], max(unit.pipeline_s, pipeline_s)
        new = split_bounds(problem, group.strategies, np.array([unit.bound_s]), step, alone, np.array([known]))
        bound, pipeline, rest, longest = (float(x[0]) for x in (new.bound_s, new.pipeline_s, new.rest_s, new.longest_s))
        loads = compositions(group, pipeline, longest, step) if self.found.beats(bound) else None
        if loads:
            bound, rest = max(bound, pipeline + loads.rest_above(loads.least_params)), max(rest, loads.least_rest_s)
        return Unit(unit.strategy, bound, pipeline, rest, longest), loads

    def _solve(self, unit: Unit, uniform: bool, below: float = math.inf, work: float = 0.0) -> Split | None:
        """CP-SAT's split, judged by the cost model and solved again with room to spare if it does not fit."""
        slack, first = 0.0, None
        for _ in range(3):
            self.solved += 1
            split = solve_split(
                self.found.problem, unit.strategy, uniform=uniform, numbers=self._wished,
                pipeline_limit_s=self.found.step_s - unit.rest_s, slack_bytes=slack, params_below=below,
                pipeline_floor_s=unit.pipeline_s, work=work, left_s=self.clock.left_s,
            )  # fmt: skip
            if split is None:
                return first
            # With room to spare it bounds those splits only that have it.
            first = replace(split, pipeline_s=first.pipeline_s if first else split.pipeline_s)
            answer = self._judge(split)
            if answer is None or answer.fits:
                break
            # Ranks that mix kinds recompute a share of each: leave free what that misses.
            slack += answer.peak_memory_bytes - answer.capacity_bytes
        return first

    def _judge(self, split: Split) -> Estimate | None:
        """The cost model's own word on a split; None when there is none or the launcher refuses it."""
        found = self.found
        if split.strategy.layers_per_stage is None or violations(found.problem, split.strategy, found.space.rules):
            return None
        answer = self._with_less_on_the_host(estimate(found.problem, split.strategy))
        if answer.fits:
            found.splits.append((answer.step_time_s, answer.strategy))
            found.offer(answer.strategy, answer.step_time_s, answer.peak_memory_bytes)
            if found.best is answer.strategy:
                found.pipeline_s = split.pipeline_s
        return answer

    def _with_less_on_the_host(self, answer: Estimate) -> Estimate:
        """The same split with the least share of the optimizer offloaded that fits."""
        shares = self.found.space.axes.knob_values("offload_optimizer")
        if not answer.fits or answer.strategy.offload_optimizer <= shares[0]:
            return answer
        none = estimate(self.found.problem, replace(answer.strategy, offload_optimizer=0.0))
        need = max(
            (sum(parts.values()) - none.capacity_bytes) / parts["optimizer"] for parts in none.memory_parts_by_rank
        )
        share = float(least_share(shares, np.array(need)))
        if not share < answer.strategy.offload_optimizer:
            return answer
        less = estimate(self.found.problem, replace(answer.strategy, offload_optimizer=share))
        return less if less.fits else answer

    def share_again(self) -> None:
        """Solve the best split again with less of the optimizer on the host, halving the shares down from its own.

        Splits were solved with quarters offloaded: one that needs less than the best of those may be quicker.
        """
        shares, best = self.found.space.axes.knob_values("offload_optimizer"), self.found.best
        low, high = 0, len(shares) - 1
        while best is not None and best.pp > 1 and best.offload_optimizer > shares[0]:
            high = min(high, int(np.searchsorted(shares, best.offload_optimizer - 1e-9)))
            if high - low <= 1:
                return
            middle = (low + high) // 2
            bare = replace(best, layers_per_stage=None, recompute_per_stage=None, offload_optimizer=shares[middle])
            rows, before = Strategies.of([bare]), self.found.step_s
            if self.found.space.allows(rows).all():
                bounds = split_bounds(self.found.problem, rows, np.zeros(1), before)
                (unit,) = self.tightened([Unit.at(rows, bounds, 0)])
                if unit is not None:
                    self.close(Band(unit, effort=1))
            if self.found.step_s < before:
                best = self.found.best
            else:
                low = middle

    def is_exact(self, strategy: Strategy) -> bool:
        """Whether splits are searched exactly: CP-SAT cannot where interleaved ranks recompute a mixture in full."""
        if strategy.schedule != "interleaved":
            return True
        model, work = self.found.problem.model, self.found.problem.workload
        mixed = len(set(model.layers)) > 1 or bool(model.mtp and work.train_mtp)
        return not (strategy.recompute == "full" and mixed)

    def _can(self, s: Strategy) -> tuple[bool, bool]:
        """Whether the launcher takes uneven splits, and whether it recomputes one number of layers per chunk."""
        key = (s.pp, s.vpp, s.schedule, s.recompute, s.zero, s.ep_overlap)
        if key not in self._abilities:
            problem, launcher = self.found.problem, self.found.space.launcher
            can = splittable(problem, launcher, s)
            self._abilities[key] = (can, can and s.recompute == "full" and one_number(problem, launcher, s))
        return self._abilities[key]


def in_pipeline_s(answer: Estimate) -> float:
    """Seconds that the slowest rank works and waits in the pipeline, as the solvers count them."""
    return sum(seconds for name, seconds in answer.time_parts_s.items() if name not in _OUTSIDE)


def turns_of(problem: Problem, strategy: Strategy, rows: KindRows) -> tuple[Turns, Least]:
    """The turns of an interleaved strategy and the least time they take."""
    turns = Turns.of(problem, strategy, rows)
    whole = Loads.of(strategy, rows, None, math.inf, math.inf).whole_s
    return turns, least_pipeline_s(turns, strategy, whole)


def tidied(found: Found) -> Strategy | None:
    """The incumbent with the split nearest to the even one that is no slower and fits."""
    best, problem, launcher = found.best, found.problem, found.space.launcher
    if best is None or best.layers_per_stage is None or not math.isfinite(found.pipeline_s):
        return best
    bare = replace(best, layers_per_stage=None, recompute_per_stage=None)
    uniform = best.recompute == "full" and one_number(problem, launcher, bare)
    limit, rules, numbers = found.pipeline_s * (1.0 + 1e-9), found.space.rules, None
    if best.recompute == "full" and best.recompute_per_stage is None:
        numbers = [best.recompute_layers if best.recompute_layers >= 0 else problem.model.num_layers]
    split = solve_split(
        problem, bare, uniform=uniform, numbers=numbers, pipeline_limit_s=limit, gap=_TIDY_GAP, tidy=True
    )
    if split is None or split.strategy.layers_per_stage is None or violations(problem, split.strategy, rules):
        return best
    answer = estimate(problem, split.strategy)
    return split.strategy if answer.fits and answer.step_time_s <= found.step_s * (1.0 + 1e-9) else best


def best_split(
    problem: Problem, launcher: Launcher, strategy: Strategy, gap: float, below_s: float = math.inf
) -> Estimate | None:
    """One strategy with its layer split solved to within a gap, as the cost model sees it.

    None where no split fits or can be launched, or none with a step under ``below_s``.
    """
    own = splits_of(launcher, problem, strategy)
    if own is not None:
        answers = [estimate(problem, s) for s in own if not launcher.violations(problem, s)]
        return min((e for e in answers if e.fits), key=lambda e: e.step_time_s, default=None)
    if not splittable(problem, launcher, strategy):
        return None
    uniform = strategy.recompute == "full" and one_number(problem, launcher, strategy)
    for split in _likely_splits(problem, strategy, uniform, _all_or_none(problem, launcher), gap, below_s):
        if split is not None and split.layers_per_stage and not launcher.violations(problem, split):
            answer = estimate(problem, split)
            if answer.fits:
                return answer
    return None


def _likely_splits(
    problem: Problem, strategy: Strategy, uniform: bool, numbers: list[int] | None, gap: float, below_s: float
) -> Iterator[Strategy | None]:
    """Splits of one strategy, the quickest first, each meant to fit."""
    group = group_of(problem, strategy)
    if strategy.schedule != "interleaved":
        # Every micro-batch passes the slowest rank.
        longest, any_number = below_s / strategy.num_microbatches, numbers or _any_number(problem, uniform)
        yield best_cut(problem, strategy, numbers=any_number, longest_s=longest, group=group).strategy
        return
    if strategy.recompute != "full":
        rows = kind_rows(group)
        turns, least = turns_of(problem, strategy, rows)
        layers = quickest_turns(problem, strategy, rows, turns, least.fill_s)
        yield replace(strategy, layers_per_stage=layers) if layers else None
    split = solve_split(problem, strategy, uniform=uniform, numbers=numbers, pipeline_limit_s=below_s, gap=gap)
    yield split.strategy if split else None


def _all_or_none(problem: Problem, launcher: Launcher) -> list[int] | None:
    """All layers, where that is the only number of them that a launcher recomputes; None where it counts them."""
    return None if offers(launcher.capabilities, "recompute_layers") else [problem.model.num_layers]


def _any_number(problem: Problem, uniform: bool) -> Sequence[int | None]:
    """The numbers of layers that every rank may recompute, or None for as few on each as fit."""
    layers = problem.model.num_layers
    return range(1, layers + 1) if uniform else (None, layers)

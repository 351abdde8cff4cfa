"""Closing one strategy whose bound leaves it open: CP-SAT on its layer split, then a bound on all other splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.step import Group
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import Launcher
from shardwise.launchers.own_splits import splits_of
from shardwise.launchers.rule import violations

from .bounds import split_bounds
from .compositions import Compositions, compositions, rank_params
from .cuts import best_cut, group_of
from .loads import Loads
from .opening import least_share
from .rows import kind_rows
from .split import Split, one_number, solve_split, splittable
from .turns import least_pipeline_s

if TYPE_CHECKING:
    from .exact import Found

_TIDY_GAP = 0.02
"""How close to the most even split is even enough."""

_ROUNDS = 6
"""Bands of the fullest rank's parameters closed one after the other, at most."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A strategy with its knobs set and the bounds of ``SplitBounds`` on its splits."""

    strategy: Strategy
    bound_s: float
    pipeline_s: float
    rest_s: float
    longest_s: float


class Closer:
    """Closes the units of one search, remembering what the launcher can express."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.solved = 0
        self.cut = 0
        self._last: tuple[Strategy, Group] | None = None
        self._abilities: dict[tuple[object, ...], tuple[bool, bool]] = {}

    def close(self, unit: Unit) -> float:
        """Solve one strategy's split; returns the bound that remains on it (infinite when it is settled)."""
        own = splits_of(self.found.space.launcher, self.found.problem, unit.strategy)
        if own is not None:
            for strategy in own:
                self._judge(Split(strategy, math.inf, True))
            return math.inf
        can, uniform = self._can(unit.strategy)
        if not can:
            return math.inf
        unit, loads = self._refreshed(unit)
        if not self.found.beats(unit.bound_s):
            return math.inf
        if unit.strategy.schedule != "interleaved":
            return self._cut(unit, uniform)
        rows = kind_rows(self._group(unit.strategy))
        whole = Loads.of(unit.strategy, rows, None, math.inf, math.inf).whole_s
        least = least_pipeline_s(self.found.problem, unit.strategy, rows, whole)
        unit, loads = self._refreshed(unit, least)
        if not self.found.beats(unit.bound_s):
            return math.inf
        if self.is_exact(unit.strategy):
            return self._bands(unit, uniform, loads)
        self._solve(unit.strategy, uniform, math.inf, unit.rest_s)
        unit, _ = self._refreshed(unit)
        return self._relaxed(unit, uniform) if self.found.beats(unit.bound_s) else math.inf

    def _cut(self, unit: Unit, uniform: bool) -> float:
        """Close a strategy whose splits dynamic programming searches whole, in bands like ``_bands``."""
        numbers = self._numbers(unit.strategy, uniform)
        below, left, floor = math.inf, math.inf, unit.pipeline_s
        for turn in range(_ROUNDS + 1):
            self.cut += 1
            cut = best_cut(
                self.found.problem,
                unit.strategy,
                numbers=numbers,
                params_below=below,
                longest_s=unit.longest_s,
                group=self._group(unit.strategy),
            )
            if turn == 0:
                floor = cut.pipeline_s
            if cut.strategy is None:
                return min(left, math.inf if math.isinf(cut.pipeline_s) else max(unit.bound_s, cut.pipeline_s))
            self._judge(Split(cut.strategy, cut.pipeline_s, True))
            unit, loads = self._refreshed(unit, floor)
            if turn == _ROUNDS or loads is None or not self.found.beats(cut.pipeline_s + unit.rest_s):
                remains = cut.pipeline_s + unit.rest_s
                return min(left, remains if self.found.beats(remains) else math.inf)
            below = rank_params(self.found.problem, cut.strategy)
            band = cut.pipeline_s + max(unit.rest_s, loads.rest_above(below))
            left = min(left, band if self.found.beats(band) else math.inf)
        return left

    def _group(self, strategy: Strategy) -> Group:
        """The group of the strategy being closed: its layer table is asked for many times."""
        if self._last is None or self._last[0] is not strategy:
            self._last = (strategy, group_of(self.found.problem, strategy))
        return self._last[1]

    def _numbers(self, strategy: Strategy, uniform: bool) -> Sequence[int | None]:
        """The numbers of recomputed layers per rank that the launcher and the request allow."""
        wished = [int(v) for v in self.found.space.constraints.values("recompute_layers")]
        layers = self.found.problem.model.num_layers
        if wished:
            return [layers if n < 0 else n for n in wished]
        return range(1, layers + 1) if uniform else (None, layers)

    def _relaxed(self, unit: Unit, uniform: bool) -> float:
        """A bound from CP-SAT on a strategy that it cannot state exactly."""
        limit = self.found.step_s - unit.rest_s
        self.solved += 1
        split = solve_split(self.found.problem, unit.strategy, uniform=uniform, pipeline_limit_s=limit, relaxed=True)
        if split is None:
            return math.inf
        unit, _ = self._refreshed(unit, split.pipeline_s)
        return unit.bound_s if self.found.beats(unit.bound_s) else math.inf

    def _refreshed(self, unit: Unit, pipeline_s: float = 0.0) -> tuple[Unit, Compositions | None]:
        """The unit's bounds under the incumbent of now, with the loads that its fullest rank may have.

        ``pipeline_s``: what CP-SAT has shown its pipeline to take at least.
        """
        problem, step = self.found.problem, self.found.step_s
        group = self._group(unit.strategy)
        alone = [(np.zeros(1, dtype=np.int64), group)]
        new = split_bounds(problem, group.strategies, np.array([unit.bound_s]), step, alone)
        pipeline, rest, longest = (float(x[0]) for x in (new.pipeline_s, new.rest_s, new.longest_s))
        pipeline = max(pipeline, pipeline_s)
        loads = compositions(group, pipeline, longest, step) if math.isfinite(pipeline) else None
        if loads:
            rest = max(rest, loads.rest_above(loads.least_params))
        return Unit(unit.strategy, max(unit.bound_s, pipeline + rest), pipeline, rest, longest), loads

    def _bands(self, unit: Unit, uniform: bool, loads: Compositions | None) -> float:
        """Close splits by the parameters of their fullest rank: those of the best split and more, then fewer."""
        bands: list[tuple[float, float]] = []
        below, floor = math.inf, unit.pipeline_s
        for _ in range(_ROUNDS):
            split, _ = self._solve(unit.strategy, uniform, below, unit.rest_s)
            if split is None:
                floor = math.inf
                break
            floor = max(floor, split.pipeline_s)
            unit, loads = self._refreshed(unit, floor if not bands else 0.0)
            if split.strategy.layers_per_stage is None or loads is None:
                break
            below = rank_params(self.found.problem, split.strategy)
            bands.append((split.pipeline_s, below))
            if not self.found.beats(floor + unit.rest_s):
                floor = math.inf
                break
        left = max(unit.bound_s, floor + unit.rest_s)
        if loads:
            left = min(
                left, *(pipeline + max(unit.rest_s, loads.rest_above(params)) for pipeline, params in bands), math.inf
            )
        return left if self.found.beats(left) else math.inf

    def _solve(
        self, strategy: Strategy, uniform: bool, below: float, rest_s: float
    ) -> tuple[Split | None, Estimate | None]:
        """CP-SAT's split and the cost model's word on it, solved again with room to spare if it does not fit."""
        slack, answer, split = 0.0, None, None
        for _ in range(3):
            self.solved += 1
            split = solve_split(
                self.found.problem, strategy, uniform=uniform, pipeline_limit_s=self.found.step_s - rest_s,
                slack_bytes=slack, params_below=below,
            )  # fmt: skip
            if split is None:
                return None, None
            answer = self._judge(split)
            if answer is None or answer.fits:
                break
            # Ranks that mix kinds recompute a share of each: leave free what that misses.
            slack += answer.peak_memory_bytes - answer.capacity_bytes
        return split, answer

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


def tidied(found: Found) -> Strategy | None:
    """The incumbent with the split nearest to the even one that is no slower and fits."""
    best, problem, launcher = found.best, found.problem, found.space.launcher
    if best is None or best.layers_per_stage is None or not math.isfinite(found.pipeline_s):
        return best
    bare = replace(best, layers_per_stage=None, recompute_per_stage=None)
    uniform = best.recompute == "full" and one_number(problem, launcher, bare)
    limit = found.pipeline_s * (1.0 + 1e-9)
    split = solve_split(problem, bare, uniform=uniform, pipeline_limit_s=limit, gap=_TIDY_GAP, tidy=True)
    if split is None or split.strategy.layers_per_stage is None or launcher.violations(problem, split.strategy):
        return best
    answer = estimate(problem, split.strategy)
    return split.strategy if answer.fits and answer.step_time_s <= found.step_s * (1.0 + 1e-9) else best


def best_split(problem: Problem, launcher: Launcher, strategy: Strategy, gap: float) -> Estimate | None:
    """One strategy with its layer split solved to within a gap, as the cost model sees it.

    None where no split fits or can be launched.
    """
    own = splits_of(launcher, problem, strategy)
    if own is not None:
        answers = [estimate(problem, s) for s in own if not launcher.violations(problem, s)]
        return min((e for e in answers if e.fits), key=lambda e: e.step_time_s, default=None)
    if not splittable(problem, launcher, strategy):
        return None
    uniform = strategy.recompute == "full" and one_number(problem, launcher, strategy)
    split = solve_split(problem, strategy, uniform=uniform, pipeline_limit_s=math.inf, gap=gap)
    if split is None or split.strategy.layers_per_stage is None or launcher.violations(problem, split.strategy):
        return None
    answer = estimate(problem, split.strategy)
    return answer if answer.fits else None

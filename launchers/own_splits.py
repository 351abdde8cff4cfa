"""Layer splits that a framework makes by itself: what a launcher offers, what it refuses, and what a search tries.

Most frameworks are told how many layers each stage holds. Others divide the model by a rule of their own; then a
launcher names the splits it makes of a pipeline, and nothing else may be planned for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategies, Strategy

from .rule import Allowed, Check, Rule

if TYPE_CHECKING:
    from .base import Launcher

Split = tuple[int, ...]
OwnSplits = Callable[[Problem, int, int], tuple[Split, ...]]
"""For a problem, tp and pp of at least 2: the splits that may be had, the framework's default first; none: it has none
that can be planned."""


def own_split_rule(launcher: str, own: OwnSplits, *, searched: bool = False) -> Rule:
    """The rule ``<launcher>-stages``: a split is one of the launcher's own.

    A strategy without an explicit split has the even one. ``searched``: it has whichever the launcher makes.
    """
    message = (
        f"{launcher} divides the layers over pp = {{pp}} stages itself: layers_per_stage must be its {{own}}, not "
        "{layers_per_stage}"
    )

    def values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
        splits = own(problem, max(s.tp, 1), s.pp) if _judged(problem, s.pp) else ()
        shown = " or ".join(map(_show, splits))
        given = "even" if s.layers_per_stage is None else _show(s.layers_per_stage)
        return {"own": shown or "own, of which none can be planned", "layers_per_stage": given}

    def check_one(problem: Problem, s: Strategy) -> bool:
        given = s.layers_per_stage
        return given is None or not _judged(problem, s.pp) or given in own(problem, max(s.tp, 1), s.pp)

    check = _check(own, searched)
    return Rule(f"{launcher}-stages", message, check, check_one, values, by_split=True)


def _show(split: Split) -> str:
    return "/".join(map(str, split))


def _judged(problem: Problem, pp: int) -> bool:
    return 1 < pp <= problem.model.num_layers


def _check(own: OwnSplits, any_split: bool) -> Check:
    def check(problem: Problem, s: Strategies) -> Allowed:
        tps, pps = np.maximum(np.asarray(s.tp), 1), np.asarray(s.pp)
        fine = np.ones(tps.shape, dtype=np.bool_)
        for tp, pp in sorted({(int(a), int(b)) for a, b in zip(tps, pps, strict=True) if _judged(problem, int(b))}):
            splits = own(problem, tp, pp)
            if not (splits if any_split else even_split(problem.model.num_layers, pp) in splits):
                fine &= (tps != tp) | (pps != pp)
        return fine

    return check


def splits_of(launcher: Launcher, problem: Problem, strategy: Strategy) -> tuple[Strategy, ...] | None:
    """The strategy with each split that the launcher makes of its pipeline; None where any split may be asked for."""
    if launcher.own_splits is None or strategy.pp < 2:
        return None
    if not _judged(problem, strategy.pp):
        return ()
    own = launcher.own_splits(problem, max(strategy.tp, 1), strategy.pp)
    return tuple(replace(strategy, layers_per_stage=split) for split in own)


def with_own_split(launcher: Launcher, problem: Problem, strategy: Strategy) -> Strategy:
    """A strategy without an explicit split, with the launcher's first one where the even one is none of its own."""
    if strategy.layers_per_stage is not None or strategy.vpp != 1:
        return strategy
    own = splits_of(launcher, problem, strategy)
    even = even_split(problem.model.num_layers, strategy.pp) if own else ()
    return strategy if not own or even in [s.layers_per_stage for s in own] else own[0]

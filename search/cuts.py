"""The best places to cut a list of layers into pipeline stages, exactly, by dynamic programming.

A rank that holds layers ``i`` to ``j`` costs what it costs wherever the other cuts are. So the least slowest stage of
the first ``r`` ranks over the first ``j`` layers follows from that of ``r - 1`` ranks, with each rank's memory and the
recomputation it forces counted as the cost model counts them. One rank paces a pipeline and the others count by their
sum, so this is the exact optimum: a bound for the search, and a place for CP-SAT to start.

Tables are ``[level, i, d]``: the rank at ``level`` holds ``d`` layers from ``i`` on. A rank of a folded schedule (zb-v,
and dualpipe with its mirror image) holds two stretches; with one kind of layer only their sum matters, so ``i`` counts
layers instead. ``folds`` has folded schedules with several kinds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.schedule import FOLDED, others_divisor
from shardwise.costmodel.step import Group, Load, pass_wait_s, pipeline_s
from shardwise.costmodel.strategy import Strategies, Strategy

from .loads import Loads, Settled
from .rows import kind_rows

_FEW_NUMBERS = 2
"""Numbers of recomputed layers that are all tried."""

_MOST_LIMITS = 64
"""Limits on the slowest stage tried where recomputation trades it against the sum."""


@dataclass(frozen=True, slots=True)
class Cut:
    """``pipeline_s``: no split takes less in the pipeline (inf: none fits); ``strategy``: the split found, if any."""

    pipeline_s: float
    strategy: Strategy | None


def best_cut(
    problem: Problem,
    strategy: Strategy,
    *,
    numbers: Iterable[int | None] = (None,),
    params_below: float = math.inf,
    longest_s: float = math.inf,
    group: Group | None = None,
) -> Cut:
    """The split of one strategy that is quickest in the pipeline among those whose every rank fits.

    ``numbers``: layers that full recomputation may repeat on every rank (all where it has fewer); None for as few on
    each as fit. Every rank has fewer parameters than ``params_below``; a split with a rank over ``longest_s`` may be
    left out. ``group``: the strategy's, where it is at hand. Not for interleaved schedules: their ranks hold many
    stretches.
    """
    rows = kind_rows(group or group_of(problem, strategy))

    @cache
    def cut(number: int | None, fits: bool = True) -> Cut:
        return _best(problem, strategy, Loads.of(strategy, rows, number, params_below, longest_s, fits))

    if strategy.recompute != "full":
        return cut(None)
    wished = list(numbers)
    if len(wished) <= _FEW_NUMBERS:
        return min((cut(number) for number in wished), key=lambda c: c.pipeline_s, default=Cut(math.inf, None))
    longer = others_divisor(strategy.schedule, strategy.vpp) is not None
    return _best_number(cut, sorted(n for n in wished if n is not None), longer)


def _best_number(cut: Callable[[int, bool], Cut], numbers: list[int], longer: bool) -> Cut:
    """The quickest cut over ascending numbers of recomputed layers: each needs less memory than the last.

    The first that fits is looked for by halving; more layers can only pay where they would if everything fitted.
    ``longer``: whether a pipeline takes longer with each, as it does unless its bubble depends on which rank paces it.
    """
    first = bisect_left(numbers, True, key=lambda n: math.isfinite(cut(n, True).pipeline_s))
    best = Cut(math.inf, None)
    for number in numbers[first:]:
        if cut(number, False).pipeline_s < best.pipeline_s:
            best = min(best, cut(number, True), key=lambda c: c.pipeline_s)
        elif longer:
            break
    return best


def group_of(problem: Problem, strategy: Strategy) -> Group:
    """The group of one strategy alone."""
    ((_, group),) = groups(problem, Strategies.of([strategy]))
    return group


def _best(problem: Problem, strategy: Strategy, loads: Loads) -> Cut:
    folded = strategy.schedule in FOLDED
    if folded and len(loads.rows.used) > 1:
        from .folds import best_fold

        return best_fold(problem, strategy, loads)
    levels = _levels(problem, strategy, loads)
    after = _onwards(levels.total, problem.model.num_layers)
    if not math.isfinite(after[0, 0]):
        return Cut(math.inf, None)
    if others_divisor(strategy.schedule, strategy.vpp) and loads.full:
        pipeline, cuts = _with_recomputation(strategy, loads, levels.total, float(after[0, 0]))
    elif others_divisor(strategy.schedule, strategy.vpp):
        pipeline = float(linear_s(strategy, after[0, 0], loads.whole_s))
        cuts = _path(levels.total, float(after[0, 0]), 0, 0, len(levels.total), problem.model.num_layers)
    else:
        pipeline, cuts = _with_pacing_rank(strategy, loads, levels, after)
    return Cut(pipeline, _written(problem, strategy, loads, levels, cuts))


def _levels(problem: Problem, strategy: Strategy, loads: Loads) -> Settled:
    """Every stretch of layers on every rank, ``[level, i, d]``; inf where the rank may not be so empty."""
    total, folded = problem.model.num_layers, strategy.schedule in FOLDED
    count = strategy.pp // 2 if strategy.schedule == "dualpipe" else strategy.pp
    start, held = np.arange(total + 1)[:, None], np.arange(loads.most_layers + 1)[None]
    inside = start + held <= total
    if folded:
        layers = np.zeros((*inside.shape, len(problem.model.kinds)))
        layers[..., loads.rows.used[0]] = held
    else:
        running = running_counts(problem)
        layers = running[np.minimum(start + held, total)] - running[start]
    number = np.arange(count)
    first = number == 0
    last = first if folded else number == count - 1
    settled = loads.settle_all(loads.parts(layers), number, first, last)
    least = np.where(first | last | (strategy.schedule == "zb-v"), 0, 2 if folded else 1)
    return replace(settled, total=np.where(inside & (held >= least[:, None, None]), settled.total, np.inf))


def running_counts(problem: Problem) -> Array:
    """Layers of each kind among the first ``j``: ``[num_layers + 1, kind]``."""
    model = problem.model
    out = np.zeros((model.num_layers + 1, len(model.kinds)))
    out[np.arange(1, model.num_layers + 1), list(model.layers)] = 1.0
    return np.asarray(np.cumsum(out, axis=0))


def linear_s(strategy: Strategy, slowest: Array | float, whole: Array | float) -> Array:
    """Seconds in the pipeline where the others' passes, over a divisor, are the bubble."""
    fill = 1.0 / (others_divisor(strategy.schedule, strategy.vpp) or 1)
    return np.asarray(strategy.num_microbatches * slowest + fill * (whole - slowest))


def _ends(of: Array, width: int) -> Array:
    """What a table ``[i]`` has at ``i + d``, ``[i, d]``; inf beyond it."""
    padded = np.concatenate([of, np.full(width - 1, np.inf)])
    return sliding_window_view(padded, width)


def _onwards(seconds: Array, end: int) -> Array:
    """The least slowest stage from ``[level', i]`` to the end of all ranks at layer ``end``."""
    out = np.full((len(seconds) + 1, seconds.shape[1]), np.inf)
    out[-1, end] = -np.inf
    for r in range(len(seconds) - 1, -1, -1):
        out[r] = np.maximum(seconds[r], _ends(out[r + 1], seconds.shape[2])).min(axis=1)
    return out


def _upto(seconds: Array) -> Array:
    """The least slowest stage from the start to ``[level, j]``."""
    out = np.full((len(seconds) + 1, seconds.shape[1]), np.inf)
    out[0, 0] = -np.inf
    # Backwards from j: d layers from j - d on.
    start = np.arange(seconds.shape[1])[:, None] - np.arange(seconds.shape[2])[None]
    taken = np.maximum(start, 0), np.arange(seconds.shape[2])[None]
    for r in range(len(seconds)):
        reached = np.where(start >= 0, np.maximum(out[r][taken[0]], seconds[r][taken]), np.inf)
        out[r + 1] = reached.min(axis=1)
    return out


def _path(seconds: Array, limit: float, level: int, start: int, last: int, end: int) -> list[int]:
    """Cuts from ``(level, start)`` to ``(last, end)`` with every stage within a limit, as even as possible."""
    after = _onwards(seconds[:last], end)
    cuts = [start]
    for r in range(level, last):
        i = cuts[-1]
        can = np.flatnonzero((seconds[r, i] <= limit) & (_ends(after[r + 1], seconds.shape[2])[i] <= limit))
        wish = (end - i) / (last - r)
        cuts.append(i + int(can[np.argmin(np.abs(can - wish))]))
    return cuts


def _with_recomputation(strategy: Strategy, loads: Loads, seconds: Array, least: float) -> tuple[float, list[int]]:
    """Where forced recomputation makes the sum depend on the split: each limit on the slowest stage has its least sum.

    Limits are tried from the least upwards until none higher can pay.
    """
    lowest, _ = _least_sum(seconds, math.inf)
    best = math.inf
    found: list[int] = []
    limits = np.unique(seconds[np.isfinite(seconds) & (seconds >= least)])
    for tried, limit in enumerate(limits):
        floor = float(linear_s(strategy, limit, lowest))
        if floor >= best:
            break
        if tried == _MOST_LIMITS:
            return min(best, floor), found
        whole, cuts = _least_sum(seconds, float(limit))
        value = float(linear_s(strategy, limit, whole))
        if value < best:
            best, found = value, cuts
    return best, found


def _least_sum(seconds: Array, limit: float) -> tuple[float, list[int]]:
    """The least sum over all ranks with every stage within a limit, and its cuts (none if no split is)."""
    within = np.where(seconds <= limit, seconds, np.inf)
    sums = np.full((len(seconds) + 1, seconds.shape[1]), np.inf)
    sums[-1, -1] = 0.0
    for r in range(len(seconds) - 1, -1, -1):
        sums[r] = (within[r] + _ends(sums[r + 1], seconds.shape[2])).min(axis=1)
    if not math.isfinite(sums[0, 0]):
        return math.inf, []
    cuts = [0]
    for r in range(len(seconds)):
        i = cuts[-1]
        cuts.append(i + int(np.argmin(within[r, i] + _ends(sums[r + 1], seconds.shape[2])[i])))
    return float(sums[0, 0]), cuts


def _with_pacing_rank(strategy: Strategy, loads: Loads, levels: Settled, after: Array) -> tuple[float, list[int]]:
    """Where the bubble depends on the passes of the rank that paces: every stretch that may be the slowest is tried."""
    seconds = levels.total
    before, width = _upto(seconds), seconds.shape[2]
    beside = np.stack([np.maximum(b[:, None], _ends(a, width)) for b, a in zip(before[:-1], after[1:], strict=True)])
    r, i, d = np.nonzero(np.isfinite(seconds) & (beside <= seconds))
    forward, backward, weight = (x[r, i, d] for x in (levels.forward, levels.backward, levels.weight))
    again = 0.0
    if loads.full:
        twice = 2.0 if strategy.schedule == "dualpipe" else 1.0
        again = twice * _least_sum(seconds, math.inf)[0] - loads.whole_s
    value = paced_s(loads, forward, backward, weight, max(0.0, again))
    best = int(np.argmin(value))
    limit = float(seconds[r[best], i[best], d[best]])
    total = seconds.shape[1] - 1
    left = _path(seconds, limit, 0, 0, int(r[best]), int(i[best]))
    right = _path(seconds, limit, int(r[best]) + 1, int(i[best] + d[best]), len(seconds), total)
    return float(value[best]), [*left, *right]


def paced_s(loads: Loads, forward: Array, backward: Array, weight: Array, again_s: float) -> Array:
    """Pipeline seconds for each possible slowest rank ``[n]``, the other ranks by their sum; filling waits included.

    ``again_s``: seconds per micro-batch that all ranks recompute together.
    """
    rows, n = loads.rows, len(forward)
    group, pp = rows.group, rows.group.pp
    wholes = (loads.whole(rows.forward), loads.whole(rows.backward) + again_s, loads.whole(rows.weight))
    passes = [
        np.stack([x, np.maximum(0.0, whole - x) / (pp - 1)])
        for x, whole in zip((forward, backward, weight), wholes, strict=True)
    ]
    column = np.full(n, loads.column)
    two = replace(
        group, strategies=group.strategies.take(column), key=group.key[column],
        counts=np.zeros((2, group.counts.shape[1])), ranks=np.array([0, pp - 1]), repeats=np.array([1.0, pp - 1.0]),
    )  # fmt: skip
    none = np.zeros((2, n))
    message = np.full(n, loads.message_s)
    wait, delay = pass_wait_s(two, message), message * group.problem.runtime.pp_hidden
    pipe = pipeline_s(two, Load(passes[0], passes[1], passes[2], none, none[0]), wait, delay)
    return np.asarray(pipe.busy + pipe.idle + pipe.waits + pipe.delays)


def _written(problem: Problem, strategy: Strategy, loads: Loads, levels: Settled, cuts: list[int]) -> Strategy | None:
    """The strategy with its split, and what each rank recomputes."""
    if not cuts:
        return None
    held = [int(n) for n in np.diff(cuts)]
    again = [int(n) for n in levels.again[np.arange(len(held)), cuts[:-1], held]]
    if strategy.schedule in FOLDED:
        held = unfolded([(n // 2, n - n // 2) for n in held])
    return written(problem, strategy, loads, held, again)


def unfolded(pairs: list[tuple[int, int]]) -> list[int]:
    """Stages in model order from the stretches of each rank of a folded schedule."""
    return [*(a for a, _ in pairs), *(b for _, b in reversed(pairs))]


def written(problem: Problem, strategy: Strategy, loads: Loads, held: list[int], again: list[int]) -> Strategy:
    """A strategy with an explicit split and, under full recomputation, the layers recomputed on each rank."""
    split = tuple(held)
    if strategy.schedule == "dualpipe":
        again = [*again, *reversed(again)]
    out = replace(strategy, layers_per_stage=split)
    if loads.full:
        if not any(again):
            out = replace(out, recompute="none", recompute_layers=-1)
        elif loads.number is not None:
            out = replace(out, recompute_layers=loads.number if loads.number < problem.model.num_layers else -1)
        else:
            out = replace(out, recompute_layers=-1, recompute_per_stage=tuple(again))
    return out

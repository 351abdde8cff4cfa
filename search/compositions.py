"""What a step costs outside the pipeline, by what the fullest rank may hold.

Data parallel traffic and the optimizer go with the rank that has most parameters. Which loads a rank can have is a
short list: whole numbers of layers of each kind, with or without the embedding or the head, within the time that an
answer under the incumbent leaves. The least cost over that list bounds every split.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.outside import Totals, totals
from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.schedule import FOLDED, others_divisor
from shardwise.costmodel.step import Group, gradient_times_each, gradients_exposed
from shardwise.costmodel.strategy import Strategies, Strategy

from .bounds import Stage, exposed_beside_s, fill_weight, most_layers, paced_exposed_s, slowest_rank_s, summed
from .cuts import running_counts
from .rows import KindRows, kind_rows

_MOST = 20_000
"""Compositions listed at most; with more the bound is left as it is."""

_PAIRED = 1_000
"""Compositions of which every pair is looked at, at most."""

_ONE_STRETCH = frozenset({"gpipe", "1f1b", "zb-h1"})
"""Schedules whose ranks hold consecutive layers."""


@dataclass(frozen=True, slots=True)
class Compositions:
    """Loads that a rank may have, ascending by parameters ``[c]``."""

    params: Array
    rest_s: Array
    """Seconds outside the pipeline that go with the least pipeline, the least of what follows, ``[c]``."""
    least_params: float
    """Some rank of every split has at least this many parameters."""
    least_rest_s: float
    """The least seconds outside the pipeline of any answer under the incumbent, whatever its pipeline takes."""

    def rest_above(self, params: float) -> float:
        """The least seconds outside the pipeline if the fullest rank has ``params`` parameters or more."""
        start = int(np.searchsorted(self.params, params * (1.0 - 1e-12)))
        return float(self.rest_s[start]) if start < len(self.rest_s) else math.inf


def compositions(group: Group, pipeline_s: float, longest_s: float, incumbent_s: float) -> Compositions | None:
    """The possible loads of the ranks of a group's one strategy; None where there are too many to list.

    Its pipeline takes ``pipeline_s`` at least, its slowest rank ``longest_s`` at most. That least pipeline and
    ``rest_s`` together bound the step: longer pipelines hide more traffic, but less than they cost.
    """
    one = kind_rows(group)
    counts = _loads(one, longest_s)
    if counts is None:
        return None
    dense, expert = counts @ one.params[0, :, 0], counts @ one.params[1, :, 0]
    many = replace(
        group, strategies=group.strategies.take(np.zeros(len(counts), dtype=np.int64)),
        key=np.full(len(counts), group.key[0]),
    )  # fmt: skip
    rows = kind_rows(many)
    # Turns and the recomputation of other ranks lengthen a pipeline too: its slowest rank may be shorter than it paces.
    least = float(slowest_rank_s(one)[0])
    known = np.full(len(counts), pipeline_s)
    rest = replace(totals(many, dense[None], expert[None]), gradients=gradient_times_each(many, dense, expert))
    shares = _shares(one, counts, least, longest_s)
    repeats, linear = bool(one.again.any()), others_divisor(group.schedule, group.vpp) is not None
    # A split with this load has no quicker slowest rank. Elsewhere pairs of loads say as much, or more.
    slowest = np.maximum(least, counts @ one.time[:, 0]) if repeats or not linear else np.full(len(counts), least)
    stage = Stage.of(rows, slowest, rest, incumbent_s, known, shares)
    outside, anyway = stage.pipeline_s - pipeline_s + stage.rest_s, stage.least_s
    if not repeats and linear and len(counts) <= _PAIRED:
        outside, anyway = (stage.outside_s + x for x in _beside_each_s(one, counts, least, pipeline_s, rest))
    elif not repeats and linear:
        outside = np.maximum(outside, stage.outside_s + _beside_slowest_s(one, counts, least, rows, stage, rest))
    whole, least_params = dense + expert, _least_params(one)
    order = np.argsort(whole, kind="stable")
    # From here upwards: the least of what follows.
    below = np.minimum.accumulate(outside[order][::-1])[::-1]
    least_rest = anyway[whole >= least_params * (1.0 - 1e-12)].min(initial=math.inf)
    return Compositions(whole[order], below, least_params, float(least_rest))


def _beside_each_s(
    one: KindRows, counts: Array, least_s: float, pipeline_s: float, rest: Totals
) -> tuple[Array, Array]:
    """Exposed traffic of each load, with what its split's slowest rank costs over the least pipeline and without.

    The least of either, ``[c]`` each. That rank has a load of the list that is no quicker. Nothing is recomputed in
    full, and the bubble is the other ranks' passes: the slowest rank's seconds give the pipeline.
    """
    seconds, forward = counts @ one.time[:, 0], counts @ one.forward[:, 0]
    ascending = np.argsort(seconds, kind="stable")
    order = ascending[seconds[ascending] >= least_s * (1.0 - 1e-9)]
    if not len(order):
        return np.full(len(counts), np.inf), np.full(len(counts), np.inf)
    fill, m = fill_weight(one.group), float(one.group.strategies.num_microbatches[0])
    whole = float(summed(one, one.time)[0])
    pace, f = seconds[order], forward[order]
    more = np.maximum(0.0, m * pace + fill * np.maximum(0.0, whole - pace) - pipeline_s)
    buckets = np.maximum(1.0, np.maximum.accumulate(_held(one, counts)[ascending])[-len(order) :])
    exposed = gradients_exposed(
        one.group, f[None], (pace - f)[None], {phase: each[:, None] for phase, each in rest.gradients.items()}, buckets
    )  # fmt: skip
    value = np.where(pace[None] >= seconds[:, None] * (1.0 - 1e-9), sum(exposed.values()), np.inf)
    return (value + more).min(axis=1), value.min(axis=1)


def _beside_slowest_s(
    one: KindRows, counts: Array, least_s: float, rows: KindRows, stage: Stage, rest: Totals
) -> Array:
    """Data parallel traffic of each load that no slowest rank hides, whatever load that one has, ``[c]``.

    Those no slower than the least pipeline paces hide what their own passes can; slower ones cost more than they hide.
    """
    seconds, window = counts @ one.time[:, 0], float(stage.window_s[0]) * (1.0 + 1e-9)
    forward = counts @ one.forward[:, 0]
    backward = seconds - forward
    out = np.full(len(counts), np.inf)
    slower = seconds > window
    if slower.any():
        n = np.ones(len(counts))
        shares = tuple(n * float(_share(x[slower], seconds[slower]).max()) for x in (forward, backward))
        out = paced_exposed_s(rows, stage.window_s, stage.longest_s, rest, (shares[0], shares[1]))
    able = ~slower & (seconds >= least_s * (1.0 - 1e-9))
    for f, b in _foremost(forward[able], backward[able]):
        passes = np.full(len(counts), f), np.full(len(counts), b)
        out = np.minimum(out, exposed_beside_s(rows, *passes, stage.longest_s, rest))
    return out


def _foremost(forward: Array, backward: Array) -> list[tuple[float, float]]:
    """The pairs that no other exceeds in both."""
    out: list[tuple[float, float]] = []
    for i in np.lexsort((-backward, -forward)):
        if not out or backward[i] > out[-1][1]:
            out.append((float(forward[i]), float(backward[i])))
    return out


def _shares(rows: KindRows, counts: Array, least_s: float, longest_s: float) -> tuple[Array, Array] | None:
    """The largest parts of its time that forward and backward are on a rank of ``least_s`` seconds or more."""
    seconds = counts @ rows.time[:, 0]
    layers = np.maximum(1.0, _held(rows, counts))
    each = (counts @ rows.again[:, 0]) / layers  # a rank recomputes a whole number of its layers, each the mean of them
    most = np.floor(_share(longest_s - seconds, each) + 1e-9)  # without a limit all of them
    repeated = each * np.clip(most, 0.0, layers)
    slow = seconds + repeated >= least_s * (1.0 - 1e-9)
    if not slow.any():
        return None
    forward = _share((counts @ rows.forward[:, 0])[slow], np.maximum(seconds[slow], least_s * (1.0 - 1e-9)))
    again = counts @ (rows.backward[:, 0] + rows.weight[:, 0]) + repeated
    backward = _share(again[slow], (seconds + repeated)[slow])
    n = np.ones(len(counts))
    return n * float(forward.max()), n * float(backward.max())


def _share(part: Array, whole: Array) -> Array:
    """``part / whole``, zero where the whole is none: kernels hidden behind the host's launches take no time."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0.0)


def _held(rows: KindRows, counts: Array) -> Array:
    """Layers of each load, multi-token prediction included."""
    return np.asarray(counts[:, : rows.num_kinds].sum(axis=1) + counts[:, rows.num_kinds + 2])


def _loads(rows: KindRows, longest_s: float) -> Array | None:
    """Every load within ``longest_s``: layers of each kind, then embedding, head, MTP: ``[c, kind + 3]``.

    None where there are none, or too many.
    """
    most = int(most_layers(rows, np.array([longest_s]))[0])
    counts = _stretches(rows, most) if rows.group.schedule in _ONE_STRETCH else _counts(rows, most)
    if counts is None:
        return None
    within = counts @ rows.time[:, 0] <= longest_s * (1.0 + 1e-9)
    return counts[within] if within.any() else None


def _stretches(rows: KindRows, most: int) -> Array:
    """Every load of up to ``most`` consecutive layers."""
    running = running_counts(rows.group.problem)
    total = len(running) - 1
    start, end = (x.ravel() for x in np.indices((total + 1, total + 1)))
    inside = (start <= end) & (end <= start + most)
    start, end = start[inside], end[inside]
    held = running[end] - running[start]
    # A rank at an end of the model may have no layer, and the one beside it all there are on that side.
    parts = [
        np.hstack([held[at], np.tile(np.array(has, dtype=float), (int(at.sum()), 1))])
        for at, has in (
            (end > start, (0, 0, 0)), (start == 0, (1, 0, 0)), (end == total, (0, 1, rows.num_mtp)),
        )
    ]  # fmt: skip
    return np.unique(np.concatenate(parts), axis=0)


def _counts(rows: KindRows, most: int) -> Array | None:
    """Every load of up to ``most`` layers of any kind."""
    sides = [range(min(int(n), most) + 1) for n in rows.layers]
    if math.prod(len(s) for s in sides) > _MOST:
        return None
    layers = np.array([c for c in itertools.product(*sides) if sum(c) <= most], dtype=float)
    ends = np.array([[0, 0, 0], [1, 0, 0], [0, 1, rows.num_mtp], [1, 1, rows.num_mtp]], dtype=float)
    if rows.group.schedule not in FOLDED:
        ends = ends[:3]
    return np.concatenate([np.concatenate([layers, np.tile(e, (len(layers), 1))], axis=1) for e in ends])


def _least_params(rows: KindRows) -> float:
    """Pigeonhole: some rank holds the mean, and of each kind a whole number of layers, rounded up."""
    pp, k = rows.group.pp, rows.num_kinds
    each = rows.params.sum(axis=0)[:, 0]
    mean = rows.copies * (rows.layers @ each[:k] + each[k] + each[k + 1] + rows.num_mtp * each[k + 2]) / pp
    return max(float(mean), *(float(-(-rows.copies * int(rows.layers[i]) // pp) * each[i]) for i in rows.used))


def rank_params(problem: Problem, strategy: Strategy) -> float:
    """Parameters of the fullest rank of one strategy with its split."""
    from shardwise.costmodel.splits import rank_counts

    (_, group), *_ = groups(problem, Strategies.of([strategy]))
    counts = rank_counts(problem, strategy.pp, strategy.vpp, strategy.schedule, strategy.layers_per_stage)
    return float((counts @ kind_rows(group).params.sum(axis=0)[:, 0]).max())

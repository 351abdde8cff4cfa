"""What a step costs outside the pipeline, by what the fullest rank may hold.

Data parallel traffic and the optimizer go with the rank that has most parameters. Which loads a rank can have is a
short list: whole numbers of layers of each kind, with or without the embedding or the head, within the time that an
answer under the incumbent leaves. The least cost over that list bounds every split.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.boundary import p2p_s
from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.outside import Totals
from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.schedule import FOLDED, others_divisor
from shardwise.costmodel.step import Group, gradient_times_each, gradients_exposed, hides_steadily, tied_embedding_s
from shardwise.costmodel.strategy import Strategies, Strategy

from .bounds import Stage, apart, fill_weight, most_layers, slowest_rank_s, summed
from .cuts import running_counts
from .rows import KindRows, kind_rows

_MOST = 20_000
"""Compositions listed at most; with more the bound is left as it is."""

_PAIRED = 1_000
"""Compositions of which every pair is looked at, at most."""

_CELLS = 1 << 20
"""Array cells of one (load, load, strategy) table, at most."""

_ONE_STRETCH = frozenset({"gpipe", "1f1b", "zb-h1"})
"""Schedules whose ranks hold consecutive layers."""


@dataclass(frozen=True, slots=True)
class Compositions:
    """Loads that a rank of one strategy may have, ascending by parameters ``[c]``."""

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


@dataclass(frozen=True, slots=True)
class _Rests:
    """Loads ``c`` of the fullest rank of strategies ``n``, arrays ``[c, n]``; infinite where a load takes too long."""

    params: Array
    rest_s: Array
    """As in ``Compositions``, of this load alone."""
    anyway_s: Array
    """The least seconds outside the pipeline, whatever that takes."""
    possible: NDArray[np.bool_]
    """Whether the fullest rank of a split can be as empty as that."""
    least_params: Array
    """``[n]``"""


def compositions(group: Group, pipeline_s: float, longest_s: float, incumbent_s: float) -> Compositions | None:
    """The possible loads of the ranks of a group's one strategy; None where there are too many to list.

    Its pipeline takes ``pipeline_s`` at least, its slowest rank ``longest_s`` at most. That least pipeline and
    ``rest_s`` together bound the step: longer pipelines hide more traffic, but less than they cost.
    """
    rests = _rests(kind_rows(group), np.array([pipeline_s]), np.array([longest_s]), incumbent_s)
    if rests is None:
        return None
    order = np.argsort(rests.params[:, 0], kind="stable")
    # From here upwards: the least of what follows.
    below = np.minimum.accumulate(rests.rest_s[order, 0][::-1])[::-1]
    anyway = rests.anyway_s[rests.possible].min(initial=math.inf)
    return Compositions(rests.params[order, 0], below, float(rests.least_params[0]), float(anyway))


def least_rests_s(rows: KindRows, pipeline_s: Array, longest_s: Array, incumbent_s: float) -> Array:
    """Seconds outside the pipeline beside the least one, for the strategies of some rows, ``[n]``, as ``rest_s`` above.

    0 where there are too many loads to list. Either all strategies recompute layers in full or none does.
    """
    n = len(pipeline_s)
    counts = _loads(rows, longest_s)
    size = n if counts is None else max(1, _CELLS // len(counts) ** 2)
    out = np.zeros(n)
    for start in range(0, n, size):
        at = np.arange(start, min(n, start + size))
        rests = _rests(rows.take(at), pipeline_s[at], longest_s[at], incumbent_s)
        if rests is not None:
            out[at] = np.where(rests.possible, rests.rest_s, np.inf).min(axis=0)
    return out


def _rests(rows: KindRows, pipeline_s: Array, longest_s: Array, incumbent_s: float) -> _Rests | None:
    counts = _loads(rows, longest_s)
    if counts is None:
        return None
    least_params = _least_params(rows)
    every, counts = counts, counts[(counts @ rows.params.sum(axis=0) >= least_params * (1.0 - 1e-12)).any(axis=1)]
    if not len(counts):
        return None
    group, seconds = rows.group, counts @ rows.time
    dense, expert = counts @ rows.params[0], counts @ rows.params[1]
    column = np.tile(np.arange(seconds.shape[1]), len(counts))
    many = rows.take(column)
    times = gradient_times_each(many.group, dense.ravel(), expert.ravel())
    rest = Totals(
        dense.ravel(), expert.ravel(), p2p_s(group)[column], times, tied_embedding_s(group)[column]
    )  # fmt: skip
    # Turns and the recomputation of other ranks lengthen a pipeline too: its slowest rank may be shorter than it paces.
    least = slowest_rank_s(rows)
    linear = others_divisor(group.schedule, group.vpp) is not None
    costs = hides_steadily(group) & (group.strategies.num_microbatches > fill_weight(group))
    sure = not rows.again.any() or bool(costs.all())
    if linear and sure and len(counts) <= _PAIRED:
        outside = apart(many, least[column], rest)[1].reshape(seconds.shape)
        each = {phase: x.reshape(seconds.shape) for phase, x in times.items()}
        rest_s, anyway = (outside + x for x in _beside_each_s(rows, counts, every, least, longest_s, pipeline_s, each))
    else:
        # A split with this load has no quicker slowest rank.
        shares = [x[column] for x in _shares(rows, every, least, longest_s)]
        slowest = np.maximum(least, seconds).ravel()
        stage = Stage.of(many, slowest, rest, incumbent_s, pipeline_s[column], (shares[0], shares[1]))
        rest_s = (stage.pipeline_s + stage.rest_s).reshape(seconds.shape) - pipeline_s
        anyway = stage.least_s.reshape(seconds.shape)
    fine = _within(seconds, longest_s)
    params = dense + expert
    return _Rests(
        params, np.where(fine, rest_s, np.inf), np.where(fine, anyway, np.inf),
        params >= least_params * (1.0 - 1e-12), least_params,
    )  # fmt: skip


def _within(seconds: Array, longest_s: Array) -> NDArray[np.bool_]:
    return np.asarray(seconds <= longest_s * (1.0 + 1e-9))


def _beside_each_s(
    rows: KindRows,
    counts: Array,
    every: Array,
    least_s: Array,
    longest_s: Array,
    pipeline_s: Array,
    times: dict[str, Array],
) -> tuple[Array, Array]:
    """Exposed traffic of each load, with what its split's slowest rank costs over the least pipeline and without.

    The least of either, ``[c, n]`` each. That rank has one of ``every`` load and is no quicker. The bubble is the other
    ranks' passes, so the slowest rank's seconds give the pipeline. It may recompute layers while that costs nothing and
    one more, or as many as an answer allows; between them recomputation costs more than it hides.
    """
    order = np.argsort(every @ rows.time, axis=0, kind="stable")
    alone, forward = (np.take_along_axis(x, order, axis=0) for x in (every @ rows.time, every @ rows.forward))
    held = _held(rows, every)[order]
    able = _within(alone, longest_s)
    fill, m = fill_weight(rows.group), rows.group.strategies.num_microbatches
    whole, pace = summed(rows, rows.time), alone
    if rows.again.any():
        each = np.take_along_axis(every @ rows.again, order, axis=0) / np.maximum(1.0, held)
        free, most = (
            np.floor(_share(limit - alone, each) + 1e-9)
            for limit in ((pipeline_s - fill * whole) / (m - fill), longest_s)
        )
        pace = np.concatenate([alone + each * np.clip(number, 0.0, held) for number in (free, free + 1.0, most)])
        forward, able = np.tile(forward, (3, 1)), np.tile(able, (3, 1))
    able &= pace >= least_s * (1.0 - 1e-9)
    some = np.flatnonzero(able.any(axis=1))
    pace, forward, able = pace[some], forward[some], able[some]
    largest = np.maximum.accumulate(held, axis=0)
    as_slow = [np.searchsorted(a, p * (1.0 + 1e-9), side="right") - 1 for a, p in zip(alone.T, pace.T, strict=True)]
    buckets = np.maximum(1.0, np.take_along_axis(largest, np.stack(as_slow, axis=1), axis=0))
    more = np.maximum(0.0, m * pace + fill * np.maximum(0.0, whole - pace) - pipeline_s)
    unhidden = {phase: x[:, None] for phase, x in times.items()}
    exposed = sum(gradients_exposed(rows.group, forward[None], (pace - forward)[None], unhidden, buckets).values())
    slower = pace[None] >= (counts @ rows.time)[:, None] * (1.0 - 1e-9)
    value = np.where(able & slower, exposed, np.inf)
    return (value + more).min(axis=1, initial=np.inf), value.min(axis=1, initial=np.inf)


def _shares(rows: KindRows, counts: Array, least_s: Array, longest_s: Array) -> tuple[Array, Array]:
    """The largest parts of its time that forward and backward are on a rank of ``least_s`` seconds or more, ``[n]``."""
    seconds = counts @ rows.time
    layers = np.maximum(1.0, _held(rows, counts))[:, None]
    each = (counts @ rows.again) / layers  # a rank recomputes a whole number of its layers, each the mean of them
    most = np.floor(_share(longest_s - seconds, each) + 1e-9)  # without a limit all of them
    repeated = each * np.clip(most, 0.0, layers)
    slow = (seconds + repeated >= least_s * (1.0 - 1e-9)) & _within(seconds, longest_s)
    forward = _share(counts @ rows.forward, np.maximum(seconds, least_s * (1.0 - 1e-9)))
    backward = _share(counts @ (rows.backward + rows.weight) + repeated, seconds + repeated)
    none = ~slow.any(axis=0)
    forward, backward = (np.where(none, 1.0, np.where(slow, x, 0.0).max(axis=0)) for x in (forward, backward))
    return forward, backward


def _share(part: Array, whole: Array) -> Array:
    """``part / whole``, zero where the whole is none: kernels hidden behind the host's launches take no time."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0.0)


def _held(rows: KindRows, counts: Array) -> Array:
    """Layers of each load, multi-token prediction included."""
    return np.asarray(counts[:, : rows.num_kinds].sum(axis=1) + counts[:, rows.num_kinds + 2])


def _loads(rows: KindRows, longest_s: Array) -> Array | None:
    """Every load within some strategy's limit: layers of each kind, then embedding, head, MTP: ``[c, kind + 3]``.

    None where there are none, or too many.
    """
    most = int(most_layers(rows, longest_s).max())
    counts = _stretches(rows, most) if rows.group.schedule in _ONE_STRETCH else _counts(rows, most)
    if counts is None:
        return None
    within = _within(counts @ rows.time, longest_s).any(axis=1)
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


def _least_params(rows: KindRows) -> Array:
    """Pigeonhole: some rank holds the mean, and of each kind a whole number of layers, rounded up, ``[n]``."""
    pp, each = rows.group.pp, rows.params.sum(axis=0)
    whole = [float(-(-rows.copies * int(rows.layers[i]) // pp)) * each[i] for i in rows.used]
    return np.asarray(np.max([summed(rows, each) / pp, *whole], axis=0))


def rank_params(problem: Problem, strategy: Strategy) -> float:
    """Parameters of the fullest rank of one strategy with its split."""
    from shardwise.costmodel.splits import rank_counts

    (_, group), *_ = groups(problem, Strategies.of([strategy]))
    counts = rank_counts(problem, strategy.pp, strategy.vpp, strategy.schedule, strategy.layers_per_stage)
    return float((counts @ kind_rows(group).params.sum(axis=0)[:, 0]).max())

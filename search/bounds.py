"""A lower bound on a strategy's step over every layer split and every number of recomputed layers.

``evaluate`` bounds a step by perfectly balanced stages. Layers are whole, memory is finite: on some rank the slowest
stage holds a whole number of layers that fit. For one kind of layer alone (leaving the others out can only help), the
time of ``x`` layers on rank ``r``, with as many of them recomputed as memory demands, is known; the slowest stage of
the best split is then the N-th smallest of all those times, because every layer must be somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.least_bubble import least_bubble_s, paced_by_passes, pass_shares, steady_wait_s
from shardwise.costmodel.least_traffic import least_totals as mixed_totals
from shardwise.costmodel.outside import Totals, totals
from shardwise.costmodel.problem import Array, Ints, Problem
from shardwise.costmodel.schedule import others_divisor
from shardwise.costmodel.step import (
    FULL,
    Group,
    Load,
    gradients_exposed,
    hides_steadily,
    parameters,
    step_s,
)
from shardwise.costmodel.strategy import Strategies

from .rows import KindRows, kind_rows

_TIGHTENINGS = 4
"""Rounds of bounding the longest stage by the traffic it cannot hide, and that traffic by the longest stage."""

_BOUNDLESS = 1e30
"""Bytes that nothing exceeds, and that sums may be taken of."""

_CELLS = 1 << 22
"""Array cells of one (strategy, rank, layers) table, at most."""


@dataclass(frozen=True, slots=True)
class SplitBounds:
    """Bounds over every split of ``n`` strategies, arrays ``[n]``: ``bound_s >= pipeline_s + rest_s``.

    ``pipeline_s`` is the least time in the pipeline (inf where no split fits), ``rest_s`` the least time outside it
    of any answer under the incumbent, whose slowest stage takes ``longest_s`` at most. No split has both: a longer
    pipeline hides more, which ``bound_s`` weighs. Where the bubble depends on the passes of the slowest rank, what
    filling and draining wait for messages counts as time in the pipeline.
    """

    bound_s: Array
    pipeline_s: Array
    rest_s: Array
    longest_s: Array

    def take(self, where: Ints) -> SplitBounds:
        """The rows that an index array selects."""
        return SplitBounds(self.bound_s[where], self.pipeline_s[where], self.rest_s[where], self.longest_s[where])


def split_bounds(
    problem: Problem,
    strategies: Strategies,
    floor_s: Array,
    incumbent_s: float,
    grouped: Iterable[tuple[Ints, Group]] | None = None,
    pipeline_s: Array | None = None,
) -> SplitBounds:
    """Bounds over every layer split and number of recomputed layers; ``floor_s`` are bounds already known.

    Strategies without a pipeline keep their floor. ``grouped``: ``groups`` of the strategies where they are at hand.
    ``pipeline_s``: what their pipelines are known to take at least.
    """
    out = SplitBounds(floor_s.copy(), *(np.zeros(len(floor_s)) for _ in range(3)))
    for where, group in grouped or groups(problem, strategies):
        if group.pp == 1:
            continue
        size = max(1, _CELLS // (group.pp * _most_layers(problem.model.num_layers, group.pp)))
        for start in range(0, len(where), size):
            at = where[start : start + size]
            few = replace(group, strategies=strategies.take(at), key=group.key[start : start + size])
            rows = kind_rows(few)
            slowest = slowest_stage_s(rows)
            fits = np.isfinite(slowest)
            known = np.zeros(len(at)) if pipeline_s is None else pipeline_s[at]
            fits &= np.isfinite(known)
            whole = Stage.of(rows, np.where(fits, slowest, 0.0), least_totals(rows), incumbent_s, known)
            out.bound_s[at] = np.maximum(floor_s[at], np.where(fits, whole.pipeline_s + whole.rest_s, np.inf))
            out.pipeline_s[at] = np.where(fits, whole.pipeline_s, np.inf)
            out.rest_s[at], out.longest_s[at] = whole.least_s, whole.longest_s
            # One micro-batch has no steady state that a slowest stage would pace: only what is known already holds.
            lone = at[(few.strategies.num_microbatches == 1) & fits]
            out.bound_s[lone], out.longest_s[lone] = floor_s[lone], np.inf
            out.pipeline_s[lone] = out.rest_s[lone] = 0.0
    return out


def room_for_layers(problem: Problem, strategies: Strategies) -> NDArray[np.bool_]:
    """Whether the ranks have room for all layers of each kind, each recomputed where its strategy allows it, ``[n]``.

    Necessary for any split to fit, not sufficient.
    """
    out = np.ones(len(strategies), dtype=np.bool_)
    for where, group in groups(problem, strategies):
        rows = kind_rows(group)
        _, held = _ends(rows, group.pp)
        scale = (1.0 + rows.fragmentation) * rows.flight.T
        room = rows.capacity - rows.fixed[:, None] - held
        full = group.strategies.recompute == FULL
        for kind in rows.used:
            kept = np.where(full, np.minimum(rows.saved[kind], rows.boundary[kind]), rows.saved[kind])
            scratch = (1.0 + rows.fragmentation) * rows.workspace[kind][:, None]
            each = rows.state[kind][:, None] + scale * kept[:, None]
            most = np.floor(np.maximum(0.0, room - scratch) / each + 1e-9)
            out[where] &= (room >= 0.0).all(axis=1) & (most.sum(axis=1) >= rows.copies * rows.layers[kind])
    return out


def slowest_stage_s(rows: KindRows) -> Array:
    """Seconds per micro-batch that pace every split at least, ``[n]``; inf if nothing fits.

    Those of the slowest rank or, under an interleaved schedule, of all turns together.
    """
    best = slowest_rank_s(rows)
    if rows.group.schedule == "interleaved":
        for kind in rows.used:
            best = np.maximum(best, _turns_s(rows, kind))
    return np.asarray(best)


def slowest_rank_s(rows: KindRows) -> Array:
    """Seconds per micro-batch that the slowest rank of every split needs at least, ``[n]``; inf if nothing fits."""
    load = rows.time[: rows.num_kinds]
    mean = rows.copies * (rows.layers @ load + rows.first_s + rows.last_s) / rows.group.pp
    best = np.maximum(mean, _ends(rows, rows.group.pp)[0].max(axis=1))
    best = np.maximum(best, _mean_with_memory_s(rows))
    used = rows.used
    for kinds in [[k] for k in used] + ([used] if len(used) > 1 else []):
        best = np.maximum(best, _slowest_of(rows, kinds))
    return np.asarray(best)


def _mean_with_memory_s(rows: KindRows) -> Array:
    """The mean load with the recomputation that memory forces on all ranks together, ``[n]``; inf if nothing fits.

    A rank that must recompute trades bytes for seconds at its best kind's price at least. Weighed by those prices, what
    all layers need and all ranks have are sums; without recomputation the sums alone must fit.
    """
    pp, used = rows.group.pp, rows.used
    seconds, held = _ends(rows, pp)
    lost = (1.0 + rows.fragmentation) * rows.flight.T
    room = rows.capacity - rows.fixed[:, None] - held
    fits = (room >= 0.0).all(axis=1)
    # A rank at an end of the model may have no layer, and then no workspace for one.
    room = np.maximum(0.0, room - (1.0 + rows.fragmentation) * rows.workspace[used].min(0)[:, None])
    count = rows.copies * rows.layers[used].astype(float)
    full = rows.group.strategies.recompute == FULL
    kept = np.where(full, np.minimum(rows.saved[used], rows.boundary[used]), rows.saved[used])
    for weight in (np.ones_like(room), 1.0 / lost):
        need = sum(
            n * (weight * (rows.state[k][:, None] + lost * each[:, None])).min(axis=1)
            for n, k, each in zip(count, used, kept, strict=True)
        )
        fits &= need <= (weight * room).sum(axis=1) * (1.0 + 1e-9)
    out = np.where(fits, 0.0, np.inf)
    if not full.any():
        return out
    with np.errstate(divide="ignore", invalid="ignore"):
        price = (rows.again[used] / np.maximum(0.0, rows.saved[used] - rows.boundary[used])).min(axis=0)
    price = np.where(full & np.isfinite(price), price, 0.0)[:, None] / lost
    whole = seconds.sum(axis=1) - (price * room).sum(axis=1)
    for n, k in zip(count, used, strict=True):
        each = rows.state[k][:, None] + lost * rows.saved[k][:, None]
        whole = whole + n * (rows.time[k][:, None] + price * each).min(axis=1)
    return np.asarray(np.maximum(out, whole / pp))


def _turns_s(rows: KindRows, kind: int) -> Array:
    """Seconds that the turns of interleaved ranks take together at least, counting one kind of layer, ``[n]``.

    A turn is as long as its slowest chunk; one of ``M`` seconds has room for ``pp · floor(M / t)`` layers of ``t``
    seconds. The first turn also holds the embedding and the last one the head, on one of their chunks each. Beyond
    that, every ``t`` seconds more, in whatever turn, make room for ``pp`` layers.
    """
    pp, each = rows.group.pp, rows.time[kind]
    shortest = np.full(len(each), np.inf)
    for first, room in _end_turns(rows.first_s, each, pp):
        for last, more in _end_turns(rows.last_s, each, pp):
            missing = np.maximum(0.0, np.ceil((float(rows.layers[kind]) - room - more) / pp - 1e-9))
            shortest = np.minimum(shortest, first + last + missing * each)
    return shortest


def _end_turns(end: Array, each: Array, pp: int) -> Iterator[tuple[Array, Array]]:
    """Lengths worth giving to a turn with something at its end, and the layers each has room for."""
    lengths = (end, np.maximum(each, np.ceil(end / each - 1e-9) * each), end + each)
    for length in lengths:
        beside = np.floor(length / each + 1e-9)
        yield length, (pp - 1) * beside + np.floor((length - end) / each + 1e-9)


def _slowest_of(rows: KindRows, kinds: list[int]) -> Array:
    """The same, counting only the layers of ``kinds``, each as cheap as the cheapest of them."""
    pp, count = rows.group.pp, rows.copies * int(rows.layers[kinds].sum())
    most = min(count // rows.copies, _most_layers(count, pp))
    seconds = layer_times_s(rows, kinds, most)
    flat = seconds.reshape(seconds.shape[0], -1)
    if flat.shape[1] < count:
        return np.full(len(flat), np.inf)
    slowest = np.partition(flat, count - 1, axis=1)[:, count - 1]
    if most * rows.copies < count:
        # A rank that could take more layers than the table has: the argument does not hold, so claim nothing.
        last = seconds[:, :, -1]
        full = (np.isfinite(last) & (last <= slowest[:, None])).any(axis=1)
        slowest = np.where(full, 0.0, slowest)
    return np.asarray(slowest)


def _most_layers(count: int, pp: int) -> int:
    return min(count, 2 * -(-count // pp) + 4)


def layer_times_s(rows: KindRows, kinds: list[int], most: int) -> Array:
    """Seconds of 1 … ``most`` layers on each rank with the least recomputation that fits: ``[n, pp, most]``."""
    pp, n = rows.group.pp, len(rows.fixed)
    x = np.arange(1, most + 1, dtype=float)[None, None, :]
    extra_s, extra_bytes = _ends(rows, pp)
    scale = (1.0 + rows.fragmentation) * rows.flight.T  # [n, pp]
    state, saved, seconds, repeat, scratch = (
        table[kinds].min(axis=0) for table in (rows.state, rows.saved, rows.time, rows.again, rows.workspace)
    )
    room = rows.capacity - rows.fixed[:, None] - extra_bytes - (1.0 + rows.fragmentation) * scratch[:, None]
    over = state[:, None, None] * x + scale[:, :, None] * saved[:, None, None] * x - room[:, :, None]
    dropped = (rows.saved[kinds] - rows.boundary[kinds]).max(axis=0)[:, None] * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        again = np.where(over > 0.0, over / dropped[:, :, None] * (1.0 - 1e-12), 0.0)
    if len(rows.used) == 1 and not rows.num_mtp:
        again = np.ceil(again - 1e-9)  # mixed ranks recompute a share of each kind, which need not be whole
    can = (rows.group.strategies.recompute == FULL)[:, None, None] & (dropped[:, :, None] > 0.0)
    possible = (over <= 0.0) | (can & (again <= x))
    total = extra_s[:, :, None] + seconds[:, None, None] * x + repeat[:, None, None] * np.where(can, again, 0.0)
    return np.where(np.broadcast_to(possible, (n, pp, most)), total, np.inf)


def _ends(rows: KindRows, pp: int) -> tuple[Array, Array]:
    """Seconds and bytes that the ranks with the model's two ends carry besides layers: ``[n, pp]`` each."""
    n, k = len(rows.fixed), rows.num_kinds
    seconds, held = np.zeros((n, pp)), np.zeros((n, pp))
    kept = np.minimum(rows.saved[k + 2], rows.boundary[k + 2]) * rows.num_mtp
    head = rows.state[k + 1] + rows.num_mtp * rows.state[k + 2]
    # Folded schedules have both ends on the first rank, dualpipe on its mirror image too.
    firsts, lasts = {"zb-v": ([0], [0]), "dualpipe": ([0, -1], [0, -1])}.get(rows.group.schedule, ([0], [-1]))
    for rank in firsts:
        seconds[:, rank] += rows.first_s
        held[:, rank] += rows.state[k]
    for rank in lasts:
        seconds[:, rank] += rows.last_s
        held[:, rank] += head + (1.0 + rows.fragmentation) * (rows.workspace[k + 1] + rows.flight[rank] * kept)
    return seconds, held


@dataclass(frozen=True, slots=True)
class Stage:
    """The cost model's own step for a pipeline whose slowest rank and summed work are given, arrays ``[n]``.

    ``pipeline_s + rest_s`` bounds every step. ``least_s`` is the least time outside the pipeline of any answer under
    the incumbent: ``rest_s`` only goes with the shortest pipeline, whose slowest rank takes ``window_s`` at most.
    """

    pipeline_s: Array
    rest_s: Array
    least_s: Array
    window_s: Array
    longest_s: Array
    outside_s: Array
    """``rest_s`` without data parallel traffic."""

    @classmethod
    def of(
        cls,
        rows: KindRows,
        slowest: Array,
        rest: Totals,
        incumbent_s: float,
        known_s: Array,
        shares: tuple[Array, Array] | None = None,
    ) -> Stage:
        """From the least seconds of the slowest rank; ``rest`` is the traffic outside the pipeline.

        The pipeline takes ``known_s`` at least. What data parallelism hides depends on the slowest rank's passes;
        ``shares`` are the largest parts of its time that forward and backward can be. A slower rank would hide more,
        but never as much as it costs: with more than one micro-batch the seconds come back several times. Where that
        argument fails, the windows are the longest that an answer under the incumbent may have.
        """
        group, m = rows.group, rows.group.strategies.num_microbatches
        fill = fill_weight(group)
        shortest, outside = apart(rows, slowest, rest)
        pipeline = np.maximum(shortest, known_s)
        # What the slowest rank takes at most in a pipeline no longer than that.
        window = slowest + (pipeline - shortest) / np.maximum(m - (fill or 1.0), 1.0 / group.vpp)
        whole = summed(rows, rows.time)
        shares = shares or _largest_shares(rows)
        everything = np.maximum(window, whole + summed(rows, rows.again))
        least, longest = np.zeros(len(m)), everything
        # An answer under the incumbent has m·slowest + fill·(sum - slowest) + outside below it.
        for _ in range(_TIGHTENINGS):
            left = incumbent_s - outside - least - fill * whole
            # With one micro-batch the slowest rank costs no more than any other: it may be as long as it likes.
            limit = np.divide(left, m - fill, out=np.full(len(m), np.inf), where=m > fill)
            longest = np.clip(limit, window, everything)
            least = exposed_s(rows, longest, longest, rest, shares)
        exposed = paced_exposed_s(rows, window, longest, rest, shares)
        return cls(pipeline, outside + exposed, outside + least, window, longest, outside)


def paced_exposed_s(rows: KindRows, window: Array, longest: Array, rest: Totals, shares: tuple[Array, Array]) -> Array:
    """``exposed_s`` beside a pipeline whose slowest rank takes ``window`` s or longer, what that costs counted in."""
    steady = hides_steadily(rows.group, shares[0] + shares[1])
    return exposed_s(rows, np.where(steady, window, longest), longest, rest, shares)


def apart(rows: KindRows, slowest: Array, rest: Totals) -> tuple[Array, Array]:
    """The least time in a pipeline with this slowest rank, and outside it but for data parallel traffic, ``[n]``."""
    group, pp = rows.group, rows.group.pp
    m = group.strategies.num_microbatches
    passes = (summed(rows, rows.forward), summed(rows, rows.backward), summed(rows, rows.weight))
    whole = passes[0] + passes[1] + passes[2]
    each = np.stack([slowest, np.maximum(0.0, whole - slowest) / (pp - 1)]) / whole
    forward, backward, weight = (each * p for p in passes)
    two = replace(
        group, counts=np.zeros((2, group.counts.shape[1])), ranks=np.array([0, pp - 1]),
        repeats=np.array([1.0, pp - 1.0]),
    )  # fmt: skip
    parts, _ = step_s(two, Load(forward, backward, weight, np.zeros((2, len(m))), np.zeros(len(m))), rest)
    pipeline = parts.pop("compute") + parts.pop("recompute") + parts.pop("pp_bubble")
    if paced_by_passes(group):
        pipeline = m * slowest + least_bubble_s(group, slowest, passes, pass_shares(group), rest.p2p)
        parts["pp_comm"] = steady_wait_s(group, rest.p2p)
        del parts["host_per_microbatch"]
    parts["dp_comm"] = rest.tied
    return np.asarray(pipeline), np.asarray(sum(parts.values()))


def repeated_pipeline_s(rows: KindRows, turns_s: float = 0.0) -> float:
    """The least pipeline of one strategy that recomputes a layer or more in every chunk, memory left aside.

    ``turns_s``: the least pipeline of its turns without recomputation. 0 where the bubble is more than the other ranks'
    passes, or the slowest rank may be one of the model's ends without a layer.
    """
    group, m = rows.group, float(rows.group.strategies.num_microbatches[0])
    roomy = replace(rows, again=np.zeros_like(rows.again), capacity=_BOUNDLESS)
    slowest = float(slowest_stage_s(roomy)[0])
    if paced_by_passes(group) or slowest <= max(float(rows.first_s[0]), float(rows.last_s[0])):
        return 0.0
    fill, whole = fill_weight(group), float(summed(rows, rows.time)[0])
    plain = max(turns_s, (m - fill) * slowest + fill * whole)
    # The head alone may pace the last turn of interleaved chunks, and the ends of the model may hold no layer.
    chunks = max(1, group.vpp - 1)
    return plain + (m - fill + fill * (group.pp - 2)) * chunks * float(rows.again[rows.used, 0].min())


def fill_weight(group: Group) -> float:
    """Weight of the other ranks' work beside the slowest one's in the pipeline's time (0: none is sure)."""
    divisor = others_divisor(group.schedule, group.vpp)
    return 1.0 / divisor if divisor else 0.0


def _largest_shares(rows: KindRows) -> tuple[Array, Array]:
    """The largest parts of a rank's time that forward and backward can be, whatever it holds, ``[n]`` each."""
    k = rows.num_kinds
    carried = [*rows.used, k + 1, *([k + 2] if rows.num_mtp else [])]
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = (rows.forward[carried] / rows.time[carried]).max(axis=0)
        backward = ((rows.backward + rows.weight + rows.again)[carried] / (rows.time + rows.again)[carried]).max(axis=0)
    return np.asarray(forward), np.asarray(backward)


def summed(rows: KindRows, table: Array) -> Array:
    """The sum over all ranks of a table of the rows, nothing recomputed in full, ``[n]``."""
    k = rows.num_kinds
    return np.asarray(rows.copies * (rows.layers @ table[:k] + table[k] + table[k + 1] + rows.num_mtp * table[k + 2]))


def least_totals(rows: KindRows) -> Totals:
    """Traffic for the parameters that the fullest rank of any split holds at least."""
    group = rows.group
    dense, expert = parameters(group)
    mean = [np.asarray(group.repeats @ p / group.pp) for p in (dense, expert)]
    most = totals(group, dense, expert)
    if rows.params[1].any() or len(rows.used) > 1:
        return mixed_totals(group, most, (mean[0], mean[1]))
    # Dense models of one kind: some rank has a whole number of layers, rounded up.
    kind = rows.used[0]
    held = np.maximum(mean[0], -(-rows.copies * rows.layers[kind] // group.pp) * rows.params[0, kind])
    return totals(group, held[None], np.zeros_like(held)[None])


def exposed_s(rows: KindRows, window: Array, longest: Array, rest: Totals, shares: tuple[Array, Array]) -> Array:
    """Data parallel traffic that a rank of ``window`` seconds cannot hide, with the most buckets up to ``longest``."""
    return exposed_beside_s(rows, window * shares[0], window * shares[1], longest, rest)


def exposed_beside_s(rows: KindRows, forward: Array, backward: Array, longest: Array, rest: Totals) -> Array:
    """Data parallel traffic that passes of these seconds cannot hide, with the most buckets up to ``longest``."""
    buckets = np.maximum(1.0, most_layers(rows, longest) + rows.num_mtp)
    return np.asarray(sum(gradients_exposed(rows.group, forward, backward, rest.gradients, buckets).values()))


def most_layers(rows: KindRows, longest: Array) -> Array:
    """Layers that a rank can hold within ``longest`` seconds, ``[n]``."""
    least = rows.time[rows.used].min(axis=0)
    return np.asarray(np.floor(np.minimum(longest / least, float(rows.layers.sum())) + 1e-9))

"""A lower bound on a strategy's step over every layer split and every number of recomputed layers.

``evaluate`` bounds a step by perfectly balanced stages. Layers are whole, memory is finite: on some rank the slowest
stage holds a whole number of layers that fit. For one kind of layer alone (leaving the others out can only help), the
time of ``x`` layers on rank ``r``, with as many of them recomputed as memory demands, is known; the slowest stage of the
best split is then the N-th smallest of all those times, because every layer must be somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwise.costmodel.evaluate import groups
from shardwise.costmodel.problem import Array, Ints, Problem
from shardwise.costmodel.step import FULL, Load, Totals, dp_exposed_s, parameters, step_s, totals
from shardwise.costmodel.strategy import Strategies

from .rows import KindRows, kind_rows

LINEAR_SCHEDULES = frozenset({"gpipe", "1f1b", "interleaved", "zb-h1"})
"""Schedules whose step depends on a split through the slowest rank's work and the sum over ranks."""

_CELLS = 1 << 22
"""Array cells of one (strategy, rank, layers) table, at most."""


@dataclass(frozen=True, slots=True)
class SplitBounds:
    """For ``n`` strategies: ``bound_s`` no split undercuts (inf where none fits), ``rest_s`` of it outside the pipeline.

    ``rest_s`` holds for every split under the incumbent, so ``incumbent - rest_s`` is what the pipeline may take.
    """

    bound_s: Array
    rest_s: Array


def split_bounds(problem: Problem, strategies: Strategies, floor_s: Array, incumbent_s: float) -> SplitBounds:
    """Bounds over every layer split and number of recomputed layers; ``floor_s`` are bounds already known.

    Only bounds under ``incumbent_s`` need to be exact: how many layers a rank could hold without exceeding it is part of
    the argument. Strategies without a pipeline, or with a schedule that is not linear, keep their floor.
    """
    out, outside = floor_s.copy(), np.zeros(len(floor_s))
    for where, group in groups(problem, strategies):
        if group.pp == 1 or group.schedule not in LINEAR_SCHEDULES:
            continue
        size = max(1, _CELLS // (group.pp * _most_layers(problem.model.num_layers, group.pp)))
        for start in range(0, len(where), size):
            part = slice(start, start + size)
            few = replace(group, strategies=group.strategies.take(np.arange(len(where))[part]), key=group.key[part])
            rows = kind_rows(few)
            slowest = slowest_stage_s(rows)
            bound, rest = _step_bound(rows, slowest, incumbent_s)
            out[where[part]] = np.maximum(out[where[part]], np.where(np.isfinite(slowest), bound, np.inf))
            outside[where[part]] = rest
    return SplitBounds(out, outside)


def slowest_stage_s(rows: KindRows) -> Array:
    """Seconds per micro-batch that the slowest rank of every split needs at least, ``[n]``; inf if nothing fits."""
    load = rows.time[: rows.num_kinds]
    mean = (rows.layers @ load + rows.first_s + rows.last_s) / rows.group.pp
    best = np.maximum(mean, np.maximum(rows.first_s, rows.last_s))
    used = rows.used
    for kinds in [[k] for k in used] + ([used] if len(used) > 1 else []):
        best = np.maximum(best, _slowest_of(rows, kinds))
    return best


def _slowest_of(rows: KindRows, kinds: list[int]) -> Array:
    """The same, counting only the layers of ``kinds``, each as cheap as the cheapest of them."""
    pp, count = rows.group.pp, int(rows.layers[kinds].sum())
    most = min(count, _most_layers(count, pp))
    seconds = layer_times_s(rows, kinds, most)
    flat = seconds.reshape(seconds.shape[0], -1)
    if flat.shape[1] < count:
        return np.full(len(flat), np.inf)
    slowest = np.partition(flat, count - 1, axis=1)[:, count - 1]
    if most < count:
        # A rank that could take more layers than the table has: the argument does not hold, so claim nothing.
        full = (seconds[:, :, -1] <= slowest[:, None]).any(axis=1)
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
    low = lambda table: table[kinds].min(axis=0)  # noqa: E731
    state, saved, seconds = low(rows.state), low(rows.saved), low(rows.time)
    room = rows.capacity - rows.fixed[:, None] - extra_bytes - (1.0 + rows.fragmentation) * low(rows.workspace)[:, None]
    over = state[:, None, None] * x + scale[:, :, None] * saved[:, None, None] * x - room[:, :, None]
    dropped = (rows.saved[kinds] - rows.boundary[kinds]).max(axis=0)[:, None] * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        again = np.where(over > 0.0, over / dropped[:, :, None] * (1.0 - 1e-12), 0.0)
    if len(rows.used) == 1 and not rows.num_mtp:
        again = np.ceil(again - 1e-9)  # mixed ranks recompute a share of each kind, which need not be whole
    can = (rows.group.strategies.recompute == FULL)[:, None, None] & (dropped[:, :, None] > 0.0)
    possible = (over <= 0.0) | (can & (again <= x))
    total = extra_s[:, :, None] + seconds[:, None, None] * x + low(rows.again)[:, None, None] * np.where(can, again, 0.0)
    return np.where(np.broadcast_to(possible, (n, pp, most)), total, np.inf)


def _ends(rows: KindRows, pp: int) -> tuple[Array, Array]:
    """Seconds and bytes that the first and the last rank carry besides layers: ``[n, pp]`` each."""
    n, k = len(rows.fixed), rows.num_kinds
    seconds, held = np.zeros((n, pp)), np.zeros((n, pp))
    seconds[:, 0] += rows.first_s
    seconds[:, -1] += rows.last_s
    held[:, 0] += rows.state[k]
    held[:, -1] += rows.state[k + 1] + rows.num_mtp * rows.state[k + 2]
    kept = np.minimum(rows.saved[k + 2], rows.boundary[k + 2]) * rows.num_mtp
    held[:, -1] += (1.0 + rows.fragmentation) * (rows.workspace[k + 1] + rows.flight[-1] * kept)
    return seconds, held


def _step_bound(rows: KindRows, slowest: Array, incumbent_s: float) -> tuple[Array, Array]:
    """The cost model's own step for a pipeline whose slowest rank takes ``slowest`` and whose work adds up, ``[n]``.

    Also what of it lies outside the pipeline at the longest stage an answer under the incumbent may have.
    """
    group, pp = rows.group, rows.group.pp
    m = group.strategies.num_microbatches
    slowest = np.where(np.isfinite(slowest), slowest, 0.0)
    passes = [_summed(rows, table) for table in (rows.forward, rows.backward, rows.weight)]
    whole = sum(passes)
    share = [np.stack([slowest, np.maximum(0.0, whole - slowest) / (pp - 1)]) * (p / whole) for p in passes]
    load = Load(*share, np.zeros((2, len(m))))
    counts = np.zeros((2, group.counts.shape[1]))
    two = replace(group, counts=counts, ranks=np.array([0, pp - 1]), repeats=np.array([1.0, pp - 1.0]))
    rest = _least_totals(rows)
    parts, _ = step_s(two, load, rest)
    pipeline = parts.pop("compute") + parts.pop("recompute") + parts.pop("pp_bubble")
    parts["dp_comm"] = rest.tied
    outside = sum(parts.values())
    longest = np.maximum(slowest, incumbent_s / m)
    tight, loose = (_exposed(rows, stage, rest, incumbent_s) for stage in (slowest, longest))
    return np.asarray(pipeline + outside + tight), np.asarray(outside + loose)


def _summed(rows: KindRows, table: Array) -> Array:
    k = rows.num_kinds
    return np.asarray(rows.layers @ table[:k] + table[k] + table[k + 1] + rows.num_mtp * table[k + 2])


def _least_totals(rows: KindRows) -> Totals:
    """Traffic for the parameters that the fullest rank of any split holds at least."""
    group = rows.group
    dense, expert = parameters(group)
    mean = [np.asarray(group.repeats @ p / group.pp) for p in (dense, expert)]
    most = totals(group, dense, expert)
    if rows.params[1].any() or len(rows.used) > 1:
        return most.scaled(*mean)
    # Dense models of one kind: some rank has a whole number of layers, rounded up.
    kind = rows.used[0]
    held = np.maximum(mean[0], -(-rows.layers[kind] // group.pp) * rows.params[0, kind])
    return totals(group, held[None], np.zeros_like(held)[None])


def _exposed(rows: KindRows, slowest: Array, rest: Totals, incumbent_s: float) -> Array:
    """Data parallel traffic under the widest windows and the most buckets that a split under the incumbent can have."""
    group, k = rows.group, rows.num_kinds
    carried = [*rows.used, k + 1, *([k + 2] if rows.num_mtp else [])]
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = (rows.forward[carried] / rows.time[carried]).max(axis=0)
        backward = ((rows.backward + rows.weight + rows.again)[carried] / (rows.time + rows.again)[carried]).max(axis=0)
    windows = Load(
        (slowest * forward)[None], (slowest * backward)[None], np.zeros((1, len(slowest))), np.zeros((1, len(slowest)))
    )
    room = incumbent_s / group.strategies.num_microbatches
    buckets = np.floor(np.minimum(room / rows.time[rows.used].min(axis=0), rows.layers.sum()) + 1e-9) + rows.num_mtp
    out = np.zeros(len(slowest))
    for count in np.unique(buckets):
        at = np.flatnonzero(buckets == count)
        out[at] = _exposed_with(rows, windows, at, rest, max(1.0, float(count)))
    return out


def _exposed_with(rows: KindRows, windows: Load, at: Ints, rest: Totals, buckets: float) -> Array:
    group = rows.group
    counts = np.zeros((1, group.counts.shape[1]))
    counts[0, 0] = buckets
    few = replace(
        group, strategies=group.strategies.take(at), key=group.key[at], counts=counts,
        ranks=np.zeros(1, dtype=np.int64), repeats=np.ones(1),
    )  # fmt: skip
    load = Load(*(getattr(windows, name)[:, at] for name in ("forward", "backward", "weight", "recompute")))
    times = {phase: seconds[at] for phase, seconds in rest.gradients.items()}
    return dp_exposed_s(few, load, np.zeros(len(at), dtype=np.int64), times)

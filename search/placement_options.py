"""What each kind of groups may do in a placement, at what price: the table that the solver chooses from.

An option limits, per level, the spans of the worst group and the load of the busiest uplink, and has the seconds that
the cost model gives for those. Time depends on the loads through the slowest level only, so loads go together: an
option's loads are all those that take no longer than its own slowest one. Options that could not be part of a placement
as good as the best one known, with everything else at its lower bound, are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.exposed import Pool

from .placement_bound import Least, least_seconds, least_shape
from .placement_cost import Groups, Instance

Array = NDArray[np.float64]

MOST_OPTIONS = 4096
"""Options of one kind of groups."""

UNITS = 1_000_000_000
"""Parts of the best known exposed seconds that the solver counts in."""

_MOST_VALUES = 1 << 13


@dataclass(frozen=True, slots=True)
class Option:
    """Limits of spans and load per level and of the busiest node's crossing; seconds per user of the groups."""

    spans: tuple[float, ...]
    load: tuple[float, ...]
    nic: float
    seconds: tuple[float, ...]


Options = dict[int, list[Option]]
"""By entry of ``Instance.groups``."""


def options_for(instance: Instance, indices: Iterable[int], most: float, spans_apart: int = 4) -> Options | None:
    """Options of entries of ``groups`` that could be part of a placement of ``most`` exposed seconds or less.

    From ``spans_apart`` values of a level's spans on, all larger ones are one option at the price of the least. None
    where there are too many.
    """
    least = [least_seconds(instance, index) for index in range(len(instance.groups))]
    out: Options = {}
    for index in indices:
        found = _options_of(instance, index, least, most, spans_apart)
        if found is None:
            return None
        out[index] = found
    return out


Rows = list[tuple[tuple[float, ...], tuple[float, ...], float]]
"""Spans and load per level, busiest node."""


def _options_of(
    instance: Instance, index: int, least: list[tuple[float, ...]], most: float, apart: int
) -> list[Option] | None:
    g, shape = instance.groups[index], least_shape(instance, index)
    inside, levels = instance.fabric.inside, len(instance.fabric.domains) - 1
    spans: list[Ranges] = [
        (tuple(fewest for fewest, _ in s), tuple(most_ for _, most_ in s))
        for s in itertools.product(*(_ranges(_spans(g, shape.spans[inside + level]), apart) for level in range(levels)))
        if all(a >= b for (_, a), (b, _) in itertools.pairwise(s))
    ]
    spans = _promising(instance, index, spans, shape, least, most)
    columns = [_column(instance, index, level, shape, least, most) for level in range(levels)]
    nics = _nics(instance, g, shape)
    loads = _load_sets([column for column in columns if column is not None])
    if None in columns or len(spans) * len(loads) * len(nics) > 128 * MOST_OPTIONS:
        return None
    rows = [(fewest, load, nic) for fewest, _ in spans for load in loads for nic in nics]
    most_spans = [limit for _, limit in spans for _ in loads for _ in nics]
    times = _times(instance, index, rows)
    lowest = [shape.crossing[inside + 1 + level] for level in range(levels)]
    largest = _largest(instance, index)
    for level in range(levels) if g.family != "p2p" and not _alike(instance, index) else ():
        # Where kinds differ in how their tiers compare, all but the largest are held to their least; a tree's tiers
        # compare otherwise with every number of domains, so an all-reduce is, too.
        alone = [(s, tuple(v if k == level else lowest[k] for k, v in enumerate(load)), nic) for s, load, nic in rows]
        low = _times(instance, index, alone)
        exact = largest if "all_reduce" not in _kinds(instance, index) else -1
        times = [t if u == exact else np.minimum(t, low[u]) for u, t in enumerate(times)]
    exposed = _exposed(instance, index, least, times)
    kept = np.flatnonzero(exposed <= most)
    found = [Option(most_spans[at], *rows[at][1:], tuple(float(t[at]) for t in times)) for at in kept]
    found = _undominated(found)
    return found if len(found) <= MOST_OPTIONS else None


Ranges = tuple[tuple[float, ...], tuple[float, ...]]
"""Fewest spans of every level, which give the price, and most, which are allowed."""


def _ranges(values: list[float], most: int) -> list[tuple[float, float]]:
    """Values of spans as ranges: the smallest ones each by itself, all further ones together.

    Spans only add steps of latency; the first one more is what counts.
    """
    alone = values if len(values) <= most else values[: most - 1]
    rest = [(values[most - 1], values[-1])] if len(values) > most else []
    return [*((value, value) for value in alone), *rest]


def _promising(
    instance: Instance,
    index: int,
    spans: list[Ranges],
    shape: Least,
    least: list[tuple[float, ...]],
    most: float,
) -> list[Ranges]:
    """Spans that could be part of a placement as good as the best one if nothing shared an uplink."""
    first = instance.fabric.inside
    loads = tuple(shape.crossing[first + 1 : first + len(instance.fabric.domains)])
    times = _times(instance, index, [(fewest, loads, shape.crossing[first]) for fewest, _ in spans])
    return [s for s, exposed in zip(spans, _exposed(instance, index, least, times), strict=True) if exposed <= most]


def _spans(g: Groups, least: float) -> list[float]:
    """Values that the spans of a level can have."""
    if g.family == "p2p":
        return [span for span in (1.0, 2.0) if span >= least]
    if g.family == "all-to-all":
        return [g.size / c for c in range(g.size, 0, -(g.width or 1)) if g.size / c >= least - 1e-9]
    most = int((g.rows != np.roll(g.rows, -1, axis=1)).sum(axis=1).max())
    return [float(r) for r in range(1, most + 1) if r >= least]


def _nics(instance: Instance, g: Groups, shape: Least) -> list[float]:
    """Values that the busiest node's crossing can have."""
    fabric = instance.fabric
    least = shape.crossing[fabric.inside]
    if not fabric.inside or np.all(fabric.nic == 1.0):
        return [least]
    load = np.ones(1) if g.family == "p2p" else np.unique(g.load)
    values = np.unique(load[:, None] / np.unique(fabric.nic)[None])
    return [float(v) for v in values if v >= least - 1e-12]


def _kinds(instance: Instance, index: int) -> set[str]:
    return {instance.pools[p].collectives[c].collective for p, c in instance.users[index]}


def _alike(instance: Instance, index: int) -> bool:
    """Whether the tiers compare alike for every collective of an entry of ``groups``: the slowest level is the same."""
    tiers = instance.fabric.tiers[instance.fabric.inside + 1 :]
    kinds = _kinds(instance, index)
    if "all_reduce" in kinds:
        return False
    shares = np.array([[tier.efficiency[kind] for tier in tiers] for kind in sorted(kinds)])
    return bool(shares.size == 0 or np.allclose(shares / shares[:, :1], shares[:1] / shares[:1, :1]))


def _largest(instance: Instance, index: int) -> int:
    """The user of an entry of ``groups`` that moves most bytes: its seconds tell loads apart best."""
    return int(np.argmax([instance.pools[p].collectives[c].tensor_bytes for p, c in instance.users[index]]))


Column = tuple[tuple[float, ...], tuple[float, ...]]
"""Loads of a level, ascending, and the largest user's seconds with each in a group that crosses every level."""


def _load_sets(columns: list[Column]) -> list[tuple[float, ...]]:
    """Loads of all levels together: for every time that some level can take, the most that each may have in it."""
    if not columns:
        return [()]
    steps = np.unique(np.concatenate([seconds for _, seconds in columns]))
    steps = steps[steps >= max(seconds[0] for _, seconds in columns)]
    sets = {tuple(v[int(np.searchsorted(s, step * (1 + 1e-12), "right")) - 1] for v, s in columns) for step in steps}
    return sorted(sets)


def _column(
    instance: Instance, index: int, level: int, shape: Least, least: list[tuple[float, ...]], most: float
) -> Column | None:
    """Values that the busiest uplink of a level can have in a placement as good as the best; None: too many."""
    g, tier = instance.groups[index], instance.fabric.inside + level + 1
    if g.family == "p2p":
        values = np.unique(np.append(1.0 / instance.fabric.uplink[level], 1.0))
    else:
        capacity = instance.capacity[level]
        values = np.unique(np.append((_units(g)[:, None] / np.unique(capacity)[None]).ravel(), 0.0))
    floor = shape.crossing[tier]
    values = np.unique(np.append(values[values > floor], floor))
    times = _crossing_times(instance, index, tier, tier, shape, values)
    floored = [np.minimum(t, t - t[0] + low) for t, low in zip(times, least[index], strict=True)]
    fits = _exposed(instance, index, least, floored) <= most
    fits[0] = True
    if fits[-1] and len(values) >= _MOST_VALUES:
        return None
    # Loads of two levels compare where all else is equal: latency, too.
    across = _crossing_times(instance, index, tier, len(shape.spans) - 1, shape, values)
    across_s = across[_largest(instance, index)][fits]
    return tuple(values[fits].tolist()), tuple(np.maximum.accumulate(across_s).tolist())


def _crossing_times(
    instance: Instance, index: int, tier: int, outermost: int, shape: Least, values: Array
) -> list[Array]:
    """Seconds of every user where the busiest uplink into a tier has these loads, in groups that reach ``outermost``.

    What crosses a tier counts only where something does; all else is at its least.
    """
    inside = instance.fabric.inside
    spans = [max(s, 2.0) if inside <= k < outermost else s for k, s in enumerate(shape.spans)]
    crossing = tuple(values if k == tier else np.full(len(values), c) for k, c in enumerate(shape.crossing))
    return instance.many_seconds(index, tuple(np.full(len(values), s) for s in spans), crossing)


def _units(g: Groups) -> Array:
    """Loads that groups can put on one domain, in whole units."""
    unit = float(np.gcd.reduce(g.lanes))
    most = float(g.lanes.sum()) * g.size
    if g.family == "all-to-all":
        unit *= (g.width or 1) ** 2 / g.size
        most /= 4.0
    return np.asarray(np.arange(1, 1 + min(_MOST_VALUES, int(most / unit + 1e-6))) * unit)


def _times(instance: Instance, index: int, rows: Rows) -> list[Array]:
    g, fabric = instance.groups[index], instance.fabric
    count = len(rows)
    spans = [np.full(count, s) for s in g.inner_spans]
    crossing = [np.full(count, c) for c in g.inner_crossing]
    crossing.append(np.array([row[2] for row in rows]))
    for level in range(len(fabric.domains) - 1):
        spans.append(np.array([row[0][level] for row in rows]))
        crossing.append(np.array([row[1][level] for row in rows]))
    spans.append(np.ones(count))
    return instance.many_seconds(index, tuple(spans), tuple(crossing))


def _exposed(instance: Instance, index: int, least: list[tuple[float, ...]], times: list[Array]) -> Array:
    """Exposed seconds with the given times for one entry of ``groups`` and the least ones for all others."""
    totals: list[Array | float] = [0.0] * len(instance.pools)
    for other, users in enumerate(instance.users):
        values: Sequence[Any] = times if other == index else least[other]
        for (p, _), seconds in zip(users, values, strict=True):
            totals[p] = totals[p] + seconds
    return np.asarray(sum(pool.exposed_s(t) for pool, t in zip(instance.pools, totals, strict=True)))


def _undominated(options: list[Option]) -> list[Option]:
    """Options that no other allows everything of in no more time. Left alone where they are many."""
    if len(options) > 800:
        return options
    limits = np.array([(*o.spans, *o.load, o.nic) for o in options]).reshape(len(options), -1)
    seconds = np.array([o.seconds for o in options]).reshape(len(options), -1)
    kept = []
    for at, option in enumerate(options):
        wider = np.all(limits >= limits[at], axis=1) & np.all(seconds <= seconds[at], axis=1)
        same = np.all(limits == limits[at], axis=1) & np.all(seconds == seconds[at], axis=1)
        if not np.any(wider & ~same) and np.flatnonzero(same)[0] == at:
            kept.append(option)
    return kept


def objective(cp: Any, instance: Instance, options: Options, picks: dict[int, list[Any]], unit: float) -> Any:
    """Exposed seconds in ``unit`` as an expression of the picked options, rounded down; other groups at their least."""
    least = [least_seconds(instance, index) for index in range(len(instance.groups))]
    out: list[Any] = []
    for p, pool in enumerate(instance.pools):
        constant, terms = 0.0, []
        for index, users in enumerate(instance.users):
            for at, (q, _) in enumerate(users):
                if q == p and index in options:
                    terms.append((index, at))
                elif q == p:
                    constant += least[index][at]
        if len({index for index, _ in terms}) > 1:
            out.append(_joint(cp, pool, constant, terms, options, picks, unit))
        else:
            out += _single(pool, constant, terms, options, picks, unit)
    return sum(out)


Terms = list[tuple[int, int]]
"""Entry of ``groups`` and user of it."""


def _single(
    pool: Pool, constant: float, terms: Terms, options: Options, picks: dict[int, list[Any]], unit: float
) -> list[Any]:
    """The exposed time of a pool of one kind of groups, straight from the option."""
    if not terms:
        return [math.floor(float(pool.exposed_s(constant)) / unit)]
    index = terms[0][0]
    out = []
    for pick, option in zip(picks[index], options[index], strict=True):
        seconds = constant + sum(option.seconds[at] for _, at in terms)
        out.append(math.floor(float(pool.exposed_s(seconds)) / unit) * pick)
    return out


def _joint(
    cp: Any, pool: Pool, constant: float, terms: Terms, options: Options, picks: dict[int, list[Any]], unit: float
) -> Any:
    """The exposed time of a pool is the larger of two lines in the sum of its times."""
    exposed = cp.new_int_var(0, 4 * UNITS, "")
    gain = 1.0 - pool.slowdown
    flat, steep = pool.repeat * (1.0 - gain * pool.hidden_share), pool.repeat
    for slope, hidden in ((flat, 0.0), (steep, pool.repeat * gain * pool.room_s)):
        line = math.floor((slope * constant - hidden) / unit) + sum(
            math.floor(slope * option.seconds[at] / unit) * pick
            for index, at in terms
            for pick, option in zip(picks[index], options[index], strict=True)
        )
        cp.add(exposed >= line)
    return exposed

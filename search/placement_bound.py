"""What no placement can beat: a lower bound on the exposed seconds of a step, from the sizes of the domains alone.

Take one level, its domains with ``u_d`` nodes, and groups of ``m`` slots that cut the slots into equal parts. A domain
whose nodes are no multiple of ``m`` holds part of a group, however nodes are given, unless enough spares stay unused.
So that group crosses: its ring leaves the domain at least once, and an all-to-all moves at least ``r·(m - r)`` pairs'
worth with ``r = u_d mod m`` (the product is concave, so one group in part costs least). Every group of more slots than
a domain has nodes spans several. The bounds of all parallelisms and levels go together, since exposed seconds rise with
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .placement_cost import Groups, Instance, Shape

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Least:
    """The least spans and crossing of one entry of ``Instance.groups``, for every tier."""

    spans: tuple[float, ...]
    crossing: tuple[float, ...]


def lower_bound_s(instance: Instance) -> float:
    """Exposed seconds a step that no placement is below."""
    totals = [0.0] * len(instance.pools)
    for index in range(len(instance.groups)):
        for (p, _), seconds in zip(instance.users[index], least_seconds(instance, index), strict=True):
            totals[p] += seconds
    return float(sum(pool.exposed_s(total) for pool, total in zip(instance.pools, totals, strict=True)))


def least_seconds(instance: Instance, index: int) -> tuple[float, ...]:
    """Seconds of every collective that uses an entry of ``groups``, at least, in the order of its users.

    Seconds rise with every span and every crossing (but see ``floor_seconds``), so each takes its least value.
    """
    least = least_shape(instance, index)
    return floor_seconds(instance, index, (least.spans, least.crossing))


def floor_seconds(instance: Instance, index: int, shape: Shape) -> tuple[float, ...]:
    """Seconds of every user of an entry of ``groups`` at the least, when nothing in its shape is less than given.

    The cost model's laws rise with every span and every crossing, but for two things, of which the least of all that
    may be is taken: inside a rack-scale domain a tree is a chain by node, so an all-reduce over more domains may take
    fewer steps; and measured curves belong to the outermost tier that is crossed, in an innermost domain to the
    members there, too.
    """
    spans, crossing = shape
    g, inside, kinds = instance.groups[index], instance.fabric.inside, kinds_of(instance, index)
    curved = any(curve.kind in kinds for tier in instance.fabric.tiers for curve in tier.curves)
    inner = [spans[0]]
    if not inside and len(spans) > 1 and (curved or "all_reduce" in kinds):
        inner = [spans[0], *(s for s in possible_spans(g) if s > spans[0])]
    variants = [(first, *spans[1:]) for first in inner]
    if curved:
        variants = list(dict.fromkeys(out for spans in variants for out in _farther(spans, inside, least_crossing(g))))
    if len(variants) == 1:
        return instance.seconds(index, shape)
    many = tuple(np.array(column) for column in zip(*variants, strict=True))
    across = tuple(np.full(len(variants), value) for value in crossing)
    return tuple(float(values.min()) for values in instance.many_seconds(index, many, across))


def _farther(spans: tuple[float, ...], inside: int, crossed: float) -> Iterator[tuple[float, ...]]:
    """The same spans, and with every further tier crossed as little as can be."""
    for reach in range(inside, len(spans)):
        yield tuple(max(s, crossed) if inside <= k < reach else s for k, s in enumerate(spans))


def kinds_of(instance: Instance, index: int) -> set[str]:
    """Collectives that use an entry of ``groups``."""
    return {instance.pools[p].collectives[c].collective for p, c in instance.users[index]}


def least_crossing(g: Groups) -> float:
    """The least spans above one: those of a group that is in two domains."""
    return g.size / (g.size - (g.width or 1)) if g.family == "all-to-all" and g.slots_each > 1 else 2.0


def possible_spans(g: Groups) -> list[float]:
    """Values that the spans of a level can have, ascending."""
    if g.family == "p2p":
        return [1.0, 2.0]
    if g.family == "all-to-all":
        return [g.size / c for c in range(g.size, 0, -(g.width or 1))]
    most = int((g.rows != np.roll(g.rows, -1, axis=1)).sum(axis=1).max())
    return [float(runs) for runs in range(1, max(1, most) + 1)]


def least_shape(instance: Instance, index: int) -> Least:
    """Bounds of every tier's spans and crossing for one entry of ``groups``."""
    g, fabric = instance.groups[index], instance.fabric
    spans, crossing = list(g.inner_spans), list(g.inner_crossing)
    crossing.append(_least_nic(instance, g))
    for level in range(len(fabric.domains)):
        if level == len(fabric.domains) - 1:
            spans.append(1.0)
            continue
        span, load = least_level(instance, g, level)
        spans.append(span)
        crossing.append(load if g.family != "p2p" else 1.0)
    for tier in range(len(spans) - 2, fabric.inside - 1, -1):  # what spans many outer domains spans as many inner ones
        spans[tier] = max(spans[tier], spans[tier + 1])
    return Least(tuple(spans), tuple(crossing))


def _least_nic(instance: Instance, g: Groups) -> float:
    """The busiest node's links at best: the quickest nodes carry most."""
    fabric = instance.fabric
    if not fabric.inside or g.family == "p2p":
        return 1.0
    best = np.sort(fabric.nic)[::-1][: instance.num_slots]
    return float((np.sort(g.load)[::-1] / best).max())


def least_level(instance: Instance, g: Groups, level: int) -> tuple[float, float]:
    """Least spans of the worst group at a level, and least load of the busiest uplink."""
    nodes = np.bincount(instance.fabric.domains[level])
    m = g.slots_each
    if m == 1 or not tiles(g, instance.num_slots):
        return 1.0, 0.0
    capacity = instance.capacity[level]
    spare = len(instance.fabric.nodes) - instance.num_slots
    rest = nodes % m
    most = np.cumsum(np.sort(nodes)[::-1])
    spanned = float(np.searchsorted(most, m) + 1)
    load = least_busiest(g, m, nodes, capacity, spare)
    if spanned == 1.0 and rest.sum() <= spare:
        return 1.0, load
    if g.family == "all-to-all":
        share = m // max(2, int(spanned))
        return g.size / (share * (g.size / m)), load
    if g.family == "ring" and spanned > 1.0:
        load = max(load, float(len(g.rows) * spanned * g.lanes.min() / capacity.sum()))
    return 2.0 if g.family == "p2p" else max(2.0, spanned), load


def tiles(g: Groups, num_slots: int) -> bool:
    """Whether the groups cut the slots into equal parts: each slot in one row, with as many members everywhere."""
    m = g.slots_each
    if num_slots % m or not g.width:
        return False
    sets = {tuple(row) for row in np.sort(g.rows, axis=1)}
    return len(sets) == len(g.rows) and len(sets) * m == num_slots == len(np.unique(g.rows))


def _least_sent(g: Groups, m: int, rest: NDArray[np.int64]) -> Array:
    """What a domain sends at least when the nodes it uses are ``rest`` over a multiple of ``m``."""
    lanes = float(g.lanes.min())
    if g.family == "all-to-all":
        width = g.size / m
        return lanes * rest * (m - rest) * width * width / g.size
    return np.where(rest > 0, lanes, 0.0)


def least_busiest(g: Groups, m: int, nodes: NDArray[np.int64], capacity: Array, spare: int) -> float:
    """The busiest domain's load when ``spare`` nodes stay unused where that helps most."""
    drops = np.arange(min(spare, m - 1, int(nodes.max())) + 1)
    left = nodes[:, None] - drops[None, :]
    loads = np.where(left >= 0, _least_sent(g, m, left % m) / capacity[:, None], np.inf)
    best = np.minimum.accumulate(loads, axis=1)  # with up to so many nodes unused
    values = np.unique(best)
    low, high = 0, len(values) - 1
    while low < high:  # the least value that unused nodes can bring every domain down to
        middle = (low + high) // 2
        within = best <= values[middle]
        reached = bool(within.any(axis=1).all()) and int(within.argmax(axis=1).sum()) <= spare
        low, high = (low, middle) if reached else (middle + 1, high)
    return float(values[low])

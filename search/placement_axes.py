"""The numbers that the cost of a placement depends on, with all values that each can have.

Of each kind of groups these are, at each level of the network, the spans of the worst group and the load of the busiest
uplink, and what the busiest node's own links carry. The cost rises with each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .placement_blocks import Limit, Limits, unit_load
from .placement_bound import floor_seconds, least_crossing, least_seconds, least_shape, possible_spans
from .placement_cost import Groups, Instance, Shape

Array = NDArray[np.float64]
Corner = tuple[int, ...]
"""For each axis an index into its values."""

_MOST_VALUES = 1 << 13
"""Values of a load, beyond which all are one."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Spans, or what crosses into a tier, of one entry of ``Instance.groups``.

    ``values`` ascending are what it costs, ``limits`` what it allows: more than its value where several are one.
    """

    index: int
    crossing: bool
    tier: int
    values: Array
    limits: Array


@dataclass(slots=True)
class Axes:
    """All axes of a problem on which placements of less than ``most_s`` exposed seconds can differ."""

    instance: Instance
    most_s: float
    axes: list[Axis] = field(default_factory=list)
    _least: list[Shape] = field(default_factory=list)
    _fixed: list[tuple[float, ...]] = field(default_factory=list)
    _of_kind: dict[int, list[int]] = field(default_factory=dict)
    _known: dict[tuple[int, Corner], tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instance = self.instance
        for index, g in enumerate(instance.groups):
            least = least_shape(instance, index)
            self._least.append((least.spans, least.crossing))
            self._fixed.append(least_seconds(instance, index))
            if g.slots_each > 1:
                self._of_kind[index] = []
        for index, own in self._of_kind.items():
            for axis in _axes_of(instance, index, self._least[index]):
                kept = self._promising(axis)
                own.append(len(self.axes))
                self.axes.append(replace(axis, values=axis.values[:kept], limits=axis.limits[:kept]))

    @property
    def lowest(self) -> Corner:
        """Everything at its least."""
        return (0,) * len(self.axes)

    @property
    def highest(self) -> Corner:
        """Everything at the most that it may be alone."""
        return tuple(len(axis.values) - 1 for axis in self.axes)

    def cost(self, corner: Corner) -> float:
        """Exposed seconds that no placement is below all of whose numbers are at or above a corner's."""
        return self._exposed(
            [self._seconds(i, corner) if i in self._of_kind else fixed for i, fixed in enumerate(self._fixed)]
        )

    def limits(self, corner: Corner) -> Limits:
        """What placements keep within all of whose numbers are at or below a corner's."""
        inside, levels = self.instance.fabric.inside, len(self.instance.fabric.domains) - 1
        out: Limits = {}
        for index, own in self._of_kind.items():
            spans, load, nic = [1.0] * levels, [0.0] * levels, Limit((), ()).nic
            for axis, at in ((self.axes[a], corner[a]) for a in own):
                value = float(axis.limits[at])
                if not axis.crossing:
                    spans[axis.tier - inside] = value
                elif axis.tier > inside:
                    load[axis.tier - inside - 1] = value
                else:
                    nic = value
            out[index] = Limit(tuple(spans), tuple(load), nic)
        return out

    def _promising(self, axis: Axis) -> int:
        """How many of an axis's values cost less than what is known, all else at its least; at least one."""
        low, high = 1, len(axis.values)
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._alone(axis, float(axis.values[middle - 1])) < self.most_s
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _alone(self, axis: Axis, value: float) -> float:
        shape = _raised(self.instance, axis.index, self._least[axis.index], [(axis, value)])
        seconds = list(self._fixed)
        seconds[axis.index] = floor_seconds(self.instance, axis.index, shape)
        return self._exposed(seconds)

    def _seconds(self, index: int, corner: Corner) -> tuple[float, ...]:
        own = self._of_kind[index]
        key = (index, tuple(corner[a] for a in own))
        if key not in self._known:
            values = [(self.axes[a], float(self.axes[a].values[corner[a]])) for a in own]
            shape = _raised(self.instance, index, self._least[index], values)
            self._known[key] = floor_seconds(self.instance, index, shape)
        return self._known[key]

    def _exposed(self, seconds: Sequence[tuple[float, ...]]) -> float:
        totals = [0.0] * len(self.instance.pools)
        for users, times in zip(self.instance.users, seconds, strict=True):
            for (p, _), time in zip(users, times, strict=True):
                totals[p] += time
        return float(sum(pool.exposed_s(t) for pool, t in zip(self.instance.pools, totals, strict=True)))


def _raised(instance: Instance, index: int, least: Shape, values: Sequence[tuple[Axis, float]]) -> Shape:
    """A shape with some of its numbers raised, and what follows: loads cross, and outer domains hold inner ones."""
    g, inside = instance.groups[index], instance.fabric.inside
    spans, crossing = list(least[0]), list(least[1])
    for axis, value in values:
        part = crossing if axis.crossing else spans
        part[axis.tier] = max(part[axis.tier], value)
        if axis.crossing and axis.tier > inside and value > (1.0 if g.family == "p2p" else 0.0):
            spans[axis.tier - 1] = max(spans[axis.tier - 1], least_crossing(g))
    for tier in range(len(spans) - 2, inside - 1, -1):
        spans[tier] = max(spans[tier], spans[tier + 1])
    return tuple(spans), tuple(crossing)


def _axes_of(instance: Instance, index: int, least: Shape) -> Iterator[Axis]:
    g, inside = instance.groups[index], instance.fabric.inside
    nics = _nics(instance, g, least[1][inside])
    if len(nics) > 1:
        yield Axis(index, True, inside, nics, nics)
    for level in range(len(instance.fabric.domains) - 1):
        spans = np.array([s for s in possible_spans(g) if s >= least[0][inside + level] - 1e-9])
        yield Axis(index, False, inside + level, spans, spans)
        tier = inside + 1 + level
        yield Axis(index, True, tier, *_loads(instance, g, level, least[1][tier]))


def _nics(instance: Instance, g: Groups, least: float) -> Array:
    """Values that the busiest node's crossing can have; one where all links are alike."""
    fabric = instance.fabric
    if not fabric.inside or np.all(fabric.nic == 1.0):
        return np.array([least])
    load = np.ones(1) if g.family == "p2p" else np.unique(g.load)
    values = np.unique(load[:, None] / np.unique(fabric.nic)[None])
    return np.append(least, values[values > least])


def _loads(instance: Instance, g: Groups, level: int, least: float) -> tuple[Array, Array]:
    """Values that the load of the busiest uplink of a level can have, and limits: the last one has no end."""
    if g.family == "p2p":
        values = np.unique(1.0 / instance.fabric.uplink[level])
        values = np.append(least, values[values > least])
        return values, values
    capacity = np.unique(instance.capacity[level])
    unit = float(np.gcd.reduce(g.lanes)) * unit_load(g)
    most = float(g.lanes.sum()) * g.size / (4.0 if g.family == "all-to-all" else 1.0)
    number = min(_MOST_VALUES, int(most / unit + 1e-6))
    values = np.unique((np.arange(1, 1 + number)[:, None] * unit / capacity[None]).ravel())
    values = np.append(least, values[values > least])
    limits = values.copy()
    limits[-1] = max(values[-1], 2.0 * most / float(capacity.min()))
    if number == _MOST_VALUES:  # larger ones than the last of the smallest domain are told apart no more
        last = int(np.searchsorted(values, number * unit / float(capacity.max()), "right"))
        values, limits = values[: max(1, last)], np.append(limits[: max(1, last) - 1], limits[-1])
    return values, limits

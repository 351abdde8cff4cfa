"""The placement problem for CP-SAT: slots to classes of nodes, with the cost model's own times as a table.

Nodes under the same switches with links of the same rate form a class; which of them a slot gets does not matter. For
every kind of groups the solver picks one option: how many runs, how few members together and how much load it may have
at each level, at the seconds that the cost model says. Options that could not be part of a better placement than the
best one known, by the lower bounds of everything else, are left out before. Seconds are whole numbers of a billionth of
that placement's, rounded down, so the solver's bound is a bound.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .placement_bound import Least, least_seconds, least_shape
from .placement_cost import Groups, Instance

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

IntArray = NDArray[np.int64]
Array = NDArray[np.float64]

MOST_CELLS = 1 << 15
"""Slots times classes, beyond which a model is too large to prove anything in seconds."""

MOST_OPTIONS = 4096
"""Options of one kind of groups."""

_UNITS = 1_000_000_000
_COEFFICIENT = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's placement (None if it found none) and the exposed seconds that no placement is below."""

    nodes: IntArray | None
    bound_s: float


@dataclass(frozen=True, slots=True)
class Option:
    """What one kind of groups may do, spans and load per level and the busiest node's crossing; seconds per user."""

    spans: tuple[float, ...]
    load: tuple[float, ...]
    nic: float
    seconds: tuple[float, ...]


def solve(instance: Instance, known: IntArray, work_limit: float, seconds_limit: float | None = None) -> Answer | None:
    """The best placement, or a better bound; None where the model would be too large.

    ``known`` is the best placement so far; ``work_limit`` is CP-SAT's deterministic time, the same on any machine.
    """
    from ortools.sat.python import cp_model

    classes = Classes.of(instance)
    if instance.num_slots * len(classes.size) > MOST_CELLS:
        return None
    most = instance.cost(known)
    moving = [index for index, g in enumerate(instance.groups) if g.slots_each > 1]
    options = options_for(instance, moving, most * (1.0 + 1e-12))
    if options is None:
        return None
    model = _Model(cp_model.CpModel(), instance, classes, most / _UNITS)
    for index, choice in options.items():
        model.add_groups(index, choice)
    model.minimise(options)
    model.hint(known)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    if seconds_limit is not None:
        solver.parameters.max_time_in_seconds = seconds_limit
    status = solver.solve(model.cp)
    if status == cp_model.INFEASIBLE:  # nothing is better than what was known
        return Answer(None, most)
    bound = min(most, solver.best_objective_bound * model.unit)
    found = model.placement(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return Answer(found, bound)


@dataclass(frozen=True, slots=True)
class Classes:
    """Interchangeable nodes: ``of_node[m]``, how many there are, and the domain of each class at each level."""

    of_node: IntArray
    size: IntArray
    domain: tuple[IntArray, ...]
    nic: Array

    @classmethod
    def of(cls, instance: Instance) -> Classes:
        """Classes of the nodes of an instance."""
        fabric = instance.fabric
        keys = np.stack([*fabric.domains, np.unique(fabric.nic, return_inverse=True)[1]], axis=1)
        _, first, of_node, size = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
        domain = tuple(np.asarray(level)[first] for level in fabric.domains)
        return cls(of_node.ravel(), size, domain, fabric.nic[first])


def options_for(instance: Instance, indices: Iterable[int], most: float) -> dict[int, list[Option]] | None:
    """Options of entries of ``groups`` that could be part of a placement of ``most`` exposed seconds or less.

    None where there are too many.
    """
    least = [least_seconds(instance, index) for index in range(len(instance.groups))]
    out: dict[int, list[Option]] = {}
    for index in indices:
        found = _options_of(instance, index, least, most)
        if found is None:
            return None
        out[index] = found
    return out


def _options_of(instance: Instance, index: int, least: list[tuple[float, ...]], most: float) -> list[Option] | None:
    g, shape = instance.groups[index], least_shape(instance, index)
    levels = len(instance.fabric.domains) - 1
    columns = [_loads(instance, index, level, shape, least, most) for level in range(levels)]
    nics = _nics(instance, g, shape)
    spans = [s for s in itertools.product(*(_spans(g, shape.spans[instance.fabric.inside + j]) for j in range(levels)))
             if all(a >= b for a, b in itertools.pairwise(s))]  # fmt: skip
    count = len(spans) * math.prod(map(len, columns)) * len(nics)
    if count > 64 * MOST_OPTIONS:
        return None
    rows = list(itertools.product(spans, itertools.product(*columns), nics))
    times = _times(instance, index, rows)
    exposed = _exposed(instance, index, least, times)
    kept = [at for at in range(len(rows)) if exposed[at] <= most]
    found = [Option(rows[at][0], rows[at][1], rows[at][2], tuple(float(t[at]) for t in times)) for at in kept]
    found = _undominated(g, found)
    return found if len(found) <= MOST_OPTIONS else None


def _spans(g: Groups, least: float) -> list[float]:
    """Values that the spans of a level can have."""
    if g.family == "p2p":
        return [span for span in (1.0, 2.0) if span >= least]
    if g.family == "all-to-all":
        width = g.size // g.slots_each
        return [g.size / (width * c) for c in range(g.slots_each, 0, -1) if g.size / (width * c) >= least - 1e-9]
    return [float(r) for r in range(1, g.slots_each + 1) if r >= least]


def _nics(instance: Instance, g: Groups, shape: Least) -> list[float]:
    """Values that the busiest node's crossing can have."""
    fabric = instance.fabric
    least = shape.crossing[fabric.inside]
    if not fabric.inside or np.all(fabric.nic == 1.0):
        return [least]
    load = np.ones(1) if g.family == "p2p" else np.unique(g.load)
    values = np.unique(load[:, None] / np.unique(fabric.nic)[None])
    return [float(v) for v in values if v >= least - 1e-12]


def _loads(
    instance: Instance, index: int, level: int, shape: Least, least: list[tuple[float, ...]], most: float
) -> list[float]:
    """Values that the busiest uplink of a level can have, only the largest of those that take the same time."""
    g, capacity = instance.groups[index], instance.capacity[level]
    tier = instance.fabric.inside + level + 1
    if g.family == "p2p":
        values = np.unique(1.0 / instance.fabric.uplink[level])
        values = np.unique(np.concatenate([[1.0], values]))
    else:
        top = _ring_top(g, capacity)
        values = np.unique(np.concatenate([[0.0], (top[:, None] / capacity[None]).ravel()]))
    values = values[values >= shape.crossing[tier] - 1e-12]
    if len(values) > 1 << 14:
        values = values[:: -(-len(values) // (1 << 14))]
    spans = tuple(np.full(len(values), s) for s in shape.spans)
    crossing = tuple(values if k == tier else np.full(len(values), c) for k, c in enumerate(shape.crossing))
    if spans[tier - 1][0] == 1.0:  # what crosses counts only with more than one domain
        spans = tuple(
            np.full(len(values), 2.0) if instance.fabric.inside <= k < tier else s for k, s in enumerate(spans)
        )
    times = instance.many_seconds(index, spans, crossing)
    fits = _exposed(instance, index, least, _floored(times, least[index])) <= most
    fits[0] = True
    kept: dict[tuple[float, ...], float] = {}
    for at in np.flatnonzero(fits):
        kept[tuple(float(t[at]) for t in times)] = float(values[at])
    return sorted(kept.values())


def _floored(times: list[Array], least: tuple[float, ...]) -> list[Array]:
    """Times for the pruning of one level alone: other levels may still be at their least."""
    return [np.minimum(t, t - t[0] + floor) for t, floor in zip(times, least, strict=True)]


def _ring_top(g: Groups, capacity: Array) -> Array:
    """Loads that groups can put on one domain."""
    if g.family == "all-to-all":
        width, m = g.size // g.slots_each, g.slots_each
        each = np.unique([c * (m - c) * width * width / g.size for c in range(m + 1)]) * float(g.lanes.min())
        sums = np.array([0.0])
        for _ in range(4):  # few groups stand in part in one domain of a good placement
            sums = np.unique(np.round((sums[:, None] + each[None]).ravel(), 9))
        return sums
    unit = float(np.gcd.reduce(g.lanes))
    return np.asarray(np.arange(1, 1 + min(4096, int(g.lanes @ np.ones(len(g.lanes)) * g.size / unit))) * unit)


def _times(instance: Instance, index: int, rows: list[tuple[Any, Any, float]]) -> list[Array]:
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


def _undominated(g: Groups, options: list[Option]) -> list[Option]:
    """Options that no other allows everything of in no more time."""
    if len(options) > 600:
        return options

    def limits(o: Option) -> tuple[float, ...]:
        return (*o.spans, *o.load, o.nic)

    kept = []
    for o in options:
        better = (p for p in options if p is not o)
        if not any(
            all(a >= b for a, b in zip(limits(p), limits(o), strict=True))
            and all(a <= b for a, b in zip(p.seconds, o.seconds, strict=True))
            and (limits(p) != limits(o) or p.seconds != o.seconds)
            for p in better
        ):
            kept.append(o)
    return kept


@dataclass(slots=True)
class _Model:
    """The CP-SAT model as it grows."""

    cp: cp_model.CpModel
    instance: Instance
    classes: Classes
    unit: float
    x: list[list[Any]] = field(default_factory=list)
    chosen: dict[int, list[Any]] = field(default_factory=dict)
    _out: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slots, classes = self.instance.num_slots, self.classes
        self.x = [[self.cp.new_bool_var("") for _ in classes.size] for _ in range(slots)]
        for row in self.x:
            self.cp.add_exactly_one(row)
        for c, size in enumerate(classes.size):
            column = [row[c] for row in self.x]
            if slots == classes.size.sum():
                self.cp.add(sum(column) == int(size))
            else:
                self.cp.add(sum(column) <= int(size))
        for one, other in self.alike():
            self.cp.add(sum(s * (row[one] - row[other]) for s, row in enumerate(self.x)) <= 0)

    def alike(self) -> Iterator[tuple[int, int]]:
        """Neighbouring classes that differ in nothing but their names, so that one order of them is enough."""
        classes, uplink = self.classes, self.instance.fabric.uplink
        if self.instance.num_slots != classes.size.sum():
            return
        alone = [np.bincount(level) for level in classes.domain]
        keys: dict[tuple[Any, ...], int] = {}
        for c, size in enumerate(classes.size):
            outer = tuple(int(level[c]) for level in classes.domain[1:])
            if alone[0][classes.domain[0][c]] > 1:
                continue
            key = (int(size), float(classes.nic[c]), outer, float(uplink[0][classes.domain[0][c]]))
            if key in keys:
                yield keys[key], c
            keys[key] = c

    def within(self, slot: int, level: int, domain: int) -> Any:
        """Whether a slot is in a domain, as a sum of its classes."""
        return sum(self.x[slot][c] for c in np.flatnonzero(self.classes.domain[level] == domain))

    def out(self, level: int, a: int, b: int) -> list[Any]:
        """For each domain of a level, whether slot ``a`` is in it and ``b`` is not."""
        key = (level, a, b)
        if key not in self._out:
            left = []
            for domain in range(len(self.instance.capacity[level])):
                var = self.cp.new_bool_var("")
                self.cp.add(var >= self.within(a, level, domain) - self.within(b, level, domain))
                left.append(var)
            self._out[key] = left
        return self._out[key]

    def add_groups(self, index: int, options: list[Option]) -> None:
        """Choose one option for an entry of ``groups`` and hold the placement to it."""
        g = self.instance.groups[index]
        picks = [self.cp.new_bool_var("") for _ in options]
        self.cp.add_exactly_one(picks)
        self.chosen[index] = picks
        self._hold_nics(g, options, picks)
        for level in range(len(self.instance.fabric.domains) - 1):
            if g.family == "p2p":
                self._hold_pairs(g, level, options, picks)
            elif g.family == "all-to-all":
                self._hold_members(g, level, options, picks)
            else:
                self._hold_runs(g, level, options, picks)

    def _hold_nics(self, g: Groups, options: list[Option], picks: list[Any]) -> None:
        if not self.instance.fabric.inside or np.all(self.classes.nic == 1.0):
            return
        for slot, row in enumerate(self.x):
            load = 1.0 if g.family == "p2p" else float(g.load[slot])
            for c, nic in enumerate(self.classes.nic):
                allowing = [p for p, o in zip(picks, options, strict=True) if o.nic >= load / nic - 1e-12]
                if len(allowing) < len(picks):
                    self.cp.add(row[c] <= sum(allowing))

    def _hold_pairs(self, g: Groups, level: int, options: list[Option], picks: list[Any]) -> None:
        for a, b in g.pairs[g.pairs[:, 0] != g.pairs[:, 1]].tolist():
            for domain, factor in enumerate(self.instance.fabric.uplink[level]):
                allowing = [
                    p for p, o in zip(picks, options, strict=True)
                    if o.spans[level] > 1.0 and o.load[level] >= 1.0 / factor - 1e-12
                ]  # fmt: skip
                if len(allowing) == len(picks):
                    continue
                here, there = self.within(a, level, domain), self.within(b, level, domain)
                self.cp.add(here - there <= sum(allowing))
                self.cp.add(there - here <= sum(allowing))

    def _hold_runs(self, g: Groups, level: int, options: list[Option], picks: list[Any]) -> None:
        loads: list[list[Any]] = [[] for _ in self.instance.capacity[level]]
        for row, lanes in zip(g.rows.tolist(), g.lanes.tolist(), strict=True):
            runs = []
            for a, b in zip(row, row[1:] + row[:1], strict=True):
                if a == b:
                    continue
                for domain, var in enumerate(self.out(level, a, b)):
                    runs.append(var)
                    loads[domain].append(lanes * var)
            most = [0 if o.spans[level] == 1.0 else int(o.spans[level]) for o in options]
            self.cp.add(sum(runs) <= sum(m * p for m, p in zip(most, picks, strict=True)))
        self._hold_loads(loads, level, options, picks, 1.0)

    def _hold_members(self, g: Groups, level: int, options: list[Option], picks: list[Any]) -> None:
        m = g.slots_each
        width = g.size // m
        fewest = [round(g.size / o.spans[level] / width) for o in options]
        loads: list[list[Any]] = [[] for _ in self.instance.capacity[level]]
        table = [c * (m - c) for c in range(m + 1)]
        least = sum(f * p for f, p in zip(fewest, picks, strict=True))
        for row, lanes in zip(g.rows.tolist(), g.lanes.tolist(), strict=True):
            slots = sorted(set(row))
            for domain in range(len(loads)):
                here = [self.within(slot, level, domain) for slot in slots]
                count, some = self.cp.new_int_var(0, m, ""), self.cp.new_bool_var("")
                self.cp.add(count == sum(here))
                self.cp.add(count <= m * some)
                self.cp.add(count >= least - m * (1 - some))
                product = self.cp.new_int_var(0, max(table), "")
                self.cp.add_element(count, table, product)
                loads[domain].append(lanes * product)
        self._hold_loads(loads, level, options, picks, width * width / g.size)

    def _hold_loads(
        self, loads: list[list[Any]], level: int, options: list[Option], picks: list[Any], each: float
    ) -> None:
        """What leaves each domain, in units of ``each``, within the chosen option's load."""
        for terms, capacity in zip(loads, self.instance.capacity[level], strict=True):
            if terms:
                most = [math.floor(o.load[level] * capacity / each + 1e-6) for o in options]
                self.cp.add(sum(terms) <= sum(m * p for m, p in zip(most, picks, strict=True)))

    def minimise(self, options: dict[int, list[Option]]) -> None:
        """Exposed seconds: pools of one kind of groups straight from the option, others from the sum of their times."""
        instance = self.instance
        fixed = [least_seconds(instance, i) if i not in options else [] for i in range(len(instance.groups))]
        objective: list[Any] = []
        for p, pool in enumerate(instance.pools):
            constant, terms = 0.0, []
            for index, users in enumerate(instance.users):
                for at, (q, _) in enumerate(users):
                    if q == p and index in options:
                        terms.append((index, at))
                    elif q == p:
                        constant += fixed[index][at]
            groups = {index for index, _ in terms}
            if len(groups) <= 1:
                objective += self._single(pool, constant, terms, options)
            else:
                objective.append(self._joint(pool, constant, terms, options))
        self.cp.minimize(sum(objective))

    def _single(
        self, pool: Any, constant: float, terms: list[tuple[int, int]], options: dict[int, list[Option]]
    ) -> list[Any]:
        if not terms:
            return [math.floor(float(pool.exposed_s(constant)) / self.unit)]
        index = terms[0][0]
        out = []
        for pick, option in zip(self.chosen[index], options[index], strict=True):
            seconds = constant + sum(option.seconds[at] for _, at in terms)
            out.append(math.floor(float(pool.exposed_s(seconds)) / self.unit) * pick)
        return out

    def _joint(self, pool: Any, constant: float, terms: list[tuple[int, int]], options: dict[int, list[Option]]) -> Any:
        """The exposed time of a pool is the larger of two lines in the sum of its times."""
        total = math.floor(constant / self.unit) + sum(
            math.floor(option.seconds[at] / self.unit) * pick
            for index, at in terms
            for pick, option in zip(self.chosen[index], options[index], strict=True)
        )
        exposed = self.cp.new_int_var(0, 1 << 32, "")
        gain = 1.0 - pool.slowdown
        flat = math.floor(pool.repeat * (1.0 - gain * pool.hidden_share) * _COEFFICIENT)
        steep, room = math.floor(pool.repeat * _COEFFICIENT), math.ceil(pool.repeat * gain * pool.room_s / self.unit)
        self.cp.add(_COEFFICIENT * exposed >= flat * total)
        self.cp.add(_COEFFICIENT * exposed >= steep * total - _COEFFICIENT * room)
        return exposed

    def hint(self, nodes: IntArray) -> None:
        """Start from a known placement."""
        of_slot = self.classes.of_node[nodes]
        rename = self._ordered(of_slot)
        for s, row in enumerate(self.x):
            for c, var in enumerate(row):
                self.cp.add_hint(var, int(rename[of_slot[s]] == c))

    def _ordered(self, of_slot: IntArray) -> IntArray:
        """Classes renamed among those alike so that the order that ``alike`` asks for holds."""
        rename = np.arange(len(self.classes.size))
        chains: dict[int, list[int]] = {}
        head: dict[int, int] = {}
        for one, other in self.alike():
            first = head.setdefault(one, one)
            head[other] = first
            chains.setdefault(first, [first]).append(other)
        sums = np.bincount(of_slot, weights=np.arange(len(of_slot)), minlength=len(rename))
        for chain in chains.values():
            for place, c in zip(chain, sorted(chain, key=lambda c: sums[c]), strict=True):
                rename[c] = place
        return rename

    def placement(self, solver: cp_model.CpSolver) -> IntArray:
        """Node of each slot: nodes of a class in their own order."""
        waiting = [list(np.flatnonzero(self.classes.of_node == c)) for c in range(len(self.classes.size))]
        out = []
        for row in self.x:
            c = next(c for c, var in enumerate(row) if solver.value(var))
            out.append(int(waiting[c].pop(0)))
        return np.array(out, dtype=np.int64)

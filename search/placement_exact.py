"""The placement problem for CP-SAT: slots to classes of nodes, with the cost model's own times as a table.

Nodes under the same switches with links of the same rate form a class; which of them a slot gets does not matter. For
every kind of groups the solver picks one option (``placement_options``) and holds the placement to its limits. Seconds
are whole numbers of a billionth of the best known placement's, rounded down, so the solver's bound is a bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .placement_cost import Groups, Instance
from .placement_options import UNITS, Option, objective, options_for

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

IntArray = NDArray[np.int64]
Array = NDArray[np.float64]

MOST_CELLS = 1 << 8
"""Slots times classes, beyond which the model proves no more than that of blocks."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The solver's placement (None if it found none) and the exposed seconds that no placement is below."""

    nodes: IntArray | None
    bound_s: float


def solver_of(work_limit: float, seconds_limit: float | None, turns: bool) -> cp_model.CpSolver:
    """A solver that answers the same on any machine, but for a limit in seconds.

    ``turns``: several ways of searching take turns in one thread: slower to start, better where a proof is hard.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 8 if turns else 1
    solver.parameters.interleave_search = turns
    solver.parameters.linearization_level = 2
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    if seconds_limit is not None:
        solver.parameters.max_time_in_seconds = seconds_limit
    return solver


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
    options = options_for(instance, moving, most * (1.0 + 1e-12), spans_apart=instance.num_slots * 64)
    if options is None:
        return None
    model = _Model(cp_model.CpModel(), instance, classes, most / UNITS)
    for index, choice in options.items():
        model.add_groups(index, choice)
    model.cp.minimize(objective(model.cp, instance, options, model.chosen, model.unit))
    model.hint(known)
    solver = solver_of(work_limit, seconds_limit, turns=False)
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
        width = g.width or 1
        m = g.size // width
        fewest = [round(g.size / o.spans[level] / width) for o in options]
        loads: list[list[Any]] = [[] for _ in self.instance.capacity[level]]
        table = [c * (m - c) for c in range(m + 1)]
        least = sum(f * p for f, p in zip(fewest, picks, strict=True))
        for row, lanes in zip(g.rows.tolist(), g.lanes.tolist(), strict=True):
            slots = Counter(row)
            for domain in range(len(loads)):
                here = [count // width * self.within(slot, level, domain) for slot, count in slots.items()]
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

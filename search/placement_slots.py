"""The placement problem slot by slot for CP-SAT: which class of nodes each slot stands on, within limits.

Nodes under the same switches with links of the same rate form a class; which of them a slot gets does not matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Ints

from .placement_blocks import CountsModel, Limit, unit_load
from .placement_cost import Groups, Instance

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Classes:
    """Interchangeable nodes: ``of_node[m]``, how many there are, and the domain of each class at each level."""

    of_node: Ints
    size: Ints
    domain: tuple[Ints, ...]
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
class SlotsModel:
    """The CP-SAT model as it grows."""

    cp: Any
    instance: Instance
    classes: Classes
    x: list[list[Any]] = field(default_factory=list)
    _out: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slots, classes = self.instance.num_slots, self.classes
        self.x = [[self.cp.new_bool_var("") for _ in classes.size] for _ in range(slots)]
        for row in self.x:
            self.cp.add_exactly_one(row)
        for c, size in enumerate(classes.size):
            self.cp.add(sum(row[c] for row in self.x) <= int(size))

    def link(self, counts: CountsModel) -> None:
        """Slots of a block stand on as many nodes of each innermost domain as its counts say."""
        for block, row in enumerate(counts.counts):
            slots = range(block * counts.size, (block + 1) * counts.size)
            for d, count in enumerate(row):
                self.cp.add(count == sum(self.within(slot, 0, d) for slot in slots))

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

    def hold(self, g: Groups, limit: Limit) -> None:
        """Hold the placement to a limit of one kind of groups."""
        self._hold_nics(g, limit)
        for level in range(len(self.instance.fabric.domains) - 1):
            if g.family == "p2p":
                self._hold_pairs(g, limit, level)
            elif g.family == "all-to-all":
                self._hold_members(g, limit, level)
            else:
                self._hold_runs(g, limit, level)

    def _hold_nics(self, g: Groups, limit: Limit) -> None:
        if not self.instance.fabric.inside:
            return
        moving = g.load
        if g.family == "p2p":
            moving = np.isin(np.arange(self.instance.num_slots), g.pairs[g.pairs[:, 0] != g.pairs[:, 1]]).astype(float)
        for slot, row in enumerate(self.x):
            for c, nic in enumerate(self.classes.nic):
                if limit.nic < float(moving[slot]) / nic - 1e-12:
                    self.cp.add(row[c] == 0)

    def _hold_pairs(self, g: Groups, limit: Limit, level: int) -> None:
        for domain, factor in enumerate(self.instance.fabric.uplink[level]):
            if limit.crosses(level, float(factor)):
                continue
            for a, b in g.pairs[g.pairs[:, 0] != g.pairs[:, 1]].tolist():
                self.cp.add(self.within(a, level, domain) == self.within(b, level, domain))

    def _hold_runs(self, g: Groups, limit: Limit, level: int) -> None:
        loads: list[list[Any]] = [[] for _ in self.instance.capacity[level]]
        for row, lanes in zip(g.rows.tolist(), g.lanes.tolist(), strict=True):
            runs = []
            for a, b in zip(row, row[1:] + row[:1], strict=True):
                if a == b:
                    continue
                for domain, var in enumerate(self.out(level, a, b)):
                    runs.append(var)
                    loads[domain].append(lanes * var)
            self.cp.add(sum(runs) <= limit.runs(level))
        self._hold_loads(g, loads, limit, level)

    def _hold_members(self, g: Groups, limit: Limit, level: int) -> None:
        width = g.width or 1
        m, least = g.size // width, limit.fewest(g, level)
        loads: list[list[Any]] = [[] for _ in self.instance.capacity[level]]
        table = [c * (m - c) for c in range(m + 1)]
        for row, lanes in zip(g.rows.tolist(), g.lanes.tolist(), strict=True):
            slots = Counter(row)
            for domain in range(len(loads)):
                here = [count // width * self.within(slot, level, domain) for slot, count in slots.items()]
                count, some = self.cp.new_int_var(0, m, ""), self.cp.new_bool_var("")
                self.cp.add(count == sum(here))
                self.cp.add(count <= m * some)
                self.cp.add(count >= least * some)
                product = self.cp.new_int_var(0, max(table), "")
                self.cp.add_element(count, table, product)
                loads[domain].append(lanes * product)
        self._hold_loads(g, loads, limit, level)

    def _hold_loads(self, g: Groups, loads: list[list[Any]], limit: Limit, level: int) -> None:
        for terms, capacity in zip(loads, self.instance.capacity[level], strict=True):
            if terms:
                self.cp.add(sum(terms) <= limit.room(level, float(capacity), unit_load(g)))

    def placement(self, solver: Any) -> Ints:
        """Node of each slot: nodes of a class in their own order."""
        waiting = [list(np.flatnonzero(self.classes.of_node == c)) for c in range(len(self.classes.size))]
        out = []
        for row in self.x:
            c = next(c for c, var in enumerate(row) if solver.value(var))
            out.append(int(waiting[c].pop(0)))
        return np.array(out, dtype=np.int64)

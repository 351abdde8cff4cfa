"""How many nodes of each domain each block of slots takes: the part of a placement that matters most, and small.

A block is the smallest run of slots that some groups fill: an expert group of several nodes, a pipeline stage. Where
groups fill whole blocks, the counts tell which domains they touch, so a ring's runs and loads have a least value that
one order of the nodes within the blocks reaches, and an all-to-all's are exact. Where groups take one slot of each of
several blocks (a pipeline, replicas of shards), what the counts of neighbouring blocks differ by must move from one
domain to another. CP-SAT chooses the counts; what it cannot see counts with its lower bound, so that what it proves is
a bound on any placement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .placement_cost import Groups, Instance
from .placement_exact import solver_of
from .placement_options import UNITS, Option, objective, options_for

IntArray = NDArray[np.int64]

MOST_CELLS = 1 << 13
"""Blocks times innermost domains, beyond which the model takes too long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes of each innermost domain that each block takes, ``[block, domain]`` (None: nothing found), and a bound."""

    nodes: IntArray | None
    bound_s: float


def block_sizes(instance: Instance) -> list[int]:
    """Sizes of blocks that groups of more than one slot fill, ascending."""
    return sorted({g.slots_each for g in instance.groups if g.slots_each > 1 and fills(g, g.slots_each)})


def has_cells(instance: Instance, size: int) -> bool:
    """Whether blocks of ``size`` slots cut the slots, over several domains, in a model that is not too large."""
    domains, blocks = len(instance.capacity[0]), instance.num_slots // size
    return domains > 1 and instance.num_slots % size == 0 and blocks * domains <= MOST_CELLS


def fills(g: Groups, size: int) -> bool:
    """Whether each group's slots are one aligned run of ``size`` slots, each with as many members."""
    if not g.width or g.slots_each % size:
        return False
    starts = g.rows.min(axis=1)
    return bool(np.all(starts % g.slots_each == 0) and np.all(g.rows.max(axis=1) - starts == g.slots_each - 1))


def _strides(g: Groups, size: int) -> bool:
    """Whether each group takes the same place of several blocks, one slot of each."""
    blocks = g.rows // size
    apart = np.all(np.diff(blocks, axis=1) != 0) if blocks.shape[1] > 1 else True
    return bool(apart and g.slots_each == g.size and np.all(g.rows % size == g.rows[:, :1] % size))


def chains(instance: Instance, size: int) -> list[int]:
    """Entries of ``groups`` that go from block to block, one slot of each."""
    return [
        i
        for i, g in enumerate(instance.groups)
        if g.slots_each > 1 and not fills(g, size) and g.family != "all-to-all" and _strides(g, size)
    ]


def solve_counts(
    instance: Instance,
    size: int,
    most_s: float,
    work_limit: float,
    seconds_limit: float | None = None,
    *,
    chained: bool = False,
) -> Counts | None:
    """The best counts of blocks of ``size`` slots, against placements of ``most_s``; None: the model does not apply.

    ``chained``: with what goes from block to block too. Without it blocks may be alike, and proofs come quicker.
    """
    from ortools.sat.python import cp_model

    if not has_cells(instance, size):
        return None
    filling = [i for i, g in enumerate(instance.groups) if g.slots_each > 1 and fills(g, size)]
    striding = chains(instance, size) if chained else []
    options = options_for(instance, [*filling, *striding], most_s * (1.0 + 1e-12))
    if options is None:
        return None
    model = CountsModel(cp_model.CpModel(), instance, size)
    picks: dict[int, list[Any]] = {}
    for index, choice in options.items():
        picks[index] = [model.cp.new_bool_var("") for _ in choice]
        model.cp.add_exactly_one(picks[index])
        model.hold(instance.groups[index], choice, picks[index], fills=index in filling)
    if not striding and len({instance.groups[i].slots_each for i in filling}) == 1:
        model.order_blocks()
    unit = most_s / UNITS
    model.cp.minimize(objective(model.cp, instance, options, picks, unit))
    solver = solver_of(work_limit, seconds_limit, turns=chained)
    status = solver.solve(model.cp)
    if status == cp_model.INFEASIBLE:
        return Counts(None, most_s)
    bound = min(most_s, solver.best_objective_bound * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Counts(None, bound)
    found = np.array([[solver.value(n) for n in row] for row in model.counts], dtype=np.int64)
    return Counts(found, bound)


@dataclass(slots=True)
class CountsModel:
    """The CP-SAT model: counts of every block and domain, and what groups of blocks do at each level."""

    cp: Any
    instance: Instance
    size: int
    counts: list[list[Any]] = field(default_factory=list)
    leaves: list[list[IntArray]] = field(default_factory=list)
    """Innermost domains of each domain of each level."""

    def __post_init__(self) -> None:
        fabric, blocks = self.instance.fabric, self.instance.num_slots // self.size
        sizes = np.bincount(fabric.domains[0])
        self.counts = [[self.cp.new_int_var(0, int(min(n, self.size)), "") for n in sizes] for _ in range(blocks)]
        for row in self.counts:
            self.cp.add(sum(row) == self.size)
        for d, n in enumerate(sizes):
            self.cp.add(sum(row[d] for row in self.counts) <= int(n))
        first = np.unique(fabric.domains[0], return_index=True)[1]
        for level in fabric.domains[:-1]:
            of_leaf = level[first]
            self.leaves.append([np.flatnonzero(of_leaf == d) for d in range(int(level.max()) + 1)])

    def order_blocks(self) -> None:
        """Blocks that are all alike may as well come in the order of what they take of the first domain."""
        for one, other in itertools.pairwise(self.counts):
            self.cp.add(one[0] >= other[0])

    def inside(self, block: int, level: int, domain: int) -> Any:
        """Nodes of a domain that a block takes."""
        return sum(self.counts[block][leaf] for leaf in self.leaves[level][domain])

    def hold(self, g: Groups, choice: list[Option], picks: list[Any], fills: bool) -> None:
        """Hold the counts to the option that is picked for groups that fill blocks, or take a slot of each."""
        for level in range(len(self.leaves)):
            limit = _Limit(level, choice, picks)
            if not fills and g.family == "p2p":
                self._hold_pairs(g, limit)
            elif not fills:
                self._hold_strided(g, limit)
            elif g.family == "all-to-all":
                self._hold_members(g, limit)
            else:
                self._hold_runs(g, limit)

    def _unions(self, g: Groups) -> Iterator[tuple[range, int]]:
        """Blocks that each group fills, and its lanes."""
        each = g.slots_each // self.size
        for first, lanes in zip(g.rows.min(axis=1) // self.size, g.lanes, strict=True):
            yield range(int(first), int(first) + each), int(lanes)

    def _hold_runs(self, g: Groups, limit: _Limit) -> None:
        domains = range(len(self.leaves[limit.level]))
        loads: list[list[Any]] = [[] for _ in domains]
        for blocks, lanes in self._unions(g):
            parts = []
            for d in domains:
                held = sum(self.inside(block, limit.level, d) for block in blocks)
                part, whole = self.cp.new_bool_var(""), self.cp.new_bool_var("")
                self.cp.add(held >= g.slots_each * whole)
                self.cp.add(held <= g.slots_each * part + g.slots_each * whole)
                parts.append(part)
                loads[d].append(lanes * part)
            if g.family == "p2p":
                self.cp.add(
                    sum(parts) <= len(parts) * limit.of([int(o.spans[limit.level] > 1.0) for o in limit.choice])
                )
            else:
                self.cp.add(sum(parts) <= limit.runs())
        if g.family == "ring":
            self._hold_loads(loads, limit, 1.0)

    def _hold_members(self, g: Groups, limit: _Limit) -> None:
        m, width = g.slots_each, g.width
        least = limit.of([round(g.size / o.spans[limit.level] / width) for o in limit.choice])
        table = [c * (m - c) for c in range(m + 1)]
        loads: list[list[Any]] = [[] for _ in self.leaves[limit.level]]
        for blocks, lanes in self._unions(g):
            for d in range(len(loads)):
                count, some = self.cp.new_int_var(0, m, ""), self.cp.new_bool_var("")
                self.cp.add(count == sum(self.inside(block, limit.level, d) for block in blocks))
                self.cp.add(count <= m * some)
                self.cp.add(count >= least - m * (1 - some))
                product = self.cp.new_int_var(0, max(table), "")
                self.cp.add_element(count, table, product)
                loads[d].append(lanes * product)
        self._hold_loads(loads, limit, width * width / g.size)

    def _chains(self, g: Groups) -> list[tuple[tuple[int, ...], int]]:
        """Sequences of blocks that groups go through, and the lanes of one of their places."""
        found: dict[tuple[int, ...], int] = {}
        for row, lanes in zip((g.rows // self.size).tolist(), g.lanes.tolist(), strict=True):
            found.setdefault(tuple(row), int(lanes))
        return list(found.items())

    def _hold_strided(self, g: Groups, limit: _Limit) -> None:
        loads: list[list[Any]] = [[] for _ in self.leaves[limit.level]]
        for chain, lanes in self._chains(g):
            moved = []
            for one, other in itertools.pairwise((*chain, chain[0])):
                for d in range(len(loads)):
                    flow = self.cp.new_int_var(0, self.size, "")
                    self.cp.add(flow >= self.inside(one, limit.level, d) - self.inside(other, limit.level, d))
                    moved.append(flow)
                    loads[d].append(lanes * flow)
            self.cp.add(sum(moved) <= self.size * limit.runs())
        self._hold_loads(loads, limit, 1.0)

    def _hold_pairs(self, g: Groups, limit: _Limit) -> None:
        pairs = {(int(a), int(b)) for a, b in (g.pairs // self.size).tolist() if a != b}
        for d, factor in enumerate(self.instance.fabric.uplink[limit.level]):
            allowing = limit.of([
                int(o.spans[limit.level] > 1.0 and o.load[limit.level] >= 1.0 / factor - 1e-12) for o in limit.choice
            ])  # fmt: skip
            for one, other in sorted(pairs):
                here, there = self.inside(one, limit.level, d), self.inside(other, limit.level, d)
                self.cp.add(here - there <= self.size * allowing)
                self.cp.add(there - here <= self.size * allowing)

    def _hold_loads(self, loads: list[list[Any]], limit: _Limit, each: float) -> None:
        for terms, capacity in zip(loads, self.instance.capacity[limit.level], strict=True):
            room = [math.floor(o.load[limit.level] * capacity / each + 1e-6) for o in limit.choice]
            if terms:
                self.cp.add(sum(terms) <= limit.of(room))


@dataclass(frozen=True, slots=True)
class _Limit:
    """The options of one kind of groups at one level."""

    level: int
    choice: list[Option]
    picks: list[Any]

    def of(self, values: list[int]) -> Any:
        """The picked option's value."""
        return sum(value * pick for value, pick in zip(values, self.picks, strict=True))

    def runs(self) -> Any:
        """The picked option's runs, none where it stays in one domain."""
        return self.of([0 if o.spans[self.level] == 1.0 else int(o.spans[self.level]) for o in self.choice])


def arrangements(instance: Instance, counts: IntArray) -> Iterator[IntArray]:
    """Placements with those counts: domains in tree order in each block, in turn there and back, or as before it.

    The last keeps each place of a block in the domain of the same place of the block before, where counts allow.
    """
    first = np.unique(instance.fabric.domains[0], return_index=True)[1]
    tree = np.lexsort([level[first] for level in instance.fabric.domains])
    for style in ("tree", "turns", "same"):
        yield _nodes(instance, np.concatenate(list(_leaves(counts, tree, style))))


def _leaves(counts: IntArray, tree: IntArray, style: str) -> Iterator[IntArray]:
    """Innermost domain of each slot, block by block."""
    last: IntArray | None = None
    for row in counts:
        order = tree
        if style == "turns" and last is not None:
            order = np.concatenate([[last[-1]], tree[tree != last[-1]]])
        block = np.repeat(order, row[order])
        if style == "same" and last is not None:
            block = _aligned(block, last)
        yield block
        last = block


def _aligned(block: IntArray, last: IntArray) -> IntArray:
    """The same domains in an order that agrees with ``last`` in as many places as can be."""
    left = np.bincount(block)
    out = np.full(len(block), -1)
    for at, domain in enumerate(last):
        if domain < len(left) and left[domain] > 0:
            out[at], left[domain] = domain, left[domain] - 1
    out[out < 0] = np.repeat(np.arange(len(left)), left)
    return out


def _nodes(instance: Instance, leaves: IntArray) -> IntArray:
    """A node of each slot's domain, the quickest first."""
    fabric = instance.fabric
    speed = np.argsort(-fabric.nic, kind="stable")
    out = np.empty(len(leaves), dtype=np.int64)
    for d in np.unique(leaves):
        slots = np.flatnonzero(leaves == d)
        out[slots] = speed[fabric.domains[0][speed] == d][: len(slots)]
    return out

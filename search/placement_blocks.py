"""How many nodes of each domain each block of slots takes: the part of a placement that matters most, and small.

A block is the smallest run of slots that some groups fill: an expert group of several nodes, a pipeline stage. Where
groups fill whole blocks, the counts tell which domains they touch, so a ring's runs and loads have a least value that
one order of the nodes within the blocks reaches, and an all-to-all's are exact. Where groups take one slot of each of
several blocks (a pipeline, replicas of shards), what the counts of neighbouring blocks differ by must move from one
domain to another. So where no counts keep within limits, no placement does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Ints

from .placement_cost import Groups, Instance

MOST_CELLS = 1 << 13
"""Blocks times innermost domains, beyond which the model takes too long."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most spans and load of one kind of groups at each level, and the most that the busiest node's links cross."""

    spans: tuple[float, ...]
    load: tuple[float, ...]
    nic: float = math.inf

    def runs(self, level: int) -> int:
        """Runs of a ring, none where it stays in one domain."""
        return 0 if self.spans[level] == 1.0 else int(self.spans[level])

    def fewest(self, g: Groups, level: int) -> int:
        """Slots that an all-to-all has at least in a domain that it is in."""
        return round(g.size / self.spans[level] / (g.width or 1))

    def room(self, level: int, capacity: float, each: float) -> int:
        """What a domain may send, in whole units of ``each``."""
        return math.floor(self.load[level] * capacity / each + 1e-6)

    def crosses(self, level: int, factor: float) -> bool:
        """Whether a message may leave or enter a domain whose uplink has this share of its rate."""
        return self.spans[level] > 1.0 and self.load[level] >= 1.0 / factor - 1e-12


Limits = dict[int, Limit]
"""By entry of ``Instance.groups``."""


def unit_load(g: Groups) -> float:
    """Load of one unit that models count in: a ring's departure, or a pair of slots of an all-to-all."""
    return (g.width or 1) ** 2 / g.size if g.family == "all-to-all" else 1.0


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
    """Whether groups take each place of several blocks, one slot of each."""
    blocks = g.rows // size
    apart = np.all(np.diff(blocks, axis=1) != 0) if blocks.shape[1] > 1 else True
    if not apart or g.slots_each != g.size or np.any(g.rows % size != g.rows[:, :1] % size):
        return False
    return bool(np.all(np.unique(blocks, axis=0, return_counts=True)[1] == size))


def chains(instance: Instance, size: int) -> list[int]:
    """Entries of ``groups`` that go from block to block, one slot of each."""
    return [
        i
        for i, g in enumerate(instance.groups)
        if g.slots_each > 1 and not fills(g, size) and g.family != "all-to-all" and _strides(g, size)
    ]


@dataclass(slots=True)
class CountsModel:
    """The CP-SAT model: counts of every block and domain, and what groups of blocks do at each level."""

    cp: Any
    instance: Instance
    size: int
    counts: list[list[Any]] = field(default_factory=list)
    leaves: list[list[Ints]] = field(default_factory=list)
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

    def fix(self, counts: Ints) -> None:
        """Hold the counts to known ones."""
        for row, known in zip(self.counts, counts.tolist(), strict=True):
            for var, count in zip(row, known, strict=True):
                self.cp.add(var == count)

    def inside(self, block: int, level: int, domain: int) -> Any:
        """Nodes of a domain that a block takes."""
        return sum(self.counts[block][leaf] for leaf in self.leaves[level][domain])

    def hold(self, g: Groups, limit: Limit) -> None:
        """Hold the counts to a limit of groups that fill blocks, or take a slot of each."""
        filling = fills(g, self.size)
        for level in range(len(self.leaves)):
            if not filling and g.family == "p2p":
                self._hold_pairs(g, limit, level)
            elif not filling:
                self._hold_strided(g, limit, level)
            elif g.family == "all-to-all":
                self._hold_members(g, limit, level)
            else:
                self._hold_runs(g, limit, level)

    def _unions(self, g: Groups) -> Iterator[tuple[range, int]]:
        """Blocks that each group fills, and its lanes."""
        each = g.slots_each // self.size
        for first, lanes in zip(g.rows.min(axis=1) // self.size, g.lanes, strict=True):
            yield range(int(first), int(first) + each), int(lanes)

    def _hold_runs(self, g: Groups, limit: Limit, level: int) -> None:
        loads: list[list[Any]] = [[] for _ in self.leaves[level]]
        for blocks, lanes in self._unions(g):
            parts = []
            for d in range(len(loads)):
                held = sum(self.inside(block, level, d) for block in blocks)
                part, whole = self.cp.new_bool_var(""), self.cp.new_bool_var("")
                self.cp.add(held >= g.slots_each * whole)
                self.cp.add(held <= g.slots_each * part + g.slots_each * whole)
                parts.append(part)
                loads[d].append(lanes * part)
            if g.family == "p2p":
                self.cp.add(sum(parts) <= len(parts) * int(limit.spans[level] > 1.0))
            else:
                self.cp.add(sum(parts) <= limit.runs(level))
        if g.family == "ring":
            self._hold_loads(g, loads, limit, level)

    def _hold_members(self, g: Groups, limit: Limit, level: int) -> None:
        m, least = g.slots_each, limit.fewest(g, level)
        table = [c * (m - c) for c in range(m + 1)]
        loads: list[list[Any]] = [[] for _ in self.leaves[level]]
        for blocks, lanes in self._unions(g):
            for d in range(len(loads)):
                count, some = self.cp.new_int_var(0, m, ""), self.cp.new_bool_var("")
                self.cp.add(count == sum(self.inside(block, level, d) for block in blocks))
                self.cp.add(count <= m * some)
                self.cp.add(count >= least * some)
                product = self.cp.new_int_var(0, max(table), "")
                self.cp.add_element(count, table, product)
                loads[d].append(lanes * product)
        self._hold_loads(g, loads, limit, level)

    def _hold_strided(self, g: Groups, limit: Limit, level: int) -> None:
        loads: list[list[Any]] = [[] for _ in self.leaves[level]]
        for chain, lanes in block_chains(g, self.size):
            moved = []
            for one, other in itertools.pairwise((*chain, chain[0])):
                for d in range(len(loads)):
                    flow = self.cp.new_int_var(0, self.size, "")
                    self.cp.add(flow >= self.inside(one, level, d) - self.inside(other, level, d))
                    moved.append(flow)
                    loads[d].append(lanes * flow)
            self.cp.add(sum(moved) <= self.size * limit.runs(level))
        self._hold_loads(g, loads, limit, level)

    def _hold_pairs(self, g: Groups, limit: Limit, level: int) -> None:
        pairs = {(int(a), int(b)) for a, b in (g.pairs // self.size).tolist() if a != b}
        for d, factor in enumerate(self.instance.fabric.uplink[level]):
            if limit.crosses(level, float(factor)):
                continue
            for one, other in sorted(pairs):
                self.cp.add(self.inside(one, level, d) == self.inside(other, level, d))

    def _hold_loads(self, g: Groups, loads: list[list[Any]], limit: Limit, level: int) -> None:
        for terms, capacity in zip(loads, self.instance.capacity[level], strict=True):
            if terms:
                self.cp.add(sum(terms) <= limit.room(level, float(capacity), unit_load(g)))


def block_chains(g: Groups, size: int) -> list[tuple[tuple[int, ...], int]]:
    """Sequences of blocks that groups go through, one slot of each, and the fewest lanes of one of their places."""
    found: dict[tuple[int, ...], int] = {}
    for row, lanes in zip((g.rows // size).tolist(), g.lanes.tolist(), strict=True):
        found[tuple(row)] = min(int(lanes), found.get(tuple(row), int(lanes)))
    return list(found.items())


def arrangements(instance: Instance, counts: Ints) -> Iterator[Ints]:
    """Placements with those counts: domains in tree order in each block, in turn there and back, or as before it.

    The last keeps each place of a block in the domain of the same place of the block before, where counts allow.
    """
    first = np.unique(instance.fabric.domains[0], return_index=True)[1]
    tree = np.lexsort([level[first] for level in instance.fabric.domains])
    for style in ("tree", "turns", "same"):
        yield nodes_of(instance, np.concatenate(list(_leaves(counts, tree, style))))


def _leaves(counts: Ints, tree: Ints, style: str) -> Iterator[Ints]:
    """Innermost domain of each slot, block by block."""
    last: Ints | None = None
    for row in counts:
        order = tree
        if style == "turns" and last is not None:
            order = np.concatenate([[last[-1]], tree[tree != last[-1]]])
        block = np.repeat(order, row[order])
        if style == "same" and last is not None:
            block = _aligned(block, last)
        yield block
        last = block


def _aligned(block: Ints, last: Ints) -> Ints:
    """The same domains in an order that agrees with ``last`` in as many places as can be."""
    left = np.bincount(block)
    out = np.full(len(block), -1)
    for at, domain in enumerate(last):
        if domain < len(left) and left[domain] > 0:
            out[at], left[domain] = domain, left[domain] - 1
    out[out < 0] = np.repeat(np.arange(len(left)), left)
    return out


def nodes_of(instance: Instance, leaves: Ints) -> Ints:
    """A node of each slot's domain, the quickest first."""
    fabric = instance.fabric
    speed = np.argsort(-fabric.nic, kind="stable")
    out = np.empty(len(leaves), dtype=np.int64)
    for d in np.unique(leaves):
        slots = np.flatnonzero(leaves == d)
        out[slots] = speed[fabric.domains[0][speed] == d][: len(slots)]
    return out

"""What one innermost domain may give to each run of blocks: few ways, once all limits are taken together.

A *unit* is a run of blocks that every kind of groups keeps within: a stage, a stage with its replicas. The *piece* of a
domain in a unit is how many of its nodes each block takes. A piece puts known loads on the domain's uplink, and all
pieces of a domain use up its nodes. So most pieces are in no set of them that keeps within the limits, and those that
are left, one variable each, tell a solver at once what it would else find out by trying. All of this follows from the
counts and their limits; it adds nothing to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Ints

from .placement_blocks import CountsModel, Limit, Limits, block_chains, fills, unit_load
from .placement_cost import Groups, Instance
from .placement_orders import run_of_blocks

Cost = tuple[int, ...]
"""Nodes of a piece and its loads, in whole units, of every kind of groups."""

_MOST_PIECES = 600_000
"""Pieces looked at, where all blocks are one unit."""

_MOST_OF_SEVERAL = 2000
"""The same where there are several units: sets of pieces are looked at then."""

_MOST_PICKS = 1000
"""Pieces that are a variable each, of all domains and units together: more slow a solver down."""

_MOST_COMPOSITIONS = 2000
"""Ways to make up a unit from pieces."""

_MOST_STEPS = 200_000
"""Pieces tried for that."""

_MOST_SETS = 300
"""Kinds of pieces, by nodes and loads, that are joined to sets."""


@dataclass(frozen=True, slots=True)
class Part:
    """What pieces add to one group of a unit: ``number[piece]`` of its runs, of ``each`` runs that it may have."""

    index: int
    number: Ints
    each: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """All pieces of up to the largest domain: ``nodes[piece, block]``, loads by kind in whole units, and runs."""

    units: int
    nodes: Ints
    loads: dict[int, Ints]
    parts: tuple[Part, ...]
    kinds: Ints
    """Of each piece: those with the same numbers in another order are one kind, where that changes no load."""
    compositions: Ints | None
    """How many of each kind a unit may be made of, ``[way, kind]``; None: there is one unit, or too many ways."""


def pieces_of(instance: Instance, size: int, limits: Limits) -> Pieces | None:
    """Pieces of units of blocks of ``size`` slots for the kinds of groups in ``limits``; None: too many."""
    run = run_of_blocks(instance, size, limits)
    largest = int(np.bincount(instance.fabric.domains[0]).max())
    top, units = min(size, largest) + 1, instance.num_slots // size // run
    if top**run > (_MOST_PIECES if units == 1 else _MOST_OF_SEVERAL):
        return None
    nodes = np.stack(np.unravel_index(np.arange(1, top**run), (top,) * run), axis=1)
    nodes = nodes[nodes.sum(axis=1) <= largest]
    loads, parts = {}, []
    for index in limits:
        g = instance.groups[index]
        runs = list(_runs(g, size, nodes)) if g.family != "p2p" else []
        if not runs or (not fills(g, size) and len(runs) * units != len(block_chains(g, size))):
            continue
        loads[index] = int(g.lanes.min()) * np.sum(runs, axis=0)
        if g.family == "ring":
            parts += [Part(index, number, 1 if fills(g, size) else size) for number in runs]
    kinds = _kinds(nodes, loads)
    return Pieces(units, nodes, loads, tuple(parts), kinds, _compositions(nodes, kinds, size) if units > 1 else None)


def _kinds(nodes: Ints, loads: dict[int, Ints]) -> Ints:
    kinds = np.unique(np.sort(nodes, axis=1), axis=0, return_inverse=True)[1].ravel()
    first = np.unique(kinds, return_index=True)[1]
    alike = all(np.array_equal(load, load[first][kinds]) for load in loads.values())
    return kinds if alike else np.arange(len(nodes))


def _compositions(nodes: Ints, kinds: Ints, size: int) -> Ints | None:
    """All ways to fill every block of a unit, block by block with pieces of which it is the first."""
    run = nodes.shape[1]
    first = (nodes > 0).argmax(axis=1)
    pieces = [
        [(tuple(nodes[at].tolist()), int(kinds[at])) for at in np.flatnonzero(first == block)] for block in range(run)
    ]
    found: set[tuple[int, ...]] = set()
    parts = [0] * (int(kinds.max()) + 1)
    steps = 0

    def fill(block: int, since: int, left: Cost) -> bool:
        nonlocal steps
        while block < run and not left[block]:
            block, since = block + 1, 0
        if block == run:
            found.add(tuple(parts))
            return len(found) <= _MOST_COMPOSITIONS
        for at in range(since, len(pieces[block])):
            piece, kind = pieces[block][at]
            steps += 1
            if not _within(piece, left):
                continue
            parts[kind] += 1
            going = fill(block, at, tuple(a - b for a, b in zip(left, piece, strict=True)))
            parts[kind] -= 1
            if not going or steps > _MOST_STEPS:
                return False
        return True

    return np.array(sorted(found)) if fill(0, 0, (size,) * run) else None


@dataclass(slots=True)
class SharesModel:
    """How many pieces of each kind each innermost domain gives, and how many units are made of them in each way.

    It does not say which unit gets what, so units that are alike are not gone through one by one. Where no such numbers
    keep within the limits, no counts do.
    """

    cp: Any
    number: dict[tuple[int, int], Any] = field(default_factory=dict)
    """By domain and kind of piece."""

    def hold(self, instance: Instance, limits: Limits, pieces: Pieces) -> bool:
        """Hold the numbers to the limits; False: there are too many ways to make up a unit."""
        if pieces.compositions is None:
            return False
        first = np.unique(pieces.kinds, return_index=True)[1]
        held = np.bincount(instance.fabric.domains[0])
        spare = len(instance.fabric.nodes) - instance.num_slots
        for domain, most in enumerate(held.tolist()):
            kept = _kept(instance, limits, pieces, domain, len(pieces.nodes))
            kinds = np.unique(pieces.kinds[kept]).tolist() if kept is not None else []
            own = {kind: self.cp.new_int_var(0, pieces.units, "") for kind in kinds}
            self.number |= {(domain, kind): var for kind, var in own.items()}
            used = sum(int(pieces.nodes[first[kind]].sum()) * var for kind, var in own.items())
            self.cp.add(used <= most)
            self.cp.add(used >= most - spare)
            for index, load in pieces.loads.items():
                sent = [int(load[first[kind]]) * var for kind, var in own.items()]
                if sent:
                    self.cp.add(sum(sent) <= _room(instance, index, limits[index], domain))
        ways = [self.cp.new_int_var(0, pieces.units, "") for _ in pieces.compositions]
        self.cp.add(sum(ways) == pieces.units)
        for kind, parts in enumerate(pieces.compositions.T.tolist()):
            given = sum(var for (_, own_kind), var in self.number.items() if own_kind == kind)
            self.cp.add(given == sum(part * way for part, way in zip(parts, ways, strict=True) if part))
        return True


def _runs(g: Groups, size: int, nodes: Ints) -> Iterator[Ints]:
    """For each group of a unit what leaves the domain with each piece: a ring's runs, an all-to-all's pairs."""
    run = nodes.shape[1]
    if fills(g, size):
        held = nodes.reshape(len(nodes), -1, g.slots_each // size).sum(axis=2)
        for inside in held.T:
            outside = g.slots_each - inside
            yield inside * outside if g.family == "all-to-all" else ((inside > 0) & (outside > 0)).astype(np.int64)
        return
    for chain, _ in block_chains(g, size):
        if max(chain) < run:
            each = nodes[:, list(chain)]
            yield np.maximum(0, each - np.roll(each, -1, axis=1)).sum(axis=1)


def tighten(model: CountsModel, limits: Limits, pieces: Pieces, shares: dict[tuple[int, int], int]) -> None:
    """Say in a model of counts which pieces each innermost domain may give, and what they add up to.

    ``shares``: how many of each kind, by domain and kind, where that is known; else empty.
    """
    run, complete, left = pieces.nodes.shape[1], True, _MOST_PICKS
    fabric, nodes = model.instance.fabric, pieces.nodes.sum(axis=1)
    held, spare = np.bincount(fabric.domains[0]), len(fabric.nodes) - model.instance.num_slots
    spans: list[list[list[Any]]] = [[[] for _ in pieces.parts] for _ in range(pieces.units)]
    for domain in range(len(model.counts[0])):
        kept = _kept(model.instance, limits, pieces, domain, left // pieces.units)
        if kept is None:
            complete = False
            continue
        left -= len(kept) * pieces.units
        picked = [_picked(model, pieces, kept, domain, unit * run) for unit in range(pieces.units)]
        if not spare:
            every = [(at, pick) for picks in picked for at, pick in zip(kept.tolist(), picks, strict=True)]
            model.cp.add(sum(int(nodes[at]) * pick for at, pick in every) == int(held[domain]))
            if pieces.units == 1:
                model.cp.add_exactly_one(picked[0])
        for kind in np.unique(pieces.kinds[kept]).tolist() if shares else ():
            chosen = [p for picks in picked for at, p in zip(kept, picks, strict=True) if pieces.kinds[at] == kind]
            model.cp.add(sum(chosen) == shares.get((domain, kind), 0))
        for index, load in pieces.loads.items():
            terms = [int(load[at]) * pick for picks in picked for at, pick in zip(kept, picks, strict=True)]
            if terms:
                model.cp.add(sum(terms) <= _room(model.instance, index, limits[index], domain))
        for of_unit, picks in zip(spans, picked, strict=True):
            for terms, part in zip(of_unit, pieces.parts, strict=True):
                terms += [int(part.number[at]) * pick for at, pick in zip(kept, picks, strict=True)]
    for of_unit in spans if complete else ():
        for terms, part in zip(of_unit, pieces.parts, strict=True):
            if not terms:
                continue
            model.cp.add(sum(terms) <= part.each * limits[part.index].runs(0))


def _picked(model: CountsModel, pieces: Pieces, kept: Ints, domain: int, first: int) -> list[Any]:
    """A variable for each piece that a domain may give to the unit of blocks from ``first`` on, at most one true."""
    picks = [model.cp.new_bool_var("") for _ in kept]
    model.cp.add_at_most_one(picks)
    for place in range(pieces.nodes.shape[1]):
        count = model.counts[first + place][domain]
        model.cp.add(count == sum(int(pieces.nodes[at, place]) * pick for at, pick in zip(kept, picks, strict=True)))
    return picks


def _room(instance: Instance, index: int, limit: Limit, domain: int) -> int:
    return limit.room(0, float(instance.capacity[0][domain]), unit_load(instance.groups[index]))


def _kept(instance: Instance, limits: Limits, pieces: Pieces, domain: int, most: int) -> Ints | None:
    """Pieces that are in a set of them that uses the domain's nodes, but for spares, within all limits; None: many."""
    held = int(np.bincount(instance.fabric.domains[0])[domain])
    fewest = max(0, held - (len(instance.fabric.nodes) - instance.num_slots))
    room = [_room(instance, index, limits[index], domain) for index in pieces.loads]
    nodes = pieces.nodes.sum(axis=1)
    fits = (nodes <= held) & ((nodes >= fewest) if pieces.units == 1 else True)
    for load, limit in zip(pieces.loads.values(), room, strict=True):
        fits &= load <= limit
    at = np.flatnonzero(fits)
    if pieces.units == 1 or len(at) > 4 * most:
        return at if len(at) <= most else None
    costs = np.column_stack([nodes[at], *(load[at] for load in pieces.loads.values())])
    kinds, of_kind = np.unique(costs, axis=0, return_inverse=True)
    if len(kinds) > _MOST_SETS:
        return at if len(at) <= most else None
    joined = _joined([tuple(cost) for cost in kinds.tolist()], held, room)
    able = [_completes(tuple(cost), joined, fewest, held, room) for cost in kinds.tolist()]
    at = at[np.array(able, dtype=np.bool_)[of_kind.ravel()]] if able else at
    return at if len(at) <= most else None


def _joined(costs: list[Cost], held: int, room: list[int]) -> list[list[Cost]]:
    """For each number of nodes the loads of sets of pieces that use so many; only those that none other undercuts."""
    found: list[list[Cost]] = [[(0,) * len(room)]]
    for total in range(1, held + 1):
        sums = {
            tuple(a + b for a, b in zip(cost[1:], rest, strict=True))
            for cost in costs if cost[0] <= total for rest in found[total - cost[0]]
        }  # fmt: skip
        least: list[Cost] = []
        for loads in sorted(sums):
            if _within(loads, room) and not any(_within(other, loads) for other in least):
                least.append(loads)
        found.append(least)
    return found


def _completes(cost: Cost, joined: list[list[Cost]], fewest: int, held: int, room: list[int]) -> bool:
    left = [most - load for load, most in zip(cost[1:], room, strict=True)]
    return any(
        _within(rest, left) for total in range(max(0, fewest - cost[0]), held - cost[0] + 1) for rest in joined[total]
    )


def _within(loads: Cost, room: list[int] | Cost) -> bool:
    return all(load <= most for load, most in zip(loads, room, strict=True))

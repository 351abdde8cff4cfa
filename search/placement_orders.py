"""One order for what is alike, so that a solver need not look at the others: runs of blocks, blocks of a ring, domains.

Of all tables of counts that differ only in the order of those, the one that is largest read row by row is kept. So
every constraint here compares the table with one renaming of it, and they hold together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Ints

from .placement_blocks import CountsModel, Limit, Limits, fills
from .placement_cost import Groups, Instance

_KEY_BITS = 40
"""Blocks are ordered by a number of so many bits."""


def run_of_blocks(instance: Instance, size: int, limits: Limits) -> int:
    """Blocks in the aligned runs that every kind of groups keeps within; all blocks where one keeps within none."""
    return math.lcm(1, *(_reach(instance, size, index, limit) for index, limit in limits.items()))


def allows_all(instance: Instance, index: int, limit: Limit) -> bool:
    """Whether a limit leaves neighbours free to be anywhere: those of a p2p that may cross everything."""
    if instance.groups[index].family != "p2p":
        return False
    return all(limit.crosses(level, float(factor.min())) for level, factor in enumerate(instance.fabric.uplink[:-1]))


def order_blocks(model: CountsModel, limits: Limits, exact: bool) -> None:
    """Add the constraints. ``exact``: the model has slots too, so the order within a block counts."""
    rows, size = _keys(model.counts, model.size + 1), model.size
    held = [model.instance.groups[i] for i, limit in limits.items() if not allows_all(model.instance, i, limit)]
    for one, other, order in _block_orders(model, limits):
        if any(_keeps(held, renaming, 1 if exact else size) for renaming in _renamings(order, size, exact)):
            model.cp.add(rows[one] >= rows[other])
    columns = _keys(list(zip(*model.counts, strict=True)), size + 1)
    for one, other in _alike_domains(model.instance):
        model.cp.add(columns[one] >= columns[other])


def _block_orders(model: CountsModel, limits: Limits) -> Iterator[tuple[int, int, list[int]]]:
    """Two blocks and an order of all of them: may the first be the larger, if that order changes nothing."""
    blocks = len(model.counts)
    run = run_of_blocks(model.instance, model.size, limits)
    base = list(range(blocks))
    for first in range(0, blocks - run, run):
        second, after = first + run, first + 2 * run
        yield first, second, [*base[:first], *base[second:after], *base[first:second], *base[after:]]
    for block in range(1, blocks):
        if block % run and run <= 3:  # a ring of up to three has no order
            yield block - 1, block, [*base[: block - 1], block, block - 1, *base[block + 1 :]]
        elif run == blocks:  # a ring may start anywhere
            yield 0, block, [*base[block:], *base[:block]]


def _renamings(order: list[int], size: int, exact: bool) -> Iterator[Ints]:
    """New names of all blocks, or of all slots: those of a block in their order, or the other way round."""
    if not exact:
        yield np.array(order)
        return
    slots = np.arange(len(order) * size).reshape(len(order), size)
    yield slots[order].ravel()
    yield slots[order][:, ::-1].ravel()


def _keeps(held: Sequence[Groups], renaming: Ints, size: int) -> bool:
    """Whether renamed blocks of ``size`` slots hold the same groups, rings from any member on and either way round."""
    same = np.arange(len(renaming))
    return all(_named(g, renaming, size) == _named(g, same, size) for g in held)


def _named(g: Groups, names: Ints, size: int) -> list[Any]:
    if g.family == "p2p":
        return sorted({tuple(sorted(pair)) for pair in names[g.pairs // size].tolist()})
    rows = zip(names[g.rows // size].tolist(), g.lanes.tolist(), strict=True)
    ordered = g.family == "ring" and not (size > 1 and fills(g, size))
    return sorted({(_turned(row) if ordered else tuple(sorted(set(row))), lanes) for row, lanes in rows})


def _turned(row: list[int]) -> tuple[int, ...]:
    """A ring's members from the lowest one on, towards its lower neighbour."""
    ring = [member for member, before in zip(row, row[-1:] + row[:-1], strict=True) if member != before] or row[:1]
    at = ring.index(min(ring))
    ring = ring[at:] + ring[:at]
    return tuple(ring if ring[1:2] <= ring[-1:] else [ring[0], *ring[:0:-1]])


def _keys(vectors: Sequence[Sequence[Any]], base: int) -> list[Any]:
    """A number for each vector of counts below ``base`` that orders them by their first entries."""
    first = range(min(len(vectors[0]), int(_KEY_BITS / math.log2(base))))
    return [sum(base ** (len(first) - 1 - d) * vector[d] for d in first) for vector in vectors]


def _alike_domains(instance: Instance) -> Iterator[tuple[int, int]]:
    """Innermost domains that differ in nothing but their names, each with the one like it before."""
    fabric = instance.fabric
    first = np.unique(fabric.domains[0], return_index=True)[1]
    last: dict[tuple[Any, ...], int] = {}
    for d, count in enumerate(np.bincount(fabric.domains[0]).tolist()):
        outer = tuple(int(level[first[d]]) for level in fabric.domains[1:])
        links = tuple(sorted(fabric.nic[fabric.domains[0] == d].tolist()))
        key = (count, float(instance.capacity[0][d]), float(fabric.uplink[0][d]), links, outer)
        if key in last:
            yield last[key], d
        last[key] = d


def _reach(instance: Instance, size: int, index: int, limit: Limit) -> int:
    """Blocks in the aligned runs that a kind of groups keeps within; all blocks where it keeps within none."""
    g, blocks = instance.groups[index], instance.num_slots // size
    if fills(g, size):
        return g.slots_each // size
    if allows_all(instance, index, limit):
        return 1
    for run in (d for d in range(1, blocks + 1) if blocks % d == 0):
        at = g.rows // size // run
        if np.all(at == at[:, :1]):
            return run
    return blocks

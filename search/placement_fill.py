"""Ways to fill the domains of a fabric with slots: the starting points of a placement.

A visiting order takes the slots as a grid, pipeline stages by columns (what one stage holds, in rank order), in tiles
of some stages and some columns. A filling gives each domain whole tiles while it has room and puts the tiles that are
left over onto the nodes that are left over, neighbouring domains together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardwise.costmodel.problem import Ints

from .placement_cost import Instance


def starts(instance: Instance, stages: int) -> Iterator[Ints]:
    """Node of each slot for many ways of filling, each deterministic; ``stages``: degree of the outermost axis."""
    slots, fabric = instance.num_slots, instance.fabric
    stages = stages if slots % stages == 0 else 1
    columns = slots // stages
    orders = list(_node_orders(instance, columns))
    for rows in _divisors(stages):
        for width in _widths(columns):
            visit = _visit(stages, columns, rows, width)
            for order in orders:
                for unit in sorted({1, width, rows * width}):
                    if unit == 1 or unit <= max(len(part) for part in order):
                        yield _fill(visit, order, unit, len(fabric.nodes) - slots)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _widths(columns: int, most: int = 8) -> list[int]:
    """Divisors of the columns, the smaller ones and all of them."""
    found = _divisors(columns)
    return found if len(found) <= most else [*found[: most - 1], found[-1]]


def _visit(stages: int, columns: int, rows: int, width: int) -> Ints:
    """Slots in tiles of ``rows`` stages by ``width`` columns, tile by tile, stage by stage within a tile."""
    grid = np.arange(stages * columns).reshape(stages // rows, rows, columns // width, width)
    return np.asarray(grid.transpose(0, 2, 1, 3).ravel())


def _node_orders(instance: Instance, columns: int) -> Iterator[list[Ints]]:
    """Nodes of each innermost domain, domains in several orders that keep outer domains together.

    Within a domain the quickest nodes come first, so that slow ones are what stays spare.
    """
    fabric = instance.fabric
    levels = [np.asarray(level) for level in fabric.domains]
    speed = np.argsort(-fabric.nic, kind="stable")
    leaf = levels[0]
    members = [speed[leaf[speed] == d] for d in range(int(leaf.max()) + 1)]
    first = np.array([part[0] for part in members])
    outer = [level[first] for level in reversed(levels[1:])]
    sizes = np.array([len(part) for part in members])
    keys = {"given": np.arange(len(members)), "large": -sizes, "even": (sizes % max(1, columns) != 0) * 1}
    seen = set()
    for key in keys.values():
        by_outer = [_by_size(level, sizes) if key is not keys["given"] else level for level in outer]
        order = np.lexsort((np.arange(len(members)), key, *reversed(by_outer)))
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield [members[d] for d in order]
    packed = _packed(sizes, columns)
    if packed is not None and len(levels) <= 2 and tuple(packed) not in seen:
        yield [members[d] for d in packed]


def _by_size(level: Ints, sizes: Ints) -> Ints:
    """Numbers of outer domains, the largest first."""
    total = np.bincount(level, weights=sizes)
    rank = np.empty(len(total), dtype=np.int64)
    rank[np.argsort(-total, kind="stable")] = np.arange(len(total))
    return rank[level]


def _packed(sizes: Ints, columns: int) -> list[int] | None:
    """An order in which as many stages as possible take whole domains: subsets that sum to ``columns``, one by one."""
    left = sorted(range(len(sizes)), key=lambda d: (-sizes[d], d))
    order: list[int] = []
    while True:
        subset = _subset(sizes, left, columns)
        if subset is None:
            return [*order, *left] if order else None
        order += subset
        chosen = set(subset)
        left = [d for d in left if d not in chosen]


def _subset(sizes: Ints, left: Sequence[int], wanted: int) -> list[int] | None:
    """Domains of ``left`` whose sizes sum to ``wanted``, by dynamic programming over the sums."""
    came: dict[int, tuple[int, int]] = {0: (-1, -1)}
    for d in left:
        for total in list(came):
            new = total + int(sizes[d])
            if new <= wanted and new not in came:
                came[new] = (d, total)
        if wanted in came:
            break
    if wanted not in came:
        return None
    subset, total = [], wanted
    while total:
        d, total = came[total]
        subset.append(d)
    return subset[::-1]


def _fill(visit: Ints, order: list[Ints], unit: int, spare: int) -> Ints:
    """Whole tiles of ``unit`` slots to each domain in turn, the remaining slots to the nodes that remain."""
    whole = [len(part) // unit * unit for part in order]
    slots = len(visit)
    taken, parts = 0, []
    for part, count in zip(order, whole, strict=True):
        use = min(count, (slots - taken) // unit * unit)
        parts.append(part[:use])
        taken += use
    left = [part[len(used) :] for part, used in zip(order, parts, strict=True)]
    if spare:  # leave out the smallest remainders
        left = sorted(left, key=lambda part: -len(part))
    nodes = np.concatenate([*parts, *left])[:slots]
    out = np.empty(slots, dtype=np.int64)
    out[visit] = nodes
    return out

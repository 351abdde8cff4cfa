"""What a step's traffic costs when the slots of a job stand on given nodes.

Slot ``s`` is the place of one node in rank order: with ``g`` accelerators a node it holds ranks ``s·g`` to
``s·g + g - 1``. A placement gives each slot a node; a launcher can express any of them by the order of its hosts. What
changes with it is where the members of a group are:

- a **ring** (all-reduce, all-gather, reduce-scatter, broadcast) runs through its members in rank order. At each level
  its *runs* are the stretches of neighbours in one domain; each sends what goes once round out of that domain. NCCL
  connects nodes in the order of their ranks and knows no switches, so the order counts, not only who is where.
- an **all-to-all** member sends ``S/n`` to every other: ``g·(n - g)·S/n`` leave a domain that holds ``g`` of the ``n``.
- a **p2p** message takes the links between two neighbours; the step waits for the farthest pair.

All groups of one parallelism work at once, and the step waits for the slowest. So each level counts with its worst
group (most runs, fewest members together) and its busiest uplink: what all groups send out of a domain, over the
accelerators that the job holds there times the share of their rate that the uplink has (``Fabric.uplink``). The seconds
follow from the laws of ``hardware_profiles.collectives``, exposed seconds from ``costmodel.exposed``. Where every group
is spread evenly over at most one tier outside its nodes, this is exactly what the cost model takes for the ideal
cluster; over more, the fills of those tiers add as one path's (``Group.outside``), so that crossing more never seems
quicker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.exposed import Pool
from shardwise.costmodel.problem import Ints
from shardwise.hardware_profiles.collectives import Group
from shardwise.hardware_profiles.fabric import Fabric

Array = NDArray[np.float64]
Shape = tuple[tuple[float, ...], tuple[float, ...]]
"""Spans and crossing of every tier: the two things that a collective's time depends on."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ranks that one parallelism forms, as slots; groups on the same slots stand once.

    ``rows[u, n]`` is the slot of each member in rank order, ``lanes[u]`` how many groups have that row. ``inner_spans``
    and ``inner_crossing`` belong to the tiers inside a node, which no placement changes; ``load[s]`` is what the groups
    send out of a slot's node, per accelerator.
    """

    family: str
    size: int
    stride: int
    rows: Ints
    lanes: Ints
    pairs: Ints
    """Of neighbours, ``[p, 2]``: what a p2p message goes between."""
    pair_lanes: Ints
    inner_spans: tuple[float, ...]
    inner_crossing: tuple[float, ...]
    load: Array
    slots_each: int
    """Slots of the group that is on most."""
    width: int
    """Members of a group on each of its slots, where that is the same everywhere; else 0."""


_FAMILIES = {"all_to_all": "all-to-all", "p2p": "p2p"}
"""Collectives that are no ring."""


@dataclass(slots=True)
class Instance:
    """A placement problem: ``pools`` of traffic on the nodes of a ``fabric``, ``num_slots`` of which are used."""

    fabric: Fabric
    pools: tuple[Pool, ...]
    num_slots: int
    wrap: bool
    """Whether the last pipeline stage sends to the first one (interleaved schedules)."""
    groups: list[Groups] = field(default_factory=list)
    users: list[list[tuple[int, int]]] = field(default_factory=list)
    """For every entry of ``groups`` the pool and collective that it serves."""
    capacity: list[Array] = field(default_factory=list)
    _seconds: dict[tuple[int, Shape], tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known: dict[tuple[str, int, int], int] = {}
        for p, pool in enumerate(self.pools):
            for c, comm in enumerate(pool.collectives):
                key = (_FAMILIES.get(comm.collective, "ring"), comm.group_size, comm.stride)
                if key not in known:
                    known[key] = len(self.groups)
                    wrap = key[0] == "p2p" and (pool.parallelism != "pp" or self.wrap)
                    self.groups.append(make_groups(self.fabric, self.num_slots, *key, wrap=wrap))
                    self.users.append([])
                self.users[known[key]].append((p, c))
        fabric, size = self.fabric, float(self.fabric.node_size)
        weight = size * (fabric.nic if fabric.inside == 0 else np.ones(len(fabric.nodes)))
        self.capacity = [
            np.bincount(domain, weights=weight, minlength=len(factor)) * factor
            for domain, factor in zip(fabric.domains, fabric.uplink, strict=True)
        ]

    def shape(self, index: int, nodes: Ints) -> Shape:
        """Spans and crossing of one entry of ``groups`` when slot ``s`` is on node ``nodes[s]``."""
        g, fabric = self.groups[index], self.fabric
        if g.family == "p2p":
            return self._pair_shape(g, nodes)
        spans, crossing = list(g.inner_spans), list(g.inner_crossing)
        if fabric.inside:
            crossing.append(float((g.load / fabric.nic[nodes]).max()))
        else:
            crossing.append(1.0)
        for level, domains in enumerate(fabric.domains):
            last = level == len(fabric.domains) - 1
            span, load = (1.0, None) if last else _level(g, domains[nodes][g.rows], len(self.capacity[level]))
            spans.append(span)
            if load is not None:
                crossing.append(float((load / self.capacity[level]).max()))
        return tuple(spans), tuple(crossing)

    def _pair_shape(self, g: Groups, nodes: Ints) -> Shape:
        fabric = self.fabric
        spans, crossing = list(g.inner_spans), list(g.inner_crossing)
        pairs = nodes[g.pairs]
        moving = pairs[pairs[:, 0] != pairs[:, 1]]
        crossing.append(float((1.0 / fabric.nic[moving]).max()) if moving.size and fabric.inside else 1.0)
        for level, domains in enumerate(fabric.domains):
            ends = domains[moving]
            ends = ends[ends[:, 0] != ends[:, 1]]
            spans.append(2.0 if ends.size else 1.0)
            if level < len(fabric.domains) - 1:
                crossing.append(float((1.0 / fabric.uplink[level][ends]).max()) if ends.size else 1.0)
        return tuple(spans), tuple(crossing)

    def seconds(self, index: int, shape: Shape) -> tuple[float, ...]:
        """Seconds of every collective that uses an entry of ``groups``, counts applied, in the order of ``users``."""
        key = (index, shape)
        if key not in self._seconds:
            spans, crossing = (tuple(np.array([x]) for x in part) for part in shape)
            self._seconds[key] = tuple(float(t[0]) for t in self.many_seconds(index, spans, crossing))
        return self._seconds[key]

    def many_seconds(self, index: int, spans: tuple[Array, ...], crossing: tuple[Array, ...]) -> list[Array]:
        """The same for arrays of shapes, one array a collective."""
        g, out = self.groups[index], []
        size = np.full(spans[0].shape, 2.0 if g.family == "p2p" else float(g.size))
        group = Group(size, spans, crossing, self.fabric.inside)
        for p, c in self.users[index]:
            comm = self.pools[p].collectives[c]
            one = self.fabric.cluster.group_time_s(
                comm.collective, np.array(comm.tensor_bytes), group, self.fabric.tiers
            )
            out.append(comm.count * one)
        return out

    def exposed(self, shapes: list[Shape]) -> float:
        """Exposed seconds a step for the shapes of all groups."""
        totals = [0.0] * len(self.pools)
        for index, shape in enumerate(shapes):
            for (p, _), seconds in zip(self.users[index], self.seconds(index, shape), strict=True):
                totals[p] += seconds
        return float(sum(pool.exposed_s(total) for pool, total in zip(self.pools, totals, strict=True)))

    def shapes(self, nodes: Ints) -> list[Shape]:
        """Spans and crossing of all groups under a placement."""
        return [self.shape(index, nodes) for index in range(len(self.groups))]

    def cost(self, nodes: Ints) -> float:
        """Exposed seconds a step when slot ``s`` is on node ``nodes[s]``."""
        return self.exposed(self.shapes(nodes))

    def exposed_by_parallelism(self, nodes: Ints) -> dict[str, float]:
        """Exposed seconds a step of each parallelism; they sum to ``cost``."""
        totals = [0.0] * len(self.pools)
        for index, shape in enumerate(self.shapes(nodes)):
            for (p, _), seconds in zip(self.users[index], self.seconds(index, shape), strict=True):
                totals[p] += seconds
        out: dict[str, float] = {}
        for pool, total in zip(self.pools, totals, strict=True):
            out[pool.parallelism] = out.get(pool.parallelism, 0.0) + float(pool.exposed_s(total))
        return out

    def uplink_bytes(self, nodes: Ints) -> list[dict[str, Array]]:
        """Bytes a step that leave each domain of each level, by parallelism: ``[level][parallelism][domain]``."""
        out: list[dict[str, Array]] = []
        for level, domains in enumerate(self.fabric.domains[:-1]):
            sent: dict[str, Array] = {}
            for index, g in enumerate(self.groups):
                load = _sent(g, domains[nodes], len(self.capacity[level]))
                for p, c in self.users[index]:
                    pool = self.pools[p]
                    moved = load * pool.collectives[c].bytes_once_round * pool.collectives[c].count * pool.repeat
                    sent[pool.parallelism] = sent.get(pool.parallelism, np.zeros_like(load)) + moved
            out.append(sent)
        return out


def _level(g: Groups, at: Ints, count: int) -> tuple[float, Array]:
    """Spans of the worst group at a level, and what all groups send out of each of its domains.

    ``at[u, n]`` is the domain of each member.
    """
    if g.family == "all-to-all":
        row, domain, members = _members(at, count)
        sent = g.lanes[row] * members * (g.size - members) / g.size
        return g.size / float(members.min()), _total(domain, sent, count)
    leaving = at != np.roll(at, -1, axis=1)
    runs = max(1.0, float(leaving.sum(axis=1).max()))
    lanes = np.broadcast_to(g.lanes[:, None], at.shape)[leaving]
    return runs, _total(at[leaving], lanes, count)


def _total(domain: Ints, weights: Array | Ints, count: int) -> Array:
    return np.bincount(domain, weights=weights, minlength=count).astype(np.float64)


def _members(at: Ints, count: int) -> tuple[Ints, Ints, Array]:
    """Each pair of a group and a domain that it has members in, and how many it has there."""
    codes, members = np.unique(np.arange(len(at))[:, None] * count + at, return_counts=True)
    return codes // count, codes % count, members.astype(np.float64)


def _sent(g: Groups, domain: Ints, count: int) -> Array:
    """Of each domain, how many times what one group member passes on leaves it."""
    if g.family == "p2p":
        ends = domain[g.pairs]
        moving = ends[:, 0] != ends[:, 1]
        return _total(ends[moving, 0], g.pair_lanes[moving], count)
    return _level(g, domain[g.rows], count)[1]


def make_groups(fabric: Fabric, num_slots: int, family: str, size: int, stride: int, wrap: bool) -> Groups:
    """Groups of ``size`` ranks ``stride`` apart, tiled over the ranks in blocks of ``size · stride``.

    Where the blocks do not tile (the two ends of a pipeline) there is one group for every first member that fits.
    ``wrap``: the last member of a p2p group sends to the first one.
    """
    node = fabric.node_size
    world = num_slots * node
    if world % (size * stride):
        ranks = np.arange(world - (size - 1) * stride)[:, None] + np.arange(size) * stride
    else:
        ranks = np.arange(world).reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    rows, lanes = np.unique(ranks // node, axis=0, return_counts=True)
    first, second = ranks[:, :-1].ravel(), ranks[:, 1:].ravel()
    if wrap:
        first, second = np.concatenate([first, ranks[:, -1]]), np.concatenate([second, ranks[:, 0]])
    both = np.stack([first, second], axis=1)
    pairs, pair_lanes = np.unique(both // node, axis=0, return_counts=True)
    spans, crossing, load = _inside(fabric, family, ranks, both, num_slots)
    members = np.unique(np.arange(len(rows))[:, None] * num_slots + rows, return_counts=True)
    slots_each = int(np.bincount(members[0] // num_slots).max())
    width = int(members[1][0]) if np.all(members[1] == members[1][0]) else 0
    return Groups(family, size, stride, rows, lanes, pairs, pair_lanes, spans, crossing, load, slots_each, width)


def _inside(
    fabric: Fabric, family: str, ranks: Ints, pairs: Ints, num_slots: int
) -> tuple[tuple[float, ...], tuple[float, ...], Array]:
    """Spans and crossing of the tiers that end within a node, and what leaves each slot's node per accelerator."""
    spans: list[float] = []
    crossing: list[float] = []
    load = np.ones(num_slots)
    ones = np.ones(len(ranks), dtype=np.int64)
    whole = Groups(family, ranks.shape[1], 1, ranks, ones, pairs, ones, (), (), load, 0, 0)
    for tier in fabric.tiers[: fabric.inside]:
        crossing.append(float(load.max()))
        if family == "p2p":
            ends = pairs // tier.size
            spans.append(2.0 if np.any(ends[:, 0] != ends[:, 1]) else 1.0)
            continue
        count = num_slots * fabric.node_size // tier.size
        span, sent = _level(whole, ranks // tier.size, count)
        spans.append(span)
        load = (sent / tier.size).reshape(num_slots, -1).max(axis=1)
    return tuple(spans), tuple(crossing), load

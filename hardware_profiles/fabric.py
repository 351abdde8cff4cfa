"""Where the nodes of an allocation are on a cluster's network: which domain of each tier, behind which uplink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Tier
from .errors import InputError
from .hostlist import compress, natural
from .topology import Fault, Topology

IntArray = NDArray[np.int64]
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fabric:
    """Nodes under the tiers that join them, innermost first; ``k`` counts those tiers, ``m`` the nodes.

    ``tiers`` are the cluster's, the outermost repeated where the topology has more levels. The first ``inside`` of them
    end within a node. Each further one has domains of nodes: ``domains[k][m]``. ``uplink[k][d]`` is what a domain sends
    into the tier above, as a share of what the profile gives it; ``nic[m]`` the same for a node's own links.
    """

    cluster: Cluster
    nodes: tuple[str, ...]
    tiers: tuple[Tier, ...]
    inside: int
    domains: tuple[IntArray, ...]
    uplink: tuple[Array, ...]
    nic: Array
    names: tuple[str, ...]
    """Of the switch (block, rack) that each node hangs on; empty where no file says."""
    faults: tuple[Fault, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def node_size(self) -> int:
        """Accelerators of a node."""
        return self.cluster.node_size

    def level_names(self) -> tuple[str, ...]:
        """The tier that each level of ``domains`` is a domain of."""
        return tuple(tier.name for tier in self.tiers[self.inside :])


def fabric_of(
    cluster: Cluster, topology: Topology | None, nodes: Sequence[str], slower: Mapping[str, float] | None = None
) -> Fabric:
    """The nodes on the cluster's tiers, by a topology or, without one, in blocks of the profile's own sizes.

    The innermost level of a topology is the cluster's first tier that is larger than a node: the rack of a rack-scale
    system where no leaf holds more nodes than one, else the leaf. ``slower`` gives nodes or switches the share of their
    rate that is left: ``{"node07": 0.5}``. Raises InputError for nodes named twice or none, and for names that are
    neither.
    """
    names = tuple(nodes)
    if not names:
        raise InputError("nodes: none given; expected a host list such as gpu[001-128]")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"nodes: {compress(sorted(twice, key=natural))} given twice; expected each node once")
    levels = _profile_levels(cluster, len(names)) if topology is None else topology.domains(names)
    inside = sum(tier.size <= cluster.node_size for tier in cluster.tiers)
    assumptions: list[str] = []
    if topology is not None:
        levels = _fitted(cluster, levels, inside, assumptions)
    tiers = _tiers(cluster, inside, len(levels))
    fabric = Fabric(
        cluster=cluster,
        nodes=names,
        tiers=tiers,
        inside=inside,
        domains=tuple(np.array(level, dtype=np.int64) for level in levels),
        uplink=tuple(np.ones(max(level) + 1) for level in levels),
        nic=np.ones(len(names)),
        names=("",) * len(names) if topology is None else topology.leaf_names(names),
        faults=() if topology is None else (*topology.faults, *_nowhere(topology, names)),
        assumptions=tuple(assumptions),
    )
    if topology is not None:
        fabric = _with_speeds(fabric, topology)
    return fabric if not slower else _slowed(fabric, topology, slower)


def _profile_levels(cluster: Cluster, count: int) -> tuple[tuple[int, ...], ...]:
    """Nodes numbered through blocks of the profile's tiers; the last tier holds all."""
    sizes = [tier.size // cluster.node_size for tier in cluster.tiers if tier.size > cluster.node_size]
    levels = []
    for size in sizes:
        level = tuple(at // size for at in range(count))
        levels.append(level)
        if not any(level):
            break
    if not levels or any(levels[-1]):
        levels.append((0,) * count)
    return tuple(levels)


def _fitted(
    cluster: Cluster, levels: tuple[tuple[int, ...], ...], inside: int, assumptions: list[str]
) -> tuple[tuple[int, ...], ...]:
    """Levels of a topology laid on the tiers; a rack level that the topology does not show is each node by itself."""
    rack = cluster.tiers[inside].size // cluster.node_size if inside < len(cluster.tiers) else 0
    if inside or not rack:
        return levels
    largest = max(Counter(levels[0]).values())
    if largest <= rack:
        return levels
    inner = cluster.tiers[0].name
    assumptions.append(
        f"the topology shows no {inner} domain of up to {rack} nodes: every node is taken to be one itself"
    )
    return (tuple(range(len(levels[0]))), *levels)


def _tiers(cluster: Cluster, inside: int, levels: int) -> tuple[Tier, ...]:
    """As many tiers as the levels need: the outermost stands for those that the profile lacks."""
    wanted = inside + levels
    tiers = list(cluster.tiers[:wanted])
    while len(tiers) < wanted:
        tiers.append(replace(tiers[-1], name=f"{cluster.tiers[-1].name} +{len(tiers) - len(cluster.tiers) + 1}"))
    return tuple(tiers)


def _nowhere(topology: Topology, names: Sequence[str]) -> list[Fault]:
    known = set(topology.nodes)
    lost = [name for name in names if name not in known] if topology.kind != "flat" else []
    if not lost:
        return []
    told = f"{len(lost)} of the {len(names)} nodes are not in the file ({compress(sorted(lost, key=natural))})"
    return [Fault(topology.path, 0, f"{told}; each is taken to hang on a switch of its own")]


def _switches_of(fabric: Fabric, topology: Topology) -> dict[str, tuple[int, int]]:
    """Level and domain of every switch that has nodes of the allocation below it."""
    below: dict[str, str] = {}
    at = {name: index for index, name in reversed(list(enumerate(fabric.names))) if name}
    offset = len(fabric.domains) - len(topology.domains(fabric.nodes))
    found: dict[str, tuple[int, int]] = {}
    for switch in sorted(topology.switches, key=lambda s: s.level):
        inner = next((below[c] for c in switch.children if c in below), None)
        first = switch.name if switch.name in at else inner
        if first is not None:
            below[switch.name] = first
            level = min(switch.level + offset, len(fabric.domains) - 1)
            found[switch.name] = (level, int(fabric.domains[level][at[first]]))
    return found


def _with_speeds(fabric: Fabric, topology: Topology) -> Fabric:
    """Uplinks by LinkSpeed: against the commonest of a level, since the units are the site's own."""
    speeds, places = topology.speeds(), _switches_of(fabric, topology)
    by_level: dict[int, dict[int, float]] = {}
    for name, speed in speeds.items():
        if name in places:
            level, domain = places[name]
            by_level.setdefault(level, {})[domain] = by_level.get(level, {}).get(domain, 0.0) + speed
    uplink = [factors.copy() for factors in fabric.uplink]
    for level, found in by_level.items():
        counts = Counter(found.values())
        common = min(counts, key=lambda speed: (-counts[speed], speed))
        for domain, speed in found.items():
            uplink[level][domain] = speed / common
    return replace(fabric, uplink=tuple(uplink))


def _slowed(fabric: Fabric, topology: Topology | None, slower: Mapping[str, float]) -> Fabric:
    nic, uplink = fabric.nic.copy(), [factors.copy() for factors in fabric.uplink]
    at = {name: index for index, name in enumerate(fabric.nodes)}
    places = {} if topology is None else _switches_of(fabric, topology)
    for name, share in slower.items():
        if not 0.0 < share <= 1.0:
            raise InputError(f"degraded {name} = {share:g}: expected a share of its rate above 0 and up to 1")
        if name in at:
            nic[at[name]] *= share
        elif name in places:
            level, domain = places[name]
            uplink[level][domain] *= share
        elif topology is None or name not in {s.name for s in topology.switches} | set(topology.nodes):
            raise InputError(f"degraded {name}: neither one of the nodes nor a switch of the topology")
    return replace(fabric, nic=nic, uplink=tuple(uplink))

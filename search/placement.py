"""``place``: which node holds which ranks, so that a step waits least for its traffic, proven or bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.problem import Ints
from shardwise.costmodel.strategy import RANK_ORDERS, Strategy
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.fabric import Fabric, fabric_of
from shardwise.hardware_profiles.hostlist import compress, expand, natural
from shardwise.hardware_profiles.load_topology import load_topology
from shardwise.hardware_profiles.topology import Topology
from shardwise.launchers.placement_files import placement_files

from .placement_blocks import block_sizes, has_cells
from .placement_bound import lower_bound_s
from .placement_boxes import prove
from .placement_cost import Instance
from .placement_fill import starts
from .placement_job import Job, read_job, reordered
from .placement_slots import Classes
from .plan import Plan
from .proof import Clock

SCHEMA_VERSION = 1
"""Of ``Placement.as_dict``: raised when a key changes its meaning or goes away."""

PROVEN = 1e-6
"""Gap at which a placement counts as proven: what the solver's whole numbers can tell apart, with a margin."""

_CLOSE = 1e-4
"""Gap that swaps are not tried for any more."""

_WORK = 5.0
"""CP-SAT's deterministic time for all questions of a proof."""


@dataclass(frozen=True, slots=True)
class Level:
    """What crosses the uplinks of one level a step, in bytes, with hosts in sorted order and as placed.

    ``busiest``: of the domain that sends most. ``by_parallelism``: of all domains together, as placed.
    """

    tier: str
    domains: int
    sorted_bytes: float
    placed_bytes: float
    sorted_busiest_bytes: float
    placed_busiest_bytes: float
    by_parallelism: dict[str, float]


@dataclass(frozen=True, slots=True)
class Placement:
    """Hosts in rank order (host ``i`` holds ranks ``i·g`` to ``i·g + g - 1``), and what that gains.

    Exposed seconds are what a step waits for its traffic; they are the sum of their parts. ``sorted_hosts`` is the
    order that a scheduler has by itself, ``bound_s`` what no order is below.
    """

    hosts: tuple[str, ...]
    sorted_hosts: tuple[str, ...]
    unused: tuple[str, ...]
    exposed_s: float
    sorted_exposed_s: float
    bound_s: float
    parts_s: dict[str, float]
    sorted_parts_s: dict[str, float]
    levels: tuple[Level, ...]
    method: str
    other_orders: dict[str, float]
    """Exposed seconds in the launcher's other rank orders, hosts placed without proof: less may be possible."""
    job: Job
    fabric: Fabric
    uplink_bytes: tuple[dict[str, NDArray[np.float64]], ...] = field(repr=False, default=())
    sorted_uplink_bytes: tuple[dict[str, NDArray[np.float64]], ...] = field(repr=False, default=())
    assumptions: tuple[str, ...] = ()

    @property
    def strategy(self) -> Strategy:
        """The strategy that is placed."""
        return self.job.strategy

    @property
    def gain_s(self) -> float:
        """Seconds a step that the order saves."""
        return self.sorted_exposed_s - self.exposed_s

    @property
    def gap(self) -> float:
        """How far below the exposed seconds another placement could be at most, as a share of them."""
        return max(0.0, 1.0 - self.bound_s / self.exposed_s) if self.exposed_s > 0 else 0.0

    @property
    def proven(self) -> bool:
        """Whether no placement is better, to within a millionth."""
        return self.gap <= PROVEN

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything odd about the topology, each with file and line."""
        return tuple(map(str, self.fabric.faults))

    def files(self) -> dict[str, str]:
        """What makes the placement happen, by name: see ``launchers.placement_files``."""
        return placement_files(self.hosts, self.job.cluster.node_size, self.strategy)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values: the document that ``schemas/placement.schema.json`` describes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.job.model,
            "cluster": self.job.cluster.name,
            "num_gpus": self.job.cluster.num_gpus,
            "gpus_per_node": self.job.cluster.node_size,
            "rank_order": self.strategy.rank_order,
            "strategy": self.strategy.as_dict(),
            "exposed_s": self.exposed_s,
            "sorted_exposed_s": self.sorted_exposed_s,
            "gain_s": self.gain_s,
            "bound_s": self.bound_s,
            "gap": self.gap,
            "proven": self.proven,
            "method": self.method,
            "other_orders": dict(self.other_orders),
            "parts_s": dict(self.parts_s),
            "sorted_parts_s": dict(self.sorted_parts_s),
            "levels": [{name: getattr(level, name) for name in Level.__slots__} for level in self.levels],
            "hosts": list(self.hosts),
            "sorted_hosts": list(self.sorted_hosts),
            "unused": list(self.unused),
            "faults": list(self.faults),
            "assumptions": list(self.assumptions),
        }


def place(
    plan: Plan | Estimate | Mapping[str, Any] | str | Path,
    topology: Topology | str | Path | None = None,
    nodes: str | Sequence[str] | None = None,
    *,
    cluster: Cluster | str | Path | None = None,
    topology_name: str | None = None,
    exclude: str | Sequence[str] = (),
    degraded: Mapping[str, float] | None = None,
    time_limit_s: float | None = None,
) -> Placement:
    """The order of hosts in which a plan's steps wait least for their traffic.

    ``plan`` is a ``Plan``, an ``Estimate``, their document or a ``plan.json``; ``topology`` a ``Topology`` or a file of
    any kind that ``load_topology`` reads (None: the tiers of the cluster's profile); ``nodes`` the allocation, a host
    list or names (None: all nodes of the topology). More nodes than the plan needs are spares: the best are used.
    ``exclude`` names nodes to leave out, ``degraded`` nodes or switches with the share of their rate that is left.
    ``cluster`` stands in for the system that the plan names. Without ``time_limit_s`` the answer is the same on any
    machine. Never worse than the sorted order, which is kept where nothing is better.

    Raises InputError for inputs that cannot be used, such as fewer nodes than the plan needs.
    """
    clock = Clock(time_limit_s)
    job = read_job(plan, cluster)
    shape = topology if isinstance(topology, Topology) or topology is None else load_topology(topology, topology_name)
    names = _allocation(job, shape, nodes, exclude)
    fabric = fabric_of(job.cluster, shape, names, degraded)
    instance = _instance(fabric, job)
    found = _search(instance, _rows(job.strategy), clock)
    others = {other.strategy.rank_order: _placed_s(fabric, other, clock) for other in reordered(job)}
    return _answer(job, instance, found, others)


def _instance(fabric: Fabric, job: Job) -> Instance:
    return Instance(fabric, job.pools, job.num_nodes, wrap=job.strategy.vpp > 1)


def _rows(s: Strategy) -> int:
    """Degree of the outermost axis: slots come in as many equal runs."""
    return s.pp if s.rank_order == RANK_ORDERS[0] else s.dp


def _placed_s(fabric: Fabric, job: Job, clock: Clock) -> float:
    """Exposed seconds of a job with hosts placed by filling domains, without the solver."""
    instance = _instance(fabric, job)
    found = _started(instance, _rows(job.strategy), clock)
    if found.gap > _CLOSE and not clock.expired:
        found.offer(instance, _swaps(instance, found, 500), "swaps", clock)
    return found.cost


def _allocation(
    job: Job, topology: Topology | None, nodes: str | Sequence[str] | None, exclude: str | Sequence[str]
) -> list[str]:
    """Names of the nodes at hand in a scheduler's order. Raises InputError where they are too few."""
    if nodes is None:
        if topology is None or not topology.nodes:
            raise InputError("nodes: none given and no topology names any; expected a host list such as gpu[001-128]")
        nodes = topology.nodes
    given = list(expand(nodes) if isinstance(nodes, str) else nodes)
    out = set(expand(exclude) if isinstance(exclude, str) else exclude)
    lost = sorted(out - set(given), key=natural)
    if lost:
        raise InputError(f"exclude {compress(lost)}: not among the nodes")
    names = sorted((name for name in given if name not in out), key=natural)
    if len(set(names)) < job.num_nodes:
        left = f" after leaving out {len(out)}" if out else ""
        raise InputError(
            f"nodes: {len(set(names))} given{left}; the plan needs {job.num_nodes} of {job.cluster.node_size} GPUs each"
        )
    return names


@dataclass(slots=True)
class _Found:
    """The best placement so far and the best bound."""

    nodes: Ints
    cost: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        return 1.0 - self.bound / self.cost if self.cost > 0 else 0.0

    def offer(self, instance: Instance, candidates: Iterable[Ints], method: str, clock: Clock) -> None:
        """Take a candidate that is better by more than rounding; stop at the bound or the end of time."""
        for nodes in candidates:
            if clock.expired or self.gap <= 1e-12:
                return
            cost = instance.cost(nodes)
            if cost < self.cost * (1.0 - 1e-12):
                self.nodes, self.cost, self.method = nodes, cost, method

    def raise_bound(self, bound: float) -> None:
        """A solver's bound, never above what was found."""
        self.bound = min(self.cost, max(self.bound, bound))


def _started(instance: Instance, rows: int, clock: Clock) -> _Found:
    """The best of the sorted order and of fillings."""
    order = np.arange(instance.num_slots)
    cost = instance.cost(order)
    found = _Found(order, cost, min(cost, lower_bound_s(instance)), "the sorted order")
    found.offer(instance, starts(instance, rows), "filling domains", clock)
    return found


def _search(instance: Instance, rows: int, clock: Clock) -> _Found:
    """The sorted order, then fillings, then boxes of limits, and swaps where a gap is left."""
    found = _started(instance, rows, clock)
    if found.gap > PROVEN and not clock.expired:
        size = next((size for size in block_sizes(instance) if has_cells(instance, size)), 1)
        answer = prove(instance, size, found.cost, _WORK, clock)
        found.offer(instance, [] if answer.nodes is None else [answer.nodes], "limits by CP-SAT", clock)
        found.raise_bound(answer.bound_s)
    if found.gap > _CLOSE and not clock.expired:
        found.offer(instance, _swaps(instance, found), "swaps", clock)
    return found


def _swaps(instance: Instance, found: _Found, most: int = 2000) -> Iterable[Ints]:
    """Placements with two slots of the best one exchanged, at random but the same on every run."""
    random = np.random.default_rng(0)
    classes = Classes.of(instance).of_node
    for _ in range(min(most, 4_000_000 // instance.num_slots)):
        one, other = random.integers(0, instance.num_slots, 2)
        if classes[found.nodes[one]] != classes[found.nodes[other]]:
            nodes = found.nodes.copy()
            nodes[one], nodes[other] = nodes[other], nodes[one]
            yield nodes


def _answer(job: Job, instance: Instance, found: _Found, others: dict[str, float]) -> Placement:
    order = np.arange(instance.num_slots)
    nodes = _tidy(instance, found.nodes) if found.method != "the sorted order" else order
    fabric = instance.fabric
    before, after = instance.uplink_bytes(order), instance.uplink_bytes(nodes)
    names = fabric.level_names()
    used = set(nodes.tolist())
    return Placement(
        hosts=tuple(fabric.nodes[m] for m in nodes),
        sorted_hosts=fabric.nodes[: instance.num_slots],
        unused=tuple(name for m, name in enumerate(fabric.nodes) if m not in used),
        exposed_s=found.cost,
        sorted_exposed_s=instance.cost(order),
        bound_s=found.bound,
        parts_s=instance.exposed_by_parallelism(nodes),
        sorted_parts_s=instance.exposed_by_parallelism(order),
        levels=tuple(_level(name, *sides) for name, *sides in zip(names, before, after, strict=False)),
        method=found.method,
        other_orders=others,
        job=job,
        fabric=fabric,
        uplink_bytes=tuple(after),
        sorted_uplink_bytes=tuple(before),
        assumptions=(*fabric.assumptions, *_assumptions(fabric)),
    )


def _assumptions(fabric: Fabric) -> tuple[str, ...]:
    names = fabric.level_names()
    shown = ", ".join(f"level {at} is {name}" for at, name in enumerate(names[:-1]))
    joined = f"{shown}; {names[-1]} joins all" if shown else f"one {names[-1]} domain joins all nodes"
    return (
        f"levels of the network: {joined}",
        "an uplink's share for the job is that of the nodes which the job was given under it",
    )


def _tidy(instance: Instance, nodes: Ints) -> Ints:
    """The same placement with the nodes of each class in sorted order: they are alike."""
    classes = Classes.of(instance).of_node
    out = nodes.copy()
    for c in np.unique(classes[nodes]):
        slots = np.flatnonzero(classes[nodes] == c)
        out[slots] = np.sort(nodes[slots])
    return out


def _level(tier: str, before: dict[str, Any], after: dict[str, Any]) -> Level:
    was, now = sum(before.values()), sum(after.values())
    return Level(
        tier=tier,
        domains=len(now) if isinstance(now, np.ndarray) else 0,
        sorted_bytes=float(np.sum(was)),
        placed_bytes=float(np.sum(now)),
        sorted_busiest_bytes=float(np.max(was, initial=0.0)),
        placed_busiest_bytes=float(np.max(now, initial=0.0)),
        by_parallelism={name: float(np.sum(sent)) for name, sent in after.items() if np.sum(sent) > 0},
    )

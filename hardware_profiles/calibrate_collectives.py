"""Fitting a cluster's collectives to its own nccl-tests tables: few constants a tier and kind, then measured curves.

Two layers. The *law* of ``collectives`` keeps its shape; its constants (share of the rate, launch, fill, latency) move
from the profile's values towards the rows, as a robust maximum a posteriori fit: soft-L1 on log(predicted / measured),
and a normal prior on the logarithm of each constant, so that what the rows do not tell stays. Where the law then still
misses a pattern over message sizes (a switch of protocol, a noisy middle), a *curve* for that kind, tier and group size
multiplies it: a smoothed median of the remaining log errors, as stiff as leave-one-out errors ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Curve, Ramp, Tier
from .fit_collectives import Row
from .message_curves import draw_curve
from .robust_fit import Solution, solve

Array = NDArray[np.float64]

PRIOR_SD = {"efficiency": 0.25, "launch_s": 0.7, "fill_s": 1.0, "latency_s": 0.7, "nvls": 0.25, "nvls_launch_s": 0.7}
"""Standard deviation of the logarithm of each constant about the profile's: shares differ by a quarter between sites,
latencies by a factor of two."""

SCAN_RATES = tuple(np.log([1.0, 0.7, 0.5, 0.3, 0.15, 0.07]))
SCAN_TIMES = tuple(np.log([1.0, 3.0, 10.0]))
SCAN_SCALE = 0.1
"""A coarse look before the descent: factors on all shares and on all times of a tier, and the noise that it assumes."""

LEAST_CONSTANT_S = 1e-8
"""Constants of 0 start here, so that they have a logarithm."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the law that is fitted: its place in the profile and its value there."""

    tier: int
    kind: str
    field: str
    value: float
    prior_sd: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """A constant after the fit. ``interval``: 90 %. ``told``: share of the prior's doubt that the rows removed."""

    constant: Constant
    value: float
    interval: tuple[float, float]
    told: float


@dataclass(frozen=True, slots=True)
class Moved:
    """A figure that was not measured but goes with one that was: other kinds and farther tiers of the same network."""

    constant: Constant
    value: float
    along: str
    """What it went with, in words."""


@dataclass(frozen=True, slots=True)
class CollectiveFit:
    """What the rows made of a cluster."""

    cluster: Cluster
    constants: tuple[Fitted, ...]
    moved: tuple[Moved, ...]
    rows: tuple[Row, ...]
    before_s: Array
    after_s: Array


def fit_cluster(cluster: Cluster, rows: Sequence[Row], curves: bool = True) -> CollectiveFit:
    """The cluster with constants and curves fitted to the rows, scale-up tier first.

    ``rows`` name the cluster as their system, their ``nodes`` are domains of its innermost tier.
    """
    found: list[Fitted] = []
    fitted = without_curves(cluster, rows)
    for tier in range(len(cluster.tiers)):
        mine = [row for row in rows if crossed(row, cluster) == tier]
        if mine:
            fitted, constants = _fit_tier(fitted, tier, mine)
            found += constants
    fitted, moved = _moved_along(cluster, fitted, rows)
    if curves:
        fitted = with_curves(fitted, rows)
    return CollectiveFit(fitted, tuple(found), moved, tuple(rows), predict(rows, cluster), predict(rows, fitted))


def _moved_along(before: Cluster, after: Cluster, rows: Sequence[Row]) -> tuple[Cluster, tuple[Moved, ...]]:
    """Kinds without rows, and farther tiers of the same technology, move by the mean of what was measured.

    Between nodes only: a NIC does not know the collective, so a network slower than its profile is so for all.
    Shares and launch times move; latency belongs to the tier and is left where a farther tier states its own.
    """
    moved: list[Moved] = []
    for tier in range(1, len(before.tiers)):
        seen = sorted({row.kind for row in rows if crossed(row, before) == tier})
        source = tier if seen else _measured_inside(before, rows, tier)
        if source is None:
            continue
        kinds = seen or sorted({row.kind for row in rows if crossed(row, before) == source})
        for name in ("efficiency", "launch_s"):
            shift = float(np.mean([_shift(before, after, source, k, name, rows) for k in kinds]))
            for constant in _of_tier(before, tier, name):
                if constant.kind not in seen:
                    value = constant.value * float(np.exp(shift))
                    where = "" if source == tier else f" on {before.tiers[source].name}"
                    value = min(value, 1.0) if name == "efficiency" else value
                    moved.append(Moved(constant, value, f"{' and '.join(kinds)}{where}"))
    made = with_constants(after, [m.constant for m in moved], np.array([m.value for m in moved]))
    return made, tuple(moved)


def _shift(before: Cluster, after: Cluster, tier: int, kind: str, name: str, rows: Sequence[Row]) -> float:
    """How far a kind's figure moved, by its logarithm.

    What an all-reduce says of the network depends on its algorithm, which the log does not tell: a tree over two
    domains sends half of a ring's bytes. Where a ring would explain its largest messages too, the NICs are taken to
    have carried a ring's bytes, which is what the other kinds send.
    """
    fitted = _logs(after, tier, kind, name)
    if kind == "all_reduce" and name == "efficiency":
        mine = [r for r in rows if r.kind == kind and crossed(r, before) == tier]
        largest = max(r.nbytes for r in mine)
        here = before.tiers[tier]
        sent = [2.0 * (r.ranks - 1) / r.ranks * r.nbytes * r.nodes / r.ranks for r in mine if r.nbytes == largest]
        seconds = [r.seconds for r in mine if r.nbytes == largest]
        ring = float(np.median(np.array(sent) / seconds)) * here.oversubscription / here.bytes_per_s
        if ring <= 1.0:
            fitted = max(fitted, float(np.log(ring)))
    return fitted - _logs(before, tier, kind, name)


def _measured_inside(cluster: Cluster, rows: Sequence[Row], tier: int) -> int | None:
    """The nearest measured tier inside this one that is of the same technology."""
    measured = {crossed(row, cluster) for row in rows}
    same = [k for k in range(1, tier) if cluster.tiers[k].technology == cluster.tiers[tier].technology]
    return next((k for k in reversed(same) if k in measured), None)


def _of_tier(cluster: Cluster, tier: int, name: str) -> list[Constant]:
    here = cluster.tiers[tier]
    if name == "efficiency":
        return [Constant(tier, kind, name, share, 0.0) for kind, share in here.efficiency.items() if kind != "nvls"]
    return [Constant(tier, k, name, ramp.launch_s, 0.0) for k, ramp in here.ramps.items() if ramp.launch_s > 0.0]


def _logs(cluster: Cluster, tier: int, kind: str, name: str) -> float:
    here = cluster.tiers[tier]
    value = here.efficiency[kind] if name == "efficiency" else here.ramps.get(kind, Ramp()).launch_s
    return float(np.log(max(value, LEAST_CONSTANT_S)))


def predict(rows: Sequence[Row], cluster: Cluster) -> Array:
    """Seconds of each row, whose ranks are the whole job, spread evenly over its domains."""
    seconds = np.empty(len(rows))
    batches: dict[tuple[str, int, int], list[int]] = {}
    for at, row in enumerate(rows):
        batches.setdefault((row.kind, row.ranks, row.nodes), []).append(at)
    for (kind, ranks, domains), members in batches.items():
        size = cluster.tiers[0].size
        if domains == 1:
            job = replace(cluster, num_gpus=ranks, gpus_per_node=min(ranks, cluster.node_size))
            stride = 1
        else:
            job, stride = replace(cluster, num_gpus=size * domains), max(1, size * domains // ranks)
        nbytes = np.array([rows[at].nbytes for at in members])
        seconds[members] = job.collective_time_s(kind, nbytes, ranks, stride)
    return seconds


def crossed(row: Row, cluster: Cluster) -> int:
    """Index of the outermost tier that the row's ranks cross, taken as packed into the fewest domains."""
    if row.nodes == 1:
        return 0
    reach = row.nodes * cluster.tiers[0].size
    return next((k for k, t in enumerate(cluster.tiers) if k and t.size >= reach), len(cluster.tiers) - 1)


def constants_of(cluster: Cluster, tier: int, kinds: Sequence[str]) -> list[Constant]:
    """The constants that rows of these kinds on this tier can tell."""
    here = cluster.tiers[tier]
    out = [Constant(tier, "", "latency_s", here.latency_s, PRIOR_SD["latency_s"])]
    for kind in kinds:
        ramp = here.ramps.get(kind, Ramp())
        out.append(Constant(tier, kind, "efficiency", here.efficiency[kind], PRIOR_SD["efficiency"]))
        for name in ("launch_s", "fill_s"):
            value = max(float(getattr(ramp, name)), LEAST_CONSTANT_S)
            out.append(Constant(tier, kind, name, value, PRIOR_SD[name]))
    if here.nvls and "all_reduce" in kinds:
        ramp = here.ramps.get("nvls", Ramp())
        share = here.efficiency.get("nvls", here.efficiency["all_reduce"])
        out.append(Constant(tier, "nvls", "efficiency", share, PRIOR_SD["nvls"]))
        out.append(Constant(tier, "nvls", "launch_s", max(ramp.launch_s, LEAST_CONSTANT_S), PRIOR_SD["nvls_launch_s"]))
    return out


def with_constants(cluster: Cluster, constants: Sequence[Constant], values: Array) -> Cluster:
    """The cluster with these constants set; shares are held to at most 1."""
    tiers = list(cluster.tiers)
    for constant, value in zip(constants, values, strict=True):
        tiers[constant.tier] = _set(tiers[constant.tier], constant, float(value))
    return replace(cluster, tiers=tuple(tiers))


def _set(tier: Tier, constant: Constant, value: float) -> Tier:
    if constant.field == "latency_s":
        return replace(tier, latency_s=value)
    if constant.field == "efficiency":
        return replace(tier, efficiency={**tier.efficiency, constant.kind: min(value, 1.0)})
    ramp = tier.ramps.get(constant.kind, Ramp())
    changed = Ramp(
        value if constant.field == "launch_s" else ramp.launch_s,
        value if constant.field == "fill_s" else ramp.fill_s,
        ramp.copy,
    )
    return replace(tier, ramps={**tier.ramps, constant.kind: changed})


def _fit_tier(cluster: Cluster, tier: int, rows: Sequence[Row]) -> tuple[Cluster, list[Fitted]]:
    kinds = sorted({row.kind for row in rows})
    constants = constants_of(cluster, tier, kinds)
    start = np.log([c.value for c in constants])
    measured = np.log([row.seconds for row in rows])
    shares = np.array([c.field == "efficiency" for c in constants])

    def residual(x: Array) -> Array:
        return np.asarray(np.log(predict(rows, with_constants(cluster, constants, np.exp(x)))) - measured)

    prior_sd = np.array([c.prior_sd for c in constants])
    solution = solve(residual, start, prior_sd, high=0.0, first=_scanned(residual, start, prior_sd, shares))
    return with_constants(cluster, constants, np.exp(solution.x)), _fitted(constants, solution)


def _scanned(residual: Callable[[Array], Array], start: Array, prior_sd: Array, shares: Array) -> Array:
    """The best of a coarse grid of slower rates and longer times.

    Where another term binds at the start (a chain inside the node rather than the network), slopes there are 0 and no
    descent would ever leave it.
    """

    def cost(x: Array) -> float:
        prior = (x - start) / prior_sd
        return float(np.sum(np.sqrt(1.0 + (residual(x) / SCAN_SCALE) ** 2)) + np.sum(np.sqrt(1.0 + prior**2)))

    grid = [start + np.where(shares, rate, time) for rate in SCAN_RATES for time in SCAN_TIMES]
    return min(grid, key=cost)


def _fitted(constants: Sequence[Constant], solution: Solution) -> list[Fitted]:
    low, high = np.exp(solution.x - solution.half_width), np.exp(solution.x + solution.half_width)
    told = 1.0 - solution.sd / np.array([c.prior_sd for c in constants])
    return [
        Fitted(c, float(np.exp(x)), (float(a), float(b)), float(t))
        for c, x, a, b, t in zip(constants, solution.x, low, high, told, strict=True)
    ]


def without_curves(cluster: Cluster, rows: Sequence[Row]) -> Cluster:
    """The cluster without the curves of kinds that the rows measure anew on the same tier."""
    anew = {(crossed(row, cluster), row.kind) for row in rows}
    tiers = (
        replace(t, curves=tuple(c for c in t.curves if (k, c.kind) not in anew)) for k, t in enumerate(cluster.tiers)
    )
    return replace(cluster, tiers=tuple(tiers))


def with_curves(cluster: Cluster, rows: Sequence[Row]) -> Cluster:
    """The cluster with a curve for each kind, tier and group size whose rows ask for one."""
    plain = without_curves(cluster, rows)
    groups: dict[tuple[int, str, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((crossed(row, cluster), row.kind, row.ranks, row.nodes), []).append(row)
    tiers = list(plain.tiers)
    for (tier, kind, ranks, nodes), members in sorted(groups.items()):
        error = np.log([row.seconds for row in members]) - np.log(predict(members, plain))
        drawn = draw_curve(np.log2([row.nbytes for row in members]), error)
        if drawn is not None:
            curve = Curve(kind, ranks, nodes, tuple(2.0 ** drawn[0]), tuple(np.exp(drawn[1])))
            tiers[tier] = replace(tiers[tier], curves=(*tiers[tier].curves, curve))
    return replace(plain, tiers=tuple(tiers))

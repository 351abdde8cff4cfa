"""A cluster: accelerators under nested network tiers, and what a collective costs on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import collectives as _c
from .accelerator import Accelerator, Figure
from .calibration import Calibration
from .errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Why a small message of one kind is slower than ``bytes / rate``, on one tier.

    ``launch_s``: seconds of an empty collective before its first step. ``fill_s``: overhead of one chunk at one step
    (the message-size ramp). ``copy``: wire bytes that the local copy of one rank's part costs as much as.
    """

    launch_s: float = 0.0
    fill_s: float = 0.0
    copy: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured over predicted seconds of one kind, by message size, for groups like one that was measured.

    ``ranks`` in ``domains`` domains of the innermost tier; ``nbytes`` ascending, ``factors`` beside them: between sizes
    the logarithm is interpolated over the logarithm of the size, beyond the ends it stays.
    """

    kind: str
    ranks: int
    domains: int
    nbytes: tuple[float, ...]
    factors: tuple[float, ...]


CURVE_REACH = 2.0
"""Doublings of group size, and of members per domain, over which a curve fades to 1: assumed."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the network, innermost first.

    ``size``: accelerators inside one domain of this tier. ``bytes_per_s``: per accelerator and direction into this
    tier. ``latency_s``: of one step between two domains below. ``oversubscription``: how many times less than that
    leaves at full load (1 = non-blocking).
    ``efficiency``: share of the rate that a large collective reaches, by kind. ``nvls``: in-switch reduction; its share
    stands under ``efficiency["nvls"]``. ``ramps``: the message-size ramp by kind; a kind without one has none.
    """

    name: str
    size: int
    bytes_per_s: float
    latency_s: float
    oversubscription: float
    efficiency: dict[str, float]
    nvls: bool = False
    technology: str = ""
    ramps: dict[str, Ramp] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    """What measurements on this tier add to the law, for groups whose traffic goes no farther out."""


LARGEST_JOB = 1 << 20
"""Accelerators of the largest job that is planned for: beyond any cluster announced by 2026."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """``num_gpus`` accelerators; ``tiers`` from the innermost (scale-up) to the outermost."""

    name: str
    accelerator: Accelerator
    num_gpus: int
    tiers: tuple[Tier, ...]
    host_memory_bytes_per_gpu: float
    figures: dict[str, Figure] = field(default_factory=dict)
    source: str = ""
    gpus_per_node: int = 0
    """Accelerators under one operating system; 0 = one domain of the innermost tier (an NVL72 rack has nodes of 4)."""
    aliases: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    """What the profile assumes for want of a source, one sentence each."""
    price_usd_per_gpu_hour: float | None = None
    """Dollars for one accelerator and hour; no shipped profile states one."""
    calibration: Calibration | None = None
    """The measurements behind the profile, where it was calibrated."""

    @property
    def node_size(self) -> int:
        """Accelerators under one operating system."""
        return self.gpus_per_node or self.tiers[0].size

    @property
    def domains(self) -> tuple[int, ...]:
        """Accelerators of this job inside one domain of each tier it reaches, innermost first.

        A job takes equally many from every domain where that is possible: 128 accelerators on racks of 72 are 64 + 64,
        not 72 + 56.
        """
        return _domains(tuple(t.size for t in self.tiers), self.num_gpus, self.node_size)

    def with_num_gpus(self, num_gpus: int) -> Cluster:
        """The same system, a job of ``num_gpus`` of it: whole nodes.

        A job larger than the profile extends the outermost tier, which becomes an assumption of the cluster. Raises
        InputError for a size out of range or one that leaves a node half used.
        """
        most = self.tiers[-1].size
        if not 1 <= num_gpus <= LARGEST_JOB:
            raise InputError(f"{self.name}: num_gpus = {num_gpus}: expected 1 to {LARGEST_JOB}")
        if num_gpus > self.node_size and num_gpus % self.node_size:
            raise InputError(
                f"{self.name}: num_gpus = {num_gpus}: expected whole nodes of {self.node_size} (or less than one node)"
            )
        if num_gpus <= most:
            return replace(self, num_gpus=num_gpus)
        outer = replace(self.tiers[-1], size=num_gpus)
        told = f"{self.name} is described up to {most} accelerators; its {outer.name} tier is taken to reach {num_gpus}"
        tiers, assumptions = (*self.tiers[:-1], outer), (*self.assumptions, told)
        return replace(self, num_gpus=num_gpus, tiers=tiers, assumptions=assumptions)

    def collective_time_s(self, kind: str, nbytes: ArrayLike, size: ArrayLike, stride: ArrayLike) -> Array:
        """Seconds of one collective by every group at once.

        ``kind``: all_reduce, all_gather, reduce_scatter, all_to_all, p2p, broadcast. ``nbytes``: the whole tensor
        (full output of an all-gather, full input of a reduce-scatter, one rank's send buffer of an all-to-all, the
        message of a p2p). ``size`` ranks per group, ``stride`` apart in rank order (1 = neighbours). Arrays broadcast;
        size 1 and 0 bytes cost 0. A p2p is one message between neighbours of the group, the farthest pair. The laws
        stand in ``collectives``.
        """
        group, data = self._group(nbytes, size, stride)
        return self.group_time_s(kind, data, group, self.tiers)

    def group_time_s(self, kind: str, data: Array, group: _c.Group, tiers: tuple[Tier, ...]) -> Array:
        """Seconds of one collective of groups whose places on ``tiers`` are known; ``data`` bytes as above."""
        _check_kind(kind)
        laws = tuple(_law(t, kind) for t in tiers[: len(group.spans)])
        laws = _never_quicker_outwards(laws)
        if kind == "all_reduce":
            seconds = _c.all_reduce_s(group, laws, data, self.node_size, _nvls(tiers[0]))
        elif kind in ("all_gather", "reduce_scatter"):
            seconds = _c.ring_s(group, laws, data, 1.0)
        elif kind == "all_to_all":
            seconds = _c.all_to_all_s(group, laws, data)
        elif kind == "p2p":
            seconds = _c.p2p_s(group, laws, data)
        else:
            seconds = _c.broadcast_s(group, laws, data)
        if any(tier.curves for tier in tiers):
            seconds = seconds * _curve_factor(tiers, kind, group, data)
        return np.asarray(np.where((group.n > 1) & (data > 0), seconds, 0.0))

    def collective_tier_bytes(self, kind: str, nbytes: ArrayLike, size: ArrayLike, stride: ArrayLike) -> Array:
        """Bytes that each accelerator sends over each tier, shape ``[..., len(tiers)]``; arguments as for the time."""
        _check_kind(kind)
        group, data = self._group(nbytes, size, stride)
        sent = _c.wire_bytes(kind, group, data)
        missing = len(self.tiers) - sent.shape[-1]
        return np.asarray(np.pad(sent, [(0, 0)] * (sent.ndim - 1) + [(0, missing)]))

    def outermost_tier(self, size: ArrayLike, stride: ArrayLike) -> NDArray[np.int64]:
        """Index into ``tiers`` of the highest tier that a group's traffic crosses."""
        group, _ = self._group(0.0, size, stride)
        return np.asarray(sum((span > 1).astype(np.int64) for span in group.spans), dtype=np.int64)

    def _group(self, nbytes: ArrayLike, size: ArrayLike, stride: ArrayLike) -> tuple[_c.Group, Array]:
        """Geometry of the groups, and the bytes as floats; everything broadcasts, sizes alone stay small."""
        sizes, strides = np.broadcast_arrays(np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64))
        return _c.group_on(self.domains, sizes, strides), np.asarray(nbytes, dtype=np.float64)


def _check_kind(kind: str) -> None:
    if kind not in _c.KINDS:
        raise InputError(f"collective kind {kind!r}: expected one of {', '.join(_c.KINDS)}")


@lru_cache(maxsize=256)
def _domains(sizes: tuple[int, ...], num_gpus: int, node: int) -> tuple[int, ...]:
    """See ``Cluster.domains``. An uneven split (no even one fills half a domain) keeps full domains."""
    domains: list[int] = []
    unit = 1 if num_gpus < node else node
    for size in sizes:
        if num_gpus <= size:
            return (*domains, num_gpus)
        even = next((d for d in range(size - size % unit, size // 2, -unit) if num_gpus % d == 0), size)
        domains.append(even)
        unit = even
    return tuple(domains)


def _law(tier: Tier, kind: str) -> _c.TierLaw:
    """A tier's constants for a kind, oversubscription divided out of the rate."""
    share = tier.efficiency.get(kind)
    if share is None:
        raise InputError(f"tier {tier.name}: efficiency.{kind}: missing, expected a share of the rate (0 to 1)")
    ramp = tier.ramps.get(kind, Ramp())
    rate = tier.bytes_per_s * share / tier.oversubscription
    return _c.TierLaw(rate, tier.latency_s, ramp.fill_s, ramp.launch_s, ramp.copy)


def _curve_factor(tiers: tuple[Tier, ...], kind: str, group: _c.Group, nbytes: Array) -> Array | float:
    """The nearest curve of each group's outermost tier, faded by how unlike the measured group it is."""
    factor: Array | float = 1.0
    outermost = sum((span > 1).astype(np.int64) for span in group.spans)
    size = np.log2(np.maximum(nbytes, 1.0))
    for tier in range(len(group.spans)):
        nearest: Array | float = CURVE_REACH
        exponent: Array | float = 0.0
        for curve in tiers[tier].curves:
            if curve.kind != kind:
                continue
            away = np.abs(np.log2(group.n / curve.ranks))
            inside = np.abs(np.log2(group.n / group.spans[0] / (curve.ranks / curve.domains)))
            apart = np.maximum(away, inside)
            drawn = np.interp(size, np.log2(curve.nbytes), np.log(curve.factors)) * (1.0 - apart / CURVE_REACH)
            exponent = np.where(apart < nearest, drawn, exponent)
            nearest = np.minimum(nearest, apart)
        factor = np.where(outermost == tier, np.exp(exponent), factor)
    return factor


def _nvls(tier: Tier) -> _c.NvlsLaw | None:
    """The in-switch reduction of the innermost tier, where it has one."""
    if not tier.nvls:
        return None
    ramp = tier.ramps.get("nvls", Ramp())
    share = tier.efficiency.get("nvls", tier.efficiency["all_reduce"])
    return _c.NvlsLaw(tier.bytes_per_s * share / tier.oversubscription, ramp.launch_s, ramp.fill_s)


def _never_quicker_outwards(laws: tuple[_c.TierLaw, ...]) -> tuple[_c.TierLaw, ...]:
    """Latency, fill and launch are at least those of the tiers inside: a farther step is never a quicker one."""
    kept = [laws[0]]
    for law in laws[1:]:
        inner = kept[-1]
        kept.append(
            replace(
                law,
                latency_s=max(law.latency_s, inner.latency_s),
                fill_s=max(law.fill_s, inner.fill_s),
                launch_s=max(law.launch_s, inner.launch_s),
            )
        )
    return tuple(kept)

"""A cluster: accelerators under nested network tiers, and what a collective costs on them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accelerator import Accelerator, Figure

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tier:
    """One level of the network, innermost first.

    ``size``: accelerators inside one domain of this tier. ``bytes_per_s``: per accelerator and direction into this
    tier. ``oversubscription``: how many times less than that leaves at full load (1 = non-blocking).
    ``efficiency``: share of the rate that a large collective reaches, by kind. ``nvls``: in-switch reduction.
    """

    name: str
    size: int
    bytes_per_s: float
    latency_s: float
    oversubscription: float
    efficiency: dict[str, float]
    nvls: bool = False


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

    def collective_time_s(self, kind: str, nbytes: ArrayLike, size: ArrayLike, stride: ArrayLike) -> Array:
        """Seconds of one collective by every group at once.

        ``kind``: all_reduce, all_gather, reduce_scatter, all_to_all, p2p. ``nbytes``: the whole tensor (full output of
        an all-gather, full input of a reduce-scatter, one rank's send buffer of an all-to-all, the message of a p2p).
        ``size`` ranks per group, ``stride`` apart in rank order (1 = neighbours). Arrays broadcast; size 1 costs 0.
        """
        raise AssertionError("written with the profiles")

    def outermost_tier(self, size: ArrayLike, stride: ArrayLike) -> NDArray[np.int64]:
        """Index into ``tiers`` of the highest tier that a group's traffic crosses."""
        reach = np.asarray(stride, dtype=np.int64) * (np.asarray(size, dtype=np.int64) - 1) + 1
        sizes = np.array([t.size for t in self.tiers])
        return np.minimum(np.searchsorted(sizes, reach), len(self.tiers) - 1)

"""What one accelerator can do: peaks, memory, and how much of the peak its kernels reach by shape."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its origin: ``datasheet``, ``published``, ``fitted``, ``measured``, ``derived`` or ``assumed``."""

    value: float
    origin: str
    source: str


@dataclass(frozen=True, slots=True)
class GemmLaw:
    """time = flops / (peak · efficiency) · (1 + m0/m + n0/n + k0/k) + overhead_s, never under the bytes roofline.

    Fitted per device and dtype to measured GEMM sweeps. Units: m0, n0, k0 in elements, overhead in seconds.
    """

    efficiency: float
    m0: float
    n0: float
    k0: float
    overhead_s: float


@dataclass(frozen=True, slots=True)
class AttentionLaw:
    """Share of the dense bf16 peak that an attention kernel class reaches on long sequences, with its ramp.

    ``forward``/``backward`` are fractions of the peak counting only the causal half when ``causal_skip``; the rate at
    sequence ``s`` is ``fraction · s / (s + ramp)``.
    """

    forward: float
    backward: float
    ramp: float
    causal_skip: bool


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. Bandwidths are bytes/s in one direction; peaks are dense FLOP/s."""

    name: str
    vendor: str
    peak_flops: dict[str, float]
    memory_bytes: float
    """What the framework can allocate at most: as reported by the driver."""
    memory_bytes_per_s: float
    memory_efficiency: float
    """Share of the memory bandwidth that streaming kernels reach."""
    host_bytes_per_s: float
    """Device to host, one direction."""
    gemm: dict[str, GemmLaw]
    """By dtype (``bf16``, ``fp16``, ``fp8``, ``mxfp8``, ``nvfp4`` …); a missing dtype raises in ``gemm_time_s``."""
    attention: dict[str, AttentionLaw]
    """By kernel class: ``unfused``, ``fa1``, ``fa2``, ``fa3``, ``cudnn``, ``vendor``."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Every number above, by dotted key, with origin and source."""
    aliases: tuple[str, ...] = ()
    price_per_hour: float | None = None

    def gemm_time_s(self, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str, batch: ArrayLike = 1.0) -> Array:
        """Seconds for ``batch`` GEMMs [m,k]x[k,n] run as one grouped kernel (arrays broadcast)."""
        m_, n_, k_, b_ = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
        law = self.gemm[dtype]
        flops = 2.0 * m_ * n_ * k_ * b_
        shaped = 1.0 + law.m0 / m_ + law.n0 / n_ + law.k0 / k_
        return np.asarray(flops / (self.peak_flops[dtype] * law.efficiency) * shaped + law.overhead_s)

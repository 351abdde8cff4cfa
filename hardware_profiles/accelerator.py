"""What one accelerator can do: peaks, memory, and how much of the peak its kernels reach by shape.

Two speeds are kept apart. A *law* describes a hot kernel run alone, as micro-benchmarks do. A *sustained* fraction says
how much of that speed is left in a training run of hours, where power and temperature lower the clocks and neighbours
evict the caches. Times include the sustained fraction unless asked otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError

Array = NDArray[np.float64]

DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4.0 / 128.0,
    "mxfp8": 1.0 + 1.0 / 32.0,
    "nvfp4": 0.5 + 1.0 / 16.0,
    "mxfp4": 0.5 + 1.0 / 32.0,
}
"""Bytes of one operand element with its share of the scales: one FP32 scale per 128 elements of ``fp8_block``, one byte
per 32 of the ``mx`` formats (OCP Microscaling 1.0), one byte per 16 of ``nvfp4``."""

OUTPUT_BYTES = 2.0
"""GEMMs of low precision write bf16 or fp16 results; only ``fp32`` and ``tf32`` write 4 bytes."""

CAUSAL_WASTE_KEYS = 64.0
"""Masked keys that a causal kernel computes per query: half of a 128-wide tile on the diagonal."""

BACKWARD_FILL = 0.35
"""Share of the forward ``fill`` that backward needs; fits SimuMax timings of 4 to 128 heads on A100 and B200 best."""


ALIGNED = 64
"""Elements to whose multiples matrix kernels are tuned: 128 bytes of 16-bit elements (NVIDIA, Matrix Multiplication
Background User's Guide, section 4)."""

MISALIGNED = 1.25
"""Time of a GEMM whose weight has a dimension that is no multiple of ``ALIGNED``, over an aligned one of the same size:
published for BLOOM, where a hidden size divisible by 864 ran 27 % faster than 14400 (BigScience chronicles, tr11)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. Origins: ``datasheet``, ``published``, ``fitted``, ``measured``, ``derived`` or ``assumed``."""

    value: float
    origin: str
    source: str


@dataclass(frozen=True, slots=True)
class GemmLaw:
    """time = flops / (peak · efficiency) · (1 + m0/m + n0/n + k0/k) + overhead_s, never under the bytes roofline.

    Fitted per device and dtype to measured GEMM sweeps of isolated kernels. Multiplied out, the three ramps are seconds
    per element of the three matrices: m0/m charges the n·k weights, n0/n the m·k activations (in fp8 sweeps mostly the
    cast that is measured with the kernel), k0/k the m·n output. Units: m0, n0, k0 in elements, overhead in seconds.
    """

    efficiency: float
    m0: float
    n0: float
    k0: float
    overhead_s: float


@dataclass(frozen=True, slots=True)
class AttentionLaw:
    """Share of the dense peak that an attention kernel class reaches, with its ramps.

    Only visible query-key pairs count as work. Large problems run at ``fraction · h`` of the peak, with
    ``h = d (128 + r) / (128 (d + r))``, ``d`` the mean of the query-key and value head dimensions and
    ``r = head_dim_ramp``. Smaller ones take (1 + (ramp + w) / v) · (1 + fill / q) times as long per pair: ``v`` keys
    that an average query sees (s for full, s/2 for causal attention), ``w = CAUSAL_WASTE_KEYS`` if causal, ``q``
    queries of all heads together. ``forward`` and ``backward`` are the fractions of isolated kernels, ``sustained``
    the part of them left in long training. ``BACKWARD_FILL`` of ``fill`` applies in backward, which also splits over
    keys.

    ``causal_skip``: the kernel does not compute the masked half; without it the whole square is paid.
    ``softmax_passes_*`` above 0 mark the unfused class: two GEMMs forward and four backward by the GEMM law
    (``forward`` and ``backward`` then scale that rate) plus this many 2-byte passes over the score matrix at memory
    bandwidth.
    """

    forward: float
    backward: float
    ramp: float
    causal_skip: bool
    head_dim_ramp: float = 0.0
    fill: float = 0.0
    sustained: float = 1.0
    softmax_passes_forward: float = 0.0
    softmax_passes_backward: float = 0.0

    def share(self, head_dim: ArrayLike, backward: bool) -> Array:
        """Share of the peak on large problems, never above 1."""
        d, r = np.asarray(head_dim, dtype=np.float64), self.head_dim_ramp
        fraction = self.backward if backward else self.forward
        return np.asarray(np.minimum(fraction * d * (128.0 + r) / (128.0 * (d + r)), 1.0))


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """The links between accelerators of one domain, as the device offers them (systems may cut them)."""

    name: str
    topology: str
    domain: int
    """Accelerators that one domain joins at most."""
    bytes_per_s: float
    """Per accelerator and direction, all links together."""


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
    host_time: float = 1.0
    """Host time to launch a kernel, over that of the x86 servers that the runtime profiles' figures come from."""
    price_per_hour: float | None = None
    sustained: dict[str, float] = field(default_factory=dict)
    """By dtype: share of the isolated GEMM speed left in long training; a missing dtype counts as 1."""
    scale_up: ScaleUp | None = None
    notes: str = ""

    def gemm_time_s(
        self,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        dtype: str,
        batch: ArrayLike = 1.0,
        *,
        sustained: bool = True,
    ) -> Array:
        """Seconds for ``batch`` GEMMs [m,k]x[k,n] run as one grouped kernel (arrays broadcast).

        The slower of the shape law and of reading both operands and writing the result at streaming bandwidth, plus one
        launch overhead. ``sustained=False`` gives the isolated kernel of a micro-benchmark.
        """
        m_, n_, k_, b_ = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
        law = self._gemm_law(dtype)
        rate = self.peak_flops[dtype] * law.efficiency * (self.sustained.get(dtype, 1.0) if sustained else 1.0)
        # flops · (1 + m0/m + n0/n + k0/k), multiplied out: no division, so empty shapes cost the overhead only.
        mn, mk, nk = m_ * n_, m_ * k_, n_ * k_
        compute = 2.0 * b_ * (mn * k_ + law.m0 * nk + law.n0 * mk + law.k0 * mn) / rate
        element = DTYPE_BYTES[dtype]
        moved = b_ * (element * (mk + nk) + max(OUTPUT_BYTES, 4.0 * (element == 4.0)) * mn)
        streamed = moved / (self.memory_bytes_per_s * self.memory_efficiency)
        return np.asarray(np.maximum(compute, streamed) + law.overhead_s)

    def attention_time_s(
        self,
        kernel: str,
        batch_heads: ArrayLike,
        seq_q: ArrayLike,
        seq_k: ArrayLike,
        qk_dim: ArrayLike,
        v_dim: ArrayLike,
        causal: bool,
        backward: bool,
        dtype: str = "bf16",
        *,
        window: ArrayLike | None = None,
        sustained: bool = True,
        passes: float = 1.0,
    ) -> Array:
        """Seconds of the attention core (no projections) of ``batch_heads`` = batch × query heads; arrays broadcast.

        Forward FLOPs are 2 · batch_heads · seq_q · visible · (qk_dim + v_dim). Backward recomputes the scores and has
        four more products: 2 · batch_heads · seq_q · visible · (3 qk_dim + 2 v_dim), 2.5 times forward at equal
        dimensions (FlashAttention-2, arXiv 2307.08691, section 4.1). ``causal`` aligns the last query with the last
        key; ``window`` bounds the keys each query sees. The unfused class computes the full square whatever the mask,
        and ``passes`` scales its passes over the scores.
        """
        law = self._attention_law(kernel)
        bh, sq, sk, dq, dv = (np.asarray(x, dtype=np.float64) for x in (batch_heads, seq_q, seq_k, qk_dim, v_dim))
        if law.softmax_passes_forward > 0.0:
            return self._unfused_time_s(law, bh, sq, sk, dq, dv, backward, dtype, sustained, passes)
        skips = causal and law.causal_skip
        seen = visible_keys(sq, sk, skips, window if law.causal_skip else None)
        products = 3.0 * dq + 2.0 * dv if backward else dq + dv
        rate = self._peak(dtype) * law.share((dq + dv) / 2.0, backward) * (law.sustained if sustained else 1.0)
        # pairs · (1 + (ramp + waste) / seen) · (1 + fill / queries), multiplied out: nothing to divide by when empty.
        keys = np.where(seen > 0.0, seen + law.ramp + (CAUSAL_WASTE_KEYS if skips else 0.0), 0.0)
        queries = np.where(bh * sq > 0.0, bh * sq + law.fill * (BACKWARD_FILL if backward else 1.0), 0.0)
        return np.asarray(2.0 * queries * keys * products / rate)

    def _unfused_time_s(
        self,
        law: AttentionLaw,
        bh: Array,
        sq: Array,
        sk: Array,
        dq: Array,
        dv: Array,
        backward: bool,
        dtype: str,
        sustained: bool,
        scale: float,
    ) -> Array:
        """Scores and weighted values as batched GEMMs over the full square, and the passes over the scores between."""
        scores = self.gemm_time_s(sq, sk, dq, dtype, bh, sustained=sustained)
        values = self.gemm_time_s(sq, dv, sk, dtype, bh, sustained=sustained)
        if backward:
            # dQ and dK have the shapes [s,s]x[s,dq]; dP is [s,dv]x[dv,s]; dV is [s,s]x[s,dv].
            grads = 2.0 * self.gemm_time_s(sq, dq, sk, dtype, bh, sustained=sustained)
            gemms = grads + self.gemm_time_s(sq, sk, dv, dtype, bh, sustained=sustained) + values
        else:
            gemms = scores + values
        passes = law.softmax_passes_backward if backward else law.softmax_passes_forward
        moved = scale * passes * 2.0 * bh * sq * sk
        rate = law.backward if backward else law.forward
        return np.asarray(gemms / rate + moved / (self.memory_bytes_per_s * self.memory_efficiency))

    def _gemm_law(self, dtype: str) -> GemmLaw:
        try:
            return self.gemm[dtype]
        except KeyError:
            known = ", ".join(sorted(self.gemm))
            raise InputError(f"{self.name}: no GEMM law for dtype {dtype!r}; it has {known}") from None

    def _attention_law(self, kernel: str) -> AttentionLaw:
        try:
            return self.attention[kernel]
        except KeyError:
            known = ", ".join(sorted(self.attention))
            raise InputError(f"{self.name}: no attention law for kernel {kernel!r}; it has {known}") from None

    def _peak(self, dtype: str) -> float:
        try:
            return self.peak_flops[dtype]
        except KeyError:
            known = ", ".join(sorted(self.peak_flops))
            raise InputError(f"{self.name}: no peak for dtype {dtype!r}; it has {known}") from None


def misalignment(*dims: ArrayLike) -> Array:
    """Factor on the time of a GEMM with these weight dimensions: 1, or ``MISALIGNED`` if any is off the multiple."""
    off = np.any(np.broadcast_arrays(*(np.mod(np.asarray(d, dtype=np.float64), ALIGNED) != 0 for d in dims)), axis=0)
    return np.where(off, MISALIGNED, 1.0)


def visible_keys(seq_q: ArrayLike, seq_k: ArrayLike, causal: bool, window: ArrayLike | None = None) -> Array:
    """Keys that the average query sees (a real number ≥ 0; arrays broadcast).

    Causal: query ``i`` of ``q`` (aligned so that the last query sees all ``k`` keys) sees min(window, k − q + i + 1);
    summed in closed form, with the half-key of the diagonal dropped as in the usual s/2. Not causal: min(window, k).
    """
    q, k = np.asarray(seq_q, dtype=np.float64), np.asarray(seq_k, dtype=np.float64)
    w = k if window is None else np.minimum(np.asarray(window, dtype=np.float64), k)
    if not causal:
        return np.asarray(np.broadcast_to(w, np.broadcast_shapes(w.shape, q.shape)), dtype=np.float64)
    first = np.clip(k - q, 0.0, None)  # keys before the first query's own
    rows = np.minimum(q, k)  # queries that see anything
    ramp = np.clip(np.minimum(w - first, rows), 0.0, None)  # queries whose view still grows
    total = ramp * (np.minimum(first, w) + ramp / 2.0) + (rows - ramp) * w
    return np.asarray(total / np.maximum(q, 1.0))

"""Fitting an accelerator's GEMM and attention laws to timings made on the user's own device.

The laws are those of ``Accelerator``; their numbers start at the profile's and are held there by a prior as far as the
rows do not tell otherwise (``robust_fit``). One law for each dtype and kernel class, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .accelerator import Accelerator, AttentionLaw, GemmLaw
from .errors import InputError
from .fit_kernels import predict_attention, predict_gemm
from .measured_kernels import AttentionRow, GemmRow
from .robust_fit import solve

Array = NDArray[np.float64]

GEMM_NAMES = ("efficiency", "m0", "n0", "k0", "overhead_s")
GEMM_SCALE = (1.0, 50.0, 100.0, 100.0, 3e-6)
"""Units of the fit: the share by its logarithm, ramps and overhead as they are, over these."""

GEMM_PRIOR_SD = (0.2, 1.0, 1.5, 1.0, 1.0)
"""In those units: laws of shipped devices differ by about this from each other."""

UNKNOWN_GEMM = GemmLaw(0.7, 30.0, 100.0, 50.0, 4e-6)
"""Where the profile has a peak for a dtype but no law: about the middle of the shipped ones."""

ATTENTION_NAMES = ("forward", "backward", "ramp", "head_dim_ramp", "fill")
ATTENTION_SCALE = (1.0, 1.0, 100.0, 30.0, 10_000.0)
ATTENTION_PRIOR_SD = (0.25, 0.25, 1.0, 1.0, 1.0)
UNKNOWN_ATTENTION = AttentionLaw(0.5, 0.4, 150.0, True, head_dim_ramp=20.0, fill=15_000.0)
SHARES = frozenset({"efficiency", "forward", "backward"})


@dataclass(frozen=True, slots=True)
class LawFigure:
    """One number of a law: before, after, its 90 % interval, and how much of the prior's doubt the rows removed."""

    name: str
    before: float
    after: float
    interval: tuple[float, float]
    told: float


@dataclass(frozen=True, slots=True)
class KernelFit:
    """A law fitted to rows of one dtype or kernel class."""

    operation: str
    name: str
    law: GemmLaw | AttentionLaw
    figures: tuple[LawFigure, ...]
    rows: tuple[GemmRow, ...] | tuple[AttentionRow, ...]
    measured_s: Array
    before_s: Array
    after_s: Array


def fit_gemms(accelerator: Accelerator, rows: Sequence[GemmRow]) -> list[KernelFit]:
    """One fit for each dtype. Raises InputError for a dtype of which the accelerator has no peak."""
    fits = []
    for dtype in sorted({row.dtype for row in rows}):
        if dtype not in accelerator.peak_flops:
            have = ", ".join(sorted(accelerator.peak_flops))
            raise InputError(f"GEMMs in {dtype}: {accelerator.name} has no peak for it; expected one of {have}")
        mine = tuple(row for row in rows if row.dtype == dtype)
        before = accelerator.gemm.get(dtype, UNKNOWN_GEMM)

        def seconds(law: GemmLaw, dtype: str = dtype, mine: tuple[GemmRow, ...] = mine) -> Array:
            return predict_gemm(accelerator, law, dtype, mine)

        start = np.array([getattr(before, name) for name in GEMM_NAMES])
        measured = np.array([row.time_s for row in mine])
        x, figures = _fit(start, GEMM_NAMES, GEMM_SCALE, GEMM_PRIOR_SD, lambda v, f=seconds: f(GemmLaw(*v)), measured)  # type: ignore[misc]
        law = GemmLaw(*x)
        fits.append(KernelFit("gemm", dtype, law, figures, mine, measured, seconds(before), seconds(law)))
    return fits


def fit_attentions(accelerator: Accelerator, rows: Sequence[AttentionRow]) -> list[KernelFit]:
    """One fit for each fused kernel class; the unfused one is made of GEMMs and passes, and is left to those."""
    fits = []
    for kernel in sorted({row.kernel for row in rows} - {"unfused"}):
        mine = tuple(row for row in rows if row.kernel == kernel)
        missing = sorted({row.dtype for row in mine} - set(accelerator.peak_flops))
        if missing:
            raise InputError(f"attention in {missing[0]}: {accelerator.name} has no peak for it")
        before = accelerator.attention.get(kernel, UNKNOWN_ATTENTION)

        def made(values: Array, before: AttentionLaw = before) -> AttentionLaw:
            forward, backward, ramp, dim, fill = (float(v) for v in values)
            return replace(before, forward=forward, backward=backward, ramp=ramp, head_dim_ramp=dim, fill=fill)

        def seconds(law: AttentionLaw, mine: tuple[AttentionRow, ...] = mine) -> Array:
            return predict_attention(accelerator, law, mine)

        start = np.array([getattr(before, name) for name in ATTENTION_NAMES])
        measured = np.array([row.time_s for row in mine])
        x, figures = _fit(
            start, ATTENTION_NAMES, ATTENTION_SCALE, ATTENTION_PRIOR_SD, lambda v, s=seconds, m=made: s(m(v)), measured  # type: ignore[misc]
        )  # fmt: skip
        law = made(np.array(x))
        fits.append(KernelFit("attention", kernel, law, figures, mine, measured, seconds(before), seconds(law)))
    return fits


def _fit(
    start: Array,
    names: Sequence[str],
    scale: Sequence[float],
    prior_sd: Sequence[float],
    seconds: Callable[[Array], Array],
    measured: Array,
) -> tuple[list[float], tuple[LawFigure, ...]]:
    """Robust fit of a law's numbers: shares by their logarithm and at most 1, the rest at least 0."""
    share = np.array([name in SHARES for name in names])
    unit = np.array(scale)

    def values(x: Array) -> Array:
        return np.where(share, np.exp(np.minimum(x, 0.0)), np.maximum(x, 0.0) * unit)

    x0 = np.where(share, np.log(np.maximum(start, 1e-9)), start / unit)
    low, high = np.where(share, -4.0, 0.0), np.where(share, 0.0, np.inf)
    found = solve(lambda x: np.log(seconds(values(x)) / measured), x0, np.array(prior_sd), low, high)
    after, below, above = (values(found.x + sign * found.half_width) for sign in (0.0, -1.0, 1.0))
    told = 1.0 - found.sd / np.array(prior_sd)
    figures = tuple(
        LawFigure(n, float(b), float(a), (float(lo), float(hi)), float(t))
        for n, b, a, lo, hi, t in zip(names, start, after, below, above, told, strict=True)
    )
    return [float(v) for v in after], figures

"""Curves of log error over message size: smooth, blind to odd sizes, and drawn only where they predict better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_CURVE_SIZES = 2
"""Message sizes below which no curve is drawn: one size shows no repeat."""

CONSTANT = float("inf")
STIFFNESS = (0.1, 1.0, 10.0, 100.0, 1e4, CONSTANT)
"""Weights of a curve's second differences that are tried, up to a line and a constant."""

TRUST = (0.05, 0.3, float("inf"))
"""Log errors from which on a size counts less, as tried: a lone odd size asks for the first, a bump for the last."""

CAP = 0.5
"""No size left out counts for more than this log error when curves are compared."""

LEAST_ERROR = 0.015
"""A law that meets its rows this well needs no curve."""

SCATTER = 0.3
"""Log range of a size's repeats from which on they count as disturbed."""

WORTHWHILE = 0.97
"""A curve must predict sizes left out with this share of the law's own errors at most."""


def draw_curve(at: Array, error: Array) -> tuple[Array, Array] | None:
    """Sizes (log2) and smoothed log errors, or None where no curve predicts sizes left out better than the law does."""
    sizes = np.unique(np.round(at, 6))
    if len(sizes) < LEAST_CURVE_SIZES:
        return None
    middle = np.array([_typical(error[np.round(at, 6) == s]) for s in sizes])
    missed = _score(middle)
    tried = [(_score(_left_out(sizes, middle, s, t)), s, t) for s in STIFFNESS for t in TRUST]
    best, stiff, trust = min(tried, key=lambda entry: (round(entry[0], 6), -entry[1], entry[2]))
    if missed < LEAST_ERROR or best > WORTHWHILE * missed:
        return None
    return sizes, _smoothed(sizes, middle, stiff, trust)


def _typical(errors: Array) -> float:
    """The middle of a size's repeats, or the quickest where they scatter: a disturbance only ever adds time."""
    return float(np.min(errors) if np.ptp(errors) > SCATTER else np.median(errors))


def _score(errors: Array) -> float:
    """Size of errors by which curves are compared."""
    return float(np.mean(np.minimum(np.abs(errors), CAP)))


def _smoothed(sizes: Array, values: Array, stiff: float, trust: float) -> Array:
    """Whittaker smoothing; sizes farther than ``trust`` from the curve count less (reweighted absolute loss)."""
    n = len(sizes)
    if stiff == CONSTANT or n < 3:
        return np.full(n, np.median(values))
    gaps = np.diff(sizes)
    rough = np.zeros((n - 2, n))
    for i in range(n - 2):
        rough[i, i : i + 3] = (1.0 / gaps[i], -1.0 / gaps[i] - 1.0 / gaps[i + 1], 1.0 / gaps[i + 1])
    penalty, weight = stiff * rough.T @ rough, np.ones(n)
    curve: Array = values
    for _ in range(1 if trust == float("inf") else 6):
        curve = np.asarray(np.linalg.solve(np.diag(weight) + penalty, weight * values), dtype=np.float64)
        weight = 1.0 / np.maximum(1.0, np.abs(values - curve) / trust)
    return np.asarray(curve)


def _left_out(sizes: Array, values: Array, stiff: float, trust: float) -> Array:
    """Errors at each size of the curve drawn without it."""
    out = []
    for i in range(len(sizes)):
        kept = np.arange(len(sizes)) != i
        curve = _smoothed(sizes[kept], values[kept], stiff, trust)
        out.append(float(np.interp(sizes[i], sizes[kept], curve)) - values[i])
    return np.array(out)

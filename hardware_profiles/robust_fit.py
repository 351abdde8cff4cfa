"""Robust maximum a posteriori fits of a few parameters, with honest widths.

Least squares of ``residual(x) / scale`` under the soft-L1 loss (2(sqrt(1 + r^2) - 1): squares near 0, absolute values
far out) plus the same loss of ``(x - start) / prior_sd``, by reweighting with soft-L1's 1 / sqrt(1 + r^2). So neither
a few odd rows nor a cluster far from its profile bends the rest. ``scale`` is the spread of the residuals themselves
(1.48 times their median absolute value): noise is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_SCALE = 0.005
"""No timing repeats better than half a per cent; without a floor a perfect fit would claim no doubt at all."""

NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""

CONFIDENCE = 0.9
CORNERS = 1.25
"""Widening of intervals for what a Jacobian does not see: laws have corners (the slowest tier, the quickest algorithm).
With it, intervals of planted constants hold the truth as often as they claim (tests of the collectives)."""

ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Solution:
    """Parameters, their standard deviations, half-widths of 90 % intervals, the noise, and the residuals left."""

    x: Array
    sd: Array
    half_width: Array
    scale: float
    residuals: Array


def solve(
    residual: Callable[[Array], Array],
    start: Array,
    prior_sd: Array,
    low: Array | float = -np.inf,
    high: Array | float = np.inf,
    noise: tuple[float, float] = (LEAST_SCALE, 0.0),
    first: Array | None = None,
) -> Solution:
    """Fit ``x`` from ``start``, which is also the prior's mean. ``residual``: log(predicted / measured) of each row.

    ``noise``: the scale expected beforehand, and the number of rows that this expectation is worth. ``first``: where to
    look first, if not at ``start``.
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    low, high = np.broadcast_to(low, start.shape), np.broadcast_to(high, start.shape)
    x = np.clip(start if first is None else first, low + 1e-9, high - 1e-9)
    left = residual(x)
    # The first scale must not be so wide that the prior holds against clean rows that are merely far off.
    scale, weight, trust = 0.05, np.ones(len(left)), np.ones(len(x))
    jacobian: Array = np.zeros((len(left), len(x)))
    for _ in range(ROUNDS):

        def whole(z: Array, weight: Array = weight, scale: float = scale, trust: Array = trust) -> Array:
            return np.concatenate([np.sqrt(weight) * residual(z) / scale, np.sqrt(trust) * (z - start) / prior_sd])

        found = least_squares(whole, x, bounds=(low, high), x_scale=prior_sd, diff_step=[1e-4], max_nfev=60)
        moved = float(np.max(np.abs(found.x - x) / prior_sd))
        x, left = found.x, residual(found.x)
        jacobian = np.asarray(found.jac)[: len(left)] * (scale / np.sqrt(weight))[:, None]
        spread, worth = NORMAL * float(np.median(np.abs(left))), noise[1]
        scale = max(LEAST_SCALE, float(np.sqrt((worth * noise[0] ** 2 + len(left) * spread**2) / (worth + len(left)))))
        weight = 1.0 / np.sqrt(1.0 + (left / scale) ** 2)
        trust = 1.0 / np.sqrt(1.0 + ((x - start) / prior_sd) ** 2)
        if moved < 1e-3:
            break
    sd = _spread(jacobian, left, scale, prior_sd)
    freedom = max(3, len(left) - len(x))
    width = CORNERS * float(t.ppf(0.5 + CONFIDENCE / 2.0, freedom))
    return Solution(x, sd, sd * width, scale, left)


def _spread(jacobian: Array, left: Array, scale: float, prior_sd: Array) -> Array:
    """Standard deviations of a robust fit: the sandwich covariance of M-estimation, prior included.

    (A + P)^-1 (B + P) (A + P)^-1 with A = sum psi'_i J_i J_i', B = sum psi_i^2 / (1 - h_i)^2 J_i J_i' (psi the loss's
    derivative, h_i the leverage of a row, as in HC3 of MacKinnon and White 1985) and P the prior's precision.
    """
    ratio, rows = left / scale, jacobian / scale
    psi, slope = ratio / np.sqrt(1.0 + ratio**2), (1.0 + ratio**2) ** -1.5
    prior = np.diag(prior_sd**-2.0)
    bread = np.linalg.inv(rows.T @ (np.maximum(slope, 0.05)[:, None] * rows) + prior)
    leverage = np.minimum(np.einsum("ij,jk,ik->i", rows, bread, rows) * slope, 0.9)
    meat = rows.T @ ((psi / (1.0 - leverage))[:, None] ** 2 * rows)
    covariance = bread @ (meat + prior) @ bread
    return np.minimum(np.sqrt(np.diag(covariance)), prior_sd)

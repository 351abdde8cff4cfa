"""Fitting a few global factors of a cluster to the step times of runs that were made on it.

Three factors, never one per row: how fast the accelerator computes in long training, how much of its rate the network
between domains delivers, and the scale-up links. Each multiplies figures of the profile, so that plans, bounds and
refinement see it like any other figure. Each has a prior at 1, and none moves unless the runs agree: with each run left
out in turn, the factors of the others must predict it better than the profile does, for four runs in five.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware_profiles.accelerator import Accelerator, AttentionLaw
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.robust_fit import CONFIDENCE, Solution, solve

from .fit_runs import Batch, Run, batches_of

Array = NDArray[np.float64]

FACTORS = ("compute", "network", "scale_up")
PRIOR_SD = np.array([0.05, 0.10, 0.05])
"""Standard deviation of the logarithm of each factor about 1, with long tails (soft L1): what helps most and harms
least when the runs of 24 published groups are calibrated on five of them (benchmarks/calibration.py)."""

NOISE = (0.06, 5.0)
"""Scatter of step times about a prediction that is right on average, and the runs that this expectation is worth."""

AGREEMENT = 0.8
"""Share of the runs that the factors of the other runs must predict better than the profile does."""

LARGEST_LOG = 0.7
"""A factor beyond two means that the runs are not of this cluster."""

STEP = 0.05
"""Half the log range over which derivatives are taken."""

INTERVAL = 0.8
"""What the intervals of step times claim to hold (``estimate.INTERVALS``)."""

INTERVAL_RUNS = 5.0
"""Runs that the interval before calibration is worth."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor after the fit: its value, its 90 % interval, and how much of the prior's doubt the runs removed."""

    name: str
    value: float
    interval: tuple[float, float]
    told: float


@dataclass(frozen=True, slots=True)
class RunsFit:
    """What the step times of runs made of a cluster's factors. ``left_out``: log error of each run, itself left out."""

    factors: tuple[Factor, ...]
    agreed: bool
    """Whether the runs agree on factors; if not, all are 1."""
    runs: tuple[Run, ...]
    measured_s: Array
    before_s: Array
    after_s: Array
    left_out: Array

    @property
    def values(self) -> dict[str, float]:
        """Factor by name."""
        return {factor.name: factor.value for factor in self.factors}


def fit_factors(runs: Sequence[Run]) -> RunsFit:
    """Factors that bring predictions of the runs, on their own problems' clusters, nearest to their step times.

    Log step times are linear in the logarithms of the factors, near enough for what a factor moves; the line is drawn
    anew at the first solution.
    """
    batches = batches_of(runs)
    measured = np.array([run.measured_s for run in runs])

    def error(x: Array) -> Array:
        times = step_times(runs, batches, dict(zip(FACTORS, np.exp(x), strict=True)))
        return np.asarray(np.log(times / measured))

    nothing = np.zeros(len(FACTORS))
    before = error(nothing)
    slope = _slopes(error, nothing)
    left_out = np.array([_predicted_out(before, slope, i) for i in range(len(runs))])
    agreed = len(runs) > 1 and np.sum(np.abs(left_out) < np.abs(before)) >= np.ceil(AGREEMENT * len(runs))
    found = _solved(before, slope)
    if agreed:
        again = _slopes(error, found.x)
        found = _solved(error(found.x) - again @ found.x, again)
    x = found.x if agreed else nothing
    width = found.half_width if agreed else PRIOR_SD * float(_normal(0.5 + CONFIDENCE / 2.0))
    told = 1.0 - found.sd / PRIOR_SD if agreed else nothing
    factors = tuple(
        Factor(n, float(np.exp(v)), (float(np.exp(v - w)), float(np.exp(v + w))), float(t))
        for n, v, w, t in zip(FACTORS, x, width, told, strict=True)
    )
    times = measured * np.exp(before)
    after = measured * np.exp(error(x))
    return RunsFit(factors, bool(agreed), tuple(runs), measured, times, after, left_out if agreed else before)


def interval_after(left_out: Array, half_before: float) -> float:
    """Half-width of the interval of step times (80 %) that the errors of left-out runs leave, as a share.

    The interval before counts as ``INTERVAL_RUNS`` runs that scattered so; a Student quantile for how few they are.
    """
    from scipy.stats import t

    claimed = half_before / float(_normal(0.5 + INTERVAL / 2.0))
    count = INTERVAL_RUNS + len(left_out)
    spread = np.sqrt((INTERVAL_RUNS * claimed**2 + float(np.sum(left_out**2))) / count)
    return float(t.ppf(0.5 + INTERVAL / 2.0, count) * spread)


def _normal(quantile: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(quantile))


def _slopes(error: Callable[[Array], Array], x: Array) -> Array:
    """Derivatives of the log errors by the log factors, one column each."""
    steps = STEP * np.eye(len(x))
    return np.column_stack([(error(x + step) - error(x - step)) / (2.0 * STEP) for step in steps])


def _solved(error: Array, slope: Array) -> Solution:
    start = np.zeros(slope.shape[1])
    return solve(lambda x: error + slope @ x, start, PRIOR_SD, -LARGEST_LOG, LARGEST_LOG, NOISE)


def _predicted_out(error: Array, slope: Array, i: int) -> float:
    """Log error of one run under the factors of the others."""
    kept = np.arange(len(error)) != i
    if not kept.any():
        return float(error[i])
    return float(error[i] + slope[i] @ _solved(error[kept], slope[kept]).x)


def step_times(runs: Sequence[Run], batches: Sequence[Batch], factors: Mapping[str, float]) -> Array:
    """Predicted seconds per step of each run with the factors applied to its cluster."""
    out = np.zeros(len(runs))
    for batch in batches:
        problem = replace(batch.problem, cluster=apply_factors(batch.problem.cluster, factors))
        out[batch.where] = batch.step_times(problem)
    return out


def apply_factors(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """The cluster with its sustained rates, memory share and link shares multiplied; shares stay at most 1."""
    tiers = tuple(
        replace(
            tier,
            efficiency={
                kind: min(1.0, share * factors["network" if at else "scale_up"])
                for kind, share in tier.efficiency.items()
            },
        )
        for at, tier in enumerate(cluster.tiers)
    )
    return replace(cluster, tiers=tiers, accelerator=_faster(cluster.accelerator, factors["compute"]))


def _faster(accelerator: Accelerator, factor: float) -> Accelerator:
    """Every rate of long training times the factor: GEMMs, attention kernels, streams through memory."""
    sustained = {dtype: min(1.0, accelerator.sustained.get(dtype, 1.0) * factor) for dtype in accelerator.gemm}
    return replace(
        accelerator,
        sustained=sustained,
        attention={kernel: _faster_kernel(law, factor) for kernel, law in accelerator.attention.items()},
        memory_efficiency=min(1.0, accelerator.memory_efficiency * factor),
    )


def _faster_kernel(law: AttentionLaw, factor: float) -> AttentionLaw:
    """Unfused kernels follow the GEMMs and the memory; fused ones have a sustained share of their own."""
    return law if law.softmax_passes_forward > 0.0 else replace(law, sustained=min(1.0, law.sustained * factor))

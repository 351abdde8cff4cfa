"""What a calibrated profile remembers of its measurements: what they covered, and how well its figures meet them."""

from __future__ import annotations

from dataclasses import dataclass

COVER_SLACK = 2.0
"""Sizes and group sizes within this factor of the covered range count as covered: the next power of two."""


@dataclass(frozen=True, slots=True)
class CoveredCollective:
    """Rows of one kind across one tier. Errors are medians of |predicted / measured - 1|; ``half_width`` holds 80 %."""

    kind: str
    tier: str
    ranks: tuple[int, int]
    nbytes: tuple[float, float]
    rows: int
    error_before: float
    error_after: float
    half_width: float

    def beyond(self, ranks: int, nbytes: float) -> str | None:
        """What of a collective lies outside the measured range, in words, or None."""
        if not self.ranks[0] / COVER_SLACK <= ranks <= self.ranks[1] * COVER_SLACK:
            return f"groups of {ranks} (measured: {_span(*self.ranks)} ranks)"
        if not self.nbytes[0] / COVER_SLACK <= nbytes <= self.nbytes[1] * COVER_SLACK:
            return f"messages of {nbytes:.3g} bytes (measured: {self.nbytes[0]:.3g} to {self.nbytes[1]:.3g})"
        return None


@dataclass(frozen=True, slots=True)
class CoveredKernel:
    """Rows of GEMMs of one dtype, or of one attention kernel class. ``sizes``: the range of each named dimension."""

    operation: str
    """``gemm`` or ``attention``."""
    name: str
    """Dtype, or kernel class."""
    sizes: dict[str, tuple[float, float]]
    rows: int
    error_before: float
    error_after: float
    half_width: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Whole steps that the profile was fitted to: the interval of such steps before and after, as shares (80 %)."""

    models: str
    """``dense``, ``moe`` or ``hybrid``."""
    launcher: str
    """The framework whose runs these were, as runtimes name their launcher."""
    runs: int
    error_before: float
    error_after: float
    half_width_before: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The measurements behind a profile."""

    base: str
    """The profile that was calibrated."""
    collectives: tuple[CoveredCollective, ...] = ()
    kernels: tuple[CoveredKernel, ...] = ()
    step_times: tuple[StepTimes, ...] = ()
    not_identified: tuple[str, ...] = ()
    """Figures that the measurements do not tell: they stayed with the base profile's."""

    def covered(self, kind: str, tier: str) -> CoveredCollective | None:
        """The rows of a kind across a tier."""
        return next((c for c in self.collectives if c.kind == kind and c.tier == tier), None)

    def steps_of(self, models: str, launcher: str) -> StepTimes | None:
        """The runs of such models under such a framework."""
        return next((s for s in self.step_times if s.models == models and s.launcher == launcher), None)


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"

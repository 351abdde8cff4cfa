"""What a calibrated cluster profile says of one problem: the interval its own runs left, and what they do not reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shardwise.hardware_profiles.calibration import COVER_SLACK, Calibration, StepTimes

from .model import ModelSpec, RecurrentCore
from .problem import Problem
from .strategy import Strategy

if TYPE_CHECKING:
    from .estimate import Traffic


def model_family(model: ModelSpec) -> str:
    """``dense``, ``moe`` or ``hybrid`` (linear attention or state-space layers), as intervals tell them apart."""
    if any(kind.mixer is not None and isinstance(kind.mixer.core, RecurrentCore) for kind in model.kinds):
        return "hybrid"
    return "moe" if model.is_moe else "dense"


def calibrated_steps(problem: Problem) -> StepTimes | None:
    """The runs of such models under such a framework that the cluster's profile was calibrated on, or None."""
    calibration = problem.cluster.calibration
    return None if calibration is None else calibration.steps_of(model_family(problem.model), problem.runtime.launcher)


def beyond_calibration(problem: Problem, strategy: Strategy, traffic: Iterable[Traffic]) -> Iterator[str]:
    """Sentences on what the measurements behind a calibrated profile do not reach."""
    calibration = problem.cluster.calibration
    if calibration is None:
        return
    if calibration.collectives:
        yield from _collectives(calibration, traffic)
    tokens = strategy.micro_batch_size * problem.workload.sequence_length / strategy.cp
    yield from _kernels(calibration, "gemm", problem.gemm_dtype, "m", tokens, "rows")
    keys = float(problem.workload.sequence_length)
    yield from _kernels(calibration, "attention", problem.attention_kernel, "seq_k", keys, "keys")


def _kernels(
    calibration: Calibration, operation: str, name: str, dimension: str, value: float, unit: str
) -> Iterator[str]:
    """A sentence where the calibration knows such kernels but not this one, or not at this size."""
    mine = [k for k in calibration.kernels if k.operation == operation]
    known = next((k for k in mine if k.name == name), None)
    if mine and known is None:
        yield f"calibration: {operation} {name} was not measured"
    if known is not None:
        low, high = known.sizes[dimension]
        if not low / COVER_SLACK <= value <= high * COVER_SLACK:
            span = f"{low:g} to {high:g}"
            yield f"calibration: {operation} {name} is extrapolated to {value:g} {unit} (measured: {span})"


def _collectives(calibration: Calibration, traffic: Iterable[Traffic]) -> Iterator[str]:
    """One sentence a kind and tier."""
    told: set[tuple[str, str]] = set()
    for row in traffic:
        key = (row.collective, row.tier)
        if key in told:
            continue
        covered = calibration.covered(*key)
        beyond = None if covered is None else covered.beyond(row.group_size, row.tensor_bytes)
        if covered is None or beyond is not None:
            told.add(key)
            what = "was not measured" if covered is None else f"is extrapolated to {beyond}"
            yield f"calibration: {row.collective} on {row.tier} {what}"

"""What a calibrated cluster profile says of one problem: the interval its own runs left, and what they do not reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shardwise.hardware_profiles.calibration import StepTimes
from shardwise.hardware_profiles.cluster import Cluster

from .model import ModelSpec, RecurrentCore
from .problem import Problem

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


def beyond_calibration(cluster: Cluster, traffic: Iterable[Traffic]) -> Iterator[str]:
    """Sentences on collectives that the measurements behind a calibrated profile do not reach, one a kind and tier."""
    calibration = cluster.calibration
    if calibration is None or not calibration.collectives:
        return
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

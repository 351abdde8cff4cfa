"""A cluster profile calibrated on what its owner measured: benchmarks first, then whole steps under the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shardwise.hardware_profiles.calibrate import Benchmarked, Change, Log, calibrate_benchmarks
from shardwise.hardware_profiles.calibrated_profile import Origin, extends_text, profile_text
from shardwise.hardware_profiles.calibration import Calibration, StepTimes
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.hardware_profiles.text_files import is_there

from .calibrate_runs import FACTORS, RunsFit, apply_factors, fit_factors, interval_after
from .calibrated import model_family
from .estimate import published_half_width
from .fit_runs import Run
from .problem import Problem
from .rows import RowInputs
from .training_rows import RunsFile, read_runs

FACTOR_WORDS = {
    "compute": "rate of long training over the profile's",
    "network": "share of the network's rate over the profile's",
    "scale_up": "share of the scale-up links' rate over the profile's",
}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The calibrated cluster, what changed, and everything that was measured and predicted."""

    named: str
    """How the base was named."""
    base: Cluster
    cluster: Cluster
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    benchmarks: Benchmarked
    runs: RunsFit | None

    def profile(self, folder: Path, name: str | None = None) -> str:
        """The YAML text of the new profile, to be written into ``folder``."""
        path = Path(self.named)
        base = path if is_there(path) and path.is_file() else None
        return profile_text(
            extends_text(self.named, base, folder),
            name or (self.base.name if self.base.calibration else f"{self.base.name}, calibrated"),
            self.base,
            self.cluster,
            self.benchmarks.sources,
            self.notes,
        )


def calibrate(
    cluster: str,
    *,
    logs: Sequence[Log | str | Path] = (),
    gemm: Sequence[str | Path] = (),
    attention: Sequence[str | Path] = (),
    runs: Sequence[RunsFile | str | Path] = (),
) -> Calibrated:
    """Calibrate a cluster profile (name or YAML file) on benchmark logs and on measured runs.

    ``logs``: of nccl-tests and its kin; ``gemm`` and ``attention``: tables of kernel timings; ``runs``: step times, as
    rows or logs of training frameworks. ``.cluster`` of the answer plans like any cluster, ``.profile`` writes it.

    Raises InputError: nothing given, a file that cannot be read (with file and line), or a question a log leaves open.
    """
    if not (logs or gemm or attention or runs):
        raise InputError("nothing to calibrate on: give --nccl, --gemm, --attention or --runs")
    base = load_cluster(cluster)
    listed = [log if isinstance(log, Log) else Log(Path(log)) for log in logs]
    benchmarks = calibrate_benchmarks(base, cluster, listed, [*map(Path, gemm)], [*map(Path, attention)])
    notes = list(benchmarks.notes)
    made, changes, fit = benchmarks.cluster, list(benchmarks.changes), None
    if runs:
        files = [file if isinstance(file, RunsFile) else RunsFile(Path(file)) for file in runs]
        measured = _placed(files, made, notes)
        fit = fit_factors(measured)
        made, more = _with_runs(made, fit, files, benchmarks, notes)
        changes += more
    return Calibrated(cluster, base, made, tuple(changes), tuple(dict.fromkeys(notes)), benchmarks, fit)


def _placed(files: Sequence[RunsFile], cluster: Cluster, notes: list[str]) -> list[Run]:
    """The runs of all files, each on this cluster. Raises InputError where one ran on another accelerator."""
    runs: list[Run] = []
    moved: dict[int, Problem] = {}
    for file in files:
        for entry in read_runs(file, cluster, notes):
            problem = entry.inputs.problem
            theirs = problem.cluster.accelerator.name
            if theirs != cluster.accelerator.name:
                raise InputError(
                    f"{entry.place}: ran on {theirs}, but {cluster.name} has {cluster.accelerator.name}: expected runs"
                    " of this cluster"
                )
            if id(problem) not in moved:
                job = cluster.with_num_gpus(problem.cluster.num_gpus)
                moved[id(problem)] = replace(problem, cluster=job)
            inputs = RowInputs(entry.inputs.row_id, moved[id(problem)], entry.inputs.strategy, entry.inputs.assumptions)
            runs.append(Run(inputs, file.path.name, entry.seconds))
    if not runs:
        raise InputError(f"{', '.join(str(f.path) for f in files)}: no run with a step time that can be predicted")
    return runs


def _with_runs(
    cluster: Cluster, fit: RunsFit, read: Sequence[RunsFile], benchmarks: Benchmarked, notes: list[str]
) -> tuple[Cluster, list[Change]]:
    """The cluster under the factors, and the changes they are."""
    files = ", ".join(sorted({file.path.name for file in read}))
    count = f"{len(fit.runs)} run{'s' * (len(fit.runs) != 1)} of {files}"
    if not fit.agreed:
        notes.append(f"{count}: they agree on no factor that predicts a left-out run better: no figure was moved")
    changes = [
        Change(f"{name}: {FACTOR_WORDS[name]}", "x", 1.0, f.value, f.interval, f.told if fit.agreed else None, files)
        for name, f in zip(FACTORS, fit.factors, strict=True)
    ]
    made = apply_factors(cluster, fit.values)
    sources = benchmarks.sources
    origin = Origin("fitted", f"times {fit.values['compute']:.3f} to meet {count} (shardwise calibrate)")
    sources.by_key["sustained"] = origin
    for at, tier in enumerate(cluster.tiers):
        factor = fit.values["network" if at else "scale_up"]
        for kind in tier.efficiency:
            key = f"tiers.{tier.name}.efficiency.{kind}"
            first = sources.by_key.get(key)
            text = f"times {factor:.3f} to meet {count} (shardwise calibrate)"
            if abs(factor - 1.0) > 1e-9:
                sources.by_key[key] = Origin("fitted", f"{first.source}; {text}" if first else text)
    calibration = cluster.calibration or Calibration(benchmarks.sources.rest.source)
    steps = _step_times(fit)
    kept = [s for s in calibration.step_times if (s.models, s.launcher) not in {(n.models, n.launcher) for n in steps}]
    return replace(made, calibration=replace(calibration, step_times=(*kept, *steps))), changes


def _step_times(fit: RunsFit) -> list[StepTimes]:
    """The interval that each kind of model under each framework is left with."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, run in enumerate(fit.runs):
        problem = run.inputs.problem
        groups[model_family(problem.model), problem.runtime.launcher].append(at)
    out = []
    for (models, launcher), where in sorted(groups.items()):
        before = published_half_width(fit.runs[where[0]].inputs.problem)
        errors = [np.abs(s[where] / fit.measured_s[where] - 1.0) for s in (fit.before_s, fit.after_s)]
        half = interval_after(fit.left_out[where], before)
        out.append(
            StepTimes(
                models, launcher, len(where), float(np.median(errors[0])), float(np.median(errors[1])), before, half
            )
        )
    return out

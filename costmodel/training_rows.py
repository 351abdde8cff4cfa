"""Measured runs for calibration: rows of our own JSON lines, or logs of training frameworks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError

from .rows import RowInputs
from .training_logs import is_training_log, read_training_log
from .validation import read_rows


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One run with its step time. ``place``: file and line, for errors."""

    inputs: RowInputs
    seconds: float
    place: str


@dataclass(frozen=True, slots=True)
class RunsFile:
    """A file of runs. ``row``: for a log that does not say what ran, ``FILE`` or ``FILE#ID`` of the row that does."""

    path: Path
    row: str | None = None


def read_runs(file: RunsFile, cluster: Cluster, notes: list[str]) -> Iterator[TimedRun]:
    """Timed runs of a file; why others were left out goes to ``notes``. Raises InputError where nothing can be read."""
    path = file.path
    if is_training_log(path):
        for inputs, seconds in read_training_log(path, file.row, cluster, notes):
            yield TimedRun(inputs, seconds, str(path))
        return
    entries = read_rows(path)
    if not entries:
        raise InputError(f"{path}: holds no rows; expected one measured run a line, as JSON, or a training log")
    for entry in entries:
        place = f"{path}: line {entry.line}"
        timed = entry.row.get("step_time_s")
        if entry.inputs is None:
            if entry.row_id.startswith("line ") or not entry.row:
                raise InputError(f"{place}: {entry.skipped}")
            notes.append(f"{path.name}: {entry.row_id} left out: {entry.skipped}")
        elif entry.row.get("suspect"):
            notes.append(f"{path.name}: {entry.row_id} left out: suspect: {entry.row['suspect']}")
        elif not isinstance(timed, int | float) or isinstance(timed, bool) or not 0.0 < timed < 1e6:
            notes.append(f"{path.name}: {entry.row_id} left out: no step time")
        else:
            yield TimedRun(entry.inputs, float(timed), place)

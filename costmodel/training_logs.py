"""Step times in the logs of training frameworks: Megatron-LM, NeMo, torchtitan, DeepSpeed.

A log tells how long steps took; what ran is told by Megatron's own list of arguments at its head, or by a row of
docs/runs.md that the user names beside the log. The step time is the median after a warm-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.readers.log_lines import read_lines, where
from shardwise.hardware_profiles.text_files import read_text

from ._validation_model import RowSkippedError
from .megatron_dump import read_dump, row_of_dump
from .rows import RowInputs, RowReader, lacking_section

WHAT = "measured runs (JSON lines) or a log of Megatron-LM, NeMo, torchtitan or DeepSpeed"
_MAX_ROW_BYTES = 1 << 24

WARM_UP_SHARE = 4
"""One step in so many, counted from the first, is warm-up: compilation, autotuning, first allocations."""

MOST_WARM_UP = 10


@dataclass(frozen=True, slots=True)
class Step:
    """One logged step: seconds, or what seconds follow from once batch and sequence are known."""

    line: int
    number: int
    seconds: float | None
    samples_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """The steps of one log and what else it says."""

    path: str
    framework: str
    steps: tuple[Step, ...]
    peak_memory_bytes: float | None
    arguments: Mapping[str, str]
    """Megatron's list of arguments, where the log has it."""


_Made = Callable[[int, re.Match[str]], Step | None]
_PATTERNS: tuple[tuple[str, re.Pattern[str], _Made], ...] = (
    (
        "megatron",
        re.compile(r"iteration\s+(\d+)\s*/.*?elapsed time per iteration \(ms\):\s*(\d+(?:\.\d+)?)(?P<rest>.*)"),
        lambda line, m: Step(
            line, int(m[1]), float(m[2]) / 1e3, batch=_found(r"global batch size:\s*(\d+)", m["rest"])
        ),
    ),
    (
        "nemo",
        re.compile(r"global_step['\":=\s]+(\d+(?:\.\d+)?).*?train_step_timing in s['\":=\s]+(\d+(?:\.\d+)?)"),
        lambda line, m: Step(line, int(float(m[1])), float(m[2])),
    ),
    (
        "torchtitan",
        re.compile(r"\bstep:\s*(\d+)\s+loss:.*?\btps:\s*(\d[\d,]*)"),
        lambda line, m: Step(line, int(m[1]), None, tokens_per_s_per_gpu=float(m[2].replace(",", ""))),
    ),
    (
        "deepspeed",
        re.compile(r"\bsteps:\s*(\d+)\s+loss:.*?\biter time \(s\):\s*(\d+(?:\.\d+)?)"),
        lambda line, m: Step(line, int(m[1]), float(m[2])),
    ),
    (
        "deepspeed",
        re.compile(
            r"(?:global_step=|\]\s+\d+/)(\d+),\s*RunningAvgSamplesPerSec=[\d.einf]+,\s*CurrSamplesPerSec=(\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)(?=[,\s]|$)"
        ),
        lambda line, m: Step(line, int(m[1]), None, samples_per_s=float(m[2])),
    ),
)
_MEMORY = (
    (re.compile(r"max allocated:\s*(\d+(?:\.\d+)?)"), float(1 << 20)),
    (re.compile(r"\bmemory:\s*(\d+(?:\.\d+)?)GiB"), float(1 << 30)),
    (re.compile(r"MaxMemAllocated=(\d+(?:\.\d+)?)GB"), float(1 << 30)),
)


def _found(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def is_training_log(path: Path) -> bool:
    """Whether a file is a log rather than rows of JSON."""
    text = read_text(path, WHAT, 1 << 28)
    return bool(text.strip()) and not text.lstrip().startswith("{")


def read_log(path: Path) -> TrainingLog:
    """The steps of a log. Raises InputError where it holds none of a known framework, or a broken one."""
    lines = read_lines(path, WHAT)
    found: dict[str, list[Step]] = {}
    peak = 0.0
    for number, line in enumerate(lines, start=1):
        for framework, pattern, made in _PATTERNS:
            if match := pattern.search(line):
                step = _checked(path, number, made(number, match))
                if step is not None:
                    found.setdefault(framework, []).append(step)
                break
        for pattern, unit in _MEMORY:
            if memory := pattern.search(line):
                peak = max(peak, float(memory[1]) * unit)
    if not found:
        raise InputError(f"{path}: holds no line with a step time; expected {WHAT}")
    # Megatron under DeepSpeed prints both; Megatron's own line states the time itself.
    framework = next(name for name, _, _ in _PATTERNS if name in found)
    return TrainingLog(str(path), framework, tuple(found[framework]), peak or None, read_dump(lines))


def _checked(path: Path, line: int, step: Step | None) -> Step | None:
    if step is None:
        return None
    values = [v for v in (step.seconds, step.samples_per_s, step.tokens_per_s_per_gpu) if v is not None]
    if any(not 0.0 < v < 1e12 for v in values):
        raise InputError(f"{where(path, line)}: step {step.number}: time or rate {values[0]:g}: expected above 0")
    return step


def step_time_s(log: TrainingLog, inputs: RowInputs) -> float:
    """Median seconds of the steps after the warm-up, of those with the run's batch. Raises InputError."""
    problem = inputs.problem
    batch, tokens = problem.workload.global_batch_size, problem.workload.tokens_per_step
    steps = [step for step in log.steps if step.batch in (None, batch)]
    if not steps:
        seen = sorted({step.batch for step in log.steps if step.batch is not None})
        raise InputError(f"{log.path}: its steps have global batch {seen[0]}, but the run is of {batch}")
    skipped = min(MOST_WARM_UP, -(-len(steps) // WARM_UP_SHARE)) if len(steps) > 1 else 0
    times = []
    for step in steps[skipped:]:
        if step.seconds is not None:
            times.append(step.seconds)
        elif step.samples_per_s is not None:
            times.append(batch / step.samples_per_s)
        elif step.tokens_per_s_per_gpu is not None:
            times.append(tokens / (step.tokens_per_s_per_gpu * problem.cluster.num_gpus))
    return float(np.median(times))


def read_training_log(
    path: Path, row: str | None, cluster: Cluster, notes: list[str]
) -> Iterator[tuple[RowInputs, float]]:
    """The one run of a log: its inputs and step time. ``row``: ``FILE`` or ``FILE#ID`` that says what ran.

    Raises InputError where neither that nor the log itself says what ran.
    """
    log = read_log(path)
    if row is not None:
        raw = _named_row(row)
    elif log.arguments:
        raw = row_of_dump(log.arguments, path, cluster)
    else:
        raise InputError(
            f"{path}: a log of {log.framework} that does not say what ran: give {path}:row=FILE, one row of"
            " docs/runs.md without its step time"
        )
    missing = lacking_section(raw)
    if missing:
        raise InputError(f"{row or path}: {missing}")
    try:
        inputs = RowReader(Path(row or path).resolve().parent.parent).read(raw)
    except RowSkippedError as error:
        raise InputError(f"{row or path}: {error}") from None
    seconds = step_time_s(log, inputs)
    notes.append(f"{path.name}: {len(log.steps)} steps of {log.framework}, median {seconds:.4g} s after the warm-up")
    yield inputs, seconds


def _named_row(text: str) -> dict[str, Any]:
    """The row that ``FILE`` or ``FILE#ID`` names. Raises InputError."""
    name, _, wanted = text.partition("#")
    rows = []
    for number, line in enumerate(
        read_text(Path(name), "one measured run a line, as JSON", _MAX_ROW_BYTES).split("\n"), 1
    ):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{where(name, number)}: not JSON: {str(error).splitlines()[0]}") from None
            if isinstance(row, dict) and (not wanted or row.get("id") == wanted):
                rows.append(row)
    if len(rows) != 1:
        raise InputError(
            f"{name}: {len(rows)} rows{f' with id {wanted!r}' if wanted else ''}: expected one; name it FILE#ID"
        )
    return rows[0]

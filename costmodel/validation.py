"""Predict every measured run of a JSON-lines file and say how far off the predictions are.

``validate_rows`` never raises for a bad row: it is reported as skipped, with the reason. The file itself must be
readable.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import read_text

from ._validation_model import RowSkippedError
from ._validation_stats import Facts, gather_facts, summarise
from ._validation_unseen import as_unseen, unseen_summary
from .estimate import estimate
from .evaluate import evaluate
from .problem import Problem
from .rows import RowInputs, RowReader, lacking_section
from .strategy import Strategies, Strategy

SCHEMA_VERSION = 1
MAX_FILE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RowResult:
    """The prediction of one row, or why there is none."""

    row_id: str
    predicted_step_time_s: float | None
    predicted_peak_memory_bytes: float | None
    fits: bool | None
    skipped: str | None
    assumptions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """One entry of ``rows`` in the JSON answer."""
        return {
            "id": self.row_id,
            "predicted_step_time_s": self.predicted_step_time_s,
            "predicted_peak_memory_bytes": self.predicted_peak_memory_bytes,
            "fits": self.fits,
            "skipped": self.skipped,
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """One result per row of the file, in its order, and the errors over them."""

    source: str
    rows: tuple[RowResult, ...]
    facts: tuple[Facts, ...]
    """Measured facts of the predicted rows."""
    summary: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": self.source,
            "rows": [row.as_dict() for row in self.rows],
            "summary": self.summary,
        }


@dataclass(frozen=True, slots=True)
class ReadRow:
    """One line of the file: the parsed row and its inputs, or the reason why there are none."""

    line: int
    row_id: str
    row: Mapping[str, Any]
    inputs: RowInputs | None
    skipped: str | None


def validate_rows(path: str | Path) -> Validation:
    """Predict every row of a measured-runs file. Raises InputError only when the file cannot be read at all."""
    read = read_rows(path)
    results = predict_rows(read)
    facts = _facts(read, results)
    skipped = [(r.row_id, r.skipped) for r in results if r.skipped is not None]
    unseen = as_unseen(read, facts, _reader(path))
    summary = {**summarise(facts, skipped), "unseen": unseen_summary(_facts(unseen, predict_rows(unseen)))}
    return Validation(Path(path).name, tuple(results), facts, summary)


def _facts(read: Iterable[ReadRow], results: Iterable[RowResult]) -> tuple[Facts, ...]:
    """Measured facts of the rows that have a prediction."""
    return tuple(
        gather_facts(
            entry.row, entry.inputs, result.predicted_step_time_s, result.predicted_peak_memory_bytes, result.fits
        )
        for entry, result in zip(read, results, strict=True)
        if entry.inputs is not None and result.skipped is None
    )


def _reader(path: str | Path) -> RowReader:
    return RowReader(Path(path).resolve().parent.parent)


def read_rows(path: str | Path) -> list[ReadRow]:
    """Parse a file of measured runs and turn each line into inputs; blank lines are not rows."""
    file = Path(path)
    # Only line feeds end a row: JSON may hold other separators of Unicode inside its strings.
    lines = read_text(file, "measured runs", MAX_FILE_BYTES).split("\n")
    reader = _reader(file)
    return [_read_line(reader, n, text) for n, text in enumerate(lines, start=1) if text.strip()]


def _read_line(reader: RowReader, number: int, text: str) -> ReadRow:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ReadRow(number, f"line {number}", {}, None, f"line {number}: not JSON: {str(error).splitlines()[0]}")
    if not isinstance(row, dict):
        return ReadRow(number, f"line {number}", {}, None, f"line {number}: expected a mapping of keys to values")
    row_id = row["id"] if isinstance(row.get("id"), str) else f"line {number}"
    missing = lacking_section(row)
    if missing:
        return ReadRow(number, row_id, row, None, f"line {number}: {missing}")
    try:
        return ReadRow(number, row_id, row, reader.read(row), None)
    except RowSkippedError as error:
        return ReadRow(number, row_id, row, None, str(error))


def predict_rows(rows: Iterable[ReadRow]) -> list[RowResult]:
    """One result per row, in order; rows that share a problem are evaluated together."""
    entries = list(rows)
    results: list[RowResult | None] = [None] * len(entries)
    by_problem: dict[int, list[int]] = defaultdict(list)
    for at, entry in enumerate(entries):
        if entry.inputs is None:
            results[at] = RowResult(entry.row_id, None, None, None, entry.skipped, ())
        elif _is_explicit(entry.inputs.strategy):
            results[at] = _predict_layout(entry, entry.inputs)
        else:
            by_problem[id(entry.inputs.problem)].append(at)
    for members in by_problem.values():
        for at, result in zip(members, _predict([entries[at] for at in members]), strict=True):
            results[at] = result
    return [r for r in results if r is not None]


def _is_explicit(strategy: Strategy) -> bool:
    """Whether layers or recomputation are written out by stage, which arrays of strategies do not hold."""
    return strategy.layers_per_stage is not None or strategy.recompute_per_stage is not None


def _predict(entries: list[ReadRow]) -> list[RowResult]:
    inputs = [entry.inputs for entry in entries if entry.inputs is not None]
    problem: Problem = inputs[0].problem
    try:
        out = evaluate(problem, Strategies.of(x.strategy for x in inputs))
    except InputError as error:
        if len(entries) > 1:
            return [result for entry in entries for result in _predict([entry])]
        return [RowResult(entries[0].row_id, None, None, None, str(error), inputs[0].assumptions)]
    results: list[RowResult] = []
    for i, (entry, own) in enumerate(zip(entries, inputs, strict=True)):
        seconds, peak = float(out.step_time_s[i]), float(out.peak_memory_bytes[i])
        if not (np.isfinite(seconds) and np.isfinite(peak) and seconds > 0.0):
            results.append(
                RowResult(entry.row_id, None, None, None, "the cost model has no finite prediction", own.assumptions)
            )
        else:
            counted, notes = _as_measured(entry, own, peak)
            results.append(RowResult(entry.row_id, seconds, counted, bool(out.fits[i]), None, own.assumptions + notes))
    return results


def _predict_layout(entry: ReadRow, own: RowInputs) -> RowResult:
    """A row whose layers are split explicitly: one at a time, by the same model."""
    try:
        one = estimate(own.problem, own.strategy)
    except InputError as error:
        return RowResult(entry.row_id, None, None, None, str(error), own.assumptions)
    counted, notes = _as_measured(entry, own, one.peak_memory_bytes)
    return RowResult(entry.row_id, one.step_time_s, counted, one.fits, None, own.assumptions + notes)


OUTSIDE_ALLOCATOR = ("context", "communicators")

NOT_COUNTED = {
    "allocator peak": (*OUTSIDE_ALLOCATOR, "fragmentation"),
    "allocator reserved": OUTSIDE_ALLOCATOR,
}
"""Parts of the predicted peak that a kind of measurement does not see, by how ``memory_kind`` starts."""

MEGATRON_LAUNCHERS = frozenset({"megatron", "megatron-bridge", "nemo"})
"""Their training log is written by the last rank."""


FULLEST = "fullest rank"
"""What a row's remark says where its memory is the most of all ranks."""

LOGGED_BY = (("rank-0", 0), ("last global rank", -1))
"""Which pipeline rank a row's remark says its memory was read on."""


def _as_measured(entry: ReadRow, own: RowInputs, peak: float) -> tuple[float, tuple[str, ...]]:
    """The predicted peak in the terms in which the row's own was measured, and the assumption that says so."""
    measured = entry.row.get("measured")
    if not isinstance(measured, Mapping) or not measured.get("peak_memory_gb"):
        return peak, ()
    kind, launcher = str(entry.row.get("memory_kind") or ""), own.problem.runtime.launcher
    remark = str(entry.row.get("remark") or "")
    rank = next((rank for words, rank in LOGGED_BY if words in remark), None)
    whole_log = rank is not None or FULLEST in remark
    if not whole_log and kind.startswith("allocator peak") and launcher in MEGATRON_LAUNCHERS:
        rank = -1
    if kind == "not stated" and launcher == "megatron":
        kind = "allocator peak (not stated: what Megatron-LM's log prints)"
    unseen = next((parts for start, parts in NOT_COUNTED.items() if kind.startswith(start)), ())
    if not unseen and rank is None:
        return peak, ()
    by_rank = estimate(own.problem, own.strategy).memory_parts_by_rank
    handed_out = own.problem.runtime.allocator_workspace_bytes if "context" in unseen else 0.0
    seen = [handed_out + sum(size for name, size in parts.items() if name not in unseen) for parts in by_rank]
    notes = (f"peak memory is counted as {kind}: without {', '.join(unseen)}",) if unseen else ()
    if rank is None:
        return max(seen), notes
    return seen[rank], (*notes, f"peak memory of the {'last' if rank else 'first'} pipeline rank, where it was read")


def report_markdown(validation: Validation) -> str:
    """The error tables of a validation as one markdown document."""
    from ._validation_report import render

    return render(validation.source, validation.summary)

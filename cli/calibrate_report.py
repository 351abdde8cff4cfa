"""What a calibration found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from .output import console
from .report import line, new_table, text_line
from .units import percent

if TYPE_CHECKING:
    from shardwise.costmodel.calibrate import Calibrated
    from shardwise.hardware_profiles.calibrate import Change

LEAST_TOLD = 0.3
"""Share of the doubt that measurements must remove from a figure to have identified it."""

SHOWN = 0.005
"""Relative change from which on a figure that only moved along is shown."""


def print_answer(answer: Calibrated, written: Sequence[str]) -> None:
    """Figures before and after, errors before and after, how intervals changed, and what is not known."""
    out = console()
    line(out, f"Calibration of [bold]{escape(answer.base.name)}[/bold] ({escape(answer.named)})")
    table = new_table("Figures", "figure", "before", "after", "90 % interval", "identified")
    for change in answer.changes:
        if change.told is not None or change.interval is not None or abs(change.after / change.before - 1.0) > SHOWN:
            table.add_row(*_cells(change))
    out.print(table)
    _print_errors(answer)
    for note in answer.notes:
        text_line(out, f"  note: {note}")
    for path in written:
        line(out, escape(path))


def _cells(change: Change) -> tuple[str, ...]:
    interval = "" if change.interval is None else f"{_number(change.interval[0])} to {_number(change.interval[1])}"
    told = "along" if change.interval is None else "no"
    if change.told is not None and change.told >= LEAST_TOLD:
        told = percent(max(0.0, change.told))
    before, after = f"{_number(change.before)} {change.unit}", f"{_number(change.after)} {change.unit}"
    return change.figure, before, after, interval, told


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) >= 1e-6 else "0"


def _print_errors(answer: Calibrated) -> None:
    """Median errors of the rows themselves, before and after, with the half-width that holds 80 % of them."""
    found = answer.cluster.calibration
    if found is None:
        return
    out = console()
    table = new_table("Predicted against measured", "what", "covers", "rows", "median before", "after", "80 % within")
    for c in found.collectives:
        ranks = f"{c.ranks[0]}" if c.ranks[0] == c.ranks[1] else f"{c.ranks[0]} to {c.ranks[1]}"
        covers = f"{ranks} ranks, {_bytes(c.nbytes[0])} to {_bytes(c.nbytes[1])}"
        table.add_row(f"{c.kind} on {c.tier}", covers, str(c.rows), *_errors(c))
    for k in found.kernels:
        covers = ", ".join(f"{n} {int(low)} to {int(high)}" for n, (low, high) in k.sizes.items())
        table.add_row(f"{k.operation} {k.name}", covers, str(k.rows), *_errors(k))
    for s in found.step_times:
        table.add_row(f"steps, {s.models}, {s.launcher}", "the runs given", str(s.runs), *_errors(s))
    out.print(table)
    for s in found.step_times:
        runs = f"{s.runs} run{'s' * (s.runs != 1)}"
        text_line(
            out,
            f"  interval of {s.models} models under {s.launcher}: ± {percent(s.half_width_before)} as published,"
            f" ± {percent(s.half_width)} with {runs} of this cluster",
        )


def _errors(entry: Any) -> tuple[str, str, str]:
    return percent(entry.error_before), percent(entry.error_after), percent(entry.half_width)


def _bytes(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def document(answer: Calibrated, written: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    from dataclasses import asdict

    found = answer.cluster.calibration
    return {
        "schema_version": 1,
        "base": answer.named,
        "figures": [asdict(change) for change in answer.changes],
        "calibration": None if found is None else asdict(found),
        "notes": list(answer.notes),
        "written": list(written),
    }

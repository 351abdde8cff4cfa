"""``shardwise plan --launcher any``: the best plan of every launcher, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.hardware_profiles.errors import InputError

from . import words
from .failures import say_warning
from .output import console, print_json, to_json, write_files
from .report import line, new_table, print_problem, text_line
from .units import change, gib, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.launcher_comparison import LauncherComparison, LauncherEntry

ANY = "any"
"""The word after ``--launcher`` that asks all of them."""


def show_comparison(answer: LauncherComparison, out: Path | None, as_json: bool) -> None:
    """Write every launcher's files into a folder of its name, then print: what is printed has been written."""
    files = _files(answer) if out is not None else {}
    written = [] if out is None else write_files(out, files)
    if as_json:
        print_json(answer.as_dict())
        return
    terminal = console()
    print_comparison(terminal, answer)
    if out is not None:
        folders = sorted({p.relative_to(out).parts[0] for p in written if p.parent != out})
        text_line(terminal, f"Written to {out}: {', '.join(folders)}")


def print_comparison(out: Console, answer: LauncherComparison) -> None:
    """The plans side by side, the quickest first, and why a launcher has none."""
    print_problem(out, answer.best.problem)
    line(out, "")
    table = new_table("Launchers", "launcher", "step", "price", "tokens/s/GPU", "MFU", "GiB", "layout")
    for entry in answer.entries:
        if entry.plan is not None:
            table.add_row(entry.launcher, *_cells(answer, entry))
    out.print(table)
    for entry in answer.entries:
        if entry.plan is None:
            text_line(out, f"  {entry.launcher}: no plan: {entry.reason}")
            continue
        runtime = entry.plan.problem.runtime
        if not runtime.measured:
            text_line(out, f"  {entry.launcher}: no published run stands behind runtime {runtime.name}")
    line(out, "Each is priced with its own runtime profile; --launcher NAME explains one plan in full.")


def _cells(answer: LauncherComparison, entry: LauncherEntry) -> tuple[str, ...]:
    assert entry.plan is not None
    found, best = entry.plan.estimate, answer.best.estimate
    ratio = found.step_time_s / best.step_time_s
    return (
        seconds(found.step_time_s),
        "best" if found is best else change(ratio),
        significant(found.tokens_per_s_per_gpu),
        percent(found.mfu),
        gib(found.peak_memory_bytes),
        words.short_layout(found.strategy, found.problem.model.is_moe),
    )


def _files(answer: LauncherComparison) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {"comparison.json": to_json(answer.as_dict()) + "\n"}
    for entry in answer.entries:
        if entry.plan is None:
            continue
        try:
            texts = entry.plan.launch()
        except InputError as error:
            say_warning(f"no launch files of {entry.launcher}: {error}")
            continue
        files |= {f"{entry.launcher}/{name}": text for name, text in texts.items()}
    return files

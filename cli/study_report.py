"""What a finished study prints: its axes, each point's best layout, and where the tables lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.search.studies.points import OK, Row, strategy_of

from . import words
from .report import new_table, text_line
from .units import gib, percent, plural, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.studies.runner import StudyResult

MOST_ROWS = 60
"""Rows that a person reads on a terminal; the files have all."""

MOST_LETTERS = 100
"""Letters of a reason in a table on a terminal."""


def print_study(out: Console, result: StudyResult, written: Sequence[Path]) -> None:
    """The table of points, then the files."""
    rows = result.rows
    good = len(result.solved_rows())
    fresh = f", {result.solved} of them searched now" if result.solved < len(rows) else ""
    text_line(out, f"{result.study.title}: {plural(len(rows), 'point')}{fresh}, {good} with an answer")
    axes = list(result.study.axes)
    priced = any(row.get("usd_per_million_tokens") is not None for row in rows)
    money = ("$/M tokens",) if priced else ()
    heads = (*map(short_axis, axes), "step time", "tokens/s/GPU", "MFU", *money, "peak GiB", "gap", "layout")
    table = new_table("Best layout of each point", *heads)
    for row in rows[:MOST_ROWS]:
        table.add_row(*(shown(row.get(axis)) for axis in axes), *_answer(row, priced))
    out.print(table)
    if len(rows) > MOST_ROWS:
        text_line(out, f"  {len(rows) - MOST_ROWS} more rows stand in the files")
    for path in written:
        text_line(out, f"  wrote {path}")


def _answer(row: dict[str, Any], priced: bool) -> list[str]:
    blank = [""] * priced
    if row["status"] != OK:
        return ["", "", "", *blank, "", "", layout_or_why(row, MOST_LETTERS)]
    price = [significant(row["usd_per_million_tokens"])] if priced and row["usd_per_million_tokens"] else blank
    return [
        seconds(row["step_time_s"]), significant(row["tokens_per_s_per_gpu"]), percent(row["mfu"]), *price,
        gib(row["peak_memory_bytes"]), percent(row["proof.gap"]), layout_or_why(row),
    ]  # fmt: skip


def layout_or_why(row: Row, most: int | None = None) -> str:
    """The best layout of a point, or why there is none, in ``most`` letters."""
    if row["status"] != OK:
        return f"{row['status']}: {row['message'][:most]}"
    return words.short_layout(strategy_of(row))


def short_axis(path: str) -> str:
    """The end of an axis's path, which tells axes apart."""
    return ".".join(path.split(".")[-2:]) if path.startswith("cluster.tiers.") else path.split(".")[-1]


def shown(value: Any) -> str:
    """An axis's value as people read it."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

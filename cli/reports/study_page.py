"""The report of a study: what varied, what became of the best step, and every point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwise.search.studies.points import OK

from ..study_report import short_axis, shown
from ..units import percent, seconds, significant
from .content import Block, Bullets, Column, Facts, Page, Section, Table, Text
from .plan_figures import present
from .study_figures import curves, grids, memory_parts, metrics, points, points_table, spread, time_parts

if TYPE_CHECKING:
    from shardwise.search.studies.runner import StudyResult

MOST_ROWS = 400
"""Points that a page lists: the tables of the study have all."""

_INPUTS = (
    "model", "cluster", "gpus", "global_batch", "global_tokens", "batch_per_gpu", "seq_len", "dtype", "optimizer",
    "launcher", "runtime", "price_per_gpu_hour",
)  # fmt: skip


def study_page(result: StudyResult) -> Page:
    """The page of a finished study."""
    good = result.solved_rows()
    count = len(result.rows)
    return Page(
        title=result.study.title,
        subtitle=(
            f"A study of {count:,} points, each a whole search with its own best layout; {len(good):,} have an answer."
        ),
        headline=_headline(result),
        sections=tuple(section for section in _sections(result) if section.blocks),
    )


def _headline(result: StudyResult) -> tuple[tuple[str, str, str], ...]:
    good = [(name, row) for name, row in points(result) if row["status"] == OK]
    if not good:
        return ()
    quick = min(good, key=lambda one: one[1]["step_time_s"])
    dense = max(good, key=lambda one: one[1]["tokens_per_s_per_gpu"])
    tiles = [
        ("Shortest step", seconds(quick[1]["step_time_s"]), quick[0]),
        ("Most tokens/s/GPU", significant(dense[1]["tokens_per_s_per_gpu"]), dense[0]),
    ]
    priced = [one for one in good if one[1].get("usd_per_million_tokens")]
    if priced:
        cheap = min(priced, key=lambda one: one[1]["usd_per_million_tokens"])
        tiles.append(("Least cost", f"${significant(cheap[1]['usd_per_million_tokens'])}", f"per M tokens: {cheap[0]}"))
    unsure = max(row["proof.gap"] for _, row in good)
    sure = "every answer" if unsure == 0 else f"largest gap {percent(unsure)}"
    tiles.append(("Proven best", f"{sum(row['proof.gap'] == 0 for _, row in good):,} of {len(good):,}", sure))
    return tuple(tiles)


def _sections(result: StudyResult) -> tuple[Section, ...]:
    found = metrics(result.rows)
    moved = present((spread(result), *(curves(result, m) for m in found)))
    return (
        Section("question", "The question", (Facts(_fixed(result)), _axes(result))),
        Section("curves", "How the best changes", moved),
        Section("grids", "Two knobs at a time", tuple(chart for m in found for chart in grids(result, m))),
        Section("parts", "Where time and memory go", present((time_parts(result), memory_parts(result)))),
        Section("points", "Every point", _points(result)),
        Section("refused", "Points without an answer", _refused(result)),
        Section("reading", "How to read this", (Bullets(_reading()),)),
    )


def _fixed(result: StudyResult) -> list[tuple[str, str]]:
    """What all points have in common, as the study file says it."""
    file, axes = result.study.file, result.study.axes
    rows = [(key.replace("_", " "), _text(getattr(file, key))) for key in _INPUTS if key not in axes]
    for kind in ("pin", "ban", "min", "max", "set"):
        given: dict[str, Any] = getattr(file, kind)
        rows.append((kind, ", ".join(f"{k} = {shown(v)}" for k, v in given.items())))
    rows.append(
        ("points", {"grid": "every combination", "zip": "values side by side"}.get(file.mode, "one axis at a time"))
    )
    return [(name, text) for name, text in rows if text]


def _text(value: Any) -> str:
    return "" if value is None else shown(value)


def _axes(result: StudyResult) -> Table:
    columns = (
        Column("what varies", "name"), Column("path", "path", number=False), Column("values", "values", number=False),
    )  # fmt: skip
    rows = tuple((short_axis(p), p, _listed([shown(v) for v in values])) for p, values in result.study.axes.items())
    return Table("What varies", columns, rows)


def _listed(values: list[str]) -> str:
    if len(values) <= 12:
        return "; ".join(values)
    return f"{'; '.join(values[:6])}; …; {'; '.join(values[-3:])} ({len(values)} values)"


def _points(result: StudyResult) -> tuple[Block, ...]:
    more = len(result.rows) - MOST_ROWS
    table = points_table(result, MOST_ROWS)
    said = f"{more:,} more stand in results.csv; figures with --figures have the values behind them."
    return (table, Text((said,))) if more > 0 else (table,)


def _refused(result: StudyResult) -> tuple[Block, ...]:
    """Each reason once, with how many points it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, row in points(result):
        if row["status"] != OK:
            reasons.setdefault((row["status"], row["message"]), []).append(name)
    if not reasons:
        return ()
    said = [f"{status} ({_some(names)}): {message}" for (status, message), names in reasons.items()]
    rest = [f"… and {len(said) - 40} more reasons."] if len(said) > 40 else []
    return (Bullets([*said[:40], *rest]),)


def _some(names: list[str]) -> str:
    more = f"; … {len(names) - 3:,} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def _reading() -> list[str]:
    return [
        "Every point is a search of its own: a curve shows what the best layout makes of each situation, and layouts "
        "change along it.",
        "A gap of 0 means that no layout of the space is faster under the cost model; otherwise it says how much "
        "faster one might be.",
        "Times are predictions. Their intervals come from the errors of such predictions on published runs; they "
        "stand in results.csv as step_time_low_s and step_time_high_s.",
    ]

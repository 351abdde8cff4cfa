"""The tables of one prediction: step time by part, memory by rank, traffic by parallelism and tier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from . import words
from .units import count, gib, milliseconds, percent, seconds, significant, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shardwise.costmodel.estimate import Estimate
    from shardwise.costmodel.problem import Problem

LABEL_WIDTH = 14

_DOES_NOT_FIT = "does not fit"

_SHORT = {
    "communicators": "comms",
    "fragmentation": "fragm.",
    "gathered_parameters": "gathered",
    "recompute_workspace": "replay",
}
"""Headings of the memory table, where the key is too wide for a column."""


def print_problem(out: Console, problem: Problem) -> None:
    """One line: what is trained, where, on which batch."""
    from rich.markup import escape

    name = problem.model.name
    line(out, f"[bold]{escape(name)}[/bold]{escape(problem_words(problem).removeprefix(name))}")


def problem_words(problem: Problem) -> str:
    """What is trained, where, on which batch."""
    model, cluster, work = problem.model, problem.cluster, problem.workload
    active = f", {count(model.active_parameters)} active" if model.is_moe else ""
    where = f"{cluster.num_gpus:,} × {cluster.accelerator.name} ({cluster.name})"
    batch = f"global batch {work.global_batch_size:,} × {work.sequence_length:,} tokens, {work.dtype}, {work.optimizer}"
    what = f"{model.name} ({count(model.total_parameters)} parameters{active})"
    return f"{what} on {where}, {batch}, runtime {problem.runtime.name}"


def print_headline(out: Console, estimate: Estimate, title: str) -> None:
    """The layout and the figures that people compare."""
    from rich.markup import escape

    for label, text in headline(estimate, title):
        shown = escape(text).replace(_DOES_NOT_FIT, f"[bold red]{_DOES_NOT_FIT}[/bold red]")
        if label in (title, "step time"):
            head, gap, rest = shown.partition("  ")
            shown = f"[bold]{head}[/bold]{gap}{rest}"
        line(out, f"  {label:<{LABEL_WIDTH}}  {shown}")


def headline(estimate: Estimate, title: str) -> list[tuple[str, str]]:
    """The layout under ``title`` and the figures that people compare, by name."""
    strategy = estimate.strategy
    low, high = estimate.interval_s
    rows = [
        (title, words.layout(strategy, estimate.problem.model.is_moe)),
        ("overlap", words.overlaps(strategy)),
        ("step time", f"{seconds(estimate.step_time_s)}  ({seconds(low)} to {seconds(high)})"),
        *_calibration_words(estimate),
        (
            "throughput",
            f"{significant(estimate.tokens_per_s_per_gpu)} tokens/s/GPU, {count(estimate.tokens_per_s)} tokens/s",
        ),
        ("MFU", f"{percent(estimate.mfu)} of the dense {estimate.problem.gemm_dtype} peak (convention below)"),
        ("memory", _memory_words(estimate)),
    ]
    if strategy.layers_per_stage is not None and strategy.pp > 1:
        rows.insert(1, ("layers", f"{words.split(strategy.layers_per_stage)} per stage"))
    return rows


def _calibration_words(estimate: Estimate) -> list[tuple[str, str]]:
    """How the runs that the cluster's profile was calibrated on changed the interval."""
    found = estimate.calibration
    if found is None:
        return []
    before, after = percent(found["half_width_before"]), percent(found["half_width"])
    runs = f"{found['runs']} run{'s' * (found['runs'] != 1)}"
    return [("interval", f"± {before} as published, ± {after} calibrated on {runs} of this cluster")]


def print_time(out: Console, estimate: Estimate) -> None:
    """Where one step goes; the rows add up to the step time."""
    table = new_table("Time by part", "part", "ms", "share")
    for name, part_s in sorted(estimate.time_parts_s.items(), key=lambda item: -item[1]):
        if part_s:
            table.add_row(plain(name), milliseconds(part_s), _share(part_s, estimate.step_time_s))
    table.add_section()
    table.add_row("step", milliseconds(estimate.step_time_s), percent(1.0))
    out.print(table)


def print_memory(out: Console, estimate: Estimate) -> None:
    """Peak memory of every pipeline rank by part; equal neighbours are one row."""
    names = [n for n in estimate.memory_parts_bytes if any(parts.get(n) for parts in estimate.memory_parts_by_rank)]
    title = f"Memory by pipeline rank (GiB of {gib(estimate.capacity_bytes)} usable)"
    table = new_table(title, "rank", *(_SHORT.get(n, plain(n)) for n in names), "peak", "free")
    for label, rank in _rank_groups(estimate):
        parts = estimate.memory_parts_by_rank[rank]
        peak = estimate.memory_by_rank_bytes[rank]
        cells = [gib(parts.get(n, 0.0)) for n in names]
        table.add_row(label, *cells, gib(peak), gib(estimate.capacity_bytes - peak))
    out.print(table)


def print_traffic(out: Console, estimate: Estimate) -> None:
    """What each parallelism moves in one step, and over which tier."""
    if not estimate.traffic:
        line(out, "No traffic: one accelerator.")
        return
    table = new_table(
        "Traffic per GPU and step",
        "parallelism",
        "collective",
        "group",
        "tier",
        "each",
        "times",
        "bytes",
        "share",
        "time",
    )
    for row in sorted(estimate.traffic, key=lambda r: -r.bytes_per_step):
        table.add_row(
            row.parallelism,
            row.collective.replace("_", "-"),
            f"{row.group_size}",
            row.tier,
            size(row.bytes_each),
            f"{row.count_per_step:,.0f}",
            size(row.bytes_per_step),
            percent(row.share),
            f"{milliseconds(row.time_s)} ms",
        )
    out.print(table)


def print_assumptions(out: Console, assumptions: Sequence[str], mfu_convention: str) -> None:
    """How MFU counts, and what was assumed for want of a fact."""
    line(out, "[bold]Conventions and assumptions[/bold]")
    for text in conventions(assumptions, mfu_convention):
        text_line(out, f"  - {text}")


def conventions(assumptions: Sequence[str], mfu_convention: str) -> tuple[str, ...]:
    """How MFU counts, and what was assumed, a sentence each."""
    return (f"MFU counts {mfu_convention}", *assumptions)


def line(out: Console, text: str) -> None:
    """One line that is never folded, so that it can be copied and searched."""
    out.print(text, soft_wrap=True)


def text_line(out: Console, text: str) -> None:
    """One line whose brackets are text, not style, and whose control characters, from a file's names, are blanks."""
    out.print(printable(text), markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """Text without control characters, which could steer a terminal."""
    return "".join(ch if ch.isprintable() else " " for ch in text)


_TEXT_COLUMNS = frozenset(
    {
        "part", "rank", "parallelism", "collective", "tier", "layout", "change", "why", "dimension", "figure", "what",
        "covers",
    }
)  # fmt: skip
"""Columns of words, which stand left."""


def new_table(title: str, *columns: str) -> Table:
    """A table of words, which stand left, and numbers, which stand right."""
    from rich.box import SIMPLE_HEAD

    table = plain_table()(title=_text(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    for column in columns:
        table.add_column(_text(column), justify="left" if column in _TEXT_COLUMNS else "right")
    return table


@cache
def plain_table() -> type[Table]:
    """A class of tables whose cells are text, not style: they hold names that files and people give."""
    from rich.table import Table

    class PlainTable(Table):
        """One that reads no markup in the cells of its rows."""

        def add_row(self, *cells: Any, **kwargs: Any) -> None:
            """Add a row of strings."""
            super().add_row(*(_text(cell) if isinstance(cell, str) else cell for cell in cells), **kwargs)

    return PlainTable


def _text(words: str) -> Text:
    from rich.text import Text

    return Text(printable(words))


def plain(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")


def _memory_words(estimate: Estimate) -> str:
    share = _share(estimate.peak_memory_bytes, estimate.capacity_bytes)
    verdict = "" if estimate.fits else f"  {_DOES_NOT_FIT}"
    peak, usable = gib(estimate.peak_memory_bytes), gib(estimate.capacity_bytes)
    return f"{peak} GiB at the fullest rank, {share} of the usable {usable} GiB{verdict}"


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else ""


def _rank_groups(estimate: Estimate) -> list[tuple[str, int]]:
    """``("1-6", 1)``: runs of neighbouring ranks that print the same."""
    shown = [gib(total) for total in estimate.memory_by_rank_bytes]
    groups: list[tuple[str, int]] = []
    start = 0
    for rank in range(1, len(shown) + 1):
        if rank == len(shown) or shown[rank] != shown[start]:
            groups.append((str(start) if rank == start + 1 else f"{start}-{rank - 1}", start))
            start = rank
    return groups

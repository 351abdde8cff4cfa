"""Two jobs side by side on a terminal: what differs, where time and memory go, and whether it means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardwise.launchers.refusal import show

from . import words
from .launch_review import print_options
from .report import new_table, plain, text_line
from .units import change as signed
from .units import count, gib, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shardwise.costmodel.estimate import Estimate
    from shardwise.search.studies.side_by_side import Side, SideBySide

_SIGN = 1e-9
"""Share of a total under which a part is rounding."""


def print_side_by_side(out: Console, answer: SideBySide) -> None:
    """The two, their settings, their parts, and the options of launch files that were not counted."""
    for letter, side in (("A", answer.a), ("B", answer.b)):
        _print_head(out, letter, side)
    if answer.a.estimate is None or answer.b.estimate is None:
        return
    text_line(out, f"  {_verdict(answer)}")
    text_line(out, "")
    _print_settings(out, answer)
    _print_totals(out, answer.a.estimate, answer.b.estimate)
    _print_parts(out, "Time by part", answer.a.estimate.time_parts_s, answer.b.estimate.time_parts_s, seconds)
    title = "Peak memory by part (GiB)"
    _print_parts(out, title, answer.a.estimate.memory_parts_bytes, answer.b.estimate.memory_parts_bytes, gib)
    for letter, side in (("A", answer.a), ("B", answer.b)):
        if side.parsed is not None:
            print_options(out, side.parsed, f" of {letter}")


def _print_head(out: Console, letter: str, side: Side) -> None:
    if side.estimate is None:
        text_line(out, f"{letter}: {side.name}: {side.fault}")
        return
    problem = side.estimate.problem
    where = "" if side.parsed is None else f" on {problem.cluster.num_gpus:,} × {problem.cluster.accelerator.name}"
    layout = words.short_layout(side.estimate.strategy, problem.model.is_moe)
    text_line(out, f"{letter}: {side.name}{where} ({side.launcher}): {layout}")
    for refusal in side.refusals:
        text_line(out, f"  {side.launcher} refuses it: {refusal}")


def _verdict(answer: SideBySide) -> str:
    """Which is quicker, and whether the predictions can tell."""
    assert answer.ratio is not None and answer.told_apart_from is not None
    over = max(answer.ratio, 1.0 / answer.ratio) - 1.0
    limit = percent(answer.told_apart_from)
    alike = "layouts of one job" if answer.same_problem else "these two jobs"
    if over < 5e-4:
        return "both take as long per token"
    slower = "B" if answer.ratio > 1.0 else "A"
    head = f"{slower} takes {percent(over)} longer per token"
    if answer.within_error:
        return f"{head}: within the model's error ({alike} cannot be told apart within {limit})"
    return f"{head}: more than the model's error ({alike} can be told apart from {limit} on)"


def _print_settings(out: Console, answer: SideBySide) -> None:
    if not answer.differences:
        text_line(out, "All settings are the same")
        text_line(out, "")
        return
    table = new_table("Settings that differ", "what", "A", "B")
    for column in table.columns:
        column.justify = "left"
    for d in answer.differences:
        table.add_row(plain(d.setting), _value(d.a), _value(d.b))
    out.print(table)


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else show(value)


def _print_totals(out: Console, a: Estimate, b: Estimate) -> None:
    table = new_table("Side by side", "what", "A", "B", "change")
    table.columns[-1].justify = "right"
    rows: list[tuple[str, Callable[[Estimate], float], Callable[[float], str]]] = [
        ("step time", lambda e: e.step_time_s, seconds),
        ("tokens/s/GPU", lambda e: e.tokens_per_s_per_gpu, significant),
        ("MFU", lambda e: e.mfu, percent),
        ("peak GiB", lambda e: e.peak_memory_bytes, gib),
    ]
    if a.problem.workload.tokens_per_step != b.problem.workload.tokens_per_step:
        rows.insert(0, ("tokens per step", lambda e: e.problem.workload.tokens_per_step, count))
    for label, figure, shown in rows:
        table.add_row(label, shown(figure(a)), shown(figure(b)), signed(figure(b) / figure(a)))
        if label == "step time":
            table.add_row("  interval", *(f"{seconds(low)} to {seconds(high)}" for low, high in _intervals(a, b)), "")
    table.add_row("usable GiB", gib(a.capacity_bytes), gib(b.capacity_bytes), "")
    if not (a.fits and b.fits):
        table.add_row("", *("" if e.fits else "does not fit" for e in (a, b)), "")
    out.print(table)


def _intervals(a: Estimate, b: Estimate) -> tuple[tuple[float, float], tuple[float, float]]:
    return a.interval_s, b.interval_s


def _print_parts(
    out: Console, title: str, a: Mapping[str, float], b: Mapping[str, float], shown: Callable[[float], str]
) -> None:
    """Every part that is not nothing on both sides, the largest first, with B less A."""
    table: Table = new_table(title, "part", "A", "B", "B − A")
    least = _SIGN * max(sum(a.values()), sum(b.values()))
    names = [n for n in dict.fromkeys((*a, *b)) if max(a.get(n, 0.0), b.get(n, 0.0)) > least]
    for name in sorted(names, key=lambda n: -max(a.get(n, 0.0), b.get(n, 0.0))):
        one, other = a.get(name, 0.0), b.get(name, 0.0)
        table.add_row(plain(name), shown(one), shown(other), _less(other - one, least, shown))
    table.add_section()
    one, other = sum(a.values()), sum(b.values())
    table.add_row("all", shown(one), shown(other), _less(other - one, least, shown))
    out.print(table)


def _less(difference: float, least: float, shown: Callable[[float], str]) -> str:
    if abs(difference) <= least:
        return "0"
    return f"{'+' if difference > 0 else '−'}{shown(abs(difference))}"

"""The answers of ``shardwise whatif`` on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shardwise.search.studies.whatif import Bill

from .report import new_table, text_line
from .study_report import MOST_LETTERS, layout_or_why
from .units import change as signed
from .units import count, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.studies.breakeven import Change
    from shardwise.search.studies.fewest import Count, Fewest
    from shardwise.search.studies.whatif import Scaling, Sensitivity

Row = dict[str, Any]

_DAY_S = 86400.0


def print_scaling(out: Console, answer: Scaling) -> None:
    """The curve and where it falls under the bound."""
    kind = "Weak" if answer.weak else "Strong"
    table = new_table(f"{kind} scaling", "gpus", "batch", "step time", "tokens/s/GPU", "efficiency", "layout")
    for row, share in zip(answer.rows, answer.efficiency, strict=True):
        head = [f"{row['gpus']:,}", f"{row['global_batch']:,}" if row.get("global_batch") else ""]
        if share is None:
            table.add_row(*head, "", "", "", f"{row['status']}: {row['message'][:100]}")
            continue
        step, rate = seconds(row["step_time_s"]), significant(row["tokens_per_s_per_gpu"])
        table.add_row(*head, step, rate, percent(share), layout_or_why(row))
    out.print(table)
    bound = percent(answer.bound)
    if answer.drops is None:
        text_line(out, f"  efficiency stays above {bound} at every count that fits")
    else:
        kept, lost = answer.drops
        since = f"between {kept:,} and {lost:,}" if kept else f"at {lost:,}"
        text_line(out, f"  efficiency falls under {bound} {since} accelerators")


def print_sensitivity(out: Console, answer: Sensitivity) -> None:
    """One line per resource: the step with less and with more of it."""
    text_line(out, f"best step {seconds(answer.step_time_s)}; each resource {answer.change:.0%} less and more")
    table = new_table("What a change would do", "change", "less", "more", "elasticity")
    for i in answer.influences:
        sides = ("nothing fits" if s is None else signed(s / answer.step_time_s) for s in (i.less_s, i.more_s))
        table.add_row(i.resource, *sides, "" if i.elasticity is None else f"{i.elasticity:+.3f}")
    out.print(table)
    text_line(out, "  elasticity: per cent of step time for one per cent more")


def print_changes(out: Console, path: str, ends: tuple[float, float], found: Sequence[Change]) -> None:
    """Each change of the best layout in order."""
    if not found:
        text_line(out, f"the best layout stays the same for {path} from {ends[0]:.4g} to {ends[1]:.4g}")
        return
    table = new_table(f"Where the best layout changes with {path}", "value", "step time", "layout", "change")
    before = found[0].before
    table.add_row(f"from {ends[0]:.4g}", _step(before), layout_or_why(before, MOST_LETTERS), "")
    for c in found:
        table.add_row(f"{c.value:.4g}", _step(c.after), layout_or_why(c.after, MOST_LETTERS), "")
    table.columns.pop()
    out.print(table)


def print_even(
    out: Console, path: str, ends: tuple[float, float], against: str, metric: str, value: float | None
) -> None:
    """The value that makes both equal, or that there is none."""
    what = "costs as much per token as" if metric.startswith("usd") else "steps as quickly as"
    if value is None:
        text_line(out, f"for {path} from {ends[0]:.4g} to {ends[1]:.4g} it never {what} {against}")
    else:
        text_line(out, f"at {path} = {value:.4g} it {what} {against}")


def print_bills(out: Console, tokens: float, bills: Sequence[Bill | Row]) -> None:
    """What each cluster takes."""
    heads = ("cluster", "gpus", "step time", "days", "GPU-hours", "US dollars", "layout")
    table = new_table(f"{count(tokens)} tokens", *heads)
    table.columns[0].justify = "left"
    for bill in bills:
        row = bill.row if isinstance(bill, Bill) else bill
        head = [str(row["cluster"]), f"{row['gpus']:,}"]
        if not isinstance(bill, Bill):
            table.add_row(*head, "", "", "", "", f"{row['status']}: {row['message'][:100]}")
            continue
        usd = "" if bill.usd is None else f"{bill.usd:,.0f}"
        table.add_row(
            *head, _step(row), f"{bill.days:,.1f}", f"{bill.gpu_hours:,.0f}", usd, layout_or_why(row, MOST_LETTERS)
        )
    out.print(table)


def print_fewest(out: Console, answer: Fewest) -> None:
    """The count, what proves it, and the counts around it."""
    limit = "that fit at all" if answer.limit_s is None else f"for a step of {seconds(answer.limit_s)} or less"
    text_line(out, f"fewest GPUs {limit}: {answer.gpus:,}")
    ran = [c for c in answer.around if c.run_s is not None]
    priced = any(c.run_usd is not None for c in ran)
    more = [*(["days"] if ran else []), *(["US dollars"] if priced else [])]
    table = new_table("Counts around it", "gpus", "verdict", "step time", "tokens/s/GPU", *more, "layout")
    table.columns[1].justify = "left"
    for c in answer.around:
        rate = significant(c.row["tokens_per_s_per_gpu"]) if c.run_s or c.row["status"] == "ok" else ""
        days = [] if not ran else [significant(c.run_s / _DAY_S) if c.run_s else ""]
        usd = [] if not priced else [f"{c.run_usd:,.0f}" if c.run_usd is not None else ""]
        verdict = f"{c.verdict} ←" if c.gpus == answer.gpus else c.verdict
        table.add_row(f"{c.gpus:,}", verdict, _step(c.row), rate, *days, *usd, _layout_or_why(c))
    out.print(table)
    for text in _fewest_notes(answer):
        text_line(out, f"  {text}")


def _layout_or_why(c: Count) -> str:
    if c.row["status"] != "ok":
        return c.why
    return f"{layout_or_why(c.row)}{f'; {c.why}' if c.why else ''}"


def _fewest_notes(answer: Fewest) -> Iterator[str]:
    """What is proven of the smaller counts, and which larger ones do not do."""
    why = Counter(c.reason.partition(":")[0] for c in answer.smaller if c.num_gpus not in answer.undecided)
    told = f" ({', '.join(f'{reason}: {n:,}' for reason, n in sorted(why.items()))})" if why else ""
    if answer.undecided:
        yield f"not decided: {', '.join(f'{n:,}' for n in answer.undecided)}; no other smaller count does{told}"
    elif answer.smaller:
        many = len(answer.smaller)
        head = "the smaller count does not" if many == 1 else f"none of the {many:,} smaller counts does"
        yield f"{head}{told}"
    else:
        yield "it is the smallest count asked about"
    failing = [f"{c.gpus:,}" for c in answer.around if c.gpus > answer.gpus and c.verdict != "enough"]
    if failing:
        yield f"more is not always enough: {', '.join(failing)} would not do"


def _step(row: Row) -> str:
    return seconds(row["step_time_s"]) if row["status"] == "ok" else ""

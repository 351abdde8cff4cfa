"""The reports of ``shardwise whatif``: a scaling curve, a tornado, a break-even, a bill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwise.search.studies.points import OK, Row
from shardwise.search.studies.whatif import Bill

from ..study_report import layout_or_why, short_axis
from ..units import change, count, gib, percent, plural, seconds, significant, size
from .content import Block, Bullets, Chart, Column, Facts, Page, Section, Table, Text
from .drawing import bars, lines, tornado, upright
from .palette import SERIES
from .plan_figures import letters, present

if TYPE_CHECKING:
    from shardwise.search.studies.breakeven import Change
    from shardwise.search.studies.whatif import Scaling, Sensitivity

    from .sheet import Sheet

Base = Mapping[str, Any]

_READING = Bullets((
    "Every point is a whole search with its own best layout.",
    "Times are predictions; docs/accuracy.md says how far they were off on published runs.",
))  # fmt: skip


def _page(title: str, base: Base, headline: Sequence[tuple[str, str, str]], blocks: Sequence[Block]) -> Page:
    rows = [
        (k.replace("_", " "), f"{v:,}" if isinstance(v, int) else str(v)) for k, v in base.items() if k != "pin" and v
    ]
    pins = ", ".join(f"{k} = {v}" for k, v in (base.get("pin") or {}).items())
    facts = Facts([*rows, *([("pin", pins)] if pins else [])])
    job = f"{base.get('model', '')}, a question of shardwise whatif"
    return Page(
        title, job, tuple(headline),
        (
            Section("answer", "The answer", tuple(blocks)),
            Section("question", "The question", (facts,)),
            Section("reading", "How to read this", (_READING,)),
        ),
    )  # fmt: skip


def _writer(path: str) -> Callable[[float], str]:
    """How a value of a path is written: sizes and rates with the unit that suits them."""
    if path.endswith("_bytes"):
        return size
    return (lambda v: f"{size(v)}/s") if path.endswith("bytes_per_s") else lambda v: f"{v:.4g}"


def _amount(value: float) -> str:
    """Four digits, or all of a larger whole number."""
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


# ---- scale


def scaling_page(base: Base, answer: Scaling) -> Page:
    """How far a job scales: the curve beside the straight line, and the efficiency beside its bound."""
    kind = "Weak" if answer.weak else "Strong"
    title = f"{kind} scaling of {base.get('model')} on {base.get('cluster')}"
    bound = percent(answer.bound)
    if answer.drops is None:
        where = f"stays above {bound} at every count that fits"
        tile = ("Efficiency", f"above {bound}", "at every count that fits")
    else:
        kept, lost = answer.drops
        since = f"between {kept:,} and {lost:,}" if kept else f"at {lost:,}"
        where = f"falls under {bound} {since} accelerators"
        tile = (f"Efficiency under {bound}", since, "accelerators")
    good = [row for row in answer.rows if row["status"] == OK]
    most = max(good, key=lambda row: row["tokens_per_s"])
    tiles = [tile, ("Most throughput", f"{count(most['tokens_per_s'])} tokens/s", f"on {most['gpus']:,} accelerators")]
    charts = (_throughput_chart(answer, kind), _efficiency_chart(answer, where))
    return _page(title, base, tiles, (Text((f"Efficiency {where}.",)), *charts))


def _scaling_table(answer: Scaling) -> Table:
    columns = (
        Column("gpus", "gpus", lambda n: f"{n:,}"),
        Column("batch", "global_batch", lambda n: f"{n:,}"),
        Column("step time", "step_time_s", seconds),
        Column("tokens/s", "tokens_per_s", count),
        Column("tokens/s/GPU", "tokens_per_s_per_gpu", significant),
        Column("efficiency", "efficiency", percent),
        Column("best layout, or why there is none", "layout", number=False),
    )
    rows = tuple(
        (*(row.get(c.name) for c in columns[:5]), share, layout_or_why(row))
        for row, share in zip(answer.rows, answer.efficiency, strict=True)
    )
    return Table("Best layout at each count", columns, rows)


def _throughput_chart(answer: Scaling, kind: str) -> Chart:
    gpus = [float(row["gpus"]) for row in answer.rows]
    found = [row["tokens_per_s"] if row["status"] == OK else None for row in answer.rows]
    first = next(row for row in answer.rows if row["status"] == OK)
    straight = [first["tokens_per_s_per_gpu"] * n for n in gpus]
    curves: dict[str, list[float | None]] = {"best layout": found, "in proportion to the smallest": [*straight]}
    ends = [(n, v) for n, v in zip(gpus, found, strict=True) if v is not None]
    alt = (
        f"{kind} scaling: tokens per second of the whole job over accelerators, from {count(ends[0][1])} on "
        f"{ends[0][0]:,.0f} to {count(ends[-1][1])} on {ends[-1][0]:,.0f}, beside the straight line of the smallest."
    )

    def draw(sheet: Sheet) -> None:
        names = ("accelerators", "tokens/s of the whole job")
        lines(sheet, gpus, curves, names, [f"{n:,.0f}" for n in gpus], dashed=("in proportion to the smallest",))

    return Chart("throughput", "Throughput", alt, _scaling_table(answer), draw, open=True)


def _efficiency_chart(answer: Scaling, where: str) -> Chart:
    gpus = [float(row["gpus"]) for row in answer.rows]
    curves: dict[str, list[float | None]] = {
        "efficiency": [None if e is None else 100.0 * e for e in answer.efficiency],
        "bound": [100.0 * answer.bound] * len(gpus),
    }
    columns = (Column("gpus", "gpus", lambda n: f"{n:,.0f}"), Column("efficiency", "efficiency", percent))
    table = Table("Efficiency at each count", columns, tuple(zip(gpus, answer.efficiency, strict=True)))
    alt = f"Tokens per second and GPU as a share of those of the smallest count that fits: efficiency {where}."

    def draw(sheet: Sheet) -> None:
        names = ("accelerators", "per cent of the smallest's tokens/s/GPU")
        lines(sheet, gpus, curves, names, [f"{n:,.0f}" for n in gpus], dashed=("bound",), height_px=250.0)

    return Chart("efficiency", "Efficiency", alt, table, draw)


# ---- sensitivity


def sensitivity_page(base: Base, answer: Sensitivity) -> Page:
    """What a little more of each resource would buy: a tornado."""
    amount = percent(answer.change)
    columns = (
        Column("resource", "resource"),
        Column(f"step with {amount} less", "less_s", seconds),
        Column(f"step with {amount} more", "more_s", seconds),
        Column("elasticity", "elasticity", lambda e: f"{e:+.3f}"),
        Column("path", "path", number=False),
    )
    rows = tuple((i.resource, i.less_s, i.more_s, i.elasticity, i.path) for i in answer.influences)
    start = answer.step_time_s

    def moved(step_s: float | None) -> float | None:
        return None if step_s is None else (step_s / start - 1.0) * 100.0

    said = ", ".join(f"{i.resource} {change(i.more_s / start)}" for i in answer.influences[:3] if i.more_s is not None)
    sides = [(moved(i.less_s), moved(i.more_s)) for i in answer.influences]
    chart = Chart(
        "tornado", f"What {amount} less and more of each resource does",
        f"A tornado of the best step of {seconds(start)}, the strongest resource first. With {amount} more: {said}.",
        Table("Sensitivity of the best step", columns, rows),
        lambda sheet: tornado(
            sheet, [i.resource for i in answer.influences], sides, (f"{amount} less", f"{amount} more")
        ),
        note="Elasticity: per cent of step time for one per cent more.",
        open=True,
    )  # fmt: skip
    first = answer.influences[0]
    tiles = [("Best step", seconds(start), layout_or_why(answer.row))]
    if first.more_s is not None:
        tiles.append((f"{amount} more {first.resource}", change(first.more_s / start), "of the step time"))
    return _page(f"What moves the step of {base.get('model')} on {base.get('cluster')}", base, tiles, (chart,))


# ---- break-even


def changes_page(
    base: Base, path: str, ends: tuple[float, float], found: Sequence[Change], looked: Mapping[float, Row]
) -> Page:
    """Where the best layout changes with a figure: the step over it, marked where another layout takes over."""
    title = f"Where the best layout changes with {short_axis(path)}"
    places = plural(len(found), "place")
    write = _writer(path)
    span = f"from {write(ends[0])} to {write(ends[1])}"
    tiles = [("The best layout changes", f"at {places}" if found else "nowhere", span)]
    names = letters(len(found) + 1)
    columns = (
        Column("", "name"), Column(f"{short_axis(path)} from", path, write),
        Column("step time there", "step_time_s", seconds), Column("peak GiB", "peak_memory_bytes", gib),
        Column("best layout from there on", "layout", number=False),
    )  # fmt: skip
    start = looked[min(looked)]
    held = [(ends[0], start), *((c.value, c.after) for c in found)]
    rows = tuple(
        (name, value, row.get("step_time_s"), row.get("peak_memory_bytes"), layout_or_why(row))
        for name, (value, row) in zip(names, held, strict=True)
    )
    said = "; ".join(f"at {write(c.value)} to {layout_or_why(c.after)}" for c in found[:3]) or "nowhere"
    said += f"; and {len(found) - 3} more times" if len(found) > 3 else ""
    chart = _curve(
        "break-even", title, f"The best step time over {path} {span}. The best layout changes {said}.",
        Table("Best layout by range", columns, rows), looked, ("step_time_s", "seconds of the best step"), path,
        [(c.value, name) for c, name in zip(found, names[1:], strict=True)],
    )  # fmt: skip
    return _page(title, base, tiles, present((chart,)))


def even_page(
    base: Base, path: str, ends: tuple[float, float], against: str, metric: str, value: float | None,
    looked: Mapping[float, Row],
) -> Page:  # fmt: skip
    """The value at which one cluster equals another."""
    priced = metric.startswith("usd")
    what = "costs as much per token as" if priced else "steps as quickly as"
    write = _writer(path)
    span = f"from {write(ends[0])} to {write(ends[1])}"
    said = (
        f"At {path} = {write(value)} it {what} {against}."
        if value is not None
        else f"For {path} {span} it never {what} {against}."
    )
    columns = (
        Column(short_axis(path), path, write),
        Column("US dollars per million tokens" if priced else "step time", metric, significant if priced else seconds),
        Column("best layout", "layout", number=False),
    )
    rows = tuple((v, looked[v].get(metric), layout_or_why(looked[v])) for v in sorted(looked))
    unit = "US dollars per million tokens" if priced else "seconds of the best step"
    chart = _curve(
        "break-even", f"{base.get('cluster')} against {against}",
        f"The best of {base.get('cluster')} over {path} {span}. {said}",
        Table(f"Values of {path} that were searched", columns, rows), looked, (metric, unit), path,
        [(value, f"as {against}")] if value is not None else [],
    )  # fmt: skip
    there = ("none", span) if value is None else (write(value), f"it {what} {against}")
    title = f"Where {base.get('cluster')} {'costs' if priced else 'takes'} as much as {against}"
    return _page(title, base, [(short_axis(path), *there)], (Text((said,)), *present((chart,))))


def _curve(
    name: str, title: str, alt: str, table: Table, looked: Mapping[float, Row], what: tuple[str, str], path: str,
    marks: Sequence[tuple[float, str]],
) -> Chart | None:  # fmt: skip
    """A figure over the values that were searched, with upright lines where something changes."""
    metric, unit = what
    x = sorted(v for v in looked if looked[v].get(metric) is not None)
    if len(x) < 2:
        return None
    columns = (Column(short_axis(path), path), Column(unit, metric), Column("best layout", "layout"))
    data = Table(title, columns, tuple((v, looked[v].get(metric), layout_or_why(looked[v])) for v in sorted(looked)))

    def draw(sheet: Sheet) -> None:
        curve = {title: [looked[v][metric] for v in x]}
        axes = lines(sheet, x, curve, (short_axis(path), unit), None)
        axes.xaxis.set_major_formatter(lambda v, _: _writer(path)(v))
        upright(axes, [m for m in marks if x[0] <= m[0] <= x[-1]])

    return Chart(name, title, alt, table, draw, data, open=True)


# ---- cost


def cost_page(base: Base, tokens: float, bills: Sequence[Bill | Row]) -> Page:
    """What some tokens take on each cluster: dollars, GPU-hours and days."""
    good = [bill for bill in bills if isinstance(bill, Bill)]
    names = _named(bills)
    columns = (
        Column("cluster", "cluster"),
        Column("gpus", "gpus", lambda n: f"{n:,}"),
        Column("step time", "step_time_s", seconds),
        Column("days", "days", lambda d: f"{d:,.1f}"),
        Column("GPU-hours", "gpu_hours", lambda h: f"{h:,.0f}"),
        Column("US dollars", "usd", lambda d: f"{d:,.0f}"),
        Column("best layout, or why there is none", "layout", number=False),
    )
    rows = tuple(_bill_row(name, bill) for name, bill in zip(names, bills, strict=True))
    table = Table(f"{count(tokens)} tokens", columns, rows)
    priced = any(bill.usd is not None for bill in good)
    kinds = [("gpu_hours", "gpu-hours", "GPU-hours", "GPU-hours"), ("days", "days", "Days", "days")]
    kinds = [*([("usd", "cost", "Cost", "US dollars")] if priced else []), *kinds]
    charts = [_bill_chart(names, bills, kind, table if at == 0 else None) for at, kind in enumerate(kinds)]
    tiles = []
    if priced:
        cheap = min((b for b in good if b.usd is not None), key=lambda b: b.usd or 0.0)
        tiles.append(("Fewest dollars", f"${cheap.usd:,.0f}", f"{cheap.row['cluster']} × {cheap.row['gpus']:,}"))
    quick = min(good, key=lambda b: b.days)
    tiles.append(("Fewest days", f"{quick.days:,.1f}", f"{quick.row['cluster']} × {quick.row['gpus']:,}"))
    lean = min(good, key=lambda b: b.gpu_hours)
    tiles.append(("Fewest GPU-hours", f"{lean.gpu_hours:,.0f}", f"{lean.row['cluster']} × {lean.row['gpus']:,}"))
    title = f"What {count(tokens)} tokens of {base.get('model')} take"
    return _page(title, base, tiles, (*charts, Text(("Steps run back to back: no restarts, no checkpoints.",))))


def _named(bills: Sequence[Bill | Row]) -> list[str]:
    rows = [bill.row if isinstance(bill, Bill) else bill for bill in bills]
    return [f"{row['cluster']} × {row['gpus']:,}" for row in rows]


def _bill_row(name: str, bill: Bill | Row) -> tuple[Any, ...]:
    if not isinstance(bill, Bill):
        return bill["cluster"], bill["gpus"], None, None, None, None, layout_or_why(bill)
    row = bill.row
    return row["cluster"], row["gpus"], row["step_time_s"], bill.days, bill.gpu_hours, bill.usd, layout_or_why(row)


def _bill_chart(
    names: Sequence[str], bills: Sequence[Bill | Row], what: tuple[str, str, str, str], table: Table | None = None
) -> Chart:
    key, name, title, unit = what
    pairs = [(n, getattr(b, key)) for n, b in zip(names, bills, strict=True) if isinstance(b, Bill)]
    values = [(n, float(v)) for n, v in pairs if v is not None]
    own = Table(title, (Column("cluster", "cluster"), Column(unit, key, _amount)), tuple(values))
    said = ", ".join(f"{n} {_amount(v)}" for n, v in values)

    def draw(sheet: Sheet) -> None:
        notes = [_amount(v) for _, v in values]
        bars(sheet, [n for n, _ in values], [v for _, v in values], [SERIES[0]] * len(values), notes, unit)

    return Chart(
        name,
        title,
        f"Bars of {unit} by cluster and its accelerators: {said}.",
        table or own,
        draw,
        open=table is not None,
    )

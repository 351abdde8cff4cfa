"""The figures of one prediction and of a plan: what they show, in words, in a table and drawn."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from .. import words
from ..plan_report import notch_value
from ..report import plain
from ..units import GIB, change, gib, milliseconds, percent, plural, seconds, significant, size
from .content import Chart, Column, Table
from .drawing import LEGEND_PX, bars, colours, scatter_line, stacks, swatch
from .palette import SERIES
from .sheet import PX

if TYPE_CHECKING:
    from shardwise.costmodel.estimate import Estimate
    from shardwise.search.plan import Notch, Plan

    from .sheet import Sheet

KINDS = ("compute", "communication not hidden", "pipeline bubble", "optimizer", "host and fixed time")
"""What a step spends its time on, coarsely."""

_KIND_OF = {"pp_bubble": KINDS[2], "optimizer": KINDS[3], "offload": KINDS[3], "fixed": KINDS[4]}

LEAST_SHARE = 0.02
"""Parts of memory that are nowhere this share of the capacity are drawn together."""

SMALLER = "smaller parts"
"""Their name."""


def kind_of(part: str) -> str:
    """What kind of time a part of a step is."""
    if part in _KIND_OF:
        return _KIND_OF[part]
    if part.endswith("_comm"):
        return KINDS[1]
    return KINDS[4] if part.startswith("host") else KINDS[0]


def by_kind(parts: dict[str, float]) -> dict[str, float]:
    """Seconds by kind, every kind present."""
    sums = dict.fromkeys(KINDS, 0.0)
    for name, part_s in parts.items():
        sums[kind_of(name)] += part_s
    return sums


def time_chart(e: Estimate) -> Chart:
    """Step time by part, the largest first; the parts add up to the step."""
    parts = sorted(((name, s) for name, s in e.time_parts_s.items() if s), key=lambda item: -item[1])
    fills = colours(KINDS)
    rows = tuple((plain(name), kind_of(name), s, s / e.step_time_s) for name, s in parts)
    table = Table(
        "Step time by part",
        (
            Column("part", "part"), Column("kind", "kind", number=False),
            Column("ms", "time_s", milliseconds), Column("share", "share", percent),
        ),
        (*rows, ("step", None, e.step_time_s, 1.0)),
        total=True,
    )  # fmt: skip
    largest = ", ".join(f"{plain(name)} {percent(s / e.step_time_s)}" for name, s in parts[:4])
    kinds = list(dict.fromkeys(kind_of(name) for name, _ in parts))

    def draw(sheet: Sheet) -> None:
        notes = [f"{milliseconds(s)} ms · {percent(s / e.step_time_s)}" for _, s in parts]
        axes = bars(
            sheet, [plain(n) for n, _ in parts], [s * 1e3 for _, s in parts],
            [fills[kind_of(n)] for n, _ in parts], notes, "milliseconds of a step",
        )  # fmt: skip
        _widened(sheet, axes, len(kinds))
        sheet.legend([swatch(fills[kind], kind) for kind in kinds], 5)

    return Chart(
        "time-by-part", "Step time by part",
        f"Bars of the parts of a step of {seconds(e.step_time_s)}, the largest first: {largest}.", table, draw,
    )  # fmt: skip


def memory_chart(e: Estimate) -> Chart:
    """Peak memory of every pipeline rank by part, against what is usable."""
    least = LEAST_SHARE * e.capacity_bytes
    ranks = e.memory_parts_by_rank
    names = [n for n in e.memory_parts_bytes if any(parts.get(n) for parts in ranks)]
    drawn = [n for n in names if max(parts.get(n, 0.0) for parts in ranks) >= least]
    small = [n for n in names if n not in drawn]
    table = Table(
        f"Peak memory of each pipeline rank, GiB of {gib(e.capacity_bytes)} usable",
        (
            Column("rank", "rank"),
            *(Column(plain(n), f"{n}_bytes", gib) for n in names),
            Column("peak", "peak_bytes", gib),
            Column("free", "free_bytes", gib),
        ),
        tuple(
            (rank, *(parts.get(n, 0.0) for n in names), peak, e.capacity_bytes - peak)
            for rank, (parts, peak) in enumerate(zip(ranks, e.memory_by_rank_bytes, strict=True))
        ),
    )
    stacked = {plain(n): [parts.get(n, 0.0) / GIB for parts in ranks] for n in drawn}
    if small:
        stacked[SMALLER] = [sum(parts.get(n, 0.0) for n in small) / GIB for parts in ranks]
    fullest = max(range(len(ranks)), key=lambda r: e.memory_by_rank_bytes[r])
    verdict = "" if e.fits else " It does not fit."
    alt = (
        f"Stacked bars of peak memory for {plural(len(ranks), 'pipeline rank')} against {gib(e.capacity_bytes)} GiB "
        f"usable. The fullest is rank {fullest} with {gib(e.peak_memory_bytes)} GiB.{verdict}"
    )

    def draw(sheet: Sheet) -> None:
        labels = [f"rank {r}" if len(ranks) <= 16 else str(r) for r in range(len(ranks))]
        limit = (e.capacity_bytes / GIB, f"usable {gib(e.capacity_bytes)} GiB")
        stacks(sheet, labels, stacked, colours(list(stacked), SMALLER), "GiB", limit)

    return Chart("memory-by-rank", "Peak memory by pipeline rank", alt, table, draw)


def traffic_chart(e: Estimate) -> Chart:
    """What each parallelism sends, by the tier that it crosses, and how long that takes before overlap."""
    rows = sorted(e.traffic, key=lambda t: -t.bytes_per_step)
    columns = (
        Column("parallelism", "parallelism"),
        Column("collective", "collective", lambda c: c.replace("_", "-"), number=False),
        Column("group", "group_size"),
        Column("tier", "tier", number=False),
        Column("each", "bytes_each", size),
        Column("times", "count_per_step", lambda n: f"{n:,.0f}"),
        Column("a step", "bytes_per_step", size),
        Column("share", "share", percent),
        Column("ms before overlap", "time_s", milliseconds),
    )
    table = Table(
        "Traffic of one GPU in a step", columns, tuple(tuple(getattr(t, c.name) for c in columns) for t in rows)
    )
    kinds = list(dict.fromkeys(t.parallelism for t in rows))
    order = [tier.name for tier in e.problem.cluster.tiers]
    tiers = sorted({t.tier for t in rows}, key=order.index)

    def sums(key: str, scale: float) -> dict[str, list[float]]:
        return {
            tier: [sum(getattr(t, key) for t in rows if (t.parallelism, t.tier) == (k, tier)) / scale for k in kinds]
            for tier in tiers
        }

    def draw(sheet: Sheet) -> None:
        moved = sums("bytes_per_step", GIB)
        notes = [size(GIB * sum(moved[tier][at] for tier in tiers)) for at in range(len(kinds))]
        stacks(sheet, kinds, moved, colours(tiers), "GiB sent by one GPU in a step", notes=notes)

    most = ", ".join(f"{t.parallelism} {size(t.bytes_per_step)} over {t.tier}" for t in rows[:3])
    alt = f"Stacked bars of what one GPU sends in a step, by parallelism and network tier. The most: {most}."
    return Chart("traffic-by-parallelism", "Traffic by parallelism and tier", alt, table, draw)


def why_chart(plan: Plan) -> Chart | None:
    """What another value of each dimension would cost; None where no other is possible."""
    priced = [n for n in plan.why if n.step_time_s is not None]
    columns = (
        Column("change", "change"),
        Column("step time", "step_time_s", seconds),
        Column("price", "price_ratio", change),
        Column("how sure", "sure", number=False),
        Column("best layout with it, or why there is none", "layout", number=False),
    )
    table = Table("The price of one notch of each dimension", columns, tuple(_notch_row(plan, n) for n in plan.why))
    if not priced:
        return None
    worst = max(priced, key=lambda n: n.step_time_s or 0.0)
    ratios = [((n.step_time_s or 0.0) / plan.step_time_s - 1.0) * 100.0 for n in priced]
    alt = (
        f"Bars of how much longer a step takes with another value of one dimension, everything else chosen anew. The "
        f"most: {_notch_name(worst)}, {change((worst.step_time_s or 0.0) / plan.step_time_s)}."
    )

    def draw(sheet: Sheet) -> None:
        notes = [f"{'' if n.exact else '≤ '}{r:+.1f} %" for n, r in zip(priced, ratios, strict=True)]
        fills = [SERIES[0] if n.exact else SERIES[5] for n in priced]
        bars(sheet, [_notch_name(n) for n in priced], ratios, fills, notes, "% more step time")

    return Chart("price-of-a-notch", "Why not otherwise", alt, table, draw, open=True)


def _notch_name(notch: Notch) -> str:
    return f"{plain(notch.dimension)} {notch_value(notch.value)} → {notch_value(notch.other)}"


def _notch_row(plan: Plan, n: Notch) -> tuple[Any, ...]:
    if n.step_time_s is None:
        return _notch_name(n), None, None, None, n.reason
    layout = "" if n.strategy is None else words.short_layout(n.strategy, plan.problem.model.is_moe)
    return (
        _notch_name(n), n.step_time_s, n.step_time_s / plan.step_time_s, "proven" if n.exact else "at most",
        layout or n.reason,
    )  # fmt: skip


def letters(count: int) -> list[str]:
    """``A``, ``B`` … ``Z``, ``AA``: names of layouts in a figure."""
    return [
        ascii_uppercase[i] if i < 26 else ascii_uppercase[i // 26 - 1] + ascii_uppercase[i % 26] for i in range(count)
    ]


def alternatives_chart(plan: Plan) -> Chart | None:
    """The plan beside its runners-up by kind of time; None without any."""
    if not plan.alternatives:
        return None
    every = (plan.estimate, *plan.alternatives)
    names = ["plan", *letters(len(every) - 1)]
    columns = (
        Column("", "name"),
        Column("layout", "layout", number=False),
        Column("step time", "step_time_s", seconds),
        Column("price", "price_ratio", lambda r: "best" if r == 1.0 else change(r)),
        Column("tokens/s/GPU", "tokens_per_s_per_gpu", significant),
        Column("MFU", "mfu", percent),
        Column("peak GiB", "peak_memory_bytes", gib),
    )
    kinds = tuple(Column(f"{kind}, ms", f"{kind.replace(' ', '_')}_s", milliseconds) for kind in KINDS)
    sums = [by_kind(e.time_parts_s) for e in every]
    rows = tuple(
        (
            name, words.short_layout(e.strategy, plan.problem.model.is_moe), e.step_time_s,
            e.step_time_s / plan.step_time_s, e.tokens_per_s_per_gpu, e.mfu, e.peak_memory_bytes,
        )
        for name, e in zip(names, every, strict=True)
    )  # fmt: skip
    table = Table("The plan and its runners-up", columns, rows)
    whole = tuple((*row, *parts.values()) for row, parts in zip(rows, sums, strict=True))
    data = Table(table.caption, (*columns, *kinds), whole)
    parts_ms = {kind: [1e3 * s[kind] for s in sums] for kind in KINDS if any(s[kind] for s in sums)}
    alt = f"Stacked bars of the step time of the plan and {len(every) - 1} runners-up by kind of time: " + ", ".join(
        f"{name} {seconds(e.step_time_s)}" for name, e in zip(names, every, strict=True)
    )

    def draw(sheet: Sheet) -> None:
        notes = [seconds(e.step_time_s) for e in every]
        stacks(sheet, names, parts_ms, colours(KINDS), "milliseconds of a step", notes=notes)

    return Chart("runners-up", "Runners-up", f"{alt}.", table, draw, data, open=True)


def pareto_chart(plan: Plan) -> Chart | None:
    """Step time against memory headroom; None where one layout has the best of both."""
    points = plan.pareto
    if len(points) < 2:
        return None
    proven = all(p.bound_s is not None for p in points)
    names = [
        "plan" if p.strategy == plan.strategy else letter for p, letter in zip(points, _after_plan(plan), strict=True)
    ]
    columns = (
        Column("", "name"),
        Column("layout", "layout", number=False),
        Column("step time", "step_time_s", seconds),
        Column("price", "price_ratio", lambda r: "plan" if r == 1.0 else change(r)),
        Column("peak GiB", "peak_memory_bytes", gib),
        Column("free GiB", "headroom_bytes", gib),
        Column("nothing faster than", "bound_s", seconds),
    )
    rows = tuple(
        (
            name, words.short_layout(p.strategy, plan.problem.model.is_moe), p.step_time_s,
            p.step_time_s / plan.step_time_s, p.peak_memory_bytes, p.headroom_bytes, p.bound_s,
        )
        for name, p in zip(names, points, strict=True)
    )  # fmt: skip
    what = "proven front" if proven else "best layouts that the search happened to evaluate"
    alt = (
        f"Step time against memory left free, {what}, {len(points)} points: from {seconds(points[0].step_time_s)} with "
        f"{gib(points[0].headroom_bytes)} GiB free to {seconds(points[-1].step_time_s)} with "
        f"{gib(points[-1].headroom_bytes)} GiB free."
    )

    def draw(sheet: Sheet) -> None:
        at = [(p.headroom_bytes / GIB, p.step_time_s, name) for p, name in zip(points, names, strict=True)]
        scatter_line(sheet, at, ("GiB left free on the fullest rank", "seconds of a step"), proven)

    note = "" if proven else "Not a proven front: --pareto POINTS searches for one."
    table = Table(f"Step time against memory headroom ({'proven' if proven else 'not proven'})", columns, rows)
    return Chart("pareto-front", "Step time against memory headroom", alt, table, draw, note=note, open=proven)


def _after_plan(plan: Plan) -> list[str]:
    """A letter for every point but the plan's own."""
    names = iter(letters(len(plan.pareto)))
    return ["plan" if p.strategy == plan.strategy else next(names) for p in plan.pareto]


def _widened(sheet: Sheet, axes: Any, keys: int) -> None:
    """Room for a legend above bars."""
    rows = -(-keys // (5 if sheet.wide else 2))
    width, height = axes.figure.get_size_inches()
    axes.figure.set_size_inches(width, height + rows * LEGEND_PX / PX)


def present(charts: Iterable[Chart | None]) -> tuple[Chart, ...]:
    """Those that there are."""
    return tuple(chart for chart in charts if chart is not None)

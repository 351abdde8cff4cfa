"""The figures of a study: curves over what varies, grids of two knobs, where time and memory go at each point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from shardwise.search.studies.points import OK, Row

from ..report import plain
from ..study_report import layout_or_why, short_axis, shown
from ..units import GIB, change, gib, percent, plural, seconds, significant
from .content import Chart, Column, Table
from .drawing import colours, heat, lines, stacks, tornado
from .plan_figures import KINDS, LEAST_SHARE, SMALLER, by_kind

if TYPE_CHECKING:
    from shardwise.search.studies.runner import StudyResult

    from .sheet import Sheet

MOST_CURVES, MOST_PANELS, MOST_BARS = 8, 6, 32
"""Curves in a figure, grids in one, points that stand side by side: beyond, nobody can tell them apart."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of the rows that people compare."""

    key: str
    name: str
    """Of its files."""
    title: str
    unit: str
    write: Callable[[float], str]
    scale: float = 1.0
    interval: tuple[str, str] | None = None


METRICS = (
    Metric("step_time_s", "step-time", "Best step time", "seconds of a step", seconds,
           interval=("step_time_low_s", "step_time_high_s")),
    Metric("tokens_per_s_per_gpu", "throughput", "Throughput", "tokens/s/GPU", significant),
    Metric("mfu", "mfu", "MFU", "per cent of the dense peak", percent, 100.0),
    Metric("usd_per_million_tokens", "cost", "Cost", "US dollars per million tokens", significant),
)  # fmt: skip


def metrics(rows: Sequence[Row]) -> tuple[Metric, ...]:
    """Those that some row has."""
    return tuple(m for m in METRICS if any(row.get(m.key) is not None for row in rows))


def number_of(value: Any) -> float | None:
    """An axis's value as a place on a scale: a number, or the multiple that ``x0.5`` stands for."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value[:1] == "x":
        try:
            return float(value[1:])
        except ValueError:
            return None
    return None


def main_axis(result: StudyResult) -> str | None:
    """The axis that curves run along: of those that are numbers the one with the most values, the first if several."""
    axes = {p: v for p, v in result.study.axes.items() if len(v) > 1 and all(number_of(x) is not None for x in v)}
    return max(axes, key=lambda path: len(axes[path])) if axes else None


def curves(result: StudyResult, metric: Metric) -> Chart | None:
    """A metric over the main axis, a curve for each setting of the others; None where no axis is a number."""
    axis = main_axis(result)
    if axis is None or result.study.file.mode == "one-at-a-time":
        return None
    values = sorted(result.study.axes[axis], key=lambda v: number_of(v) or 0.0)
    others = [p for p in result.study.axes if p != axis] if result.study.file.mode == "grid" else []
    found: dict[str, dict[Any, Row]] = {}
    for row in result.rows:
        found.setdefault(label(row, others) or metric.title, {})[row.get(axis)] = row
    names = list(found)[:MOST_CURVES]
    held: dict[str, list[float | None]] = {
        name: [scaled(found[name].get(v), metric.key, metric.scale) for v in values] for name in names
    }
    columns = (
        Column(short_axis(axis), axis, shown),
        *(Column(name, f"{metric.key} {name}".strip(), metric.write) for name in names),
    )
    rows = tuple((v, *((found[name].get(v) or {}).get(metric.key) for name in names)) for v in values)
    note = (
        f"The first {MOST_CURVES} of {len(found)} settings; all points are listed below."
        if len(found) > len(names)
        else ""
    )

    def draw(sheet: Sheet) -> None:
        lines(
            sheet, [number_of(v) or 0.0 for v in values], held, (short_axis(axis), metric.unit),
            [shown(v) for v in values], _bands(found, names, values, metric) if len(names) <= 3 else None,
        )  # fmt: skip

    title = f"{metric.title} by {short_axis(axis)}"
    return Chart(
        f"{metric.name}-curve", title, _curve_words(title, held, [shown(v) for v in values], metric),
        Table(title, columns, rows), draw, note=note,
    )  # fmt: skip


def _bands(
    found: dict[str, dict[Any, Row]], names: Sequence[str], values: Sequence[Any], metric: Metric
) -> dict[str, list[tuple[float, float] | None]] | None:
    if metric.interval is None:
        return None
    low, high = metric.interval
    return {
        name: [
            None if row is None or row["status"] != OK else (row[low], row[high])
            for row in map(found[name].get, values)
        ]
        for name in names
    }


def _curve_words(title: str, held: dict[str, list[float | None]], ticks: list[str], metric: Metric) -> str:
    said = []
    for name, values in held.items():
        some = [(t, v) for t, v in zip(ticks, values, strict=True) if v is not None]
        if some:
            (a, first), (b, last) = some[0], some[-1]
            of = "" if name == metric.title else f"{name}: "
            write = metric.write
            said.append(f"{of}{write(first / metric.scale)} at {a}, {write(last / metric.scale)} at {b}")
        else:
            said.append(f"{name}: nothing fits anywhere")
    band = " Shaded: the interval of the prediction." if metric.interval and len(held) <= 3 else ""
    return f"{title}, each point the best layout of its own search. {'; '.join(said)}.{band}"


def grids(result: StudyResult, metric: Metric) -> Iterator[Chart]:
    """A grid of cells for the two axes with the most values, a panel for each setting of the rest."""
    axes = {p: v for p, v in result.study.axes.items() if len(v) > 1}
    if result.study.file.mode != "grid" or len(axes) < 2:
        return
    across, down = max(combinations(axes, 2), key=lambda pair: len(axes[pair[0]]) * len(axes[pair[1]]))
    if len(axes[down]) > len(axes[across]):
        across, down = down, across
    rest = [p for p in axes if p not in (across, down)]
    found: dict[str, dict[tuple[Any, Any], Row]] = {}
    for row in result.rows:
        found.setdefault(label(row, rest), {})[(row.get(across), row.get(down))] = row
    names = list(found)[:MOST_PANELS]
    columns, lanes = axes[across], axes[down]
    panels = {
        name: [[scaled(found[name].get((c, r)), metric.key, 1.0) for c in columns] for r in lanes] for name in names
    }
    title = f"{metric.title} by {short_axis(across)} and {short_axis(down)}"
    yield Chart(
        f"{metric.name}-grid", title, _grid_words(title, panels, metric),
        _grid_table(title, (across, down), (columns, lanes), panels, metric),
        lambda sheet: heat(
            sheet, [shown(c) for c in columns], [shown(r) for r in lanes], panels, metric.write,
            (short_axis(across), short_axis(down)),
        ),
        note=f"The first {MOST_PANELS} of {len(found)} settings." if len(found) > len(names) else "",
    )  # fmt: skip


def _grid_words(title: str, panels: dict[str, list[list[float | None]]], metric: Metric) -> str:
    cells = [v for grid in panels.values() for row in grid for v in row]
    some = [v for v in cells if v is not None]
    if not some:
        return f"{title}: no cell has an answer."
    none = len(cells) - len(some)
    missing = f" A dash marks the {plural(none, 'cell')} without an answer." if none else ""
    least, most = metric.write(min(some)), metric.write(max(some))
    return f"{title}: coloured cells from {least} to {most}, brighter is more.{missing}"


def _grid_table(
    title: str, paths: tuple[str, str], values: tuple[Sequence[Any], Sequence[Any]],
    panels: dict[str, list[list[float | None]]], metric: Metric,
) -> Table:  # fmt: skip
    split = len(panels) > 1
    head = (Column("setting", "setting"),) if split else ()
    across = short_axis(paths[0])
    columns = (
        *head, Column(short_axis(paths[1]), paths[1], shown),
        *(Column(f"{across} {shown(v)}", f"{metric.key} {paths[0]}={v}", metric.write) for v in values[0]),
    )  # fmt: skip
    rows = tuple(
        (*((name,) if split else ()), lane, *row)
        for name, grid in panels.items()
        for lane, row in zip(values[1], grid, strict=True)
    )
    return Table(title, columns, rows)


def label(settings: Mapping[str, Any], axes: Sequence[str]) -> str:
    """A point in words: ``gpus 64, scale-out.bytes_per_s x0.5``; names of models and clusters stand alone."""
    parts = []
    for path in axes:
        value = settings.get(path)
        named = isinstance(value, str) and number_of(value) is None
        if value is not None:
            parts.append(shown(value) if named else f"{short_axis(path)} {shown(value)}")
    return ", ".join(parts)


def points(result: StudyResult) -> list[tuple[str, Row]]:
    """Every row with its point in words."""
    axes = list(result.study.axes)
    pairs = zip(result.study.points, result.rows, strict=True)
    return [(label(settings, axes) or "as it stands", row) for settings, row in pairs]


def scaled(row: Row | None, key: str, scale: float) -> float | None:
    """A figure of a row, in the unit of a drawing; None where the row has no answer."""
    value = None if row is None or row["status"] != OK else row.get(key)
    return None if value is None else float(value) * scale


def spread(result: StudyResult) -> Chart | None:
    """A tornado: how far each axis alone moves the step; for studies of one axis at a time."""
    if result.study.file.mode != "one-at-a-time" or result.rows[0]["status"] != OK:
        return None
    start = result.rows[0]["step_time_s"]
    bars: list[tuple[str, list[tuple[str, float | None]]]] = []
    for path in result.study.axes:
        mine = [
            (shown(point[path]), row["step_time_s"] if row["status"] == OK else None)
            for point, row in zip(result.study.points, result.rows, strict=True)
            if set(point) == {path}
        ]
        if mine:
            bars.append((path, mine))
    reach = {path: max((abs(s / start - 1.0) for _, s in mine if s), default=0.0) for path, mine in bars}
    bars.sort(key=lambda item: -reach[item[0]])
    columns = (
        Column("what varies", "path"), Column("value", "value", number=False),
        Column("step time", "step_time_s", seconds), Column("change", "ratio", change),
    )  # fmt: skip
    rows = tuple((path, value, s, None if s is None else s / start) for path, mine in bars for value, s in mine)

    def side(mine: list[tuple[str, float | None]], at: int) -> float | None:
        s = mine[at][1]
        return None if s is None else (s / start - 1.0) * 100.0

    ends = [(side(mine, 0), side(mine, -1)) for _, mine in bars]
    first = f"{short_axis(bars[0][0])} moves it by up to {percent(reach[bars[0][0]])}" if bars else "nothing varies"
    return Chart(
        "spread", "What moves the step",
        f"For each axis, what its first and its last value do to the best step of {seconds(start)}: {first}.",
        Table("Each axis alone", columns, rows),
        lambda sheet: tornado(sheet, [short_axis(p) for p, _ in bars], ends, ("first value", "last value")),
        open=True,
    )  # fmt: skip


def _solved(result: StudyResult) -> list[tuple[str, Row]]:
    return [(name, row) for name, row in points(result) if row["status"] == OK]


def _bar_names(result: StudyResult) -> list[str]:
    """The points' values alone, where every point sets every axis; the note says which axes they are."""
    if result.study.file.mode == "one-at-a-time":
        return [name for name, _ in _solved(result)]
    pairs = zip(result.study.points, result.rows, strict=True)
    return [" · ".join(map(shown, settings.values())) for settings, row in pairs if row["status"] == OK]


def _bar_note(result: StudyResult) -> str:
    names = " · ".join(map(short_axis, result.study.axes))
    return "" if result.study.file.mode == "one-at-a-time" else f"Bars are named by {names}."


def time_parts(result: StudyResult) -> Chart | None:
    """Where the time of each point goes; None for more points than can be told apart."""
    held = _solved(result)
    if not 1 <= len(held) <= MOST_BARS:
        return None
    parts = [
        by_kind({k[5:-2]: row[k] or 0.0 for k in row if k.startswith("time.") and k.endswith("_s")}) for _, row in held
    ]
    columns = (
        Column("point", "point"),
        *(Column(kind, f"{kind.replace(' ', '_')}_s", seconds) for kind in KINDS),
        Column("step", "step_time_s", seconds),
    )
    rows = tuple((name, *p.values(), row["step_time_s"]) for (name, row), p in zip(held, parts, strict=True))
    stacked = {kind: [p[kind] for p in parts] for kind in KINDS if any(p[kind] for p in parts)}
    quick = min(held, key=lambda one: one[1]["step_time_s"])
    alt = f"Stacked bars of the step time of {len(held)} points by kind of time; the shortest is {quick[0]}."

    def draw(sheet: Sheet) -> None:
        notes = [seconds(row["step_time_s"]) for _, row in held]
        stacks(sheet, _fitted(_bar_names(result), sheet), stacked, colours(KINDS), "seconds of a step", notes=notes)

    return Chart(
        "time-by-point",
        "Where the time goes",
        alt,
        Table("Step time by kind and point", columns, rows),
        draw,
        note=_bar_note(result),
    )


def memory_parts(result: StudyResult) -> Chart | None:
    """What fills the memory of the fullest rank at each point; None for more points than can be told apart."""
    held = _solved(result)
    if not 1 <= len(held) <= MOST_BARS:
        return None
    keys = list(dict.fromkeys(k for _, row in held for k in row if k.startswith("memory.")))
    capacity = max(row["capacity_bytes"] for _, row in held)
    big = [k for k in keys if max(row.get(k) or 0.0 for _, row in held) >= LEAST_SHARE * capacity]
    small = [k for k in keys if k not in big]
    stacked = {_part(k): [(row.get(k) or 0.0) / GIB for _, row in held] for k in big}
    if small:
        stacked[SMALLER] = [sum(row.get(k) or 0.0 for k in small) / GIB for _, row in held]
    columns = (
        Column("point", "point"), *(Column(_part(k), k.removeprefix("memory."), gib) for k in keys),
        Column("peak", "peak_bytes", gib), Column("usable", "capacity_bytes", gib),
    )  # fmt: skip
    rows = tuple(
        (name, *(row.get(k) for k in keys), row["peak_memory_bytes"], row["capacity_bytes"]) for name, row in held
    )
    same = len({row["capacity_bytes"] for _, row in held}) == 1
    limit = (capacity / GIB, f"usable {gib(capacity)} GiB") if same else None
    least, most = (f(row["peak_memory_bytes"] for _, row in held) for f in (min, max))
    alt = f"Stacked bars of the memory of the fullest rank at {len(held)} points, from {gib(least)} to {gib(most)} GiB."

    def draw(sheet: Sheet) -> None:
        names = _fitted(_bar_names(result), sheet)
        stacks(sheet, names, stacked, colours(list(stacked), SMALLER), "GiB", limit)

    return Chart(
        "memory-by-point",
        "What fills the memory",
        alt,
        Table("Memory by point, GiB", columns, rows),
        draw,
        note=_bar_note(result),
    )


def _part(key: str) -> str:
    return plain(key.removeprefix("memory.").removesuffix("_bytes"))


def _fitted(names: list[str], sheet: Sheet) -> list[str]:
    """Names of bars that leave room for the bars: the table has them whole."""
    most = 44 if sheet.wide else 19
    return [name if len(name) <= most else f"{name[: most - 1]}…" for name in names]


def points_table(result: StudyResult, most: int) -> Table:
    """Every point with its answer, up to so many."""
    axes = list(result.study.axes)
    priced = [m for m in metrics(result.rows) if m.key == "usd_per_million_tokens"]
    columns = (
        *(Column(short_axis(path), path, shown, number=at == 0) for at, path in enumerate(axes)),
        Column("step time", "step_time_s", seconds),
        Column("tokens/s/GPU", "tokens_per_s_per_gpu", significant),
        Column("MFU", "mfu", percent),
        *(Column("$/M tokens", m.key, m.write) for m in priced),
        Column("peak GiB", "peak_memory_bytes", gib),
        Column("gap", "proof.gap", percent),
        Column("best layout, or why there is none", "layout", number=False),
    )
    rows = tuple(
        (*(row.get(c.name) for c in columns[:-1]), layout_or_why(row)) for row in result.rows[:most]
    )  # fmt: skip
    return Table("Best layout of each point", columns, rows)

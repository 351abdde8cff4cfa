"""The kinds of drawing that reports are made of: bars, stacks, lines, heatmaps, tornadoes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .palette import BAD, CARD, IDLE, INK, LINE, MUTED, REST, SERIES

if TYPE_CHECKING:
    from .sheet import Sheet

BAR_PX = 27.0
"""Height of a bar with its gap."""

_NARROW_LABEL = 20
"""Letters of a bar's name on a line of a narrow sheet; two lines at most."""

_FRAME_PX = 46.0
"""What the axis under bars takes."""

LEGEND_PX = 20.0
"""What a row of a legend takes."""

_DARK_TEXT, _LIGHT_TEXT = "#101010", "#fafafa"
"""On a coloured cell, in light and dark pages alike: the cell's colour is the same in both."""


def colours(names: Sequence[str], rest: str | None = None) -> dict[str, str]:
    """A colour for each name in order, grey for the one that stands for the rest."""
    kinds = iter([*SERIES[:-1], *SERIES])
    return {name: REST if name == rest else next(kinds) for name in names}


def bars(
    sheet: Sheet, labels: Sequence[str], values: Sequence[float], fills: Sequence[str], notes: Sequence[str], unit: str
) -> Any:
    """Horizontal bars from the top down, each with a note at its end."""
    labels = [label if sheet.wide else "\n".join(wrap(label, _NARROW_LABEL)[:2]) for label in labels]
    thick = BAR_PX + (9.0 if any("\n" in label for label in labels) else 0.0)
    axes = sheet.axes(len(labels) * thick + _FRAME_PX)
    axes.barh(range(len(values)), values, color=fills, height=0.72)
    _down(axes, labels)
    most = max(max(values, default=0.0), 0.0) or 1.0
    least = min(min(values, default=0.0), 0.0)
    share = min(0.7, _text_px(notes) / max(80.0, sheet.width_px - _text_px(labels) - 24.0))
    axes.set_xlim(least, least + (most - least) / (1.0 - share))
    for at, (value, note) in enumerate(zip(values, notes, strict=True)):
        axes.annotate(note, (max(value, 0.0), at), (5, 0), textcoords="offset points", va="center", color=INK)
    _measured(axes, unit)
    return axes


def stacks(
    sheet: Sheet,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    fills: Mapping[str, str],
    unit: str,
    limit: tuple[float, str] | None = None,
    notes: Sequence[str] = (),
) -> Any:
    """Horizontal bars from the top down, each made of parts; ``limit`` is a line across all of them."""
    shown = list(parts)
    rows = -(-len(shown) // (5 if sheet.wide else 2)) + (1 if limit else 0)
    thin = min(BAR_PX, max(11.0, 640.0 / max(1, len(labels))))
    axes = sheet.axes(len(labels) * thin + _FRAME_PX + rows * LEGEND_PX)
    left = [0.0] * len(labels)
    for name in shown:
        axes.barh(range(len(labels)), parts[name], left=left, color=fills[name], height=0.78, linewidth=0.6)
        left = [a + b for a, b in zip(left, parts[name], strict=True)]
    _down(axes, labels, every=max(1, -(-len(labels) // int(640.0 / 15.0))))
    handles = [swatch(fills[name], name) for name in shown]
    most = max([*left, limit[0] if limit else 0.0]) or 1.0
    share = min(0.7, _text_px(notes) / max(80.0, sheet.width_px - _text_px(labels) - 24.0)) if notes else 0.03
    axes.set_xlim(0.0, most / (1.0 - share))
    for at, note in enumerate(notes):
        axes.annotate(note, (left[at], at), (5, 0), textcoords="offset points", va="center", color=INK)
    if limit is not None:
        handles.append(axes.axvline(limit[0], color=BAD, linewidth=2.0, linestyle=(0, (4, 2)), label=limit[1]))
    _measured(axes, unit)
    sheet.legend(handles, 5)
    return axes


def lines(
    sheet: Sheet,
    x: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    names: tuple[str, str],
    ticks: Sequence[str] | None,
    bands: Mapping[str, Sequence[tuple[float, float] | None]] | None = None,
    dashed: Sequence[str] = (),
    height_px: float = 330.0,
) -> Any:
    """Curves over ``x``, whose places carry ``ticks`` (None: round numbers); a point without a value leaves a gap."""
    rows = 0 if len(curves) == 1 else -(-len(curves) // (4 if sheet.wide else 2))
    axes = sheet.axes(height_px + rows * LEGEND_PX)
    marks = ("o", "s", "^", "D", "v", "P", "X", "*")
    handles = []
    for at, (name, values) in enumerate(curves.items()):
        colour = MUTED if name in dashed else SERIES[at % len(SERIES)]
        held = [float("nan") if v is None else v for v in values]
        style = {"linestyle": (0, (4, 3))} if name in dashed else {"marker": marks[at % len(marks)], "markersize": 6}
        handles += axes.plot(x, held, color=colour, linewidth=2.0, label=name, **style)
        spread = (bands or {}).get(name)
        if spread is not None:
            low = [float("nan") if b is None else b[0] for b in spread]
            high = [float("nan") if b is None else b[1] for b in spread]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    scale_x(axes, x, ticks, sheet.wide)
    axes.set_xlabel(names[0])
    axes.set_title(names[1], color=MUTED)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(axis="y")
    if rows:
        sheet.legend(handles, 4)
    return axes


def scale_x(axes: Any, x: Sequence[float], ticks: Sequence[str] | None, wide: bool) -> None:
    """Ticks at the values given, logarithmic where they span much; as many labels as there is room for."""
    if ticks is None:
        axes.locator_params(axis="x", nbins=8 if wide else 4)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.3g}")
        return
    if min(x) > 0 and max(x) / min(x) >= 4:
        axes.set_xscale("log")
    axes.minorticks_off()
    room = max(1, int((700 if wide else 250) / (max(map(len, ticks)) * 7.5 + 14)))
    step = -(-len(ticks) // room)
    places = list(range(0, len(ticks), step))
    axes.set_xticks([x[i] for i in places], [ticks[i] for i in places])


def upright(axes: Any, marks: Sequence[tuple[float, str]]) -> None:
    """Upright lines at some values, each with a word beside it."""
    for at, (value, text) in enumerate(marks):
        axes.axvline(value, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        place = (value, 0.04 + 0.08 * (at % 3))
        axes.annotate(
            text, place, (4, 0), xycoords=("data", "axes fraction"), textcoords="offset points", color=INK
        )  # fmt: skip


def heat(
    sheet: Sheet,
    columns: Sequence[str],
    rows: Sequence[str],
    panels: Mapping[str, Sequence[Sequence[float | None]]],
    write: Any,
    names: tuple[str, str],
) -> None:
    """Grids of coloured cells that share a scale, each cell with its value; hatched where there is none."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    values = [v for grid in panels.values() for row in grid for v in row if v is not None]
    scale = Normalize(min(values, default=0.0), max(values, default=1.0) or 1.0)
    map_ = colormaps["cividis"]
    height = len(rows) * (34.0 if sheet.wide else 30.0) + 62.0
    across = sheet.axes(height * len(panels), rows=len(panels), squeeze=False)
    for axes, (title, grid) in zip(across[:, 0], panels.items(), strict=True):
        for r, row in enumerate(grid):
            for c, value in enumerate(row):
                _cell(axes, (c, r), None if value is None else map_(scale(value)))
                if value is not None and len(columns) * (7.4 * len(write(value)) + 6) < sheet.width_px * 0.8:
                    pale = _bright(map_(scale(value)))
                    axes.text(c, r, write(value), ha="center", va="center", color=_DARK_TEXT if pale else _LIGHT_TEXT)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        step = -(-len(columns) * (max(map(len, columns)) * 7.5 + 8) // (sheet.width_px * 0.8))
        places = range(0, len(columns), max(1, int(step)))
        axes.set_xticks(list(places), [columns[i] for i in places])
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.set(xlabel=names[0], ylabel=names[1])
        if title:
            axes.set_title(title, color=MUTED)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)


def _cell(axes: Any, at: tuple[int, int], colour: Any) -> None:
    from matplotlib.patches import Rectangle

    place = (at[0] - 0.5, at[1] - 0.5)
    if colour is None:
        axes.add_patch(Rectangle(place, 1, 1, facecolor=IDLE, edgecolor=CARD, linewidth=1.5))
        axes.text(*at, "–", ha="center", va="center", color=MUTED)
    else:
        axes.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor=CARD, linewidth=1.5))


def _bright(colour: Sequence[float]) -> bool:
    """Whether black reads better on a colour than white: their contrasts are equal at a luminance of 0.18."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.18


def tornado(
    sheet: Sheet, labels: Sequence[str], sides: Sequence[tuple[float | None, float | None]], names: tuple[str, str]
) -> None:
    """For each label two bars from 0: what less and what more of it does, in per cent."""
    axes = sheet.axes(len(labels) * BAR_PX * 1.3 + _FRAME_PX + LEGEND_PX)
    for at, pair in enumerate(sides):
        for side, (value, colour) in enumerate(zip(pair, SERIES[1::-1], strict=True)):
            place = at + (0.2 if side else -0.2)
            if value is None:
                axes.annotate("nothing fits", (0, place), (4, 0), textcoords="offset points", va="center", color=BAD)
            else:
                axes.barh(place, value, color=colour, height=0.38)
    _down(axes, labels)
    reach = max((abs(v) for pair in sides for v in pair if v is not None), default=0.0) or 1.0
    axes.set_xlim(-1.1 * reach, 1.1 * reach)
    axes.axvline(0, color=LINE, linewidth=1.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if abs(value) > 1e-9 else "0 %")
    axes.set_xlabel("change of the best step time")
    axes.grid(axis="x")
    sheet.legend([swatch(SERIES[1], names[0]), swatch(SERIES[0], names[1])], 2)


def scatter_line(sheet: Sheet, points: Sequence[tuple[float, float, str]], names: tuple[str, str], proven: bool) -> Any:
    """Points joined in order, each with a letter."""
    axes = sheet.axes(330.0)
    style = {"linewidth": 1.6} if proven else {"linewidth": 1.2, "linestyle": (0, (4, 3))}
    axes.plot([p[0] for p in points], [p[1] for p in points], color=SERIES[0], marker="o", markersize=8, **style)
    for x, y, text in points:
        axes.annotate(text, (x, y), (7, 7), textcoords="offset points", color=INK)
    axes.set_xlabel(names[0])
    axes.set_title(names[1], color=MUTED)
    axes.margins(0.1, 0.18)
    axes.grid()
    return axes


def _down(axes: Any, labels: Sequence[str], every: int = 1) -> None:
    """Bars named from the top down."""
    places = list(range(0, len(labels), every))
    axes.set_yticks(places, [labels[i] for i in places])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _text_px(texts: Sequence[str]) -> float:
    """Room for the longest of some texts, with a gap."""
    return max((len(line) for text in texts for line in text.split("\n")), default=0) * 7.4 + 12.0


def _measured(axes: Any, unit: str) -> None:
    """The axis of values under bars."""
    axes.set_xlabel(unit, loc="right")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(axis="x")


def swatch(colour: str, name: str) -> Any:
    """A legend's entry for a colour."""
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=name)

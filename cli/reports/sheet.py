"""A sheet that a chart is drawn on, and the drawing as SVG for a page or as files."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from .palette import CARD, INK, LINE, MUTED, with_roles

if TYPE_CHECKING:
    from .content import Chart

WIDE_PX, NARROW_PX = 872, 342
"""Widths of a figure on a large page and on a telephone, in pixels of the page."""

PX = 72.0
"""Pixels of an inch: a unit of the drawing is a point, and a pixel of the page."""

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "shardwise",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 12.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12.0,
    "axes.titlelocation": "left",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.handlelength": 1.0,
    "legend.columnspacing": 1.2,
    "patch.edgecolor": CARD,
    "savefig.facecolor": "none",
    "text.parse_math": False,
}


class Sheet:
    """One drawing. ``wide`` for a large page or a file, narrow for a telephone."""

    def __init__(self, wide: bool) -> None:
        from matplotlib.figure import Figure

        self.wide = wide
        self.figure: Any = Figure(figsize=(self.width_px / PX, 3.0), dpi=PX, layout="constrained")

    @property
    def width_px(self) -> int:
        """How wide the drawing is."""
        return WIDE_PX if self.wide else NARROW_PX

    def axes(self, height_px: float, rows: int = 1, columns: int = 1, **how: Any) -> Any:
        """Axes on a sheet that is so high; as ``Figure.subplots`` gives them."""
        self.figure.set_size_inches(self.width_px / PX, height_px / PX)
        return self.figure.subplots(rows, columns, **how)

    def legend(self, handles: list[Any], columns: int) -> None:
        """A legend above the axes, ``columns`` across on a wide sheet and as many as fit on a narrow one."""
        count = min(len(handles), columns if self.wide else 2)
        self.figure.legend(handles=handles, loc="outside upper left", ncols=max(1, count), borderaxespad=0.0)


def inline_svg(chart: Chart, wide: bool) -> str:
    """The chart as an SVG element whose colours follow the page and whose ids are its own. Raises ImportError."""
    prefix = f"{chart.name}-{'wide' if wide else 'narrow'}"
    svg = _drawn(chart, wide, "svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*(; )?", "", svg)
    svg = re.sub(r'\bd="([^"]*)"', lambda found: f'd="{_shortened(found[1])}"', svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r'(\s(?:id|xlink:href|href)=")(#?)', rf"\1\2{prefix}-", svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    svg = re.sub(r">\s+<", "><", svg)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None, "matplotlib writes a viewBox"
    head = (
        f'<svg class="{"wide" if wide else "narrow"}" viewBox="{box[1]}" role="img" focusable="false" '
        f'aria-labelledby="{chart.name}-title" aria-describedby="{chart.name}-alt" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return with_roles(head + svg[svg.index(">") + 1 :].strip())


def files(chart: Chart) -> dict[str, str | bytes]:
    """The chart as PNG and SVG, in light colours, and its values as CSV. Raises ImportError without matplotlib."""
    return {
        f"{chart.name}.svg": _drawn(chart, True, "svg", CARD),
        f"{chart.name}.png": _drawn(chart, True, "png", CARD),
        f"{chart.name}.csv": chart.csv(),
    }


def _drawn(chart: Chart, wide: bool, kind: str, ground: str = "none") -> bytes:
    """The same bytes for the same chart: no date, no version of a library, no settings of the user's own."""
    import matplotlib

    none = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    out = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        warnings.filterwarnings("ignore", "Glyph")  # a name in another script is drawn by the browser's own fonts
        sheet = Sheet(wide)
        chart.draw(sheet)
        sheet.figure.savefig(
            out, format=kind, dpi=PX if kind == "svg" else 2 * PX, facecolor=ground, metadata=dict.fromkeys(none)
        )
    return out.getvalue()


def _shortened(path: str) -> str:
    """Path data to a tenth of a pixel."""
    joined = " ".join(path.split())
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), joined)

"""The tree of an allocation, its uplinks coloured by what crosses them a step: sorted order beside the placement."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .units import plural, size

if TYPE_CHECKING:
    from shardwise.search.placement import Placement

Array = NDArray[np.float64]

_NAMED = 24
"""Domains of a level up to which each is labelled."""


def figure_svg(found: Placement) -> str:
    """The figure as SVG text, the same for the same placement. Raises ImportError without matplotlib."""
    out = io.BytesIO()
    draw(found, out, "svg")
    return out.getvalue().decode("utf-8")


def draw(found: Placement, target: Any, kind: str) -> None:
    """Draw into a file or path as ``svg`` or ``png``. Raises ImportError without matplotlib."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "shardwise", "font.size": 8, "svg.fonttype": "path"}):
        figure = Figure(figsize=(12, 1.6 + 1.5 * len(found.fabric.domains)), layout="constrained")
        FigureCanvasAgg(figure)
        sides = ((found.sorted_uplink_bytes, "sorted order", found.sorted_exposed_s),
                 (found.uplink_bytes, "placed", found.exposed_s))  # fmt: skip
        axes = figure.subplots(1, 2, sharey=True)
        most = max((float(_moved(level).max()) for side, *_ in sides for level in side if level), default=0.0)
        scale = matplotlib.colors.Normalize(0.0, max(most, 1.0))
        colours = matplotlib.colormaps["viridis_r"]
        for axis, (uplinks, title, exposed) in zip(axes, sides, strict=True):
            _panel(axis, found, uplinks, scale, colours)
            axis.set_title(f"{title}: {exposed * 1e3:,.1f} ms exposed a step")
        bar = figure.colorbar(matplotlib.cm.ScalarMappable(scale, colours), ax=axes, shrink=0.8, ticks=_ticks(most))
        bar.ax.yaxis.set_major_formatter(lambda value, _: size(value))
        bar.set_label("bytes a step over an uplink")
        figure.suptitle(f"{found.job.model} on {plural(found.job.num_nodes, 'node')}")
        figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else None, dpi=110)


def _panel(axis: Any, found: Placement, uplinks: tuple[dict[str, Array], ...], scale: Any, colours: Any) -> None:
    fabric = found.fabric
    centres = [_centres(level, fabric.domains) for level in fabric.domains]
    names = fabric.level_names()
    for level, (here, sent) in enumerate(zip(centres[:-1], uplinks, strict=True)):
        above = _parents(fabric.domains[level], fabric.domains[level + 1])
        moved = _moved(sent) if sent else np.zeros(len(here))
        for d, x in enumerate(here):
            colour = colours(scale(moved[d]))
            axis.plot([x, centres[level + 1][above[d]]], [level, level + 1], color=colour, linewidth=2.2, zorder=1)
    leaves = [fabric.names[m] for m in np.unique(fabric.domains[0], return_index=True)[1]]
    for level, here in enumerate(centres):
        counts = np.bincount(fabric.domains[level])
        axis.scatter(here, [level] * len(here), s=14 if len(here) > _NAMED else 60, color="#444", zorder=2)
        if len(here) <= _NAMED:
            for d, (x, count) in enumerate(zip(here, counts, strict=True)):
                text = f"{leaves[d]}\n{plural(count, 'node')}" if level == 0 else plural(count, "node")
                below = level == 0  # others above, where fewer lines meet
                place = {"xytext": (0, -9 if below else 7), "va": "top" if below else "bottom"}
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
                axis.annotate(text, (x, level), textcoords="offset points", ha="center", bbox=box, **place)
    axis.set_yticks(range(len(names)), names)
    axis.set_xticks([])
    axis.margins(x=0.09)  # labels of two panels keep apart
    axis.set_ylim(-0.5, len(names) - 0.7)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(length=0)


def _ticks(most: float) -> list[float]:
    """Round amounts in one unit from 0 to the most, six at most."""
    unit = 1024.0 ** max(0, int(np.log2(max(most, 1.0)) // 10))
    steps = (unit * base * 10**power for power in range(4) for base in (1, 2, 5))
    step = next(s for s in steps if most / s <= 5.0)
    return [float(k * step) for k in range(int(most / step) + 1)]


def _moved(sent: dict[str, Array]) -> Array:
    """Bytes of all parallelisms together, by domain."""
    return np.asarray(np.sum(list(sent.values()), axis=0), dtype=np.float64)


def _centres(level: NDArray[np.int64], levels: tuple[NDArray[np.int64], ...]) -> Array:
    """The middle of each domain's nodes when nodes stand in tree order."""
    order = np.lexsort(levels)
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    return np.asarray(np.bincount(level, weights=place) / np.bincount(level))


def _parents(inner: NDArray[np.int64], outer: NDArray[np.int64]) -> NDArray[np.int64]:
    """The domain one level further out that each domain is in."""
    first = np.unique(inner, return_index=True)[1]
    return np.asarray(outer[first])

"""The simulated step as a picture: every pipeline rank's passes over time, the dull middle of a long step left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.simulation.graph import KINDS

from ..units import milliseconds, percent, plural, seconds
from .content import Chart, Column, Table
from .drawing import swatch
from .palette import CARD, IDLE, LINE, MUTED, SERIES

if TYPE_CHECKING:
    from shardwise.costmodel.simulation import Simulation

    from .sheet import Sheet

_WORDS = {"F": "forward", "B": "data gradient", "W": "weight gradient", "BW": "backward"}
_FILLS = {"forward": SERIES[0], "backward": SERIES[6], "data gradient": SERIES[6], "weight gradient": SERIES[2]}
_REDUCE, _OPTIMIZER = "gradients reduced", "optimizer and fixed time"
_END_FILLS = {_REDUCE: SERIES[1], _OPTIMIZER: SERIES[4]}

SHADE = 0.78
"""Opacity of every other chunk's passes over the idle ground; numbers on them stay readable."""

_MOST_PASSES = {True: 130, False: 46}
"""Passes of one rank that a wide and a narrow sheet can show apart."""

_NUMBER_PX = 13.0
"""Least width of a pass that has room for its micro-batch's number."""


@dataclass(frozen=True, slots=True)
class Slices:
    """What every rank does when, ``[n]``; ``what`` indexes ``names``."""

    names: tuple[str, ...]
    what: NDArray[np.int64]
    rank: NDArray[np.int64]
    chunk: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def slices(s: Simulation) -> Slices:
    """The passes of a simulated step and what comes after them."""
    g = s.graph
    ranks = np.arange(g.pp)
    done = s.end_s[g.last]
    ends = np.concatenate([s.rank_end_s, np.full(g.pp, s.step_time_s)])
    begins = np.concatenate([done, np.full(g.pp, s.meet_s)])
    none = np.full(2 * g.pp, -1)
    return Slices(
        names=(*(_WORDS[kind] for kind in KINDS), _REDUCE, _OPTIMIZER),
        what=np.concatenate([g.kind, np.repeat([len(KINDS), len(KINDS) + 1], g.pp)]),
        rank=np.concatenate([g.rank, ranks, ranks]),
        chunk=np.concatenate([g.chunk, none]),
        microbatch=np.concatenate([g.microbatch, none]),
        begin_s=np.concatenate([s.begin_s, begins]),
        end_s=np.concatenate([s.end_s, ends]),
    )


def chart(s: Simulation) -> Chart:
    """The timeline with, under it, how busy each rank is."""
    what = slices(s)
    bubbles = [b / s.step_time_s for b in s.bubble_by_rank_s]
    alt = (
        f"Timeline of one simulated step of {seconds(s.step_time_s)} on {plural(s.graph.pp, 'pipeline rank')}: forward "
        f"and backward passes of {s.strategy.num_microbatches} × {s.strategy.micro_batch_size} sequences in "
        f"{plural(s.graph.chunks, 'chunk')} a rank, then "
        f"gradient reduction and optimizer. Ranks wait for each other {percent(min(bubbles))} to "
        f"{percent(max(bubbles))} of the step."
    )
    note = "Darker and lighter shades alternate with a rank's chunks. " if s.graph.chunks > 1 else ""
    return Chart(
        name="pipeline-timeline",
        title="Pipeline timeline (simulated step)",
        alt=alt,
        table=_by_rank(s),
        draw=lambda sheet: _draw(sheet, what, s),
        data=_every_slice(what),
        note=f"{note}Numbers are micro-batches, where there is room. A long step shows its start, some of its middle "
        "and its end, on one scale; shardwise plan --trace FILE has all of it.",
    )


def _by_rank(s: Simulation) -> Table:
    columns = (
        Column("rank", "rank"),
        Column("computes, ms", "compute_s", milliseconds),
        Column("waits for messages and gradients, ms", "exposed_comm_s", milliseconds),
        Column("waits for other ranks, ms", "bubble_s", milliseconds),
        Column("share waiting", "bubble_share", percent),
    )
    sides = zip(s.busy_by_rank_s, s.exposed_comm_by_rank_s, s.bubble_by_rank_s, strict=True)
    rows = tuple((rank, busy, comm, bubble, bubble / s.step_time_s) for rank, (busy, comm, bubble) in enumerate(sides))
    return Table("What each pipeline rank does in the simulated step", columns, rows)


def _every_slice(what: Slices) -> Table:
    columns = tuple(Column(name, name) for name in ("rank", "what", "chunk", "microbatch", "begin_s", "end_s"))
    order = np.lexsort((what.begin_s, what.rank))
    rows = tuple(
        (
            int(what.rank[i]), what.names[what.what[i]], *_passed(what, int(i)),
            float(what.begin_s[i]), float(what.end_s[i]),
        )
        for i in order
    )  # fmt: skip
    return Table("Every slice of the simulated step", columns, rows)


def _passed(what: Slices, i: int) -> tuple[int | None, int | None]:
    return (None, None) if what.chunk[i] < 0 else (int(what.chunk[i]), int(what.microbatch[i]))


def windows(s: Simulation, most: int) -> list[tuple[float, float]]:
    """The stretches of a step to show: all of it, or start, middle and end with ``most`` passes of a rank in all.

    The start goes on until the first rank has a gradient back, the end begins where the last of its forwards ends,
    each cut to two fifths of the room; both are as wide, so that the middle has at least a fifth.
    """
    g, step = s.graph, s.step_time_s
    per_rank = len(g) / g.pp
    if per_rank <= most:
        return [(0.0, step)]
    room = step * most / per_rank
    first = g.rank == 0
    forward = first & (g.kind == 0)
    filled = float(s.end_s[first & ~forward].min())
    drained = step - float(s.end_s[forward].max())
    start, end = (min(span * 1.02, 0.4 * room) for span in (filled, drained))
    middle = max(room - start - end, 0.2 * room)
    at = (start + step - end - middle) / 2.0
    return [(0.0, start), (at, at + middle), (step - end, step)]


def _draw(sheet: Sheet, what: Slices, s: Simulation) -> None:
    shown = windows(s, _MOST_PASSES[sheet.wide])
    ranks = s.graph.pp
    row_px = 28.0 if ranks <= 4 else 20.0 if ranks <= 16 else max(9.0, 320.0 / ranks)
    spans = [b - a for a, b in shown]
    axes = sheet.axes(
        ranks * row_px + 90.0, columns=len(shown), width_ratios=spans, sharey=True, squeeze=False
    )[0]  # fmt: skip
    sheet.figure.get_layout_engine().set(wspace=0.015, w_pad=0.01)
    scale = 0.84 * sheet.width_px / sum(spans)
    for at, (axis, window) in enumerate(zip(axes, shown, strict=True)):
        _panel(axis, what, window, scale, (at, len(shown)))
        axis.set_ylim(ranks - 0.4, -0.6)
    every = -(-ranks // max(1, int(ranks * row_px / 14.0)))
    axes[0].set_yticks(range(0, ranks, every), [f"rank {r}" for r in range(0, ranks, every)])
    sheet.figure.supxlabel("seconds from the start of the step", fontsize=12, color=MUTED)
    present = dict.fromkeys(what.names[w] for w in np.unique(what.what))
    sheet.legend([swatch(fill, name) for name, fill in {**_FILLS, **_END_FILLS}.items() if name in present], 5)


def _panel(axis: Any, what: Slices, window: tuple[float, float], scale: float, place: tuple[int, int]) -> None:
    """One stretch of the step: idle time as the ground, one path for all passes of a kind and shade."""
    from matplotlib.patches import PathPatch, Rectangle

    low, high = window
    ranks = int(what.rank.max()) + 1
    for rank in range(ranks):
        axis.add_patch(Rectangle((low, rank - 0.4), high - low, 0.8, facecolor=IDLE, edgecolor="none"))
    inside = (what.end_s > low) & (what.begin_s < high)
    for name, shade, chosen in _kinds(what, inside):
        colour = {**_FILLS, **_END_FILLS}[name]
        alpha = SHADE if shade else 1.0
        path = _boxes(what, chosen, window)
        axis.add_patch(PathPatch(path, facecolor=colour, alpha=alpha, edgecolor=CARD, linewidth=0.5))
    for i in np.flatnonzero(inside & (what.microbatch >= 0)):
        begin, end = max(what.begin_s[i], low), min(what.end_s[i], high)
        text = str(what.microbatch[i])
        if (end - begin) * scale >= max(_NUMBER_PX, 7.0 * len(text) + 4.0):
            axis.text((begin + end) / 2.0, what.rank[i], text, ha="center", va="center", fontsize=9, color=CARD)
    axis.set_xlim(low, high)
    _ticks(axis, window, place)


def _ticks(axis: Any, window: tuple[float, float], place: tuple[int, int]) -> None:
    """Where the stretch begins, and the step ends; wavy gaps would say less than the numbers."""
    low, high = window
    at, count = place
    ends = [low] if at < count - 1 else [low, high]
    axis.set_xticks(ends, [f"{x:.3g}" for x in ends])
    for label, side in zip(axis.get_xticklabels(), ("left", "right"), strict=False):
        label.set_ha(side)
    axis.tick_params(axis="y", length=0)
    for side in ("left", "right"):
        axis.spines[side].set_visible(False)
    if at:
        axis.axvline(low, color=LINE, linewidth=1.5, linestyle=(0, (2, 2)))


def _kinds(what: Slices, inside: NDArray[np.bool_]) -> Iterator[tuple[str, bool, NDArray[np.int64]]]:
    for code, name in enumerate(what.names):
        for shade in (False, True):
            chosen = np.flatnonzero(inside & (what.what == code) & ((what.chunk % 2 == 1) == shade))
            if len(chosen):
                yield name, shade and name in _FILLS, chosen


def _boxes(what: Slices, chosen: NDArray[np.int64], window: tuple[float, float]) -> Any:
    """One path of closed boxes, cut to the window: far smaller than a shape for each."""
    from matplotlib.path import Path

    left = np.maximum(what.begin_s[chosen], window[0])
    right = np.minimum(what.end_s[chosen], window[1])
    top, low = what.rank[chosen] - 0.4, what.rank[chosen] + 0.4
    corners = np.stack([np.stack([left, right, right, left, left], 1), np.stack([top, top, low, low, top], 1)], 2)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(chosen))
    return Path(corners.reshape(-1, 2), codes)

"""Where an answer changes: the value of a knob at which another layout becomes best, or another cluster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from scipy.optimize import brentq

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .knobs import inputs
from .points import OK, Row, make_point, solve, strategy_of
from .runner import Progress
from .study_file import StudyFile, make_file
from .whatif import Base, refusal

PRECISION = 0.01
"""Relative width to which a change is narrowed down."""

_SCAN = 9
"""Points, equally far apart in ratio, at which the range is looked at before changes are narrowed down."""
_MOST_SEARCHES = 200
_MEMORY = "cluster.accelerator.memory_bytes"
_STRIDE = PRECISION / 5.0
"""How far below the memory that a layout needs the next one is looked for, as a share; doubled while it is the same."""
_WHOLE = ("gpus", "global_batch", "seq_len", "size")

LAYOUT = ("tp", "cp", "pp", "vpp", "ep", "etp", "zero", "micro_batch_size", "recompute", "schedule")
"""Dimensions that tell two layouts apart; the rest (splits, overlaps) follows."""


@dataclass(frozen=True, slots=True)
class Change:
    """The best layout is another one from here on: somewhere in ``low`` to ``high``, most likely at ``value``.

    With memory ``value`` is where the layout ``after`` begins to fit.
    """

    value: float
    low: float
    high: float
    before: Row
    after: Row

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "value": self.value, "low": self.low, "high": self.high, "before": dict(self.before),
            "after": dict(self.after),
        }  # fmt: skip


@dataclass(slots=True)
class Searcher:
    """The best layout at any value of one path, each searched once."""

    base: Base
    path: str
    rows: dict[float, Row] = field(default_factory=dict)
    progress: Progress | None = None

    def row(self, value: float) -> Row:
        """The row of the best layout at a value. Raises InputError for a value that cannot be used."""
        if value not in self.rows:
            if len(self.rows) >= _MOST_SEARCHES:
                raise InputError(f"{self.path}: more than {_MOST_SEARCHES} searches; expected a smaller range")
            self.rows[value] = solve(make_point(0, {}, inputs(self._file(), {self.path: value})))
            if self.progress is not None:
                self.progress(len(self.rows), max(_SCAN, len(self.rows)))
        return self.rows[value]

    def settle(self, value: float, row: Row) -> None:
        """Keep what is known of a value of the memory without a search."""
        capacity = value * (1.0 - self._file().memory_margin)
        moved = {"capacity_bytes": capacity, "headroom_bytes": capacity - row["peak_memory_bytes"]}
        self.rows.setdefault(value, {**row, **moved})

    def needed_bytes(self, row: Row) -> float:
        """The least memory of an accelerator in which the layout of a row fits."""
        return float(row["peak_memory_bytes"]) / (1.0 - self._file().memory_margin) * (1.0 + 1e-9)

    def step_s(self, strategy: Strategy, value: float) -> float:
        """What one layout takes at a value, infinite where it does not fit."""
        given = inputs(self._file(), {self.path: value})
        answer = estimate(given.problem, strategy)
        return answer.step_time_s if answer.fits else math.inf

    def _file(self) -> StudyFile:
        return make_file({**self.base, "vary": {self.path: [1]}})


def changes(
    base: Base,
    path: str,
    low: float,
    high: float,
    *,
    progress: Progress | None = None,
    looked: dict[float, Row] | None = None,
) -> tuple[Change, ...]:
    """Every change of the best layout for ``path`` between two values, in order.

    The range is scanned and each change narrowed down: where two layouts cross by ``scipy.optimize.brentq`` on the
    difference of their steps, elsewhere (memory) by halving. Two changes closer together than the scan's points may
    be missed. Memory is walked downwards instead: the best layout stays the best down to the memory that it needs, so
    no search is made in between. ``looked`` is filled with the row of every value that was looked at. Raises
    InputError for a path that takes no such numbers.
    """
    _check(path, low, high)
    searcher = Searcher(base, path, {} if looked is None else looked, progress)
    if path == _MEMORY:
        return tuple(_downwards(searcher, low, high))
    ratio = (high / low) ** (1.0 / (_SCAN - 1))
    values = [low * ratio**i for i in range(_SCAN - 1)] + [high]
    found: list[Change] = []
    for left, right in pairwise(values):
        found += _between(searcher, left, right)
    return tuple(found)


def _downwards(searcher: Searcher, low: float, high: float) -> list[Change]:
    """Every change of the best layout with memory, ascending.

    Less memory rules layouts out and adds none. Where the layout stays the same but for its splits or its offload the
    next look is twice as far away, up to the scan's distance.
    """
    found: list[Change] = []
    stride, widest = _STRIDE, 1.0 - (low / high) ** (1.0 / (_SCAN - 1))
    upper = high
    while upper > low and (row := searcher.row(upper))["status"] == OK:
        edge = min(upper, searcher.needed_bytes(row))
        if edge <= low:
            break
        searcher.settle(edge, row)
        lower = max(low, edge * (1.0 - stride))
        inner = _halved(searcher, lower, edge)
        found = inner + found
        stride = _STRIDE if inner else min(2.0 * stride, max(widest, _STRIDE))
        upper = lower
    return found


def _halved(searcher: Searcher, low: float, high: float) -> list[Change]:
    """The changes between two values of the memory, narrowed down by halving."""
    before, after = searcher.row(low), searcher.row(high)
    if layout_of(before) == layout_of(after):
        return []
    if high / low <= 1.0 + PRECISION:
        return [Change(high, low, high, before, after)]
    middle = math.sqrt(low * high)
    return [*_halved(searcher, low, middle), *_halved(searcher, middle, high)]


def _between(searcher: Searcher, low: float, high: float) -> list[Change]:
    before, after = searcher.row(low), searcher.row(high)
    if layout_of(before) == layout_of(after):
        return []
    if high / low <= 1.0 + PRECISION:
        return [Change(math.sqrt(low * high), low, high, before, after)]
    middle = _crossing(searcher, before, after, low, high) or math.sqrt(low * high)
    left = max(low, middle * (1.0 - PRECISION / 2.5))
    right = min(high, middle * (1.0 + PRECISION / 2.5))
    if left > low and right < high:
        near = (layout_of(searcher.row(left)), layout_of(searcher.row(right)))
        if near == (layout_of(before), layout_of(after)):
            return [Change(middle, left, right, before, after)]
    split = math.sqrt(low * high)
    return [*_between(searcher, low, split), *_between(searcher, split, high)]


def _crossing(searcher: Searcher, before: Row, after: Row, low: float, high: float) -> float | None:
    """Where the two layouts take equally long; None where they do not cross, or one does not fit all along."""
    if before["status"] != OK or after["status"] != OK:
        return None
    one, other = strategy_of(before), strategy_of(after)

    def difference(x: float) -> float:
        return searcher.step_s(one, x) - searcher.step_s(other, x)

    return _root(difference, low, high)


def _root(f: Callable[[float], float], low: float, high: float) -> float | None:
    ends = f(low), f(high)
    if not all(map(math.isfinite, ends)) or ends[0] * ends[1] >= 0:
        return None
    root: float = brentq(f, low, high, xtol=low * PRECISION / 20, rtol=PRECISION / 20)
    return root


def even(
    base: Base,
    other: Base,
    path: str,
    low: float,
    high: float,
    metric: str = "step_time_s",
    *,
    looked: dict[float, Row] | None = None,
) -> float | None:
    """The value of ``path`` at which the best of ``base`` equals the best of ``other`` in a column of the rows.

    ``scipy.optimize.brentq`` on the logarithm of their ratio, each evaluation a whole search. None where one of them
    is better over the whole range. ``looked`` is filled with the row of every value that was searched. Raises
    InputError where either has no answer or the column is no number.
    """
    _check(path, low, high)
    searcher = Searcher(base, path, {} if looked is None else looked)
    fixed = make_file({**other, "vary": {"gpus": [1]}})
    target = _number(solve(make_point(0, {}, inputs(fixed, {}))), metric)

    def log_ratio(x: float) -> float:
        return math.log(_number(searcher.row(x), metric) / target)

    return _root(log_ratio, low, high)


def _number(row: Row, metric: str) -> float:
    if row["status"] != OK:
        raise refusal(row)
    value = row.get(metric)
    if not isinstance(value, (int, float)) or value <= 0:
        raise InputError(f"metric {metric!r}: expected a column of numbers above 0 (money needs price_per_gpu_hour)")
    return float(value)


def _check(path: str, low: float, high: float) -> None:
    if not 0 < low < high < math.inf:
        raise InputError(f"{path}: from {low:g} to {high:g}: expected two numbers above 0, the smaller first")
    if path.split(".")[-1] in _WHOLE or path.split(".")[0] in ("model", "pin", "ban", "min", "max"):
        raise InputError(f"{path}: takes whole numbers or names; expected a figure that can be cut anywhere")


def layout_of(row: Row) -> tuple[Any, ...]:
    """What tells the best layouts of two rows apart; the status where there is none."""
    if row["status"] != OK:
        return (row["status"],)
    return tuple(row[f"strategy.{name}"] for name in LAYOUT)

"""Candidates and the settings of their knobs: which of them exist, and what each costs under the even split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.evaluate import Evaluation, evaluate, least_offload
from shardwise.costmodel.problem import Array, Ints, Problem
from shardwise.costmodel.step import FULL
from shardwise.costmodel.strategy import Strategies, enum_code
from shardwise.launchers.rule import allowed

from .axes import SWITCHES, Columns
from .bounds import room_for_layers
from .space import Space

_TRIED = 7
"""Numbers of recomputed layers tried at once."""

_FEW = 3
"""Shares of the optimizer that are all opened where the request leaves no more."""

_ROUNDING = 1e-9
"""What a share may fall short of the needed one: far below a byte."""

_DUALPIPE = enum_code("schedule", "dualpipe")

_CHUNK = 1 << 17
"""Strategies evaluated at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates with their knobs at the fastest setting; arrays ``[n]``.

    ``bound_s`` holds for every setting of the knobs and every layer split. ``real``: the fastest setting is itself in
    the space; ``step_s`` and ``peak_bytes`` are then its own.
    """

    strategies: Strategies
    bound_s: Array
    step_s: Array
    peak_bytes: Array
    fits: NDArray[np.bool_]
    real: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.strategies)


@dataclass(frozen=True, slots=True)
class Opened:
    """Strategies with every knob set; arrays ``[n]``. ``parent`` indexes the candidates they came from."""

    strategies: Strategies
    parent: Ints
    bound_s: Array
    step_s: Array
    peak_bytes: Array
    fits: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.strategies)

    def take(self, where: NDArray[np.bool_] | Ints) -> Opened:
        """The rows that a mask or an index array selects."""
        return Opened(
            self.strategies.take(where), self.parent[where], self.bound_s[where], self.step_s[where],
            self.peak_bytes[where], self.fits[where],
        )  # fmt: skip

    @classmethod
    def concatenate(cls, parts: list[Opened]) -> Opened:
        """All rows of all parts, in order."""
        arrays = (np.concatenate([getattr(p, f) for p in parts]) for f in cls.__slots__[1:])
        return cls(Strategies.concatenate([p.strategies for p in parts]), *arrays)


def evaluate_chunked(problem: Problem, strategies: Strategies) -> Evaluation:
    """``evaluate`` in chunks, so that memory does not grow with the number of strategies."""
    n = len(strategies)
    if n <= _CHUNK:
        return evaluate(problem, strategies)
    parts = [evaluate(problem, strategies.take(np.arange(a, min(a + _CHUNK, n)))) for a in range(0, n, _CHUNK)]
    return Evaluation(*(np.concatenate([getattr(p, f) for p in parts]) for f in Evaluation.__slots__))


def candidates(space: Space) -> Candidates:
    """Walk the space and evaluate every candidate at the fastest setting of its knobs."""
    blocks = list(space.blocks())
    strategies = Strategies(**join(blocks)) if blocks else Strategies.empty()
    del blocks
    e = evaluate_chunked(space.problem, strategies)
    real = allowed(space.problem, strategies, space.late_rules) & space.even_allowed(strategies)
    return Candidates(strategies, e.lower_bound_s, e.step_time_s, e.peak_memory_bytes, e.fits & real, real)


def join(blocks: list[Columns]) -> Columns:
    """Blocks of columns as one."""
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def can_fit(space: Space, rows: Strategies) -> NDArray[np.bool_]:
    """Which candidates some setting of the knobs and some layer split may fit: a necessary condition, ``[n]``.

    The setting that needs least memory: everything recomputed, as much offloaded as may be.
    """
    modes = space.axes.knob_values("recompute")
    offloads = space.axes.knob_values("offload_optimizer")
    away = space.axes.knob_values("offload_activations")
    if not len(modes) or not len(offloads) or not len(away):
        return np.zeros(len(rows), dtype=np.bool_)
    least = rows.replace(recompute=modes.max(), offload_optimizer=offloads.max(), offload_activations=away.max())
    return room_for_layers(space.problem, least)


def open_candidates(space: Space, found: Candidates, index: Ints) -> Opened:
    """Every setting of the knobs of some candidates that no other of theirs beats in both time and memory.

    Full recomputation appears once per setting of the rest, with the fewest layers that fit under the even split (all
    layers where not even that fits).
    """
    parts = [(rows, parent) for rows, parent in _settings(space, found, index) if len(rows)]
    rows = Strategies.concatenate([rows for rows, _ in parts])
    parent = np.concatenate([parent for _, parent in parts]) if parts else np.empty(0, dtype=np.int64)
    full = np.flatnonzero(rows.recompute == FULL)
    if len(full):
        layers = rows.recompute_layers.copy()
        layers[full] = fewest_layers(space, rows.take(full)).recompute_layers
        rows = rows.replace(recompute_layers=layers)
        mixed, which = _mixtures(space, rows.take(full))
        rows, parent = Strategies.concatenate([rows, mixed]), np.concatenate([parent, parent[full[which]]])
        fine = space.allows(rows)
        rows, parent = rows.take(fine), parent[fine]
    e = evaluate_chunked(space.problem, rows)
    fits = e.fits & space.even_allowed(rows)
    return Opened(rows, parent, e.lower_bound_s, e.step_time_s, e.peak_memory_bytes, fits)


def _settings(space: Space, found: Candidates, index: Ints) -> Iterator[tuple[Strategies, Ints]]:
    """Strategies for each mode of recomputation and share offloaded, with the most switches on that rules allow."""
    parents = found.strategies.take(index)
    for full in (False, True):  # rules look at those that recompute layers with other numbers of them
        parts: list[tuple[Strategies, Ints]] = []
        for mode, away in product(*map(space.axes.knob_values, ("recompute", "offload_activations"))):
            if (mode == FULL) == full:
                rows = parents.replace(recompute=mode, offload_activations=away, recompute_layers=-1)
                parts += [(rows.take(at).replace(offload_optimizer=s), index[at]) for s, at in _shares(space, rows)]
        if parts:
            yield from _switched(
                space, Strategies.concatenate([rows for rows, _ in parts]), np.concatenate([at for _, at in parts])
            )


def _shares(space: Space, rows: Strategies) -> Iterator[tuple[Array | float, Ints]]:
    """Shares of the optimizer to offload, and the rows that are worth opening with each.

    The least and the most of all; between them the least that fits under the even split (``_mixtures`` has it where
    layers are recomputed as well) and, for other splits of pipelines that do not fit without, quarters.
    """
    values = space.axes.knob_values("offload_optimizer")
    everything = np.arange(len(rows))
    for share in values if len(values) <= _FEW else values[[0, -1]]:
        yield float(share), everything
    if len(values) <= _FEW:
        return
    some = rows.replace(offload_optimizer=values[1])
    full = bool(np.any(rows.recompute == FULL))
    able = np.flatnonzero(_any_layers(space, some) if full else space.allows(some))
    if not len(able):
        return
    if not full:
        share = least_share(values, least_offload(space.problem, rows.take(able)))
        between = (share > values[0]) & (share < values[-1])
        yield share[between], able[between]
        able = able[~(share <= values[0])]
    piped = able[rows.pp[able] > 1]
    for share in values[[len(values) // 4, len(values) // 2, 3 * len(values) // 4]] if len(piped) else ():
        yield float(share), piped


def least_share(values: Array, need: Array) -> Array:
    """The least of some ascending shares that is not under each needed one; NaN where none is."""
    at = np.searchsorted(values, need - _ROUNDING)
    return np.where(at < len(values), values[np.minimum(at, len(values) - 1)], np.nan)


def _mixtures(space: Space, rows: Strategies) -> tuple[Strategies, Ints]:
    """Recomputation in full with the least share of the optimizer that fits, and the rows they vary.

    Seconds and bytes rise and fall in proportion to either, so the best mixture takes as much as it can of the cheaper
    one and the rest of the other: all layers or one step fewer than fit with nothing offloaded, or as many as fit with
    all offloaded.
    """
    values = space.axes.knob_values("offload_optimizer")
    if len(values) <= _FEW:
        return Strategies.empty(), np.empty(0, dtype=np.int64)
    ends = np.flatnonzero((rows.offload_optimizer == values[0]) | (rows.offload_optimizer == values[-1]))
    parts, which = [rows.take(ends)], [ends]
    if space.axes.counts_layers and not space.constraints.values("recompute_layers"):
        lone = np.flatnonzero(rows.offload_optimizer == values[0])
        few = rows.take(lone)
        most = _even_share(space.problem, few)
        unit = np.where(space.allows(few.replace(recompute_layers=1)), 1, few.vpp)
        layers = np.where(few.recompute_layers < 0, -(-most // unit) * unit, few.recompute_layers) - unit
        parts.append(few.replace(recompute_layers=layers).take(layers > 0))
        which.append(lone[layers > 0])
    mixed, origin = Strategies.concatenate(parts), np.concatenate(which)
    able = np.flatnonzero(space.allows(mixed.replace(offload_optimizer=values[1])))
    mixed, origin = mixed.take(able), origin[able]
    share = least_share(values, least_offload(space.problem, mixed))
    between = (share > values[0]) & (share < values[-1])
    return mixed.replace(offload_optimizer=share).take(between), origin[between]


def _switched(space: Space, parents: Strategies, index: Ints) -> Iterator[tuple[Strategies, Ints]]:
    """Strategies with as many of their overlap switches on as rules allow."""
    on = [getattr(parents, name) for name in SWITCHES]
    done = np.zeros((len(index), 8), dtype=np.bool_)
    taken = np.zeros((len(index), 8), dtype=np.bool_)
    full = bool(np.any(parents.recompute == FULL))
    for mask in (7, 3, 5, 6, 1, 2, 4, 0):
        now = [values & bool(mask >> bit & 1) for bit, values in enumerate(on)]
        code = now[0] + 2 * now[1] + 4 * now[2]
        beaten = np.any(taken & _superset[code], axis=1) | done[np.arange(len(index)), code]
        todo = np.flatnonzero(~beaten)
        if not len(todo):
            continue
        done[todo, code[todo]] = True
        rows = parents.take(todo).replace(**{name: values[todo] for name, values in zip(SWITCHES, now, strict=True)})
        fine = _any_layers(space, rows) if full else space.allows(rows)
        taken[todo[fine], code[todo[fine]]] = True
        yield rows.take(fine), index[todo[fine]]


_superset = np.array([[a & b == b for a in range(8)] for b in range(8)])
"""``_superset[b, a]``: every switch on in code ``b`` is on in code ``a``."""


def _any_layers(space: Space, rows: Strategies) -> NDArray[np.bool_]:
    """Which strategies may recompute all layers, one, or one per model chunk."""
    keep = space.allows(rows)
    for value in _layer_steps(space, rows) if space.axes.counts_layers else ():
        keep |= space.allows(rows.replace(recompute_layers=value))
    for wished in space.constraints.values("recompute_layers"):
        keep |= space.allows(rows.replace(recompute_layers=int(wished)))
    return keep


def _layer_steps(space: Space, rows: Strategies) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.ones(len(rows), dtype=np.int64), np.asarray(rows.vpp)


def _even_share(problem: Problem, rows: Strategies) -> NDArray[np.int64]:
    """Layers that the fullest rank of an even split holds; with dualpipe those of its mirror image too, ``[n]``."""
    return np.asarray(-(-problem.model.num_layers // rows.pp) * np.where(rows.schedule == _DUALPIPE, 2, 1))


def fewest_layers(space: Space, rows: Strategies) -> Strategies:
    """The same strategies with the fewest recomputed layers that fit: memory falls as layers rise.

    All layers (-1) where nothing less fits. Several numbers of layers are tried at once: a few large evaluations are
    quicker than many small ones.
    """
    pinned = space.constraints.values("recompute_layers")
    if pinned or not space.axes.counts_layers:
        return _first_fitting(space, rows, [int(v) for v in pinned if int(v) > 0] + [-1])
    unit = np.where(space.allows(rows.replace(recompute_layers=1)), 1, rows.vpp)
    most = _even_share(space.problem, rows)
    low, high = np.zeros(len(rows), dtype=np.int64), -(-most // unit)
    while len(todo := np.flatnonzero(high - low > 1)):
        span = high[todo] - low[todo]
        share = np.arange(1, _TRIED + 1)[:, None] / (_TRIED + 1)
        points = low[todo] + np.clip(np.rint(share * span), 1, span - 1).astype(np.int64)
        tried = rows.take(np.tile(todo, _TRIED)).replace(recompute_layers=(points * unit[todo]).ravel())
        good = (evaluate_chunked(space.problem, tried).fits & space.allows(tried)).reshape(points.shape)
        high[todo] = np.where(good, points, high[todo]).min(axis=0)
        low[todo] = np.where(~good & (points < high[todo]), points, low[todo]).max(axis=0)
    return rows.replace(recompute_layers=np.where(high * unit >= most, -1, high * unit))


def _first_fitting(space: Space, rows: Strategies, values: list[int]) -> Strategies:
    """The first of some numbers of layers, ascending with -1 (all) last, that fits; the last where none does."""
    chosen = np.full(len(rows), values[-1], dtype=np.int64)
    open_ = np.ones(len(rows), dtype=np.bool_)
    for value in sorted(values, key=lambda v: (v < 0, v)):
        tried = rows.replace(recompute_layers=value)
        good = open_ & space.allows(tried) & evaluate_chunked(space.problem, tried).fits
        chosen[good] = value
        open_ &= ~good
    return rows.replace(recompute_layers=chosen)

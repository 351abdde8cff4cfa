"""Interleaved splits that attain the least turns: where to cut the layers so that every rank fits, if that can be.

A rank's chunks never take longer than their turns together, so the turns alone pace the pipeline. Each turn is cut by
dynamic programming, given what the other turns put on the ranks, a few times over. What does not fit even so is left to
CP-SAT.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.strategy import Strategy

from .cuts import running_counts
from .rows import KindRows
from .turns import Turns

_ROUNDING = 1e-12

_SWEEPS = 3
"""Times that every turn is cut again beside the others."""

_OVERFULL = 1e6
"""Weight of the square of what is over a rank's room, against that of what it holds."""


def quickest_turns(
    problem: Problem, strategy: Strategy, rows: KindRows, turns: Turns, fill_s: float
) -> tuple[int, ...] | None:
    """Layers of each virtual stage for the least turns that fill the pipeline for ``fill_s`` at most.

    None where there are none. Nothing is recomputed in full.
    """
    ends = _turn_ends(turns, fill_s)
    if ends is None:
        return None
    room = _Room.of(problem, rows, strategy.pp)
    stops = [0, *ends, len(room.run_s) - 1]
    alone = [
        _Chunks.of(room, start, end, turn == 0, turn == strategy.vpp - 1, fill_s)
        for turn, (start, end) in enumerate(pairwise(stops))
    ]
    held = np.zeros((strategy.vpp, strategy.pp))
    out: list[list[int]] = [[] for _ in alone]
    for sweep in range(_SWEEPS):
        for turn, chunks in enumerate(alone):
            beside = held.sum(axis=0) - held[turn]
            # At first the turns to come count as much as those there are.
            scale = (turn + 1) / strategy.vpp if sweep == 0 else 1.0
            out[turn], held[turn] = chunks.cut(beside, room.room_bytes * scale)
        if (held.sum(axis=0) <= room.room_bytes).all():
            break
    return tuple(n for sizes in out for n in sizes)


def _turn_ends(turns: Turns, fill_s: float) -> list[int] | None:
    """The layers that the turns but the last end at."""
    reached = turns.reached(fill_s)
    slowest, whole = turns.last
    together = reached[-1] + np.maximum(slowest, whole - fill_s)
    end = int(np.argmin(together))
    if not np.isfinite(together[end]):
        return None
    ends = [end]
    if turns.inner is not None:
        inner = np.maximum(turns.inner[0], turns.inner[1] - fill_s)
        for before in reached[-2::-1]:
            ends.insert(0, int(np.argmin(before + inner[:, ends[0]])))
    return ends


@dataclass(frozen=True, slots=True)
class _Room:
    """What layers take and ranks have: running seconds ``[i]`` and bytes ``[rank, i]`` of the first ``i`` layers."""

    run_s: Array
    held_bytes: Array
    room_bytes: Array
    first_s: float
    last_s: float

    @classmethod
    def of(cls, problem: Problem, rows: KindRows, pp: int) -> _Room:
        counts, k = running_counts(problem), rows.num_kinds
        lost = 1.0 + rows.fragmentation
        flight = lost * rows.flight[:, 0]
        each = rows.state[:k, 0][None] + flight[:, None] * rows.saved[:k, 0][None]
        scratch = float(rows.workspace[rows.used, 0].max())
        room = np.full(pp, rows.capacity - float(rows.fixed[0]) - lost * scratch)
        room[0] -= float(rows.state[k, 0])
        mtp = rows.num_mtp * float(rows.state[k + 2, 0] + flight[-1] * rows.saved[k + 2, 0])
        room[-1] -= float(rows.state[k + 1, 0]) + mtp + lost * float(rows.workspace[k + 1, 0])
        return cls(counts @ rows.time[:k, 0], each @ counts.T, room, float(rows.first_s[0]), float(rows.last_s[0]))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks that one turn may be cut into: ``[rank, i, j]`` whether one may be, and the bytes it takes."""

    fine: Array
    held_bytes: Array

    @classmethod
    def of(cls, room: _Room, start: int, end: int, first: bool, last: bool, fill_s: float) -> _Chunks:
        """For the layers ``start`` to ``end``, with the model's ends where the turn has them."""
        run, held = room.run_s[start : end + 1], room.held_bytes[:, start : end + 1]
        number = np.arange(len(run))
        layers = number[None, :] - number[:, None]
        seconds = np.where(layers >= 1, run[None, :] - run[:, None], np.inf)
        each = np.repeat(seconds[None], len(held), axis=0)
        empty = np.where(layers >= 0, run[None, :] - run[:, None], np.inf)
        if first:
            each[0] = empty + room.first_s
        if last:
            each[-1] = empty + room.last_s
        whole = float(run[-1] - run[0]) + first * room.first_s + last * room.last_s
        after = np.full(len(run), np.inf)
        after[-1] = -np.inf
        for chunk in each[::-1]:
            after = np.maximum(chunk, after[None, :]).min(axis=1)
        limit = max(float(after[0]), whole - fill_s) * (1.0 + _ROUNDING)
        return cls(np.where(each <= limit, 0.0, np.inf), held[:, None, :] - held[:, :, None])

    def cut(self, beside: Array, room: Array) -> tuple[list[int], Array]:
        """Layers and bytes of each chunk: the least over the rooms, then the most even, beside bytes held already."""
        share = (beside[:, None, None] + self.held_bytes) / np.maximum(room, 1.0)[:, None, None]
        price = self.fine + share**2 + _OVERFULL * np.maximum(0.0, share - 1.0) ** 2
        count, n = len(price), price.shape[1]
        after = np.full((count + 1, n), np.inf)
        after[count, -1] = 0.0
        for c in range(count - 1, -1, -1):
            after[c] = (price[c] + after[c + 1][None, :]).min(axis=1)
        cuts = [0]
        for c in range(count):
            cuts.append(int(np.argmin(price[c, cuts[-1]] + after[c + 1])))
        held = self.held_bytes[np.arange(count), cuts[:-1], cuts[1:]]
        return np.diff(cuts).tolist(), held

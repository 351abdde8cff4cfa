"""Who waits for whom in a step, and when everything ends: longest paths over arrays, level by level.

A pass waits for the one before it on its rank and for the result that it needs from another stage. The graph depends on
the schedule's numbers alone, so it is built once; a simulation is then a walk over its levels, all passes of a level
and all trials at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..problem import Array, Ints
from .orders import BACKWARD, FORWARD, WEIGHT, WHOLE, Op, Order, orders, positions

KINDS = (FORWARD, BACKWARD, WEIGHT, WHOLE)
_PASS = {FORWARD: "forward", BACKWARD: "backward", WHOLE: "backward"}


@dataclass(frozen=True, slots=True)
class Graph:
    """The passes of a step, ``[n]`` arrays sorted by level: all that a pass waits for stands before it.

    ``before`` and ``awaited`` are the indices of the previous pass on the rank and of the one that delivers its input,
    ``n`` where there is none.
    """

    pp: int
    chunks: int
    """Chunks of each rank."""
    rank: Ints
    kind: Ints
    """Index into ``KINDS``."""
    chunk: Ints
    stage: Ints
    """Position of the chunk in the model."""
    microbatch: Ints
    before: Ints
    awaited: Ints
    joins: Ints
    """What the backward awaits that a forward runs interleaved with, ``n`` for none."""
    filling: NDArray[np.bool_]
    """Forwards before a rank's first backward, and backwards after its last forward, that wait for another rank."""
    levels: tuple[tuple[int, int, bool], ...]
    """Slices of equal level, and whether any pass in one joins another."""
    last: Ints
    """Each rank's last pass, ``[pp]``."""
    first: Ints
    """Each rank's first pass, ``[pp]``."""

    def __len__(self) -> int:
        return len(self.rank)

    def ends_s(self, durations_s: Array, delay_s: Array | float = 0.0, start_s: Array | float = 0.0) -> Array:
        """When each pass ends, ``[n, trials]`` or ``[n]`` as ``durations_s``.

        ``delay_s`` is added between a pass and the one whose result it awaits, ``start_s[rank]`` before a rank's first.
        """
        n = len(self)
        duration = np.array(durations_s, dtype=np.float64, copy=True)
        shape = (-1,) + (1,) * (duration.ndim - 1)
        ready = np.zeros((n + 1, *duration.shape[1:]))
        begins = np.zeros_like(duration)
        begins[self.first] = np.reshape(start_s, shape) if np.ndim(start_s) == 1 else start_s
        late = np.broadcast_to(delay_s if np.ndim(delay_s) != 1 else np.reshape(delay_s, shape), duration.shape)
        some = bool(np.any(late))
        for a, b, joined in self.levels:
            got = ready[self.awaited[a:b]]
            if some:
                got += late[a:b]
            if joined:
                np.maximum(got, ready[self.joins[a:b]], out=got)
            np.maximum(got, ready[self.before[a:b]], out=got)
            np.maximum(got, begins[a:b], out=got)
            np.add(got, duration[a:b], out=ready[a:b])
        return ready[:n]


@lru_cache(maxsize=64)
def graph(schedule: str, pp: int, vpp: int, microbatches: int, group: int = 0, pending: float = 1.0) -> Graph:
    """The graph of a schedule; arguments as ``orders``, and InputError as it raises."""
    return build(orders(schedule, pp, vpp, microbatches, group, pending), positions(schedule, pp, vpp))


def build(order: Sequence[Order], where: Sequence[Sequence[int]]) -> Graph:
    """The graph of any orders; ``where[rank][chunk]`` are positions in the model.

    Raises ValueError where a pass is listed twice or where they wait for each other in a circle.
    """
    ops = [(rank, op) for rank, mine in enumerate(order) for op in mine]
    before, awaited, joins = _edges(ops, where)
    level = _levels(before, awaited, joins)
    by_level = np.argsort(level, kind="stable")
    n = len(ops)
    place = np.empty(n + 1, dtype=np.int64)
    place[by_level], place[n] = np.arange(n), n
    edges = [int(e) for e in np.concatenate([[0], np.cumsum(np.bincount(level))])]
    joined = place[np.array(joins)[by_level]]
    crosses = np.array([a < n and ops[a][0] != r for a, (r, _) in zip(awaited, ops, strict=True)])
    filling = np.array([f for mine in order for f in _filling(mine)])
    last = np.cumsum([len(mine) for mine in order]) - 1
    return Graph(
        pp=len(order),
        chunks=len(where[0]),
        rank=np.array([r for r, _ in ops])[by_level],
        kind=np.array([KINDS.index(op.kind) for _, op in ops])[by_level],
        chunk=np.array([op.chunk for _, op in ops])[by_level],
        stage=np.array([where[r][op.chunk] for r, op in ops])[by_level],
        microbatch=np.array([op.microbatch for _, op in ops])[by_level],
        before=place[np.array(before)[by_level]],
        awaited=place[np.array(awaited)[by_level]],
        joins=joined,
        filling=(filling & crosses)[by_level],
        levels=tuple((a, b, bool((joined[a:b] < n).any())) for a, b in pairwise(edges)),
        last=place[last],
        first=place[np.concatenate([[0], last[:-1] + 1])],
    )


def _edges(ops: list[tuple[int, Op]], where: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """What each pass waits for: the one before it on its rank, its input, its partner's input; ``len(ops)``: none."""
    n, stages = len(ops), 1 + max(max(chunks) for chunks in where)
    index: dict[tuple[str, int, int], int] = {}
    for i, (rank, op) in enumerate(ops):
        key = (_PASS.get(op.kind, WEIGHT), where[rank][op.chunk], op.microbatch)
        if key in index:
            raise ValueError(f"{op} of rank {rank} is listed twice")
        index[key] = i + op.joined  # its result is there when its partner ends
    before = [i - 1 if i and ops[i - 1][0] == rank else n for i, (rank, _) in enumerate(ops)]
    awaited = [_needed(op, where[rank][op.chunk], stages, index, n) for rank, op in ops]
    joins = [awaited[i + 1] if op.joined else n for i, (_, op) in enumerate(ops)]
    return before, awaited, joins


def _needed(op: Op, stage: int, stages: int, index: dict[tuple[str, int, int], int], none: int) -> int:
    """What a pass waits for: the stage before it, the stage after it, or its own data gradient."""
    if op.kind == FORWARD:
        return none if stage == 0 else index["forward", stage - 1, op.microbatch]
    if op.kind == WEIGHT:
        return index["backward", stage, op.microbatch]
    if stage == stages - 1:
        return index["forward", stage, op.microbatch]
    return index["backward", stage + 1, op.microbatch]


def _levels(*needs: list[int]) -> Ints:
    """Length of the longest chain of passes before each one. ValueError where the chains close."""
    n = len(needs[0])
    level, waits = [0] * n, [0] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for i, mine in enumerate(zip(*needs, strict=True)):
        for need in set(mine) - {n}:
            after[need].append(i)
            waits[i] += 1
    ready = [i for i in range(n) if not waits[i]]
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        for j in after[i]:
            level[j] = max(level[j], level[i] + 1)
            waits[j] -= 1
            if not waits[j]:
                ready.append(j)
    if done < n:
        raise ValueError("the passes wait for each other in a circle")
    return np.array(level)


def _filling(mine: Order) -> list[bool]:
    """Which passes of a rank fill the pipeline (before its first backward) or drain it (after its last forward)."""
    kinds = [op.kind for op in mine]
    backwards = [i for i, kind in enumerate(kinds) if kind in (BACKWARD, WHOLE)]
    last = max(i for i, kind in enumerate(kinds) if kind == FORWARD)
    return [
        (kind == FORWARD and i < backwards[0]) or (kind in (BACKWARD, WHOLE) and i > last)
        for i, kind in enumerate(kinds)
    ]

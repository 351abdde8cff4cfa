"""The least time that the turns of an interleaved pipeline take together, by dynamic programming.

While one rank runs its k-th chunk the others run theirs, so a turn lasts as long as its slowest chunk. The chunks of a
turn are consecutive in the model: over every way to cut the layers into turns and the turns into chunks, memory and the
sums of each rank left aside, the least sum of turns bounds the pipeline from below.
"""

from __future__ import annotations

import numpy as np

from shardwise.costmodel.problem import Array, Problem
from shardwise.costmodel.strategy import Strategy

from .cuts import running_counts
from .rows import KindRows


def least_turns_s(problem: Problem, strategy: Strategy, rows: KindRows) -> float:
    """Seconds per micro-batch of all turns together, at least, for the rows of one interleaved strategy."""
    run = np.cumsum(np.diff(running_counts(problem), axis=0) @ rows.time[: rows.num_kinds, 0])
    run = np.concatenate([[0.0], run])
    stretch = run[None, :] - run[:, None]
    held = np.arange(len(run))[None, :] - np.arange(len(run))[:, None]
    chunk = np.where(held >= 1, stretch, np.inf)
    # The model's first and last chunk may hold nothing but the embedding or the head.
    first = np.where(held[0] >= 0, stretch[0] + rows.first_s[0], np.inf)
    last = np.where(held[:, -1] >= 0, stretch[:, -1] + rows.last_s[0], np.inf)
    inner, others = _split(chunk, strategy.pp), strategy.pp - 1
    rest = _split(chunk, others)
    reached = np.maximum(first[:, None], rest).min(axis=0)
    for _ in range(strategy.vpp - 2):
        reached = (reached[:, None] + inner).min(axis=0)
    final = np.maximum(rest, last[None, :]).min(axis=1)
    return float((reached + final).min())


def _split(chunk: Array, parts: int) -> Array:
    """The least slowest of ``parts`` consecutive chunks from ``i`` to ``j``, ``[i, j]``; squares as in fast powers."""
    out: Array | None = None
    while parts:
        if parts & 1:
            out = chunk if out is None else _joined(out, chunk)
        parts >>= 1
        if parts:
            chunk = _joined(chunk, chunk)
    assert out is not None
    return out


def _joined(left: Array, right: Array) -> Array:
    """Stretches in two parts, cut where the slower part is fastest."""
    out = np.empty_like(left)
    for i in range(len(left)):
        out[i] = np.maximum(left[i][:, None], right).min(axis=0)
    return out

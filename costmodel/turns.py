"""What uneven virtual stages add to an interleaved pipeline: ranks take turns, each as long as its slowest chunk."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .group import SELECTIVE, Group
from .problem import Array


def uneven_turns_s(group: Group, base: Array, again: Array) -> tuple[Array, Array]:
    """``turns_s`` for each strategy of a group, ``[n]`` each, from its ranks' passes and recomputation ``[rank, n]``.

    Selective recomputation is a part of every layer and so of its chunk; full recomputation of some of a rank's layers
    lengthens its turns in proportion.
    """
    n = len(group.strategies)
    if group.schedule != "interleaved":
        return np.zeros(n), np.zeros(n)
    t, selective = group.table, group.strategies.recompute == SELECTIVE
    passes = np.sum(group.passes, axis=0)
    longer = (base + again).max(axis=0) / base.max(axis=0)
    plain = [np.take(x, group.key) * longer for x in turns_s(group, passes)]
    if not selective.any():
        return plain[0], plain[1]
    whole = [np.take(x, group.key) for x in turns_s(group, passes + t.selective)]
    return np.where(selective, whole[0], plain[0]), np.where(selective, whole[1], plain[1])


def turns_s(group: Group, seconds: Array) -> tuple[Array, Array]:
    """Seconds that uneven virtual stages add to each micro-batch, and to filling the pipeline, ``[u]`` each.

    Ranks take turns, each as long as its slowest chunk: together they exceed the slowest rank's own work unless every
    turn is paced by that rank. And the last rank cannot begin its k-th turn before the first micro-batch has passed the
    k-th chunks of all others: the longest turn's other chunks are idle time. ``seconds`` ``[kind, u]``.
    """
    turns = Counter(map(tuple, group.chunks.reshape(group.vpp, -1).tolist()))
    alike = sorted(turns)
    each = np.array(alike).reshape(len(alike), group.pp, -1) @ seconds
    paced = np.array([turns[turn] for turn in alike]) @ each.max(axis=1)
    stagger = np.maximum(0.0, paced - (group.chunks.sum(axis=0) @ seconds).max(axis=0))
    return stagger, (each.sum(axis=1) - each.max(axis=1)).max(axis=0)

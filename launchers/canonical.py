"""One spelling for every strategy: two that mean the same layout are equal once they are canonical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.costmodel.splits import chunk_ranks, even_split, layers_by_rank
from shardwise.costmodel.strategy import RANK_ORDERS, Strategy


def canonical(strategy: Strategy, num_layers: int) -> Strategy:
    """The strategy without what has no effect: an explicit even split, kinds of parallelism whose degree is 1 …

    What the launch rules refuse keeps the spelling that it has.
    """
    s = strategy
    even = even_split(num_layers, s.pp * s.vpp)
    split = s.layers_per_stage or even
    layers, per_stage = _recomputed(s, split)
    whole = s.zero == 0 or s.zero_group >= s.dp * s.cp
    return replace(
        s,
        layers_per_stage=None if split == even else split,
        recompute_layers=layers,
        recompute_per_stage=per_stage,
        cp_comm=s.cp_comm if s.cp > 1 else "p2p",
        ulysses=s.ulysses if s.cp > 1 else 1,
        zero_group=0 if whole else s.zero_group,
        rank_order=s.rank_order if s.pp > 1 and s.dp > 1 else RANK_ORDERS[0],
    )


def _recomputed(s: Strategy, split: Sequence[int]) -> tuple[int, tuple[int, ...] | None]:
    """``recompute_layers`` and ``recompute_per_stage`` in their simplest spelling."""
    if s.recompute != "full" or (s.recompute_layers < 0 and s.recompute_per_stage is None):
        return -1, None
    if len(split) != len(chunk_ranks(s.pp, s.vpp, s.schedule)):
        return s.recompute_layers, s.recompute_per_stage  # a rule refuses it: nobody knows what its ranks hold
    held = list(layers_by_rank(split, s.pp, s.vpp, s.schedule))
    wanted = list(s.recompute_per_stage or (min(s.recompute_layers, h) for h in held))
    if wanted == held:
        return -1, None
    count = max(wanted)
    return (count, None) if [min(count, h) for h in held] == wanted else (-1, tuple(wanted))

"""Strategies that share a pipeline shape, and how many layers of each kind their ranks hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .layers import LayerTable
from .problem import Array, Ints, Problem
from .strategy import Strategies, enum_code

SELECTIVE, FULL = enum_code("recompute", "selective"), enum_code("recompute", "full")


@dataclass(frozen=True, slots=True)
class Group:
    """Strategies that share pp, vpp, schedule and layer split; ``key[n]`` is their column of the layer table."""

    problem: Problem
    table: LayerTable
    strategies: Strategies
    key: Ints
    counts: Array
    """Kinds on each rank considered, ``[rank, kind]``."""
    ranks: Ints
    """Pipeline rank of each row of ``counts``."""
    repeats: Array
    """Pipeline ranks that each row stands for."""
    pp: int
    vpp: int
    schedule: str
    chunks: Array
    """Kinds on each virtual stage, ``[vpp, pp, kind]``."""
    passes: tuple[Array, Array, Array]
    """Seconds of forward, data gradient and weight gradient of each kind, all parts together, ``[kind, u]`` each."""

    def per_rank(self, rows: Array) -> Array:
        """A table ``[kind, u]`` summed over each rank's layers: ``[rank, n]``."""
        return np.take(self.counts @ rows, self.key, axis=1)

    @property
    def layer_rows(self) -> slice:
        """Rows of the table that are transformer layers (what recomputation applies to)."""
        return slice(0, self.table.embedding)

    @property
    def layers(self) -> Array:
        """Transformer layers on each rank, ``[rank, 1]``; MTP layers count."""
        both = self.counts[:, self.layer_rows].sum(axis=1) + self.counts[:, self.table.mtp]
        return np.asarray(both[:, None])

    @property
    def share(self) -> float:
        """Part of a rank's layers that one micro-batch passes through: half under DualPipe's two directions."""
        return 0.5 if self.schedule == "dualpipe" else 1.0


def passes_of(table: LayerTable) -> tuple[Array, Array, Array]:
    """``Group.passes`` of a table: summed once for all groups that share it."""
    return table.forward.sum(axis=0), table.backward.sum(axis=0), table.weight.sum(axis=0)


def at_rank(values: Array, ranks: Ints) -> Array:
    """The value of one rank of each strategy, ``[n]``, from those of all ranks ``[rank, n]``."""
    return np.asarray(values[0] if len(values) == 1 else values[ranks, np.arange(values.shape[1])])


def recompute_share(group: Group, per_rank: Array | None = None) -> Array:
    """Share of each rank's layers recomputed in full, ``[rank, n]``; ``per_rank`` overrides the strategies' number."""
    s = group.strategies
    wanted = np.where(s.recompute_layers < 0, np.inf, s.recompute_layers)[None, :]
    if per_rank is not None:
        wanted = per_rank[:, None].astype(np.float64)
    share = np.minimum(wanted, group.layers) / np.maximum(group.layers, 1.0)
    return np.where(s.recompute[None, :] == FULL, share, 0.0)

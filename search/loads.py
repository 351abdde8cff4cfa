"""What a pipeline rank costs by the layers it holds: seconds of its passes, and what memory has it recompute.

The cost model's own sums (``costmodel.step``), for one strategy and any number of possible ranks at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.boundary import p2p_s
from shardwise.costmodel.problem import Array, Ints
from shardwise.costmodel.strategy import Strategy

from .rows import KindRows


@dataclass(frozen=True, slots=True)
class Settled:
    """Ranks with their recomputation settled; arrays of one shape. ``total`` is inf where a rank does not fit."""

    forward: Array
    backward: Array
    """Data gradient and what is recomputed for it."""
    weight: Array
    total: Array
    again: Array
    """Layers recomputed in full."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Stretches of layers: ``sums[table, ...]`` of ``Loads.tables``, and the largest transients among their kinds."""

    sums: Array
    workspace: Array
    replay: Array

    def beside(self, other: Parts) -> Parts:
        """Every stretch of these with every one of the others, on one rank: ``[..., i, j]``."""
        return Parts(
            self.sums[:, :, None] + other.sums[:, None, :],
            np.maximum(self.workspace[:, None], other.workspace[None]),
            np.maximum(self.replay[:, None], other.replay[None]),
        )


@dataclass(frozen=True, slots=True)
class Loads:
    """One strategy's figures by kind of layer (``KindRows`` of its column) and the limits on its ranks."""

    rows: KindRows
    column: int
    full: bool
    number: int | None
    """Layers that every rank recomputes, or all where it has fewer; None: as few on each as fit."""
    params_below: float
    longest_s: float
    """No rank over this many seconds per micro-batch is of interest."""
    message_s: float
    """Seconds of one message over a stage boundary."""
    tables: Array
    """What layers and ends add to: ``[kind + 3, table]``, the tables as ``settle`` names them."""

    capacity: float
    """Bytes of a rank; infinite where memory is left aside."""

    @classmethod
    def of(
        cls,
        strategy: Strategy,
        rows: KindRows,
        number: int | None,
        params_below: float,
        longest_s: float,
        limited: bool = True,
    ) -> Loads:
        """For the rows of one strategy; ``limited`` by memory or not."""
        one = np.ones((len(rows.forward), 1))
        saved, boundary = rows.saved.copy(), rows.boundary.copy()
        saved[rows.num_kinds + 1] = boundary[rows.num_kinds + 1] = 0.0  # the head keeps nothing per micro-batch
        tables = (rows.forward, rows.backward, rows.weight, rows.again, saved, boundary, rows.state,
                  rows.params.sum(axis=0), one)  # fmt: skip
        stacked = np.stack([table[:, 0] for table in tables], axis=1)
        message, full = float(p2p_s(rows.group)[0]), strategy.recompute == "full"
        return cls(
            rows, 0, full, number, params_below, longest_s, message, stacked, rows.capacity if limited else math.inf
        )

    def parts(self, layers: Array) -> Parts:
        """What stretches of ``layers[..., kind]`` add up to."""
        k, c, used = self.rows.num_kinds, self.column, self.rows.used
        sums = np.moveaxis(layers @ self.tables[:k], -1, 0)
        largest = [
            np.max([np.where(layers[..., kind] > 0, table[kind, c], 0.0) for kind in used], axis=0)
            for table in (self.rows.workspace, self.rows.saved)
        ]
        return Parts(sums, largest[0], largest[1])

    def settle(self, parts: Parts, level: int, first: bool, last: bool) -> Settled:
        """Ranks of pipeline position ``level`` with these layers, the model's ends on them or not."""
        every = self.settle_all(parts, np.array([level]), np.array([first]), np.array([last]))
        return Settled(*(getattr(every, name)[0] for name in Settled.__slots__))

    def settle_all(self, parts: Parts, level: Ints, first: NDArray[np.bool_], last: NDArray[np.bool_]) -> Settled:
        """``settle`` for several positions at once: arrays ``[level, ...]``."""
        rows, c, k = self.rows, self.column, self.rows.num_kinds
        along = (-1, *(1 for _ in parts.sums.shape[1:]))
        ends = self.tables[k:].T @ np.stack([first, last, rows.num_mtp * last]).astype(float)
        ends = ends.reshape(len(ends), *along)
        forward, backward, weight, repeated, kept, boundary, state, params, own = parts.sums[:, None] + ends
        lost, flight = 1.0 + rows.fragmentation, rows.flight[level, c].reshape(along)
        own, last = own - ends[-1], last.reshape(along)
        held = own + rows.num_mtp * last
        over = state + (float(rows.fixed[c]) + lost * last * float(rows.workspace[k + 1, c]) - self.capacity)
        if rows.gathered[c]:
            over = over + rows.gathered[c] * params / np.maximum(held, 1.0)
        over = over + lost * (flight * kept + parts.workspace)
        fits = params < self.params_below * (1.0 - 1e-12)
        if self.full:
            again, fine = self._again(own, held, over, over + lost * parts.replay, lost * flight * (kept - boundary))
            backward = backward + repeated * again / np.maximum(held, 1.0)
        else:
            again, fine = np.zeros_like(over), over <= 0.0
        total = np.where(fits & fine, forward + backward + weight, np.inf)
        return Settled(forward, backward, weight, total, again)

    def _again(
        self, own: Array, held: Array, over: Array, replay: Array, dropped: Array
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Layers recomputed on each rank and whether it fits then.

        Bytes over the capacity: ``over`` with nothing recomputed, ``replay`` with something, less ``dropped`` if all
        ``held`` layers are. ``own``: those that can be counted apart from multi-token prediction.
        """
        if self.number is not None:
            again, most = np.minimum(float(self.number), held), held
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                least = np.ceil(replay * held / dropped - 1e-9)
            least = np.where(dropped > 0.0, np.maximum(1.0, least), np.where(replay <= 0.0, 1.0, math.inf))
            again, most = np.where(over <= 0.0, 0.0, np.minimum(least, own + 1.0)), own
        left = np.where(again > 0.0, replay - dropped * again / np.maximum(held, 1.0), over)
        return np.minimum(again, held), (left <= 1e-9 * self.rows.capacity) & (again <= most)

    def whole(self, table: Array) -> float:
        """The sum over all ranks of seconds of the rows ``[kind + 3, n]``, ends included."""
        k, c = self.rows.num_kinds, self.column
        ends = float(table[k, c] + table[k + 1, c] + self.rows.num_mtp * table[k + 2, c])
        return (float(self.rows.layers @ table[:k, c]) + ends) * self.rows.copies

    @property
    def whole_s(self) -> float:
        """Seconds per micro-batch of all ranks together, nothing recomputed in full."""
        return self.whole(self.rows.time)

    @property
    def most_s(self) -> float:
        """Seconds of a rank with everything on it, all recomputed."""
        return self.whole_s + self.whole(self.rows.again)

    @property
    def most_layers(self) -> int:
        """Layers of any rank of interest, at most."""
        total, each = int(self.rows.layers.sum()), self.least_s(1)
        return min(total, math.floor(min(self.longest_s, (total + 1.0) * each) / each + 1e-9)) if each > 0.0 else total

    def least_s(self, layers: int) -> float:
        """Seconds that this many layers take at least."""
        return layers * float(self.rows.time[self.rows.used, self.column].min())

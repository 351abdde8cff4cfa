"""Per-kind figures of many strategies that share a pipeline shape, read off the cost model's layer table.

Rows are the model's layer kinds, then embedding, head and multi-token prediction, as in ``costmodel.layers``. What a
pipeline rank costs is a sum of rows, so a bound or a solver can add them up for any layer split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwise.costmodel.evaluate import capacity_bytes
from shardwise.costmodel.problem import Array, Ints
from shardwise.costmodel.step import (
    FULL,
    SELECTIVE,
    Group,
    communicators,
    gathered_bytes,
    micro_batches_in_flight,
    repeated_forward_s,
    state_bytes,
)


@dataclass(frozen=True, slots=True)
class KindRows:
    """Arrays ``[kind + 3, n]`` unless said otherwise; seconds per micro-batch, bytes per pipeline rank.

    A rank's memory is ``fixed + sum(state) + (1 + fragmentation) · (flight · kept + transient)``, with ``kept`` the
    ``saved`` bytes of its layers less what recomputation drops. ZeRO-3's gather buffers are no sum over layers: they
    take ``gathered`` bytes per parameter of a rank's mean layer.
    """

    group: Group
    forward: Array
    backward: Array
    """Data gradient, selective recomputation included."""
    weight: Array
    again: Array
    """Seconds that full recomputation of one layer adds; 0 where the strategy does not use it."""
    saved: Array
    boundary: Array
    state: Array
    workspace: Array
    params: Array
    """Dense and expert parameters of one layer, ``[2, kind + 3, n]``."""
    flight: Array
    """Micro-batches in flight on every pipeline rank, ``[pp, n]``."""
    fixed: Array
    """``[n]``"""
    gathered: Array
    """Bytes of ZeRO-3's gather buffers per parameter of a rank's mean layer, ``[n]``."""
    fragmentation: float
    capacity: float
    layers: Ints
    """Layers of each kind in the model, ``[kind]``."""
    num_mtp: int

    def take(self, columns: Ints) -> KindRows:
        """The strategies that an index array selects, each as often as it is named."""
        group = replace(self.group, strategies=self.group.strategies.take(columns), key=self.group.key[columns])
        return replace(self, group=group, **{name: getattr(self, name)[..., columns] for name in _BY_STRATEGY})

    @property
    def time(self) -> Array:
        """Forward and backward of one layer, full recomputation left out."""
        return self.forward + self.backward + self.weight

    @property
    def num_kinds(self) -> int:
        """Layer kinds; the rows after them are embedding, head and MTP."""
        return len(self.layers)

    @property
    def copies(self) -> int:
        """Ranks that each layer is on: two under dualpipe, which halves its seconds."""
        return 2 if self.group.schedule == "dualpipe" else 1

    @property
    def used(self) -> list[int]:
        """Kinds that the model has layers of."""
        return [int(k) for k in np.flatnonzero(self.layers)]

    @property
    def first_s(self) -> Array:
        """Seconds of the embedding, ``[n]``."""
        return np.asarray(self.time[self.num_kinds])

    @property
    def last_s(self) -> Array:
        """Seconds of head, loss and multi-token prediction, ``[n]``."""
        return np.asarray(self.time[self.num_kinds + 1] + self.num_mtp * self.time[self.num_kinds + 2])


_BY_STRATEGY = ("forward", "backward", "weight", "again", "saved", "boundary", "state", "workspace", "params", "flight",
                "fixed", "gathered")  # fmt: skip


def kind_rows(group: Group) -> KindRows:
    """The figures of every strategy in a group."""
    t, key, s, half = group.table, group.key, group.strategies, group.share
    runtime, model = group.problem.runtime, group.problem.model
    selective, full = s.recompute == SELECTIVE, s.recompute == FULL
    num_mtp = len(model.mtp) if group.problem.workload.train_mtp else 0
    saved, kept = t.saved[:, key], t.saved_selective[:, key]
    params = np.stack([t.dense[:, key], t.expert[:, key]])
    one = replace(group, counts=group.counts[:1], ranks=group.ranks[:1], repeats=group.repeats[:1])
    states = state_bytes(one, params[0], params[1])
    backward = group.passes[1][:, key] + np.where(selective, t.selective[:, key], 0.0)
    return KindRows(
        group=group,
        forward=half * group.passes[0][:, key],
        backward=half * backward,
        weight=half * group.passes[2][:, key],
        again=half * np.where(full, repeated_forward_s(group)[:, key], 0.0),
        saved=np.where(selective, kept, saved),
        boundary=t.boundary[:, key],
        state=states["weights"] + states["gradients"] + states["optimizer"],
        workspace=t.workspace[:, key],
        params=params,
        flight=micro_batches_in_flight(group),
        fixed=communicators(s) * runtime.communicator_bytes + runtime.context_bytes,
        gathered=gathered_bytes(group),
        fragmentation=runtime.fragmentation,
        capacity=capacity_bytes(group.problem),
        layers=np.bincount(np.array(model.layers), minlength=len(model.kinds)),
        num_mtp=num_mtp,
    )

"""What a step waits for of its traffic: collectives in pools, each with what may hide of it.

This is all that a placement of ranks on nodes can change. A pool's collectives run for ``T`` seconds together; at most
``hidden_share`` of that and at most ``room_s`` seconds hide under kernels, which hidden traffic slows::

    exposed = repeat · (T - (1 - slowdown) · min(hidden_share · T, room_s))

Every collective inside a layer is a pool of its own, repeated for each layer and micro-batch; the data-parallel
collectives of a pass share one. The rules are those of ``layers`` and ``step``: on the ideal cluster the pools sum to
the communication parts of the step, and to what full or selective recomputation repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .boundary import boundary_messages
from .group import SELECTIVE, Group
from .problem import Array, Ints
from .step import Load, gradient_comms, gradient_rooms, tied_embedding_bytes, windows
from .traffic import Comm, selective_comms


@dataclass(frozen=True, slots=True)
class Collective:
    """``count`` collectives of one sort by every group of ``group_size`` ranks ``stride`` apart.

    ``tensor_bytes`` as ``Cluster.collective_time_s`` counts it. A p2p goes between neighbours of its group.
    """

    collective: str
    tensor_bytes: float
    group_size: int
    stride: int
    count: float

    @property
    def bytes_once_round(self) -> float:
        """Bytes that one member passes on to its neighbour in all: ``(n-1)/n`` of the tensor a pass of a ring.

        For an all-to-all the send buffer itself, for a p2p the message.
        """
        if self.collective in ("p2p", "all_to_all", "broadcast"):
            return self.tensor_bytes
        passes = 2.0 if self.collective == "all_reduce" else 1.0
        return passes * (self.group_size - 1) / self.group_size * self.tensor_bytes


@dataclass(frozen=True, slots=True)
class Pool:
    """Collectives that hide under the same kernels; seconds as the module says."""

    parallelism: str
    collectives: tuple[Collective, ...]
    repeat: float
    hidden_share: float
    room_s: float
    slowdown: float

    def exposed_s(self, seconds: Array | float) -> Array | float:
        """Seconds a step that stay exposed when the collectives take ``seconds`` together, elementwise."""
        hidden = np.minimum(self.hidden_share * seconds, self.room_s)
        return self.repeat * (seconds - (1.0 - self.slowdown) * hidden)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        names = ("parallelism", "repeat", "hidden_share", "room_s", "slowdown")
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "collectives": [{n: getattr(c, n) for n in Collective.__slots__} for c in self.collectives]}


def pools(
    group: Group, work: Load, share: Array, slow: Ints, parameters: tuple[Array, Array], messages: float
) -> tuple[Pool, ...]:
    """Pools of one strategy on its slowest pipeline rank.

    ``group`` holds one strategy and every pipeline rank; ``share`` of the layers is recomputed in full, ``slow`` is the
    slowest rank and ``parameters`` the dense and expert ones, as in ``estimate``; ``messages`` says how many times a
    step waits for a message between stages.
    """
    found = (
        *_layer_pools(group, share, int(slow[0])),
        *_stage_pools(group, messages),
        *_gradient_pools(group, work, slow, parameters),
    )
    return tuple(pool for pool in found if pool.collectives and pool.repeat > 0)


def _one(value: Array | Ints | float) -> float:
    return float(np.broadcast_to(value, (1,))[0])


def _layer_pools(group: Group, share: Array, rank: int) -> Iterator[Pool]:
    passes = _one(group.strategies.num_microbatches) * group.share
    kinds = group.problem.model.kinds
    for kind, comms in enumerate(group.table.comms):
        held = float(group.counts[rank, kind])
        if not held:
            continue
        inside = kind < group.table.embedding or kind == group.table.mtp
        if kind < len(kinds) and group.strategies.recompute[0] == SELECTIVE:
            comms = (*comms, *selective_comms(group.problem, kinds[kind], group.table.geometry))
        for comm in comms:
            again = float(share[rank, 0]) if inside and comm.phase == "forward" else 0.0
            yield _layer_pool(group, comm, held * passes * (1.0 + again))


def _layer_pool(group: Group, comm: Comm, repeat: float) -> Pool:
    size, count = int(comm.size[0]), _one(comm.count)
    collective = Collective(comm.collective, _one(comm.nbytes), size, int(comm.stride[0]), count)
    some = (collective,) if count > 0 and size > 1 else ()
    slowdown = group.problem.runtime.overlap_slowdown
    return Pool(comm.parallelism, some, repeat, _one(comm.hidden_share), _one(comm.room_s), slowdown)


def _stage_pools(group: Group, messages: float) -> Iterator[Pool]:
    """Stage boundaries and tied embeddings: what of them hides is already left out of their counts."""
    if group.pp == 1:
        return
    s, problem = group.strategies, group.problem
    stride = int(s.stage_stride[0])
    for nbytes, gathered in boundary_messages(problem, s):
        sent = [Collective("p2p", _one(nbytes), group.pp, stride, messages / 2.0)]
        if _one(gathered) > 0:
            sent.append(Collective("all_gather", _one(gathered), int(s.tp[0]), 1, messages / 2.0))
        yield Pool("pp", tuple(sent), 1.0, 0.0, 0.0, 0.0)
    if problem.model.tied_embeddings:
        ends = Collective("all_reduce", float(tied_embedding_bytes(group)[0]), 2, stride * (group.pp - 1), 1.0)
        yield Pool("embedding", (ends,), 1.0, 0.0, 0.0, 0.0)


def _gradient_pools(group: Group, work: Load, slow: Ints, parameters: tuple[Array, Array]) -> Iterator[Pool]:
    dense, expert = parameters
    most = int(np.argmax(dense[:, 0] + expert[:, 0]))
    comms = gradient_comms(group, dense[most], expert[most])
    slowdown = group.problem.runtime.overlap_slowdown
    bucketed = float(1.0 - 1.0 / np.maximum(1.0, group.layers.max()))
    for phase, room in gradient_rooms(group, *windows(work, slow)).items():
        found = tuple(
            Collective(c.collective, _one(c.nbytes), round(_one(c.size)), round(_one(c.stride)), _one(c.count))
            for c in comms
            if c.phase == phase and _one(c.count) > 0 and round(_one(c.size)) > 1
        )
        yield Pool("dp", found, 1.0, bucketed, float(room[0]), slowdown)

"""Which ranks form each group, for a rank order such as Megatron's ``tp-cp-ep-dp-pp``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

_AXES = frozenset({"tp", "cp", "ep", "dp", "pp"})


def rank_groups(strategy: Strategy, order: str | None = None) -> dict[str, list[list[int]]]:
    """Groups of global ranks by name: tp, cp, dp, dp_cp, shard, pp of the dense mesh; ep, etp, edp of the expert mesh.

    ``order`` names the axes from the fastest varying (None: the strategy's own). The dense mesh has ep = 1; the expert
    mesh has cp = 1, etp in the place of tp and edp in the place of dp. A ``shard`` group holds one set of optimizer
    shards: all of dp_cp, or runs of ``zero_group`` ranks of it.

    Raises:
        InputError: the order does not name each of tp, cp, ep, dp and pp once, the expert mesh does not divide the
            ranks, or the two meshes would have different pipeline groups.
    """
    order = strategy.rank_order if order is None else order
    axes = order.split("-")
    if sorted(axes) != sorted(_AXES):
        raise InputError(f"rank order {order!r}: expected tp, cp, ep, dp and pp, each once, joined by '-'")
    s = strategy
    if s.tp * s.cp * s.dp % (s.ep * s.etp):
        raise InputError(f"rank order: ep·etp = {s.ep}·{s.etp} does not divide tp·cp·dp = {s.tp * s.cp * s.dp}")
    dense = _Mesh(axes, {"tp": s.tp, "cp": s.cp, "ep": 1, "dp": s.dp, "pp": s.pp})
    expert = _Mesh(axes, _expert_sizes(s, axes))
    if dense.groups("pp") != expert.groups("pp"):
        raise InputError(f"rank order {order!r}: dense and expert layers would have different pipeline groups")
    return {
        "tp": dense.groups("tp"),
        "cp": dense.groups("cp"),
        "dp": dense.groups("dp"),
        "dp_cp": dense.groups("dp", "cp"),
        "shard": _runs(dense.groups("dp", "cp"), s.zero_group),
        "pp": dense.groups("pp"),
        "ep": expert.groups("ep"),
        "etp": expert.groups("tp"),
        "edp": expert.groups("dp"),
    }


def rank_coordinates(strategy: Strategy) -> dict[str, NDArray[np.int64]]:
    """The place of every rank in each dimension, ``[rank]`` each.

    tp, cp, dp and pp are of the dense mesh, etp, ep and edp of the expert mesh.
    """
    axes = strategy.rank_order.split("-")
    s, ranks = strategy, np.arange(strategy.world_size)
    dense = _Mesh(axes, {"tp": s.tp, "cp": s.cp, "ep": 1, "dp": s.dp, "pp": s.pp}).places(ranks)
    expert = _Mesh(axes, _expert_sizes(s, axes)).places(ranks)
    dense_places = {name: dense[name] for name in ("tp", "cp", "dp", "pp")}
    return {**dense_places, "etp": expert["tp"], "ep": expert["ep"], "edp": expert["dp"]}


def _expert_sizes(s: Strategy, axes: list[str]) -> dict[str, int]:
    """Axes of the expert mesh. Without experts it follows tp where stages come before replicas, as Megatron's does."""
    if s.ep * s.etp == 1 and axes[-1] != "pp":
        return {"tp": s.tp, "cp": 1, "ep": 1, "dp": s.cp * s.dp, "pp": s.pp}
    return {"tp": s.etp, "cp": 1, "ep": s.ep, "dp": s.edp, "pp": s.pp}


def _runs(groups: list[list[int]], size: int) -> list[list[int]]:
    """Groups cut into runs of ``size`` ranks; 0 leaves them whole."""
    return sorted(g[i : i + size] for g in groups for i in range(0, len(g), size)) if size else groups


class _Mesh:
    """Ranks as an array with the slowest axis first."""

    def __init__(self, axes: list[str], sizes: dict[str, int]) -> None:
        self._axes = list(reversed(axes))
        shape = [sizes[a] for a in self._axes]
        self._ranks = np.arange(int(np.prod(shape))).reshape(shape)

    def places(self, ranks: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Index of each rank along every axis."""
        return dict(zip(self._axes, np.unravel_index(ranks, self._ranks.shape), strict=True))

    def groups(self, *names: str) -> list[list[int]]:
        """Ranks that differ only along the named axes, ordered by first rank."""
        inner = [i for i, a in enumerate(self._axes) if a in names]
        outer = [i for i in range(len(self._axes)) if i not in inner]
        size = int(np.prod([self._ranks.shape[i] for i in inner]))
        rows: list[list[int]] = self._ranks.transpose(outer + inner).reshape(-1, size).tolist()
        return sorted(rows)

"""A parallel strategy, and many of them at once as a struct of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware_profiles.errors import InputError

CP_COMMS = ("p2p", "all_gather", "a2a", "a2a+p2p")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")
RECOMPUTES = ("none", "selective", "full")
RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Mesh axes from the fastest varying: stages farthest apart, or replicas."""

ENUMS: dict[str, tuple[str, ...]] = {
    "cp_comm": CP_COMMS,
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "rank_order": RANK_ORDERS,
}
"""Enumerated fields with their values; ``Strategies`` holds indices into them."""

_BOOLS = frozenset({"sp", "offload_activations", "tp_overlap", "dp_overlap", "ep_overlap"})
_FLOATS = frozenset({"offload_optimizer"})


@dataclass(frozen=True, slots=True)
class Strategy:
    """One layout. ``global_batch = micro_batch_size · dp · num_microbatches``; ``N = tp·cp·dp·pp = etp·ep·edp·pp``."""

    tp: int = 1
    """Tensor parallel degree."""
    sp: bool = False
    """Megatron sequence parallelism: norms and dropout are split over the TP group."""
    cp: int = 1
    """Context parallel degree: attention over a split sequence."""
    cp_comm: str = "p2p"
    """How context parallel ranks exchange: ``p2p`` (ring), ``all_gather``, ``a2a`` (Ulysses) or ``a2a+p2p``."""
    ulysses: int = 1
    """Inner all-to-all degree of ``a2a+p2p``; equals ``cp`` for ``a2a`` and 1 otherwise."""
    pp: int = 1
    """Pipeline stages."""
    vpp: int = 1
    """Model chunks per pipeline rank."""
    schedule: str = "1f1b"
    """``gpipe``, ``1f1b``, ``interleaved``, ``zb-h1``, ``zb-v`` or ``dualpipe``."""
    dp: int = 1
    """Data parallel degree of the dense layers."""
    ep: int = 1
    """Expert parallel degree."""
    etp: int = 1
    """Tensor parallel degree inside an expert."""
    zero: int = 1
    """ZeRO stage: 0 none, 1 optimizer states, 2 and gradients, 3 and parameters (FSDP)."""
    zero_group: int = 0
    """HSDP: ranks that share one set of shards (divides dp·cp); 0 shards over all of dp·cp."""
    micro_batch_size: int = 1
    """Sequences of one micro-batch on one data parallel rank."""
    num_microbatches: int = 1
    """Micro-batches of one step on one data parallel rank."""
    recompute: str = "none"
    """Activations computed again in backward: ``none``, ``selective`` or ``full``."""
    recompute_layers: int = -1
    """With ``full``: layers per pipeline rank that are recomputed, -1 for all (Megatron's ``block`` method)."""
    offload_optimizer: float = 0.0
    """Share of optimizer states and master weights kept in host memory, 0 to 1."""
    offload_activations: bool = False
    """Inputs of attention and of routed experts wait for backward in host memory."""
    tp_overlap: bool = False
    """TP traffic hides under GEMMs."""
    dp_overlap: bool = True
    """Gradient and parameter traffic of data parallelism hides under backward and forward."""
    ep_overlap: bool = False
    """Experts' traffic hides under other micro-batches' work."""
    rank_order: str = RANK_ORDERS[0]
    """Mesh axes from the fastest varying; the second order puts a replica's stages side by side (cp = 1 only)."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers per virtual stage in model order, pp·vpp entries; None splits as evenly as the launcher's default does."""
    recompute_per_stage: tuple[int, ...] | None = None
    """With ``full``: layers recomputed on each pipeline rank; overrides ``recompute_layers``."""

    @property
    def world_size(self) -> int:
        """Accelerators used."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Data parallel degree of the expert layers."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        for key in ("layers_per_stage", "recompute_per_stage"):
            out[key] = None if out[key] is None else list(out[key])
        return out

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """Read ``"tp=8,pp=4,sp=on,recompute=selective,mbs=1"``. Raises InputError naming the key and value."""
        return cls(**parse_settings(text))

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Strategy:
        """The strategy whose ``as_dict`` this is; what is left out is the default. Raises InputError naming the key."""
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if value is not None:
                text = "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                values[name] = parse_value(name, text)
        return cls(**values)

    def with_batch(self, world_size: int, global_batch_size: int) -> Strategy:
        """The same layout with ``dp`` and ``num_microbatches`` filled in. Raises InputError if they do not divide."""
        model = self.tp * self.cp * self.pp
        if world_size % model:
            raise InputError(f"strategy: tp·cp·pp = {model} does not divide the {world_size} GPUs")
        dp = world_size // model
        if global_batch_size % (dp * self.micro_batch_size):
            raise InputError(
                f"strategy: dp·mbs = {dp}·{self.micro_batch_size} does not divide the global batch {global_batch_size}"
            )
        return replace(self, dp=dp, num_microbatches=global_batch_size // (dp * self.micro_batch_size))


_SHORT = {
    "mbs": "micro_batch_size",
    "num_micro_batches": "num_microbatches",
    "m": "num_microbatches",
    "layers": "layers_per_stage",
    "offload": "offload_optimizer",
}
_TRUE, _FALSE = frozenset({"1", "on", "true", "yes"}), frozenset({"0", "off", "false", "no"})


def parse_settings(text: str) -> dict[str, Any]:
    """Settings of a strategy from ``key=value,…``; tuples are written ``layers=7/8/8/7``.

    Raises InputError naming the key, the value and what was expected.
    """
    out: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.replace(";", ",").split(","))):
        key, eq, raw = (x.strip() for x in part.partition("="))
        name = field_name(key)
        if not eq:
            raise InputError(f"strategy: {part!r}: expected key=value")
        if name in out:
            raise InputError(f"strategy: {key} is given twice")
        out[name] = parse_value(name, raw)
    return out


def field_name(key: str) -> str:
    """The field that a written key means: ``mbs`` and ``micro-batch-size`` are ``micro_batch_size``."""
    return _SHORT.get(key.lower(), key.lower().replace("-", "_"))


def parse_value(name: str, raw: str) -> Any:
    """One setting's value from text. Raises InputError naming the key, the value and what was expected."""
    known = {f.name for f in fields(Strategy)}
    if name not in known:
        raise InputError(f"strategy: unknown key {name!r}: expected one of {', '.join(sorted(known))}")
    low = raw.lower()
    if name in ENUMS:
        if low not in ENUMS[name]:
            raise InputError(f"strategy: {name} = {raw!r}: expected one of {', '.join(ENUMS[name])}")
        return low
    if name in _BOOLS:
        if low in _TRUE or low in _FALSE:
            return low in _TRUE
        raise InputError(f"strategy: {name} = {raw!r}: expected on or off")
    try:
        if name in _FLOATS:
            return _checked_share(name, float(raw))
        if name in ("layers_per_stage", "recompute_per_stage"):
            return tuple(_checked_int(name, int(x), 0) for x in raw.split("/"))
        return _checked_int(name, int(raw), {"zero": 0, "zero_group": 0, "recompute_layers": -1}.get(name, 1))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"strategy: {name} = {raw!r}: expected a number") from None


def _checked_int(name: str, value: int, least: int) -> int:
    most = 3 if name == "zero" else 1 << 30
    if not least <= value <= most:
        raise InputError(f"strategy: {name} = {value}: expected a whole number from {least} to {most}")
    return value


def _checked_share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"strategy: {name} = {value}: expected a share from 0 to 1")
    return value


DIMENSIONS = tuple(f.name for f in fields(Strategy) if f.name not in ("layers_per_stage", "recompute_per_stage"))
"""What ``Strategies`` holds one array of each: every field of ``Strategy`` but its explicit splits."""


class Strategies:
    """Many strategies as one array per field, all of shape ``[n]``.

    Enumerated fields hold the index into ``CP_COMMS``, ``SCHEDULES`` or ``RECOMPUTES``. Explicit layer splits are not
    part of it: those belong to the few strategies that the solver works on one at a time.
    """

    __slots__ = ("_n", "_shards", *DIMENSIONS)

    tp: NDArray[np.int64]
    sp: NDArray[np.bool_]
    cp: NDArray[np.int64]
    cp_comm: NDArray[np.int64]
    ulysses: NDArray[np.int64]
    pp: NDArray[np.int64]
    vpp: NDArray[np.int64]
    schedule: NDArray[np.int64]
    dp: NDArray[np.int64]
    ep: NDArray[np.int64]
    etp: NDArray[np.int64]
    zero: NDArray[np.int64]
    zero_group: NDArray[np.int64]
    micro_batch_size: NDArray[np.int64]
    num_microbatches: NDArray[np.int64]
    recompute: NDArray[np.int64]
    recompute_layers: NDArray[np.int64]
    offload_optimizer: NDArray[np.float64]
    offload_activations: NDArray[np.bool_]
    tp_overlap: NDArray[np.bool_]
    dp_overlap: NDArray[np.bool_]
    ep_overlap: NDArray[np.bool_]
    rank_order: NDArray[np.int64]

    def __init__(self, **arrays: Any) -> None:
        """Broadcast the given fields against each other; fields left out take ``Strategy``'s default."""
        unknown = set(arrays) - set(DIMENSIONS)
        if unknown:
            raise TypeError(f"unknown strategy fields: {sorted(unknown)}")
        n = int(np.broadcast_shapes(*(np.shape(a) for a in arrays.values()), (1,))[0]) if arrays else 1
        for name in DIMENSIONS:
            value = arrays.get(name, _DEFAULTS[name])
            dtype = np.bool_ if name in _BOOLS else np.float64 if name in _FLOATS else np.int64
            setattr(self, name, np.broadcast_to(np.asarray(value, dtype=dtype), (n,)))
        self._n = n
        self._shards: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Strategy]:
        return (self[i] for i in range(self._n))

    def __getitem__(self, index: int) -> Strategy:
        values: dict[str, Any] = {}
        for name in DIMENSIONS:
            value = getattr(self, name)[index].item()
            values[name] = ENUMS[name][value] if name in ENUMS else value
        return Strategy(**values)

    def take(self, where: NDArray[Any]) -> Strategies:
        """The rows that a boolean mask or an index array selects."""
        return self._chosen(np.flatnonzero(where) if where.dtype == np.bool_ else where)

    def _chosen(self, where: NDArray[Any] | slice) -> Strategies:
        rows = Strategies.__new__(Strategies)  # the arrays are of the right types and agree already
        for name in DIMENSIONS:
            setattr(rows, name, getattr(self, name)[where])
        rows._n, rows._shards = len(rows.tp), None
        return rows

    def replace(self, **arrays: Any) -> Strategies:
        """The same strategies with some fields changed."""
        return Strategies(**{**{name: getattr(self, name) for name in DIMENSIONS}, **arrays})

    def between(self, start: int, stop: int) -> Strategies:
        """Consecutive rows, as views."""
        return self._chosen(slice(start, stop))

    @property
    def edp(self) -> NDArray[np.int64]:
        """Data parallel degree of the expert layers."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def world_size(self) -> NDArray[np.int64]:
        """Accelerators used."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def stage_stride(self) -> NDArray[np.int64]:
        """Ranks from one pipeline stage to the next."""
        return self.tp * self.cp * np.where(self.rank_order == 0, self.dp, 1)

    @property
    def replica_strides(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ranks between neighbours that reduce gradients: of dense layers (over dp and cp), and of experts."""
        apart = np.where(self.rank_order == 0, 1, self.pp)
        return self.tp * apart, self.etp * self.ep * apart

    @property
    def zero_shards(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ranks that share one copy of the sharded states, for dense and for expert parameters."""
        if self._shards is None:
            whole = (self.dp * self.cp).astype(np.float64)
            dense = np.where(self.zero_group > 0, np.minimum(self.zero_group, whole), whole)
            edp = np.maximum(1.0, self.edp.astype(np.float64))
            expert = np.where(self.zero_group > 0, np.minimum(np.maximum(1.0, edp * dense / whole), edp), edp)
            self._shards = np.where(self.zero > 0, dense, 1.0), np.where(self.zero > 0, expert, 1.0)
        return self._shards

    def distinct(
        self, names: Sequence[str], number: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index of one strategy for each distinct combination of the named fields, and each strategy's combination.

        ``number``, where given, is one more field.
        """
        code, size = np.zeros(len(self), dtype=np.int64), 1
        columns = [getattr(self, name) for name in names] + ([] if number is None else [number])
        for column in columns if len(self) else ():
            if column.min() != column.max():  # most columns of a small group are constant
                index, count = _numbered(column)
                code, size = code * count + index, size * count
                if size > _TABLE:
                    code, size = _numbered(code)
        return _first_of(code, size)

    @classmethod
    def of(cls, strategies: Iterable[Strategy]) -> Strategies:
        """From scalar strategies (their explicit layer splits are dropped)."""
        rows = list(strategies)
        if not rows:
            return cls.empty()
        return cls(**{name: [_code(name, getattr(s, name)) for s in rows] for name in DIMENSIONS})

    @classmethod
    def concatenate(cls, parts: Sequence[Strategies]) -> Strategies:
        """All rows of all parts, in order."""
        if not parts:
            return cls.empty()
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in DIMENSIONS})

    @classmethod
    def empty(cls) -> Strategies:
        """No strategies."""
        return cls(tp=np.empty(0, dtype=np.int64))


_TABLE = 1 << 20
"""Codes up to this are numbered by a table, which is quicker than sorting them."""


def _numbered(column: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """The rank of each value among the distinct ones, ``[n]``, and how many there are."""
    if column.dtype == np.bool_:
        return column.astype(np.int64), 2
    if column.dtype.kind == "f" or int(column.min()) < 0 or int(column.max()) > _TABLE:
        values, index = np.unique(column, return_inverse=True)
        return index, len(values)
    present = np.zeros(int(column.max()) + 1, dtype=np.int64)
    present[column] = 1
    rank = np.cumsum(present)
    return (rank - 1)[column], int(rank[-1])


def _first_of(code: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``numpy.unique``'s first index and inverse of codes below ``size``."""
    if size > max(256, 8 * len(code)):
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return first, inverse
    first = np.full(size, -1, dtype=np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    there = first >= 0
    return first[there], (np.cumsum(there) - 1)[code]


def enum_code(field: str, value: str) -> int:
    """Index of an enumerated value, e.g. ``enum_code("recompute", "full") == 2``."""
    return ENUMS[field].index(value)


def _code(name: str, value: Any) -> Any:
    return ENUMS[name].index(value) if name in ENUMS else value


_DEFAULTS = {name: _code(name, getattr(Strategy(), name)) for name in DIMENSIONS}

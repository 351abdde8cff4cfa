"""The layer table: what one layer of each kind costs under each distinct strategy.

Rows are the model's layer kinds followed by three pseudo-kinds (embedding, head with loss, multi-token prediction), so
a pipeline stage is a vector of counts and its cost a product with the table. Only the degrees that a layer can see are
part of the key: pipeline, data parallelism and ZeRO come later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from .memo import Last
from .model import Extra, LayerKind, Linear, Split
from .operators import (
    Pass,
    boundary_bytes,
    layer_times,
    linear_times,
    offloadable_bytes,
    rank_parameters,
    saved_bytes,
    shard,
    stream_rate,
)
from .problem import Array, Ints, Problem
from .recompute import selective_recompute
from .strategy import Strategies, Strategy
from .traffic import BACKWARD, FORWARD, Comm, Geometry, layer_comms, selective_comms

_MOST_COLUMNS = 50_000
"""Columns that ``LayerColumns`` remembers, about: bounds memory."""

PARTS = ("gemm", "attention", "elementwise", "head_loss", "host", "tp_comm", "cp_comm", "ep_comm", "activation_offload")
_COMM_PART = {"tp": "tp_comm", "cp": "cp_comm", "ep": "ep_comm", "etp": "ep_comm"}

_KEY = ("tp", "sp", "cp", "cp_comm", "ulysses", "ep", "etp", "micro_batch_size", "tp_overlap", "ep_overlap",
        "offload_activations")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Arrays over kinds ``k`` (layer kinds, then embedding, head, MTP) and distinct strategies ``u``.

    ``forward``, ``backward`` (data gradient) and ``weight`` (weight gradient) are seconds ``[part, k, u]``;
    ``selective`` the extra seconds of selective recomputation ``[k, u]`` (full recomputation repeats ``forward``);
    ``saved``, ``saved_selective``, ``boundary`` bytes kept per micro-batch ``[k, u]``; ``workspace`` transient bytes
    ``[k, u]``; ``dense`` and ``expert`` parameters per rank ``[k, u]``.
    """

    forward: Array
    backward: Array
    weight: Array
    selective: Array
    saved: Array
    saved_selective: Array
    boundary: Array
    workspace: Array
    dense: Array
    expert: Array
    comms: tuple[tuple[Comm, ...], ...]
    geometry: Geometry

    @property
    def embedding(self) -> int:
        """Row of the embedding."""
        return int(self.forward.shape[1]) - 3

    @property
    def head(self) -> int:
        """Row of the final norm, output head and loss."""
        return int(self.forward.shape[1]) - 2

    @property
    def mtp(self) -> int:
        """Row of one multi-token-prediction layer, its head and loss included."""
        return int(self.forward.shape[1]) - 1

    def take(self, columns: Ints) -> LayerTable:
        """The columns that an index array selects."""
        rest = {name: np.ascontiguousarray(getattr(self, name)[..., columns]) for name in _STACKED}
        comms = tuple(tuple(comm.take(columns) for comm in kind) for kind in self.comms)
        return LayerTable(**rest, comms=comms, geometry=self.geometry.take(columns))


def key_of(strategy: Strategy) -> tuple[object, ...]:
    """What a strategy's layer table depends on, for one model, workload, cluster and runtime."""
    return tuple(getattr(strategy, name) for name in _KEY)


def distinct(strategies: Strategies) -> tuple[Strategies, Ints]:
    """The distinct layer keys among many strategies, and for each strategy the index of its key."""
    first, inverse = strategies.distinct(_KEY)
    return strategies.take(first), inverse


class LayerColumns:
    """The layer tables of one problem: what was costed once is not costed again."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._tables: list[LayerTable] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        """Table and column of each distinct key."""

    def of(self, keys: Strategies) -> LayerTable:
        """``layer_table`` of distinct strategies."""
        codes = [row.tobytes() for row in np.stack([getattr(keys, n) for n in _KEY], axis=1, dtype=np.float64)]
        places = [self._known.get(code, (-1, -1)) for code in codes]
        tables = {table for table, _ in places}
        if len(tables) == 1 and -1 not in tables:
            return self._tables[tables.pop()].take(np.array([column for _, column in places]))
        if len(self._known) > _MOST_COLUMNS:
            self._tables, self._known = [], {}
        table = layer_table(self._problem, keys)
        self._known |= {code: (len(self._tables), column) for column, code in enumerate(codes)}
        self._tables.append(table)
        return table


def layer_table(problem: Problem, strategies: Strategies) -> LayerTable:
    """Cost every layer kind of the model under every given strategy."""
    g = Geometry.of(problem, strategies)
    rows = [_kind_row(problem, kind, g) for kind in problem.model.kinds]
    head = _head_row(problem, g)
    rows += [_embedding_row(problem, g), head, _mtp_row(problem, g, rows, head)]
    stack = {name: np.stack([getattr(r, name) for r in rows], axis=0) for name in _STACKED}
    # Of one layout however they came about: sums in another order could differ in their last bit.
    parts = {name: np.ascontiguousarray(np.moveaxis(stack[name], 0, 1)) for name in ("forward", "backward", "weight")}
    rest = {name: value for name, value in stack.items() if name not in parts}
    return LayerTable(**parts, **rest, comms=tuple(r.comms for r in rows), geometry=g)


layer_columns = Last(LayerColumns)
"""The columns of the problem that was last asked about."""


@dataclass(slots=True)
class _Row:
    forward: Array
    backward: Array
    weight: Array
    selective: Array
    saved: Array
    saved_selective: Array
    boundary: Array
    workspace: Array
    dense: Array
    expert: Array
    comms: tuple[Comm, ...]


_STACKED = tuple(name for name in _Row.__slots__ if name != "comms")


def _kind_row(problem: Problem, kind: LayerKind, g: Geometry) -> _Row:
    forward, backward, weight = layer_times(problem, kind, g)
    comms = tuple(layer_comms(problem, kind, g))
    dense, expert = rank_parameters(kind, *(getattr(g.strategies, n).astype(np.float64) for n in ("tp", "ep", "etp")))
    f, b, w = _parts(forward), _parts(backward), _parts(weight)
    w[PARTS.index("elementwise")] += accumulate_s(problem, dense + expert)
    comms = _add_comms(problem, comms, g, f, b, w)
    _add_host(problem, kind, g, f, b, w)
    saved = saved_bytes(problem, kind, g)
    exposed = (f[PARTS.index("tp_comm")], f[PARTS.index("ep_comm")])
    selective, freed = selective_recompute(problem, kind, g, forward, *exposed)
    selective = selective + sum(comm_times(problem, comm) for comm in selective_comms(problem, kind, g))
    widest = max((op.out_features for op in _column_linears(kind)), default=0)
    workspace = 2.0 * problem.activation_bytes * widest / g.strategies.tp * g.tokens
    moved = np.where(g.strategies.offload_activations, offloadable_bytes(problem, kind, g), 0.0)
    _add_offload(problem, moved, f, b, w)
    # One layer's copies leave while the next one's are made, and come back in the same way.
    workspace = workspace + 2.0 * moved
    kept, less = np.maximum(saved - moved, 0.0), np.maximum(saved - freed - moved, 0.0)
    return _Row(f, b, w, selective, kept, less, boundary_bytes(problem, g), workspace, dense, expert, comms)


def _add_offload(problem: Problem, moved: Array, f: Array, b: Array, w: Array) -> None:
    """Copies to and from the host take the host link alone: they hide under the layer's own passes."""
    part, seconds = PARTS.index("activation_offload"), moved / problem.cluster.accelerator.host_bytes_per_s
    f[part] = np.maximum(0.0, seconds - f.sum(axis=0))
    b[part] = np.maximum(0.0, seconds - b.sum(axis=0) - w.sum(axis=0))


def accumulate_s(problem: Problem, parameters: Array) -> Array:
    """Seconds per micro-batch to add weight gradients to the accumulated ones: read and write them.

    The 16-bit result that the GEMM's own traffic counts already is left out.
    """
    moved = max(0.0, 2.0 * problem.runtime.grad_memory_bytes - problem.activation_bytes)
    return parameters * moved / stream_rate(problem)


def _column_linears(kind: LayerKind) -> Iterable[Linear]:
    if kind.mixer is not None:
        yield from (op for op in kind.mixer.linears if op.split is Split.COLUMN)
    for mlp in (kind.mlp, kind.moe.shared if kind.moe else None):
        if mlp is not None:
            yield mlp.linears[0]


def _parts(seconds: Pass) -> Array:
    out = np.zeros((len(PARTS), len(seconds.gemm)))
    out[0], out[1], out[2] = seconds.gemm, seconds.attention, seconds.elementwise
    return out


def comm_times(problem: Problem, comm: Comm) -> Array:
    """Seconds of all of a layer's collectives of one sort, before any overlap."""
    if not np.any(comm.count):
        return np.zeros_like(comm.count)
    one = problem.cluster.collective_time_s(comm.collective, comm.nbytes, comm.size, comm.stride)
    return np.where(comm.count > 0, comm.count * one, 0.0)


def _add_comms(problem: Problem, comms: Iterable[Comm], g: Geometry, f: Array, b: Array, w: Array) -> tuple[Comm, ...]:
    """Book what stays exposed of each collective, and what hidden traffic costs the kernels above it.

    Returns the collectives with how much of each may hide.
    """
    runtime = problem.runtime
    budget = {FORWARD: f[:3].copy(), BACKWARD: b[:3] + w[:3]}
    out = []
    for comm in comms:
        seconds = comm_times(problem, comm)
        share, room = _cover(problem, comm, g.strategies, budget[comm.phase], b[0])
        hidden = np.minimum(share * seconds, room)
        target = f if comm.phase is FORWARD else b
        target[PARTS.index(_COMM_PART[comm.parallelism])] += seconds - hidden + runtime.overlap_slowdown * hidden
        out.append(replace(comm, hidden_share=share, room_s=room))
    return tuple(out)


def _cover(
    problem: Problem, comm: Comm, s: Strategies, budget: Array, dgrad: Array
) -> tuple[Array | float, Array | float]:
    """The share of a collective that may hide, and the seconds of kernels a layer that it may hide under."""
    runtime = problem.runtime
    if comm.hide == "gemm":
        return np.where(s.tp_overlap, runtime.tp_hidden, 0.0), budget[0]
    if comm.hide == "dgrad":
        return 1.0, dgrad
    if comm.hide == "attention":
        return runtime.cp_hidden, budget[1]
    if comm.hide == "layer":
        return np.where(s.ep_overlap, runtime.ep_hidden, 0.0), np.asarray(budget.sum(axis=0))
    return 0.0, 0.0


def _add_host(problem: Problem, kind: LayerKind, g: Geometry, f: Array, b: Array, w: Array) -> None:
    """Where the host launches slower than the device runs, the device waits: a floor on each pass of a layer."""
    runtime, part = problem.runtime, PARTS.index("host")
    blocks = int(kind.mixer is not None) + int(kind.mlp is not None or kind.moe is not None)
    if kind.moe is not None:
        host = runtime.host_s_per_moe_layer + (runtime.moe_sync_s if runtime.moe_dispatcher != "hybridep" else 0.0)
    else:
        host = 0.0 if runtime.cuda_graphs else runtime.host_s_per_layer
    launch = host * blocks / 2.0 + runtime.host_s_per_tp_rank * (g.strategies.tp > 1)
    launch = launch * problem.cluster.accelerator.host_time
    f[part] = np.maximum(0.0, launch - f.sum(axis=0))
    b[part] = np.maximum(0.0, launch - b.sum(axis=0) - w.sum(axis=0))


def _blank(g: Geometry) -> tuple[Array, Array]:
    n = len(g.strategies)
    return np.zeros((len(PARTS), n)), np.zeros(n)


def _embedding_row(problem: Problem, g: Geometry) -> _Row:
    """Look-up, its scatter in backward, and the reduction of a vocabulary-split table."""
    model, s = problem.model, g.strategies
    f, zero = _blank(g)
    b, w = f.copy(), f.copy()
    moved = 2.0 * model.hidden_size * problem.activation_bytes * g.tokens
    rate = stream_rate(problem)
    f[2], b[2] = moved / rate, 2.0 * moved / rate
    nbytes = g.tokens * model.hidden_size * problem.activation_bytes
    one = np.ones_like(s.tp)
    plain, sharded = (~s.sp & (s.tp > 1)).astype(np.float64), (s.sp & (s.tp > 1)).astype(np.float64)
    comms: tuple[Comm, ...] = (
        Comm("tp", "all_reduce", FORWARD, nbytes, s.tp, one, plain, ""),
        Comm("tp", "reduce_scatter", FORWARD, nbytes, s.tp, one, sharded, ""),
        Comm("tp", "all_gather", BACKWARD, nbytes, s.tp, one, sharded, ""),
    )
    comms = _add_comms(problem, comms, g, f, b, w)
    width = model.embedding_dim or model.hidden_size
    extras = sum((e.parameters / shard(e.split, s.tp.astype(np.float64)) for e in model.embedding_extras), zero)
    dense = problem.padded_vocabulary(s.tp) * width / s.tp + extras
    return _Row(f, b, w, zero, zero, zero, zero, zero, dense, zero, comms)


def _head_row(problem: Problem, g: Geometry) -> _Row:
    """Final norm, logits and cross-entropy; the logits and their gradient are the workspace."""
    model, runtime, s = problem.model, problem.runtime, g.strategies
    f, zero = _blank(g)
    b, w = f.copy(), f.copy()
    tp = s.tp.astype(np.float64)
    vocabulary = problem.padded_vocabulary(s.tp).astype(np.float64)
    part = PARTS.index("head_loss")
    width = model.embedding_dim or model.hidden_size
    acc, dtype = problem.cluster.accelerator, problem.wide_dtype
    rows, columns = vocabulary / tp, np.full(len(s), float(width))
    shapes = ((g.tokens, rows, columns), (g.tokens, columns, rows), (columns, rows, g.tokens))
    for target, shape in zip((f, b, w), shapes, strict=True):
        target[part] = acc.gemm_time_s(*shape, dtype) / runtime.gemm_scale
    w[part] += accumulate_s(problem, vocabulary * width / tp)
    logits = g.tokens * vocabulary / (tp if runtime.loss_parallel else 1.0)
    stream = logits * runtime.loss_bytes_per_logit / stream_rate(problem)
    f[part] += stream / 2.0
    b[part] += stream / 2.0
    nbytes = g.tokens * model.hidden_size * problem.activation_bytes
    one = np.ones_like(s.tp)
    plain, sharded = (~s.sp & (s.tp > 1)).astype(np.float64), (s.sp & (s.tp > 1)).astype(np.float64)
    comms: tuple[Comm, ...] = (
        Comm("tp", "all_gather", FORWARD, nbytes, s.tp, one, sharded, "gemm"),
        Comm("tp", "all_reduce", BACKWARD, nbytes, s.tp, one, plain, "gemm"),
        Comm("tp", "reduce_scatter", BACKWARD, nbytes, s.tp, one, sharded, "gemm"),
        # The loss needs the largest logit, the sum of exponentials and the target's logit: FP32 per token.
        Comm("tp", "all_reduce", FORWARD, 4.0 * g.tokens, s.tp, one, (3.0 * (s.tp > 1)).astype(np.float64), ""),
    )
    comms = _add_comms(problem, comms, g, f, b, w)
    extras = sum((e.parameters / shard(e.split, tp) for e in model.head_extras), zero)
    own = 0.0 if model.tied_embeddings else 1.0
    dense = own * vocabulary * width / tp + extras
    kept = boundary_bytes(problem, g)
    return _Row(f, b, w, zero, kept, kept, kept, logits * runtime.logit_memory_bytes, dense, zero, comms)


def _mtp_row(problem: Problem, g: Geometry, kinds: list[_Row], head: _Row) -> _Row:
    """One MTP layer: its transformer layer, the projection that merges two streams, and the shared head and loss."""
    model = problem.model
    f, zero = _blank(g)
    if not model.mtp or not problem.workload.train_mtp:
        return _Row(f, f.copy(), f.copy(), zero, zero, zero, zero, zero, zero, zero, ())
    base = kinds[model.mtp[0]]
    tp = g.strategies.tp.astype(np.float64)
    gemm = [zero, zero, zero]
    for op in model.mtp_linears:
        gemm = [total + t for total, t in zip(gemm, linear_times(problem, op, g.tokens, tp), strict=True)]
    passes = [base.forward + head.forward, base.backward + head.backward, base.weight + head.weight]
    for target, seconds in zip(passes, gemm, strict=True):
        target[0] = target[0] + seconds
    added: tuple[Linear | Extra, ...] = (*model.mtp_linears, *model.mtp_extras)
    own = sum((op.parameters / shard(op.split, tp) for op in added), zero)
    extra = 2.0 * problem.activation_bytes * model.hidden_size * g.sharded_tokens
    return _Row(
        passes[0], passes[1], passes[2], base.selective, base.saved + extra, base.saved_selective + extra,
        base.boundary + extra, head.workspace, base.dense + own, base.expert, (*base.comms, *head.comms),
    )  # fmt: skip

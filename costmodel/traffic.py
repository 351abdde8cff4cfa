"""Collectives that each parallelism issues for one layer, one micro-batch: the one list that time and traffic read.

Sizes follow DESIGN 4.2: Megatron-LM (arXiv 1909.08053, section 3) for TP, Korthikanti et al. (arXiv 2205.05198,
section 4.2) for SP, DeepSpeed-Ulysses (arXiv 2309.14509, section 3.2), ring attention (arXiv 2310.01889, section 3),
and GShard (arXiv 2006.16668, section 3.3) for expert all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .model import AttentionCore, LayerKind, Moe, Split
from .problem import Array, Ints, Problem
from .strategy import CP_COMMS, Strategies

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class Comm:
    """One collective of a layer and pass; arrays have one entry per distinct strategy ``[u]``.

    ``nbytes`` as ``Cluster.collective_time_s`` counts it, ``count`` per layer and micro-batch, ``hide`` the kernels it
    may hide under: ``gemm``, ``attention``, ``layer`` or nothing. The layer table fills in how much of it hides:
    ``hidden_share`` of its seconds, at most ``room_s`` a layer.
    """

    parallelism: str
    collective: str
    phase: str
    nbytes: Array
    size: Ints
    stride: Ints
    count: Array
    hide: str
    hidden_share: Array | float = 0.0
    room_s: Array | float = 0.0

    def take(self, index: Ints) -> Comm:
        """The same for the strategies that an index array selects."""
        room = self.room_s[index] if isinstance(self.room_s, np.ndarray) else self.room_s
        share = self.hidden_share[index] if isinstance(self.hidden_share, np.ndarray) else self.hidden_share
        arrays = (self.nbytes[index], self.size[index], self.stride[index], self.count[index])
        return Comm(self.parallelism, self.collective, self.phase, *arrays, self.hide, share, room)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Per distinct strategy: tokens on a rank and the strides of its groups in rank order tp-cp-ep-dp-pp."""

    strategies: Strategies
    tokens: Array
    """micro_batch_size · sequence / cp: tokens whose attention and feed-forward a TP group computes."""
    sharded_tokens: Array
    """Tokens of the norm and residual regions on one rank: divided by tp under sequence parallelism."""
    inner: Array
    """Degree of the Ulysses all-to-all (1 unless cp_comm uses one)."""
    ring: Array
    """Degree of the ring or all-gather (1 under pure Ulysses)."""

    @classmethod
    def of(cls, problem: Problem, s: Strategies) -> Geometry:
        """Derive the geometry of each strategy."""
        tokens = s.micro_batch_size * problem.workload.sequence_length / s.cp
        shards = np.where(s.sp, s.tp, 1)
        a2a = s.cp_comm == CP_COMMS.index("a2a")
        both = s.cp_comm == CP_COMMS.index("a2a+p2p")
        inner = np.where(a2a, s.cp, np.where(both, s.ulysses, 1))
        return cls(s, tokens, tokens / shards, inner.astype(np.float64), (s.cp // inner).astype(np.float64))

    def take(self, index: Ints) -> Geometry:
        """The same for the strategies that an index array selects."""
        arrays = (self.tokens, self.sharded_tokens, self.inner, self.ring)
        return Geometry(self.strategies.take(index), *(x[index] for x in arrays))


def layer_comms(problem: Problem, kind: LayerKind, g: Geometry) -> Iterator[Comm]:
    """Every collective that one layer of this kind issues in one micro-batch, forward and backward."""
    yield from _tensor_comms(problem, kind, g)
    if kind.mixer is not None and isinstance(kind.mixer.core, AttentionCore):
        yield from _context_comms(problem, kind.mixer.core, g)
    if kind.moe is not None:
        yield from _expert_comms(problem, kind.moe, g)


def tensor_reductions(kind: LayerKind) -> int:
    """Blocks of a layer whose row-split output TP must reduce: attention, feed-forward, shared expert."""
    mixer = kind.mixer is not None and any(op.split is Split.ROW for op in kind.mixer.linears)
    feed = kind.mlp is not None or (kind.moe is not None and kind.moe.shared is not None)
    return 1 if kind.parallel_residual and mixer and feed else int(mixer) + int(feed)


def _tensor_comms(problem: Problem, kind: LayerKind, g: Geometry) -> Iterator[Comm]:
    s, blocks = g.strategies, float(tensor_reductions(kind))
    if not blocks:
        return
    nbytes = g.tokens * problem.model.hidden_size * problem.activation_bytes
    one = np.ones_like(s.tp)
    split = blocks * (s.tp > 1).astype(np.float64)
    plain, sharded = np.where(s.sp, 0.0, split), np.where(s.sp, split, 0.0)
    for phase in (FORWARD, BACKWARD):
        yield Comm("tp", "all_reduce", phase, nbytes, s.tp, one, plain, "gemm")
        yield Comm("tp", "all_gather", phase, nbytes, s.tp, one, sharded, "gemm")
        yield Comm("tp", "reduce_scatter", phase, nbytes, s.tp, one, sharded, "gemm")
    if problem.runtime.sp_regather:
        # Inputs of column-split layers are gathered again for the weight gradient, under the data-gradient GEMM.
        yield Comm("tp", "all_gather", BACKWARD, nbytes, s.tp, one, sharded, "dgrad")


def selective_comms(problem: Problem, kind: LayerKind, g: Geometry) -> Iterator[Comm]:
    """Gathers that selective recomputation repeats under sequence parallelism, beside those of ``layer_comms``.

    torchtitan's policy keeps what reduce-scatters return, and gathers again for the products it repeats.
    """
    runtime, s = problem.runtime, g.strategies
    if runtime.sp_regather or runtime.selective_recompute != "every_other_op":
        return
    nbytes = g.tokens * problem.model.hidden_size * problem.activation_bytes
    count = np.where(s.sp & (s.tp > 1), float(tensor_reductions(kind)), 0.0)
    yield Comm("tp", "all_gather", BACKWARD, nbytes, s.tp, np.ones_like(s.tp), count, "")


def _context_comms(problem: Problem, core: AttentionCore, g: Geometry) -> Iterator[Comm]:
    s = g.strategies
    if not np.any(s.cp > 1):
        return
    width = problem.activation_bytes / s.tp
    heads = np.maximum(core.num_kv_heads, s.tp)  # tp above the KV heads keeps a copy on each rank
    kv_bytes = g.tokens * heads * (core.qk_head_dim + core.v_head_dim) * width
    on = s.cp > 1
    gather = s.cp_comm == CP_COMMS.index("all_gather")
    # Ulysses: q, k, v in, the output back; the kv all-to-all replicates heads the degree exceeds.
    q_bytes = g.tokens * core.num_heads * core.qk_head_dim * width
    o_bytes = g.tokens * core.num_heads * core.v_head_dim * width
    u, ring = g.inner.astype(np.int64), g.ring.astype(np.int64)
    ulysses = (on & (u > 1)).astype(np.float64)
    replicas = np.maximum(1.0, u * s.tp / np.maximum(core.num_kv_heads, s.tp))
    for phase in (FORWARD, BACKWARD):
        for nbytes in (q_bytes, kv_bytes * replicas / 2, kv_bytes * replicas / 2, o_bytes):
            yield Comm("cp", "all_to_all", phase, nbytes, u, s.tp, ulysses, "")
    block = kv_bytes * replicas
    hops = np.where(on & ~gather, ring - 1, 0).astype(np.float64)
    stride = s.tp * u
    yield Comm("cp", "p2p", FORWARD, block, ring, stride, hops, "attention")
    yield Comm("cp", "p2p", BACKWARD, 2.0 * block, ring, stride, hops, "attention")
    gathered = (on & gather & (ring > 1)).astype(np.float64)
    whole = block * ring
    yield Comm("cp", "all_gather", FORWARD, whole, ring, stride, gathered, "")
    yield Comm("cp", "all_gather", BACKWARD, whole, ring, stride, gathered, "")
    yield Comm("cp", "reduce_scatter", BACKWARD, whole, ring, stride, gathered, "")


def _expert_comms(problem: Problem, moe: Moe, g: Geometry) -> Iterator[Comm]:
    s, runtime = g.strategies, problem.runtime
    width = float(moe.expert.in_features)
    local = g.sharded_tokens * problem.workload.expert_imbalance
    stride = s.etp
    on = (s.ep > 1).astype(np.float64)
    if runtime.moe_dispatcher == "allgather":
        for phase in (FORWARD, BACKWARD):
            nbytes = g.sharded_tokens * s.ep * width
            yield Comm("ep", "all_gather", phase, nbytes * runtime.dispatch_bytes, s.ep, stride, on, "layer")
            yield Comm("ep", "reduce_scatter", phase, nbytes * runtime.combine_bytes, s.ep, stride, on, "layer")
    else:
        copies = token_copies(problem, moe, s)
        for phase in (FORWARD, BACKWARD):
            out, back = runtime.dispatch_bytes, runtime.combine_bytes
            if phase is BACKWARD:
                out, back = back, back  # gradients of the combine go out wide; those of the dispatch come back wide
            yield Comm("ep", "all_to_all", phase, local * copies * width * out, s.ep, stride, on, "layer")
            yield Comm("ep", "all_to_all", phase, local * copies * width * back, s.ep, stride, on, "layer")
    # Inside an expert's tensor parallel group the routed tokens are gathered, and their partial sums scattered.
    routed = local * moe.top_k * s.etp * width * problem.activation_bytes
    split, one = (s.etp > 1).astype(np.float64), np.ones_like(s.etp)
    for phase in (FORWARD, BACKWARD):
        yield Comm("etp", "all_gather", phase, routed, s.etp, one, split, "")
        yield Comm("etp", "reduce_scatter", phase, routed, s.etp, one, split, "")


def token_copies(problem: Problem, moe: Moe, s: Strategies) -> Array:
    """Copies of a token that cross the network per dispatch.

    Plain all-to-all sends one per chosen expert. DeepEP and HybridEP send one per destination node and fan out inside
    it (DeepSeek-V3, arXiv 2412.19437, section 3.2.2): the expected number of distinct nodes among ``top_k`` uniform
    choices, at most the router's group limit.
    """
    if problem.runtime.moe_dispatcher not in ("deepep", "hybridep"):
        return np.full(len(s), float(moe.top_k))
    domain = problem.cluster.tiers[0].size
    nodes = np.maximum(1.0, s.ep * s.etp / domain)
    distinct = nodes * (1.0 - (1.0 - 1.0 / nodes) ** moe.top_k)
    if moe.num_groups > 1:
        distinct = np.minimum(distinct, moe.top_groups * np.maximum(1.0, nodes / moe.num_groups))
    return np.where(nodes > 1.0, np.minimum(distinct, moe.top_k), float(moe.top_k))

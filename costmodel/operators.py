"""Kernel times, saved bytes and parameters of one layer, read off the operators of its kind.

Every function takes the problem, an operator or kind, and the geometry of ``[u]`` distinct strategies; it returns
arrays of that shape. Times are seconds for one micro-batch on one rank, sizes bytes on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwise.hardware_profiles.accelerator import misalignment, visible_keys

from .model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, Moe, RecurrentCore, Split
from .problem import Array, Ints, Problem
from .traffic import Geometry

SCAN_CHUNK = 64
"""Chunk length of chunked linear attention and state-space scans (Mamba-2, arXiv 2405.21060, section 6)."""

SCAN_RATE = 0.05
"""Share of the attention kernel's forward rate that chunked scans reach, their many small kernels included: fitted to
25 published runs of hybrid Mamba models, which it predicts within 10 % in the median."""

SCORE_BYTES, DROPPED_SCORE_BYTES = 2.0, 3.0
"""Kept per score by unfused attention: the softmax output; under dropout its mask (1) and the dropped scores (2) too
(Korthikanti et al., equation 2: 5 a s per token)."""


@dataclass(slots=True)
class Pass:
    """Seconds of one pass by kind of kernel."""

    gemm: Array
    attention: Array
    elementwise: Array

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.gemm + other.gemm, self.attention + other.attention, self.elementwise + other.elementwise)


def shard(split: Split, tp: Array) -> Array:
    """What a dimension is divided by."""
    return np.ones_like(tp) if split is Split.NONE else tp


def linear_times(
    problem: Problem, op: Linear, tokens: Array, tp: Array, wide: bool = False
) -> tuple[Array, Array, Array]:
    """Seconds of the forward, data-gradient and weight-gradient GEMMs of a linear layer after sharding."""
    acc, dtype = problem.cluster.accelerator, problem.wide_dtype if wide else problem.gemm_dtype
    n = op.out_features / (tp if op.split is Split.COLUMN else 1.0)
    k = op.in_features / (tp if op.split is Split.ROW else 1.0)
    scale = misalignment(n, k) / problem.runtime.gemm_scale
    return (
        acc.gemm_time_s(tokens, n, k, dtype) * scale,
        acc.gemm_time_s(tokens, k, n, dtype) * scale,
        acc.gemm_time_s(k, n, tokens, dtype) * scale,
    )


def expert_times(problem: Problem, moe: Moe, g: Geometry) -> tuple[Array, Array, Array]:
    """Seconds of the grouped expert GEMMs: forward, data gradient and weight gradient."""
    acc, dtype, s = problem.cluster.accelerator, problem.gemm_dtype, g.strategies
    local = moe.num_experts / s.ep
    rows = routed_tokens(problem, moe, g) / local
    total = [np.zeros(len(s)) for _ in range(3)]
    for op in moe.expert.linears:
        n = op.out_features / (s.etp if op.split is Split.COLUMN else 1)
        k = op.in_features / (s.etp if op.split is Split.ROW else 1)
        scale = misalignment(n, k) / problem.runtime.grouped_gemm_scale
        for i, (a, b, c) in enumerate(((rows, n, k), (rows, k, n), (k, n, rows))):
            total[i] = total[i] + acc.gemm_time_s(a, b, c, dtype, local) * scale
    return total[0], total[1], total[2]


def routed_tokens(problem: Problem, moe: Moe, g: Geometry) -> Array:
    """Token copies that the experts of the busiest rank process in one micro-batch."""
    return g.sharded_tokens * g.strategies.etp * moe.top_k * problem.workload.expert_imbalance


def core_times(problem: Problem, core: AttentionCore | RecurrentCore, g: Geometry) -> tuple[Array, Array]:
    """Seconds of the attention core or scan, forward and backward (it has no weight gradient)."""
    if isinstance(core, RecurrentCore):
        return _scan_times(problem, core, g)
    acc, s = problem.cluster.accelerator, g.strategies
    heads = s.micro_batch_size * (core.num_heads / s.tp) / s.cp
    index = s.micro_batch_size * (core.indexer_heads / s.cp)
    kernel, dtype, passes = problem.attention_kernel, problem.wide_dtype, problem.runtime.unfused_passes_factor
    out = []
    for backward in (False, True):
        seconds = np.zeros(len(s))
        for view in views(core, problem.workload.sequence_length):
            causal = view.causal and problem.runtime.attention_causal_skip
            shape = (view.queries, view.keys, core.qk_head_dim, core.v_head_dim)
            seconds = seconds + acc.attention_time_s(
                kernel, heads * view.repeats, *shape, causal, backward, dtype, window=view.window, passes=passes
            )
        if core.indexer_heads:
            whole = _dense_view(core, problem.workload.sequence_length)
            causal = whole.causal and problem.runtime.attention_causal_skip
            dims = (whole.queries, whole.keys, core.indexer_head_dim, 0.0)
            seconds = seconds + acc.attention_time_s(kernel, index, *dims, causal, backward, dtype)
        out.append(seconds)
    return out[0], out[1]


@dataclass(frozen=True, slots=True)
class View:
    """One rectangle of scores: ``repeats`` times ``queries`` x ``keys``, causal or not, through a window."""

    repeats: float
    queries: float
    keys: float
    causal: bool
    window: float | None

    @property
    def pairs(self) -> float:
        """Visible query-key pairs of one head and sequence."""
        return self.repeats * self.queries * float(visible_keys(self.queries, self.keys, self.causal, self.window))


def views(core: AttentionCore, sequence: float) -> tuple[View, ...]:
    """What a core scores over one sequence: dense, windowed, chunked, compressed or selected, and local keys."""
    if core.chunked and core.window is not None:
        chunk = min(float(core.window), float(sequence))
        return (View(sequence / chunk, chunk, chunk, core.causal, None),)
    main = _dense_view(core, sequence)
    limits = [float(x) for x in (core.window, core.selected_keys) if x]
    out = [View(1.0, main.queries, main.keys, main.causal, min(limits) if limits else None)]
    if core.local_keys:
        out.append(View(1.0, float(sequence), float(sequence), core.causal, float(core.local_keys)))
    return tuple(out)


def _dense_view(core: AttentionCore, sequence: float) -> View:
    """All keys; pooled ones are counted at the causal mean, since a query meets pooled keys at another pace."""
    if core.compression == 1:
        return View(1.0, float(sequence), float(sequence), core.causal, None)
    return View(1.0, float(sequence), sequence / core.compression / (2.0 if core.causal else 1.0), False, None)


def scan_flops_per_token(core: RecurrentCore, tp: Array | Ints) -> Array:
    """Forward FLOPs per token of a chunked scan: state update and read, and the products inside a chunk."""
    state = 4.0 * core.key_dim * core.value_dim
    inside = 2.0 * SCAN_CHUNK * (core.key_dim + core.value_dim)
    conv = 2.0 * core.conv_kernel * core.conv_channels
    return np.asarray((core.num_heads * (state + inside) + conv) / tp)


def _scan_times(problem: Problem, core: RecurrentCore, g: Geometry) -> tuple[Array, Array]:
    acc = problem.cluster.accelerator
    rate = acc.peak_flops[problem.wide_dtype] * SCAN_RATE * acc.attention[problem.attention_kernel].forward
    compute = scan_flops_per_token(core, g.strategies.tp) * g.tokens / rate
    moved = 2.0 * problem.activation_bytes * core_width(core) / g.strategies.tp * g.tokens
    forward = np.maximum(compute, moved / stream_rate(problem))
    return forward, 2.5 * forward


def core_width(core: AttentionCore | RecurrentCore) -> float:
    """Elements per token that go into and out of the core: queries, keys, values, outputs."""
    if isinstance(core, RecurrentCore):
        return 2.0 * core.num_heads * core.value_dim + 2.0 * core.num_key_heads * core.key_dim
    q = core.num_heads * (core.qk_head_dim + core.v_head_dim)
    return q + core.num_kv_heads * (core.qk_head_dim + core.v_head_dim)


def layer_times(problem: Problem, kind: LayerKind, g: Geometry) -> tuple[Pass, Pass, Pass]:
    """Forward, data-gradient and weight-gradient seconds of one layer of this kind."""
    tp = g.strategies.tp.astype(float)
    zero = np.zeros(len(g.strategies))
    gemm, core = [zero, zero, zero], [zero, zero]
    for op, tokens, wide in _linears(kind, g):
        for i, seconds in enumerate(linear_times(problem, op, tokens, tp, wide)):
            gemm[i] = gemm[i] + seconds
    if kind.moe is not None:
        for i, seconds in enumerate(expert_times(problem, kind.moe, g)):
            gemm[i] = gemm[i] + seconds
    if kind.mixer is not None and kind.mixer.core is not None:
        core = list(core_times(problem, kind.mixer.core, g))
    stream = elementwise_bytes(problem, kind, g) / stream_rate(problem)
    return (
        Pass(gemm[0], core[0], stream),
        Pass(gemm[1], core[1], 2.0 * stream),
        Pass(gemm[2], zero, zero),
    )


def _linears(kind: LayerKind, g: Geometry) -> list[tuple[Linear, Array, bool]]:
    """Dense linear layers with the tokens each sees; the router runs on a rank's own tokens, in 16 bits or more."""
    ops: list[tuple[Linear, Array, bool]] = []
    if kind.mixer is not None:
        ops += [(op, g.sharded_tokens if op.split is Split.NONE else g.tokens, False) for op in kind.mixer.linears]
    if kind.mlp is not None:
        ops += [(op, g.tokens, False) for op in kind.mlp.linears]
    if kind.moe is not None:
        ops.append((kind.moe.router, g.sharded_tokens, True))
        ops += [(op, g.sharded_tokens, False) for op in kind.moe.latent_linears]
        if kind.moe.shared is not None:
            ops += [(op, g.tokens, False) for op in kind.moe.shared.linears]
    return ops


def stream_rate(problem: Problem) -> float:
    """Bytes per second of streaming kernels."""
    acc = problem.cluster.accelerator
    return acc.memory_bytes_per_s * acc.memory_efficiency


def elementwise_bytes(problem: Problem, kind: LayerKind, g: Geometry) -> Array:
    """Bytes a forward pass moves outside GEMMs and attention: norms, residuals, rotary, activations, permutation.

    A fused norm reads and writes the hidden state once, a residual addition reads two and writes one, an activation
    reads its inputs and writes its output; backward moves twice as much. Linear in the runtime's factors.
    """
    tp, h = g.strategies.tp, problem.model.hidden_size
    blocks = int(kind.mixer is not None) + int(kind.mlp is not None or kind.moe is not None)
    residual = (2.0 * len(kind.norms) + 3.0 * blocks) * h * g.sharded_tokens
    inside = np.zeros(len(g.strategies))
    if kind.mixer is not None and kind.mixer.core is not None:
        inside = inside + 2.0 * core_width(kind.mixer.core) / tp * g.tokens
        if isinstance(kind.mixer.core, RecurrentCore):
            # The short convolution reads and writes its channels; the gated norm reads two and writes one.
            core = kind.mixer.core
            inside = inside + (2.0 * core.conv_channels + 3.0 * core.num_heads * core.value_dim) / tp * g.tokens
    for mlp in (kind.mlp, kind.moe.shared if kind.moe else None):
        if mlp is not None:
            inside = inside + activation_width(mlp) / tp * g.tokens
    total = (residual + inside) * problem.runtime.elementwise_bytes_factor
    if kind.moe is not None:
        total = total + routed_elementwise(problem, kind.moe, g)
    return total * problem.activation_bytes


def routed_elementwise(problem: Problem, moe: Moe, g: Geometry) -> Array:
    """Elements that the activation of the routed experts and the permutation of their tokens move in a forward pass."""
    routed = routed_tokens(problem, moe, g)
    act = activation_width(moe.expert) / g.strategies.etp * routed
    if moe.expert.bias:
        # No fused kernel adds the biases: they and the clamped, shifted gate run one operation at a time.
        act = act * problem.runtime.biased_expert_passes
    permute = 4.0 * moe.expert.in_features * routed * problem.runtime.permute_bytes_factor
    return act * problem.runtime.elementwise_bytes_factor + permute


def activation_width(mlp: Mlp) -> float:
    """Elements per token an activation reads and writes: gate and up in, product out, or one in and one out."""
    return (3.0 if mlp.gated else 2.0) * mlp.width


def saved_bytes(problem: Problem, kind: LayerKind, g: Geometry) -> Array:
    """Bytes one layer keeps for backward per micro-batch, nothing recomputed (Korthikanti et al. eq. 1-2)."""
    a, q = problem.activation_bytes, problem.saved_input_bytes
    tp, h = g.strategies.tp, problem.model.hidden_size
    blocks = [b for b in (kind.mixer, kind.mlp or kind.moe) if b is not None]
    reads = 1 if kind.parallel_residual else len(blocks)
    mask = 1.0 if problem.runtime.dropout else 0.0
    # Each block: the residual stream its norm reads, the norm's output its first linear reads, and a dropout mask.
    total = (reads * a + mask * len(blocks)) * h * g.sharded_tokens + reads * q * h * input_tokens(problem, g)
    if kind.mixer is not None:
        total = total + _mixer_saved(problem, kind.mixer, g)
    for mlp in (kind.mlp, kind.moe.shared if kind.moe else None):
        if mlp is not None:
            total = total + mlp_saved(problem, mlp, g.tokens / tp)
    if kind.moe is not None:
        total = total + routed_saved(problem, kind.moe, g)
    return total * problem.runtime.activation_scale


def routed_saved(problem: Problem, moe: Moe, g: Geometry) -> Array:
    """Bytes of ``saved_bytes`` of the router and the routed experts, before the scale of activations."""
    q, routed = problem.saved_input_bytes, routed_tokens(problem, moe, g)
    total = mlp_saved(problem, moe.expert, routed / g.strategies.etp)
    # Dispatched inputs of the experts; not their outputs, as the routing weights are applied in the activation.
    total = total + q * moe.expert.in_features * routed
    total = total + 8.0 * moe.num_experts * g.sharded_tokens
    return total + sum(q * op.in_features for op in moe.latent_linears) * g.sharded_tokens


def offloadable_bytes(problem: Problem, kind: LayerKind, g: Geometry) -> Array:
    """Bytes of ``saved_bytes`` that activation offload moves to the host: what attention reads and gives, and what the
    routed experts and their activation read (Megatron-Core's modules core_attn, attn_proj, expert_fc1 and moe_act)."""
    a, s = problem.activation_bytes, g.strategies
    total = np.zeros(len(s))
    if kind.mixer is not None and isinstance(kind.mixer.core, AttentionCore):
        total = total + a * core_width(kind.mixer.core) / s.tp * g.tokens
    if kind.moe is not None:
        expert, routed = kind.moe.expert, routed_tokens(problem, kind.moe, g)
        total = total + problem.saved_input_bytes * expert.in_features * routed
        total = total + a * (2 if expert.gated else 1) * expert.width * routed / s.etp
    return np.asarray(total * problem.runtime.activation_scale)


def input_tokens(problem: Problem, g: Geometry) -> Array:
    """Tokens whose column-split inputs are kept: a rank's shard, or all of the TP group's."""
    return g.sharded_tokens if problem.runtime.sp_regather else g.tokens


def _mixer_saved(problem: Problem, mixer: Mixer, g: Geometry) -> Array:
    a, q, tp = problem.activation_bytes, problem.saved_input_bytes, g.strategies.tp
    hidden = problem.model.hidden_size
    latent = sum(op.in_features for op in mixer.linears if op.in_features != hidden and op.split is Split.COLUMN)
    total = (a + q) * latent * g.sharded_tokens
    if mixer.core is None:
        return total
    # Queries, keys, values and the output; in FP8 the output projection keeps its own one-byte copy. Scans keep their
    # gate, too, and the output projection reads a gated norm's output (the fused scan convolves again in backward).
    copies = a * core_width(mixer.core)
    output = sum(op.in_features for op in mixer.linears if op.split is Split.ROW)
    if isinstance(mixer.core, RecurrentCore):
        copies += a * mixer.core.num_heads * mixer.core.value_dim + q * output
    elif q < a:
        copies += q * output
    total = total + copies / tp * g.tokens
    return total + score_bytes(problem, mixer.core, g)


def score_bytes(problem: Problem, core: AttentionCore | RecurrentCore, g: Geometry) -> Array:
    """Bytes per score matrix kept by unfused attention; fused kernels keep one FP32 log-sum-exp per row."""
    if isinstance(core, RecurrentCore):
        return np.zeros(len(g.strategies))
    rows = g.tokens * core.num_heads / g.strategies.tp
    if problem.attention_kernel != "unfused":
        return 4.0 * rows  # the log-sum-exp, FP32
    keys = problem.workload.sequence_length / core.compression
    return (SCORE_BYTES + (DROPPED_SCORE_BYTES if problem.runtime.dropout else 0.0)) * rows * keys


def boundary_bytes(problem: Problem, g: Geometry) -> Array:
    """Bytes of a layer's input, all that full recomputation keeps."""
    return problem.activation_bytes * problem.model.hidden_size * g.sharded_tokens


def mlp_saved(problem: Problem, mlp: Mlp, tokens: Array) -> Array:
    """Inputs of the activation (gate and up, or up) and of the down projection."""
    return (problem.activation_bytes * (2 if mlp.gated else 1) + problem.saved_input_bytes) * mlp.width * tokens


def rank_parameters(kind: LayerKind, tp: Array, ep: Array, etp: Array) -> tuple[Array, Array]:
    """Parameters of one layer on one rank: outside the routed experts, and of its routed experts."""
    ops: list[Linear | Extra] = [*kind.norms, *kind.extras]
    if kind.mixer is not None:
        ops += [*kind.mixer.linears, *kind.mixer.extras]
    for mlp in (kind.mlp, kind.moe.shared if kind.moe else None):
        if mlp is not None:
            ops += [*mlp.linears, *mlp.extras]
    expert = np.zeros_like(tp)
    if kind.moe is not None:
        ops += [kind.moe.router, *kind.moe.latent_linears, *kind.moe.extras, *kind.moe.shared_extras]
        inside: tuple[Linear | Extra, ...] = (*kind.moe.expert.linears, *kind.moe.expert.extras)
        one = sum(op.parameters / shard(op.split, etp) for op in inside)
        expert = kind.moe.num_experts / ep * one
    dense = sum((op.parameters / shard(op.split, tp) for op in ops), np.zeros_like(tp))
    return dense, expert

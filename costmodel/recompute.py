"""Selective recomputation: what frameworks mean by it, the seconds it adds and the bytes it gives back.

Three meanings (``Runtime.selective_recompute``): ``attention_core`` is Megatron-LM's first (Korthikanti et al., arXiv
2205.05198, section 5); ``every_other_op`` is torchtitan's per-operator policy; ``norms_and_activations`` is the set of
Megatron-Core modules that cost little for what they free: ``layernorm``, ``moe_act``, ``mla_up_proj``, and ``mlp`` in
models without experts. A launch file may name other modules (``Runtime.recompute_modules``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from .model import AttentionCore, LayerKind, Linear, Mixer, Mlp, RecurrentCore, Split
from .operators import (
    Pass,
    activation_width,
    boundary_bytes,
    core_width,
    expert_times,
    input_tokens,
    linear_times,
    mlp_saved,
    routed_elementwise,
    routed_saved,
    routed_tokens,
    saved_bytes,
    score_bytes,
    stream_rate,
)
from .problem import Array, Ints, Problem
from .runtime import RecomputeModule
from .traffic import Geometry


def selective_recompute(
    problem: Problem, kind: LayerKind, g: Geometry, forward: Pass, tp_comm: Array, ep_comm: Array
) -> tuple[Array, Array]:
    """Extra seconds and bytes given back for one layer and micro-batch; traffic as it is exposed in forward."""
    modules = selected_modules(problem)
    if not modules:
        # Every second matrix multiplication's output is kept; the rest and all element-wise work run again.
        kept = _second_outputs(problem, kind, g) * problem.runtime.activation_scale + boundary_bytes(problem, g)
        return 0.5 * forward.gemm + forward.elementwise, np.maximum(0.0, saved_bytes(problem, kind, g) - kept)
    costs: dict[RecomputeModule, Callable[[], tuple[Array, Array]]] = {
        # Flash kernels keep no scores: recomputing them runs the kernel's forward once more and frees nothing.
        "core_attn": lambda: (forward.attention, _scores(problem, kind, g)),
        "layernorm": lambda: _norms(problem, kind, g),
        "moe_act": lambda: _expert_activation(problem, kind, g),
        "mla_up_proj": lambda: _mla_up(problem, kind, g),
        "mlp": lambda: _whole_mlp(problem, kind, kind.mlp, g, tp_comm),
        "shared_experts": lambda: _whole_mlp(problem, kind, kind.moe.shared if kind.moe else None, g, tp_comm),
        "moe": lambda: _whole_moe(problem, kind, g, tp_comm, ep_comm),
    }
    parts = [costs[module]() for module in modules]
    seconds, freed = (np.sum([part[i] for part in parts], axis=0) for i in (0, 1))
    return seconds, freed * problem.runtime.activation_scale


NORMS_AND_ACTIVATIONS: Final[Mapping[bool, tuple[RecomputeModule, ...]]] = {
    True: ("layernorm", "moe_act", "mla_up_proj"),
    False: ("layernorm", "moe_act", "mla_up_proj", "mlp"),
}
"""Modules of ``norms_and_activations`` in models with and without experts."""


def selected_modules(problem: Problem) -> tuple[RecomputeModule, ...]:
    """Megatron-Core's modules that selective recomputation repeats, each once; none under another policy.

    The checkpoint of a whole expert layer holds the modules within it.
    """
    runtime = problem.runtime
    if runtime.selective_recompute == "every_other_op":
        return ()
    own = runtime.recompute_modules
    if not own:
        core = runtime.selective_recompute == "attention_core"
        return ("core_attn",) if core else NORMS_AND_ACTIVATIONS[problem.model.is_moe]
    inside = ("moe_act", "shared_experts") if "moe" in own else ()
    return tuple(dict.fromkeys(m for m in own if m not in inside))


def _second_outputs(problem: Problem, kind: LayerKind, g: Geometry) -> Array:
    """Bytes of the attention output and of the 1st, 3rd, 5th … linear output: q, k, v, out, gate, up, down in turn.

    Of a fused q-k-v or gate-up projection the parts count one by one, as the policy sees them unfused. Expert layers
    count likewise, on routed tokens.
    """
    s, a = g.strategies, problem.activation_bytes
    widths: list[tuple[float, Array]] = []
    if kind.mixer is not None:
        core = kind.mixer.core
        for op in kind.mixer.linears:
            parts = [float(op.out_features)]
            if op.name == "qkv" and isinstance(core, AttentionCore):
                kv = [core.num_kv_heads * core.qk_head_dim, core.num_kv_heads * core.v_head_dim]
                parts = [float(op.out_features - sum(kv)), *map(float, kv)]
            widths += [(w, g.tokens / s.tp if op.split is Split.COLUMN else g.sharded_tokens) for w in parts]
    for mlp, tokens, tp, whole in _feed_forwards(problem, kind, g):
        widths += [(float(mlp.width), tokens / tp)] * (2 if mlp.gated else 1) + [(float(mlp.in_features), whole)]
    total = np.sum([width * tokens for width, tokens in widths[::2]], axis=0) if widths else np.zeros(len(s))
    if kind.mixer is not None and kind.mixer.core is not None:
        core_out = sum(op.in_features for op in kind.mixer.linears if op.split is Split.ROW)
        total = total + core_out * g.tokens / s.tp
    return np.asarray(a * total)


def _feed_forwards(problem: Problem, kind: LayerKind, g: Geometry) -> list[tuple[Mlp, Array, Ints, Array]]:
    """Feed-forward networks of a layer: network, tokens, what divides its width, and tokens of its output."""
    s = g.strategies
    out = [(m, g.tokens, s.tp, g.sharded_tokens) for m in (kind.mlp, kind.moe.shared if kind.moe else None) if m]
    if kind.moe is not None:
        routed = routed_tokens(problem, kind.moe, g)
        out.append((kind.moe.expert, routed, s.etp, routed))
    return out


def _nothing(g: Geometry) -> tuple[Array, Array]:
    zero = np.zeros(len(g.strategies))
    return zero, zero


def _scores(problem: Problem, kind: LayerKind, g: Geometry) -> Array:
    core = kind.mixer.core if kind.mixer else None
    if core is None or isinstance(core, RecurrentCore) or problem.attention_kernel != "unfused":
        return np.zeros(len(g.strategies))
    return score_bytes(problem, core, g)


def _norms(problem: Problem, kind: LayerKind, g: Geometry) -> tuple[Array, Array]:
    """Norm outputs: read the residual stream, write the linear layers' input again."""
    blocks = 1 if kind.parallel_residual else int(kind.mixer is not None) + int(bool(kind.mlp or kind.moe))
    hidden = problem.model.hidden_size * g.sharded_tokens
    moved = 2.0 * blocks * hidden * problem.activation_bytes * problem.runtime.elementwise_bytes_factor
    kept = blocks * problem.model.hidden_size * input_tokens(problem, g)
    return moved / stream_rate(problem), problem.saved_input_bytes * kept


def _expert_activation(problem: Problem, kind: LayerKind, g: Geometry) -> tuple[Array, Array]:
    """The experts' activation output, the input of their down projection."""
    if kind.moe is None:
        return _nothing(g)
    routed = routed_tokens(problem, kind.moe, g) / g.strategies.etp
    moved = activation_width(kind.moe.expert) * routed * problem.activation_bytes
    seconds = moved * problem.runtime.elementwise_bytes_factor / stream_rate(problem)
    return seconds, problem.saved_input_bytes * kind.moe.expert.width * routed


def _mla_up(problem: Problem, kind: LayerKind, g: Geometry) -> tuple[Array, Array]:
    """Queries, keys and values of multi-head latent attention, from their latents."""
    mixer = kind.mixer
    if mixer is None or mixer.kind != "mla" or not isinstance(mixer.core, AttentionCore):
        return _nothing(g)
    tp = g.strategies.tp.astype(np.float64)
    seconds = np.zeros(len(tp))
    for op in _up_projections(problem, mixer):
        seconds = seconds + linear_times(problem, op, g.tokens, tp)[0]
    # Everything that goes into the core: the keys are expanded with their rotary part first.
    width = core_width(mixer.core) - mixer.core.num_heads * mixer.core.v_head_dim
    return seconds, problem.activation_bytes * width / tp * g.tokens


def _up_projections(problem: Problem, mixer: Mixer) -> list[Linear]:
    hidden = problem.model.hidden_size
    return [op for op in mixer.linears if op.split is Split.COLUMN and op.in_features != hidden]


def _whole_mlp(problem: Problem, kind: LayerKind, mlp: Mlp | None, g: Geometry, tp_comm: Array) -> tuple[Array, Array]:
    """A whole feed-forward network or shared expert, its reduction over TP included."""
    if mlp is None:
        return _nothing(g)
    tp = g.strategies.tp.astype(np.float64)
    seconds = sum((linear_times(problem, op, g.tokens, tp)[0] for op in mlp.linears), np.zeros(len(tp)))
    moved = activation_width(mlp) * g.tokens / tp * problem.activation_bytes
    seconds = seconds + moved * problem.runtime.elementwise_bytes_factor / stream_rate(problem)
    blocks = 1.0 if kind.parallel_residual or kind.mixer is None else 2.0
    return seconds + tp_comm / blocks, mlp_saved(problem, mlp, g.tokens / tp)


def _whole_moe(problem: Problem, kind: LayerKind, g: Geometry, tp_comm: Array, ep_comm: Array) -> tuple[Array, Array]:
    """A whole expert layer: router, dispatch, experts, combination and the shared expert."""
    moe = kind.moe
    if moe is None:
        return _nothing(g)
    seconds, freed = _whole_mlp(problem, kind, moe.shared, g, tp_comm)
    one = np.ones(len(g.strategies))
    seconds = seconds + linear_times(problem, moe.router, g.sharded_tokens, one, wide=True)[0]
    for op in moe.latent_linears:
        seconds = seconds + linear_times(problem, op, g.sharded_tokens, one)[0]
    seconds = seconds + expert_times(problem, moe, g)[0] + ep_comm
    moved = routed_elementwise(problem, moe, g) * problem.activation_bytes
    return seconds + moved / stream_rate(problem), freed + routed_saved(problem, moe, g)

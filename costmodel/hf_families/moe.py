"""Routed decoders with ordinary attention: Mixtral, Qwen MoE, gpt-oss, Llama 4, GLM-4.5 and their kin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..model import Extra, LayerKind, Mixer, Mlp, ModelSpec, Moe, Split
from . import windows
from .config import Config
from .dense import mtp_join
from .parts import (
    Frame,
    assemble,
    head_norms,
    layer,
    layer_norm,
    projection_norms,
    read_groups,
    read_heads,
    router,
    softmax_attention,
    span_mark,
    standard_frame,
    two_rms_norms,
)

MAX_EXPERTS: Final = 10**6

MINIMAX_SCALES: Final = (
    *(
        f"layernorm_{part}_{name}"
        for part in ("full_attention", "linear_attention", "mlp")
        for name in ("alpha", "beta")
    ),
    *(f"{part}_{name}_factor" for part in ("full_attn", "linear_attn", "mlp") for name in ("alpha", "beta")),
    "postnorm",
    "shared_moe_mode",
)
"""Constants of the MiniMax residual connections: numbers, not weights."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How many experts there are and how many a token uses."""

    experts: int
    top_k: int


def read_routing(
    cfg: Config,
    experts: tuple[str, ...],
    top: tuple[str, ...],
    defaults: tuple[int | None, int | None] = (None, None),
) -> Routing:
    """Expert count and top-k under the family's own key names; a default of None makes the key required."""
    count = cfg.integer(*experts, default=defaults[0], maximum=MAX_EXPERTS)
    k = cfg.integer(*top, default=defaults[1])
    cfg.at_most(next((key for key in top if cfg.has(key)), top[0]), k, experts[0], count)
    return Routing(count, k)


def gated_moe(
    hidden: int,
    width: int,
    routing: Routing,
    *,
    shared_width: int = 0,
    shared_gate: bool = False,
    groups: tuple[int, int] = (0, 0),
    router_bias: bool = False,
) -> Moe:
    """Gated experts without biases behind one router, with an optional shared expert."""
    gate = (Extra("shared_expert_gate", hidden),) if shared_gate else ()
    return Moe(
        routing.experts,
        routing.top_k,
        Mlp(hidden, width, gated=True),
        router(hidden, routing.experts, router_bias),
        shared=Mlp(hidden, shared_width, gated=True) if shared_width else None,
        shared_extras=gate,
        num_groups=groups[0],
        top_groups=groups[1],
    )


def dense_first(cfg: Config, layers: int, default: int) -> list[bool]:
    """``first_k_dense_replace``: True for the routed layers behind the first dense ones."""
    first = cfg.integer("first_k_dense_replace", default=default, minimum=0)
    # The reference classes ignore moe_layer_freq; any value but 1 would describe another model.
    if isinstance(cfg.data.get("moe_layer_freq"), list):
        return [bool(v) for v in cfg.integers("moe_layer_freq", layers) or []]
    if (cfg.optional_integer("moe_layer_freq") or 1) != 1:
        cfg.fail("moe_layer_freq", "1: routed layers follow each other in this class")
    return [i >= first for i in range(layers)]


def read_mixtral(cfg: Config, name: str) -> ModelSpec:
    """Mixtral: every layer routed, ``intermediate_size`` is the expert's width."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8)
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), (8, 2))
    cfg.ignore("hidden_act")
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    kinds = [
        layer(softmax_attention(heads, window=w), moe, two_rms_norms(hidden), mark=span_mark(w))
        for w in windows.same_window(cfg, layers)
    ]
    return assemble(cfg, name, "MixtralForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


def read_olmoe(cfg: Config, name: str) -> ModelSpec:
    """OLMoE: QK norm over the whole projection, every layer routed."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    routing = read_routing(cfg, ("num_experts", "num_local_experts"), ("num_experts_per_tok",), (64, 8))
    bias = cfg.flag("attention_bias", False)
    cfg.ignore("hidden_act", "clip_qkv")
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias, extras=projection_norms(heads))
    kinds = [layer(mixer, moe, two_rms_norms(hidden))] * layers
    return assemble(cfg, name, "OlmoeForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


def read_granite_moe(cfg: Config, name: str) -> ModelSpec:
    """Granite MoE: Mixtral's layout with an attention bias switch."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    routing = read_routing(cfg, ("num_local_experts",), ("num_experts_per_tok",), (8, 2))
    bias = cfg.flag("attention_bias", False)
    cfg.ignore("hidden_act")
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    kinds = [layer(softmax_attention(heads, qkv_bias=bias, out_bias=bias), moe, two_rms_norms(hidden))] * layers
    return assemble(cfg, name, "GraniteMoeForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


def read_phimoe(cfg: Config, name: str) -> ModelSpec:
    """Phi-3.5-MoE: Mixtral's layout with LayerNorms and biases, on the head too."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8)
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), (16, 2))
    bias, head_bias = cfg.flag("attention_bias", False), cfg.flag("lm_head_bias", False)
    cfg.ignore("hidden_act")
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    norms = layer_norm("input_norm", hidden), layer_norm("post_attention_norm", hidden)
    kinds = [
        layer(softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=w), moe, norms)
        for w in windows.same_window(cfg, layers)
    ]
    vocab = cfg.integer("vocab_size")
    head: tuple[Extra, ...] = (layer_norm("final_norm", hidden),)
    if head_bias:
        head += (Extra("head_bias", vocab, Split.COLUMN),)
    return assemble(cfg, name, "PhimoeForCausalLM", kinds, Frame(hidden, vocab, cfg.tied(False), head))


def qwen_routed_layers(cfg: Config, layers: int) -> list[bool]:
    """``decoder_sparse_step`` and ``mlp_only_layers``: True for the routed layers."""
    step = cfg.optional_integer("decoder_sparse_step") or 1
    dense = set(cfg.integers("mlp_only_layers") or ())
    if any(i >= layers for i in dense):
        cfg.fail("mlp_only_layers", f"layer numbers below num_hidden_layers = {layers}")
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def qwen_feeds(cfg: Config, hidden: int, layers: int, moe: Moe) -> list[Mlp | Moe]:
    """The feed-forward of every layer; ``intermediate_size`` is read only where a layer is dense."""
    routed = qwen_routed_layers(cfg, layers)
    cfg.ignore("intermediate_size")
    if all(routed):
        return [moe] * layers
    dense = Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    return [moe if r else dense for r in routed]


def read_qwen2_moe(cfg: Config, name: str) -> ModelSpec:
    """Qwen1.5/2-MoE: a gated shared expert of its own width, q, k, v biases."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=16)
    routing = read_routing(cfg, ("num_experts",), ("num_experts_per_tok",), (60, 4))
    bias = cfg.flag("qkv_bias", True)
    shared = cfg.integer("shared_expert_intermediate_size", default=5632)
    cfg.ignore("hidden_act")
    width = cfg.integer("moe_intermediate_size", default=1408)
    moe = gated_moe(hidden, width, routing, shared_width=shared, shared_gate=True)
    spans = windows.qwen_windows(cfg, layers)
    kinds = [
        layer(softmax_attention(heads, qkv_bias=bias, window=w), feed, two_rms_norms(hidden), mark=span_mark(w))
        for w, feed in zip(spans, qwen_feeds(cfg, hidden, layers, moe), strict=True)
    ]
    return assemble(cfg, name, "Qwen2MoeForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


def read_qwen3_moe(cfg: Config, name: str, *, vision: bool = False) -> ModelSpec:
    """Qwen3-MoE and the text part of Qwen3-VL-MoE: head norms, no shared expert."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=16 if vision else 4)
    defaults = (60, 4) if vision else (128, 8)
    routing = read_routing(cfg, ("num_experts", "num_local_experts"), ("num_experts_per_tok",), defaults)
    bias = cfg.flag("attention_bias", False)
    cfg.reject("shared_expert_intermediate_size", "0: the class has no shared expert")
    cfg.reject("qkv_bias", "false: the class follows attention_bias")
    if not cfg.flag("use_qk_norm", True):
        cfg.fail("use_qk_norm", "true: the class always has the norms")
    cfg.ignore("hidden_act")
    moe = gated_moe(hidden, cfg.integer("moe_intermediate_size", default=1408 if vision else 768), routing)
    if vision:
        spans: list[int | None] = [None] * layers
        cfg.ignore("sliding_window", "use_sliding_window", "max_window_layers")
    else:
        window = windows.window_of(cfg, 4096) if cfg.flag("use_sliding_window", False) else None
        cfg.ignore("sliding_window", "max_window_layers")
        spans = [window] * layers
    kinds = [
        layer(
            softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=w, extras=head_norms(heads)),
            feed,
            two_rms_norms(hidden),
            mark=span_mark(w),
        )
        for w, feed in zip(spans, qwen_feeds(cfg, hidden, layers, moe), strict=True)
    ]
    architecture = "Qwen3VLMoeForConditionalGeneration" if vision else "Qwen3MoeForCausalLM"
    return assemble(cfg, name, architecture, kinds, standard_frame(cfg, hidden, tied_default=vision))


def read_qwen3_vl_moe(cfg: Config, name: str) -> ModelSpec:
    """The text part of Qwen3-VL-MoE."""
    return read_qwen3_moe(cfg, name, vision=True)


def read_gpt_oss(cfg: Config, name: str) -> ModelSpec:
    """gpt-oss: biases everywhere, one learned sink a head, alternating windows."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8, head_dim_default=64)
    top = ("num_experts_per_tok", "experts_per_token")
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), top, (128, 4))
    bias = cfg.flag("attention_bias", True)
    cfg.ignore("hidden_act")
    expert = Mlp(hidden, cfg.integer("intermediate_size"), gated=True, bias=True)
    moe = Moe(routing.experts, routing.top_k, expert, router(hidden, routing.experts, bias=True))
    types = windows.layer_types(cfg, layers, windows.alternating(layers, 2))
    spans = windows.windows_by_type(cfg, types, windows.window_of(cfg, 128))
    sinks = (Extra("sinks", heads.num_heads, Split.COLUMN),)
    kinds = [
        layer(
            softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=w, extras=sinks),
            moe,
            two_rms_norms(hidden),
            mark=span_mark(w),
        )
        for w in spans
    ]
    return assemble(cfg, name, "GptOssForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


def read_glm4_moe(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.5: first layers dense, one shared expert, q, k, v biases and head norms by switch."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8)
    routing = read_routing(cfg, ("n_routed_experts", "num_local_experts"), ("num_experts_per_tok",), (128, 8))
    bias, qk_norm = cfg.flag("attention_bias", False), cfg.flag("use_qk_norm", False)
    width = cfg.integer("moe_intermediate_size", default=1408)
    shared = cfg.integer("n_shared_experts", default=1, minimum=0)
    cfg.ignore("hidden_act")
    moe = gated_moe(hidden, width, routing, shared_width=shared * width, groups=read_groups(cfg, routing.experts))
    mixer = softmax_attention(heads, qkv_bias=bias, extras=head_norms(heads) if qk_norm else ())
    kinds = first_dense_layers(cfg, hidden, layers, mixer, moe, default=1)
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False), kinds[-1])
    return assemble(cfg, name, "Glm4MoeForCausalLM", kinds, frame)


def first_dense_layers(cfg: Config, hidden: int, layers: int, mixer: Mixer, moe: Moe, default: int) -> list[LayerKind]:
    """The layers of a model whose first ones are dense and whose attention is the same everywhere."""
    routed = dense_first(cfg, layers, default)
    cfg.ignore("intermediate_size")
    dense = None if all(routed) else Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    return [layer(mixer, moe if r else dense, two_rms_norms(hidden)) for r in routed]


def with_mtp(cfg: Config, frame: Frame, kind: LayerKind, key: str = "num_nextn_predict_layers") -> Frame:
    """Add the multi-token-prediction layers that the file names (the reference class drops them)."""
    depth = cfg.optional_integer(key, "num_mtp_layers", minimum=0, maximum=64) or 0
    if not depth:
        return frame
    linears, extras = mtp_join(frame.hidden)
    return replace(frame, mtp=(kind,) * depth, mtp_linears=linears, mtp_extras=extras)


def read_dots1(cfg: Config, name: str) -> ModelSpec:
    """dots.llm1: head norms in the attention, DeepSeek-V3's experts."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=32, heads_default=32)
    routing = read_routing(cfg, ("n_routed_experts", "num_local_experts"), ("num_experts_per_tok",))
    bias = cfg.flag("attention_bias", False)
    width = cfg.integer("moe_intermediate_size", default=1408)
    shared = cfg.integer("n_shared_experts", minimum=0)
    for key in ("qk_layernorm", "use_qk_norm"):
        if not cfg.flag(key, True):
            cfg.fail(key, "true: the class always has the norms")
    cfg.ignore("hidden_act", "use_sliding_window", "intermediate_size")
    moe = gated_moe(hidden, width, routing, shared_width=shared * width, groups=read_groups(cfg, routing.experts))
    routed = dense_first(cfg, layers, 0)
    dense = None if all(routed) else Mlp(hidden, cfg.integer("intermediate_size", default=10944), gated=True)
    given = windows.layer_types(cfg, layers)
    spans = windows.windows_by_type(cfg, given, windows.window_of(cfg, 4096 if windows.SLIDING in given else None))
    kinds = [
        layer(
            softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=w, extras=head_norms(heads)),
            moe if r else dense,
            two_rms_norms(hidden),
            mark=span_mark(w),
        )
        for w, r in zip(spans, routed, strict=True)
    ]
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False, vocab_default=152064), kinds[-1])
    return assemble(cfg, name, "Dots1ForCausalLM", kinds, frame)


def read_minimax_m2(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-M2: QK norm over the whole projection, all layers routed."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8, head_dim_default=128)
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), (256, 8))
    if not cfg.flag("use_qk_norm", True):
        cfg.fail("use_qk_norm", "true: the class always has the norms")
    cfg.text("qk_norm_type", "per_layer", ("per_layer",))
    cfg.reject("shared_intermediate_size", "0: the class has no shared expert")
    if 0 in (cfg.integers("attn_type_list", layers) or ()):
        cfg.fail("attn_type_list", "only 1 (softmax attention) in every layer")
    # The routing bias is a buffer, adjusted without gradients.
    cfg.ignore("hidden_act", "use_routing_bias", "use_mtp", "mlp_intermediate_size", *MINIMAX_SCALES)
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    mixer = softmax_attention(heads, extras=projection_norms(heads))
    kind = layer(mixer, moe, two_rms_norms(hidden))
    frame = standard_frame(cfg, hidden, tied_default=False)
    per_module = cfg.optional_integer("mtp_transformer_layers", minimum=0) or 1
    modules = cfg.optional_integer("num_mtp_modules", minimum=0, maximum=64) or 0
    if modules and per_module != 1:
        cfg.fail("mtp_transformer_layers", "1 layer in an MTP module")
    if modules and cfg.flag("use_mtp", True):
        linears, extras = mtp_join(hidden)
        frame = replace(frame, mtp=(kind,) * modules, mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, "MiniMaxM2ForCausalLM", [kind] * layers, frame)

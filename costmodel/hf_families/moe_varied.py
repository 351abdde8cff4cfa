"""Routed decoders whose attention differs from layer to layer: Llama 4, MiMo-V2, Step 3, Gemma 4, MiniMax-M3."""

from __future__ import annotations

from dataclasses import replace

from shardwise.hardware_profiles.text_files import whole_number

from ..model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from . import windows
from .config import Config, show
from .dense import mtp_join
from .moe import gated_moe, read_routing
from .parts import (
    Heads,
    assemble,
    head_norms,
    layer,
    read_groups,
    read_heads,
    rms_norm,
    router,
    softmax_attention,
    span_mark,
    standard_frame,
    two_rms_norms,
)

# ---- Llama 4


def _llama4_windows(cfg: Config, layers: int) -> list[int | None]:
    """Layers with rotary positions see one chunk, the others everything."""
    chunk = cfg.optional_integer("attention_chunk_size")
    interval = cfg.optional_integer("no_rope_layer_interval", "nope_layer_interval") or 4
    # An empty list means the rule; an entry of 1 means that the layer does have rotary positions.
    listed = cfg.data.get("no_rope_layers")
    cfg.ignore("no_rope_layers")
    rotary = cfg.integers("no_rope_layers", layers) if listed else [int((i + 1) % interval != 0) for i in range(layers)]
    rule = [windows.CHUNKED if r and chunk else windows.FULL for r in rotary or ()]
    types = windows.layer_types(cfg, layers, rule, (windows.CHUNKED,))
    return [chunk if kind == windows.CHUNKED else None for kind in types]


def read_llama4(cfg: Config, name: str) -> ModelSpec:
    """Llama 4: one expert and a shared one; ``intermediate_size`` is the expert's width, not the dense one's."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8, head_dim_default=128)
    routing = read_routing(cfg, ("num_local_experts",), ("num_experts_per_tok",), (16, 1))
    bias = cfg.flag("attention_bias", False)
    width = cfg.integer("intermediate_size")
    # The QK norm of Llama 4 has no weights.
    cfg.ignore("hidden_act", "use_qk_norm", "intermediate_size_mlp")
    step = cfg.integer("interleave_moe_layer_step", default=1)
    listed = cfg.integers("moe_layers")
    routed = set(listed if listed is not None else range(step - 1, layers, step))
    moe = gated_moe(hidden, width, routing, shared_width=width)
    dense = None if len(routed) == layers else Mlp(hidden, cfg.integer("intermediate_size_mlp"), gated=True)
    kinds = [
        layer(
            softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=chunk, chunked=chunk is not None),
            moe if i in routed else dense,
            two_rms_norms(hidden),
            mark="chunked" if chunk else "",
        )
        for i, chunk in enumerate(_llama4_windows(cfg, layers))
    ]
    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "Llama4ForConditionalGeneration", kinds, frame)


# ---- MiMo-V2


def _mimo_types(cfg: Config, layers: int) -> list[str]:
    pattern = cfg.integers("hybrid_layer_pattern", layers)
    if pattern is not None:
        return [windows.SLIDING if bit else windows.FULL for bit in pattern]
    rule = windows.alternating(layers, 6)
    return windows.layer_types(cfg, layers, [windows.FULL, *rule[1:]])


def _routed(cfg: Config, layers: int, default_dense: int) -> list[bool]:
    """True for the routed layers: a 0/1 list, a list of words, or the first ``default_dense`` layers dense."""
    words = cfg.names("mlp_layer_types", ("dense", "sparse"), layers)
    bits = cfg.integers("moe_layer_freq", layers)
    if words is not None:
        return [word == "sparse" for word in words]
    if bits is not None:
        return [bool(bit) for bit in bits]
    cfg.assume(f"no list of routed layers is given: all but the first {default_dense} (class default)")
    return [i >= default_dense for i in range(layers)]


def _mimo_sliding_heads(cfg: Config, full: Heads) -> Heads:
    """Sliding layers have twice the key/value heads unless the file says otherwise."""
    heads = cfg.optional_integer("swa_num_attention_heads") or full.num_heads
    kv = cfg.optional_integer("swa_num_key_value_heads") or 2 * full.num_kv_heads
    cfg.divides("swa_num_key_value_heads", kv, "the heads of sliding layers", heads)
    head_dim = cfg.optional_integer("swa_head_dim") or full.head_dim
    return Heads(full.hidden, heads, kv, head_dim, cfg.optional_integer("swa_v_head_dim") or full.v_head_dim)


def read_mimo_v2(cfg: Config, name: str) -> ModelSpec:
    """MiMo-V2-Flash: sliding layers with sinks and more key/value heads, every sixth layer full."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    full = read_heads(cfg, hidden, kv_default=4, head_dim_default=192, heads_default=64)
    full = replace(full, v_head_dim=cfg.integer("v_head_dim", default=128))
    sliding = _mimo_sliding_heads(cfg, full)
    window = cfg.optional_integer("sliding_window_size")
    window = window + 1 if window else windows.window_of(cfg, 129)
    cfg.ignore("sliding_window", "attention_chunk_size", "attention_value_scale", "hidden_act", "intermediate_size")
    cfg.ignore("hybrid_block_size")
    cfg.reject("n_shared_experts", "null: the class has no shared expert")
    bias = cfg.flag("attention_bias", False)
    sinks = cfg.flag("add_full_attention_sink_bias", False), cfg.flag("add_swa_attention_sink_bias", True)
    routing = read_routing(cfg, ("n_routed_experts", "num_local_experts"), ("num_experts_per_tok",), (256, 8))
    groups = read_groups(cfg, routing.experts)
    moe = gated_moe(hidden, cfg.integer("moe_intermediate_size", default=2048), routing, groups=groups)
    routed = _routed(cfg, layers, 1)
    dense = None if all(routed) else Mlp(hidden, cfg.integer("intermediate_size", default=16384), gated=True)

    def make(kind: str, is_routed: bool) -> LayerKind:
        near = kind == windows.SLIDING
        heads = sliding if near else full
        extras = (Extra("sinks", heads.num_heads, Split.COLUMN),) if sinks[near] else ()
        span = window if near else None
        mixer = softmax_attention(heads, qkv_bias=bias, window=span, extras=extras)
        return layer(mixer, moe if is_routed else dense, two_rms_norms(hidden), mark=span_mark(span))

    kinds = [make(kind, r) for kind, r in zip(_mimo_types(cfg, layers), routed, strict=True)]
    frame = standard_frame(cfg, hidden, tied_default=False, vocab_default=152576)
    depth = cfg.optional_integer("num_nextn_predict_layers", minimum=0, maximum=64) or 0
    if depth:
        if dense is None:
            cfg.fail("num_nextn_predict_layers", "0: the MTP layers are dense, and this model names no dense width")
        linears, extras = mtp_join(hidden)
        frame = replace(frame, mtp=(make(windows.SLIDING, False),) * depth, mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, "MiMoV2FlashForCausalLM", kinds, frame)


# ---- Step 3


def _step_list(cfg: Config, key: str, allowed: tuple[str, ...], layers: int, depth: int) -> list[str] | None:
    """A list with an entry a layer; files may append one for each MTP layer."""
    listed = cfg.data.get(key)
    padded = isinstance(listed, list) and len(listed) == layers + depth
    return cfg.names(key, allowed, layers + depth if padded else layers)


def _step_routed(cfg: Config, layers: int, depth: int) -> list[bool]:
    words = _step_list(cfg, "mlp_layer_types", ("dense", "sparse"), layers, depth)
    enum = cfg.data.get("moe_layers_enum")
    cfg.ignore("moe_layers_enum")
    if words is not None:
        return [word == "sparse" for word in words[:layers]]
    if enum is None:
        cfg.assume("moe_layers_enum is not given: all layers from the fourth on are routed (class default)")
        return [i >= 3 for i in range(layers)]
    parts = enum.split(",") if isinstance(enum, str) else enum
    chosen = [whole_number(str(part).strip()) for part in parts] if isinstance(parts, list) else [None]
    if None in chosen:
        cfg.fail("moe_layers_enum", "layer numbers, as a list or separated by commas")
    return [i in chosen for i in range(layers)]


def _step_sliding_heads(cfg: Config, full: Heads) -> Heads:
    """Sliding layers may have more query heads, named in ``attention_other_setting``."""
    other = cfg.section("attention_other_setting")
    heads = cfg.optional_integer("num_sliding_attention_heads")
    kv, head_dim = full.num_kv_heads, full.head_dim
    if other is not None:
        other.text("attention_type", windows.SLIDING, (windows.SLIDING,))
        heads = heads or other.optional_integer("num_attention_heads")
        kv = other.optional_integer("num_attention_groups", "num_key_value_heads") or kv
        head_dim = other.optional_integer("head_dim", "true_head_dim") or head_dim
        other.ignore("num_attention_heads")
        other.finish()
    return replace(full, num_heads=heads or full.num_heads, num_kv_heads=kv, head_dim=head_dim)


def _step_switches(cfg: Config) -> None:
    for key in ("use_moe", "use_head_wise_attn_gate", "use_qk_norm"):
        if not cfg.flag(key, True):
            cfg.fail(key, "true, as in the class")
    for key in ("use_mfa", "sink", "mlp_bias", "attention_bias"):
        cfg.reject(key, "false, as in the class")
    cfg.text("att_impl_type", "GQA", ("GQA",))
    if cfg.data.get("gating", True) not in (True, "per-head"):
        cfg.fail("gating", "true or per-head, as in the class")
    cfg.ignore("gating")
    for key in ("moe_every_n_layer",):
        if (cfg.optional_integer(key) or 1) != 1:
            cfg.fail(key, "1: the list of routed layers says which they are")
    # Scales, clamps and rotary settings.
    cfg.ignore("hidden_act", "yarn_only_types", "use_rope_layers", "partial_rotary_factors", "zero_centered")
    cfg.ignore(
        "norm_expert_weight", "moe_router_activation", "need_fp32_gate", "use_moe_router_bias", "moe_layer_offset"
    )
    cfg.ignore("query_pre_attn_scalar", "moe_layer_offset", "mtp_layer_types", "mtp_mlp_layer_types")


def read_step3(cfg: Config, name: str) -> ModelSpec:
    """Step 3.5 and 3.7: head-wise output gates, one shared expert, sliding layers with their own head count."""
    _step_switches(cfg)
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads, kv = (
        cfg.integer("num_attention_heads"),
        cfg.integer("num_attention_groups", "num_key_value_heads", default=8),
    )
    cfg.divides("num_attention_groups", kv, "num_attention_heads", heads)
    full = Heads(hidden, heads, kv, cfg.integer("head_dim", default=128))
    sliding = _step_sliding_heads(cfg, full)
    depth = cfg.optional_integer("num_nextn_predict_layers", "num_mtp_layers", minimum=0, maximum=64) or 0
    count = ("moe_num_experts", "n_routed_experts", "num_local_experts")
    routing = read_routing(cfg, count, ("moe_top_k", "num_experts_per_tok"), (288, 8))
    shared = cfg.integer("share_expert_dim", "share_expert_dims", default=1280)
    moe = gated_moe(hidden, cfg.integer("moe_intermediate_size", default=1280), routing, shared_width=shared)
    dense = Mlp(hidden, cfg.integer("intermediate_size", default=11264), gated=True)
    types = _step_list(cfg, "layer_types", (windows.FULL, windows.SLIDING), layers, depth)
    if types is None:
        cfg.assume("layer_types is not given: every layer attends to everything (class default)")
        types = [windows.FULL] * (layers + depth)
    spans = windows.windows_by_type(cfg, types, windows.window_of(cfg))

    def make(window: int | None, is_routed: bool) -> LayerKind:
        shape = sliding if window else full
        mixer = softmax_attention(shape, window=window, extras=head_norms(shape), separate_gate=shape.num_heads)
        return layer(mixer, moe if is_routed else dense, two_rms_norms(hidden), mark=span_mark(window))

    routed = _step_routed(cfg, layers, depth)
    kinds = [make(w, r) for w, r in zip(spans[:layers], routed, strict=True)]
    frame = standard_frame(cfg, hidden, tied_default=False, vocab_default=128815)
    if depth:
        linears, extras = mtp_join(hidden)
        tail = [make(w, False) for w in (spans[layers:] or [None] * depth)]
        frame = replace(frame, mtp=tuple(tail), mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, "Step3p7ForConditionalGeneration", kinds, frame)


# ---- Gemma 4


def _gemma4_attention(cfg: Config, hidden: int, full: bool, window: int | None) -> Mixer:
    heads = cfg.integer("num_attention_heads")
    kv = cfg.integer("num_key_value_heads")
    head_dim = cfg.integer("head_dim", default=256)
    shared_values = cfg.flag("attention_k_eq_v", False)
    wide, few = cfg.integer("global_head_dim", default=512), cfg.optional_integer("num_global_key_value_heads")
    if not full:
        shape = Heads(hidden, heads, kv, head_dim)
        return softmax_attention(shape, window=window, extras=head_norms(shape))
    groups = few if few and shared_values else kv
    cfg.divides("num_global_key_value_heads", groups, "num_attention_heads", heads)
    shape = Heads(hidden, heads, groups, wide)
    if not shared_values:
        return softmax_attention(shape, extras=head_norms(shape))
    # Keys are used as values too: there is no value projection.
    linears = (
        Linear("qk", hidden, (heads + groups) * wide, Split.COLUMN),
        Linear("attention_out", heads * wide, hidden, Split.ROW),
    )
    return Mixer(shape.kind, linears, AttentionCore(heads, groups, wide, wide), head_norms(shape))


def _gemma4_moe(cfg: Config, hidden: int) -> Moe | None:
    if not cfg.flag("enable_moe_block", False):
        cfg.reject("num_experts", "null, because enable_moe_block is false")
        cfg.ignore("top_k_experts", "moe_intermediate_size")
        return None
    routing = read_routing(cfg, ("num_experts",), ("top_k_experts",))
    expert = Mlp(hidden, cfg.integer("moe_intermediate_size"), gated=True)
    scales = (Extra("router_scale", hidden), Extra("expert_scale", routing.experts))
    return Moe(routing.experts, routing.top_k, expert, router(hidden, routing.experts), extras=scales)


def read_gemma4(cfg: Config, name: str) -> ModelSpec:
    """Gemma 4: full layers with wider heads that reuse keys as values; a dense network beside the experts."""
    if cfg.integer("hidden_size_per_layer_input", default=256, minimum=0):
        cfg.fail("hidden_size_per_layer_input", "0: per-layer inputs are not supported")
    cfg.reject("num_kv_shared_layers", "0: layers that share keys and values are not supported")
    cfg.reject("use_double_wide_mlp", "false: wider feed-forwards are not supported")
    cfg.ignore("vocab_size_per_layer_input", "hidden_activation", "use_bidirectional_attention")
    cfg.reject("attention_bias", "false: biases are not supported")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    rule = windows.alternating(layers, 6)
    types = windows.layer_types(cfg, layers, [*rule[:-1], windows.FULL])
    spans = windows.windows_by_type(cfg, types, windows.window_of(cfg, 512))
    mlp = Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    moe = _gemma4_moe(cfg, hidden)
    names = ["input_norm", "post_attention_norm", "pre_feed_forward_norm", "post_feed_forward_norm"]
    names += ["post_dense_norm", "pre_expert_norm", "post_expert_norm"] if moe else []
    norms = tuple(rms_norm(norm, hidden) for norm in names)
    kinds = []
    for kind, window in zip(types, spans, strict=True):
        mixer = _gemma4_attention(cfg, hidden, kind == windows.FULL, window)
        label = f"{'sliding' if window else 'full'}+{mixer.kind}+dense{'+moe' if moe else ''}"
        kinds.append(LayerKind(label, mixer, mlp, moe, norms))
    frame = standard_frame(cfg, hidden, tied_default=True)
    return assemble(cfg, name, "Gemma4ForConditionalGeneration", kinds, frame)


# ---- MiniMax-M3


def _m3_sparse_layers(cfg: Config, layers: int) -> tuple[list[bool], tuple[int, int, int]]:
    """Which layers own an indexer, and (index heads, index head width, keys selected)."""
    sparse = cfg.section("sparse_attention_config")
    view = sparse if sparse is not None else cfg
    old = sparse is not None
    heads = view.integer("sparse_num_index_heads" if old else "index_n_heads", default=4)
    width = view.integer("sparse_index_dim" if old else "index_head_dim", default=128)
    block = view.integer("sparse_block_size" if old else "index_block_size", default=128)
    blocks = view.integer("sparse_topk_blocks" if old else "index_topk_blocks", default=16)
    types = cfg.names("layer_types", (windows.FULL, "minimax_m3_sparse"), layers)
    bits = sparse.integers("sparse_attention_freq", layers) if sparse is not None else None
    if sparse is not None:
        sparse.ignore("use_sparse_attention", "sparse_disable_index_value", "sparse_score_type", "sparse_init_block")
        sparse.ignore("sparse_local_block", "sparse_attention_freq")
        sparse.finish()
    cfg.ignore("index_local_blocks")
    if types is not None:
        owners = [kind != windows.FULL for kind in types]
    else:
        owners = [bool(bit) for bit in bits] if bits is not None else [False] * layers
    return owners, (heads, width, block * blocks)


def _m3_attention(heads: Heads, index: tuple[int, int, int] | None) -> Mixer:
    plain = softmax_attention(heads, extras=head_norms(heads))
    if index is None:
        return plain
    count, width, selected = index
    linears = (
        Linear("indexer_q", heads.hidden, count * width, Split.NONE),
        Linear("indexer_k", heads.hidden, width, Split.NONE),
    )
    norms = rms_norm("indexer_q_norm", width), rms_norm("indexer_k_norm", width)
    core = AttentionCore(
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_dim,
        heads.value_dim,
        selected_keys=selected,
        indexer_heads=count,
        indexer_head_dim=width,
    )
    return Mixer(f"sparse {heads.kind}", (*plain.linears, *linears), core, (*plain.extras, *norms))


def read_minimax_m3(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-M3: block-sparse attention, ``intermediate_size`` is the expert's width."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=4, head_dim_default=128)
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), (128, 4))
    cfg.reject("attention_output_gate", "false: output gates are not supported here")
    cfg.text("qk_norm_type", "per_head", ("per_head",))
    if not cfg.flag("use_qk_norm", True):
        cfg.fail("use_qk_norm", "true: the class always has the norms")
    if (cfg.optional_integer("n_shared_experts") or 1) != 1:
        cfg.fail("n_shared_experts", f"1, not {show(cfg.data['n_shared_experts'])}: the class has one shared expert")
    cfg.ignore("hidden_act", "use_routing_bias", "use_gemma_norm", "dense_intermediate_size")
    shared = cfg.integer("shared_intermediate_size", default=3072)
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing, shared_width=shared)
    routed = _routed(cfg, layers, 0)
    dense = None if all(routed) else Mlp(hidden, cfg.integer("dense_intermediate_size", default=12288), gated=True)
    owners, index = _m3_sparse_layers(cfg, layers)
    kinds = [
        layer(_m3_attention(heads, index if owner else None), moe if r else dense, two_rms_norms(hidden))
        for owner, r in zip(owners, routed, strict=True)
    ]
    frame = standard_frame(cfg, hidden, tied_default=False)
    depth = cfg.optional_integer("num_mtp_modules", minimum=0, maximum=64) or 0
    if depth:
        linears, extras = mtp_join(hidden)
        frame = replace(frame, mtp=(kinds[-1],) * depth, mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, "MiniMaxM3SparseForConditionalGeneration", kinds, frame)

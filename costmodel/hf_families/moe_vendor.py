"""Routed decoders with the vendors' own key names: ERNIE 4.5, Hunyuan, Ling (Bailing)."""

from __future__ import annotations

from ..model import Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from .config import Config
from .moe import gated_moe, read_routing
from .parts import (
    Heads,
    assemble,
    head_norms,
    layer,
    read_groups,
    read_heads,
    router,
    softmax_attention,
    standard_frame,
    two_rms_norms,
)

# ---- ERNIE 4.5


def _ernie_routed(cfg: Config, layers: int) -> list[bool]:
    start = cfg.integer("moe_layer_start_index", default=1, minimum=0)
    end = cfg.optional_integer("moe_layer_end_index", minimum=-1)
    last = layers - 1 if end is None or end == -1 else end
    step = cfg.optional_integer("moe_layer_interval") or 1
    return [(i + 1) % step == 0 and start <= i <= last for i in range(layers)]


def read_ernie(cfg: Config, name: str) -> ModelSpec:
    """ERNIE 4.5 MoE: shared experts by count, a trained score correction in the router."""
    cfg.reject("use_bias", "false: biases are not supported")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=4)
    routing = read_routing(cfg, ("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok"), (64, 6))
    width = cfg.integer("moe_intermediate_size", default=1536)
    shared = cfg.integer("moe_num_shared_experts", default=2, minimum=0)
    cfg.reject("num_nextn_predict_layers", "0: MTP layers of this family are not supported")
    # Routing and loss options of the original code.
    cfg.ignore("hidden_act", "moe_capacity", "moe_gate", "moe_use_aux_free", "moe_group", "intermediate_size")
    cfg.ignore("moe_gate_act", "moe_norm_gate_logits", "moe_aux_loss_lambda", "moe_z_loss_lambda", "use_rmsnorm")
    cfg.ignore("moe_orthogonal_loss_lambda", "moe_group_experts", "moe_use_hard_gate", "compression_ratio")
    base = gated_moe(hidden, width, routing, shared_width=shared * width)
    moe = Moe(
        base.num_experts,
        base.top_k,
        base.expert,
        base.router,
        base.shared,
        extras=(Extra("score_correction", routing.experts),),
    )
    routed = _ernie_routed(cfg, layers)
    dense = None if all(routed) else Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    mixer = softmax_attention(heads)
    kinds = [layer(mixer, moe if r else dense, two_rms_norms(hidden)) for r in routed]
    frame = standard_frame(cfg, hidden, tied_default=True)
    return assemble(cfg, name, "Ernie4_5_MoeForCausalLM", kinds, frame)


# ---- Hunyuan


def _hunyuan_switches(cfg: Config) -> None:
    for key in ("use_mla", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        cfg.reject(key, "null or false: latent attention is not supported in this family")
    for key in ("add_classification_head", "mlp_bias", "attention_bias", "moe_layer_num_skipped"):
        cfg.reject(key, "false or 0: not supported in this family")
    cfg.text("norm_type", "rms", ("rms",))
    # Routing options and the settings of the vision tower and the classification head that are switched off.
    cfg.ignore("hidden_act", "moe_drop_tokens", "moe_random_routing_dropped_token", "group_limited_greedy")
    cfg.ignore("use_rotary_pos_emb", "org_vocab_size", "anyres_pooling_size", "num_media_embeds", "dense_list")
    cfg.ignore("class_num", "pool_type", "mask_init_id", "skip_cls_token", "anyres_vit_two_views", "topk_group")


def _hunyuan_attention(heads: Heads, qk_norm: bool, borrows: bool) -> Mixer:
    """A layer that ``borrows`` computes only queries and reads the keys and values of the layer before.

    The original code builds the norm of the keys in every layer, used or not.
    """
    plain = softmax_attention(heads, extras=head_norms(heads) if qk_norm else ())
    if not borrows:
        return plain
    linears = (Linear("q", heads.hidden, heads.query_width, Split.COLUMN), plain.linears[-1])
    return Mixer(f"{heads.kind} (borrowed keys)", linears, plain.core, plain.extras)


def read_hunyuan(cfg: Config, name: str) -> ModelSpec:
    """Hunyuan-A13B and Hunyuan-Large: per-layer lists, optional sharing of keys and values across layers."""
    _hunyuan_switches(cfg)
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    head_dim = cfg.optional_integer("attention_head_dim", "head_dim")
    plain = read_heads(cfg, hidden)
    heads = Heads(hidden, plain.num_heads, plain.num_kv_heads, head_dim or plain.head_dim)
    experts = cfg.integer("num_experts")
    dense_width = cfg.integer("intermediate_size")
    width = cfg.integer_per_layer("moe_intermediate_size", layers, dense_width)
    if set(width) != {dense_width}:
        # The original code takes one of the keys, the transformers class the other.
        cfg.fail("moe_intermediate_size", f"intermediate_size = {dense_width} in every layer")
    top = cfg.integer_per_layer("moe_topk", layers, 1)
    mixed = cfg.flag("use_mixed_mlp_moe", True)
    shared = cfg.integer_per_layer("num_shared_expert", layers, 1) if mixed else [0] * layers
    cfg.ignore("num_shared_expert")
    qk_norm = cfg.flag("use_qk_norm", True)
    share = cfg.optional_integer("cla_share_factor") or 1
    factor = share if cfg.flag("use_cla", False) else 1
    groups = read_groups(cfg, experts)

    def make(i: int) -> LayerKind:
        cfg.at_most("moe_topk", top[i], "num_experts", experts)
        expert = Mlp(hidden, width[i], gated=True)
        side = Mlp(hidden, shared[i] * width[i], gated=True) if shared[i] else None
        moe = Moe(experts, top[i], expert, router(hidden, experts), side, num_groups=groups[0], top_groups=groups[1])
        return layer(_hunyuan_attention(heads, qk_norm, i % factor != 0), moe, two_rms_norms(hidden))

    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "HunYuanMoEV1ForCausalLM", map(make, range(layers)), frame)


# ---- Ling


def read_bailing(cfg: Config, name: str) -> ModelSpec:
    """Ling and Ring (Bailing MoE, V1 and V2): shared experts by count, first layers dense, head norms by switch."""
    for key in ("use_bias", "norm_head", "num_nextn_predict_layers", "router_bias"):
        cfg.reject(key, "false or 0: not supported in this family")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    routing = read_routing(cfg, ("num_experts",), ("num_experts_per_tok",))
    width = cfg.integer("moe_intermediate_size")
    shared_width = cfg.optional_integer("moe_shared_expert_intermediate_size") or width
    shared = cfg.optional_integer("num_shared_experts", minimum=0) or 0
    bias, qk_norm = cfg.flag("use_qkv_bias", False), cfg.flag("use_qk_norm", False)
    first = cfg.integer("first_k_dense_replace", default=0, minimum=0)
    cfg.ignore("hidden_act", "norm_softmax", "moe_router_enable_expert_bias", "intermediate_size")
    groups = read_groups(cfg, routing.experts)
    moe = gated_moe(hidden, width, routing, shared_width=shared * shared_width, groups=groups)
    dense = Mlp(hidden, cfg.integer("intermediate_size"), gated=True) if first else None
    mixer = softmax_attention(heads, qkv_bias=bias, extras=head_norms(heads) if qk_norm else ())
    kinds = [layer(mixer, moe if i >= first else dense, two_rms_norms(hidden)) for i in range(layers)]
    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "BailingMoeForCausalLM", kinds, frame)

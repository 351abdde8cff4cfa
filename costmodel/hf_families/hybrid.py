"""Models that mix softmax attention with linear attention: Qwen3-Next and 3.5, Kimi Linear, MiniMax-M1."""

from __future__ import annotations

from dataclasses import replace

from ..model import Extra, Linear, Mixer, Mlp, ModelSpec, Moe, RecurrentCore, Split
from . import windows
from .config import Config
from .deepseek import Latent, latent_attention
from .dense import mtp_join
from .moe import MINIMAX_SCALES, gated_moe, qwen_feeds, read_routing
from .parts import (
    Heads,
    assemble,
    head_norms,
    layer,
    read_groups,
    read_heads,
    rms_norm,
    softmax_attention,
    standard_frame,
    two_rms_norms,
)

LINEAR = "linear_attention"

# ---- Qwen3-Next and Qwen3.5


def _gated_delta(cfg: Config, hidden: int) -> Mixer:
    """Gated DeltaNet: fused q, k, v and gate, a short convolution over q, k, v, and two numbers a value head."""
    key_heads = cfg.integer("linear_num_key_heads", default=16)
    value_heads = cfg.integer("linear_num_value_heads", default=32)
    cfg.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    key_dim = cfg.integer("linear_key_head_dim", default=128)
    value_dim = cfg.integer("linear_value_head_dim", default=128)
    kernel = cfg.integer("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    linears = (
        Linear("qkvz", hidden, 2 * keys + 2 * values, Split.COLUMN),
        Linear("beta_alpha", hidden, 2 * value_heads, Split.COLUMN),
        Linear("attention_out", values, hidden, Split.ROW),
    )
    extras = (
        Extra("short_convolution", channels * kernel, Split.COLUMN),
        Extra("decay", 2 * value_heads, Split.COLUMN),
        rms_norm("output_norm", value_dim),
    )
    core = RecurrentCore("gated_delta", value_heads, key_dim, value_dim, key_heads, kernel, channels)
    return Mixer("gated delta", linears, core, extras)


def _qwen_hybrid(cfg: Config, name: str, architecture: str, feeds: list[Mlp | Moe], hidden: int) -> ModelSpec:
    heads = read_heads(cfg, hidden, kv_default=2, head_dim_default=256)
    bias = cfg.flag("attention_bias", False)
    if not cfg.flag("attn_output_gate", True):
        cfg.fail("attn_output_gate", "true: the class always gates the attention's output")
    interval = cfg.optional_integer("full_attention_interval") or 4
    rule = [windows.FULL if (i + 1) % interval == 0 else LINEAR for i in range(len(feeds))]
    given = cfg.names("layer_types", (windows.FULL, LINEAR), len(feeds)) or rule
    cfg.ignore("hidden_act", "use_sliding_window", "sliding_window")
    # The output gate makes the query projection twice as wide.
    full = softmax_attention(
        heads, qkv_bias=bias, out_bias=bias, extras=head_norms(heads), gate_width=heads.query_width
    )
    linear = _gated_delta(cfg, hidden)
    norms = two_rms_norms(hidden)
    kinds = [
        layer(full if kind == windows.FULL else linear, feed, norms) for kind, feed in zip(given, feeds, strict=True)
    ]
    frame = standard_frame(cfg, hidden, tied_default=False)
    depth = cfg.optional_integer("mtp_num_hidden_layers", minimum=0, maximum=64) or 0
    cfg.reject("mtp_use_dedicated_embeddings", "false: MTP embeddings of their own are not supported")
    if depth:
        linears, extras = mtp_join(hidden)
        frame = replace(frame, mtp=(layer(full, feeds[-1], norms),) * depth, mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, architecture, kinds, frame)


def _qwen_moe(cfg: Config, hidden: int, experts: int, top_k: int) -> Moe:
    routing = read_routing(cfg, ("num_experts",), ("num_experts_per_tok",), (experts, top_k))
    shared = cfg.integer("shared_expert_intermediate_size", default=512)
    width = cfg.integer("moe_intermediate_size", default=512)
    return gated_moe(hidden, width, routing, shared_width=shared, shared_gate=True)


def read_qwen3_next(cfg: Config, name: str) -> ModelSpec:
    """Qwen3-Next: three gated DeltaNet layers to one gated attention layer, all routed."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    feeds = qwen_feeds(cfg, hidden, layers, _qwen_moe(cfg, hidden, 512, 10))
    return _qwen_hybrid(cfg, name, "Qwen3NextForCausalLM", feeds, hidden)


def read_qwen3_5_moe(cfg: Config, name: str) -> ModelSpec:
    """The text part of Qwen3.5-MoE."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    cfg.reject("mlp_only_layers", "an empty list: the class routes every layer")
    cfg.ignore("intermediate_size")
    feeds: list[Mlp | Moe] = [_qwen_moe(cfg, hidden, 256, 8)] * layers
    return _qwen_hybrid(cfg, name, "Qwen3_5MoeForConditionalGeneration", feeds, hidden)


def read_qwen3_5(cfg: Config, name: str) -> ModelSpec:
    """The text part of the dense Qwen3.5."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    cfg.reject("mlp_only_layers", "an empty list: the class has no experts")
    feeds: list[Mlp | Moe] = [Mlp(hidden, cfg.integer("intermediate_size"), gated=True)] * layers
    return _qwen_hybrid(cfg, name, "Qwen3_5ForConditionalGeneration", feeds, hidden)


# ---- Kimi Linear


def _kda(hidden: int, heads: int, head_dim: int, kernel: int) -> Mixer:
    """Kimi Delta Attention: q, k, v with a short convolution each, low-rank decay and output gates per channel."""
    width = heads * head_dim
    linears = (
        Linear("qkv", hidden, 3 * width, Split.COLUMN),
        Linear("decay_down", hidden, head_dim, Split.NONE),
        Linear("decay_up", head_dim, width, Split.COLUMN),
        Linear("beta", hidden, heads, Split.COLUMN),
        Linear("gate_down", hidden, head_dim, Split.NONE),
        Linear("gate_up", head_dim, width, Split.COLUMN),
        Linear("attention_out", width, hidden, Split.ROW),
    )
    extras = (
        Extra("short_convolution", 3 * width * kernel, Split.COLUMN),
        Extra("decay", heads + width, Split.COLUMN),
        rms_norm("output_norm", head_dim),
    )
    core = RecurrentCore("kda", heads, head_dim, head_dim, heads, kernel, 3 * width)
    return Mixer("kda", linears, core, extras)


def _kimi_full_layers(cfg: Config, linear: Config, layers: int) -> set[int]:
    """Layers of full attention, counted from 0; the file counts from 1."""
    full, kda = linear.integers("full_attn_layers", minimum=1), linear.integers("kda_layers", minimum=1)
    if full is None or kda is None or sorted(full + kda) != list(range(1, layers + 1)):
        linear.fail("full_attn_layers", f"together with kda_layers every number from 1 to {layers} once")
    return {i - 1 for i in full}


def _kimi_moe(cfg: Config, hidden: int) -> Moe:
    routing = read_routing(cfg, ("num_experts",), ("num_experts_per_token", "num_experts_per_tok"), (256, 8))
    width = cfg.integer("moe_intermediate_size", default=1024)
    shared = cfg.integer("num_shared_experts", default=1, minimum=0)
    groups = read_groups(cfg, routing.experts, "num_expert_group")
    return gated_moe(hidden, width, routing, shared_width=shared * width, groups=groups)


def read_kimi_linear(cfg: Config, name: str) -> ModelSpec:
    """Kimi Linear: Kimi Delta Attention with a latent attention layer after every third."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = cfg.integer("num_attention_heads")
    cfg.reject("q_lora_rank", "null: a compressed query is not supported here")
    cfg.reject("tie_word_embeddings", "false: the class never ties embedding and head")
    cfg.reject("num_nextn_predict_layers", "0: MTP layers of this family are not supported")
    if (cfg.optional_integer("moe_layer_freq") or 1) != 1:
        cfg.fail("moe_layer_freq", "1: routed layers follow each other in this class")
    sizes = Latent(
        hidden,
        heads,
        None,
        cfg.integer("kv_lora_rank", default=512),
        cfg.integer("qk_nope_head_dim", default=128),
        cfg.integer("qk_rope_head_dim", default=64),
        cfg.integer("v_head_dim", default=128),
    )
    linear = cfg.section("linear_attn_config")
    if linear is None:
        cfg.fail("linear_attn_config", "an object with kda_layers and full_attn_layers")
    kernel = linear.integer("short_conv_kernel_size", default=4)
    kda = _kda(hidden, linear.integer("num_heads"), linear.integer("head_dim"), kernel)
    full = _kimi_full_layers(cfg, linear, layers)
    linear.finish()
    moe = _kimi_moe(cfg, hidden)
    first = cfg.integer("first_k_dense_replace", minimum=0)
    dense = Mlp(hidden, cfg.integer("intermediate_size"), gated=True) if first else None
    # head_dim and the key/value heads describe neither kind of attention here.
    cfg.ignore("head_dim", "num_key_value_heads", "hidden_act", "mla_use_nope", "use_grouped_topk", "intermediate_size")
    mla = latent_attention(sizes)
    norms = two_rms_norms(hidden)
    kinds = [layer(mla if i in full else kda, moe if i >= first else dense, norms) for i in range(layers)]
    return assemble(cfg, name, "KimiLinearForCausalLM", kinds, standard_frame(cfg, hidden, tied_default=False))


# ---- MiniMax-M1


def _lightning(heads: Heads) -> Mixer:
    """Lightning attention: q, k, v for all heads, an output gate, a norm over the whole output."""
    width = heads.query_width
    linears = (
        Linear("qkv", heads.hidden, 3 * width, Split.COLUMN),
        Linear("gate", heads.hidden, width, Split.COLUMN),
        Linear("attention_out", width, heads.hidden, Split.ROW),
    )
    core = RecurrentCore("lightning", heads.num_heads, heads.head_dim, heads.head_dim, heads.num_heads)
    return Mixer("lightning", linears, core, (rms_norm("output_norm", width, Split.COLUMN),))


def _minimax_types(cfg: Config, layers: int) -> list[bool]:
    """True for the layers of linear attention: ``attn_type_list`` 0, or the words in ``layer_types``."""
    bits = cfg.integers("attn_type_list", layers)
    words = cfg.names("layer_types", (windows.FULL, LINEAR), layers)
    if bits is None and words is None:
        cfg.fail("attn_type_list", f"a list of {layers} entries, 0 for linear and 1 for softmax attention")
    if bits is not None and set(bits) - {0, 1}:
        cfg.fail("attn_type_list", "entries 0 (linear) or 1 (softmax)")
    return [word == LINEAR for word in words] if words is not None else [bit == 0 for bit in bits or ()]


def read_minimax(cfg: Config, name: str) -> ModelSpec:
    """MiniMax-Text-01 and M1: lightning attention with a softmax layer after every seventh, all routed."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=8)
    routing = read_routing(cfg, ("num_local_experts", "num_experts"), ("num_experts_per_tok",), (8, 2))
    shared = cfg.data.get("shared_intermediate_size")
    cfg.ignore("shared_intermediate_size", "hidden_act", "sliding_window", "block_size", *MINIMAX_SCALES)
    if shared not in (None, 0, [0]):
        cfg.fail("shared_intermediate_size", "0: a shared expert is not supported in this family")
    moe = gated_moe(hidden, cfg.integer("intermediate_size"), routing)
    full, linear, norms = softmax_attention(heads), _lightning(heads), two_rms_norms(hidden)
    kinds = [layer(linear if is_linear else full, moe, norms) for is_linear in _minimax_types(cfg, layers)]
    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "MiniMaxM1ForCausalLM", kinds, frame)

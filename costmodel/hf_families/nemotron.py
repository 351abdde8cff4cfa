"""NVIDIA's irregular models: Nemotron-H (Mamba, attention, experts as separate layers) and Nemotron-NAS."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..model import Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, RecurrentCore, Split
from .config import Config
from .dense import mtp_join
from .moe import read_routing
from .parts import (
    Heads,
    assemble,
    layer,
    read_groups,
    rms_norm,
    router,
    softmax_attention,
    standard_frame,
    two_rms_norms,
)

_LETTERS: Final = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_WORDS: Final = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "moe": "moe",
    "mlp": "mlp",
}

_BLOCK_KEYS: Final = (
    *("intermediate_size", "mlp_bias", "sliding_window", "use_bias", "use_conv_bias", "conv_kernel"),
    *("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "n_routed_experts"),
    *("n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "mamba_num_heads", "mamba_head_dim"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "attention_head_dim", "n_groups", "ssm_state_size"),
)

# ---- Nemotron-H


def _mamba(cfg: Config, hidden: int) -> Mixer:
    """Mamba-2: one projection for gate, x, B, C and dt, a short convolution over x, B and C, a gated norm."""
    heads, head_dim = cfg.integer("mamba_num_heads", default=128), cfg.integer("mamba_head_dim", default=64)
    groups = cfg.integer("n_groups", "mamba_n_groups", default=8)
    state = cfg.integer("ssm_state_size", default=128)
    kernel = cfg.integer("conv_kernel", "mamba_d_conv", default=4)
    cfg.divides("n_groups", groups, "mamba_num_heads", heads)
    bias, conv_bias = cfg.flag("use_bias", False), cfg.flag("use_conv_bias", True)
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    linears = (
        Linear("in", hidden, inner + channels + heads, Split.COLUMN, bias),
        Linear("out", inner, hidden, Split.ROW, bias),
    )
    extras = (
        Extra("short_convolution", channels * (kernel + conv_bias), Split.COLUMN),
        Extra("decay_skip_dt", 3 * heads, Split.COLUMN),
        rms_norm("gated_norm", inner, Split.COLUMN),
    )
    core = RecurrentCore("mamba2", heads, state, head_dim, groups, kernel, channels)
    return Mixer("mamba", linears, core, extras)


def _attention(cfg: Config, hidden: int) -> Mixer:
    heads = cfg.integer("num_attention_heads", default=32)
    kv = cfg.optional_integer("num_key_value_heads") or (heads if "num_key_value_heads" in cfg.data else 8)
    cfg.divides("num_key_value_heads", kv, "num_attention_heads", heads)
    head_dim = cfg.integer("head_dim", "attention_head_dim", default=128)
    return softmax_attention(Heads(hidden, heads, kv, head_dim), window=cfg.optional_integer("sliding_window"))


def _moe(cfg: Config, hidden: int) -> Moe:
    """Un-gated experts, optionally working in a narrower latent space that is projected to once for all of them."""
    routing = read_routing(cfg, ("n_routed_experts",), ("num_experts_per_tok",), (8, 2))
    bias = cfg.flag("mlp_bias", False)
    if bias:
        cfg.fail("mlp_bias", "false: biases beside experts are not supported")
    if cfg.integer("n_shared_experts", default=1, minimum=0) != 1:
        cfg.fail("n_shared_experts", "1: the class has one shared expert")
    latent = cfg.optional_integer("moe_latent_size")
    shared = cfg.integer("moe_shared_expert_intermediate_size", default=7688)
    groups = read_groups(cfg, routing.experts)
    projections = (
        (Linear("latent_down", hidden, latent, Split.NONE), Linear("latent_up", latent, hidden, Split.NONE))
        if latent
        else ()
    )
    return Moe(
        routing.experts,
        routing.top_k,
        Mlp(latent or hidden, cfg.integer("moe_intermediate_size", default=7688), gated=False),
        router(hidden, routing.experts),
        shared=Mlp(hidden, shared, gated=False),
        latent_linears=projections,
        num_groups=groups[0],
        top_groups=groups[1],
    )


def _block_words(cfg: Config, list_key: str, pattern_key: str) -> list[str] | None:
    """The layers as ``mamba``, ``attention``, ``moe`` or ``mlp``, from a list of words or a string of letters."""
    words = cfg.names(list_key, _WORDS)
    pattern = cfg.data.get(pattern_key)
    cfg.ignore(pattern_key)
    if words:
        return [_WORDS[word] for word in words]
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS):
        cfg.fail(pattern_key, "a string of the letters M (Mamba), * (attention), E (experts), - (feed-forward)")
    return [_LETTERS[letter] for letter in pattern]


def read_nemotron_h(cfg: Config, name: str) -> ModelSpec:
    """Nemotron-H and Nemotron 3: every layer is one sub-block with one norm."""
    for key in ("attention_bias", "mamba_proj_bias"):
        cfg.reject(key, "false: the class builds none")
    hidden = cfg.integer("hidden_size")
    words = _block_words(cfg, "layers_block_type", "hybrid_override_pattern")
    if words is None:
        cfg.fail("hybrid_override_pattern", "the layers, as a string of letters or as the list layers_block_type")
    given = cfg.optional_integer("num_hidden_layers")
    if given is not None and given != len(words):
        cfg.fail("num_hidden_layers", f"the length of the layer pattern, {len(words)}")
    # expand is superseded by the explicit Mamba heads; the time steps set initial values.
    cfg.ignore("expand", "chunk_size", "mamba_hidden_act", "mlp_hidden_act", "use_mamba_kernels", "hidden_act")
    cfg.ignore("rescale_prenorm_residual", "moe_shared_expert_overlap", "num_logits_to_keep", "mamba_expand")
    cfg.ignore("time_step_floor", "time_step_max", "time_step_min", "time_step_limit", "time_step_rank")
    # Read only by the kinds of sub-block that the pattern names.
    cfg.ignore(*_BLOCK_KEYS)
    cfg.reject("tie_word_embeddings", "false: the class never ties embedding and head")
    mtp_words = _block_words(cfg, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or ["attention", "moe"]
    depth = cfg.optional_integer("num_nextn_predict_layers", minimum=0, maximum=64) or 0
    kinds = {word: _nemotron_block(cfg, hidden, word) for word in {*words, *(mtp_words if depth else ())}}
    frame = standard_frame(cfg, hidden, tied_default=False)
    if depth:
        linears, extras = mtp_join(hidden)
        whole = _merge(cfg, [kinds[word] for word in mtp_words])
        frame = replace(frame, mtp=(whole,) * depth, mtp_linears=linears, mtp_extras=extras)
    return assemble(cfg, name, "NemotronHForCausalLM", [kinds[word] for word in words], frame)


def _nemotron_block(cfg: Config, hidden: int, word: str) -> LayerKind:
    norms = (rms_norm("norm", hidden),)
    if word == "mamba":
        return layer(_mamba(cfg, hidden), None, norms)
    if word == "attention":
        return layer(_attention(cfg, hidden), None, norms)
    if word == "moe":
        return layer(None, _moe(cfg, hidden), norms)
    bias = cfg.flag("mlp_bias", False)
    return layer(None, Mlp(hidden, cfg.integer("intermediate_size"), gated=False, bias=bias), norms)


def _merge(cfg: Config, blocks: list[LayerKind]) -> LayerKind:
    """One MTP layer out of its sub-blocks: at most one mixer and one feed-forward."""
    mixers = [b.mixer for b in blocks if b.mixer]
    feeds = [b.moe or b.mlp for b in blocks if b.moe or b.mlp]
    if len(mixers) > 1 or len(feeds) > 1:
        cfg.fail("mtp_hybrid_override_pattern", "at most one mixer and one feed-forward in an MTP layer")
    norms = tuple(norm for b in blocks for norm in b.norms)
    return layer(mixers[0] if mixers else None, feeds[0] if feeds else None, norms)


# ---- Nemotron-NAS


def read_deci(cfg: Config, name: str) -> ModelSpec:
    """Nemotron-NAS (DeciLM): every block has its own key/value groups and feed-forward width, or lacks one of them."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = cfg.integer("num_attention_heads")
    cfg.divides("num_attention_heads", heads, "hidden_size", hidden)
    bias, mlp_bias = cfg.flag("attention_bias", False), cfg.flag("mlp_bias", False)
    cfg.ignore("hidden_act", "intermediate_size", "num_key_value_heads")
    blocks = cfg.items("block_configs", layers)
    if blocks is None:
        cfg.fail("block_configs", "a list with one entry a layer")
    kinds = []
    for position, block in enumerate(blocks):
        if not isinstance(block, dict):
            cfg.fail("block_configs", f"an object at position {position}")
        view = Config(block, cfg.source, f"block_configs[{position}].")
        mixer = _deci_attention(view, hidden, heads, bias)
        mlp = _deci_mlp(view, hidden, mlp_bias)
        view.finish()
        norms = two_rms_norms(hidden)
        kinds.append(layer(mixer, mlp, norms[:1] * (mixer is not None) + norms[1:] * (mlp is not None)))
    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "DeciLMForCausalLM", kinds, frame)


def _deci_part(block: Config, key: str) -> Config | None:
    """The half of a block, None where it is a no-op."""
    part = block.section(key)
    if part is None:
        block.fail(key, "an object")
    for option in ("replace_with_linear", "sparsify"):
        part.reject(option, "false or null: not supported")
    return None if part.flag("no_op", False) else part


def _deci_attention(block: Config, hidden: int, heads: int, bias: bool) -> Mixer | None:
    part = _deci_part(block, "attention")
    if part is None:
        return None
    # Each key/value head serves this many query heads.
    in_group = part.integer("n_heads_in_group")
    part.divides("n_heads_in_group", in_group, "num_attention_heads", heads)
    window = part.optional_integer("window_length")
    for option in ("num_sink_tokens", "unshifted_sink", "use_prefill_window_in_sink_attention"):
        part.reject(option, "false or null: sinks are not supported")
    part.finish()
    shape = Heads(hidden, heads, heads // in_group, hidden // heads)
    return softmax_attention(shape, qkv_bias=bias, out_bias=bias, window=window)


def _deci_mlp(block: Config, hidden: int, bias: bool) -> Mlp | None:
    part = _deci_part(block, "ffn")
    if part is None:
        return None
    mult = part.number("ffn_mult", 0.0)
    if not mult:
        part.fail("ffn_mult", "a positive number")
    part.finish()
    # The original code takes two thirds of the multiple and rounds up to a whole 256.
    width = int(2 * mult * hidden / 3)
    return Mlp(hidden, -(-width // 256) * 256, gated=True, bias=bias)

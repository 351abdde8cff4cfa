"""Decoders of the GPT line: LayerNorm with bias, un-gated feed-forward, mostly biases everywhere."""

from __future__ import annotations

from ..model import Extra, Mlp, ModelSpec, Split
from .config import Config
from .parts import Frame, Heads, assemble, layer, layer_norm, read_heads, softmax_attention


def _two_layer_norms(hidden: int, bias: bool = True) -> tuple[Extra, ...]:
    return layer_norm("input_norm", hidden, bias), layer_norm("post_attention_norm", hidden, bias)


def _final_norm(hidden: int, bias: bool = True) -> Extra:
    return layer_norm("final_norm", hidden, bias)


def _split_heads(cfg: Config, hidden: int, heads_key: str, hidden_key: str) -> Heads:
    heads = cfg.integer(heads_key)
    cfg.divides(heads_key, heads, hidden_key, hidden)
    return Heads(hidden, heads, heads, hidden // heads)


def read_gpt2(cfg: Config, name: str) -> ModelSpec:
    """GPT-2 and GPT-3: learned positions, tied embeddings, biases on every projection."""
    cfg.reject("add_cross_attention", "false: a decoder without cross-attention")
    hidden, layers = cfg.integer("n_embd"), cfg.layers("n_layer")
    heads = _split_heads(cfg, hidden, "n_head", "n_embd")
    width = cfg.optional_integer("n_inner") or 4 * hidden
    cfg.ignore("activation_function")
    mixer = softmax_attention(heads, qkv_bias=True, out_bias=True)
    kind = layer(mixer, Mlp(hidden, width, gated=False, bias=True), _two_layer_norms(hidden))
    positions = Extra("position_embedding", cfg.integer("n_positions", default=1024) * hidden)
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden),), (positions,))
    return assemble(cfg, name, "GPT2LMHeadModel", [kind] * layers, frame)


def read_gpt_bigcode(cfg: Config, name: str) -> ModelSpec:
    """StarCoder and SantaCoder: GPT-2 with one key/value head."""
    cfg.reject("add_cross_attention", "false: a decoder without cross-attention")
    hidden, layers = cfg.integer("n_embd"), cfg.layers("n_layer")
    many = _split_heads(cfg, hidden, "n_head", "n_embd")
    kv = 1 if cfg.flag("multi_query", True) else many.num_heads
    if cfg.optional_integer("num_key_value_heads") not in (None, kv):
        cfg.fail("num_key_value_heads", f"{kv}, as multi_query says")
    heads = Heads(hidden, many.num_heads, kv, many.head_dim)
    width = cfg.optional_integer("n_inner") or 4 * hidden
    cfg.ignore("activation_function")
    mixer = softmax_attention(heads, qkv_bias=True, out_bias=True)
    kind = layer(mixer, Mlp(hidden, width, gated=False, bias=True), _two_layer_norms(hidden))
    positions = Extra("position_embedding", cfg.integer("n_positions", default=1024) * hidden)
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden),), (positions,))
    return assemble(cfg, name, "GPTBigCodeForCausalLM", [kind] * layers, frame)


def read_gptj(cfg: Config, name: str) -> ModelSpec:
    """GPT-J: parallel branches behind one norm, no attention biases, a bias on the head."""
    hidden, layers = cfg.integer("n_embd"), cfg.layers("n_layer")
    heads = _split_heads(cfg, hidden, "n_head", "n_embd")
    width = cfg.optional_integer("n_inner") or 4 * hidden
    vocab = cfg.integer("vocab_size")
    cfg.ignore("activation_function", "rotary", "rotary_dim")
    kind = layer(
        softmax_attention(heads),
        Mlp(hidden, width, gated=False, bias=True),
        (layer_norm("input_norm", hidden),),
        parallel=True,
    )
    head = (_final_norm(hidden), Extra("head_bias", vocab, Split.COLUMN))
    return assemble(cfg, name, "GPTJForCausalLM", [kind] * layers, Frame(hidden, vocab, cfg.tied(False), head))


def read_gpt_neox(cfg: Config, name: str) -> ModelSpec:
    """GPT-NeoX and Pythia: rotary positions, parallel branches behind two norms."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = _split_heads(cfg, hidden, "num_attention_heads", "hidden_size")
    bias = cfg.flag("attention_bias", True)
    parallel = cfg.flag("use_parallel_residual", True)
    cfg.ignore("hidden_act")
    mlp = Mlp(hidden, cfg.integer("intermediate_size"), gated=False, bias=True)
    mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias)
    kind = layer(mixer, mlp, _two_layer_norms(hidden), parallel=parallel)
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(False), (_final_norm(hidden),))
    return assemble(cfg, name, "GPTNeoXForCausalLM", [kind] * layers, frame)


def read_opt(cfg: Config, name: str) -> ModelSpec:
    """OPT: learned positions with two rows more than the sequence, and optionally a narrower embedding."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = _split_heads(cfg, hidden, "num_attention_heads", "hidden_size")
    bias = cfg.flag("enable_bias", True)
    affine = cfg.flag("layer_norm_elementwise_affine", True)
    before = cfg.flag("do_layer_norm_before", True)
    removed = cfg.flag("_remove_final_layer_norm", False)
    final = before and not removed
    cfg.ignore("activation_function")
    norms = _two_layer_norms(hidden) if affine else ()
    mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias)
    kind = layer(mixer, Mlp(hidden, cfg.integer("ffn_dim"), gated=False, bias=bias), norms)
    # The class keeps two rows of the position table for an old padding offset.
    table = [Extra("position_embedding", (cfg.integer("max_position_embeddings", default=2048) + 2) * hidden)]
    head = [_final_norm(hidden)] if final and affine else []
    narrow = cfg.optional_integer("word_embed_proj_dim") or hidden
    if narrow != hidden:
        table.append(Extra("embedding_projection", narrow * hidden))
        head.append(Extra("head_projection", narrow * hidden))
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), tuple(head), tuple(table), narrow)
    return assemble(cfg, name, "OPTForCausalLM", [kind] * layers, frame)


def read_bloom(cfg: Config, name: str) -> ModelSpec:
    """BLOOM: ALiBi positions and a LayerNorm behind the embedding."""
    hidden, layers = cfg.integer("hidden_size", "n_embed"), cfg.layers("n_layer", "num_hidden_layers")
    heads = cfg.integer("n_head", "num_attention_heads")
    cfg.divides("n_head" if cfg.has("n_head") else "num_attention_heads", heads, "hidden_size", hidden)
    cfg.ignore("apply_residual_connection_post_layernorm")
    mixer = softmax_attention(Heads(hidden, heads, heads, hidden // heads), qkv_bias=True, out_bias=True)
    kind = layer(mixer, Mlp(hidden, 4 * hidden, gated=False, bias=True), _two_layer_norms(hidden))
    after = layer_norm("embedding_norm", hidden)
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden),), (after,))
    return assemble(cfg, name, "BloomForCausalLM", [kind] * layers, frame)


def read_falcon(cfg: Config, name: str) -> ModelSpec:
    """Falcon: one key/value head in the old decoder, groups of them in the new one."""
    hidden, layers = cfg.integer("hidden_size", "n_embed"), cfg.layers("num_hidden_layers", "n_layer")
    heads = cfg.integer("num_attention_heads", "n_head")
    cfg.divides("num_attention_heads", heads, "hidden_size", hidden)
    new, parallel = cfg.flag("new_decoder_architecture", False), cfg.flag("parallel_attn", True)
    one = cfg.flag("multi_query", True)
    groups = cfg.optional_integer("num_kv_heads", "n_head_kv") or heads
    kv = groups if new else (1 if one else heads)
    cfg.divides("num_kv_heads", kv, "num_attention_heads", heads)
    bias = cfg.flag("bias", False)
    cfg.ignore("alibi", "activation", "hidden_act")
    norms_given = cfg.optional_integer("num_ln_in_parallel_attn", maximum=2)
    two = not parallel or norms_given == 2 or (norms_given is None and new)
    norms = _two_layer_norms(hidden) if two else (layer_norm("input_norm", hidden),)
    mixer = softmax_attention(Heads(hidden, heads, kv, hidden // heads), qkv_bias=bias, out_bias=bias)
    width = cfg.optional_integer("ffn_hidden_size") or 4 * hidden
    kind = layer(mixer, Mlp(hidden, width, gated=False, bias=bias), norms, parallel=parallel or new)
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden),))
    return assemble(cfg, name, "FalconForCausalLM", [kind] * layers, frame)


def read_mpt(cfg: Config, name: str) -> ModelSpec:
    """MPT: ALiBi, no biases at all, not even in the norms."""
    hidden, layers = cfg.integer("d_model"), cfg.layers("n_layers")
    heads = _split_heads(cfg, hidden, "n_heads", "d_model")
    if not cfg.flag("no_bias", True):
        cfg.fail("no_bias", "true: the class builds no biases")
    if cfg.number("expansion_ratio", 4) != 4:
        cfg.fail("expansion_ratio", "4: the class builds no other feed-forward width")
    # With ALiBi the class builds no position table, whatever learned_pos_emb says.
    cfg.ignore("learned_pos_emb", "norm_type", "embedding_fraction")
    attention = cfg.section("attn_config")
    if attention is not None:
        attention.reject("qk_ln", "false: QK norm is not supported")
        attention.text("attn_type", "multihead_attention", ("multihead_attention",))
        if not attention.flag("alibi", True):
            attention.fail("alibi", "true: the class has no other positions")
        attention.ignore("alibi_bias_max", "attn_impl", "attn_uses_sequence_id")
        attention.ignore("clip_qkv", "prefix_lm", "softmax_scale")
        attention.finish()
    kind = layer(softmax_attention(heads), Mlp(hidden, 4 * hidden, gated=False), _two_layer_norms(hidden, bias=False))
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden, bias=False),))
    return assemble(cfg, name, "MptForCausalLM", [kind] * layers, frame)


def read_starcoder2(cfg: Config, name: str) -> ModelSpec:
    """StarCoder2: grouped queries and a sliding window in a GPT-shaped layer."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, kv_default=2)
    bias = cfg.flag("use_bias", True)
    window = cfg.optional_integer("sliding_window")
    cfg.ignore("hidden_act", "mlp_type", "norm_type")
    cfg.text("mlp_type", "default", ("default",))
    cfg.text("norm_type", "layer_norm", ("layer_norm",))
    mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=window)
    kind = layer(mixer, Mlp(hidden, cfg.integer("intermediate_size"), gated=False, bias=bias), _two_layer_norms(hidden))
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (_final_norm(hidden),))
    return assemble(cfg, name, "Starcoder2ForCausalLM", [kind] * layers, frame)


def read_nemotron(cfg: Config, name: str) -> ModelSpec:
    """Nemotron-4: squared-relu feed-forward, LayerNorm with bias, no other biases by default."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    bias, mlp_bias = cfg.flag("attention_bias", False), cfg.flag("mlp_bias", False)
    cfg.ignore("hidden_act")
    mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias)
    mlp = Mlp(hidden, cfg.integer("intermediate_size"), gated=False, bias=mlp_bias)
    kind = layer(mixer, mlp, _two_layer_norms(hidden))
    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(False), (_final_norm(hidden),))
    return assemble(cfg, name, "NemotronForCausalLM", [kind] * layers, frame)


def read_phi(cfg: Config, name: str) -> ModelSpec:
    """Phi-1 and Phi-2: parallel branches behind one norm, biases everywhere, on the head too."""
    cfg.reject("qk_layernorm", "false: QK norm is not supported in this family")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    vocab = cfg.integer("vocab_size")
    cfg.ignore("hidden_act")
    mixer = softmax_attention(heads, qkv_bias=True, out_bias=True)
    mlp = Mlp(hidden, cfg.integer("intermediate_size"), gated=False, bias=True)
    kind = layer(mixer, mlp, (layer_norm("input_norm", hidden),), parallel=True)
    head = (_final_norm(hidden), Extra("head_bias", vocab, Split.COLUMN))
    return assemble(cfg, name, "PhiForCausalLM", [kind] * layers, Frame(hidden, vocab, cfg.tied(False), head))

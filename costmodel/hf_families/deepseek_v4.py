"""DeepSeek-V4: shared-key attention over compressed keys, grouped output projection, hyper-connections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..model import AttentionCore, Extra, LayerKind, Linear, Mixer, ModelSpec, Split
from .config import Config, show
from .moe import gated_moe, read_routing
from .parts import assemble, rms_norm, standard_frame, two_rms_norms

SLIDING: Final = "sliding_attention"
SPARSE: Final = "compressed_sparse_attention"
HEAVY: Final = "heavily_compressed_attention"
_TYPE_OF_RATIO: Final = {0: SLIDING, 4: SPARSE, 128: HEAVY}
_RATES: Final = {SPARSE: 4, HEAVY: 128}


@dataclass(frozen=True, slots=True)
class _Sizes:
    hidden: int
    heads: int
    head_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    index_heads: int
    index_dim: int
    index_top: int
    window: int
    streams: int


def _read_sizes(cfg: Config) -> _Sizes:
    sizes = _Sizes(
        hidden=cfg.integer("hidden_size"),
        heads=cfg.integer("num_attention_heads"),
        head_dim=cfg.integer("head_dim", default=512),
        q_rank=cfg.integer("q_lora_rank", default=1024),
        o_groups=cfg.integer("o_groups", default=8),
        o_rank=cfg.integer("o_lora_rank", default=1024),
        index_heads=cfg.integer("index_n_heads", default=64),
        index_dim=cfg.integer("index_head_dim", default=128),
        index_top=cfg.integer("index_topk", default=512),
        window=cfg.integer("sliding_window", default=128),
        streams=cfg.integer("hc_mult", default=4, maximum=1024),
    )
    cfg.divides("o_groups", sizes.o_groups, "num_attention_heads", sizes.heads)
    if cfg.integer("num_key_value_heads", default=1) != 1:
        cfg.fail("num_key_value_heads", "1: keys and values are one shared head")
    for key in ("attention_bias", "mlp_bias"):
        cfg.reject(key, "false: biases are not supported")
    cfg.ignore("hidden_act", "qk_rope_head_dim")
    return sizes


def _layer_types(cfg: Config, layers: int) -> list[str]:
    """The kind of attention of every layer, from words, compression ratios or the class's own rule."""
    words = cfg.names("layer_types", (SLIDING, SPARSE, HEAVY))
    ratios = cfg.integers("compress_ratios")
    if words is None and ratios is not None:
        # Files append an entry for each MTP layer.
        if len(ratios) < layers:
            cfg.fail("compress_ratios", f"a list of at least {layers} entries; it has {len(ratios)}")
        for ratio in ratios:
            if ratio not in _TYPE_OF_RATIO:
                cfg.fail("compress_ratios", f"entries 0, 4 or 128; {show(ratio)} is not understood")
        words = [_TYPE_OF_RATIO[ratio] for ratio in ratios]
    if words is None:
        cfg.assume("compress_ratios is not given: heavily compressed and sparse layers in turn (class default)")
        words = [HEAVY if i < 2 or i % 2 == 0 else SPARSE for i in range(layers)]
    if len(words) < layers:
        cfg.fail("layer_types", f"a list of at least {layers} entries; it has {len(words)}")
    return words[:layers]


def _hyper_connection(name: str, sizes: _Sizes) -> Extra:
    """Mixes ``streams`` residual streams: a small dynamic matrix, its bias and three scales."""
    rows = (2 + sizes.streams) * sizes.streams
    return Extra(name, rows * sizes.streams * sizes.hidden + rows + 3)


def _compressor(sizes: _Sizes, name: str, width: int, rate: int) -> tuple[list[Linear], list[Extra]]:
    linears = [
        Linear(f"{name}_kv", sizes.hidden, width, Split.NONE),
        Linear(f"{name}_gate", sizes.hidden, width, Split.NONE),
    ]
    return linears, [Extra(f"{name}_position_bias", rate * width)]


def _attention(sizes: _Sizes, kind: str, rates: dict[str, int]) -> Mixer:
    s = sizes
    width = s.heads * s.head_dim
    linears = [
        Linear("q_down", s.hidden, s.q_rank, Split.NONE),
        Linear("q_up", s.q_rank, width, Split.COLUMN),
        Linear("kv", s.hidden, s.head_dim, Split.NONE),
        # A grouped projection: each group of heads is reduced on its own, so the inner width is one group's.
        Linear("attention_out_down", width // s.o_groups, s.o_groups * s.o_rank, Split.COLUMN),
        Linear("attention_out_up", s.o_groups * s.o_rank, s.hidden, Split.ROW),
    ]
    extras = [rms_norm("q_latent_norm", s.q_rank), rms_norm("kv_norm", s.head_dim)]
    extras.append(Extra("sinks", s.heads, Split.COLUMN))
    core = AttentionCore(s.heads, 1, s.head_dim, s.head_dim, window=s.window)
    if kind == SLIDING:
        return Mixer("sliding shared-key", tuple(linears), core, tuple(extras))
    rate = rates[kind]
    # The sparse kind compresses overlapping halves, so its compressor is twice as wide.
    more, biases = _compressor(s, "compressor", (2 if kind == SPARSE else 1) * s.head_dim, rate)
    linears += more
    extras += [*biases, rms_norm("compressor_norm", s.head_dim)]
    core = replace(core, window=None, compression=rate, local_keys=s.window)
    if kind == HEAVY:
        return Mixer("heavily compressed", tuple(linears), core, tuple(extras))
    more, biases = _compressor(s, "indexer", 2 * s.index_dim, rate)
    linears += [
        *more,
        Linear("indexer_q", s.q_rank, s.index_heads * s.index_dim, Split.NONE),
        Linear("indexer_weights", s.hidden, s.index_heads, Split.NONE),
    ]
    extras += [*biases, rms_norm("indexer_norm", s.index_dim)]
    core = replace(core, selected_keys=s.index_top, indexer_heads=s.index_heads, indexer_head_dim=s.index_dim)
    return Mixer("compressed sparse", tuple(linears), core, tuple(extras))


def _read_rates(cfg: Config) -> dict[str, int]:
    given = cfg.section("compress_rates")
    rates = dict(_RATES)
    if given is not None:
        rates = {kind: given.integer(kind, default=rate) for kind, rate in rates.items()}
        given.finish()
    for kind, key in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        rates[kind] = cfg.optional_integer(key) or rates[kind]
    return rates


def read_deepseek_v4(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek-V4: all layers routed, the first ones by a hash of the token (same experts, same router weights)."""
    sizes, layers = _read_sizes(cfg), cfg.layers()
    rates = _read_rates(cfg)
    routing = read_routing(cfg, ("n_routed_experts", "num_local_experts"), ("num_experts_per_tok",), (256, 6))
    width = cfg.integer("moe_intermediate_size", "intermediate_size", default=2048)
    shared = cfg.integer("n_shared_experts", default=1, minimum=0)
    cfg.ignore("num_hash_layers", "n_group", "topk_group")
    cfg.names("mlp_layer_types", ("hash_moe", "moe"))
    moe = gated_moe(sizes.hidden, width, routing, shared_width=shared * width)
    streams = _hyper_connection("attention_streams", sizes), _hyper_connection("feed_forward_streams", sizes)

    def make(kind: str) -> LayerKind:
        mixer = _attention(sizes, kind, rates)
        return LayerKind(f"{mixer.kind}+moe", mixer, None, moe, two_rms_norms(sizes.hidden), streams)

    kinds = [make(kind) for kind in _layer_types(cfg, layers)]
    frame = standard_frame(cfg, sizes.hidden, tied_default=False)
    head = Extra("head_streams", sizes.streams * sizes.streams * sizes.hidden + sizes.streams + 1)
    depth = cfg.optional_integer("num_nextn_predict_layers", "num_mtp_layers", minimum=0, maximum=64) or 0
    if depth:
        hidden = sizes.hidden
        norms = tuple(rms_norm(n, hidden) for n in ("mtp_embedding_norm", "mtp_hidden_norm", "mtp_final_norm"))
        joins = tuple(Linear(n, hidden, hidden, Split.COLUMN) for n in ("mtp_join_embedding", "mtp_join_hidden"))
        frame = replace(frame, mtp=(make(SLIDING),) * depth, mtp_linears=joins, mtp_extras=(*norms, head))
    frame = replace(frame, head_extras=(*frame.head_extras, head))
    return assemble(cfg, name, "DeepseekV4ForCausalLM", kinds, frame)

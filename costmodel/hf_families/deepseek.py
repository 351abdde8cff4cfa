"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5."""

from __future__ import annotations

from dataclasses import dataclass

from ..model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from .config import Config
from .moe import dense_first, gated_moe, read_routing, with_mtp
from .parts import assemble, layer, layer_norm, read_groups, rms_norm, standard_frame, two_rms_norms


@dataclass(frozen=True, slots=True)
class Latent:
    """The sizes of one multi-head latent attention."""

    hidden: int
    num_heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Indexer:
    """The sparse-attention indexer: small queries and one shared key that pick the keys to attend to."""

    num_heads: int
    head_dim: int
    top_k: int


def read_latent(cfg: Config, hidden: int, q_rank_default: int | None = 1536) -> Latent:
    """MLA sizes; ``head_dim``, ``qk_head_dim`` and ``num_key_value_heads`` do not shape it."""
    heads = cfg.integer("num_attention_heads")
    rank = cfg.optional_integer("q_lora_rank")
    if rank is None and "q_lora_rank" not in cfg.data and q_rank_default is not None:
        rank = cfg.integer("q_lora_rank", default=q_rank_default)
    cfg.ignore("head_dim", "qk_head_dim", "num_key_value_heads", "hidden_act")
    return Latent(
        hidden,
        heads,
        rank,
        cfg.integer("kv_lora_rank", default=512),
        cfg.integer("qk_nope_head_dim", default=128),
        cfg.integer("qk_rope_head_dim", default=64),
        cfg.integer("v_head_dim", default=128),
        cfg.flag("attention_bias", False),
    )


def latent_attention(sizes: Latent, indexer: Indexer | None = None, selects: bool = True) -> Mixer:
    """MLA in its training form: keys and values are expanded per head.

    ``indexer`` gives sparse attention; ``selects`` is False for a layer that reuses an earlier layer's selection and
    so owns no indexer.
    """
    s = sizes
    qk = s.nope_dim + s.rope_dim
    linears: list[Linear] = []
    extras: list[Extra] = []
    if s.q_rank is None:
        linears.append(Linear("q", s.hidden, s.num_heads * qk, Split.COLUMN))
    else:
        linears.append(Linear("q_down", s.hidden, s.q_rank, Split.NONE, s.bias))
        linears.append(Linear("q_up", s.q_rank, s.num_heads * qk, Split.COLUMN))
        extras.append(rms_norm("q_latent_norm", s.q_rank))
    linears.append(Linear("kv_down", s.hidden, s.kv_rank + s.rope_dim, Split.NONE, s.bias))
    linears.append(Linear("kv_up", s.kv_rank, s.num_heads * (s.nope_dim + s.v_dim), Split.COLUMN))
    extras.append(rms_norm("kv_latent_norm", s.kv_rank))
    linears.append(Linear("attention_out", s.num_heads * s.v_dim, s.hidden, Split.ROW, s.bias))
    owned = indexer if indexer and selects else None
    if owned:
        linears += _indexer_linears(s, owned)
        extras.append(layer_norm("indexer_key_norm", owned.head_dim))
    core = AttentionCore(
        s.num_heads,
        s.num_heads,
        qk,
        s.v_dim,
        selected_keys=indexer.top_k if indexer else None,
        indexer_heads=owned.num_heads if owned else 0,
        indexer_head_dim=owned.head_dim if owned else 0,
    )
    return Mixer("mla", tuple(linears), core, tuple(extras))


def _indexer_linears(sizes: Latent, indexer: Indexer) -> tuple[Linear, ...]:
    # The indexer is small and its scores are needed whole on every rank, so it is not divided.
    if sizes.q_rank is None:
        raise AssertionError("an indexer reads the compressed query")
    return (
        Linear("indexer_q", sizes.q_rank, indexer.num_heads * indexer.head_dim, Split.NONE),
        Linear("indexer_k", sizes.hidden, indexer.head_dim, Split.NONE),
        Linear("indexer_weights", sizes.hidden, indexer.num_heads, Split.NONE),
    )


def _read_moe(cfg: Config, hidden: int, experts: int, top_k: int | None, shared: int) -> Moe:
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    routing = read_routing(cfg, keys, ("num_experts_per_tok",), (experts, top_k))
    width = cfg.integer("moe_intermediate_size", default=2048)
    count = cfg.optional_integer("n_shared_experts", minimum=0)
    if count is None:
        count = 0 if "n_shared_experts" in cfg.data else cfg.integer("n_shared_experts", default=shared)
    return gated_moe(hidden, width, routing, shared_width=count * width, groups=read_groups(cfg, routing.experts))


def _layers(cfg: Config, hidden: int, mixers: list[Mixer], moe: Moe, routed: list[bool]) -> list[LayerKind]:
    cfg.ignore("intermediate_size")
    dense = None if all(routed) else Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    return [layer(mixer, moe if r else dense, two_rms_norms(hidden)) for mixer, r in zip(mixers, routed, strict=True)]


def read_deepseek_v2(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek-V2 and V2-Lite."""
    cfg.reject("mlp_bias", "false: biases in the experts are not supported")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    mixer = latent_attention(read_latent(cfg, hidden))
    moe = _read_moe(cfg, hidden, 64, None, 2)
    kinds = _layers(cfg, hidden, [mixer] * layers, moe, dense_first(cfg, layers, 0))
    frame = standard_frame(cfg, hidden, tied_default=False)
    return assemble(cfg, name, "DeepseekV2ForCausalLM", kinds, frame)


def read_deepseek_v3(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek-V3 and R1, Kimi-K2, Moonlight."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    mixer = latent_attention(read_latent(cfg, hidden))
    moe = _read_moe(cfg, hidden, 256, 8, 1)
    kinds = _layers(cfg, hidden, [mixer] * layers, moe, dense_first(cfg, layers, 3))
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False), kinds[-1])
    return assemble(cfg, name, "DeepseekV3ForCausalLM", kinds, frame)


def _words_per_layer(cfg: Config, key: str, allowed: tuple[str, ...], layers: int) -> list[str] | None:
    """A list with an entry a layer; files may append one for each MTP layer."""
    depth = cfg.optional_integer("num_nextn_predict_layers", "num_mtp_layers", minimum=0, maximum=64) or 0
    listed = cfg.data.get(key)
    padded = isinstance(listed, list) and len(listed) == layers + depth
    words = cfg.names(key, allowed, layers + depth if padded else layers)
    return None if words is None else words[:layers]


def _mlp_types(cfg: Config, layers: int) -> list[bool]:
    given = _words_per_layer(cfg, "mlp_layer_types", ("dense", "sparse"), layers)
    if given is None:
        return dense_first(cfg, layers, 3)
    cfg.ignore("first_k_dense_replace", "moe_layer_freq")
    return [kind == "sparse" for kind in given]


def _read_indexer(cfg: Config, heads: int) -> Indexer:
    return Indexer(
        cfg.integer("index_n_heads", default=heads),
        cfg.integer("index_head_dim", default=128),
        cfg.integer("index_topk", default=2048),
    )


def read_deepseek_v32(cfg: Config, name: str) -> ModelSpec:
    """DeepSeek-V3.2: V3 with an indexer in every layer."""
    cfg.reject("mlp_bias", "false: biases in the experts are not supported")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    cfg.names("layer_types", ("indexed_attention",), layers)
    mixer = latent_attention(_compressed(cfg, read_latent(cfg, hidden)), _read_indexer(cfg, 64))
    moe = _read_moe(cfg, hidden, 256, 8, 1)
    kinds = _layers(cfg, hidden, [mixer] * layers, moe, _mlp_types(cfg, layers))
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False), kinds[-1])
    return assemble(cfg, name, "DeepseekV32ForCausalLM", kinds, frame)


def _compressed(cfg: Config, sizes: Latent) -> Latent:
    if sizes.q_rank is None:
        cfg.fail("q_lora_rank", "an integer: the indexer reads the compressed query")
    return sizes


def _indexer_types(cfg: Config, layers: int) -> list[bool]:
    """True for the layers that own an indexer, False for those that reuse the last selection."""
    cfg.ignore("index_share_for_mtp_iteration")
    given = _words_per_layer(cfg, "indexer_types", ("full", "shared"), layers)
    if given is not None:
        cfg.ignore("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        return [kind == "full" for kind in given]
    pattern = cfg.data.get("index_topk_pattern")
    cfg.ignore("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or set(pattern) - {"F", "S"} or len(pattern) != layers:
            cfg.fail("index_topk_pattern", f"a string of {layers} letters F or S")
        return [letter == "F" for letter in pattern]
    freq = cfg.optional_integer("index_topk_freq") or 1
    offset = cfg.optional_integer("index_skip_topk_offset", minimum=0)
    offset = 2 if offset is None else offset
    return [max(i - offset + 1, 0) % freq == 0 for i in range(layers)]


def read_glm_moe_dsa(cfg: Config, name: str) -> ModelSpec:
    """GLM-5: MLA with an indexer that only some layers own."""
    cfg.reject("mlp_bias", "false: biases in the experts are not supported")
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    cfg.names("layer_types", ("indexed_attention",), layers)
    sizes = _compressed(cfg, read_latent(cfg, hidden, 2048))
    indexer = _read_indexer(cfg, 32)
    mixers = [latent_attention(sizes, indexer, selects) for selects in _indexer_types(cfg, layers)]
    moe = _read_moe(cfg, hidden, 256, 8, 1)
    kinds = _layers(cfg, hidden, mixers, moe, _mlp_types(cfg, layers))
    owner = layer(latent_attention(sizes, indexer), moe, two_rms_norms(hidden))
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False), owner)
    return assemble(cfg, name, "GlmMoeDsaForCausalLM", kinds, frame)


def read_glm4_moe_lite(cfg: Config, name: str) -> ModelSpec:
    """GLM-4.7-Flash: DeepSeek-V3's layers with a list of dense and routed ones."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    mixer = latent_attention(read_latent(cfg, hidden, 768))
    moe = _read_moe(cfg, hidden, 64, 4, 1)
    given = _words_per_layer(cfg, "mlp_layer_types", ("dense", "sparse"), layers)
    routed = [word == "sparse" for word in given] if given else dense_first(cfg, layers, 1)
    cfg.ignore("first_k_dense_replace", "moe_layer_freq")
    kinds = _layers(cfg, hidden, [mixer] * layers, moe, routed)
    frame = with_mtp(cfg, standard_frame(cfg, hidden, tied_default=False), kinds[-1])
    return assemble(cfg, name, "Glm4MoeLiteForCausalLM", kinds, frame)

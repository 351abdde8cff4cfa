"""Dense decoders with RMSNorm and a gated feed-forward: Llama and the many families shaped like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..model import Extra, LayerKind, Linear, Mlp, ModelSpec, Split
from . import windows
from .config import Config
from .parts import (
    Frame,
    Heads,
    assemble,
    head_norms,
    layer,
    layer_norm,
    projection_norms,
    read_heads,
    rms_norm,
    softmax_attention,
    span_mark,
    standard_frame,
    two_rms_norms,
)

Windows = Callable[[Config, int], list[int | None]]
Norms = Callable[[int], tuple[Extra, ...]]
QkNorms = Callable[[Heads], tuple[Extra, ...]]


def _no_window(cfg: Config, layers: int) -> list[int | None]:
    return [None] * layers


def _sandwich_norms(hidden: int) -> tuple[Extra, ...]:
    names = ("input_norm", "post_attention_norm", "pre_feed_forward_norm", "post_feed_forward_norm")
    return tuple(rms_norm(name, hidden) for name in names)


def _no_norms(hidden: int) -> tuple[Extra, ...]:
    return ()


def _no_qk_norm(heads: Heads) -> tuple[Extra, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class DenseFamily:
    """What distinguishes one dense class from the next."""

    architecture: str
    tied: bool = False
    kv_default: int | None = None
    head_dim_default: int | None = None
    vocab_default: int | None = None
    heads_default: int | None = None
    width_default: int | None = None
    """Class defaults of keys that files of this family do leave out; None where a missing key is an error."""
    attention_bias_key: str | None = None
    """The switch for biases of q, k, v; None when the class has none."""
    attention_bias: bool = False
    """The switch's class default, or the fixed value."""
    out_bias: bool | None = False
    """Bias of the output projection; None when it follows the switch."""
    mlp_bias_key: str | None = None
    gated: bool = True
    windows: Windows = _no_window
    norms: Norms = two_rms_norms
    qk_norms: QkNorms = _no_qk_norm
    ignored: tuple[str, ...] = ()


def read_dense(cfg: Config, name: str, family: DenseFamily) -> ModelSpec:
    """Read a dense gated decoder with the class's own defaults."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden, family.kv_default, family.head_dim_default, family.heads_default)
    bias = family.attention_bias
    if family.attention_bias_key:
        bias = cfg.flag(family.attention_bias_key, bias)
    mlp_bias = cfg.flag(family.mlp_bias_key, False) if family.mlp_bias_key else False
    mlp = Mlp(hidden, cfg.integer("intermediate_size", default=family.width_default), family.gated, mlp_bias)
    cfg.ignore("hidden_act", "hidden_activation", *family.ignored)

    def make(window: int | None) -> LayerKind:
        out_bias = bias if family.out_bias is None else family.out_bias
        mixer = softmax_attention(heads, qkv_bias=bias, out_bias=out_bias, window=window, extras=family.qk_norms(heads))
        return layer(mixer, mlp, family.norms(hidden), mark=span_mark(window))

    frame = standard_frame(cfg, hidden, tied_default=family.tied, vocab_default=family.vocab_default)
    if not family.norms(hidden):
        # A family whose norms have no weights has none behind the last layer either.
        frame = replace(frame, head_extras=())
    return assemble(cfg, name, family.architecture, map(make, family.windows(cfg, layers)), frame)


# ---- window rules of the classes


def _gemma2_windows(cfg: Config, layers: int) -> list[int | None]:
    types = windows.layer_types(cfg, layers, windows.alternating(layers, 2))
    return windows.windows_by_type(cfg, types, windows.window_of(cfg, 4096))


def _gemma3_windows(cfg: Config, layers: int) -> list[int | None]:
    pattern = cfg.optional_integer("sliding_window_pattern", "_sliding_window_pattern") or 6
    types = windows.layer_types(cfg, layers, windows.alternating(layers, pattern))
    return windows.windows_by_type(cfg, types, windows.window_of(cfg, 4096))


def _every_fourth_full(cfg: Config, layers: int) -> list[int | None]:
    pattern = cfg.optional_integer("sliding_window_pattern", "_sliding_window_pattern") or 4
    types = windows.layer_types(cfg, layers, windows.alternating(layers, pattern))
    return windows.windows_by_type(cfg, types, windows.window_of(cfg, 4096))


def _exaone4_windows(cfg: Config, layers: int) -> list[int | None]:
    # A pattern such as LLLG (local, global), or the number of layers in one round; null means no windows.
    pattern = cfg.data.get("sliding_window_pattern")
    cfg.ignore("sliding_window_pattern")
    window = windows.window_of(cfg, 4096)
    if window is None:
        cfg.ignore("layer_types")
        return [None] * layers
    types = windows.layer_types(cfg, layers) if cfg.has("layer_types") else None
    if types is None:
        if pattern not in ("LLLG", 4):
            cfg.fail("layer_types", "a list of layer types, or sliding_window_pattern LLLG")
        types = windows.alternating(layers, 4)
    return windows.windows_by_type(cfg, types, window)


def _mistral_windows(cfg: Config, layers: int) -> list[int | None]:
    return windows.same_window(cfg, layers, default=4096)


def _smollm3_windows(cfg: Config, layers: int) -> list[int | None]:
    # no_rope_layers names layers without rotary positions: they differ in compute, not in shape or window.
    cfg.ignore("no_rope_layers", "no_rope_layer_interval")
    cfg.integers("no_rope_layers") if cfg.data.get("no_rope_layers") else None
    if not cfg.flag("use_sliding_window", False):
        cfg.ignore("sliding_window", "layer_types")
        return [None] * layers
    window = windows.window_of(cfg)
    return windows.windows_by_type(cfg, windows.layer_types(cfg, layers), window)


LLAMA = DenseFamily("LlamaForCausalLM", attention_bias_key="attention_bias", out_bias=None, mlp_bias_key="mlp_bias")
MISTRAL = DenseFamily("MistralForCausalLM", kv_default=8, windows=_mistral_windows)
MINISTRAL3 = DenseFamily("Ministral3ForCausalLM", kv_default=8, head_dim_default=128, windows=windows.same_window)
QWEN2 = DenseFamily("Qwen2ForCausalLM", kv_default=32, attention_bias=True, windows=windows.qwen_windows)
QWEN3 = DenseFamily(
    "Qwen3ForCausalLM",
    kv_default=32,
    head_dim_default=128,
    attention_bias_key="attention_bias",
    out_bias=None,
    windows=windows.qwen_windows,
    qk_norms=head_norms,
)
QWEN3_VL = replace(QWEN3, architecture="Qwen3VLForConditionalGeneration", tied=True, windows=_no_window)
PHI3 = DenseFamily("Phi3ForCausalLM", windows=windows.same_window)
OLMO2 = DenseFamily("Olmo2ForCausalLM", attention_bias_key="attention_bias", out_bias=None, qk_norms=projection_norms)
OLMO3 = replace(OLMO2, architecture="Olmo3ForCausalLM", windows=_every_fourth_full)
GEMMA = DenseFamily(
    "GemmaForCausalLM",
    tied=True,
    kv_default=16,
    head_dim_default=256,
    vocab_default=256000,
    attention_bias_key="attention_bias",
    out_bias=None,
    ignored=("use_bidirectional_attention",),
)
GEMMA2 = replace(GEMMA, architecture="Gemma2ForCausalLM", kv_default=4, norms=_sandwich_norms, windows=_gemma2_windows)
GEMMA3 = replace(
    GEMMA2,
    architecture="Gemma3ForCausalLM",
    vocab_default=262208,
    heads_default=8,
    windows=_gemma3_windows,
    qk_norms=head_norms,
)
GLM = DenseFamily(
    "GlmForCausalLM", kv_default=2, head_dim_default=128, attention_bias_key="attention_bias", attention_bias=True
)
GLM4 = replace(GLM, architecture="Glm4ForCausalLM", norms=_sandwich_norms)
SMOLLM3 = replace(
    LLAMA,
    architecture="SmolLM3ForCausalLM",
    tied=True,
    kv_default=4,
    heads_default=16,
    width_default=11008,
    vocab_default=128256,
    windows=_smollm3_windows,
)
OLMO = DenseFamily(
    "OlmoForCausalLM",
    attention_bias_key="attention_bias",
    out_bias=None,
    norms=_no_norms,
    ignored=("clip_qkv",),
)
ERNIE4_5 = DenseFamily(
    "Ernie4_5ForCausalLM",
    tied=True,
    kv_default=2,
    head_dim_default=128,
    attention_bias_key="use_bias",
    out_bias=None,
    mlp_bias_key="use_bias",
)
EXAONE4 = DenseFamily(
    "Exaone4ForCausalLM",
    kv_default=32,
    windows=_exaone4_windows,
    qk_norms=head_norms,
)
ARCEE = replace(LLAMA, architecture="ArceeForCausalLM", gated=False)
HUNYUAN_DENSE = DenseFamily(
    "HunYuanDenseV1ForCausalLM",
    attention_bias_key="attention_bias",
    out_bias=None,
    qk_norms=head_norms,
    ignored=("attention_head_dim",),
)
GRANITE = replace(LLAMA, architecture="GraniteForCausalLM")


def dense_reader(family: DenseFamily) -> Callable[[Config, str], ModelSpec]:
    """The reader of one dense family."""

    def read(cfg: Config, name: str) -> ModelSpec:
        return read_dense(cfg, name, family)

    return read


def read_phi3(cfg: Config, name: str) -> ModelSpec:
    """Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini: biases are refused, for the class has none."""
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        cfg.reject(key, "false: the class builds no biases")
    # Switches of the original code that choose how positions are scaled and which layers are sparse (1 = none).
    cfg.ignore("interpolate_factor", "full_attn_mod")
    return read_dense(cfg, name, PHI3)


def read_seed_oss(cfg: Config, name: str) -> ModelSpec:
    """Seed-OSS: biases on q, k, v, with a switch of its own for the output projection."""
    out = cfg.flag("attention_out_bias", False)
    family = DenseFamily(
        "SeedOssForCausalLM",
        kv_default=8,
        head_dim_default=128,
        attention_bias_key="attention_bias",
        attention_bias=True,
        out_bias=out,
        mlp_bias_key="mlp_bias",
    )
    return read_dense(cfg, name, family)


def read_mimo(cfg: Config, name: str) -> ModelSpec:
    """MiMo-7B: the Qwen2 class with MTP layers of the same dense kind."""
    if not cfg.flag("attention_bias", True):
        cfg.fail("attention_bias", "true: the class always has q, k, v biases")
    depth = cfg.optional_integer("num_nextn_predict_layers", minimum=0, maximum=64) or 0
    model = read_dense(cfg, name, replace(QWEN2, architecture="MiMoForCausalLM"))
    linears, extras = mtp_join(model.hidden_size)
    kind = model.layers[-1]
    return replace(model, mtp=(kind,) * depth, mtp_linears=linears if depth else (), mtp_extras=extras if depth else ())


def mtp_join(hidden: int) -> tuple[tuple[Linear, ...], tuple[Extra, ...]]:
    """What an MTP layer adds to its transformer layer: the joining projection and three norms."""
    norms = tuple(rms_norm(name, hidden) for name in ("mtp_embedding_norm", "mtp_hidden_norm", "mtp_final_norm"))
    return (Linear("mtp_join", 2 * hidden, hidden, Split.COLUMN),), norms


def read_chatglm(cfg: Config, name: str) -> ModelSpec:
    """GLM-4-9B in its original key names; the layer is the one of the ``glm`` class."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers("num_layers", "num_hidden_layers")
    heads = cfg.integer("num_attention_heads")
    for key in ("add_bias_linear", "apply_residual_connection_post_layernorm"):
        cfg.reject(key, "false: the glm class has none")
    if not cfg.flag("rmsnorm", True) or not cfg.flag("post_layer_norm", True):
        cfg.fail("rmsnorm" if not cfg.data.get("rmsnorm", True) else "post_layer_norm", "true, as in the glm class")
    cfg.ignore("original_rope", "hidden_act")
    kv = cfg.integer("multi_query_group_num") if cfg.flag("multi_query_attention", False) else heads
    cfg.ignore("multi_query_group_num")
    cfg.divides("multi_query_group_num", kv, "num_attention_heads", heads)
    shape = Heads(hidden, heads, kv, cfg.optional_integer("kv_channels") or hidden // heads)
    mixer = softmax_attention(shape, qkv_bias=cfg.flag("add_qkv_bias", False))
    kind = layer(mixer, Mlp(hidden, cfg.integer("ffn_hidden_size"), gated=True), two_rms_norms(hidden))
    vocab = cfg.integer("padded_vocab_size", "vocab_size")
    frame = Frame(hidden, vocab, cfg.tied(False), (rms_norm("final_norm", hidden),))
    return assemble(cfg, name, "ChatGLMForConditionalGeneration", [kind] * layers, frame)


def read_cohere(cfg: Config, name: str, *, cohere2: bool = False) -> ModelSpec:
    """Command-R: attention and feed-forward in parallel behind one LayerNorm without bias."""
    hidden, layers = cfg.integer("hidden_size"), cfg.layers()
    heads = read_heads(cfg, hidden)
    bias = cfg.flag("attention_bias", False)
    qk_norm = False if cohere2 else cfg.flag("use_qk_norm", False)
    cfg.ignore("hidden_act")
    extras: Sequence[Extra] = projection_norms(heads) if qk_norm else ()
    mlp = Mlp(hidden, cfg.integer("intermediate_size"), gated=True)
    spans = _every_fourth_full(cfg, layers) if cohere2 else [None] * layers

    def make(window: int | None) -> LayerKind:
        mixer = softmax_attention(heads, qkv_bias=bias, out_bias=bias, window=window, extras=extras)
        norm = layer_norm("input_norm", hidden, bias=False)
        return layer(mixer, mlp, (norm,), mark=span_mark(window), parallel=True)

    frame = Frame(hidden, cfg.integer("vocab_size"), cfg.tied(True), (layer_norm("final_norm", hidden, bias=False),))
    return assemble(cfg, name, "Cohere2ForCausalLM" if cohere2 else "CohereForCausalLM", map(make, spans), frame)


def read_cohere2(cfg: Config, name: str) -> ModelSpec:
    """Command-R7B and Command-A: as Command-R with sliding windows."""
    return read_cohere(cfg, name, cohere2=True)

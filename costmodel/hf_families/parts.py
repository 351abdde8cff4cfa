"""The pieces that families are put together from: norms, attentions, feed-forwards, and the final assembly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from .config import Config

COLUMN, ROW, NONE = Split.COLUMN, Split.ROW, Split.NONE


def rms_norm(name: str, width: int, split: Split = NONE) -> Extra:
    """An RMSNorm: one weight per feature."""
    return Extra(name, width, split, norm=True)


def layer_norm(name: str, width: int, bias: bool = True) -> Extra:
    """A LayerNorm: a weight, and mostly a bias, per feature."""
    return Extra(name, (2 if bias else 1) * width, NONE, norm=True)


def two_rms_norms(hidden: int) -> tuple[Extra, ...]:
    """The usual pair: before the attention and before the feed-forward."""
    return rms_norm("input_norm", hidden), rms_norm("post_attention_norm", hidden)


@dataclass(frozen=True, slots=True)
class Heads:
    """The head counts and sizes of one softmax attention."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim or self.head_dim

    @property
    def query_width(self) -> int:
        """All query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Keys and values together."""
        return self.num_kv_heads * (self.head_dim + self.value_dim)

    @property
    def kind(self) -> str:
        """The usual name."""
        if self.num_kv_heads == self.num_heads:
            return "mha"
        return "mqa" if self.num_kv_heads == 1 else "gqa"


def read_heads(
    cfg: Config,
    hidden: int,
    kv_default: int | None = None,
    head_dim_default: int | None = None,
    heads_default: int | None = None,
) -> Heads:
    """Head counts from the common keys.

    A missing ``num_key_value_heads`` or ``head_dim`` takes the class default where there is one; a null, or no class
    default, means all heads and ``hidden / heads``.
    """
    heads = cfg.integer("num_attention_heads", default=heads_default)
    kv = cfg.optional_integer("num_key_value_heads")
    if kv is None:
        kv = heads
        if kv_default is not None and "num_key_value_heads" not in cfg.data:
            kv = cfg.integer("num_key_value_heads", default=kv_default)
    cfg.divides("num_key_value_heads", kv, "num_attention_heads", heads)
    head_dim = cfg.optional_integer("head_dim")
    if head_dim is None and head_dim_default is not None and "head_dim" not in cfg.data:
        head_dim = cfg.integer("head_dim", default=head_dim_default)
    if head_dim is None:
        cfg.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = hidden // heads
    return Heads(hidden, heads, kv, head_dim)


def softmax_attention(
    heads: Heads,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    window: int | None = None,
    extras: Sequence[Extra] = (),
    gate_width: int = 0,
    separate_gate: int = 0,
    chunked: bool = False,
) -> Mixer:
    """Multi-head, grouped-query or multi-query attention with a fused q, k, v projection.

    ``gate_width`` features are added to the fused projection (an output gate that doubles q); ``separate_gate`` makes
    the gate a projection of its own.
    """
    linears = [Linear("qkv", heads.hidden, heads.query_width + heads.kv_width + gate_width, COLUMN, qkv_bias)]
    if separate_gate:
        linears.append(Linear("gate", heads.hidden, separate_gate, COLUMN))
    linears.append(Linear("attention_out", heads.num_heads * heads.value_dim, heads.hidden, ROW, out_bias))
    core = AttentionCore(
        heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.value_dim, window=window, chunked=chunked
    )
    return Mixer(heads.kind, tuple(linears), core, tuple(extras))


def span_mark(window: int | None) -> str:
    """How a layer kind's name says that it sees only a window."""
    return "sliding" if window else ""


def head_norms(heads: Heads) -> tuple[Extra, Extra]:
    """QK norm over one head's width, shared by the heads."""
    return rms_norm("q_norm", heads.head_dim), rms_norm("k_norm", heads.head_dim)


def projection_norms(heads: Heads) -> tuple[Extra, Extra]:
    """QK norm over the whole projection: divided like the projection."""
    return (
        rms_norm("q_norm", heads.query_width, COLUMN),
        rms_norm("k_norm", heads.num_kv_heads * heads.head_dim, COLUMN),
    )


def router(hidden: int, experts: int, bias: bool = False) -> Linear:
    """The routing projection: small, held whole by every rank."""
    return Linear("router", hidden, experts, NONE, bias)


def read_groups(cfg: Config, experts: int, groups_key: str = "n_group", top_key: str = "topk_group") -> tuple[int, int]:
    """Node-limited routing as (groups, groups a token may use); (0, 0) when there is one group or none."""
    groups = cfg.optional_integer(groups_key)
    top = cfg.optional_integer(top_key)
    if groups is None or groups == 1:
        return 0, 0
    cfg.divides(groups_key, groups, "the number of experts", experts)
    if top is None:
        return 0, 0
    cfg.at_most(top_key, top, groups_key, groups)
    return groups, top


def describe(mixer: Mixer | None, mlp: Mlp | None, moe: Moe | None, mark: str = "") -> str:
    """A readable name of a layer kind."""
    words = [mark] if mark else []
    words += [mixer.kind] if mixer else []
    words += ["dense"] if mlp else []
    words += ["moe"] if moe else []
    return "+".join(words)


def layer(
    mixer: Mixer | None,
    feed: Mlp | Moe | None,
    norms: Sequence[Extra],
    *,
    mark: str = "",
    parallel: bool = False,
    extras: Sequence[Extra] = (),
) -> LayerKind:
    """A layer kind with one feed-forward, dense or routed. ``mark`` (sliding, full …) goes into its name."""
    mlp = feed if isinstance(feed, Mlp) else None
    moe = feed if isinstance(feed, Moe) else None
    return LayerKind(describe(mixer, mlp, moe, mark), mixer, mlp, moe, tuple(norms), tuple(extras), parallel)


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds the layers of a model."""

    hidden: int
    vocab: int
    tied: bool
    head_extras: tuple[Extra, ...]
    embedding_extras: tuple[Extra, ...] = ()
    embedding_dim: int | None = None
    mtp: tuple[LayerKind, ...] = ()
    mtp_linears: tuple[Linear, ...] = ()
    mtp_extras: tuple[Extra, ...] = ()


def standard_frame(cfg: Config, hidden: int, *, tied_default: bool, vocab_default: int | None = None) -> Frame:
    """Embedding, final RMSNorm and head."""
    vocab = cfg.integer("vocab_size", default=vocab_default)
    return Frame(hidden, vocab, cfg.tied(tied_default), (rms_norm("final_norm", hidden),))


def assemble(cfg: Config, name: str, architecture: str, layers: Iterable[LayerKind], frame: Frame) -> ModelSpec:
    """Number the distinct layer kinds and make the immutable model."""
    sequence = tuple(layers)
    index: dict[LayerKind, int] = {}
    for kind in (*sequence, *frame.mtp):
        index.setdefault(kind, len(index))
    return ModelSpec(
        name=name,
        hidden_size=frame.hidden,
        vocab_size=frame.vocab,
        kinds=tuple(index),
        layers=tuple(index[kind] for kind in sequence),
        tied_embeddings=frame.tied,
        embedding_extras=frame.embedding_extras,
        head_extras=frame.head_extras,
        embedding_dim=frame.embedding_dim,
        mtp=tuple(index[kind] for kind in frame.mtp),
        mtp_extras=frame.mtp_extras,
        mtp_linears=frame.mtp_linears,
        max_sequence=_max_sequence(cfg),
        architecture=architecture,
        source=cfg.source,
    )


def _max_sequence(cfg: Config) -> int | None:
    keys = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "seq_length")
    lengths = [cfg.optional_integer(key) for key in keys]
    return next((length for length in lengths if length is not None), None)

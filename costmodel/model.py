"""The model description: a list of layers of a few kinds, each kind a list of operators.

Parameter counts, FLOPs, saved bytes and sharding are all read off the same operators, so a count that is right
makes the arithmetic of the cost model right as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Split(StrEnum):
    """Which dimension of a weight tensor parallelism divides."""

    COLUMN = "column"
    """Output features are divided (and the bias with them)."""
    ROW = "row"
    """Input features are divided; the output is a partial sum that must be reduced."""
    NONE = "none"
    """Every tensor parallel rank holds the whole weight."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix multiplication with weights ``[in_features, out_features]``, applied to every token."""

    name: str
    in_features: int
    out_features: int
    split: Split
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights plus bias."""
        return self.in_features * self.out_features + (self.out_features if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Extra:
    """Parameters that belong to no matrix multiplication: norm weights, sinks, short convolutions, decay rates …"""

    name: str
    parameters: int
    split: Split = Split.NONE
    norm: bool = False


def _count(operators: Sequence[Linear] | Sequence[Extra]) -> int:
    return sum(op.parameters for op in operators)


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """Softmax attention between queries and keys (no weights).

    ``window``: keys a query may see (sliding or chunked), None for all. ``selected_keys``: a sparse-attention indexer
    keeps this many keys per query, None for dense. ``compression``: keys and values are pooled by this factor first.
    ``local_keys``: uncompressed keys of a sliding window that a query sees besides the compressed or selected ones.
    ``chunked``: ``window`` is a chunk that starts anew, so a query sees half of it on average, rather than sliding.
    """

    num_heads: int
    num_kv_heads: int
    qk_head_dim: int
    v_head_dim: int
    causal: bool = True
    window: int | None = None
    selected_keys: int | None = None
    compression: int = 1
    indexer_heads: int = 0
    indexer_head_dim: int = 0
    local_keys: int = 0
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class RecurrentCore:
    """Linear attention or state-space scan: cost linear in the sequence (no matrix weights).

    ``kind``: ``mamba2``, ``gated_delta``, ``kda`` or ``lightning``. State per head is ``key_dim x value_dim``.
    ``conv_kernel`` is the length of the short convolution over ``conv_channels`` channels (0 for none).
    """

    kind: str
    num_heads: int
    key_dim: int
    value_dim: int
    num_key_heads: int
    conv_kernel: int = 0
    conv_channels: int = 0


@dataclass(frozen=True, slots=True)
class Mixer:
    """The token-mixing half of a layer: projections, their core(s), and other parameters."""

    kind: str
    """``mha``, ``gqa``, ``mqa``, ``mla``, ``linear_attention``, ``mamba`` … (for print)."""
    linears: tuple[Linear, ...]
    core: AttentionCore | RecurrentCore | None
    extras: tuple[Extra, ...] = ()

    @property
    def parameters(self) -> int:
        """All parameters of the mixer, its own norms (qk-norm …) included."""
        return _count(self.linears) + _count(self.extras)


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward network of width ``width``: ``gated`` has gate, up and down matrices, else up and down."""

    in_features: int
    width: int
    gated: bool
    bias: bool = False
    extras: tuple[Extra, ...] = ()

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The up (fused with the gate when gated) and down projections."""
        up = (2 if self.gated else 1) * self.width
        return (
            Linear("up_gate" if self.gated else "up", self.in_features, up, Split.COLUMN, self.bias),
            Linear("down", self.width, self.in_features, Split.ROW, self.bias),
        )

    @property
    def parameters(self) -> int:
        """All parameters of the network."""
        return _count(self.linears) + _count(self.extras)


@dataclass(frozen=True, slots=True)
class Moe:
    """A routed mixture of experts.

    ``latent_linears`` project tokens before and after the experts (latent MoE), applied once per token outside
    dispatch. ``num_groups``/``top_groups`` is node-limited routing (0 for none).
    """

    num_experts: int
    top_k: int
    expert: Mlp
    router: Linear
    shared: Mlp | None = None
    shared_extras: tuple[Extra, ...] = ()
    """The shared expert's own gate and the like."""
    latent_linears: tuple[Linear, ...] = ()
    extras: tuple[Extra, ...] = ()
    """Other trained parameters of the router (a trained bias, scales)."""
    num_groups: int = 0
    top_groups: int = 0

    @property
    def shared_parameters(self) -> int:
        """Parameters of the shared expert and its gate."""
        return (self.shared.parameters if self.shared else 0) + sum(e.parameters for e in self.shared_extras)

    @property
    def dense_parameters(self) -> int:
        """Everything but the routed experts: held by every expert parallel rank."""
        fixed = self.router.parameters + _count(self.latent_linears) + _count(self.extras)
        return fixed + self.shared_parameters

    @property
    def expert_parameters(self) -> int:
        """All routed experts together."""
        return self.num_experts * self.expert.parameters

    @property
    def parameters(self) -> int:
        """Routed experts, shared expert, router and projections."""
        return self.expert_parameters + self.dense_parameters


@dataclass(frozen=True, slots=True)
class LayerKind:
    """One kind of layer: any of a mixer, a dense feed-forward and a mixture of experts, with the layer's norms."""

    name: str
    mixer: Mixer | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None
    norms: tuple[Extra, ...] = ()
    extras: tuple[Extra, ...] = ()
    parallel_residual: bool = False
    """Attention and feed-forward read the same input, so tensor parallelism needs one reduction instead of two."""

    @property
    def dense_parameters(self) -> int:
        """Parameters outside the routed experts."""
        parts = [self.mixer.parameters if self.mixer else 0, self.mlp.parameters if self.mlp else 0]
        parts.append(self.moe.dense_parameters if self.moe else 0)
        return sum(parts) + sum(e.parameters for e in (*self.norms, *self.extras))

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts."""
        return self.moe.expert_parameters if self.moe else 0

    @property
    def parameters(self) -> int:
        """All parameters of one layer of this kind."""
        return self.dense_parameters + self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self.dense_parameters + (self.moe.top_k * self.moe.expert.parameters if self.moe else 0)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """An immutable description of a decoder-only model.

    ``layers[i]`` is the index into ``kinds`` of layer ``i``. ``mtp`` lists the kinds of the multi-token-prediction
    layers (trained by Megatron, dropped by transformers, so outside ``total``), ``mtp_extras`` the projections and
    norms that each of them adds.
    """

    name: str
    hidden_size: int
    vocab_size: int
    kinds: tuple[LayerKind, ...]
    layers: tuple[int, ...]
    tied_embeddings: bool
    embedding_extras: tuple[Extra, ...] = ()
    """Learned positions, norms after the embedding, projections: live on the first pipeline stage."""
    head_extras: tuple[Extra, ...] = ()
    """Final norm, head bias, projections: live on the last pipeline stage."""
    embedding_dim: int | None = None
    """Width of the embedding table where it differs from ``hidden_size``."""
    mtp: tuple[int, ...] = ()
    mtp_extras: tuple[Extra, ...] = ()
    mtp_linears: tuple[Linear, ...] = ()
    max_sequence: int | None = None
    architecture: str = ""
    """The transformers class or Megatron family it was read as."""
    source: str = ""
    """File or preset it was read from."""
    assumptions: tuple[str, ...] = field(default=())
    rotary_base: float | None = None
    """Base of the rotary positions, from the file it was read from; None when that does not say it."""
    norm_epsilon: float | None = None
    """Epsilon of the norms, from the file it was read from; None when that does not say it."""
    activation: str | None = None
    """Activation of the feed-forwards (of the gate in gated ones) in transformers' word, such as ``silu``, from the
    file it was read from; None when that does not say it."""

    @property
    def num_layers(self) -> int:
        """Transformer layers, embedding, head and MTP not counted."""
        return len(self.layers)

    @property
    def embedding_parameters(self) -> int:
        """The token embedding table."""
        return self.vocab_size * (self.embedding_dim or self.hidden_size)

    @property
    def head_parameters(self) -> int:
        """The output head's own matrix: 0 when it shares the embedding's."""
        return 0 if self.tied_embeddings else self.embedding_parameters

    @property
    def total_parameters(self) -> int:
        """Distinct parameters, as the reference implementation builds them (no MTP)."""
        body = sum(n * self.kinds[k].parameters for k, n in Counter(self.layers).items())
        extras = sum(e.parameters for e in (*self.embedding_extras, *self.head_extras))
        return body + extras + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters one token uses: all but the experts it is not routed to (embedding and head included)."""
        routed = sum(n * (self.kinds[k].parameters - self.kinds[k].active_parameters) for k, n in self._counts())
        return self.total_parameters - routed

    @property
    def mtp_parameters(self) -> int:
        """Parameters that the multi-token-prediction layers add (embedding and head are shared)."""
        extra = _count(self.mtp_extras) + _count(self.mtp_linears)
        return sum(self.kinds[k].parameters + extra for k in self.mtp)

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(self.kinds[k].moe for k in self.layers)

    def _counts(self) -> list[tuple[int, int]]:
        return sorted(Counter(self.layers).items())

    @classmethod
    def from_hf(cls, path: str | Path) -> ModelSpec:
        """Read a Hugging Face ``config.json``. Raises InputError naming file and key for what is not understood."""
        from .hf import read_hf_config

        return read_hf_config(Path(path))

    @classmethod
    def from_megatron_args(cls, text: str, name: str = "megatron") -> ModelSpec:
        """Read Megatron-LM arguments (a shell fragment or an argument list)."""
        from .megatron_args import read_megatron_args

        return read_megatron_args(text, name=name)

    @classmethod
    def from_preset(cls, name: str) -> ModelSpec:
        """A model shipped with shardwise, by name (case, ``-`` and ``_`` do not matter)."""
        from .presets import load_preset

        return load_preset(name)

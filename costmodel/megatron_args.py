"""Reading Megatron-LM arguments (a launch script or an argument list) into a model.

Megatron's defaults hold where a flag is absent: feed-forward 4 x hidden, tied embeddings, biases on every linear layer,
learned positions, LayerNorm, and a vocabulary padded to a multiple of ``--make-vocab-size-divisible-by`` x TP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.hardware_profiles.errors import InputError

from .hf_families.deepseek import Latent, latent_attention
from .hf_families.parts import Heads
from .megatron_flags import ModelFlags, check_unused, is_shaping, known_number, needs_value
from .megatron_shell import Flag, evaluate_pattern, read_flags
from .model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split

MAX_LAYERS = 10_000


def read_megatron_args(text: str | Sequence[str], name: str = "megatron") -> ModelSpec:
    """Read the model out of Megatron-LM arguments.

    ``text`` is a shell fragment, the text of an argument list, or the list itself. Flags that do not shape the model
    are ignored and listed in ``assumptions``. Raises InputError, one line that names the flag, for a flag that may
    shape the model and is not understood, a value that cannot be used, or a size that is missing.
    """
    source = f"Megatron arguments of {name}"
    return model_of_flags(*read_flags(text, source, needs_value), source, name)


def model_of_flags(flags: list[Flag], unexpanded: Sequence[str], source: str, name: str) -> ModelSpec:
    """The same from flags that were read already."""
    if not flags:
        raise InputError(f"{source}: no --flag found: expected Megatron-LM arguments such as --num-layers 80")
    for flag in flags:
        if not is_shaping(flag):
            check_unused(flag, source)
    used = ModelFlags([flag for flag in flags if is_shaping(flag)], source)
    model = _Builder(used, name).build()
    ignored = sorted({f"--{flag.name}" for flag in flags if not is_shaping(flag)})
    notes = list(model.assumptions)
    if unexpanded:
        notes.append(f"taken to hold no model arguments: {' '.join(sorted(set(unexpanded)))}")
    if ignored:
        notes.append(f"flags that change no shape: {' '.join(ignored)}")
    base = known_number(flags, "rotary-base", 10000.0, source)
    return replace(
        model,
        assumptions=tuple(notes),
        rotary_base=None if model.embedding_extras else base,
        norm_epsilon=known_number(flags, "norm-epsilon", 1e-5, source),
        activation=_activation(used),
    )


def _activation(flags: ModelFlags) -> str:
    """The activation in transformers' word; GELU without a flag."""
    words = {"swiglu": "silu", "quick-geglu": "quick_gelu", "squared-relu": "relu2", "openai-gelu": "gelu_new"}
    return next((word for flag, word in words.items() if flags.switch(flag)), "gelu")


@dataclass(frozen=True, slots=True)
class _Style:
    """Choices that every layer shares."""

    hidden: int
    bias: bool
    qkv_bias: bool
    rms: bool
    gated: bool

    def norm(self, name: str, width: int, split: Split = Split.NONE) -> Extra:
        return Extra(name, width if self.rms else 2 * width, split, norm=True)


class _Builder:
    def __init__(self, flags: ModelFlags, name: str) -> None:
        self.flags = flags
        self.name = name
        self.notes: list[str] = []
        bias = not flags.switch("disable-bias-linear")
        gated = flags.switch("swiglu") or flags.switch("quick-geglu")
        rms = flags.word("normalization", "LayerNorm", ("LayerNorm", "RMSNorm")) == "RMSNorm"
        hidden = flags.required("hidden-size")
        self.style = _Style(hidden, bias, bias or flags.switch("add-qkv-bias"), rms, gated)

    def build(self) -> ModelSpec:
        hidden, layers = self.style.hidden, self.flags.required("num-layers")
        if layers > MAX_LAYERS:
            self.flags.fail("num-layers", f"at most {MAX_LAYERS}")
        kinds = self._layers(layers)
        index: dict[LayerKind, int] = {}
        for kind in kinds:
            index.setdefault(kind, len(index))
        positions = self._positions()
        depth = self.flags.integer("mtp-num-layers", 0, minimum=0) or 0
        norms = ("mtp_embedding_norm", "mtp_hidden_norm", "mtp_final_norm")
        model = ModelSpec(
            name=self.name,
            hidden_size=hidden,
            vocab_size=1,
            kinds=tuple(index),
            layers=tuple(index[kind] for kind in kinds),
            tied_embeddings=not self.flags.switch("untie-embeddings-and-output-weights"),
            embedding_extras=positions,
            head_extras=(self.style.norm("final_norm", hidden),),
            # Megatron builds each MTP layer like the last layer of the decoder.
            mtp=(index[kinds[-1]],) * depth,
            mtp_extras=tuple(self.style.norm(n, hidden) for n in norms) if depth else (),
            mtp_linears=(Linear("mtp_join", 2 * hidden, hidden, Split.COLUMN),) if depth else (),
            max_sequence=self.flags.integer("max-position-embeddings", self.flags.integer("seq-length")),
            architecture="Megatron-LM GPT",
            source=self.flags.source,
        )
        return replace(model, vocab_size=self._vocabulary(model), assumptions=tuple(self.notes))

    # ---- vocabulary and positions

    def _vocabulary(self, model: ModelSpec) -> int:
        padded = self.flags.integer("padded-vocab-size")
        if padded is not None:
            return padded
        size = self.flags.integer("vocab-size")
        if size is None:
            size = self._vocabulary_of_twin(model)
        if self.flags.word("tokenizer-type", "") == "NullTokenizer":
            size += 1
            self.notes.append("NullTokenizer adds one end-of-document token to --vocab-size")
        unit = self.flags.integer("make-vocab-size-divisible-by", 128) or 128
        unit *= self.flags.integer("tensor-model-parallel-size", 1) or 1
        result = -(-size // unit) * unit
        if result != size:
            self.notes.append(f"vocabulary {size} padded to {result}, a multiple of {unit}")
        return result

    def _vocabulary_of_twin(self, model: ModelSpec) -> int:
        """The vocabulary of the shipped preset with the very same layers; the arguments leave it to the tokenizer."""
        from .presets import list_presets, load_preset

        body = sum(model.kinds[k].parameters for k in model.layers)
        for name in list_presets():
            preset = load_preset(name)
            same = preset.hidden_size == model.hidden_size and preset.num_layers == model.num_layers
            if same and sum(preset.kinds[k].parameters for k in preset.layers) == body:
                size = preset.vocab_size
                self.notes.append(f"--vocab-size is not given: {size} of preset {name}, whose layers are the same")
                return size
        self.flags.fail(
            "vocab-size", "an integer: these arguments leave the vocabulary to a tokenizer that is not here"
        )
        raise AssertionError

    def _positions(self) -> tuple[Extra, ...]:
        kinds = ("learned_absolute", "rope", "mrope", "yarn", "none")
        default = "rope" if self.flags.switch("use-rotary-position-embeddings") else "learned_absolute"
        kind = self.flags.word("position-embedding-type", default, kinds)
        if kind == "learned_absolute":
            if self.flags.switch("no-position-embedding"):
                self.flags.fail("no-position-embedding", "--position-embedding-type rope or none beside it")
            rows = self.flags.required("max-position-embeddings")
            return (Extra("position_embedding", rows * self.style.hidden),)
        return ()

    # ---- layers

    def _layers(self, layers: int) -> list[LayerKind]:
        norms = (
            self.style.norm("input_norm", self.style.hidden),
            self.style.norm("post_attention_norm", self.style.hidden),
        )
        width = self._dense_width()
        dense = Mlp(self.style.hidden, width, self.style.gated, self.style.bias)
        moe = self._moe(width)
        routed = self._routed(layers) if moe else [False] * layers
        mixers = [self._attention(window) for window in self._windows(layers)]
        kinds = []
        for mixer, is_routed in zip(mixers, routed, strict=True):
            near = isinstance(mixer.core, AttentionCore) and mixer.core.window is not None
            label = f"{'sliding+' if near else ''}{mixer.kind}+{'moe' if is_routed else 'dense'}"
            kinds.append(LayerKind(label, mixer, None if is_routed else dense, moe if is_routed else None, norms))
        return kinds

    def _dense_width(self) -> int:
        given = self.flags.integer("ffn-hidden-size")
        if given is not None:
            return given
        # Megatron shrinks a gated feed-forward to two thirds, in steps of 64.
        return int((4 * self.style.hidden * 2 / 3) / 64) * 64 if self.style.gated else 4 * self.style.hidden

    def _routed(self, layers: int) -> list[bool]:
        text = self.flags.word("moe-layer-freq", "1")
        if re.fullmatch(r"\d{1,6}", text) and int(text) > 0:
            return [i % int(text) == 0 for i in range(layers)]
        pattern = evaluate_pattern(text)
        if pattern is None or len(pattern) != layers or set(pattern) - {0, 1}:
            self.flags.fail("moe-layer-freq", f"a positive integer or a list of {layers} entries 0 or 1")
        return [bool(bit) for bit in pattern or ()]

    def _windows(self, layers: int) -> list[int | None]:
        text = self.flags.word("window-size", "")
        if not text:
            return [None] * layers
        match = re.fullmatch(r"\(?\s*(\d{1,12})\s*,\s*(?:0|-1)\s*\)?", text)
        if match is None:
            self.flags.fail("window-size", "a pair such as 4096,0")
        assert match is not None
        # The pair counts the keys before the query's own.
        window = int(match.group(1)) + 1
        skip = self.flags.word("window-attn-skip-freq", "")
        if not skip:
            return [window] * layers
        if re.fullmatch(r"\d{1,6}", skip) and int(skip) > 0:
            return [window if (i + 1) % int(skip) else None for i in range(layers)]
        pattern = evaluate_pattern(skip)
        if pattern is None or len(pattern) != layers:
            self.flags.fail("window-attn-skip-freq", f"a positive integer or a list of {layers} entries")
        return [window if bit else None for bit in pattern or ()]

    def _moe(self, dense_width: int) -> Moe | None:
        experts = self.flags.integer("num-experts")
        if experts is None:
            return None
        top = self.flags.integer("moe-router-topk", 2) or 2
        if top > experts:
            self.flags.fail("moe-router-topk", f"at most --num-experts = {experts}")
        hidden, style = self.style.hidden, self.style
        shared = self.flags.integer("moe-shared-expert-intermediate-size", 0, minimum=0) or 0
        if shared and style.bias:
            self.flags.fail("moe-shared-expert-intermediate-size", "--disable-bias-linear beside it")
        latent = self.flags.integer("moe-latent-size")
        groups = self.flags.integer("moe-router-num-groups", 0, minimum=0) or 0
        if groups and experts % groups:
            self.flags.fail("moe-router-num-groups", f"a divisor of --num-experts = {experts}")
        top_groups = self.flags.integer("moe-router-group-topk", 0, minimum=0) or 0
        grouped = groups > 1 and top_groups > 0
        projections = (
            (Linear("latent_down", hidden, latent, Split.NONE), Linear("latent_up", latent, hidden, Split.NONE))
            if latent
            else ()
        )
        width = self.flags.integer("moe-ffn-hidden-size", dense_width) or dense_width
        gate = shared and self.flags.switch("moe-shared-expert-gate")
        return Moe(
            experts,
            top,
            Mlp(latent or hidden, width, style.gated, style.bias),
            Linear("router", hidden, experts, Split.NONE, style.bias),
            shared=Mlp(hidden, shared, style.gated) if shared else None,
            shared_extras=(Extra("shared_expert_gate", hidden),) if gate else (),
            latent_linears=projections,
            num_groups=groups if grouped else 0,
            top_groups=top_groups if grouped else 0,
        )

    # ---- attention

    def _attention(self, window: int | None) -> Mixer:
        heads = self.flags.required("num-attention-heads")
        if self.flags.switch("multi-latent-attention"):
            return self._latent(heads)
        hidden, kv = self.style.hidden, heads
        if self.flags.switch("group-query-attention"):
            kv = self.flags.integer("num-query-groups", 1) or 1
            if heads % kv:
                self.flags.fail("num-query-groups", f"a divisor of --num-attention-heads = {heads}")
        elif self.flags.has("num-query-groups"):
            self.notes.append("--num-query-groups has no effect without --group-query-attention")
        head_dim = self.flags.integer("kv-channels")
        if head_dim is None:
            if hidden % heads:
                self.flags.fail("num-attention-heads", f"a divisor of --hidden-size = {hidden}, or --kv-channels")
            head_dim = hidden // heads
        shape = Heads(hidden, heads, kv, head_dim)
        linears = (
            Linear("qkv", hidden, shape.query_width + shape.kv_width, Split.COLUMN, self.style.qkv_bias),
            Linear("attention_out", shape.query_width, hidden, Split.ROW, self.style.bias),
        )
        norms: tuple[Extra, ...] = ()
        if self.flags.switch("qk-layernorm"):
            norms = (self.style.norm("q_norm", head_dim), self.style.norm("k_norm", head_dim))
        core = AttentionCore(heads, kv, head_dim, head_dim, window=window)
        learnable = self.flags.word("softmax-type", "vanilla", ("vanilla", "learnable")) == "learnable"
        sinks = (Extra("sinks", heads, Split.COLUMN),) if learnable else ()
        return Mixer(shape.kind, linears, core, (*norms, *sinks))

    def _latent(self, heads: int) -> Mixer:
        sizes = Latent(
            self.style.hidden,
            heads,
            self.flags.integer("q-lora-rank"),
            self.flags.integer("kv-lora-rank", 32) or 32,
            self.flags.integer("qk-head-dim", 128) or 128,
            self.flags.integer("qk-pos-emb-head-dim", 64) or 64,
            self.flags.integer("v-head-dim", 128) or 128,
        )
        mixer = latent_attention(sizes)
        norms = tuple(self.style.norm(e.name, e.parameters) for e in mixer.extras)
        linears = [replace(op, bias=self.style.bias and op.name == "attention_out") for op in mixer.linears]
        return replace(mixer, linears=tuple(linears), extras=norms if self.flags.switch("qk-layernorm") else ())

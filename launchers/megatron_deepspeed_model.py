"""A model description as arguments of BigScience's ``pretrain_gpt.py``, or why that script cannot build it.

Facts are of its ``megatron/arguments.py``, ``megatron/model/gpt_model.py`` and ``megatron/model/transformer.py``: a GPT
with one kind of layer, biases and LayerNorm everywhere, and an output head that shares the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

from shardwise.costmodel.model import AttentionCore, LayerKind, Mixer, ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.errors import InputError

from .facts import used_kinds
from .megatron_families import GELUS, SILUS, base_of, epsilon_of, family_of
from .megatron_model import ModelArguments, learned_positions

ALIBI: Final = frozenset({"BloomForCausalLM"})
"""Families with ALiBi positions, which the model description does not carry."""

_NOT_EXPRESSIBLE: Final[Mapping[str, str]] = {
    "FalconForCausalLM": "positions that only the configuration decides (rotary or ALiBi)",
    "GPTNeoXForCausalLM": "rotary positions on a part of each head",
    "OPTForCausalLM": "a ReLU activation and two spare rows in the position table",
}
"""Families whose shapes it could build, but whose arithmetic it does not have."""

_ROTARY_BASE: Final = 10000
_DTYPES: Final = ("bf16", "fp16")
_OPTIMIZERS: Final = ("adam", "sgd")


def check_model(problem: Problem) -> None:
    """Raise InputError naming what ``pretrain_gpt.py`` cannot build or train."""
    model, work = problem.model, problem.workload
    if work.dtype not in _DTYPES:
        _refuse(model, "the workload", f"training in {work.dtype}")
    if work.optimizer not in _OPTIMIZERS:
        _refuse(model, "the workload", f"the optimizer {work.optimizer}")
    kinds = used_kinds(model, work.train_mtp)
    if work.train_mtp and model.mtp:
        _refuse(model, "the head", "multi-token prediction")
    for kind in kinds:
        _check_kind(model, kind)
    if len(kinds) > 1:
        _refuse(model, kinds[1], f"a second kind of layer beside {kinds[0].name!r}")
    _check_frame(model)
    _check_family(model)


def model_arguments(problem: Problem) -> ModelArguments:
    """All arguments that describe the model. Raises InputError naming what cannot be expressed."""
    check_model(problem)
    model, sequence = problem.model, problem.workload.sequence_length
    mixer, core = _attention(model.kinds[model.layers[0]])
    mlp = model.kinds[model.layers[0]].mlp
    assert mixer is not None and core is not None and mlp is not None
    family, known = family_of(model)
    shape = ["--num-layers", str(model.num_layers), "--hidden-size", str(model.hidden_size)]
    shape += ["--num-attention-heads", str(core.num_heads), "--kv-channels", str(core.qk_head_dim)]
    shape += ["--ffn-hidden-size", str(mlp.width)]
    # The gate has no kernel that fuses it with its bias.
    gate = "geglu" if model.activation in GELUS else "swiglu"
    shape += ["--glu-activation", gate, "--no-bias-gelu-fusion"] if mlp.gated else []
    shape += ["--seq-length", str(sequence), *_position_arguments(model, sequence)]
    shape += ["--embed-layernorm"] if _embedding_norm(model) else []
    notes = []
    if model.norm_epsilon is None:
        notes.append(f"norm epsilon {family.norm_epsilon} (not carried by the model description)")
    if model.activation is None:
        notes.append(f"activation {'SiLU' if mlp.gated else 'GELU'} (not carried by the model description)")
    if positions_of(model) == "rotary":
        base = "positions" if model.rotary_base is not None else f"base {_ROTARY_BASE}"
        notes.append(f"rotary {base} without scaling (not carried by the model description)")
    if not known and model.architecture not in ALIBI:
        notes.insert(0, f"{model.architecture or model.name} is no known family: positions and activation were assumed")
    return ModelArguments(tuple(shape), ("--layernorm-epsilon", epsilon_of(model, family)), tuple(notes))


def positions_of(model: ModelSpec) -> str:
    """The script's word for the model's positions: ``alibi``, ``absolute`` (a learned table) or ``rotary``."""
    if model.architecture in ALIBI:
        return "alibi"
    return "rotary" if learned_positions(model) is None else "absolute"


# ---- what can be expressed


def _refuse(model: ModelSpec, kind: LayerKind | str, why: str) -> NoReturn:
    what = kind if isinstance(kind, str) else f"layer kind {kind.name!r}"
    raise InputError(f"{model.name}: {what}: Megatron-DeepSpeed's pretrain_gpt.py cannot express {why}")


def _attention(kind: LayerKind) -> tuple[Mixer | None, AttentionCore | None]:
    core = kind.mixer.core if kind.mixer else None
    return kind.mixer, core if isinstance(core, AttentionCore) else None


def _check_kind(model: ModelSpec, kind: LayerKind) -> None:
    mixer, core = _attention(kind)
    if mixer is None or core is None:
        _refuse(model, kind, f"a {mixer.kind if mixer else 'missing'} token mixer")
    if kind.moe is not None or kind.mlp is None:
        _refuse(model, kind, "experts" if kind.moe else "a layer without a feed-forward")
    if kind.parallel_residual:
        _refuse(model, kind, "attention and feed-forward in parallel")
    if kind.extras or kind.mlp.extras:
        _refuse(model, kind, f"{(*kind.extras, *kind.mlp.extras)[0].name!r} beside attention and feed-forward")
    _check_mixer(model, kind, mixer, core)
    if not kind.mlp.bias:
        _refuse(model, kind, "a feed-forward without biases")
    if len(kind.norms) != 2 or any(n.parameters != 2 * model.hidden_size for n in kind.norms):
        _refuse(model, kind, "norms other than two LayerNorms a layer with weights and biases")


def _check_mixer(model: ModelSpec, kind: LayerKind, mixer: Mixer, core: AttentionCore) -> None:
    odd = sorted({op.name for op in mixer.linears} ^ {"qkv", "attention_out"})
    if odd:
        _refuse(model, kind, f"the attention projections {', '.join(op.name for op in mixer.linears)}")
    if core.num_kv_heads != core.num_heads:
        _refuse(model, kind, f"{core.num_kv_heads} key-value heads for {core.num_heads} query heads")
    if core.qk_head_dim != core.v_head_dim:
        _refuse(model, kind, "value heads of another size than key heads")
    if core.window is not None or core.selected_keys or core.compression != 1 or not core.causal:
        _refuse(model, kind, "windowed, sparse, compressed or bidirectional attention")
    if mixer.extras:
        _refuse(model, kind, f"{mixer.extras[0].name!r} in the attention")
    if not all(op.bias for op in mixer.linears):
        _refuse(model, kind, "attention projections without biases")
    if model.hidden_size % core.num_heads:
        _refuse(model, kind, f"{core.num_heads} heads that do not divide the width {model.hidden_size}")


def _check_frame(model: ModelSpec) -> None:
    if model.embedding_dim not in (None, model.hidden_size):
        _refuse(model, "the embedding", f"an embedding {model.embedding_dim} wide under a width of {model.hidden_size}")
    if not model.tied_embeddings:
        _refuse(model, "the head", "an output head that does not share the embedding")
    for extra in model.embedding_extras:
        table = "position" in extra.name and extra.parameters % model.hidden_size == 0
        norm = extra.norm and extra.parameters == 2 * model.hidden_size
        if not table and not norm:
            _refuse(model, "the embedding", f"{extra.name!r} after the embedding")
    if [(e.norm, e.parameters) for e in model.head_extras] != [(True, 2 * model.hidden_size)]:
        _refuse(model, "the head", "anything but one LayerNorm before the output head")


def _check_family(model: ModelSpec) -> None:
    if model.architecture in _NOT_EXPRESSIBLE:
        _refuse(model, f"family {model.architecture}", _NOT_EXPRESSIBLE[model.architecture])
    family, _ = family_of(model)
    if family.squared_relu or family.clamped_gate:
        _refuse(model, f"family {model.architecture}", "its activation")
    mlp = model.kinds[model.layers[0]].mlp
    if mlp and model.activation is not None and model.activation not in (SILUS | GELUS if mlp.gated else GELUS):
        _refuse(model, f"family {model.architecture}", f"the activation {model.activation}")
    base = base_of(model, family)
    if positions_of(model) == "rotary" and (base, family.rotary_percent) != (_ROTARY_BASE, 1.0):
        _refuse(model, f"family {model.architecture}", f"rotary positions of base {base:.12g} on "
                f"{family.rotary_percent:.0%} of each head")  # fmt: skip


# ---- arguments


def _embedding_norm(model: ModelSpec) -> bool:
    return any(extra.norm for extra in model.embedding_extras)


def _position_arguments(model: ModelSpec, sequence: int) -> list[str]:
    kind = positions_of(model)
    args = ["--position-embedding-type", kind]
    # The script refuses a largest position beside rotary ones, and asks for one otherwise.
    rows = {"alibi": sequence, "absolute": learned_positions(model), "rotary": None}[kind]
    return args if rows is None else [*args, "--max-position-embeddings", str(rows)]

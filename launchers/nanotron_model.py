"""A model description as nanotron's ``LlamaConfig``, and how nanotron divides it over a pipeline.

Facts are of nanotron's ``config/models_config.py``, ``models/base.py`` and ``models/llama.py`` (git, 2025).
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final, NoReturn

import numpy as np

from shardwise.costmodel.model import AttentionCore, LayerKind, ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.errors import InputError

from .facts import used_kinds
from .megatron_families import SILUS, base_of, epsilon_of, family_of

DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""nanotron's word for each precision."""

OPTIMIZERS: Final = ("adam", "sgd")
_ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM")


def check_model(problem: Problem) -> None:
    """Raise InputError naming what nanotron's Llama cannot be."""
    model, work = problem.model, problem.workload
    if work.dtype not in DTYPES:
        _refuse(model, "the workload", f"training in {work.dtype}")
    if work.optimizer not in OPTIMIZERS:
        _refuse(model, "the workload", f"the optimizer {work.optimizer}")
    if work.train_mtp and model.mtp:
        _refuse(model, "the head", "multi-token prediction")
    if model.architecture not in _ARCHITECTURES:
        _refuse(model, f"family {model.architecture or 'unknown'}", "anything but Llama's architecture")
    kinds = used_kinds(model, work.train_mtp)
    if len(kinds) > 1:
        _refuse(model, f"layer kind {kinds[1].name!r}", f"a second kind of layer beside {kinds[0].name!r}")
    _check_kind(model, kinds[0])


def _check_kind(model: ModelSpec, kind: LayerKind) -> None:
    what = f"layer kind {kind.name!r}"
    core = kind.mixer.core if kind.mixer else None
    if kind.mlp is None or kind.moe is not None or not isinstance(core, AttentionCore) or kind.mixer is None:
        _refuse(model, what, "a layer that is not attention and one feed-forward")
    if core.window is not None:
        _refuse(model, what, "windows of keys")
    if core.num_heads * core.qk_head_dim != model.hidden_size:
        _refuse(model, what, f"{core.num_heads} heads of {core.qk_head_dim} under a width of {model.hidden_size}")
    if any(op.bias for op in kind.mixer.linears) or kind.mlp.bias or not kind.mlp.gated:
        _refuse(model, what, "biases, or a feed-forward without a gate")
    if model.activation is not None and model.activation not in SILUS:
        _refuse(model, what, f"the activation {model.activation}")


def _refuse(model: ModelSpec, what: str, why: str) -> NoReturn:
    raise InputError(f"{model.name}: {what}: nanotron cannot express {why}")


def model_config(problem: Problem) -> dict[str, Any]:
    """``model.model_config``. The model must pass ``check_model``."""
    model, work = problem.model, problem.workload
    kind = model.kinds[model.layers[0]]
    core = kind.mixer.core if kind.mixer else None
    assert isinstance(core, AttentionCore) and kind.mlp is not None
    family, _ = family_of(model)
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": kind.mlp.width,
        "is_llama_config": True,
        "max_position_embeddings": max(model.max_sequence or 0, work.sequence_length),
        "num_attention_heads": core.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": core.num_kv_heads,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "rms_norm_eps": float(epsilon_of(model, family)),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": float(base_of(model, family)),
        "tie_word_embeddings": model.tied_embeddings,
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }


def stage_layers(problem: Problem, tp: int, pp: int) -> tuple[int, ...] | None:
    """Layers of each stage as nanotron divides a model that passes ``check_model``; None where it cannot be planned."""
    config = model_config(problem)
    vocabulary = int(problem.padded_vocabulary(np.array([tp]))[0])
    return divided(config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"], vocabulary, pp)


def divided(layers: int, hidden: int, width: int, vocabulary: int, pp: int) -> tuple[int, ...] | None:
    """nanotron's own division: blocks in order, the next stage from where the cost passes that stage's share.

    A layer costs 4·hidden² + 3·width·hidden, the head hidden·vocabulary. None where a stage would be left without a
    layer, or the head would not stand on the last one.
    """
    costs = [0, *[4 * hidden * hidden + 3 * width * hidden] * layers, 0, hidden * vocabulary]
    running = list(accumulate(costs))
    shares = [running[-1] * ((rank + 1) / pp) for rank in range(pp)]
    held, stage = [0] * pp, 0
    for block, total in enumerate(running):
        if stage >= pp:
            return None
        held[stage] += 1 <= block <= layers
        if block == len(running) - 1:
            break
        stage += total > shares[stage]
    return tuple(held) if stage == pp - 1 and min(held) > 0 else None

"""Launch scripts of Megatron-DeepSpeed read back, with the DeepSpeed settings beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from shardwise.costmodel.megatron_flags import INTEGERS, NUMBERS, SWITCHES, WORDS
from shardwise.costmodel.megatron_shell import Flag, read_flags
from shardwise.costmodel.model import Extra, ModelSpec
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError

from .canonical import canonical
from .deepspeed_json import flat_settings
from .flag_reader import FlagReader, trimmed
from .megatron_read import known_options, read_model, takes_value
from .parsed import Files, Given, Option, Parsed, needed, with_batch
from .world import world_size

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "dp": "WORLD_SIZE / (tp·pp)",
    "zero": "zero_optimization.stage",
    "micro_batch_size": "--micro-batch-size",
    "num_microbatches": "--global-batch-size / (mbs·dp)",
    "recompute": "--checkpoint-activations",
    "recompute_layers": "--checkpoint-num-layers",
    "recompute_per_stage": "--checkpoint-num-layers",
    "layers_per_stage": "--pp-partition-method",
}
"""Its options for the dimensions that it has."""

_OWN: Final[Mapping[str, str]] = dict.fromkeys(
    """
    pp-partition-method deepspeed-config zero-stage position-embedding-type pad-vocab-size-to kill-switch-path
    checkpoint-num-layers data-impl tokenizer-name-or-path layernorm-epsilon glu-activation distributed-backend
    universal-checkpoint skip-train-iteration-range eval-interval codecarbon-dir train-weighted-split-paths
    valid-weighted-split-paths test-weighted-split-paths init-method-std lr-decay-samples lr-warmup-samples
    train-samples adam-eps tensorboard-dir tensorboard-queue-size override-lr-scheduler checkpoint-in-cpu
    train-weighted-split-paths-path valid-weighted-split-paths-path log-level log-level-replica valid-num-workers
    """.split(),  # noqa: SIM905
    "1",
) | dict.fromkeys(
    """
    deepspeed checkpoint-activations deepspeed-activation-checkpointing embed-layernorm no-bias-gelu-fusion
    abort-on-unmet-fused-kernel-constraints sync-tp-duplicated-parameters no-pipeline-parallel partition-activations
    contigious-checkpointing profile-backward synchronize-each-layer distribute-checkpointed-activations
    curriculum-learning use-bnb-optimizer inference loss-on-targets-only reweight-loss-based-on-position-frequency
    """.split(),  # noqa: SIM905
    "0",
)
"""Options that the fork has beside Megatron's, and how many values each takes."""

_UNMODELLED: Final[Mapping[str, str]] = {
    "partition-activations": "saved layer inputs are counted whole on every tensor rank",
    "distribute-checkpointed-activations": "saved layer inputs are counted whole on every tensor rank",
    "checkpoint-in-cpu": "offloaded activations are not counted",
    "use-bnb-optimizer": "the precision of states is that of the optimizer recipe",
    "rampup-batch-size": "the step is priced at the full batch",
    "curriculum-learning": "the step is priced at the full sequence",
}

_JSON_READ: Final = frozenset({"train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization.stage"}) | {
    f"{half}.enabled" for half in ("bf16", "fp16")
}
_JSON_NEUTRAL: Final = frozenset(
    """
    gradient_clipping steps_per_print wall_clock_breakdown gradient_accumulation_steps zero_allow_untested_optimizer
    fp16.loss_scale fp16.loss_scale_window fp16.hysteresis fp16.min_loss_scale fp16.initial_scale_power
    """.split()  # noqa: SIM905
)


def is_megatron_deepspeed(files: Files) -> bool:
    """Whether texts are a launch script of the fork: Megatron's arguments with DeepSpeed's."""
    return any("--deepspeed" in t and "--num-layers" in t for t in files.values())


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a launch script and its ``ds_config.json``. Raises InputError naming file, option and value."""
    scripts = {f: t for f, t in files.items() if not f.endswith((".json", "hostfile"))}
    scripts = {f: t for f, t in scripts.items() if f != "sbatch.sh" or len(scripts) == 1}
    arity = {**known_options(), **_OWN}
    found = [
        (f, trimmed(flag, arity))
        for f, t in scripts.items()
        for flag in read_flags(t, f, _takes_value, given.variables)[0]
    ]
    source = next(iter(scripts), "the launch file")
    if not found:
        raise InputError(f"{source}: no --option found: expected a launch script of Megatron-DeepSpeed")
    flags = FlagReader(found)
    settings = {f: flat_settings(f, t) for f, t in files.items() if f.endswith(".json")}
    return _job(flags, [flag for _, flag in found], settings, files, given, source)


def _job(
    flags: FlagReader, found: list[Flag], settings: dict[str, dict[str, Any]], files: Files, given: Given, source: str
) -> Parsed:
    model, why = read_model([_as_megatron(f) for f in found if f.name not in _FORK_ONLY], given, source)
    if model is not None and given.model is None:
        model = _fork_model(model, flags)
    merged = {key: value for table in settings.values() for key, value in table.items()}
    layers = model.num_layers if model else needed(flags.integer("num-layers"), "how many layers", "--model", source)
    layout = _layout(flags, merged, layers)
    gpus = needed(world_size(files, flags, given), "how many GPUs the job has", "--gpus", source)
    batch = given.global_batch_size or flags.integer("global-batch-size") or _number(merged, "train_batch_size")
    strategy = with_batch(layout, gpus, needed(batch, "the global batch", "--global-batch", source), source)
    sequence = needed(given.sequence_length or flags.integer("seq-length"), "the sequence length", "--seq-len", source)
    dtype = "bf16" if flags.switch("bf16") or merged.get("bf16.enabled") else "fp16"
    workload = Workload(strategy.micro_batch_size * strategy.dp * strategy.num_microbatches, sequence, dtype,
                        flags.word("optimizer", "adam", ("adam", "sgd")), train_mtp=False)  # fmt: skip
    lists = flags.sort({**known_options(), **_OWN}, SWITCHES | INTEGERS | WORDS | NUMBERS, _UNMODELLED, {})
    for file, table in settings.items():
        for kind, options in _sorted_settings(file, table).items():
            lists[kind] += options
    dropout = max(flags.number("attention-dropout", 0.1), flags.number("hidden-dropout", 0.1)) > 0
    multiple = flags.integer("make-vocab-size-divisible-by", 128)
    return Parsed(
        launcher="megatron-deepspeed",
        strategy=canonical(strategy, layers),
        workload=workload,
        model=model,
        model_note=why,
        runtime="megatron-deepspeed-bf16" if dtype == "bf16" else "megatron-deepspeed",
        runtime_changes={"dropout": dropout, "vocab_multiple": multiple},
        assumptions=tuple(flags.notes),
        **lists,
    )


def _layout(flags: FlagReader, settings: Mapping[str, Any], num_layers: int) -> Strategy:
    pp = flags.integer("pipeline-model-parallel-size", 1) or 1
    method = flags.word("pp-partition-method", "type:transformer").lower()
    if method not in ("type:transformer", "type:transformer|embedding", "uniform", "parameters"):
        raise flags.fail("pp-partition-method", "type:transformer or type:transformer|embedding")
    recompute = "full" if flags.switch("checkpoint-activations") else "none"
    every = flags.integer("checkpoint-num-layers", 1) or 1
    if recompute == "full" and every > 1:
        flags.notes.append(f"--checkpoint-num-layers {every}: chunks of {every} layers keep less, and are priced as 1")
    bf16 = flags.switch("bf16") or bool(settings.get("bf16.enabled"))
    stage = _number(settings, "zero_optimization.stage", 0)
    if "zero_optimization.stage" not in settings:
        stage = flags.integer("zero-stage", 0, minimum=0) or 0
    flags.has("zero-stage")
    return Strategy(
        tp=flags.integer("tensor-model-parallel-size", 1) or 1,
        pp=pp,
        # The bf16 optimizer is a ZeRO stage 1 of its own.
        zero=max(stage or 0, 1) if bf16 else stage or 0,
        micro_batch_size=flags.integer("micro-batch-size")
        or _number(settings, "train_micro_batch_size_per_gpu", 1)
        or 1,
        recompute=recompute,
        dp_overlap=False,
        layers_per_stage=_split(flags, method, num_layers, pp),
    )


def _split(flags: FlagReader, method: str, num_layers: int, pp: int) -> tuple[int, ...] | None:
    if method == "type:transformer" and num_layers % pp:
        raise flags.fail("pipeline-model-parallel-size", f"a divisor of {num_layers} layers")
    if method == "type:transformer|embedding":
        if (num_layers + 2) % pp:
            raise flags.fail("pipeline-model-parallel-size", f"a divisor of {num_layers} layers and the two embeddings")
        each = (num_layers + 2) // pp
        ends = [each - 1, *[each] * (pp - 2), each - 1] if pp > 1 else [num_layers]
        return None if tuple(ends) == even_split(num_layers, pp) else tuple(ends)
    if method in ("uniform", "parameters"):
        flags.notes.append(f"--pp-partition-method {method}: the layers are taken to be divided evenly")
    return None


# ---- its settings


def _number(settings: Mapping[str, Any], key: str, default: int | None = None) -> int | None:
    value = settings.get(key, default)
    if value is None or value == "auto":
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"DeepSpeed settings: {key} = {value!r}: expected a whole number")
    return value


def _sorted_settings(file: str, table: Mapping[str, Any]) -> dict[str, tuple[Option, ...]]:
    lists: dict[str, list[Option]] = {"read": [], "neutral": [], "unknown": []}
    for key, value in table.items():
        kind = "read" if key in _JSON_READ else "neutral" if key in _JSON_NEUTRAL else "unknown"
        lists[kind].append(Option(key, json.dumps(value), file))
    return {kind: tuple(found) for kind, found in lists.items()}


def _takes_value(name: str) -> bool:
    return _OWN[name] != "0" if name in _OWN else takes_value(name)


_FORK_ONLY: Final = frozenset(_OWN) - {"position-embedding-type", "glu-activation"}
"""Options that are no arguments of Megatron's model."""


def _as_megatron(flag: Flag) -> Flag:
    """The fork's words in Megatron's: positions that carry no weights are rotary ones to the model reader."""
    names = {"alibi": "rope", "rotary": "rope", "absolute": "learned_absolute"}
    if flag.name == "position-embedding-type":
        return replace(flag, words=(names.get(flag.value, flag.value),))
    if flag.name == "glu-activation":
        return replace(flag, name="swiglu", words=())
    return flag


def _fork_model(model: ModelSpec, flags: FlagReader) -> ModelSpec:
    """What Megatron's arguments cannot say: a norm behind the embedding, ALiBi positions (BLOOM has both)."""
    if flags.switch("embed-layernorm"):
        norm = Extra("embedding_norm", 2 * model.hidden_size, norm=True)
        model = replace(model, embedding_extras=(*model.embedding_extras, norm))
    if flags.word("glu-activation", "") in ("geglu", "glu", "reglu"):
        model = replace(model, activation="gelu")
    alibi = flags.word("position-embedding-type", "absolute") == "alibi"
    return replace(model, architecture="BloomForCausalLM", rotary_base=None) if alibi else model

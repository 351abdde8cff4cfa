"""DeepSpeed's settings and the script beside them read back: the inverse of ``deepspeed_files``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from shardwise.costmodel.megatron_shell import read_flags
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError

from .canonical import canonical
from .deepspeed_json import flat_settings
from .deepspeed_pipeline import PipelineSettings, is_pipeline_settings, read_pipeline_settings
from .deepspeed_tables import PIPELINE_KEYS, READ, SCRIPT_OPTIONS, TOP_KEYS, UNMODELLED, ZERO_KEYS
from .flag_reader import FlagReader, trimmed
from .parsed import Files, Given, Option, Parsed, needed
from .world import world_size

_MARKS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_INNER = {"zero_optimization": ZERO_KEYS, "pipeline": PIPELINE_KEYS}
_SEQUENCES = ("block-size", "max-seq-length", "model-max-length")


def is_deepspeed(files: Files) -> bool:
    """Whether texts hold DeepSpeed's settings, and no arguments of Megatron."""
    settings = any(f.endswith(".json") and any(mark in t for mark in _MARKS) for f, t in files.items())
    return settings and not any("--num-layers" in t for t in files.values())


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of ``ds_config.json`` and the script that names it. Raises InputError naming file, key and value."""
    tables = {f: flat_settings(f, t) for f, t in files.items() if f.endswith(".json")}
    if not tables:
        raise InputError(f"{', '.join(files)}: no JSON settings of DeepSpeed among them")
    scripts = {f: t for f, t in files.items() if f not in tables and not f.startswith("hostfile")}
    stages = [read_pipeline_settings(f, t) for f, t in scripts.items() if is_pipeline_settings(f, t)]
    scripts = {f: t for f, t in scripts.items() if not is_pipeline_settings(f, t)}
    scripts = {f: t for f, t in scripts.items() if f != "sbatch.sh" or len(scripts) == 1}
    flags = FlagReader(
        (f, trimmed(flag, SCRIPT_OPTIONS))
        for f, t in scripts.items()
        for flag in read_flags(t, f, lambda name: name in SCRIPT_OPTIONS, given.variables)[0]
    )
    source, merged = next(iter(tables)), {k: v for table in tables.values() for k, v in table.items()}
    return _job(_Settings(source, merged), flags, tables, files, given, stages[0] if stages else None)


class _Settings:
    """DeepSpeed's settings as dotted keys; ``auto`` is as good as absent."""

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = {k: v for k, v in values.items() if v != "auto"}

    def number(self, key: str, minimum: int = 1) -> int | None:
        """A whole number, None where it is absent. Raises InputError naming file, key and value."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.fail(key, f"a whole number of at least {minimum}")
        return value

    def on(self, key: str, default: bool = False) -> bool:
        """A switch."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def has(self, key: str) -> bool:
        """Whether a key is given, or a key inside it."""
        return any(k == key or k.startswith(key + ".") for k in self._values)

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it is."""
        return self._values.get(key, default)

    def fail(self, key: str, expected: str) -> InputError:
        """The error of a value that cannot be used."""
        return InputError(f"{self.file}: {key} = {json.dumps(self._values.get(key))}: expected {expected}")


def _job(
    settings: _Settings,
    flags: FlagReader,
    tables: Mapping[str, dict[str, Any]],
    files: Files,
    given: Given,
    pipeline: PipelineSettings | None,
) -> Parsed:
    source, model, stages = settings.file, given.model, pipeline.stages if pipeline else None
    gpus = needed(world_size(files, flags, given), "how many GPUs the job has", "--gpus", source)
    if stages is None and settings.has("pipeline"):
        flags.notes.append("the stages of a pipeline stand in the training script: without pipeline_settings.py one "
                           "stage is taken")  # fmt: skip
    strategy, batch = _strategy(settings, flags, gpus, given, stages or (0,))
    if pipeline is not None:
        pipeline.check(model, strategy.dp)
    stated = next((n for n in map(flags.integer, _SEQUENCES) if n), None)
    sequence = needed(given.sequence_length or stated, "the sequence length", "--seq-len", source)
    dtype = "bf16" if settings.on("bf16.enabled") else "fp16" if settings.on("fp16.enabled") else "fp32"
    for name in ("bf16", "fp16"):
        flags.has(name)
    if model is None and not flags.has("model-name-or-path"):
        flags.notes.append("the model stands in the training script")
    lists = flags.sort(SCRIPT_OPTIONS, frozenset(), {}, {})
    for file, table in tables.items():
        for kind, found in _sorted(file, table).items():
            lists[kind] += found
    return Parsed(
        launcher="deepspeed",
        strategy=canonical(strategy, model.num_layers if model else max(1, sum(stages or ()))),
        workload=Workload(batch, sequence, dtype, "adam", train_mtp=False),
        model=model,
        model_note="DeepSpeed's settings do not say it" if model is None else "",
        runtime="deepspeed-zero",
        runtime_changes={},
        assumptions=tuple(flags.notes),
        **lists,
    )


def _strategy(
    settings: _Settings, flags: FlagReader, gpus: int, given: Given, stages: tuple[int, ...]
) -> tuple[Strategy, int]:
    pp = len(stages)
    tp, cp = settings.number("tensor_parallel.autotp_size") or 1, settings.number("sequence_parallel_size") or 1
    if gpus % (tp * cp * pp):
        raise InputError(f"{settings.file}: tensor_parallel.autotp_size·sequence_parallel_size = {tp}·{cp}, with {pp} "
                         f"stages: expected a divisor of the {gpus} GPUs, or give --gpus")  # fmt: skip
    dp = gpus // (tp * cp * pp)
    micro = settings.number("train_micro_batch_size_per_gpu") or flags.integer("per-device-train-batch-size")
    steps = settings.number("gradient_accumulation_steps") or flags.integer("gradient-accumulation-steps")
    batch = given.global_batch_size or settings.number("train_batch_size")
    if given.global_batch_size is not None and micro:
        steps = None  # another batch than the file's: its number of micro-batches goes with it
    micro, steps, batch = _complete(micro, steps, batch, dp, settings)
    stage = settings.number("zero_optimization.stage", minimum=0) or 0
    if stage > 3:
        raise settings.fail("zero_optimization.stage", "0, 1, 2 or 3")
    word = flags.word("gradient-checkpointing", "False")
    again = settings.number("pipeline.activation_checkpoint_interval", minimum=0) or 0
    if again > 1:
        flags.notes.append(f"pipeline.activation_checkpoint_interval = {again} is priced as 1, a checkpoint a layer")
    full = again > 0 if pp > 1 else word.lower() in ("true", "1", "")
    device = (settings.get("zero_optimization.offload_optimizer") or {}).get("device", "none")
    if device == "nvme":
        flags.notes.append("optimizer states on NVMe are priced as in host memory")
    return Strategy(
        tp=tp, cp=cp, cp_comm="a2a" if cp > 1 else "p2p", ulysses=cp, pp=pp, dp=dp, zero=stage,
        micro_batch_size=micro, num_microbatches=steps, recompute="full" if full else "none",
        offload_optimizer=0.0 if device == "none" else 1.0,
        dp_overlap=settings.on("zero_optimization.overlap_comm", default=stage == 3),
        layers_per_stage=stages if pp > 1 else None,
    ), batch  # fmt: skip


def _complete(
    micro: int | None, steps: int | None, batch: int | None, dp: int, settings: _Settings
) -> tuple[int, int, int]:
    """The three sizes of the batch, of which two suffice. Raises InputError where they do not go together."""
    if micro is None and batch is not None:
        micro = batch // (dp * (steps or 1))
    if micro is None:
        raise InputError(f"{settings.file}: does not say the batch: expected two of train_batch_size, "
                         "train_micro_batch_size_per_gpu and gradient_accumulation_steps, or give "
                         "--global-batch")  # fmt: skip
    steps = steps or (max(batch // (micro * dp), 1) if batch else 1)
    whole = batch or micro * steps * dp
    if micro * steps * dp != whole:
        raise InputError(f"{settings.file}: train_batch_size = {whole}: expected micro-batch·accumulation·dp = "
                         f"{micro}·{steps}·{dp} = {micro * steps * dp}")  # fmt: skip
    return micro, steps, whole


# ---- the settings


def _sorted(file: str, table: Mapping[str, Any]) -> dict[str, tuple[Option, ...]]:
    lists: dict[str, list[Option]] = {"read": [], "neutral": [], "unmodelled": [], "unknown": []}
    for key, value in table.items():
        top, _, inner = key.partition(".")
        note = UNMODELLED.get(key, UNMODELLED.get(top, ""))
        if top not in TOP_KEYS:
            kind, note = "unknown", _near(top, TOP_KEYS)
        elif inner and top in _INNER and inner not in _INNER[top]:
            kind, note = "unknown", _near(inner, _INNER[top])
        else:
            kind = "read" if key in READ else "unmodelled" if note else "neutral"
        lists[kind].append(Option(key, json.dumps(value), file, 0, note if kind in ("unknown", "unmodelled") else ""))
    return {kind: tuple(found) for kind, found in lists.items()}


def _near(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.75)
    return f"no setting of DeepSpeed 0.19{f': did you mean {close[0]}?' if close else ''}"

"""Launch files of Hugging Face Accelerate read back: the YAML of ``accelerate config`` and the script beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from shardwise.costmodel.megatron_shell import Flag, read_flags
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError

from .accelerate_keys import KEYS, NEUTRAL_KEYS, UNMODELLED_KEYS, UNMODELLED_OPTIONS
from .accelerate_models import BY_LAYER, CLASSES
from .canonical import canonical
from .flag_reader import FlagReader, trimmed
from .parsed import Files, Given, Option, Parsed, needed, with_batch
from .yaml_settings import YamlSettings, near_key

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "parallelism_config_tp_size",
    "etp": "parallelism_config_tp_size",
    "cp": "parallelism_config_cp_size",
    "cp_comm": "parallelism_config_cp_comm_strategy",
    "ulysses": "parallelism_config_sp_size",
    "dp": "parallelism_config_dp_replicate_size · dp_shard_size",
    "zero": "fsdp_reshard_after_forward",
    "zero_group": "parallelism_config_dp_shard_size · cp_size",
    "micro_batch_size": "--per_device_train_batch_size",
    "num_microbatches": "--gradient_accumulation_steps",
    "recompute": "fsdp_activation_checkpointing",
    "offload_optimizer": "offload_optimizer_device",
}
"""Its options for the dimensions that it has."""

_TYPES: Final = ("FSDP", "MULTI_GPU", "DEEPSPEED", "MEGATRON_LM", "NO")
_SHARDING: Final[Mapping[str, int]] = {
    "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
"""The ZeRO stage of FSDP1's strategies, by name; numbers count them from 1."""

_DTYPES: Final[Mapping[str, str]] = {"no": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
_OWN: Final = frozenset(
    """
    model model-name-or-path config-name tokenizer-name sequence-length seq-length max-length max-seq-length
    max-seq-len block-size micro-batch-size train-batch-size batch-size from-scratch dataset-name dataset-config
    dataset-config-name train-file validation-file preprocessing-num-workers torch-dtype dtype attn-implementation
    packing trust-remote-code num-warmup-steps max-train-steps with-tracking config
    """.split()  # noqa: SIM905
)
"""Arguments of training scripts that are no TrainingArguments."""

_SWITCHES: Final = frozenset({"bf16", "fp16", "gradient-checkpointing", "from-scratch", "do-train", "do-eval",
                              "packing", "trust-remote-code", "overwrite-output-dir", "with-tracking"})  # fmt: skip
_FOLDER: Final = Path(__file__).parent / "options"
_COMMAND: Final = re.compile(r"\baccelerate[\s'\",]+launch\b|accelerate\.commands\.launch")


@cache
def launch_options() -> Mapping[str, str]:
    """Every option of ``accelerate launch`` with the number of its values."""
    lines = (_FOLDER / "accelerate-1.15.0.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


@cache
def script_options() -> Mapping[str, str]:
    """Arguments of training scripts built on transformers, with the number of their values."""
    lines = (_FOLDER / "transformers-trainer-5.24.0.txt").read_text(encoding="utf-8").splitlines()
    names = {*(line for line in lines if line and not line.startswith("#")), *_OWN}
    return {name: "?" if name in _SWITCHES else "1" for name in names}


def is_accelerate(files: Files) -> bool:
    """Whether texts are a configuration or a launch script of Accelerate."""
    return any(
        _COMMAND.search(t) if not _is_yaml(f, t) else re.search(r"^(distributed_type|fsdp_config):", t, re.MULTILINE)
        for f, t in files.items()
        if not f.endswith((".py", ".json"))
    )


def _is_yaml(file: str, text: str) -> bool:
    named = file.lower().endswith((".yaml", ".yml"))
    return named or ("." not in file and not _COMMAND.search(text) and "distributed_type:" in text)


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a YAML configuration, a launch script or both. Raises InputError naming file, option and value."""
    configs = {f: t for f, t in files.items() if _is_yaml(f, t)}
    scripts = {f: t for f, t in files.items() if f not in configs and _holds_arguments(f)}
    if len(configs) > 1:
        raise InputError(f"{', '.join(configs)}: several YAML files: name the one that accelerate launch is given")
    known = {**script_options(), **launch_options()}
    found = [
        (f, trimmed(flag, known))
        for f, t in scripts.items()
        for flag in read_flags(t, f, lambda n: known.get(n, "0") == "1", given.variables)[0]
    ]
    if not configs and not found:
        raise InputError(f"{', '.join(files)}: no configuration of Accelerate and no option in it")
    config = YamlSettings(*next(iter(configs.items()))) if configs else YamlSettings("the defaults", "{}")
    return _Job(config, FlagReader(found), found, given, next(iter({**configs, **scripts}))).parsed()


def _holds_arguments(file: str) -> bool:
    return not file.endswith((".py", ".json", "hostfile", "sbatch.sh"))


class _Job:
    """One job; an option on the command line wins over the key of its name, as it does for Accelerate."""

    def __init__(
        self, config: YamlSettings, flags: FlagReader, found: list[tuple[str, Flag]], given: Given, source: str
    ) -> None:
        self._config, self._flags, self._found, self._given, self._source = config, flags, found, given, source

    def parsed(self) -> Parsed:
        kind = self._word("distributed_type", "FSDP", _TYPES)
        if kind == "MEGATRON_LM":
            raise self._config.fail("distributed_type", "FSDP, MULTI_GPU or DEEPSPEED: read Megatron's own options")
        gpus = self._gpus()
        layout = self._layout(kind, gpus)
        strategy = self._batch(layout, gpus)
        names = ("sequence-length", "seq-length", "max-length", "max-seq-length", "max-seq-len", "block-size")
        sequence = self._given.sequence_length or self._first(names)
        workload = Workload(
            strategy.micro_batch_size * strategy.dp * strategy.num_microbatches,
            needed(sequence, "the sequence length", "--seq-len", self._source),
            self._dtype(),
            self._optimizer(),
            train_mtp=False,
        )
        model = self._given.model
        note = "Accelerate's files name the model and do not describe it"
        return Parsed(
            launcher="accelerate",
            strategy=canonical(strategy, model.num_layers if model else 1),
            workload=workload,
            model=model,
            model_note="" if model else note,
            runtime="accelerate-fsdp2",
            runtime_changes={},
            assumptions=tuple(self._flags.notes),
            **self._sorted(),
        )

    # ---- the layout

    def _gpus(self) -> int:
        stated = self._integer("num_processes")
        if stated is None or self._given.num_gpus is not None:
            return needed(self._given.num_gpus, "how many GPUs the job has (num_processes)", "--gpus", self._source)
        return stated

    def _layout(self, kind: str, gpus: int) -> Strategy:
        prefix = "parallelism_config_"
        tp, cp, sp = (self._integer(f"{prefix}{n}_size", 1) or 1 for n in ("tp", "cp", "sp"))
        self._word(f"{prefix}cp_backend", "torch", ("torch",))
        self._word(f"{prefix}sp_backend", "deepspeed", ("deepspeed",))
        if cp > 1 and sp > 1:
            raise self._fail(f"{prefix}cp_size", "1 beside an sp_size above 1: Accelerate takes one of them")
        zero, group, offload = self._states(kind, gpus)
        replicate, shard = (self._integer(f"{prefix}{n}_size") for n in ("dp_replicate", "dp_shard"))
        inner = tp * cp * sp
        if replicate is None and shard is None and gpus % inner == 0:
            replicate, shard = (1, gpus // inner) if tp * cp * sp == 1 or kind == "DEEPSPEED" else (1, 1)
        replicate, shard = replicate or 1, shard or 1
        if replicate * shard * inner != gpus:
            text = f"dp_replicate·dp_shard·cp·sp·tp = {replicate}·{shard}·{cp}·{sp}·{tp}"
            raise InputError(f"{self._source}: {text} = {replicate * shard * inner}, but num_processes is {gpus}: "
                             f"expected dp_shard_size {max(gpus // (replicate * inner), 1)}")  # fmt: skip
        rotation = self._word(f"{prefix}cp_comm_strategy", "allgather", ("allgather", "alltoall"))
        comm = "a2a" if sp > 1 else "p2p" if rotation == "alltoall" else "all_gather"
        again = self._switch("fsdp_activation_checkpointing") or self._flags.switch("gradient-checkpointing")
        return Strategy(
            tp=tp, etp=tp if self._experts() else 1, cp=cp * sp, cp_comm=comm, ulysses=sp, zero=zero,
            zero_group=shard * cp if replicate > 1 and zero else group, recompute="full" if again else "none",
            offload_optimizer=offload,
        )  # fmt: skip

    def _states(self, kind: str, gpus: int) -> tuple[int, int, float]:
        """ZeRO stage, ranks of a sharding group (0: all of them) and the share of states in host memory."""
        if kind == "DEEPSPEED":
            stage = self._integer("zero_stage", 2, minimum=0)
            device = self._word("offload_optimizer_device", "none", ("none", "cpu", "nvme"))
            return stage or 0, 0, 0.0 if device == "none" else 1.0
        if kind != "FSDP":
            return 0, 0, 0.0
        version = self._integer("fsdp_version", 1)
        if version == 2:
            return 3 if self._switch("fsdp_reshard_after_forward", default=True) else 2, 0, 0.0
        if any(key.startswith("parallelism_config.") for key in self._config):
            raise self._fail("fsdp_version", "2: a parallelism_config works with FSDP2 only")
        name = self._word("fsdp_sharding_strategy", self._word("fsdp_reshard_after_forward", "FULL_SHARD")).upper()
        name = list(_SHARDING)[int(name) - 1] if name in "12345" else name
        if name not in _SHARDING:
            raise self._fail("fsdp_sharding_strategy", f"one of {', '.join(_SHARDING)}")
        hosts = self._integer("num_machines", 1) or 1
        hybrid = name.startswith("HYBRID") and hosts > 1
        return _SHARDING[name], gpus // hosts if hybrid else 0, 0.0

    def _experts(self) -> bool:
        layer = self._word("fsdp_transformer_layer_cls_to_wrap", "")
        model = self._given.model
        known = CLASSES.get(model.architecture) if model else None
        wrapped = known or BY_LAYER.get(layer.split(",")[0].strip())
        return bool(wrapped and wrapped.moe)

    def _batch(self, layout: Strategy, gpus: int) -> Strategy:
        mbs = self._first(("per-device-train-batch-size", "micro-batch-size", "train-batch-size", "batch-size"))
        steps = self._first(("gradient-accumulation-steps",)) or self._config.integer(
            "deepspeed_config.gradient_accumulation_steps"
        )
        dp = gpus // (layout.tp * layout.cp)
        total = self._given.global_batch_size
        if mbs is None:
            needed(total, "the batch of each process", "--global-batch", self._source)
            self._flags.notes.append("no --per_device_train_batch_size: micro-batches of 1 sequence are taken")
            mbs = 1
        sized = Strategy(**{**layout.as_dict(), "micro_batch_size": mbs, "dp": dp})
        return with_batch(sized, gpus, total or mbs * dp * (steps or 1), self._source)

    # ---- the job

    def _dtype(self) -> str:
        word = self._word("mixed_precision", "no", tuple(_DTYPES))
        for half in ("bf16", "fp16"):
            word = half if self._flags.switch(half) else word
        return _DTYPES[word]

    def _optimizer(self) -> str:
        name = self._flags.word("optim", "adamw_torch_fused")
        if name == "sgd":
            return "sgd"
        if "adam" not in name:
            self._flags.notes.append(f"--optim {name}: priced as Adam")
        return "adam_8bit" if "8bit" in name and "adam" in name else "adam"

    # ---- reading

    def _key(self, name: str) -> str:
        """The dotted key of a name: below its section, or at the top."""
        section = "fsdp_config" if name.startswith("fsdp_") else "parallelism_config"
        if name.startswith(("zero_", "offload_")):
            section = "deepspeed_config"
        bare = f"{section}.{name.removeprefix('fsdp_')}"
        if name.startswith("fsdp_") and bare in self._config:
            return bare
        return name if name in KEYS else f"{section}.{name}"

    def _on_command_line(self, name: str) -> str | None:
        flag = name.replace("_", "-")
        return flag if self._flags.has(flag) and "$" not in self._flags.where(flag) else None

    def _integer(self, name: str, default: int | None = None, minimum: int = 1) -> int | None:
        value = self._config.integer(self._key(name), default, minimum)
        flag = self._on_command_line(name)
        return self._flags.integer(flag, default, minimum) if flag else value

    def _word(self, name: str, default: str, allowed: tuple[str, ...] = ()) -> str:
        value = self._config.word(self._key(name), default, allowed)
        flag = self._on_command_line(name)
        return self._flags.word(flag, default, allowed) if flag else value

    def _switch(self, name: str, default: bool = False) -> bool:
        value = self._config.switch(self._key(name), default)
        flag = self._on_command_line(name)
        return self._flags.word(flag, "").lower() in ("true", "1", "yes") if flag else value

    def _fail(self, name: str, expected: str) -> InputError:
        flag = self._on_command_line(name)
        return self._flags.fail(flag, expected) if flag else self._config.fail(self._key(name), expected)

    def _first(self, names: tuple[str, ...]) -> int | None:
        """The first of some arguments of the training script that is there."""
        return next((self._flags.integer(name) for name in names if self._flags.has(name)), None)

    # ---- what was not asked for

    def _sorted(self) -> dict[str, tuple[Option, ...]]:
        known = {**script_options(), **launch_options()}
        framework = "Accelerate 1.15 or of transformers' training scripts"
        near = {f.name: near_key(f.name, known, framework) for _, f in self._found if f.name not in known}
        lists = self._flags.sort(known, frozenset(), UNMODELLED_OPTIONS, near)
        dropped = "Accelerate 1.15, which drops it in silence"
        for kind, options in self._config.sort(NEUTRAL_KEYS, UNMODELLED_KEYS, KEYS, dropped).items():
            lists[kind] = (*options, *lists[kind])
        return lists

"""Configurations of nanotron read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from shardwise.costmodel.hf import model_from_config
from shardwise.costmodel.megatron_shell import Flag, read_flags
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError

from .canonical import canonical
from .flag_reader import LAUNCHER_FLAGS, FlagReader, trimmed
from .nanotron_model import DTYPES, divided
from .parsed import Files, Given, Option, Parsed, needed, with_batch
from .yaml_settings import YamlSettings, near_key

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "parallelism.tp",
    "sp": "parallelism.tp_mode",
    "cp": "parallelism.context_parallel_size",
    "pp": "parallelism.pp",
    "dp": "parallelism.dp",
    "ep": "parallelism.expert_parallel_size",
    "schedule": "parallelism.pp_engine",
    "zero": "optimizer.zero_stage",
    "micro_batch_size": "tokens.micro_batch_size",
    "num_microbatches": "tokens.batch_accumulation_per_replica",
    "recompute": "parallelism.recompute_layer",
    "tp_overlap": "parallelism.tp_linear_async_communication",
}
"""Its keys for the dimensions that it has."""

_NEUTRAL: Final = (
    "checkpoints.", "data_stages", "general.", "logging.", "lighteval.", "profiler.", "s3_upload.", "tokenizer.",
    "model.ddp_bucket_cap_mb", "model.init_method.", "optimizer.clip_grad", "optimizer.learning_rate_scheduler.",
    "optimizer.weight_decay", "optimizer.weight_decay_exclude_named_params", "tokens.train_steps",
    "tokens.limit_test_batches", "tokens.limit_val_batches", "tokens.val_check_interval", "metrics_logging.",
    *(f"optimizer.optimizer_factory.{n}" for n in ("adam_beta1", "adam_beta2", "adam_eps", "torch_adam_is_fused")),
    *(f"model.model_config.{n}" for n in ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range",
                                         "use_cache", "pretraining_tp", "rope_interleaved", "rope_scaling",
                                         "z_loss_enabled", "z_loss_coefficient", "interleaved_rotary")),
)  # fmt: skip
"""Keys that change neither time nor memory; a dot at the end stands for all below."""

_UNMODELLED: Final[Mapping[str, str]] = {
    "model.model_config._attn_implementation": "attention is priced as the runtime profile's kernel",
    "model.model_config._fused_rotary_emb": "rotary positions are priced as the runtime profile says",
    "model.model_config._fused_rms_norm": "norms are priced as the runtime profile says",
    "model.model_config._use_qkv_packed": "attention is priced as the runtime profile's kernel",
    "model.model_config._use_doc_masking": "attention is priced over whole sequences",
    "model.model_config.flex_attention_mask": "attention is priced as the runtime profile's kernel",
    "model.model_config.moe_config.": "experts of nanotron are not read: name the model",
    "parallelism.moe_layer_recompute": "experts are recomputed with their layer or not at all",
}
_SHAPE: Final = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
                 "vocab_size", "max_position_embeddings", "hidden_act", "rms_norm_eps", "rope_theta",
                 "tie_word_embeddings", "attention_bias", "sliding_window_size")  # fmt: skip
_FAMILIES: Final = ("is_llama_config", "is_qwen2_config", "is_starcoder2_config")
_KEYS: Final = frozenset(
    {key for key in (*_NEUTRAL, *_UNMODELLED, *DIMENSION_OPTIONS.values()) if not key.endswith(".")}
    | {f"model.model_config.{name}" for name in (*_SHAPE, *_FAMILIES)}
    | {"parallelism.tp_recompute_allgather", "model.dtype", "model.make_vocab_size_divisible_by",
       "optimizer.accumulate_grad_in_fp32", "optimizer.optimizer_factory.name", "tokens.sequence_length"}
)  # fmt: skip


def is_nanotron(files: Files) -> bool:
    """Whether texts are a configuration of nanotron."""
    return any(
        re.search(r"^parallelism:", t, re.MULTILINE) and re.search(r"^(tokens|optimizer):", t, re.MULTILINE)
        for f, t in files.items()
        if not f.endswith((".py", ".json", ".toml"))
    )


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a configuration and the script beside it. Raises InputError naming file, key and value."""
    configs = {f: t for f, t in files.items() if is_nanotron({f: t})}
    if len(configs) != 1:
        raise InputError(f"{', '.join(files)}: expected one YAML configuration of nanotron, not {len(configs)}")
    ((file, text),) = configs.items()
    scripts = {f: t for f, t in files.items() if f not in configs and not f.endswith((".py", "hostfile", "sbatch.sh"))}
    return _Job(YamlSettings(file, text), _flags(scripts, given), given, file).parsed()


_SCRIPT: Final = {"config-file": "1"}
"""The arguments of run_train.py."""


def _flags(scripts: Mapping[str, str], given: Given) -> list[tuple[str, Flag]]:
    takes = LAUNCHER_FLAGS | set(_SCRIPT)
    return [
        (f, trimmed(flag, _SCRIPT))
        for f, t in scripts.items()
        for flag in read_flags(t, f, lambda name: name in takes, given.variables)[0]
    ]


class _Job:
    """One configuration."""

    def __init__(self, config: YamlSettings, found: list[tuple[str, Flag]], given: Given, file: str) -> None:
        self._config, self._found, self._given, self._file = config, found, given, file
        self._flags = FlagReader(found)
        self._notes: list[str] = []

    def parsed(self) -> Parsed:
        config, given = self._config, self._given
        model, why = self._model()
        layout = self._layout()
        gpus = self._gpus(layout)
        split, layers = self._stages(layout)
        layout = Strategy(**{**layout.as_dict(), "layers_per_stage": split})
        steps = config.integer("tokens.batch_accumulation_per_replica", 1) or 1
        batch = given.global_batch_size or layout.micro_batch_size * steps * (
            gpus // (layout.tp * layout.cp * layout.pp)
        )
        strategy = with_batch(layout, gpus, batch, self._file)
        sequence = given.sequence_length or config.integer("tokens.sequence_length")
        config.integer("tokens.sequence_length")
        words = {v: k for k, v in DTYPES.items()}
        dtype = words[config.word("model.dtype", "bfloat16", tuple(words))]
        optimizer = config.word("optimizer.optimizer_factory.name", "adamW", ("adamW", "sgd"))
        return Parsed(
            launcher="nanotron",
            strategy=canonical(strategy, layers),
            workload=Workload(batch, needed(sequence, "the sequence length", "--seq-len", self._file), dtype,
                              "sgd" if optimizer == "sgd" else "adam", train_mtp=False),
            model=model,
            model_note=why,
            runtime="nanotron",
            runtime_changes=self._runtime(),
            assumptions=(*self._flags.notes, *self._notes),
            **self._sorted(),
        )  # fmt: skip

    def _layout(self) -> Strategy:
        config = self._config
        tp = config.integer("parallelism.tp", 1) or 1
        engine = config.word("parallelism.pp_engine", "afab", ("1f1b", "afab"))
        mode = config.word("parallelism.tp_mode", "ALL_REDUCE", ("ALL_REDUCE", "REDUCE_SCATTER"))
        pp = config.integer("parallelism.pp", 1) or 1
        stage = config.integer("optimizer.zero_stage", 0, minimum=0) or 0
        if stage > 1:
            raise config.fail("optimizer.zero_stage", "0 or 1: nanotron takes any number and divides optimizer states")
        return Strategy(
            tp=tp,
            sp=mode == "REDUCE_SCATTER" and tp > 1,
            cp=config.integer("parallelism.context_parallel_size", 1) or 1,
            pp=pp,
            ep=config.integer("parallelism.expert_parallel_size", 1) or 1,
            schedule="gpipe" if engine == "afab" and pp > 1 else "1f1b",
            zero=stage,
            micro_batch_size=config.integer("tokens.micro_batch_size", 1) or 1,
            recompute="full" if config.switch("parallelism.recompute_layer") else "none",
            tp_overlap=config.switch("parallelism.tp_linear_async_communication") and tp > 1,
        )

    def _gpus(self, layout: Strategy) -> int:
        dp = needed(self._config.integer("parallelism.dp"), "how many replicas it has", "parallelism.dp", self._file)
        stated = layout.tp * layout.cp * layout.pp * dp
        nodes, per_node = (self._number(n) for n in ("nnodes", "nproc-per-node"))
        if nodes and per_node and nodes * per_node != stated and self._given.num_gpus is None:
            product = f"dp·pp·tp·cp = {dp}·{layout.pp}·{layout.tp}·{layout.cp} = {stated}"
            started = f"torchrun starts {nodes}·{per_node} = {nodes * per_node} processes"
            raise InputError(f"{self._file}: {product}, but {started}: expected the same number")
        return self._given.num_gpus or stated

    def _number(self, name: str) -> int | None:
        plain = self._flags.has(name) and "$" not in self._flags.where(name)
        return self._flags.integer(name) if plain else None

    def _stages(self, layout: Strategy) -> tuple[tuple[int, ...] | None, int]:
        """nanotron's own division of the layers, and how many there are."""
        model = self._given.model
        layers, hidden, width, vocabulary = (
            self._config.integer(f"model.model_config.{n}")
            for n in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
        )
        count = layers or (model.num_layers if model else 1)
        if layout.pp == 1 or not (layers and hidden and width and vocabulary):
            return None, count
        unit = (self._config.integer("model.make_vocab_size_divisible_by", 1) or 1) * layout.tp
        own = divided(layers, hidden, width, -(-vocabulary // unit) * unit, layout.pp)
        if own is None:
            self._notes.append(f"nanotron would leave one of {layout.pp} stages empty: the layers are divided evenly")
        return None if own == even_split(layers, layout.pp) else own, layers

    def _model(self) -> tuple[ModelSpec | None, str]:
        config, section = self._config, "model.model_config."
        values: dict[str, Any] = {n: v for n in _SHAPE if (v := config.value(section + n)) is not None}
        families = {name: config.switch(section + name) for name in _FAMILIES if section + name in config}
        if self._given.model is not None:
            return self._given.model, ""
        if not families.get("is_llama_config") or values.pop("sliding_window_size", None):
            return None, "only nanotron's Llama without windows is read as a model"
        try:
            return model_from_config({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "mlp_bias": False,
                                      "attention_bias": False, **values}, "the model", self._file), ""  # fmt: skip
        except InputError as error:
            return None, str(error)

    def _runtime(self) -> dict[str, Any]:
        config = self._config
        whole = config.switch("optimizer.accumulate_grad_in_fp32")
        return {
            "vocab_multiple": config.integer("model.make_vocab_size_divisible_by", 1),
            "grad_memory_bytes": 4.0 if whole else 2.0,
            "grad_comm_bytes": 4.0 if whole else 2.0,
            "sp_regather": config.switch("parallelism.tp_recompute_allgather", default=True),
        }

    def _sorted(self) -> dict[str, tuple[Option, ...]]:
        near = {f.name: near_key(f.name, LAUNCHER_FLAGS, "torchrun or of run_train.py") for _, f in self._found}
        lists = self._flags.sort(_SCRIPT, frozenset(), {}, near)
        for kind, options in self._config.sort(_NEUTRAL, _UNMODELLED, _KEYS, "nanotron, which refuses it").items():
            lists[kind] = (*options, *lists[kind])
        return lists

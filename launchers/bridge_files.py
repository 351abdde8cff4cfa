"""The launch files of Megatron-Bridge: ``recipe.py``, ``launch.sh`` (torchrun), ``sbatch.sh`` (Slurm), ``hostfile``.

The recipe says what the arguments of Megatron-LM say (``megatron_files``), field by field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .bridge_fields import is_negated, path_of
from .facts import model_facts
from .megatron_files import argument_groups, exports, summary, torchrun
from .megatron_model import learned_positions, model_arguments
from .settings import LaunchSettings
from .shell import comment, file_of, heading
from .slurm import hostfile, hosts_of, sbatch_script

Fields = dict[str, str]
"""Source text of values by field."""

_NO_FIELD: Final = frozenset(
    """
    mock-data tokenizer-type vocab-size log-interval eval-iters log-throughput max-position-embeddings
    group-query-attention num-layers-per-virtual-pipeline-stage
    num-virtual-stages-per-pipeline-rank swiglu quick-geglu squared-relu no-pad-vocab-size ddp-num-buckets
    overlap-grad-reduce overlap-param-gather grad-reduce-in-bf16
    """.split()  # noqa: SIM905
)
"""Options that a recipe says in another way, or that it has no need of."""

_LISTS: Final = frozenset(
    ["recompute-modules", "offload-modules", "cuda-graph-modules", "hierarchical-context-parallel-sizes"]
)
_DTYPES: Final[Mapping[str, str]] = {"bf16": "torch.bfloat16", "fp8": "torch.uint8", "fp16": "torch.float16"}
_ACTIVATIONS: Final[Mapping[str, Fields]] = {
    "swiglu": {"model.gated_linear_unit": "True", "model.activation_func": "F.silu"},
    "quick-geglu": {"model.gated_linear_unit": "True", "model.activation_func": "quick_gelu"},
    "squared-relu": {"model.activation_func": "squared_relu"},
}

_CLASSES: Final[Mapping[str, str]] = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "dataset": "MockGPTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "ddp": "DistributedDataParallelConfig",
    "comm_overlap": "CommOverlapConfig",
    "mixed_precision": "MixedPrecisionConfig",
    "rng": "RNGConfig",
    "dist": "DistributedInitConfig",
}
_FREE: Final = frozenset({"DATA_ARGS", "TOKENIZER_ARGS", "SCHEDULE_ARGS", "CHECK_ARGS", "OUTPUT_ARGS"})


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """``recipe.py``, ``launch.sh``, ``sbatch.sh`` and, when hosts are given, ``hostfile``."""
    files = {
        "recipe.py": recipe(problem, strategy, settings),
        "launch.sh": _launch_script(problem, strategy, settings),
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


# ---- from options to fields


def recipe_fields(problem: Problem, s: Strategy, settings: LaunchSettings) -> tuple[Fields, Fields]:
    """Source texts of all fields: those that are the person's to change, and those of the plan."""
    yours: Fields = {}
    planned: Fields = {}
    for name, arguments in argument_groups(problem, s, settings):
        fields = yours if name in _FREE else planned
        for option, words in _options(arguments):
            fields |= _ACTIVATIONS.get(option, {})
            if option not in _NO_FIELD:
                fields[path_of(option)] = _source(option, words)
    return _your_own(problem) | yours, planned | _derived(problem, s)


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("--"):
            found.append((word[2:], []))
        else:
            found[-1][1].append(word)
    return iter(found)


def _source(option: str, words: list[str]) -> str:
    if not words:
        return "False" if is_negated(option) else "True"
    if option in _LISTS:
        return f"[{', '.join(map(_literal, words))}]"
    (word,) = words
    return _DTYPES[word] if option.startswith("exp-avg") else _literal(word)


def _literal(word: str) -> str:
    """A number, a pair or a pattern of layers as it stands, anything else in quotes."""
    plain = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?|\(\d+,\d+\)|\(\[[\d\]*+\[]+\)", word)
    return word.replace(",", ", ") if plain else json.dumps(word)


def _your_own(problem: Problem) -> Fields:
    seed = {"dataset.random_seed": "1234"}
    flags = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), "False")
    # The recipe's text of the sequence length is the plan's.
    return seed | {f"dataset.{k}": v for k, v in flags.items()} | {
        "tokenizer.tokenizer_type": '"NullTokenizer"',
        "tokenizer.vocab_size": str(problem.model.vocab_size),
        "logger.log_interval": "1",
        "validation.eval_iters": "0",
    }  # fmt: skip


def _derived(problem: Problem, s: Strategy) -> Fields:
    """What a recipe says in more places than arguments do, or in other words."""
    fields = {"dataset.seq_length": str(problem.workload.sequence_length), "train.manual_gc": "True"}
    if s.vpp > 1:
        fields["model.virtual_pipeline_model_parallel_size"] = str(s.vpp)
    if problem.runtime.vocab_multiple == 1:
        # A vocabulary that the model states is not padded; the tokenizer's is.
        fields["model.vocab_size"] = str(problem.model.vocab_size)
    fields |= _fusions(problem)
    if problem.model.is_moe or problem.workload.train_mtp:
        # The default specification makes all layers alike.
        fields["model.transformer_layer_spec"] = "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
    return fields | _overlap(s) | _precision(problem) | _optimizer(problem, s)


def _fusions(problem: Problem) -> Fields:
    """Fused kernels that the arguments have unless they are switched off, and the fields only where switched on."""
    fields = {"model.bias_dropout_fusion": "True", "model.persist_layer_norm": "True"}
    words = model_arguments(problem).shape
    if learned_positions(problem.model) is None:
        fields["model.apply_rope_fusion"] = "True"
    # A plain GELU is fused with its bias only.
    plain = not {"--swiglu", "--quick-geglu"} & set(words)
    if "--squared-relu" not in words and not (plain and "--disable-bias-linear" in words):
        fields["model.bias_activation_fusion"] = "True"
    return fields


def _overlap(s: Strategy) -> Fields:
    # Where the optimizer is distributed, comm_overlap sets what is not said here by rules of its own.
    both = {"overlap_grad_reduce": s.dp_overlap, "overlap_param_gather": s.dp_overlap and s.zero > 0}
    fields = {f"{section}.{name}": str(on) for section in ("ddp", "comm_overlap") for name, on in both.items()}
    return fields | {
        "comm_overlap.tp_comm_overlap": str(s.tp_overlap),
        "comm_overlap.overlap_moe_expert_parallel_comm": str(s.ep_overlap),
    }


def _precision(problem: Problem) -> Fields:
    dtype = problem.workload.dtype
    word = {"fp16": "torch.float16", "fp32": "torch.float32"}.get(dtype, "torch.bfloat16")
    whole = problem.runtime.grad_comm_bytes > 2.0 or dtype == "fp32"
    fields = {"mixed_precision.params_dtype": word, "mixed_precision.pipeline_dtype": word}
    fields |= {"mixed_precision.grad_reduce_in_fp32": str(whole), "ddp.grad_reduce_in_fp32": str(whole)}
    return fields | ({"mixed_precision.fp32": "True"} if dtype == "fp32" else {})


def _optimizer(problem: Problem, s: Strategy) -> Fields:
    fields = {"optimizer.use_distributed_optimizer": str(s.zero > 0)}
    if problem.workload.optimizer == "muon":
        # Its shards are whole layers: another optimizer's name, not the switch.
        sharded = '"dist_muon"' if s.zero else '"muon"'
        off = {"ddp.use_distributed_optimizer": "False", "optimizer.use_distributed_optimizer": "False"}
        return {"optimizer.optimizer": sharded, **off}
    return fields


# ---- the texts


_IMPORTS = """\
import sys
from functools import partial

import torch
import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.core.activations import squared_relu
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec"""

_MAIN = """\
if __name__ == "__main__":
    # Settings behind the command win: train.train_iters=1000, logger.log_interval=10 …
    pretrain(process_config_with_overrides(recipe(), cli_overrides=sys.argv[1:]), forward_step)"""

_RECIPE = '"$HERE/recipe.py"'

_YOURS = """\
Yours: length of the run, learning rate, data, tokenizer and logging. The defaults run as they are, on mock data and
without saving a checkpoint (checkpoint.save, checkpoint.load)."""


def recipe(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    """``recipe.py``: a function that builds the configuration, and the start of the training."""
    yours, planned = recipe_fields(problem, s, settings)
    sections = {path.partition(".")[0] for path in (*yours, *planned)}
    assert sections <= {"model", *_CLASSES}, sections
    notes = [comment(f"Assumed: {note}.") for note in model_arguments(problem).assumptions]
    lines = [*summary(problem, s, hosts_of(problem, settings)), "Written by shardwise for Megatron-Bridge 0.6."]
    head = "\n".join([*map(comment, lines), *notes])
    body = [
        "def recipe() -> ConfigContainer:",
        '    """The configuration of the job."""',
        *_call("model", "MLAModelProvider" if model_facts(problem).has_mla else "GPTModelProvider", yours, planned),
        *_indented(comment(" ".join(_YOURS.split()))),
    ]
    for section, name in _CLASSES.items():
        body += _call(section, name, yours, planned)
    arguments = [f"        {section}={section}," for section in ("model", *_CLASSES)]
    body += ["    return ConfigContainer(", *arguments, "    )"]
    return file_of([head, _IMPORTS, "\n".join(body), _MAIN])


def _call(section: str, name: str, yours: Fields, planned: Fields) -> list[str]:
    """Lines that build one section: the person's fields first where it has both."""
    parts = [{p: v for p, v in fields.items() if p.startswith(f"{section}.")} for fields in (yours, planned)]
    # The plan's word stands where both say something.
    lines = [f"        {p.partition('.')[2]}={v}," for p, v in ({**parts[0], **parts[1]}).items()]
    return [f"    {section} = {name}(", *lines, "    )"] if lines else [f"    {section} = {name}()"]


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _launch_script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    lines = [*summary(problem, s, hosts), "Written by shardwise for Megatron-Bridge 0.6. Run it on every host with "
             "NODE_RANK set, or submit sbatch.sh."]  # fmt: skip
    return file_of(
        [
            "\n".join(["#!/usr/bin/env bash", *map(comment, lines)]),
            "set -euo pipefail",
            'HERE="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"',
            f"{heading('The plan')}\n{exports(problem, s)}",
            f"{heading('Start')}\n{torchrun(hosts, _RECIPE)}",
        ]
    )

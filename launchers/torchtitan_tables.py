"""Facts about torchtitan 0.3 as tables: the models it has configurations for, its options, what is not counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shardwise.costmodel.model import ModelSpec
from shardwise.hardware_profiles.errors import InputError

OPTIONS_FILE = Path(__file__).parent / "options" / "torchtitan-0.3.0.txt"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A configuration that torchtitan ships, and the preset of ours with the same weights."""

    module: str
    config: str
    preset: str
    parameters: int
    layers: int
    compiles_model: bool = True
    """Whether ``--compile.enable`` compiles the model, or its loss only."""


SHIPPED: Final = (
    Shipped("llama3", "llama3_8b", "llama-3.1-8b", 8_030_261_248, 32),
    Shipped("llama3", "llama3_70b", "llama-3.1-70b", 70_553_706_496, 80),
    Shipped("qwen3", "qwen3_0_6b", "qwen3-0.6b", 596_049_920, 28),
    Shipped("qwen3", "qwen3_1_7b", "qwen3-1.7b", 1_720_574_976, 28),
    Shipped("qwen3", "qwen3_14b", "qwen3-14b", 14_768_307_200, 40),
    Shipped("qwen3", "qwen3_32b", "qwen3-32b", 32_762_123_264, 64),
    Shipped("qwen3", "qwen3_30b_a3b", "qwen3-30b-a3b", 30_532_122_624, 48),
    Shipped("deepseek_v3", "deepseek_v3_16b", "deepseek-v2-lite", 15_706_484_224, 27, compiles_model=False),
    Shipped("deepseek_v3", "deepseek_v3_671b", "deepseek-v3", 671_026_404_352, 61, compiles_model=False),
    Shipped("gpt_oss", "gpt_oss_20b", "gpt-oss-20b", 20_914_757_184, 24),
    Shipped("gpt_oss", "gpt_oss_120b", "gpt-oss-120b", 116_829_156_672, 36),
)
"""Configurations of 16-bit pre-training; parameters as torchtitan 0.3.0 itself builds them."""


def shipped_for(model: ModelSpec) -> Shipped:
    """The configuration that builds a model. Raises InputError where torchtitan ships none."""
    for entry in SHIPPED:
        if (entry.parameters, entry.layers) == (model.total_parameters, model.num_layers):
            return entry
    raise InputError(f"{model.name}: the model: torchtitan 0.3 cannot express sizes that it ships no configuration for")


@cache
def known_options() -> Mapping[str, str]:
    """Options of torchtitan 0.3.0 by their names with dashes, and how many values each takes."""
    lines = OPTIONS_FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


SCHEDULES: Final[Mapping[str, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
}

RESHARD: Final[Mapping[int, str]] = {3: "always", 2: "never"}

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "--parallelism.tensor_parallel_degree",
    "sp": "--parallelism.enable_sequence_parallel",
    "cp": "--parallelism.context_parallel_degree",
    "cp_comm": "--parallelism.context_parallel_degree",
    "pp": "--parallelism.pipeline_parallel_degree",
    "vpp": "--parallelism.pipeline_parallel_layers_per_stage",
    "schedule": "--parallelism.pipeline_parallel_schedule",
    "dp": "--parallelism.data_parallel_shard_degree",
    "ep": "--parallelism.expert_parallel_degree",
    "etp": "--parallelism.tensor_parallel_degree",
    "zero": "--parallelism.fsdp_reshard_after_forward",
    "zero_group": "--parallelism.data_parallel_replicate_degree",
    "micro_batch_size": "--parallelism.pipeline_parallel_microbatch_size",
    "num_microbatches": "--training.local_batch_size",
    "recompute": "activation-checkpoint:",
    "tp_overlap": "--compile.enable_async_tensor_parallel",
    "layers_per_stage": "--parallelism.pipeline_parallel_first_stage_less_layers",
}
"""torchtitan's options for the dimensions of a strategy."""

_BACKEND = "the traffic of the partial DTensor path is priced"

UNMODELLED: Final[Mapping[str, str]] = {
    "training.enable-cpu-offload": "parameters, gradients and states are counted on the device",
    "training.dtype": "parameters and states are FP32, computed in the mixed-precision type",
    "parallelism.enable-fsdp-symm-mem": "collectives run at the network's fitted rate",
    "parallelism.pipeline-parallel-schedule-csv": "the named schedule is priced",
    "parallelism.module-fqns-per-model-part": "layers are divided by the weights of the first and last stage",
    "parallelism.context-parallel-load-balancer": "causal work is balanced over the context parallel ranks",
    "parallelism.context-parallel-ptrr-mask-key": "causal work is balanced over the context parallel ranks",
    "parallelism.spmd-backend": _BACKEND,
    "compile.components": "compiled parts are as the runtime profile has them",
    "compile.backend": "compiled parts are as the runtime profile has them",
    "debug.moe-force-load-balance": "tokens are spread over the experts as the workload says",
    "debug.deterministic": "kernels are the runtime profile's",
    "debug.batch-invariant": "kernels are the runtime profile's",
}
"""Options that change time or memory in a way that the cost model does not count, with what it takes instead."""

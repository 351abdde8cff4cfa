"""Megatron-Bridge's configuration fields and the options of Megatron-LM that say the same, as one table.

Both drive Megatron-Core, whose configuration classes have the fields: most are an option's name with underscores. The
writer goes from options to fields, the reader from fields to options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

FIELDS_FILE = Path(__file__).parent / "options" / "megatron-bridge-0.6.2.txt"

DIMENSION_FIELDS: Final[Mapping[str, str]] = {
    "tp": "model.tensor_model_parallel_size",
    "sp": "model.sequence_parallel",
    "cp": "model.context_parallel_size",
    "cp_comm": "model.cp_comm_type",
    "ulysses": "model.hierarchical_context_parallel_sizes",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "schedule": "model.virtual_pipeline_model_parallel_size",
    "dp": "WORLD_SIZE / (tp·cp·pp)",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "zero": "ddp.use_distributed_optimizer / ddp.data_parallel_sharding_strategy",
    "zero_group": "ddp.num_distributed_optimizer_instances",
    "micro_batch_size": "train.micro_batch_size",
    "num_microbatches": "train.global_batch_size / (mbs·dp)",
    "recompute": "model.recompute_granularity",
    "recompute_layers": "model.recompute_num_layers",
    "recompute_per_stage": "model.recompute_num_layers",
    "offload_optimizer": "optimizer.optimizer_offload_fraction",
    "offload_activations": "model.fine_grained_activation_offloading",
    "tp_overlap": "comm_overlap.tp_comm_overlap",
    "dp_overlap": "ddp.overlap_grad_reduce",
    "ep_overlap": "comm_overlap.overlap_moe_expert_parallel_comm",
    "rank_order": "dist.use_tp_pp_dp_mapping",
    "layers_per_stage": "model.pipeline_model_parallel_layout",
}
"""Megatron-Bridge's fields for the dimensions of a strategy."""

_SECTIONS: Final[Mapping[str, str]] = {
    "train": "micro-batch-size global-batch-size train-iters rampup-batch-size step-batch-size-schedule "
    "decrease-batch-size-if-needed",
    "ddp": "use-megatron-fsdp data-parallel-sharding-strategy num-distributed-optimizer-instances "
    "use-distributed-optimizer overlap-grad-reduce overlap-param-gather outer-dp-sharding-strategy fsdp-double-buffer "
    "megatron-fsdp-grad-comm-dtype megatron-fsdp-main-grads-dtype megatron-fsdp-main-params-dtype",
    "optimizer": "optimizer lr min-lr weight-decay clip-grad adam-beta1 adam-beta2 exp-avg-dtype exp-avg-sq-dtype "
    "main-grads-dtype main-params-dtype use-precision-aware-optimizer optimizer-cpu-offload optimizer-offload-fraction "
    "overlap-cpu-optimizer-d2h-h2d overlap-param-gather-with-optimizer-step optimizer-cuda-graph",
    "scheduler": "lr-decay-style lr-warmup-iters",
    "comm_overlap": "tp-comm-overlap overlap-moe-expert-parallel-comm delay-wgrad-compute "
    "defer-embedding-wgrad-compute wgrad-deferral-limit",
    "mixed_precision": "bf16 fp16 fp8-recipe fp4-recipe fp8-param-gather fp4-param-gather first-last-layers-bf16",
    "checkpoint": "ckpt-format",
    "dist": "use-torch-fsdp2 use-tp-pp-dp-mapping use-sharp",
    "rng": "te-rng-tracker",
}
"""Options that stand outside the model's section under their own name; all others are the model's."""

_RENAMED: Final[Mapping[str, str]] = {
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "decoder-first-pipeline-num-layers": "model.num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "model.num_layers_in_last_pipeline_stage",
    "microbatch-group-size-per-virtual-pipeline-stage": "model.microbatch_group_size_per_vp_stage",
    "overlap-p2p-communication-warmup-flush": "model.overlap_p2p_comm_warmup_flush",
    "num-experts": "model.num_moe_experts",
    "norm-epsilon": "model.layernorm_epsilon",
    "apply-layernorm-1p": "model.layernorm_zero_centered_gamma",
    "fp8-format": "mixed_precision.fp8",
    "fp4-format": "mixed_precision.fp4",
    "ddp-bucket-size": "ddp.bucket_size",
    "ddp-num-buckets": "ddp.num_buckets",
    "ddp-pad-buckets-for-high-nccl-busbw": "ddp.pad_buckets_for_high_nccl_busbw",
    "use-nccl-ub": "ddp.nccl_ub",
    "tensor-parallel-num-weight-shards": "model.gtp_weight_remat_size",
    "expert-tensor-parallel-num-weight-shards": "model.expert_gtp_weight_remat_size",
}

_NEGATED: Final[Mapping[str, str]] = {
    "disable-bias-linear": "model.add_bias_linear",
    "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights",
    "no-gradient-accumulation-fusion": "model.gradient_accumulation_fusion",
    "no-masked-softmax-fusion": "model.masked_softmax_fusion",
    "no-bias-swiglu-fusion": "model.bias_activation_fusion",
    "no-bias-dropout-fusion": "model.bias_dropout_fusion",
    "no-rope-fusion": "model.apply_rope_fusion",
    "no-persist-layer-norm": "model.persist_layer_norm",
    "no-pad-vocab-size": "model.should_pad_vocab",
    "no-overlap-p2p-communication": "comm_overlap.overlap_p2p_comm",
    "no-align-grad-reduce": "dist.align_grad_reduce",
    "grad-reduce-in-bf16": "mixed_precision.grad_reduce_in_fp32",
}
"""Options that switch off what a field switches on."""

_ALSO: Final[Mapping[str, str]] = {
    "optimizer.use_distributed_optimizer": "use-distributed-optimizer",
    "optimizer.overlap_param_gather": "overlap-param-gather",
    "dist.use_megatron_fsdp": "use-megatron-fsdp",
    "comm_overlap.overlap_grad_reduce": "overlap-grad-reduce",
    "comm_overlap.overlap_param_gather": "overlap-param-gather",
    "comm_overlap.overlap_param_gather_with_optimizer_step": "overlap-param-gather-with-optimizer-step",
    "comm_overlap.bucket_size": "ddp-bucket-size",
    "model.overlap_p2p_comm": "no-overlap-p2p-communication",
    "model.tp_comm_overlap": "tp-comm-overlap",
    "model.overlap_moe_expert_parallel_comm": "overlap-moe-expert-parallel-comm",
    "model.use_te_rng_tracker": "te-rng-tracker",
    "model.bf16": "bf16",
    "model.fp16": "fp16",
    "model.fp8": "fp8-format",
    "model.fp8_recipe": "fp8-recipe",
    "model.fp4": "fp4-format",
    "ddp.grad_reduce_in_fp32": "grad-reduce-in-bf16",
    "dataset.seq_length": "seq-length",
    "dataset.sequence_length": "seq-length",
    "tokenizer.vocab_size": "vocab-size",
    "tokenizer.tokenizer_type": "tokenizer-type",
    # NeMo 2's trainer says how many there are.
    "nodes.num_nodes": "num-nodes",
    "nodes.devices": "num-gpus",
}
"""Further fields that say what an option says, besides the one that the writer uses."""

SECTIONS: Final = frozenset(
    [
        "model",
        "train",
        "ddp",
        "optimizer",
        "scheduler",
        "dataset",
        "logger",
        "tokenizer",
        "checkpoint",
        "dist",
        "comm_overlap",
        "mixed_precision",
        "rng",
        "peft",
        "validation",
        "rerun_state_machine",
        "profiling",
        "ft",
        "straggler",
        "nvrx_straggler",
        "tensor_inspect",
        "inprocess_restart",
        "env_vars",
        "optimizer_config_override_provider",
    ]
)
"""Sections of a ``ConfigContainer``."""

_PLACES: Final[Mapping[str, str]] = {
    **{o: f"{section}.{o.replace('-', '_')}" for section, names in _SECTIONS.items() for o in names.split()},
    **_RENAMED,
    **_NEGATED,
}
_OPTIONS: Final[Mapping[str, str]] = {**{path: option for option, path in _PLACES.items()}, **_ALSO}

PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mixed": {},
    "with_fp8_delayed_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_mixed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_current_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True,
                                       "first_last_layers_bf16": True},
    "with_fp8_subchannel_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "with_mxfp8_mixed": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "with_nvfp4_mixed": {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True},
}  # fmt: skip
"""What the named mixed-precision recipes set, by the name behind ``bf16_`` or ``fp16_``."""

COMMON: Final[Mapping[str, Any]] = {
    "train.global_batch_size": 32,
    "train.micro_batch_size": 2,
    "dataset.seq_length": 4096,
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
    "ddp.use_distributed_optimizer": True,
    "ddp.data_parallel_sharding_strategy": "optim_grads_params",
    "optimizer.optimizer": "adam",
    "tokenizer.use_tokenizer_vocab_size": True,
    "mixed_precision": "bf16_mixed",
}
"""What ``_pretrain_common()``, which the shipped recipes begin with, sets of all that matters here."""


@cache
def known_fields() -> frozenset[str]:
    """Every field of Megatron-Bridge 0.6.2, with its section."""
    lines = FIELDS_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def path_of(option: str) -> str:
    """The field that says what an option of Megatron-LM (without dashes in front) says."""
    return _PLACES.get(option, f"model.{option.replace('-', '_')}")


def option_of(path: str) -> str:
    """The option of Megatron-LM that says what a field says; the field's own name where there is none."""
    section, _, field = path.partition(".")
    return _OPTIONS.get(path, field.replace("_", "-") if section == "model" else path.replace("_", "-"))


def is_negated(option: str) -> bool:
    """Whether an option switches off what its field switches on."""
    return option in _NEGATED


def precision_fields(name: str) -> dict[str, Any] | None:
    """Fields of ``mixed_precision`` that a named recipe sets, None for an unknown name."""
    match = re.fullmatch(r"(bf16|fp16)_(\w+)", name.replace("-", "_"))
    if match is None or match.group(2) not in PRECISIONS:
        return None
    half = match.group(1)
    return {half: True, "grad_reduce_in_fp32": half == "bf16", **PRECISIONS[match.group(2)]}

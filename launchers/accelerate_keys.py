"""Keys of Accelerate 1.15's YAML, with the options on the command line that have no place in a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TOP: Final = frozenset(
    """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines gpu_ids
    main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config
    deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16 tpu_name tpu_zone
    tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config
    """.split()  # noqa: SIM905
)
_FSDP: Final = frozenset(
    """
    version sharding_strategy reshard_after_forward offload_params min_num_params auto_wrap_policy
    transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params
    cpu_ram_efficient_loading sync_module_states activation_checkpointing activation_checkpointing_offload
    ignored_modules
    """.split()  # noqa: SIM905
)
_PARALLELISM: Final = frozenset(
    """
    dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend sp_seq_length
    sp_seq_length_is_variable sp_attn_implementation
    """.split()  # noqa: SIM905
)
_DEEPSPEED: Final = frozenset(
    """
    zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path offload_param_nvme_path
    gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_config_file
    deepspeed_multinode_launcher deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_moe_layer_cls_names
    """.split()  # noqa: SIM905
)

KEYS: Final = (
    _TOP
    | {f"fsdp_config.fsdp_{name}" for name in _FSDP}
    | {f"parallelism_config.parallelism_config_{name}" for name in _PARALLELISM}
    | {f"deepspeed_config.{name}" for name in _DEEPSPEED}
)
"""Every key, nested ones joined by dots."""

UNMODELLED_KEYS: Final[Mapping[str, str]] = {
    "fsdp_config.fsdp_offload_params": "parameters and optimizer in host memory are not counted",
    "fsdp_config.offload_params": "parameters and optimizer in host memory are not counted",
    "fsdp_config.fsdp_activation_checkpointing_offload": "saved layer inputs in host memory are not counted",
    "deepspeed_config.offload_param_device": "parameters in host memory are not counted",
    "deepspeed_config.deepspeed_config_file": "what that file says is not read: read it as a file of DeepSpeed",
    "dynamo_config.": "compiled kernels are priced as eager ones",
    "use_cpu": "the job is priced on the accelerators",
    "fp8_config.": "the recipe of FP8 is priced as tensor-wise scaling",
}
"""Keys that change time or memory and are not counted, each with what is taken instead."""

NEUTRAL_KEYS: Final = (
    KEYS - {f"parallelism_config.parallelism_config_{n}" for n in _PARALLELISM if not n.startswith("sp_")}
    | {f"fsdp_config.{name}" for name in _FSDP}
    | {"mpirun_config."}
)
"""Keys that change neither, or that shape the answer only where they were asked for."""

UNMODELLED_OPTIONS: Final[Mapping[str, str]] = {
    "fsdp-offload-params": "parameters and optimizer in host memory are not counted",
    "fsdp-activation-checkpointing-offload": "saved layer inputs in host memory are not counted",
    "dynamo-backend": "compiled kernels are priced as eager ones",
    "torch-compile": "compiled kernels are priced as eager ones",
    "use-liger-kernel": "fused kernels are priced as eager ones",
    "offload-param-device": "parameters in host memory are not counted",
    "deepspeed-config-file": "what that file says is not read: read it as a file of DeepSpeed",
}
"""The same for options on the command line."""

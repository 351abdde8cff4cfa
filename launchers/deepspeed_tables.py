"""Facts about DeepSpeed 0.19 as tables: the keys of its settings, its words for ours, what is not counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "tensor_parallel.autotp_size",
    "cp": "sequence_parallel_size",
    "cp_comm": "sequence_parallel_size",
    "ulysses": "sequence_parallel_size",
    "dp": "WORLD_SIZE / (autotp_size·sequence_parallel_size)",
    "pp": "NUM_STAGES of pipeline_settings.py",
    "layers_per_stage": "PARTITION_METHOD of pipeline_settings.py",
    "zero": "zero_optimization.stage",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "num_microbatches": "gradient_accumulation_steps",
    "recompute": "--gradient_checkpointing",
    "offload_optimizer": "zero_optimization.offload_optimizer",
    "dp_overlap": "zero_optimization.overlap_comm",
}
"""DeepSpeed's settings, and the training script's option, for the dimensions of a strategy."""

TOP_KEYS: Final = frozenset(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping prescale_gradients
    gradient_predivide_factor steps_per_print wall_clock_breakdown dump_state memory_breakdown optimizer scheduler fp16
    bf16 amp zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer tensor_parallel
    expert_parallel sequence_parallel_size data_parallel_size activation_checkpointing communication_data_type
    seq_parallel_communication_data_type sparse_gradients flops_profiler comms_logger monitor_config tensorboard wandb
    csv_monitor comet aio checkpoint data_types compile compression_training data_efficiency disable_allgather
    gradient_allreduce_op graph_harvesting hybrid_engine nebula pipeline seed torch_autocast
    use_data_before_expert_parallel_
    dataloader_drop_last timers load_universal_checkpoint curriculum_learning weight_quantization
    """.split()  # noqa: SIM905
)
"""Keys at the top of the settings; DeepSpeed itself takes any other in silence."""

ZERO_KEYS: Final = frozenset(
    """
    allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients
    cpu_offload cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
    gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
    log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear
    model_persistence_threshold module_granularity_threshold offload_optimizer offload_param overlap_comm
    override_module_apply param_persistence_threshold parameter_alignment pipeline_loading_checkpoint
    prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients
    save_muon_momentum_buffer_in_memory stage stage3_allgather_sequential
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold
    stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_prefetch_bucket_size
    stage3_use_all_reduce_for_fetch_params sub_group_size use_all_reduce_for_fetch_params
    use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size zero_quantized_gradients
    zero_quantized_nontrainable_weights zero_quantized_weights
    """.split()  # noqa: SIM905
)
"""Keys of ``zero_optimization``, where DeepSpeed refuses any other."""

PIPELINE_KEYS: Final = frozenset(
    """
    stages partition seed_layers activation_checkpoint_interval pipe_partitioned grad_partitioned use_reentrant
    """.split()  # noqa: SIM905
)
"""Keys of ``pipeline``, where DeepSpeed takes any other in silence."""

READ: Final = frozenset(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization.stage
    zero_optimization.overlap_comm zero_optimization.offload_optimizer tensor_parallel.autotp_size
    pipeline.activation_checkpoint_interval sequence_parallel_size bf16.enabled fp16.enabled optimizer.type
    """.split()  # noqa: SIM905
)

_BUCKETS = "buckets are as the runtime profile has them"
_QUANTIZED = "traffic is priced in 16 bits"

UNMODELLED: Final[Mapping[str, str]] = {
    "zero_optimization.reduce_bucket_size": _BUCKETS,
    "zero_optimization.allgather_bucket_size": _BUCKETS,
    "zero_optimization.stage3_prefetch_bucket_size": _BUCKETS,
    "zero_optimization.stage3_param_persistence_threshold": "every parameter is divided",
    "zero_optimization.stage3_max_live_parameters": "two layers' parameters are gathered at a time",
    "zero_optimization.stage3_max_reuse_distance": "every layer is gathered anew in backward",
    "zero_optimization.offload_param": "parameters are counted on the device",
    "zero_optimization.zero_hpz_partition_size": "secondary shards in a node are not counted",
    "zero_optimization.zero_quantized_weights": _QUANTIZED,
    "zero_optimization.zero_quantized_gradients": _QUANTIZED,
    "zero_optimization.zenflow": "the optimizer waits for every gradient",
    "activation_checkpointing": "saved layer inputs are counted whole on the device",
    "expert_parallel": "experts are not divided",
    "compile": "kernels are the runtime profile's",
    "compression_training": "weights are trained as they are",
    "data_efficiency": "every step has the whole batch and sequence",
    "communication_data_type": "gradients travel as the runtime profile says",
    "torch_autocast": "the precision is that of bf16 or fp16",
    "pipeline.pipe_partitioned": "activations travel between stages whole",
    "pipeline.grad_partitioned": "gradients travel between stages whole",
    "amp": "the precision is that of bf16 or fp16",
}
"""Settings that change time or memory in a way that the cost model does not count, with what it takes instead."""

SCRIPT_OPTIONS: Final[Mapping[str, str]] = dict.fromkeys(
    """
    deepspeed deepspeed-config per-device-train-batch-size gradient-accumulation-steps bf16 fp16 gradient-checkpointing
    max-steps block-size max-seq-length model-max-length learning-rate model-name-or-path config-name tokenizer-name
    dataset-name dataset-config-name output-dir logging-steps save-strategy num-train-epochs warmup-steps weight-decay
    lr-scheduler-type do-train do-eval overwrite-output-dir torch-dtype seed report-to train-file validation-file
    per-device-eval-batch-size eval-strategy save-steps optim attn-implementation low-cpu-mem-usage trust-remote-code
    """.split(),  # noqa: SIM905
    "1",
)
"""Options of Hugging Face's training scripts that are known; each takes a value."""

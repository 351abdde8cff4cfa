"""Facts about Megatron-LM's options, as tables: how its words stand for ours, and which effects are not counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DIMENSION_OPTIONS: Final[Mapping[str, str]] = {
    "tp": "--tensor-model-parallel-size",
    "sp": "--sequence-parallel",
    "cp": "--context-parallel-size",
    "cp_comm": "--cp-comm-type",
    "ulysses": "--hierarchical-context-parallel-sizes",
    "pp": "--pipeline-model-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank",
    "schedule": "--num-virtual-stages-per-pipeline-rank",
    "dp": "WORLD_SIZE / (tp·cp·pp)",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "zero": "--use-distributed-optimizer / --data-parallel-sharding-strategy",
    "zero_group": "--num-distributed-optimizer-instances",
    "micro_batch_size": "--micro-batch-size",
    "num_microbatches": "--global-batch-size / (mbs·dp)",
    "recompute": "--recompute-granularity",
    "recompute_layers": "--recompute-num-layers",
    "recompute_per_stage": "--recompute-num-layers",
    "offload_optimizer": "--optimizer-offload-fraction",
    "offload_activations": "--fine-grained-activation-offloading",
    "tp_overlap": "--tp-comm-overlap",
    "dp_overlap": "--overlap-grad-reduce",
    "ep_overlap": "--overlap-moe-expert-parallel-comm",
    "rank_order": "--use-tp-pp-dp-mapping",
    "layers_per_stage": "--pipeline-model-parallel-layout",
}
"""Megatron's options for the dimensions of a strategy."""

OPTIMIZERS: Final[Mapping[str, str]] = {
    "adam": "adam",
    "sgd": "sgd",
    "muon": "muon",
    "dist_muon": "muon",
    "adaptive_muon": "muon",
}
"""``--optimizer`` in the workload's words."""

_FUSION = "fused kernels are as the runtime profile has them"
_BUCKETS = "buckets are as the runtime profile has them"
_OFFLOAD = "offloaded activations are not counted"
_STATES = "the precision of states is that of the optimizer recipe"
_EP = "how far expert traffic hides is the runtime profile's"
_CAPACITY = "every token goes to its experts"
_RAMP = "the step is priced at the full batch"

UNMODELLED: Final[Mapping[str, str]] = {
    "tensor-parallel-num-weight-shards": "weight shards beyond tp are not counted",
    "expert-tensor-parallel-num-weight-shards": "weight shards beyond etp are not counted",
    "hybrid-context-parallel": "every sequence has the same context parallel degree",
    "max-seqlen-per-dp-cp-rank": "every sequence has the same context parallel degree",
    "microbatch-group-size-per-virtual-pipeline-stage": "interleaving is priced with groups of pp micro-batches",
    "overlap-p2p-communication-warmup-flush": "how far stage traffic hides is the runtime profile's",
    "no-overlap-p2p-communication": "how far stage traffic hides is the runtime profile's",
    "defer-embedding-wgrad-compute": "the output head's weight gradient is in its place",
    "wgrad-deferral-limit": "the output head's weight gradient is in its place",
    "rampup-batch-size": _RAMP,
    "step-batch-size-schedule": _RAMP,
    "decrease-batch-size-if-needed": _RAMP,
    "distribute-saved-activations": "saved layer inputs are counted whole on every tensor rank",
    "overlap-param-gather-with-optimizer-step": "the first gather of parameters waits for the optimizer",
    "delay-wgrad-compute": _EP,
    "overlap-dispatch-backward-with-experts-wgrad": _EP,
    "ep-overlap-early-attn-memory-release": _EP,
    "moe-shared-expert-overlap": _EP,
    "ddp-bucket-size": _BUCKETS,
    "ddp-num-buckets": _BUCKETS,
    "ddp-pad-buckets-for-high-nccl-busbw": _BUCKETS,
    "no-align-grad-reduce": _BUCKETS,
    "moe-expert-capacity-factor": _CAPACITY,
    "moe-pad-expert-input-to-capacity": _CAPACITY,
    "moe-expert-rank-capacity-factor": _CAPACITY,
    "moe-paged-stash": "expert activations are all kept on the device",
    "cpu-offloading-num-layers": _OFFLOAD,
    "activation-offload-fraction": _OFFLOAD,
    "main-grads-dtype": _STATES,
    "main-params-dtype": _STATES,
    "megatron-fsdp-main-grads-dtype": _STATES,
    "megatron-fsdp-main-params-dtype": _STATES,
    "fp8-param-gather": "parameters are gathered in 16 bits",
    "fp4-param-gather": "parameters are gathered in 16 bits",
    "megatron-fsdp-grad-comm-dtype": "gradients travel as the runtime profile says",
    "first-last-layers-bf16": "all layers run in the low precision",
    "attention-backend": "the attention kernel is the runtime profile's",
    "flash-attention-version": "the attention kernel is the runtime profile's",
    "transformer-impl": "kernels are the runtime profile's",
    "no-gradient-accumulation-fusion": _FUSION,
    "no-masked-softmax-fusion": _FUSION,
    "no-bias-swiglu-fusion": _FUSION,
    "no-bias-gelu-fusion": _FUSION,
    "no-bias-dropout-fusion": _FUSION,
    "no-rope-fusion": _FUSION,
    "no-persist-layer-norm": _FUSION,
    "cross-entropy-loss-fusion": _FUSION,
    "outer-dp-sharding-strategy": "replicas of the shards hold them whole",
    "fsdp-double-buffer": "gather buffers are as the runtime profile has them",
    "use-nccl-ub": "collectives run at the network's fitted rate",
    "use-sharp": "collectives run at the network's fitted rate",
    "optimizer-cuda-graph": "the optimizer is launched kernel by kernel",
    "mtp-use-repeated-layer": "every prediction layer has weights of its own",
    "mtp-standalone": "multi-token prediction is counted on the last stage",
}
"""Options that change time or memory in a way that the cost model does not count, with what it takes instead."""

"""A strategy as arguments of Megatron-LM: degrees, layer placement, recomputation, overlap, states and precision."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from shardwise.costmodel.model import AttentionCore
from shardwise.costmodel.problem import LOW_PRECISION, Problem
from shardwise.costmodel.recompute import selected_modules
from shardwise.costmodel.strategy import RANK_ORDERS, Strategy

from .megatron_rules import is_blackwell, layer_split, recompute_per_chunk

Args = list[str]

_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_DISPATCHERS: Mapping[str, Args] = {
    "allgather": ["--moe-token-dispatcher-type", "allgather"],
    "alltoall": ["--moe-token-dispatcher-type", "alltoall"],
    "deepep": ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "deepep"],
    "hybridep": ["--moe-token-dispatcher-type", "flex", "--moe-flex-dispatcher-backend", "hybridep"],
}
_PRECISION: Mapping[str, Args] = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp32": [],
    "fp8": ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"],
    "fp8_block": ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"],
    "mxfp8": ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"],
    "nvfp4": ["--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"],
}


def parallel_arguments(problem: Problem, s: Strategy) -> Args:
    """Degrees of the meshes, the batch, and which layers each pipeline rank holds."""
    args = ["--tensor-model-parallel-size", str(s.tp), "--pipeline-model-parallel-size", str(s.pp)]
    args += ["--context-parallel-size", str(s.cp)]
    args += ["--sequence-parallel"] if s.sp else []
    args += ["--use-tp-pp-dp-mapping"] if s.rank_order == RANK_ORDERS[1] else []
    if s.cp > 1:
        args += ["--cp-comm-type", s.cp_comm]
    if s.cp > 1 and s.cp_comm == "a2a+p2p":
        args += ["--hierarchical-context-parallel-sizes", str(s.ulysses), str(s.cp // s.ulysses)]
    if problem.model.is_moe:
        args += ["--expert-model-parallel-size", str(s.ep), "--expert-tensor-parallel-size", str(s.etp)]
        args += _DISPATCHERS[problem.runtime.moe_dispatcher]
        args += ["--moe-permute-fusion"] if problem.runtime.permute_bytes_factor <= 1.0 else []
    args += ["--micro-batch-size", str(s.micro_batch_size)]
    args += ["--global-batch-size", str(problem.workload.global_batch_size)]
    return args + placement_arguments(problem, s)


def placement_arguments(problem: Problem, s: Strategy) -> Args:
    """The simplest spelling of the layer split: nothing, counts or switches for the ends, or a full layout."""
    split = layer_split(problem, s)
    even = len(set(split)) == 1
    if s.pp == 1 or (even and s.vpp == 1):
        return []
    if even:
        return ["--num-layers-per-virtual-pipeline-stage", str(split[0])]
    if s.vpp == 1 and split[0] and split[-1] and len(set(split[1:-1])) <= 1 and 0 not in split:
        first, last = str(split[0]), str(split[-1])
        return ["--decoder-first-pipeline-num-layers", first, "--decoder-last-pipeline-num-layers", last]
    ends = _ends_that_count(split)
    if ends:
        return [*ends, *(["--num-virtual-stages-per-pipeline-rank", str(s.vpp)] if s.vpp > 1 else [])]
    mtp = len(problem.model.mtp) if problem.workload.train_mtp else 0
    return ["--pipeline-model-parallel-layout", layout_string(split, mtp)]


def _ends_that_count(split: Sequence[int]) -> Args:
    """The switches that take the embedding, the loss or both for a layer, where that gives the split; else nothing."""
    counted = {
        "--account-for-embedding-in-pipeline-split": split[0] + 1 == split[1],
        "--account-for-loss-in-pipeline-split": split[-1] + 1 == split[-2],
    }
    first, last = counted.values()
    padded = [split[0] + first, *split[1:-1], split[-1] + last]
    return [flag for flag, on in counted.items() if on] if len(set(padded)) == 1 else []


def layout_string(split: Sequence[int], mtp_layers: int = 0) -> str:
    """Megatron's layout of virtual stages in model order, e.g. ``Et*3|(t*4|)*2t*3mL``.

    ``E`` is the embedding, ``t`` a layer, ``m`` a multi-token prediction layer, ``L`` the loss, ``|`` a stage's end.
    """
    stages = ["t" * (n == 1) or f"t*{n}" * (n > 1) for n in split]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    ended = [stage + "|" for stage in stages[:-1]]
    runs = [(stage, len(list(group))) for stage, group in itertools.groupby(ended)]
    return "".join(f"({stage})*{count}" if count > 1 else stage for stage, count in runs) + stages[-1]


def recompute_arguments(problem: Problem, s: Strategy) -> Args:
    """Activation recomputation; what ``selective`` recomputes is the runtime profile's word."""
    if s.recompute == "none":
        return []
    if s.recompute == "selective":
        return ["--recompute-granularity", "selective", "--recompute-modules", *_modules(problem)]
    split = layer_split(problem, s)
    count = recompute_per_chunk(problem, s, split)
    assert count is not None, "rule recompute-one-number"
    if count >= max(split):
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    return ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", str(count)]


def _modules(problem: Problem) -> Args:
    """The modules by name, without those that the model has not: Megatron refuses them."""
    latent = any(k.mixer and k.mixer.kind == "mla" for k in problem.model.kinds)
    missing = {*([] if problem.model.is_moe else ["moe_act"]), *([] if latent else ["mla_up_proj"])}
    return [m for m in selected_modules(problem) or ("core_attn",) if m not in missing]


def state_arguments(problem: Problem, s: Strategy) -> Args:
    """Sharding of states, overlap of their traffic, optimizer, and where its states live."""
    args = ["--use-distributed-optimizer"] if s.zero else []
    if s.zero >= 2:
        args += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _SHARDING[s.zero]]
        args += ["--ckpt-format", "fsdp_dtensor", "--no-gradient-accumulation-fusion"]
    if s.zero_group and s.zero_group < s.dp * s.cp:
        args += ["--num-distributed-optimizer-instances", str(s.dp * s.cp // s.zero_group)]
    if s.dp_overlap:
        args += ["--overlap-grad-reduce", *(["--overlap-param-gather"] if s.zero else [])]
    args += ["--tp-comm-overlap"] if s.tp_overlap else []
    args += ["--overlap-moe-expert-parallel-comm"] if s.ep_overlap else []
    if s.offload_activations:
        args += ["--fine-grained-activation-offloading", "--offload-modules", *offload_modules(problem)]
    return args + _optimizer(problem, s)


def offload_modules(problem: Problem) -> Args:
    """Megatron's modules whose inputs activation offload moves to the host."""
    attention = any(k.mixer is not None and isinstance(k.mixer.core, AttentionCore) for k in problem.model.kinds)
    return [*(["core_attn", "attn_proj"] if attention else []), *(["expert_fc1", "moe_act"] * problem.model.is_moe)]


def _optimizer(problem: Problem, s: Strategy) -> Args:
    name = problem.workload.optimizer
    args = ["--optimizer", "adam" if name.startswith("adam") else name]
    moment = {"adam_bf16_moments": "bf16", "adam_8bit": "fp8"}.get(name)
    if moment or s.offload_optimizer:
        args.append("--use-precision-aware-optimizer")
    if moment:
        args += ["--exp-avg-dtype", moment, "--exp-avg-sq-dtype", moment]
    if s.offload_optimizer:
        args += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", f"{s.offload_optimizer:g}"]
        args.append("--overlap-cpu-optimizer-d2h-h2d")
    return args


def precision_arguments(problem: Problem) -> Args:
    """Precision of matrix multiplications and of gradients on the wire, and the vocabulary's padding."""
    dtype, runtime = problem.workload.dtype, problem.runtime
    args = list(_PRECISION[dtype])
    if runtime.grad_comm_bytes <= 2.0 and dtype not in ("fp16", "fp32"):
        args.append("--grad-reduce-in-bf16")
    # The router pads each expert's tokens for scaled formats; with all-gather the experts pad them themselves.
    if dtype in LOW_PRECISION and problem.model.is_moe and runtime.moe_dispatcher != "allgather":
        args.append("--moe-router-padding-for-quantization")
    if runtime.vocab_multiple > 1:
        args += ["--make-vocab-size-divisible-by", str(runtime.vocab_multiple)]
    return args if runtime.vocab_multiple > 1 else [*args, "--no-pad-vocab-size"]


def graph_arguments(problem: Problem, s: Strategy) -> Args:
    """CUDA graphs of the attention, where the runtime profile has them and recomputation allows."""
    if not problem.runtime.cuda_graphs or s.recompute == "full":
        return []
    return ["--cuda-graph-impl", "transformer_engine", "--cuda-graph-modules", "attn", "--te-rng-tracker"]


def environment(problem: Problem, s: Strategy) -> dict[str, str | None]:
    """Environment variables to export, by name; None means that the variable must not be set."""
    # One device connection keeps a collective behind the GEMM it must follow, which NVIDIA devices with FP4 units
    # (Blackwell) no longer need; FSDP and the experts' overlap want several.
    many = s.ep_overlap or is_blackwell(problem)
    connections = None if s.zero >= 2 else "32" if many else "1"
    return {
        "CUDA_DEVICE_MAX_CONNECTIONS": connections,
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        # Transformer Engine from 2.10 on moves weights, too, unless it is told to offload as before.
        **({"NVTE_CPU_OFFLOAD_V1": "1"} if s.offload_activations else {}),
    }

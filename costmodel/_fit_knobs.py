"""The figures that are fitted to measured runs, each with the bounds that physics or the framework's code allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Knob:
    """One shared figure. ``match``: patterns of runtime, accelerator or link technology names.

    ``field``: a runtime field; ``sustained.DTYPE+DTYPE`` or ``attention.KERNEL`` (its sustained share) of an
    accelerator; ``efficiency`` (all kinds but p2p) or ``efficiency.p2p`` of a link, multiplying its shares.
    """

    name: str
    target: Literal["runtime", "accelerator", "network"]
    match: tuple[str, ...]
    field: str
    low: float
    high: float


def _device(name: str, match: tuple[str, ...], field: str, low: float, high: float) -> Knob:
    return Knob(f"{name} {field}", "accelerator", match, field, low, high)


def _runtime(name: str, match: tuple[str, ...], field: str, low: float, high: float) -> Knob:
    return Knob(f"{name} {field}", "runtime", match, field, low, high)


_A100 = ("A100-*", "A800-*")
_H100 = ("H100-SXM5-80GB", "H200-SXM", "H800-SXM")
_H500 = ("H100-SXM5-96GB-500W",)
_B200 = ("B200-SXM", "GB200")
_B300 = ("GB300",)
_B300_AIR = ("B300-SXM",)
_V100 = ("V100-*",)

_OLD = ("megatron-2021", "megatron-2022")
_MGDS = ("megatron-deepspeed", "megatron-deepspeed-2022", "megatron-deepspeed-bf16")
_ON_V100 = ("megatron-2020", "oneflow", "megatron-deepspeed-v100")
_HAG = ("hagemann*",)
_NEMO = ("nemo-*", "mlperf-nemo")
_BRIDGE = ("megatron-bridge*",)
_MIDDLE = ("megatron-bridge-26.02*", "megatron-bridge-26.04*")
_EARLY = ("megatron-bridge", "megatron-bridge-25.*", *_MIDDLE)
_LATE = ("megatron-bridge-26.06*", "megatron-bridge-26.08")
_FOUNDRY = ("llm-foundry-*",)
_TITAN = ("torchtitan", "pytorch-fsdp")

KNOBS: tuple[Knob, ...] = (
    # How much of the isolated GEMM speed is left in long training: clocks under power and heat.
    _device("A100", _A100, "sustained.bf16+fp16", 0.7, 1.0),
    _device("H100", _H100, "sustained.bf16", 0.65, 1.0),
    _device("H100", _H100, "sustained.fp8", 0.6, 1.0),
    _device("H100 500W", _H500, "sustained.bf16", 0.45, 1.0),
    _device("H100 500W", _H500, "sustained.fp8", 0.45, 1.0),
    _device("B200", _B200, "sustained.bf16", 0.6, 0.82),
    _device("B200", _B200, "sustained.fp8", 0.5, 1.0),
    _device("B200", _B200, "sustained.mxfp8", 0.5, 1.0),
    _device("B200", _B200, "sustained.nvfp4", 0.4, 1.0),
    _device("B300", _B300, "sustained.bf16", 0.6, 1.0),
    _device("B300", _B300, "sustained.fp8", 0.5, 1.0),
    _device("B300", _B300, "sustained.mxfp8", 0.5, 1.0),
    _device("B300", _B300, "sustained.nvfp4", 0.4, 1.0),
    _device("B300 1.1 kW", _B300_AIR, "sustained.bf16", 0.5, 1.0),
    _device("B300 1.1 kW", _B300_AIR, "sustained.mxfp8", 0.4, 1.0),
    _device("V100", _V100, "sustained.fp16", 0.5, 1.0),
    # Attention kernels.
    _device("A100", _A100, "attention.fa1", 0.5, 1.2),
    _device("A100", _A100, "attention.fa2", 0.5, 1.2),
    _device("H100", (*_H100, *_H500), "attention.cudnn", 0.5, 1.0),
    _device("H100", (*_H100, *_H500), "attention.fa2", 0.5, 1.1),
    _device("H100", (*_H100, *_H500), "attention.fa1", 0.5, 1.1),
    _device("B200", (*_B200, *_B300, *_B300_AIR), "attention.cudnn", 0.4, 1.0),
    # Links of sites whose rate is far from the micro-benchmarks of their technology.
    Knob("omni-path efficiency", "network", ("omni-path",), "efficiency", 0.4, 3.0),
    Knob("omni-path efficiency.p2p", "network", ("omni-path",), "efficiency.p2p", 0.4, 2.0),
    Knob("ib-hdr-recalled efficiency", "network", ("ib-hdr-recalled",), "efficiency", 0.5, 3.0),
    Knob("ib-hdr-recalled efficiency.p2p", "network", ("ib-hdr-recalled",), "efficiency.p2p", 0.7, 1.14),
    # Frameworks.
    _runtime("megatron 2021-22", _OLD, "elementwise_bytes_factor", 0.5, 3.5),
    _runtime("megatron-deepspeed", _MGDS, "host_s_per_layer", 2e-4, 2.5e-3),
    _runtime("megatron-deepspeed", _MGDS, "host_s_per_tp_rank", 0.0, 1e-3),
    _runtime("megatron-deepspeed", _MGDS, "elementwise_bytes_factor", 0.5, 3.5),
    _runtime("megatron-deepspeed", _MGDS, "loss_bytes_per_logit", 8.0, 60.0),
    _runtime("megatron-deepspeed", _MGDS, "fixed_s_per_step", 0.0, 0.3),
    _runtime("megatron-deepspeed", _MGDS, "host_s_per_microbatch", 0.0, 0.02),
    _runtime("hagemann", _HAG, "host_s_per_layer", 2e-4, 6e-3),
    _runtime("hagemann", _HAG, "host_s_per_tp_rank", 0.0, 2e-3),
    _runtime("hagemann", ("hagemann",), "elementwise_bytes_factor", 0.8, 4.0),
    _runtime("hagemann eager norm", ("hagemann-fa1", "hagemann-fused"), "elementwise_bytes_factor", 1.0, 6.0),
    _runtime("hagemann fa2", ("hagemann-fa2",), "elementwise_bytes_factor", 1.0, 6.0),
    _runtime("hagemann torch", ("hagemann-torch",), "elementwise_bytes_factor", 1.0, 6.0),
    _runtime("hagemann", _HAG, "loss_bytes_per_logit", 4.0, 60.0),
    _runtime("hagemann", _HAG, "host_s_per_microbatch", 0.0, 0.02),
    _runtime("hagemann", _HAG, "pp_hidden", 0.0, 1.0),
    _runtime("megatron 2021-22", (*_OLD, *_MGDS), "unfused_passes_factor", 0.3, 1.3),
    _runtime("megatron v100", _ON_V100, "unfused_passes_factor", 0.2, 1.3),
    _runtime("hagemann fused", ("hagemann-fused",), "unfused_passes_factor", 0.3, 2.0),
    _runtime("hagemann torch", ("hagemann-torch",), "unfused_passes_factor", 0.5, 4.0),
    _runtime("zero-bubble", ("zero-bubble-*",), "unfused_passes_factor", 0.3, 1.3),
    _runtime("zero-bubble", ("zero-bubble-*",), "elementwise_bytes_factor", 0.8, 3.0),
    _runtime("nemo", _NEMO, "host_s_per_layer", 1e-4, 1.5e-3),
    _runtime("nemo", ("nemo-*",), "fixed_s_per_step", 0.0, 0.5),
    _runtime("nemo", (*_NEMO, *_BRIDGE), "elementwise_bytes_factor", 0.6, 2.5),
    _runtime("nemo", _NEMO, "loss_bytes_per_logit", 8.0, 28.0),
    _runtime("nemo", ("nemo-*",), "tp_hidden", 0.2, 0.98),
    _runtime("nemo", ("nemo-*",), "host_s_per_moe_layer", 3e-4, 8e-3),
    _runtime("bridge", _BRIDGE, "host_s_per_layer", 1e-4, 1.5e-3),
    _runtime("bridge", _BRIDGE, "fixed_s_per_step", 0.0, 0.5),
    _runtime("bridge", _BRIDGE, "tp_hidden", 0.2, 0.98),
    _runtime("nemo", _NEMO, "grouped_gemm_scale", 0.5, 1.4),
    _runtime("bridge 25.x", ("megatron-bridge-25.*",), "host_s_per_moe_layer", 3e-4, 8e-3),
    _runtime("bridge 26.02-04", _MIDDLE, "host_s_per_moe_layer", 3e-4, 8e-3),
    _runtime("bridge 26.06-08", _LATE, "host_s_per_moe_layer", 1e-4, 4e-3),
    _runtime("bridge 25.x-26.04", _EARLY, "grouped_gemm_scale", 0.5, 1.4),
    _runtime("bridge 26.06-08", _LATE, "grouped_gemm_scale", 0.5, 1.3),
    _runtime("bridge 25.x-26.04", _EARLY, "permute_bytes_factor", 0.5, 4.0),
    _runtime("bridge 26.06-08", _LATE, "permute_bytes_factor", 0.5, 4.0),
    _runtime("bridge", _BRIDGE, "ep_hidden", 0.0, 1.0),
    _runtime("dgxc 25.02.02", ("nemo-dgxc-25.02.02",), "gemm_scale", 0.9, 1.12),
    _runtime("dgxc 25.04.02", ("nemo-dgxc-25.04.02",), "gemm_scale", 0.9, 1.12),
    _runtime("dgxc 25.05.05", ("nemo-dgxc-25.05.05",), "gemm_scale", 0.9, 1.12),
    _runtime("jax", ("jax",), "elementwise_bytes_factor", 0.6, 3.0),
    _runtime("jax", ("jax",), "dp_hidden", 0.5, 1.0),
    _runtime("oneflow", ("oneflow",), "gemm_scale", 0.9, 1.3),
    _runtime("megatron 2020", ("megatron-2020", "oneflow"), "elementwise_bytes_factor", 0.5, 4.0),
    _runtime("megatron v100", ("megatron-deepspeed-v100",), "elementwise_bytes_factor", 0.5, 5.0),
    _runtime("llm-foundry", _FOUNDRY, "host_s_per_layer", 1e-4, 2e-3),
    _runtime("llm-foundry", _FOUNDRY, "elementwise_bytes_factor", 0.8, 4.0),
    _runtime("llm-foundry", _FOUNDRY, "loss_bytes_per_logit", 4.0, 60.0),
    _runtime("llm-foundry", _FOUNDRY, "fixed_s_per_step", 0.0, 0.3),
    _runtime("llm-foundry", _FOUNDRY, "dp_hidden", 0.3, 1.0),
    _runtime("torchtitan", _TITAN, "elementwise_bytes_factor", 0.6, 2.5),
    _runtime("torchtitan", _TITAN, "loss_bytes_per_logit", 8.0, 60.0),
    _runtime("torchtitan", _TITAN, "fixed_s_per_step", 0.0, 0.3),
    _runtime("torchtitan", _TITAN, "tp_hidden", 0.0, 0.95),
)

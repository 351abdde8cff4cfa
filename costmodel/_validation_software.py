"""Which runtime profile a measured run is predicted with: by its software and by what its notes say of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardwise.hardware_profiles.accelerator import Accelerator

from ._nearest_runtime import nearest_runtime, runs_on
from .problem import nearest_kernel
from .runtime import Runtime, list_runtimes, load_runtime


@dataclass(frozen=True, slots=True)
class Choice:
    """A profile for the rows whose software, notes, title, device and dtype match the patterns (empty: any)."""

    runtime: str
    software: str = ""
    notes: str = ""
    title: str = ""
    gpu: str = ""
    dtype: str = ""
    why: str = ""
    """Recorded as an assumption unless empty."""


CHOICES: tuple[Choice, ...] = (
    Choice("jax", notes=r"^JAX |MaxText|Paxml"),
    Choice("deepspeed-zero-v100", gpu="V100", notes=r"HF Trainer \+ DeepSpeed"),
    Choice("deepspeed-zero", notes=r"DeepSpeed zero\d|HF MoE loop"),
    Choice("deepspeed-zero-2021", software="megatron-2021", notes=r"DeepSpeed ZeRO-3"),
    Choice("megatron-deepspeed-v100", software="megatron-deepspeed", gpu="V100"),
    Choice("megatron-deepspeed-bf16", software="megatron-deepspeed", dtype="bf16", notes=r"fp32 grad accumulation"),
    Choice("megatron-deepspeed-2022", software="megatron-deepspeed", title="BigScience"),
    Choice("llm-foundry-fsdp-pure", software="llm-foundry-fsdp", notes=r"MP mode PURE"),
    *(
        Choice("megatron-bridge-26.04", software=release, gpu="H100", why="recipes for H100 stay with DeepEP, as 26.04")
        for release in ("megatron-bridge-26.06", "megatron-bridge-26.06.01", "megatron-bridge-26.08")
    ),
    Choice("torchtitan-2025", software="torchtitan", gpu="B200", why="B200 needs PyTorch 2.7 or later"),
    Choice("torchtitan-2025", software="torchtitan", gpu="MI300X", why="its float8 on MI300X is of 2025"),
    Choice("torchtitan-2025", software="torchtitan", title="Trainy"),
    Choice("hagemann", title="Efficient Parallelization Layouts", notes=r"flash_attention2 \+ RMS"),
    Choice("hagemann-fa2", title="Efficient Parallelization Layouts", notes=r"kernel: flash_attention2;"),
    Choice("hagemann-fa1", title="Efficient Parallelization Layouts", notes=r"kernel: flash_attention(v1|;)"),
    Choice("hagemann-fused", title="Efficient Parallelization Layouts", notes=r"kernel: fused"),
    Choice("hagemann-torch", title="Efficient Parallelization Layouts", notes=r"kernel: torch"),
    Choice("megatron-deepspeed", title="vTrain"),
    Choice("oneflow", notes=r"^(oneflow|OneFlow);"),
    Choice("megatron-2021", title="Megatron-LM README weak scaling, A100"),
    Choice("megatron-core", title="Megatron-LM README"),
)
"""First match wins. A software that names a shipped profile and matches no row here takes that profile."""

REFINEMENTS: tuple[tuple[str, str, Any], ...] = (
    (r"HybridEP", "moe_dispatcher", "hybridep"),
    (r"DeepEP", "moe_dispatcher", "deepep"),
    (r"all-to-all dispatch", "moe_dispatcher", "alltoall"),
    (r"CUDA graphs?(?! off)", "cuda_graphs", True),
    (r"norm\+act recompute|layernorm\+moe_act|core_attn\+layernorm", "selective_recompute", "norms_and_activations"),
    (r"^zb-2p", "zb_pending", 2.0),
    (r"backend unfused|transformer-impl local", "attention_kernel", "unfused"),
    (r"attention backend flash|kernel: flash_attention2", "attention_kernel", "fa2"),
    (r"kernel: flash_attention(v1|;)", "attention_kernel", "fa1"),
    (r"kernel: (torch|fused)", "attention_kernel", "unfused"),
    (r"cross-entropy fusion", "loss_bytes_per_logit", 10.0),
    (r"rowwise", "gemm_scale", 0.62),
)
"""What a row's notes say about its own run overrides the profile's field."""


def row_runtime(
    row: Mapping[str, Any], accelerator: Accelerator, notes: list[str], struck: Collection[str] = ()
) -> Runtime:
    """The runtime profile of a row; assumptions are appended to ``notes``.

    Profiles in ``struck`` are not considered: the row is then predicted as one of a source never seen.
    """
    name, own = _chosen(row, accelerator, notes, struck)
    text = str(row["parallel"].get("notes") or "")
    updates = {field: value for pattern, field, value in REFINEMENTS if re.search(pattern, text)}
    if not own:
        updates["measured"] = False
    runtime = _refined(name, tuple(updates.items()))
    kernel = nearest_kernel(runtime.attention_kernel, accelerator)
    if kernel != runtime.attention_kernel:
        notes.append(f"attention kernel {kernel}: {accelerator.name} has no figures for {runtime.attention_kernel}")
        runtime = _refined(name, tuple({**updates, "attention_kernel": kernel}.items()))
    return runtime


@lru_cache(maxsize=512)
def _refined(name: str, updates: tuple[tuple[str, Any], ...]) -> Runtime:
    runtime = load_runtime(name)
    changed = {field: value for field, value in updates if getattr(runtime, field) != value}
    return runtime.model_copy(update=changed) if changed else runtime


def _chosen(
    row: Mapping[str, Any], accelerator: Accelerator, notes: list[str], struck: Collection[str]
) -> tuple[str, bool]:
    """Name of the profile, and whether it is the software's own rather than the nearest."""
    software, parallel = row.get("software"), row["parallel"]
    for choice in CHOICES:
        if choice.runtime not in struck and _matches(choice, row):
            if choice.why:
                notes.append(f"runtime {choice.runtime}: {choice.why}")
            return choice.runtime, True
    known = isinstance(software, str) and software in _known()
    if known and software not in struck and runs_on(str(software), accelerator):
        return str(software), True
    name = nearest_runtime(
        software if isinstance(software, str) else None,
        accelerator,
        parallel.get("dtype"),
        sharded=bool(parallel.get("fsdp")) or parallel.get("zero_stage") == 3,
        struck=struck,
    )
    notes.append(f"{_why_nearest(software, known, accelerator)}: runtime {name}, the nearest")
    return name, False


def _why_nearest(software: Any, known: bool, accelerator: Accelerator) -> str:
    if software is None:
        return "software is not stated"
    if known and not runs_on(str(software), accelerator):
        return f"software = {software!r} cannot be: it knows no {accelerator.name}"
    return f"software = {software!r} has no profile"


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(list_runtimes())


def _title(row: Mapping[str, Any]) -> str:
    source = row.get("source")
    return str(source.get("title") or "") if isinstance(source, Mapping) else ""


def _matches(choice: Choice, row: Mapping[str, Any]) -> bool:
    parallel = row["parallel"]
    return (
        (not choice.software or choice.software == row.get("software"))
        and (not choice.notes or re.search(choice.notes, str(parallel.get("notes") or "")) is not None)
        and (not choice.title or choice.title in _title(row))
        and (not choice.gpu or choice.gpu in str(row["hardware"].get("gpu") or ""))
        and (not choice.dtype or choice.dtype == parallel.get("dtype"))
    )

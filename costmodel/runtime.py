"""The runtime profile: how a framework release executes. Hardware constants stay hardware; these stay framework."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.text_files import is_there
from shardwise.hardware_profiles.yaml_files import first_problem, read_mapping

Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0, lt=1e12)]

_FOLDER = Path(__file__).parent / "runtimes"


RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]
"""Modules of a layer that Megatron-Core recomputes one by one."""


class Runtime(BaseModel):
    """How one framework release executes a step. Times in seconds, sizes in bytes; shares from 0 to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str
    launcher: str
    """The launcher module that writes configs for it."""
    measured: bool
    """Whether published runs of this release stand behind the figures; if not, intervals are wider."""

    # Host
    host_s_per_layer: NonNegative
    """Host time to launch one dense layer's kernels, one pass (forward, recomputed forward, or backward)."""
    host_s_per_moe_layer: NonNegative
    """The same for a mixture-of-experts layer, dispatcher included."""
    moe_sync_s: NonNegative = 0.0
    """Added per mixture-of-experts layer and pass where the host waits for the device's token counts before it can
    launch the experts: every dispatcher but HybridEP, which leaves the counts on the device."""
    host_s_per_tp_rank: NonNegative = 0.0
    """Added per layer and pass when tp > 1: launch of the collectives."""
    cuda_graphs: bool = False
    """Graphs remove the host time of dense layers."""
    fixed_s_per_step: NonNegative = 0.0
    """Data loading, logging, gradient norm, optimizer launch: per step, whatever the layout."""
    host_s_per_microbatch: NonNegative = 0.0
    """Per micro-batch and stage: schedule bookkeeping, p2p launch."""

    # Kernels
    attention_kernel: Literal["unfused", "fa1", "fa2", "fa3", "cudnn", "vendor"]
    attention_causal_skip: bool = True
    """Whether the kernel leaves out the masked half."""
    unfused_passes_factor: NonNegative = 1.0
    """Passes over the scores by unfused attention, over those of the device's law (fused scale, mask and softmax)."""
    elementwise_bytes_factor: NonNegative = 1.0
    """Bytes moved by norms, residuals, activations and rotary, over those of fully fused kernels."""
    loss_bytes_per_logit: NonNegative
    """Memory traffic of the loss per logit, forward and backward together."""
    logit_memory_bytes: NonNegative
    """Memory per logit held at the loss: 16-bit logits, an FP32 copy, its gradient, as the framework keeps them."""
    gemm_scale: NonNegative = 1.0
    """Rate of this framework's linear layers over the device's sustained GEMM law."""

    # Precision and states
    grad_comm_bytes: NonNegative
    """Bytes per gradient element on the wire."""
    grad_memory_bytes: NonNegative
    """Bytes per gradient element held between micro-batches."""
    param_comm_bytes: NonNegative = 2.0
    """Bytes per parameter element gathered by ZeRO."""
    master_weights: bool = True
    """An FP32 copy of the parameters among the optimizer states (4 bytes)."""
    default_zero: int = Field(ge=0, le=3)
    default_sp: bool
    default_recompute: Literal["none", "selective", "full"]
    default_tp_overlap: bool
    default_dp_overlap: bool
    default_ep_overlap: bool = False
    default_schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"] = "1f1b"
    vocab_multiple: int = Field(default=128, ge=1)
    """The vocabulary is padded to a multiple of this times tp; 1 leaves it alone."""

    # Recomputation
    selective_recompute: Literal["attention_core", "every_other_op", "norms_and_activations"] = "attention_core"
    """What ``selective`` means in this framework."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """Megatron-Core's modules that a launch file names for ``selective``; empty for what the meaning names."""

    # Overlap
    tp_hidden: Share
    """Share of TP traffic hidden under GEMMs when ``tp_overlap`` is on."""
    dp_hidden: Share
    """Share of the backward (forward for parameters) that can hide DP traffic when ``dp_overlap`` is on."""
    cp_hidden: Share = 0.9
    pp_hidden: Share = 0.0
    """Share of steady-state p2p hidden under compute."""
    zb_pending: float = Field(default=1.0, ge=1.0, le=2.0)
    """Micro-batches that zb-h1 keeps in flight, over the pipeline degree: at 2 (``2p - 1``) no bubble is left, the
    schedule that Qi et al. (arXiv 2401.10241, table 1) call ZB-H2 or ZB-2p."""
    pp_scatter_gather: Literal["none", "forward", "both"] = "none"
    """The passes in which TP ranks, without sequence parallelism, send slices over a stage boundary that the receiving
    ranks gather, rather than each the whole."""
    ep_hidden: Share = 0.0
    """Share of EP all-to-all hidden when ``ep_overlap`` is on."""
    overlap_slowdown: NonNegative = 0.1
    """Seconds of compute lost per second of traffic hidden under it (SMs and bandwidth shared)."""

    # Mixture of experts
    moe_dispatcher: Literal["allgather", "alltoall", "deepep", "hybridep"] = "alltoall"
    dispatch_bytes: NonNegative = 2.0
    """Bytes per element dispatched to experts (1 for FP8 dispatch)."""
    combine_bytes: NonNegative = 2.0
    grouped_gemm_scale: NonNegative = 1.0
    """Rate of grouped expert GEMMs over the device's GEMM law at the same shape."""
    biased_expert_passes: NonNegative = 8.0
    """Traffic of the experts' activation over a fused one's, where experts have biases."""
    permute_bytes_factor: NonNegative = 1.0
    """Passes over the routed tokens by permutation, its reverse and the weighting, over a fused implementation."""

    # Memory
    context_bytes: NonNegative
    """Driver context, libraries and workspaces."""
    allocator_workspace_bytes: NonNegative = 0.0
    """Of these, what the framework's allocator hands out: an allocator peak counts it."""
    communicator_bytes: NonNegative
    """Buffers per communicator a rank belongs to."""
    fragmentation: NonNegative
    """Share of the dynamic part of memory lost to the allocator."""
    activation_scale: NonNegative = 1.0
    """Saved activation bytes over those counted operator by operator."""
    param_memory_bytes: NonNegative = 2.0
    """Bytes per parameter of the copy that computes (0 where the only copy is the FP32 master, as in FSDP)."""
    fsdp: bool = False
    """FSDP's habits: ZeRO 2 reshards after each backward, and HSDP reduces across replicas after every micro-batch."""
    sp_regather: bool = True
    """Whether sequence parallelism keeps only its shard of a column-split layer's input and gathers it again in
    backward (Megatron-LM), or keeps the gathered input (DTensor)."""
    optimizer_grad_bytes: NonNegative = 0.0
    """Bytes per gradient element of a copy that the optimizer keeps, sharded like its states."""
    loss_parallel: bool = True
    """Whether logits stay split over TP for the loss; if not, every TP rank holds and processes all of them."""
    dropout: bool = False
    """Whether dropout masks (one byte per element) are kept for backward."""

    sources: dict[str, str] = Field(default_factory=dict)
    """Where a figure comes from, by field: ``published``, ``fitted``, ``measured``, ``assumed`` and a sentence."""


def list_runtimes() -> list[str]:
    """Names of the shipped runtime profiles, sorted."""
    return sorted(p.stem for p in _FOLDER.glob("*.yaml"))


def load_runtime(name_or_path: str | Path) -> Runtime:
    """A runtime profile by shipped name or YAML file.

    A profile may name another under ``extends`` and give only what differs.

    Raises:
        UnknownNameError: no such profile (the nearest name is offered).
        InputError: the file cannot be read or a key has a wrong value.
    """
    text = str(name_or_path)
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or is_there(path):
        return _build(path)
    if text not in list_runtimes():
        near = difflib.get_close_matches(text, list_runtimes(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"runtime {text!r} is not known: expected one of {', '.join(list_runtimes())}{hint}")
    return _shipped(text)


@cache
def _shipped(name: str) -> Runtime:
    return _build(_FOLDER / f"{name}.yaml")


def _build(path: Path) -> Runtime:
    try:
        return Runtime.model_validate(_merged(path, depth=0))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, Runtime)}") from None


def _merged(path: Path, depth: int) -> dict[str, Any]:
    data = read_mapping(path, "a runtime profile")
    base = data.pop("extends", None)
    if base is None:
        return data
    if depth > 8:
        raise InputError(f"{path}: extends: profiles extend each other in a circle")
    parent_path = path.parent / f"{base}.yaml"
    if not is_there(parent_path):
        parent_path = _FOLDER / f"{base}.yaml"
    if not is_there(parent_path):
        raise InputError(f"{path}: extends = {base!r}: expected the name of a runtime profile")
    parent = _merged(parent_path, depth + 1)
    sources = {**parent.get("sources", {}), **data.get("sources", {})}
    return {**parent, **data, "sources": sources}

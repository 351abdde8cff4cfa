"""A planned layout as a row of a measured-runs file whose measurements are still to come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .model import AttentionCore, ModelSpec, Moe
from .presets import list_presets, load_preset
from .problem import Problem
from .strategy import Strategy

ALLOCATOR_PEAK = "allocator peak"
"""What ``peak_memory_gb`` of such a row will be: the framework's own word on its allocator, in units of 10^9 bytes."""


def planned_row(problem: Problem, strategy: Strategy, row_id: str, group: str, title: str) -> dict[str, Any]:
    """The row that predicts exactly what ``estimate(problem, strategy)`` does; its measurements are null.

    ``parallel.strategy`` holds the whole strategy, ``hardware.system`` the cluster's name and ``model.preset`` or
    ``model.hf_config`` the model, beside the plain keys that any reader of such files knows.
    """
    return {
        "id": row_id,
        "group": group,
        "source": {"title": title},
        "model": _model(problem),
        "hardware": _hardware(problem),
        "parallel": _parallel(problem, strategy),
        "measured": {"step_time_s": None, "peak_memory_gb": None, "oom": None},
        "step_time_s": None,
        "software": problem.runtime.name,
        "memory_kind": ALLOCATOR_PEAK,
        "remark": "peak memory of the fullest rank in the log",
        "confidence": "measured",
        "suspect": None,
        "unstated": [],
    }


def _hardware(problem: Problem) -> dict[str, Any]:
    cluster = problem.cluster
    return {
        "gpu": cluster.accelerator.name,
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": cluster.node_size,
        "system": cluster.name,
    }


def _parallel(problem: Problem, s: Strategy) -> dict[str, Any]:
    work = problem.workload
    return {
        "tp": s.tp, "sequence_parallel": s.sp, "cp": s.cp, "pp": s.pp, "vpp": s.vpp, "dp": s.dp, "ep": s.ep,
        "etp": s.etp, "zero_stage": s.zero, "micro_batch_size": s.micro_batch_size,
        "global_batch_size_seqs": work.global_batch_size, "recompute": s.recompute, "dtype": work.dtype,
        "schedule": s.schedule if s.pp > 1 else None, "optimizer": work.optimizer,
        "expert_imbalance": work.expert_imbalance, "train_mtp": work.train_mtp, "strategy": s.as_dict(),
    }  # fmt: skip


def _model(problem: Problem) -> dict[str, Any]:
    model = problem.model
    out: dict[str, Any] = {
        "name": model.name, "num_layers": model.num_layers, "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size, "seq_len": problem.workload.sequence_length,
        "tied_embeddings": model.tied_embeddings,
    }  # fmt: skip
    if model.name in list_presets() and load_preset(model.name) == model:
        return {**out, "preset": model.name}
    if model.source and Path(model.source).is_file():
        out["hf_config"] = str(Path(model.source).resolve())
    return {**out, **_flat(model)}


def _flat(model: ModelSpec) -> Mapping[str, Any]:
    """The plain keys of the attention and feed-forward, as far as the most frequent layer kind has them."""
    kind = model.kinds[max(set(model.layers), key=model.layers.count)]
    core = kind.mixer.core if kind.mixer is not None else None
    out: dict[str, Any] = {}
    if isinstance(core, AttentionCore):
        out |= {"num_attention_heads": core.num_heads, "num_kv_heads": core.num_kv_heads, "head_dim": core.v_head_dim}
        out["attention"] = None if kind.mixer is None else kind.mixer.kind
    dense = next((k.mlp for k in (kind, *model.kinds) if k.mlp is not None), None)
    if dense is not None:
        out |= {"ffn_hidden_size": dense.width, "gated_mlp": dense.gated}
    if kind.moe is not None:
        out |= {"gated_mlp": kind.moe.expert.gated, "moe": _experts(model, kind.moe)}
    return out


def _experts(model: ModelSpec, moe: Moe) -> dict[str, Any]:
    first = next((i for i, k in enumerate(model.layers) if model.kinds[k].moe is not None), 0)
    return {
        "num_experts": moe.num_experts,
        "top_k": moe.top_k,
        "moe_ffn_hidden_size": moe.expert.width,
        "num_shared_experts": int(moe.shared is not None),
        "shared_expert_intermediate_size": moe.shared.width if moe.shared is not None else None,
        "first_dense_layers": first,
        "n_group": moe.num_groups or None,
        "topk_group": moe.top_groups or None,
    }

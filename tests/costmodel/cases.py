"""Small builders shared by the cost model's tests; figures are stated where a test uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.costmodel.model import (
    AttentionCore,
    Extra,
    LayerKind,
    Linear,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Split,
)
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import Runtime, load_runtime
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.load_cluster import load_cluster


def attention(hidden: int, heads: int, kv_heads: int | None = None, bias: bool = False) -> Mixer:
    kv = heads if kv_heads is None else kv_heads
    dim = hidden // heads
    return Mixer(
        kind="mha",
        linears=(
            Linear("qkv", hidden, (heads + 2 * kv) * dim, Split.COLUMN, bias),
            Linear("out", hidden, hidden, Split.ROW, bias),
        ),
        core=AttentionCore(heads, kv, dim, dim),
    )


def norms(hidden: int, count: int = 2) -> tuple[Extra, ...]:
    return tuple(Extra(f"norm{i}", hidden, norm=True) for i in range(count))


def gpt(hidden: int = 1024, layers: int = 8, heads: int = 16, vocabulary: int = 51200, tied: bool = True) -> ModelSpec:
    kind = LayerKind("block", attention(hidden, heads), Mlp(hidden, 4 * hidden, gated=False), None, norms(hidden))
    return ModelSpec("gpt", hidden, vocabulary, (kind,), (0,) * layers, tied_embeddings=tied)


def moe(
    hidden: int = 1024, layers: int = 8, experts: int = 8, top_k: int = 2, width: int = 2048, heads: int = 16
) -> ModelSpec:
    block = Moe(experts, top_k, Mlp(hidden, width, gated=False), Linear("router", hidden, experts, Split.NONE))
    kind = LayerKind("moe", attention(hidden, heads), None, block, norms(hidden))
    return ModelSpec("moe", hidden, 51200, (kind,), (0,) * layers, tied_embeddings=False)


def problem(
    model: ModelSpec | None = None,
    cluster: str = "dgx-a100",
    num_gpus: int = 64,
    batch: int = 64,
    sequence: int = 2048,
    runtime: str | Runtime = "megatron-core",
    **changes: Any,
) -> Problem:
    profile = load_runtime(runtime) if isinstance(runtime, str) else runtime
    work = {k: changes.pop(k) for k in list(changes) if k in ("dtype", "optimizer", "expert_imbalance", "train_mtp")}
    if changes:
        profile = profile.model_copy(update=changes)
    return Problem(model or gpt(), load_cluster(cluster, num_gpus), Workload(batch, sequence, **work), profile)


def faster(cluster_problem: Problem, **accelerator: Any) -> Problem:
    """The same problem on a device with some figures changed."""
    cluster = cluster_problem.cluster
    return replace(cluster_problem, cluster=replace(cluster, accelerator=replace(cluster.accelerator, **accelerator)))

"""Problems and strategies that several test modules of the launchers share."""

from __future__ import annotations

from functools import cache
from typing import Any

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.load_cluster import load_cluster

LLAMA, GPT, MIXTRAL = "llama-3.1-70b", "gpt-3-175b", "mixtral-8x22b"
DEEPSEEK, QWEN = "deepseek-v3", "qwen3-235b-a22b"


@cache
def model(name: str) -> ModelSpec:
    return ModelSpec.from_preset(name)


def problem(
    name: str | ModelSpec = LLAMA,
    gpus: int = 512,
    batch: int = 1024,
    sequence: int = 4096,
    runtime: str = "megatron-core",
    cluster: str = "dgx-h100",
    changes: dict[str, Any] | None = None,
    **work: Any,
) -> Problem:
    """A problem on a shipped cluster; ``changes`` are made to the runtime profile."""
    profile = load_runtime(runtime).model_copy(update=changes or {})
    spec = model(name) if isinstance(name, str) else name
    return Problem(spec, load_cluster(cluster, num_gpus=gpus), Workload(batch, sequence, **work), profile)


def fitted(p: Problem, **settings: Any) -> Strategy:
    """A strategy whose dp and number of micro-batches are filled in for the problem."""
    strategy = Strategy(**settings)
    return strategy.with_batch(p.cluster.num_gpus, p.workload.global_batch_size)

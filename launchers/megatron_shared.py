"""Rules that hold for Megatron-LM and for the forks of it that shardwise writes for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .megatron_model import learned_positions
from .rule import Rule

VENDORS = frozenset({"NVIDIA", "AMD"})
"""Whose accelerators have Megatron's kernels: they are written in CUDA, or its translation to ROCm."""


def shared_rules(title: str) -> tuple[Rule, ...]:
    """Rules on the whole problem; ``title`` names the framework in what they say."""
    return (
        # parser: max-position-embeddings must reach the sequence, and is the size of the learned table.
        Rule("learned-positions", "{model} has {positions} learned positions, too few for {sequence} tokens",
             lambda p, s: np.full(len(s), (learned_positions(p.model) or p.workload.sequence_length)
                                  >= p.workload.sequence_length),
             values=lambda p, s: {"positions": learned_positions(p.model)}, scope="workload",
             fix="train on sequences of at most {positions} tokens"),
        # kernel
        Rule("accelerator", title + " has no kernels for {device} ({vendor})",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor in VENDORS), values=device_values,
             scope="machine", fix="choose another cluster, or another launcher"),
    )  # fmt: skip


def device_values(problem: Problem, strategy: Strategy) -> Mapping[str, Any]:
    """The accelerator's name and vendor, for messages."""
    return {"device": problem.cluster.accelerator.name, "vendor": problem.cluster.accelerator.vendor}

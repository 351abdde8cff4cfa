"""Plans against the real DeepSpeed: it takes its settings, and derives the micro-batches, layers and ranks we mean.

BigScience's fork of Megatron is no package and compiles kernels when it starts, so its arguments are not judged here.
Needs ``SHARDWISE_DEEPSPEED_PYTHON``, the interpreter of an environment with DeepSpeed 0.19 (``.ci/validators.sh`` makes
one).
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import get_launcher
from shardwise.launchers.megatron_deepspeed_files import deepspeed_config
from shardwise.launchers.megatron_deepspeed_rules import partition_method
from shardwise.launchers.ranks import rank_groups

from ..problems import GPT, fitted, problem
from .asking import Case, ask

pytestmark = pytest.mark.validators

LAUNCHER = get_launcher("megatron-deepspeed")


def ask_deepspeed(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What DeepSpeed says, all cases in one process (importing it takes seconds)."""
    return ask("megatron_deepspeed_runner.py", "SHARDWISE_DEEPSPEED_PYTHON", cases, folder)


LAYER, EMBEDDING = "ParallelTransformerLayerPipe", "EmbeddingPipe"


def block_names(layers: int) -> list[str]:
    """The blocks of the fork's ``GPTModelPipe``, in order."""
    first, last = ["_to_float16", EMBEDDING, "transpose"], ["undo", "MixedFusedLayerNorm", EMBEDDING, "float16_to_fp32"]
    return [*first, *[LAYER] * layers, *last]


def case_of(p: Problem, s: Strategy) -> Case:
    config, names = deepspeed_config(p, s), block_names(p.model.num_layers)
    return {"config": config, "dp": s.dp, "tp": s.tp, "pp": s.pp, "names": names, "method": partition_method(p, s)}


def plans() -> list[tuple[Problem, Strategy]]:
    """BLOOM and GPT-3 in both precisions, at every depth that a cluster of 5,040 devices (or 768) allows."""
    out = []
    for name, gpus, batch in (("bloom-176b", 5040, 10080), (GPT, 768, 1536)):
        for dtype in ("bf16", "fp16"):
            p = problem(name, gpus=gpus, batch=batch, sequence=2048, dtype=dtype, cluster="dgx-a100")
            depths = [d for d in range(1, p.model.num_layers + 1) if gpus % (8 * d) == 0]
            for pp in depths:
                s = fitted(p, tp=8, pp=pp, micro_batch_size=2, dp_overlap=False, recompute="full")
                if not LAUNCHER.violations(p, s):
                    out.append((p, s))
    return out


PLANS = plans()


def test_deepspeed_derives_what_the_plan_means(tmp_path: Path) -> None:
    assert len(PLANS) >= 20 and {s.pp for p, s in PLANS if p.model.num_layers % s.pp} != set()
    for (p, s), found in zip(PLANS, ask_deepspeed([case_of(p, s) for p, s in PLANS], tmp_path), strict=True):
        assert found["accepted"], (p.model.name, s, found["error"])
        assert (found["micro_batch_size"], found["num_microbatches"]) == (s.micro_batch_size, s.num_microbatches)
        assert (found["bf16"], found["fp16"]) == (p.workload.dtype == "bf16", p.workload.dtype == "fp16")
        assert (found["zero"], found["clip"]) == (0 if found["bf16"] else s.zero, 1.0)
        _check_split(p, s, found["starts"])
        _check_groups(s, found["groups"])


def _check_split(p: Problem, s: Strategy, starts: list[int]) -> None:
    names = block_names(p.model.num_layers)
    stages = [names[a:b] for a, b in pairwise(starts)]
    assert tuple(stage.count(LAYER) for stage in stages) == even_split(p.model.num_layers, s.pp)
    assert stages[0][1] == EMBEDDING and EMBEDDING in stages[-1][-2:]


def _check_groups(s: Strategy, theirs: dict[str, list[list[int]]]) -> None:
    ours = rank_groups(s)
    for name, axis in (("tp", "model"), ("dp", "data"), ("pp", "pipe")):
        assert sorted(theirs[axis]) == ours[name], name


def test_deepspeed_refuses_a_batch_that_does_not_divide(tmp_path: Path) -> None:
    p, s = PLANS[0]
    case = case_of(p, s)
    case["config"] = {**case["config"], "train_batch_size": 1001}
    (found,) = ask_deepspeed([case], tmp_path)
    assert not found["accepted"] and "batch" in found["error"]

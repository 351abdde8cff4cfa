"""Plans against the real DeepSpeed: it takes the settings, and derives the batch and the stage that we mean.

Needs ``SHARDWISE_DEEPSPEED_PYTHON``, the interpreter of an environment with DeepSpeed 0.19 (``.ci/validators.sh`` makes
one).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import get_launcher
from shardwise.launchers.deepspeed_files import deepspeed_config
from shardwise.launchers.deepspeed_tables import ZERO_KEYS

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import sample

pytestmark = pytest.mark.validators

RUNNER = Path(__file__).with_name("deepspeed_runner.py")
DEEPSPEED = get_launcher("deepspeed")
Case = dict[str, Any]


def ask_deepspeed(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What DeepSpeed says, all cases in one process (importing it takes seconds)."""
    python = os.environ.get("SHARDWISE_DEEPSPEED_PYTHON")
    if not python:
        pytest.skip("SHARDWISE_DEEPSPEED_PYTHON is not set: run .ci/validators.sh to make an environment for DeepSpeed")
    questions, answers = folder / "cases.json", folder / "answers.json"
    questions.write_text(json.dumps(cases))
    done = subprocess.run(
        [python, str(RUNNER), str(questions), str(answers)], capture_output=True, text=True, timeout=300, check=False
    )
    assert answers.exists(), done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found


def plans() -> list[tuple[Problem, Strategy]]:
    tested = sample("deepspeed")
    own = [(p, fitted(p, **settings)) for given, settings in tested.plans for p in [problem(**given)]]
    return own + drawn_plans(DEEPSPEED, tested, count=60, seed=9)


def case_of(p: Problem, s: Strategy) -> Case:
    return {"config": deepspeed_config(p, s), "dp": s.dp}


def test_deepspeed_derives_what_the_plan_means(tmp_path: Path) -> None:
    drawn = plans()
    assert len(drawn) >= 60
    for (p, s), found in zip(drawn, ask_deepspeed([case_of(p, s) for p, s in drawn], tmp_path), strict=True):
        assert found["accepted"], (p.model.name, s, found["error"])
        assert (found["batch"], found["micro_batch_size"]) == (p.workload.global_batch_size, s.micro_batch_size)
        assert (found["num_microbatches"], found["zero"]) == (s.num_microbatches, s.zero)
        assert (found["tp"] or 1) == s.tp and found["dp"] == s.dp
        assert found["overlap"] == s.dp_overlap
        assert found["offload"] == ("cpu" if s.offload_optimizer else "none")
        assert (found["bf16"], found["fp16"]) == (p.workload.dtype == "bf16", p.workload.dtype == "fp16")


def test_what_deepspeed_refuses_we_refuse_or_list(tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=16, batch=128, runtime="deepspeed-zero")
    good = deepspeed_config(p, fitted(p, zero=3))
    zero = good["zero_optimization"]
    bad = [
        {**good, "train_batch_size": 100},
        {**good, "zero_optimization": {**zero, "stage": 4}},
        {**good, "zero_optimization": {**zero, "overlap_com": True}},
    ]
    found = ask_deepspeed([{"config": c, "dp": 16} for c in bad], tmp_path)
    assert [a["accepted"] for a in found] == [False] * len(bad)


def test_our_table_of_zero_keys_is_deepspeeds(tmp_path: Path) -> None:
    (found,) = ask_deepspeed([{"keys": True}], tmp_path)
    assert set(found["keys"]) == set(ZERO_KEYS)

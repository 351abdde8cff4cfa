"""Plans against the real DeepSpeed: it takes the settings, and derives the batch and the stage that we mean.

Needs ``SHARDWISE_DEEPSPEED_PYTHON``, the interpreter of an environment with DeepSpeed 0.19 (``.ci/validators.sh`` makes
one).
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.accelerate_models import CLASSES
from shardwise.launchers.base import get_launcher
from shardwise.launchers.deepspeed_files import deepspeed_config
from shardwise.launchers.deepspeed_pipeline import balanced, partition_splits, uniform
from shardwise.launchers.deepspeed_tables import ZERO_KEYS
from shardwise.launchers.ranks import rank_groups

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import sample
from .asking import Case, ask

pytestmark = pytest.mark.validators

DEEPSPEED = get_launcher("deepspeed")


def ask_deepspeed(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What DeepSpeed says, all cases in one process (importing it takes seconds)."""
    return ask("deepspeed_runner.py", "SHARDWISE_DEEPSPEED_PYTHON", cases, folder)


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


PIPED = (
    ("llama-3.1-8b", 16), ("llama-3.2-1b", 8), ("llama-3.1-70b", 64), ("gemma-2-9b", 32), ("gpt-2-xl", 16),
    ("mixtral-8x22b", 64), ("qwen2.5-7b", 16), ("bloom-176b", 64), ("deepseek-v2-lite", 16),
)  # fmt: skip


def entries_of(p: Problem) -> list[tuple[str, int]]:
    """The layers of a training script's module: class and parameters of each."""
    model = p.model
    layer = CLASSES[model.architecture].layer
    held = [(layer, model.kinds[kind].parameters) for kind in model.layers]
    table = model.vocab_size * (model.embedding_dim or model.hidden_size)
    rest = model.total_parameters - sum(n for _, n in held) - table * (1 if model.tied_embeddings else 2)
    norm = sum(extra.parameters for extra in model.head_extras)
    return [("Embedding", table + rest - norm), *held, ("Norm", norm), ("Head", table)]


def pipelines() -> list[tuple[Problem, Strategy]]:
    """Every split that we say DeepSpeed makes of some models."""
    found = []
    for name, gpus in PIPED:
        p = problem(name, gpus=gpus, batch=4 * gpus, sequence=1024, runtime="deepspeed-zero", train_mtp=False)
        for pp in (d for d in (2, 4, 8, 16) if d <= gpus):
            for split in partition_splits(p, 1, pp):
                again = "full" if pp == 4 else "none"
                s = fitted(p, pp=pp, layers_per_stage=split, dp_overlap=False, recompute=again)
                found.append((p, s))
    return found


def piped_case(p: Problem, s: Strategy) -> Case:
    settings = DEEPSPEED.render(p, s)["pipeline_settings.py"]
    return {**case_of(p, s), "world": s.pp * s.dp, "pipeline": settings, "entries": entries_of(p)}


def test_a_pipeline_module_has_the_stages_and_ranks_of_the_plan(tmp_path: Path) -> None:
    drawn = pipelines()
    assert len(drawn) >= 60 and len({s.layers_per_stage for _, s in drawn}) >= 50
    for (p, s), found in zip(drawn, ask_deepspeed([piped_case(p, s) for p, s in drawn], tmp_path), strict=True):
        assert not DEEPSPEED.violations(p, s)
        assert found["accepted"], (p.model.name, s, found["error"])
        # The embedding stands first, the norm and the head after the layers.
        inside = [min(max(part - 1, 0), p.model.num_layers) for part in found["parts"]]
        assert tuple(b - a for a, b in itertools.pairwise(inside)) == s.layers_per_stage
        assert found["parts"][1] >= 1 and found["parts"][-2] <= found["parts"][-1] - 2
        assert found["stage"] == s.pp - 1
        ours = rank_groups(s)
        assert all(sorted(groups) == ours[name] for name, groups in found["groups"].items())
        assert (found["batch"], found["num_microbatches"]) == (p.workload.global_batch_size, s.num_microbatches)
        assert (found["dp"], found["zero"], found["interval"]) == (s.dp, 1, int(s.recompute == "full"))
        assert found["optimizer"] == "adamw"
        # Decoder layers are recomputed and nothing else.
        assert found["checkpointed"] == (s.layers_per_stage is not None and s.layers_per_stage[-1] > 0)


def test_a_module_that_is_not_the_plans_is_refused_by_what_we_write(tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=16, batch=64, runtime="deepspeed-zero")
    good = piped_case(p, fitted(p, pp=4, layers_per_stage=(7, 9, 9, 7), dp_overlap=False))
    (embedding, *layers, norm, head) = good["entries"]
    bad = {
        "a layer missing": {"entries": [embedding, *layers[1:], norm, head]},
        "no norm of its own": {"entries": [embedding, *layers, head]},
        "layers of another class": {"entries": [embedding, *(("Block", n) for _, n in layers), norm, head]},
        "a smaller vocabulary": {"entries": [("Embedding", 1), *layers, norm, ("Head", 1)]},
        "fewer processes": {"world": 8},
    }
    found = ask_deepspeed([good, *({**good, **change} for change in bad.values())], tmp_path)
    assert found[0]["accepted"], found[0]["error"]
    assert [(name, a["accepted"]) for name, a in zip(bad, found[1:], strict=True)] == [(name, False) for name in bad]
    assert all("ValueError" in a["error"] for a in found[1:])


def test_the_engine_of_a_pipeline_does_what_our_rules_say(tmp_path: Path) -> None:
    """ZeRO 2 and 3 are refused; a bf16 optimizer is divided without ZeRO too; gradients never overlap."""
    jobs = []
    for dtype, zero, overlap in itertools.product(("bf16", "fp32"), (0, 1, 2, 3), (False, True)):
        p = problem("llama-3.1-8b", gpus=4, batch=8, runtime="deepspeed-zero", dtype=dtype)
        jobs.append((p, fitted(p, pp=2, zero=zero, dp_overlap=overlap, recompute="full")))
    cases = [{"engine": deepspeed_config(p, s)} for p, s in jobs]
    for (p, s), found in zip(jobs, ask_deepspeed(cases, tmp_path), strict=True):
        rules = {v.rule for v in DEEPSPEED.violations(p, s)}
        assert found["accepted"] == ("pipeline-zero" not in rules), (s, found["error"])
        assert ("pipeline-dp-overlap" in rules) == s.dp_overlap
        if not found["accepted"]:
            assert "incompatible with pipeline parallelism" in found["error"]
            continue
        assert found["engine"] == "PipelineEngine" and not found["overlap"] and found["interval"] == 1
        assert found["divided"] == (s.zero == 1 or p.workload.dtype == "bf16")
        assert ("pipeline-bf16-zero" in rules) == (found["divided"] and s.zero == 0)


def test_our_arithmetic_of_partitions_is_deepspeeds(tmp_path: Path) -> None:
    draw = random.Random(3)
    cases = []
    for _ in range(200):
        count = draw.randint(1, 40)
        weights = [draw.choice((0, 1, 1, 5, draw.randint(0, 10**9))) for _ in range(count)]
        cases.append({"weights": weights, "parts": draw.randint(1, count + 2)})
    for case, found in zip(cases, ask_deepspeed(cases, tmp_path), strict=True):
        assert found["balanced"] == list(balanced(tuple(case["weights"]), case["parts"])), case
        assert found["uniform"] == list(uniform(len(case["weights"]), case["parts"])), case


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

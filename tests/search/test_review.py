"""Launch files reviewed: the best changes are what enumeration says they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import get_launcher
from shardwise.launchers.neighbours import moves
from shardwise.search.review import Review, review

MEGATRON = get_launcher("megatron")


def problem(name: str = "llama-3.1-8b", gpus: int = 16, batch: int = 64) -> Problem:
    cluster = load_cluster("dgx-h100", gpus)
    return Problem(ModelSpec.from_preset(name), cluster, Workload(batch, 4096), load_runtime("megatron-core"))


def reviewed(p: Problem, s: Strategy) -> Review:
    s = s.with_batch(p.cluster.num_gpus, p.workload.global_batch_size)
    return review(MEGATRON.parse(MEGATRON.render(p, s)), p.cluster)


def test_the_best_single_change_is_the_best_of_all_single_changes() -> None:
    p = problem()
    found = reviewed(p, Strategy(tp=8, sp=True, pp=2, zero=1, recompute="full"))
    present = found.estimate
    near = [m.strategy for m in moves(present.problem, present.strategy)]
    legal = [s for s, ok in zip(near, MEGATRON.allowed(present.problem, Strategies.of(near)), strict=True) if ok]
    every = [estimate(present.problem, s) for s in legal if not MEGATRON.violations(present.problem, s)]
    quickest = min(e.step_time_s for e in every if e.fits)
    assert found.best_one is not None
    assert found.best_one.estimate.step_time_s <= quickest * (1 + 1e-9)
    assert found.best_two is not None and found.optimum is not None
    steps = [c.estimate.step_time_s for c in (found.best_one, found.best_two, found.optimum)]
    assert present.step_time_s > steps[0] >= steps[1] >= steps[2]
    for change in (found.best_one, found.best_two, found.optimum):
        assert MEGATRON.violations(present.problem, change.estimate.strategy) == []


def test_a_job_that_does_not_fit_gets_changes_that_do() -> None:
    found = reviewed(problem("llama-3.1-70b", gpus=64, batch=128), Strategy(tp=2, sp=True, pp=2, zero=0))
    assert not found.estimate.fits
    assert found.optimum is not None and found.optimum.estimate.fits
    for change in (found.best_one, found.best_two):
        assert change is None or change.estimate.fits


def test_an_uneven_split_is_a_change_too() -> None:
    p = problem(gpus=16)
    s = Strategy(tp=2, sp=True, pp=4, layers_per_stage=(2, 10, 10, 10))
    found = reviewed(p, s)
    dimensions = {d for d, *_ in found.best_one.items} if found.best_one else set()
    assert "layers_per_stage" in dimensions
    assert found.best_one is not None and found.best_one.gain > 0.1


def test_what_the_framework_refuses_is_listed_and_priced() -> None:
    p = problem()
    s = Strategy(tp=2, pp=4, vpp=2, schedule="interleaved").with_batch(16, 64)
    text = MEGATRON.render(p, s)["launch.sh"].replace("--global-batch-size 64", "--global-batch-size 12")
    found = review(MEGATRON.parse(text), p.cluster)
    assert [r.rule for r in found.refusals] == ["interleave-microbatches"]
    assert "nearest legal choice" in str(found.refusals[0]) and found.estimate.step_time_s > 0


def test_what_breaks_arithmetic_cannot_be_priced() -> None:
    p = problem()
    parsed = MEGATRON.parse(MEGATRON.render(p, Strategy(tp=2).with_batch(16, 64)))
    odd = replace(parsed, strategy=replace(parsed.strategy, tp=3))
    with pytest.raises(InputError, match=r"heads: tp = 3 .*--tensor-model-parallel-size 3.*nearest legal choice"):
        review(odd, load_cluster("dgx-h100"))


def test_facts_of_the_file_reach_the_runtime() -> None:
    p = problem("mixtral-8x7b", gpus=32)
    profile = p.runtime.model_copy(update={"moe_dispatcher": "allgather", "vocab_multiple": 64})
    p = replace(p, runtime=profile)
    found = reviewed(p, Strategy(ep=8, pp=2))
    assert found.estimate.problem.runtime.moe_dispatcher == "allgather"
    assert found.estimate.problem.runtime.vocab_multiple == 64

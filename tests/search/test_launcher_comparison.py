"""Launchers compared: every answer is that launcher's own plan, in the order of their steps."""

from __future__ import annotations

import pytest

from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.choice import PREFERENCE
from shardwise.search.launcher_comparison import compare_launchers
from shardwise.search.planner import plan

WORK = Workload(64, 4096)


def test_every_launcher_answers_with_its_own_best_plan() -> None:
    found = compare_launchers("llama-3.1-8b", "dgx-h100", WORK, num_gpus=16, refine_trials=0)
    assert sorted(e.launcher for e in found.entries) == sorted(PREFERENCE)
    steps = [e.plan.estimate.step_time_s for e in found.entries if e.plan]
    assert steps == sorted(steps) and len(steps) >= 2 and found.best.estimate.step_time_s == steps[0]
    for entry in found.entries:
        if entry.plan is None:
            assert "cannot express" in entry.reason
            continue
        alone = plan("llama-3.1-8b", "dgx-h100", WORK, num_gpus=16, refine_trials=0, launcher=entry.launcher)
        assert entry.plan.strategy == alone.strategy and entry.plan.launcher == entry.launcher
        launcher = get_launcher(entry.launcher)
        assert entry.plan.problem.runtime.name == launcher.runtime_for("bf16")
        assert launcher.violations(entry.plan.problem, entry.plan.strategy) == []


def test_a_launcher_without_a_plan_comes_last_with_its_reason() -> None:
    found = compare_launchers("bloom-176b", "dgx-a100", Workload(128, 2048), num_gpus=128, refine_trials=0, top=1)
    assert "megatron-deepspeed" in {e.launcher for e in found.entries if e.plan is not None}
    last = {e.launcher: e.reason for e in found.entries if e.plan is None}
    assert "ALiBi positions" in last["megatron"]
    assert found.as_dict()["launchers"][-1]["plan"] is None


def test_what_nobody_can_do_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwise.search.launcher_comparison.PREFERENCE", ("megatron", "torchtitan"))
    with pytest.raises(InputError, match=r"no launcher takes this job: megatron: .*soft-capped logits.*; torchtitan: "):
        compare_launchers("gemma-2-9b", "dgx-h100", WORK, num_gpus=16)
    with pytest.raises(InfeasibleError, match="nothing fits"):
        compare_launchers("llama-3.1-405b", "dgx-h100", Workload(8, 4096), num_gpus=8)
    with pytest.raises(InputError, match="unknown preset"):
        compare_launchers("lama", "dgx-h100", WORK, num_gpus=16)

"""Plans against nanotron's own code: it takes the configuration, and derives the ranks and stages that we mean.

The one package of nanotron (0.4, March 2024) is older than the keys that are written: ``nanotron_runner`` says what is
left out. Needs ``SHARDWISE_NANOTRON_PYTHON`` (``.ci/validators.sh`` makes an environment).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import LaunchSettings, get_launcher
from shardwise.launchers.nanotron_files import nanotron_config
from shardwise.launchers.nanotron_model import stage_layers
from shardwise.launchers.ranks import rank_groups

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import sample
from .asking import Case, ask

pytestmark = pytest.mark.validators

LAUNCHER = get_launcher("nanotron")
SHAPES = ("llama-3.1-70b", "llama-3.1-8b", "llama-2-13b", "llama-2-7b", "llama-3.2-1b", "llama-3.1-405b")


def ask_nanotron(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What nanotron says, all cases in one process (importing it takes seconds)."""
    return ask("nanotron_runner.py", "SHARDWISE_NANOTRON_PYTHON", cases, folder)


def case_of(p: Problem, s: Strategy) -> Case:
    return {"config": nanotron_config(p, s, LaunchSettings()), "world": p.cluster.num_gpus}


@cache
def plans() -> list[tuple[Problem, Strategy]]:
    """Drawn plans, and every pipeline of some shapes that nanotron divides without an empty stage."""
    found = drawn_plans(LAUNCHER, sample("nanotron"), count=40, seed=3)
    for name in SHAPES:
        for pp in (2, 3, 4, 5, 6, 8, 16):
            p = problem(name, gpus=8 * pp, batch=16 * pp, runtime="nanotron")
            for tp in (1, 8):
                split = stage_layers(p, tp, pp)
                if split is not None:
                    found.append((p, fitted(p, tp=tp, sp=tp > 1, pp=pp, layers_per_stage=split)))
    return found


def test_nanotron_derives_what_the_plan_means(tmp_path: Path) -> None:
    assert len(plans()) >= 80 and len({s.pp for _, s in plans()}) >= 6
    for (p, s), found in zip(plans(), ask_nanotron([case_of(p, s) for p, s in plans()], tmp_path), strict=True):
        assert not LAUNCHER.violations(p, s)
        assert found["accepted"], (p.model.name, s, found["error"])
        assert (found["tp"], found["pp"], found["dp"], found["zero"]) == (s.tp, s.pp, s.dp, s.zero)
        assert (found["mode"] == "REDUCE_SCATTER", found["asynchronous"]) == (s.sp, s.tp_overlap)
        assert found["engine"].startswith("AllForward" if s.schedule == "gpipe" else "OneForwardOneBackward")
        assert (found["global_batch"], found["micro_batch_size"]) == (p.workload.global_batch_size, s.micro_batch_size)
        assert tuple(found["layers"]) == (s.layers_per_stage or (p.model.num_layers,)), (p.model.name, s)
        assert found["head"] == s.pp - 1
        ours = rank_groups(s)
        for name, groups in found["groups"].items():
            assert sorted(groups) == ours[name], (name, s)


def test_divisions_that_we_refuse_leave_a_stage_empty_or_the_head_early(tmp_path: Path) -> None:
    cases, names = [], []
    for name in SHAPES:
        for pp in (8, 16):
            p = problem(name, gpus=8 * pp, batch=16 * pp, runtime="nanotron")
            if stage_layers(p, 1, pp) is None:
                cases.append(case_of(p, fitted(p, pp=pp)))
                names.append((name, pp))
    assert cases
    for name, found in zip(names, ask_nanotron(cases, tmp_path), strict=True):
        assert not found["accepted"] or min(found["layers"]) == 0 or found["head"] < name[1] - 1, (name, found)


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("parallelism", {"tpp": 2}, "tpp"),
        ("parallelism", {"pp_engine": "zb"}, "zb"),
        ("parallelism", {"tp_mode": "SCATTER"}, "SCATTER"),
        ("parallelism", {"dp": 3}, "must be"),
    ],
)
def test_nanotron_refuses_what_reading_refuses_or_lists(
    tmp_path: Path, section: str, change: dict[str, Any], words: str
) -> None:
    p = problem("llama-3.1-8b", gpus=8, batch=16, runtime="nanotron")
    case = case_of(p, fitted(p))
    case["config"][section] |= change
    (found,) = ask_nanotron([case], tmp_path)
    assert not found["accepted"] and words in found["error"], found

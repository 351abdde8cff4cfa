"""Plans against the real Accelerate: it takes the files, and derives the degrees, ranks and FSDP2 settings we mean.

Needs ``SHARDWISE_ACCELERATE_PYTHON``, the interpreter of an environment with Accelerate 1.15 and transformers
(``.ci/validators.sh`` makes one).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.accelerate_files import PRECISIONS, ROTATIONS, dp_sizes
from shardwise.launchers.accelerate_models import CLASSES, wrapped_class
from shardwise.launchers.base import get_launcher
from shardwise.launchers.ranks import rank_groups

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import sample
from .asking import Case, ask

pytestmark = pytest.mark.validators

LAUNCHER = get_launcher("accelerate")


def ask_accelerate(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What Accelerate says, all cases in one process (importing it takes seconds)."""
    return ask("accelerate_runner.py", "SHARDWISE_ACCELERATE_PYTHON", cases, folder)


@cache
def plans() -> list[tuple[Problem, Strategy]]:
    own = [(p, fitted(p, **settings)) for given, settings in sample("accelerate").plans for p in [problem(**given)]]
    return own + drawn_plans(LAUNCHER, sample("accelerate"), count=100, seed=5)


def case_of(p: Problem, s: Strategy) -> Case:
    return {"yaml": LAUNCHER.render(p, s)["accelerate.yaml"], "groups": True}


def test_accelerate_derives_what_the_plan_means(tmp_path: Path) -> None:
    assert len(plans()) >= 100 and len({(s.tp, s.cp, s.dp, s.zero_group) for _, s in plans()}) >= 20
    for (p, s), found in zip(plans(), ask_accelerate([case_of(p, s) for p, s in plans()], tmp_path), strict=True):
        assert found["accepted"], (p.model.name, s, found["error"])
        replicate, shard = dp_sizes(s)
        assert (found["dp_replicate"], found["dp_shard"]) == (replicate, shard) and replicate * shard == s.dp
        assert (found["cp"], found["tp"], found["sp"]) == (s.cp, s.tp, 1)
        assert found["rotation"] == (ROTATIONS[s.cp_comm] if s.cp > 1 else None)
        assert (found["world"], found["hosts"] * found["per_host"]) == (p.cluster.num_gpus, p.cluster.num_gpus)
        assert found["precision"] == PRECISIONS[p.workload.dtype]
        assert (found["fsdp_version"], found["reshard"], found["offload"]) == (2, s.zero == 3, False)
        assert (found["recompute"], found["layer"]) == (s.recompute == "full", [wrapped_class(p.model).layer])
        ours = rank_groups(s)
        for name, groups in found["groups"].items():
            assert sorted(groups) == ours[name], (name, s)


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("parallelism_config", {"parallelism_config_dp_shard_size": 3}, "does not match"),
    ("parallelism_config", {"parallelism_config_tp_size": 0}, "at least 1"),
    ("parallelism_config", {"parallelism_config_cp_backend": "ring"}, "cp_backend"),
    ("parallelism_config", {"parallelism_config_cp_size": 2, "parallelism_config_cp_comm_strategy": "p2p"}, "strategy"),
    ("parallelism_config", {"parallelism_config_cp_size": 2, "parallelism_config_sp_size": 2}, "mutually exclusive"),
    ("", {"num_machine_s": 2}, "unknown keys"),
    ("", {"num_processes": 48}, "does not match"),
]


def changed(p: Problem, s: Strategy, section: str, change: dict[str, Any]) -> str:
    config = yaml.safe_load(LAUNCHER.render(p, s)["accelerate.yaml"])
    (config[section] if section else config).update(change)
    text: str = yaml.safe_dump(config)
    return text


def test_accelerate_refuses_what_reading_refuses_or_lists(tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=64, batch=64, runtime="accelerate-fsdp2")
    s = fitted(p, zero=3)
    cases = [{"yaml": changed(p, s, section, change)} for section, change, _ in CHANGES]
    for (_, change, words), found in zip(CHANGES, ask_accelerate(cases, tmp_path), strict=True):
        assert not found["accepted"] and words in found["error"], (change, found)


REFUSED: list[tuple[dict[str, int], str, str]] = [
    ({"dp_replicate": 16, "dp_shard": 1, "cp": 4}, "hsdp-group", "pure data parallelism"),
    ({"dp_replicate": 8, "dp_shard": 1, "tp": 8}, "hsdp-group", "pure data parallelism"),
    ({"dp_replicate": 64, "dp_shard": 1}, "hsdp-group", "no dimension for FSDP to shard"),
    ({"tp": 64}, "fsdp-ranks", "no dimension for FSDP to shard"),
]


def test_meshes_that_accelerate_refuses_are_refused_by_rule(tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=64, batch=64, runtime="accelerate-fsdp2")
    whole = {f"parallelism_config_{n}_size": 1 for n in ("dp_replicate", "dp_shard", "cp", "tp")}
    cases = []
    for sizes, rule, _ in REFUSED:
        change = {**whole, **{f"parallelism_config_{n}_size": v for n, v in sizes.items()}}
        cases.append({"yaml": changed(p, fitted(p, zero=3), "parallelism_config", change)})
        dp = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1)
        group = 0 if dp == 1 else sizes.get("cp", 1)
        s = fitted(p, zero=3, tp=sizes.get("tp", 1), cp=sizes.get("cp", 1), zero_group=group)
        assert rule in [v.rule for v in LAUNCHER.violations(p, s)]
    for (_, _, words), found in zip(REFUSED, ask_accelerate(cases, tmp_path), strict=True):
        assert not found["accepted"] and words in found["error"], found


def test_a_misspelled_nested_key_is_dropped_by_accelerate_and_listed_by_us(tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=64, batch=64, runtime="accelerate-fsdp2")
    text = changed(p, fitted(p, zero=3), "parallelism_config", {"parallelism_config_tensor_size": 8})
    (found,) = ask_accelerate([{"yaml": text}], tmp_path)
    assert found["accepted"] and found["tp"] == 1
    script = "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 1 --max_length 4096"
    parsed = LAUNCHER.parse({"accelerate.yaml": text, "launch.sh": script})
    assert [o.name for o in parsed.unknown] == ["parallelism_config.parallelism_config_tensor_size"]


def test_layers_and_plans_are_those_of_transformers(tmp_path: Path) -> None:
    (found,) = ask_accelerate([{"classes": {name: known.layer for name, known in CLASSES.items()}}], tmp_path)
    for name, known in CLASSES.items():
        assert found[name]["there"] and found[name]["layer"], name
        assert found[name]["split"] or not known.tp, name

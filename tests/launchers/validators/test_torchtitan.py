"""Plans against the real torchtitan: accepted by its checks, with the degrees, stages, batches and ranks we mean.

Needs ``SHARDWISE_TORCHTITAN_PYTHON``, the interpreter of an environment with torchtitan 0.3 (``.ci/validators.sh``
makes one).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import get_launcher
from shardwise.launchers.ranks import rank_groups
from shardwise.launchers.torchtitan_files import torchtitan_arguments
from shardwise.launchers.torchtitan_rules import stage_weights
from shardwise.launchers.torchtitan_tables import RESHARD, SCHEDULES, SHIPPED, known_options

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import sample
from .asking import Case, ask

pytestmark = pytest.mark.validators

TITAN = get_launcher("torchtitan")
POLICIES = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}


def ask_torchtitan(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The answers of torchtitan's own checks, all cases in one process (importing it takes seconds)."""
    return ask("torchtitan_runner.py", "SHARDWISE_TORCHTITAN_PYTHON", cases, folder)


def plans() -> list[tuple[Problem, Strategy]]:
    tested = sample("torchtitan")
    own = [(p, fitted(p, **settings)) for given, settings in tested.plans for p in [problem(**given)]]
    return own + drawn_plans(TITAN, tested, count=60, seed=5)


def case_of(p: Problem, s: Strategy) -> Case:
    world = p.cluster.num_gpus
    return {"args": torchtitan_arguments(p, s), "world": world, "ranks": sorted({0, world // 3, world - 1})}


def test_torchtitan_accepts_the_plans_and_means_the_same(tmp_path: Path) -> None:
    drawn = plans()
    assert len(drawn) >= 70
    for (p, s), answer in zip(drawn, ask_torchtitan([case_of(p, s) for p, s in drawn], tmp_path), strict=True):
        assert answer["accepted"], (p.model.name, s, answer["error"])
        shards = (s.zero_group or s.dp * s.cp) // s.cp
        assert {name: answer[name] for name in ("tp", "cp", "pp", "ep", "dp_shard", "dp_replicate")} == {
            "tp": s.tp, "cp": s.cp, "pp": s.pp, "ep": s.ep, "dp_shard": shards, "dp_replicate": s.dp // shards,
        }  # fmt: skip
        assert answer["batch"] == p.workload.global_batch_size and answer["seq_len"] == p.workload.sequence_length
        assert answer["num_microbatches"] == s.num_microbatches
        assert answer["sp"] == s.sp or s.tp == 1
        assert answer["schedule"] == SCHEDULES[s.schedule] or s.pp == 1
        assert (answer["reshard"], answer["async_tp"]) == (RESHARD[s.zero], s.tp_overlap)
        assert answer["policy"] == POLICIES[s.recompute]
        assert tuple(answer["stages"]) == (s.layers_per_stage or even_split(p.model.num_layers, s.pp * s.vpp))
        check_groups(s, case_of(p, s)["ranks"], answer["groups"])


def check_groups(s: Strategy, ranks: list[int], theirs: list[dict[str, list[int]]]) -> None:
    ours = rank_groups(s)
    names = ["tp", "cp", "dp", "dp_cp", "pp"]
    if s.ep > 1:
        names.append("ep")
    for rank, groups in zip(ranks, theirs, strict=True):
        for name in names:
            assert groups[name] == next(g for g in ours[name] if rank in g), (name, rank, s)


def test_what_we_refuse_torchtitan_refuses(tmp_path: Path) -> None:
    """Of the layouts that we refuse, those that its own checks see (others fail or differ in training only)."""
    seen = {"world-size", "heads", "tp-kv-heads", "sequence-cp", "sequence-2cp-tp", "tied-pipeline", "ep-in-shards"}
    cases, rules = [], []
    for given, s, rule in sample("torchtitan").refused:
        p = problem(**given)
        if rule not in seen or (s.pp > 1 and stage_weights(p, s) is None):
            continue
        cases.append(case_of(p, s))
        rules.append(rule)
    assert set(rules) == seen
    found = ask_torchtitan(cases, tmp_path)
    accepted = [rule for rule, answer in zip(rules, found, strict=True) if answer["accepted"]]
    assert accepted == []


def test_our_tables_are_torchtitans(tmp_path: Path) -> None:
    cases: list[Case] = [{"options": True}]
    for entry in SHIPPED:
        cases.append({"args": ["--module", entry.module, "--config", entry.config], "parameters": True})
    options, *models = ask_torchtitan(cases, tmp_path)
    assert options["accepted"], options["error"]
    ours = {name: takes for name, takes in known_options().items() if name not in ("module", "config")}
    assert ours.items() <= options["options"].items()
    assert [a.get("parameters", a["error"]) for a in models] == [entry.parameters for entry in SHIPPED]

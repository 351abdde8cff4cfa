"""Recipes against the real Megatron-Bridge: accepted by its checks, with the degrees, layers and groups we mean.

Needs ``SHARDWISE_BRIDGE_PYTHON``, the interpreter of an environment with megatron-bridge 0.6 (``.ci/validators.sh``
makes one).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import get_launcher
from shardwise.launchers.bridge_fields import COMMON, known_fields, precision_fields
from shardwise.launchers.bridge_files import recipe
from shardwise.launchers.megatron_plan import environment
from shardwise.launchers.megatron_rules import is_blackwell
from shardwise.launchers.settings import LaunchSettings

from ..problems import GPT, LLAMA, MIXTRAL, fitted, problem
from .asking import Case, ask
from .cases import plans, random_plans
from .test_megatron import check_groups

pytestmark = pytest.mark.validators

BRIDGE = get_launcher("megatron-bridge")


def ask_bridge(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The answers of Megatron-Bridge's own checks, all cases in one process (importing it takes a while)."""
    return ask("bridge_runner.py", "SHARDWISE_BRIDGE_PYTHON", cases, folder)


def case_of(p: Problem, s: Strategy) -> Case:
    capability = 10 if is_blackwell(p) else 9
    text = recipe(p, s, LaunchSettings())
    return {"recipe": text, "world": p.cluster.num_gpus, "env": environment(p, s), "capability": capability}


PLANS = plans()
DRAWN = [(p, s) for p, s in random_plans(60, seed=5) if not BRIDGE.violations(p, s)]
NO_SP = (problem(), Strategy(tp=8, pp=4, dp=16, num_microbatches=64, tp_overlap=True))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The answers to all questions of this module by subject, from one process."""
    base = case_of(*BASE)
    subjects: dict[str, list[Case]] = {
        "plans": [case_of(p, s) for p, s in PLANS],
        "drawn": [{**case_of(p, s), "groups": False} for p, s in DRAWN],
        "refused": [case_of(problem(**given), s) for given, s, _ in REFUSED],
        "no sp": [case_of(*NO_SP)],
        "overrides": [{**base, "overrides": text.split()} for text in OVERRIDES],
        "tables": [{"fields": True}],
    }
    found = iter(ask_bridge([c for cases in subjects.values() for c in cases], tmp_path_factory.mktemp("bridge")))
    return {name: [next(found) for _ in cases] for name, cases in subjects.items()}


@pytest.mark.parametrize("index", range(len(PLANS)))
def test_it_accepts_the_plan_and_means_the_same(index: int, told: dict[str, list[dict[str, Any]]]) -> None:
    (p, s), answer = PLANS[index], told["plans"][index]
    assert BRIDGE.violations(p, s) == []
    assert answer["accepted"], (p.model.name, s, answer["error"])
    assert degrees_of(answer) == {
        "tp": s.tp, "pp": s.pp, "vpp": s.vpp, "cp": s.cp, "dp": s.dp, "ep": s.ep, "sp": s.sp,
        "m": s.num_microbatches, "fsdp": s.zero >= 2, "tp_overlap": s.tp_overlap, "ep_overlap": s.ep_overlap,
        "zero": s.zero > 0, "grads": s.dp_overlap, "cp_comm": s.cp_comm if s.cp > 1 else None,
        "recompute": s.recompute, "sharding": {2: "optim_grads", 3: "optim_grads_params"}.get(s.zero, "no_shard"),
    }  # fmt: skip
    if p.model.is_moe:
        assert answer["expert_tensor_parallel_size"] == s.etp
    if s.zero and p.workload.optimizer != "muon":
        assert answer["overlap_param_gather"] == s.dp_overlap
    assert tuple(answer["layers"]) == (s.layers_per_stage or even_split(p.model.num_layers, s.pp * s.vpp))
    assert answer["padded_vocabulary"] == p.padded_vocabulary(np.array([s.tp]))[0]
    check_groups(p, s, answer["groups"])


def degrees_of(answer: dict[str, Any]) -> dict[str, Any]:
    names = {
        "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
        "dp": "data_parallel_size", "ep": "expert_model_parallel_size", "sp": "sequence_parallel", "vpp": "vpp",
        "m": "num_microbatches", "fsdp": "use_megatron_fsdp", "tp_overlap": "tp_comm_overlap",
        "ep_overlap": "overlap_moe_expert_parallel_comm", "grads": "overlap_grad_reduce", "cp_comm": "cp_comm_type",
        "sharding": "data_parallel_sharding_strategy",
    }  # fmt: skip
    found = {ours: answer[theirs] for ours, theirs in names.items()}
    found["recompute"] = answer["recompute_granularity"] or "none"
    found["zero"] = answer["use_distributed_optimizer"] or answer["optimizer"] == "dist_muon"
    return found


def test_it_accepts_whatever_our_rules_allow(told: dict[str, list[dict[str, Any]]]) -> None:
    assert len(DRAWN) >= 50
    pairs = zip(DRAWN, told["drawn"], strict=True)
    assert [(p.model.name, s, a["error"]) for (p, s), a in pairs if not a["accepted"]] == []


REFUSED: list[tuple[dict[str, Any], Strategy, str]] = [
    ({}, Strategy(tp=8, sp=True, pp=3, dp=16, num_microbatches=64), "world-size"),
    ({"batch": 1000}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=62), "global-batch"),
    ({}, Strategy(tp=128, sp=True, dp=4, num_microbatches=256), "heads"),
    ({"sequence": 4100}, Strategy(tp=2, cp=4, dp=64, num_microbatches=16), "sequence-cp"),
    ({"sequence": 4100}, Strategy(tp=2, cp=4, cp_comm="a2a", ulysses=4, dp=64, num_microbatches=16), "sequence-2cp"),
    ({"name": MIXTRAL}, Strategy(tp=2, sp=True, pp=8, ep=8, dp=32, num_microbatches=32, ep_overlap=True),
     "ep-overlap-pipeline"),
    ({"name": MIXTRAL}, Strategy(ep=8, dp=512, num_microbatches=2, ep_overlap=True, recompute="full"),
     "ep-overlap-recompute"),
    ({"name": MIXTRAL, "gpus": 8, "batch": 8}, Strategy(tp=4, sp=True, pp=2, ep=8, num_microbatches=8), "expert-mesh"),
]  # fmt: skip
"""Strategies that our rules refuse and the real Megatron-Bridge refuses too, checking or making its groups."""


def test_what_we_refuse_it_refuses(told: dict[str, list[dict[str, Any]]]) -> None:
    for (given, s, rule), answer in zip(REFUSED, told["refused"], strict=True):
        assert rule in {v.rule for v in BRIDGE.violations(problem(**given), s)}, rule
        assert not answer["accepted"], rule


def test_it_switches_tensor_overlap_off_where_our_rule_and_our_reader_say_so(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    p, s = NO_SP
    assert "tp-overlap-needs-sp" in {v.rule for v in BRIDGE.violations(p, s)}
    (answer,) = told["no sp"]
    assert answer["accepted"] and not answer["tp_comm_overlap"]
    text = recipe(p, s, LaunchSettings())
    parsed = BRIDGE.parse({"recipe.py": text, "launch.sh": "torchrun --nnodes 64 --nproc-per-node 8 recipe.py"})
    assert not parsed.strategy.tp_overlap and any("tp_comm_overlap has no effect" in a for a in parsed.assumptions)


OVERRIDES = [
    "model.tensor_model_parallel_size=4 model.pipeline_model_parallel_size=2 train.micro_batch_size=2",
    "model.virtual_pipeline_model_parallel_size=5 model.sequence_parallel=false",
    "model.context_parallel_size=2 model.cp_comm_type=a2a train.global_batch_size=256",
    "model.num_layers_in_first_pipeline_stage=19 model.num_layers_in_last_pipeline_stage=19",
    "model.account_for_embedding_in_pipeline_split=true model.account_for_loss_in_pipeline_split=true "
    "model.num_layers=78",
    "comm_overlap.overlap_grad_reduce=false comm_overlap.overlap_param_gather=false",
    "ddp.use_distributed_optimizer=false optimizer.use_distributed_optimizer=false ddp.overlap_param_gather=false",
    "model.recompute_granularity=full model.recompute_method=block model.recompute_num_layers=3",
]
"""Command lines behind one recipe: what Megatron-Bridge makes of them is what we read."""


BASE = (problem(), fitted(problem(), tp=8, sp=True, pp=4))


def test_it_reads_overrides_as_we_do(told: dict[str, list[dict[str, Any]]]) -> None:
    text_of_recipe = recipe(*BASE, LaunchSettings())
    for text, answer in zip(OVERRIDES, told["overrides"], strict=True):
        assert answer["accepted"], (text, answer["error"])
        launch = f"torchrun --nnodes 64 --nproc-per-node 8 recipe.py {text}\n"
        parsed = BRIDGE.parse({"recipe.py": text_of_recipe, "launch.sh": launch})
        s = parsed.strategy
        assert parsed.unknown == (), text
        ours = {"tp": s.tp, "pp": s.pp, "vpp": s.vpp, "cp": s.cp, "dp": s.dp, "sp": s.sp, "m": s.num_microbatches}
        ours |= {"zero": s.zero > 0, "grads": s.dp_overlap, "recompute": s.recompute, "fsdp": s.zero >= 2}
        assert ours | {"cp_comm": s.cp_comm if s.cp > 1 else None} == {
            **{k: v for k, v in degrees_of(answer).items() if k in ours},
            "cp_comm": answer["cp_comm_type"] if s.cp > 1 else None,
        }, text
        assert parsed.model is not None
        layers = parsed.model.num_layers
        assert tuple(answer["layers"]) == (s.layers_per_stage or even_split(layers, s.pp * s.vpp)), text


def test_our_tables_are_its_own(told: dict[str, list[dict[str, Any]]]) -> None:
    (answer,) = told["tables"]
    assert sorted(known_fields()) == answer["fields"]
    for name, theirs in answer["precisions"].items():
        ours = precision_fields(name)
        if ours is not None:
            assert theirs == {**theirs, **ours}, name
    common = answer["common"]
    assert {path: common.get(path) for path in COMMON} == dict(COMMON)


def test_the_models_of_the_plans_span_kinds() -> None:
    assert len(PLANS) >= 50 and {LLAMA, GPT, MIXTRAL} <= {p.model.name for p, _ in PLANS}

"""The public face: which names it has, how quickly it imports, and the documents it promises."""

import json
import subprocess
import sys
from importlib.resources import files

import jsonschema
import pytest

import shardwise

NAMES = [
    "Calibrated",
    "Cluster",
    "Estimate",
    "InfeasibleError",
    "InputError",
    "LauncherComparison",
    "ModelSpec",
    "NothingFitsError",
    "Objective",
    "Placement",
    "Plan",
    "Problem",
    "Proof",
    "Review",
    "Runtime",
    "ShardwiseError",
    "Simulation",
    "Strategy",
    "StudyResult",
    "UnknownNameError",
    "Workload",
    "calibrate",
    "compare_launchers",
    "estimate",
    "load_cluster",
    "load_runtime",
    "load_topology",
    "place",
    "plan",
    "plan_and_place",
    "read_launch",
    "review",
    "simulate",
    "study",
]
HEAVY = ("numpy", "scipy", "torch", "optuna", "ortools", "matplotlib", "pandas", "pydantic", "rich")


@pytest.fixture(scope="module")
def small_plan():
    return shardwise.plan("llama-3.1-8b", "dgx-h100", shardwise.Workload(64, 4096), num_gpus=16)


def test_the_public_names_are_these():
    assert sorted(shardwise.__all__) == NAMES, "if the change is meant, write it here and into CHANGELOG.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_and_documented(name):
    assert getattr(shardwise, name).__doc__
    assert name in dir(shardwise)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        shardwise.plam  # noqa: B018


def test_importing_is_quick_and_loads_nothing_heavy(tmp_path):
    code = (
        "import time; t = time.process_time(); import shardwise; t = time.process_time() - t\n"
        f"import sys; print(t); print(sorted(m for m in {HEAVY!r} if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    seconds, loaded = out.stdout.splitlines()
    assert float(seconds) < 0.3
    assert loaded == "[]"


def test_planning_loads_no_plotting_or_training_framework(tmp_path):
    code = (
        "import sys, shardwise; shardwise.plan('llama-3.1-8b', 'dgx-h100', shardwise.Workload(8, 2048), num_gpus=8)\n"
        "print(sorted(m for m in ('torch', 'matplotlib', 'rich', 'click') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def schema(name):
    return json.loads((files("shardwise") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))


def test_a_plan_satisfies_its_schema(small_plan):
    document = small_plan.as_dict()
    jsonschema.validate(document, schema("plan"))
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_pipelined_mixture_of_experts_satisfies_the_schema():
    plan = shardwise.plan("mixtral-8x7b", "dgx-a100", shardwise.Workload(64, 4096), num_gpus=32, pins={"pp": 4})
    jsonschema.validate(plan.as_dict(), schema("plan"))
    assert len(plan.estimate.memory_by_rank_bytes) == 4


def test_an_estimate_satisfies_its_schema(small_plan):
    jsonschema.validate(small_plan.estimate.as_dict(), schema("estimate"))


def test_estimate_and_plan_agree(small_plan):
    p = small_plan.problem
    again = shardwise.estimate(p.model, p.cluster, p.workload, small_plan.strategy, runtime=p.runtime)
    assert again.step_time_s == small_plan.step_time_s
    assert sum(again.time_parts_s.values()) == pytest.approx(again.step_time_s)


def test_estimate_takes_settings_as_text():
    e = shardwise.estimate("llama-3.1-8b", "dgx-h100", shardwise.Workload(64, 4096), "tp=2,pp=2,mbs=1", num_gpus=16)
    assert (e.strategy.dp, e.strategy.num_microbatches) == (4, 16)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("tp=3", "does not divide"),
        ("tp=2,mbs=5", "does not divide the global batch"),
        ("tpp=2", "unknown key"),
        ("pp=2,vpp=64", "pipeline-depth"),
        ("ep=2", "ep-needs-moe"),
    ],
)
def test_estimate_says_what_is_wrong_with_a_strategy(settings, said):
    with pytest.raises(shardwise.InputError, match=said):
        shardwise.estimate("llama-3.1-8b", "dgx-h100", shardwise.Workload(64, 4096), settings, num_gpus=16)


def test_a_plan_writes_launch_files(small_plan):
    assert small_plan.launch("megatron")


def test_an_unknown_launcher_offers_the_nearest(small_plan):
    with pytest.raises(shardwise.UnknownNameError, match="megatron"):
        small_plan.launch("megatrom")

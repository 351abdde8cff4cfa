"""Every JSON answer is the whole of standard output, follows the schema that ships, and adds up."""

import importlib.resources
import json

import jsonschema
import pytest

from shardwise.costmodel.presets import list_presets

STRATEGY_KEYS = {
    "tp", "sp", "cp", "cp_comm", "pp", "vpp", "schedule", "dp", "ep", "etp", "zero", "micro_batch_size",
    "num_microbatches", "recompute",
}  # fmt: skip
PREDICTION_KEYS = {
    "schema_version", "strategy", "step_time_s", "time_parts_s", "peak_memory_bytes", "memory_parts_bytes",
    "memory_by_rank_bytes", "tokens_per_s_per_gpu", "mfu", "traffic", "proof", "assumptions",
}  # fmt: skip


def schema(name):
    path = importlib.resources.files("shardwise") / "schemas" / f"{name}.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))


def check(result, name):
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    jsonschema.validate(document, schema(name), cls=jsonschema.Draft202012Validator)
    return document


def check_sums(document):
    assert sum(document["time_parts_s"].values()) == pytest.approx(document["step_time_s"])
    assert sum(document["memory_parts_bytes"].values()) == pytest.approx(document["peak_memory_bytes"])
    assert max(document["memory_by_rank_bytes"]) == pytest.approx(document["peak_memory_bytes"])
    assert len(document["memory_by_rank_bytes"]) == document["strategy"]["pp"]
    assert sum(row["share"] for row in document["traffic"]) == pytest.approx(1.0)
    low, high = document["step_time_interval_s"]
    assert low <= document["step_time_s"] <= high


@pytest.mark.parametrize("name", ["plan", "estimate", "model", "validate", "infeasible"])
def test_the_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_plan(run, request_args):
    document = check(run("plan", *request_args(), "--json"), "plan")
    assert set(document) >= PREDICTION_KEYS
    assert set(document["strategy"]) >= STRATEGY_KEYS
    check_sums(document)
    s = document["strategy"]
    assert s["tp"] * s["cp"] * s["pp"] * s["dp"] == 16
    assert s["micro_batch_size"] * s["dp"] * s["num_microbatches"] == 64
    assert document["fits"]
    assert document["proof"]["gap"] == 0
    assert len(document["alternatives"]) == 4
    steps = [a["step_time_s"] for a in document["alternatives"]]
    assert steps == sorted(steps)
    assert document["step_time_s"] <= steps[0]


def test_plan_of_experts(run, request_args):
    changes = {"--model": "mixtral-8x7b", "--cluster": "dgx-h200", "--gpus": "64", "--top": "2"}
    document = check(run("plan", *request_args(changes), "--no-refine", "--json"), "plan")
    check_sums(document)
    assert document["refinement"] is None
    assert len(document["alternatives"]) == 1


def test_estimate(run, request_args):
    result = run(
        "estimate", *request_args(), "--strategy", "tp=4,pp=2,mbs=1,sp=on,recompute=selective,zero=1", "--json"
    )
    document = check(result, "estimate")
    assert set(document) >= PREDICTION_KEYS
    check_sums(document)
    assert document["strategy"]["dp"] == 2
    assert document["violations"] == []


def test_the_plan_is_what_estimate_says_of_it(run, request_args):
    planned = check(run("plan", *request_args(), "--no-refine", "--json"), "plan")
    s = planned["strategy"]
    text = []
    for key, value in s.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "on" if value else "off"
        text.append(f"{key}={'/'.join(map(str, value)) if isinstance(value, list) else value}")
    estimated = check(run("estimate", *request_args(), "--strategy", ",".join(text), "--json"), "estimate")
    assert estimated["strategy"] == s
    assert estimated["step_time_s"] == pytest.approx(planned["step_time_s"])
    assert estimated["peak_memory_bytes"] == pytest.approx(planned["peak_memory_bytes"])


def test_a_layout_that_does_not_fit_is_still_estimated(run, request_args):
    changes = {"--model": "llama-3.1-405b"}
    document = check(run("estimate", *request_args(changes), "--strategy", "tp=8", "--json"), "estimate")
    assert not document["fits"]


def test_the_same_inputs_give_the_same_plan(run, request_args):
    first, second = (json.loads(run("plan", *request_args(), "--json").stdout) for _ in range(2))
    for document in (first, second):
        del document["proof"]["time_s"]
    assert first == second


def test_nothing_fits(run, request_args):
    result = run("plan", *request_args({"--model": "llama-3.1-405b", "--gpus": "8"}), "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    jsonschema.validate(document, schema("infeasible"), cls=jsonschema.Draft202012Validator)
    assert document["changes"]
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", list_presets())
def test_models(run, name):
    check(run("models", "show", name, "--json"), "model")


def test_validate(run, tmp_path):
    rows = [{"id": "a"}, {"id": "b", "model": {}, "hardware": {}, "parallel": {}}]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    document = check(run("validate", path, "--json"), "validate")
    assert [row["id"] for row in document["rows"]] == ["a", "b"]
    assert all(row["skipped"] for row in document["rows"])

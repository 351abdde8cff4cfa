"""``plan --launcher any``: the best plan of every launcher, side by side."""

import importlib.resources
import json

import jsonschema
import pytest


def schema(name):
    path = importlib.resources.files("shardwise") / "schemas" / f"{name}.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_json_answer_follows_its_schema_and_holds_whole_plans(run, request_args):
    result = run("plan", *request_args({"--launcher": "any"}), "--no-refine", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    jsonschema.validate(document, schema("launchers"), cls=jsonschema.Draft202012Validator)
    plans = [e["plan"] for e in document["launchers"] if e["plan"]]
    assert len(plans) >= 2
    for found in plans:
        jsonschema.validate(found, schema("plan"), cls=jsonschema.Draft202012Validator)
    assert [p["step_time_s"] for p in plans] == sorted(p["step_time_s"] for p in plans)


def test_it_prints_a_row_each_and_writes_a_folder_each(run, request_args, tmp_path):
    out = tmp_path / "jobs"
    result = run("plan", *request_args({"--launcher": "any"}), "--no-refine", "--out", out)
    assert result.exit_code == 0, result.stderr
    rows = [line.split()[0] for line in result.stdout.splitlines() if " no recompute" in line or " recompute" in line]
    assert {"megatron", "torchtitan"} <= set(rows)
    assert "megatron-deepspeed: no plan: " in result.stdout
    for name in ("megatron", "torchtitan"):
        assert (out / name / "launch.sh").is_file()
        again = run("estimate", "--cluster", "dgx-h100", "--from-launch", out / name, "--json")
        assert again.exit_code == 0, again.stderr
        assert json.loads(again.stdout)["launcher"] == name
    assert json.loads((out / "comparison.json").read_text())["launchers"][0]["plan"]


def test_a_trace_shows_one_plan(run, request_args, tmp_path):
    result = run("plan", *request_args({"--launcher": "any"}), "--trace", tmp_path / "t.json")
    assert result.exit_code != 0
    assert "name its launcher" in (result.stderr or str(result.exception))


def test_nothing_fits_is_said_as_for_one(run, request_args):
    changes = {"--launcher": "any", "--model": "llama-3.1-405b", "--gpus": "8", "--global-batch": "8"}
    result = run("plan", *request_args(changes))
    assert result.exit_code != 0
    assert "nothing fits" in (result.stderr or str(result.exception))

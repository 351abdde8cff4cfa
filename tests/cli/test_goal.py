"""Objectives on the command line: what is asked, what is printed, and what the JSON says."""

import json
import re

import pytest

from .test_json import check


@pytest.fixture
def asked(run, request_args):
    """``asked("8..32", …)``: a plan without refinement for these GPU counts."""

    def ask(gpus, *options):
        return run("plan", *request_args({"--gpus": gpus}), "--no-refine", *options)

    return ask


def test_several_counts_are_compared(asked):
    result = asked("8..32", "--objective", "tokens-per-gpu")
    assert result.exit_code == 0, result.stderr
    assert "most tokens per second and GPU of 4 cases (proven)" in result.stdout
    table = result.stdout[result.stdout.index("GPU counts") : result.stdout.index("Time by part")]
    assert len(re.findall(r"^ +\d+ .* best ", table, re.MULTILINE)) == 1


def test_one_count_prints_no_table(asked):
    assert "GPU counts" not in asked("16").stdout


def test_fewest_gpus_by_a_deadline(asked):
    ask = ("--objective", "fewest-gpus", "--tokens", "1e12", "--json")
    weeks = {d: check(asked("8..64", "--deadline", d, *ask), "plan") for d in ("60d", "30d")}
    slow, fast = (weeks[d] for d in ("60d", "30d"))
    assert slow["num_gpus"] < fast["num_gpus"]
    for document, days in ((slow, 60), (fast, 30)):
        assert document["goal"]["run_s"] <= days * 86400
        steps = -(-(10**12) // (64 * 4096))
        assert document["goal"]["limit_s"] == pytest.approx(days * 86400 / steps)
        assert document["step_time_s"] <= document["goal"]["limit_s"] * 1.0001
        below = [c for c in document["goal"]["cases"] if c["num_gpus"] < document["num_gpus"]]
        assert all(c["outcome"] in ("ruled out", "beaten", "impossible") for c in below)


def test_a_limit_that_cannot_be_met(asked):
    result = asked("8", "--max-step-time", "10ms", "--json")
    assert result.exit_code == 3
    assert "per step or less: the fastest takes" in result.stderr
    assert json.loads(result.stdout)["error"] == "infeasible"


def test_cost(asked):
    ask = ("--objective", "cost", "--price-per-gpu-hour", "2.5", "--tokens", "1e12")
    goal = check(asked("8,16", *ask, "--json"), "plan")["goal"]
    best = next(c for c in goal["cases"] if c["outcome"] == "best")
    per_step = 2.5 * best["num_gpus"] * best["step_time_s"] / 3600
    assert goal["unit"] == "USD/token"
    assert goal["value"] == pytest.approx(per_step / (64 * 4096))
    assert f"${goal['value'] * 1e6:.4f} per million tokens" in asked("8,16", *ask).stdout


def test_the_price_of_a_profile(run, request_args, tmp_path):
    text = (
        "extends: dgx-h100\nname: mine\nprice_usd_per_gpu_hour: {value: 2.0, origin: assumed, source: our contract}\n"
    )
    (tmp_path / "mine.yaml").write_text(text)
    changes = {"--cluster": str(tmp_path / "mine.yaml"), "--objective": "cost"}
    goal = check(run("plan", *request_args(changes), "--no-refine", "--json"), "plan")["goal"]
    twice = check(
        run("plan", *request_args({**changes, "--price-per-gpu-hour": "4"}), "--no-refine", "--json"), "plan"
    )["goal"]
    assert twice["value"] == pytest.approx(2.0 * goal["value"])


def test_a_price_without_a_source_is_refused(run, request_args, tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: dgx-h100\nname: mine\nprice_usd_per_gpu_hour: {value: 2.0}\n")
    result = run("plan", *request_args({"--cluster": str(tmp_path / "mine.yaml")}))
    assert result.exit_code == 2 and "price_usd_per_gpu_hour" in result.stderr


def test_precisions_to_choose_from(asked):
    document = check(asked("16", "--dtype", "bf16,fp8", "--json"), "plan")
    assert {c["dtype"] for c in document["goal"]["cases"]} == {"bf16", "fp8"}
    assert document["goal"]["dtype"] in ("bf16", "fp8")


def test_the_margin_is_left_free(run, request_args):
    for command, rest in (("plan", ("--no-refine",)), ("estimate", ("--strategy", "tp=2"))):
        whole = json.loads(run(command, *request_args({"--memory-margin": "0"}), *rest, "--json").stdout)
        less = json.loads(run(command, *request_args({"--memory-margin": "0.25"}), *rest, "--json").stdout)
        assert less["capacity_bytes"] == pytest.approx(0.75 * whole["capacity_bytes"])
    assert less["peak_memory_bytes"] == whole["peak_memory_bytes"]

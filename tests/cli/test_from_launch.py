"""``estimate --from-launch``: launch files in, a prediction and what to change out."""

import importlib.resources
import json

import jsonschema
import pytest

SCRIPT = """\
#!/bin/bash
TP=${TP:-2}
ARGS=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
  --untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 8192 --vocab-size 128256 --bf16
  --attention-dropout 0.0 --hidden-dropout 0.0 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer
  --tensor-model-parallel-size $TP --ddp-bucket-size 4000 --recompute-granularty full --log-interval 5)
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}"
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def estimated(run, *args):
    result = run("estimate", "--cluster", "dgx-h100", *args, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    path = importlib.resources.files("shardwise") / "schemas" / "estimate.schema.json"
    jsonschema.validate(document, json.loads(path.read_text(encoding="utf-8")), cls=jsonschema.Draft202012Validator)
    return document


def test_a_script_says_everything_but_the_cluster(run, script):
    document = estimated(run, "--from-launch", script)
    assert document["num_gpus"] == 16
    assert {k: document["strategy"][k] for k in ("tp", "dp", "zero", "num_microbatches")} == {
        "tp": 2, "dp": 8, "zero": 1, "num_microbatches": 8,
    }  # fmt: skip
    assert [o["name"] for o in document["options"]["unmodelled"]] == ["--ddp-bucket-size"]
    (odd,) = document["options"]["unknown"]
    assert (odd["name"], odd["line"], odd["file"]) == ("--recompute-granularty", 7, "train.sh")
    assert "--recompute-granularity" in odd["note"]


def test_the_prediction_is_that_of_the_same_layout_written_out(run, script, request_args):
    document = estimated(run, "--from-launch", script)
    settings = "tp=2,sp=off,zero=1,recompute=none,tp_overlap=off,dp_overlap=off,mbs=1"
    plain = json.loads(run("estimate", *request_args(), "--strategy", settings, "--json").stdout)
    for key in ("step_time_s", "peak_memory_bytes", "strategy"):
        assert document[key] == pytest.approx(plain[key]), key


def test_changes_get_better_with_their_number(run, script):
    document = estimated(run, "--from-launch", script)
    one, two, best = (document["changes"][name] for name in ("best_one", "best_two", "optimum"))
    assert 0 < one["gain"] <= two["gain"] <= best["gain"] < 1
    for found in (one, two, best):
        assert found["step_time_s"] == pytest.approx(document["step_time_s"] * (1 - found["gain"]))
        assert found["peak_memory_bytes"] <= document["capacity_bytes"]
        for item in found["changes"]:
            assert document["strategy"][item["dimension"]] == item["from"] != item["to"]
            assert found["strategy"][item["dimension"]] == item["to"]


def test_it_prints_what_to_change(run, script):
    result = run("estimate", "--cluster", "dgx-h100", "--from-launch", script)
    assert result.exit_code == 0, result.stderr
    for text in ("best single change", "best two changes", "optimum", "not understood", "does not count",
                 "train.sh:7 --recompute-granularty full"):  # fmt: skip
        assert text in result.stdout, text


def test_what_is_given_wins_over_the_file(run, script):
    more = ("--gpus", "32", "--global-batch", "128", "--seq-len", "2048", "--dtype", "fp8", "--var", "TP=4")
    document = estimated(run, "--from-launch", script, *more)
    assert (document["num_gpus"], document["strategy"]["tp"], document["strategy"]["dp"]) == (32, 4, 8)
    assert document["strategy"]["num_microbatches"] == 16


def test_a_plans_own_files_are_read_back_and_nothing_better_is_found(run, request_args, tmp_path):
    folder = tmp_path / "job"
    planned = json.loads(run("plan", *request_args(), "--no-refine", "--out", folder, "--json").stdout)
    document = estimated(run, "--from-launch", folder)
    assert document["strategy"] == planned["strategy"]
    assert document["step_time_s"] == pytest.approx(planned["step_time_s"], rel=1e-3)
    assert document["changes"] == {"best_one": None, "best_two": None, "optimum": None}
    assert document["violations"] == []


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "expected one of --strategy and --from-launch"),
        (("--from-launch", "SCRIPT", "--strategy", "tp=2"), "expected one of --strategy and --from-launch"),
        (("--strategy", "tp=2"), "Missing option '--model'"),
        (("--from-launch", "absent.sh"), "absent.sh"),
        (("--from-launch", "SCRIPT", "--var", "TP"), "--var TP: expected NAME=VALUE"),
        (("--from-launch", "SCRIPT", "--gpus", "9"), "tp·cp·pp = 2 does not divide the 9 GPUs"),
        (("--from-launch", "SCRIPT", "--gpus", "64", "--var", "TP=64"), "--tensor-model-parallel-size 64"),
        (("--from-launch", "SCRIPT", "--launcher", "megatrn"), "did you mean 'megatron'"),
        (("--from-launch", "SCRIPT", "--launcher", "generic"), "cannot read launch files"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(run, script, args, text):
    words = [script if a == "SCRIPT" else a for a in args]
    result = run("estimate", "--cluster", "dgx-h100", *words)
    message = str(result.exception) if result.exception and not result.stderr else result.stderr
    assert result.exit_code != 0
    assert text in message, message

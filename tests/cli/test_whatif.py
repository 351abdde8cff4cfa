"""``shardwise whatif`` as a person runs it."""

import json

import pytest

JOB = ["--model", "llama-3.2-1b", "--global-batch", "64", "--seq-len", "2048"]
PLACE = ["--cluster", "dgx-h100", "--gpus", "16"]
SPEED = ["--vary", "cluster.tiers.scale-out.bytes_per_s", "--from", "1e9", "--to", "1e11"]


def test_scale_prints_the_curve_and_its_json(run):
    args = ["whatif", "scale", *JOB, "--cluster", "dgx-h100", "--gpus", "8..32"]
    text = run(*args)
    assert text.exit_code == 0, text.output
    assert "Strong scaling" in text.stdout
    answer = json.loads(run(*args, "--json").stdout)
    assert [point["gpus"] for point in answer["points"]] == [8, 16, 32]
    assert answer["points"][0]["efficiency"] == 1.0


def test_sensitivity_names_every_resource(run):
    text = run("whatif", "sensitivity", *JOB, *PLACE)
    assert text.exit_code == 0, text.output
    assert "scale-out latency" in text.stdout
    assert "-0.0 %" not in text.stdout


def test_break_even_between_clusters(run):
    more = [
        "--vary",
        "price_per_gpu_hour",
        "--from",
        "0.1",
        "--to",
        "50",
        "--against",
        "dgx-b200",
        "--against-price",
        "5",
    ]
    answer = json.loads(run("whatif", "breakeven", *JOB, *PLACE, *more, "--json").stdout)
    assert 0.1 < answer["value"] < 5  # a slower accelerator must be the cheaper one


def test_fewest_gpus_says_which_counts_do_and_what_it_proved(run):
    args = ["whatif", "fewest-gpus", *JOB, "--cluster", "dgx-h100", "--gpus", "8,16,24", "--tokens", "1e12"]
    text = run(*args, "--deadline", "25d", "--price-per-gpu-hour", "2")
    assert text.exit_code == 0, text.output
    assert "smaller count" in text.stdout
    answer = json.loads(run(*args, "--deadline", "25d", "--json").stdout)
    enough = [c["gpus"] for c in answer["around"] if c["verdict"] == "enough"]
    assert answer["gpus"] == min(enough)
    steps = -(-1e12 // (64 * 2048))
    assert answer["limit_s"] == pytest.approx(25 * 86400 / steps)


def test_cost_and_comparison(run):
    bills = json.loads(
        run("whatif", "cost", *JOB, "--tokens", "1e9", "--on", "dgx-h100:8:2", "--on", "dgx-a100:8", "--json").stdout
    )
    assert bills[0]["usd"] == pytest.approx(2 * bills[0]["gpu_hours"])
    assert bills[1]["usd"] is None
    text = run("whatif", "compare", "dgx-h100:8", "dgx-a100:8", *JOB)
    assert text.exit_code == 0, text.output
    assert "Side by side" in text.stdout


def test_a_launch_file_beside_a_cluster(run, tmp_path):
    script = tmp_path / "[red]train.sh"
    script.write_text(
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --swiglu"
        " --num-attention-heads 32 --vocab-size 32000 --seq-length 2048 --max-position-embeddings 2048 --bf16"
        " --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 8 --no-such-option 3"
        " --position-embedding-type rope --ffn-hidden-size 8192\n"
    )
    args = ["whatif", "compare", script, "dgx-h100:8", "--cluster", "dgx-h100"]
    text = run(*args)
    assert text.exit_code == 0, text.output
    for words in ("[red]train.sh", "Settings that differ", "Time by part", "Peak memory by part", "--no-such-option"):
        assert words in text.stdout
    answer = json.loads(run(*args, "--json").stdout)
    assert answer["b"]["step_time_s"] <= answer["a"]["step_time_s"]
    assert answer["seconds_per_token_ratio"] == pytest.approx(answer["b"]["step_time_s"] / answer["a"]["step_time_s"])
    assert "tp" in [d["setting"] for d in answer["differences"]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["scale", *JOB, "--cluster", "dgx-h100", "--gpus", "32..8"], "runs downwards"),
        (["scale", *JOB, "--cluster", "dgx-h100", "--gpus", "many"], "--gpus many"),
        (["scale", *JOB, "--cluster", "dgx-h10", "--gpus", "8"], "dgx-h10"),
        (["cost", *JOB, "--tokens", "1e9", "--on", "dgx-h100"], "--on dgx-h100: expected CLUSTER:GPUS"),
        (["cost", *JOB, "--tokens", "nan", "--on", "dgx-h100:8"], "'nan' is not a number above 0"),
        (["cost", *JOB, "--tokens", "1e9", "--on", "dgx-h100:8:nan"], "--on dgx-h100:8:nan: 'nan' is not a number"),
        (["fewest-gpus", *JOB, "--cluster", "dgx-h100", "--gpus", "9"], "whole nodes"),
        (["fewest-gpus", *JOB, "--cluster", "dgx-h100", "--deadline", "1d"], "--tokens"),
        (["compare", *JOB, "dgx-h100:8", ""], "'': expected CLUSTER:GPUS"),
        (["compare", *JOB, "dgx-h100:8", "dgx-h100:many"], "'many' is not a whole number"),
        (["compare", *JOB, "dgx-h100:8", "nowhere/train.sh"], "a launch file (or a folder of them) that is there"),
        (["compare", *JOB, "dgx-h100:8", "dgx-h100:8", "--var", "TP=8"], "--var goes with a launch file"),
        (["breakeven", *JOB, *PLACE, "--vary", "speed", "--from", "1", "--to", "2"], "speed: unknown key"),
        (["breakeven", *JOB, *PLACE, *SPEED, "--against-gpus", "8"], "--against-gpus is of the other cluster"),
        (
            ["breakeven", *JOB, *PLACE, *SPEED, "--against-price", "2"],
            "--against-price is of the other cluster: name it",
        ),
        (["breakeven", *JOB, *PLACE, "--vary", "gpus", "--from", "1", "--to", "2"], "whole numbers"),
    ],
)
def test_a_refusal_is_one_line(run_process, args, words):
    done = run_process("whatif", *args)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr

"""Megatron-DeepSpeed's launch files: DeepSpeed's settings agree with the arguments, and the script passes both on."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import LaunchSettings, get_launcher
from shardwise.launchers.megatron_deepspeed_files import deepspeed_config, megatron_deepspeed_arguments

from .bench import run
from .problems import GPT, fitted, model, problem

LAUNCHER = get_launcher("megatron-deepspeed")
BLOOM: dict[str, Any] = {"name": "bloom-176b", "gpus": 384, "batch": 2048, "sequence": 2048, "cluster": "dgx-a100"}
PLAN: dict[str, Any] = {"tp": 4, "pp": 12, "micro_batch_size": 2, "recompute": "full", "dp_overlap": False}
DATA = {"DATA_PATH": "/data/my text", "TOKENIZER": "bigscience/bloom"}


def a_plan(**work: Any) -> tuple[Problem, Strategy]:
    p = problem(**BLOOM, **work, runtime=LAUNCHER.runtime_for(work.get("dtype", "bf16")))
    return p, fitted(p, **PLAN)


def write(folder: Path, p: Problem, s: Strategy, settings: LaunchSettings | None = None) -> None:
    for name, text in LAUNCHER.render(p, s, settings).items():
        (folder / name).write_text(text)


def value(arguments: list[str], flag: str) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def test_bloom_is_launched_as_its_own_job_was() -> None:
    arguments = megatron_deepspeed_arguments(*a_plan())
    known = {
        "--pp-partition-method": "type:transformer|embedding",
        "--tensor-model-parallel-size": "4",
        "--pipeline-model-parallel-size": "12",
        "--micro-batch-size": "2",
        "--global-batch-size": "2048",
        "--pad-vocab-size-to": "250880",
        "--init-method-std": "0.0048",
        "--zero-stage": "0",
    }
    assert {flag: value(arguments, flag) for flag in known} == known
    switches = {"--bf16", "--embed-layernorm", "--checkpoint-activations", "--abort-on-unmet-fused-kernel-constraints"}
    assert {*switches, "--deepspeed", "--deepspeed-activation-checkpointing"} <= set(arguments)


def test_deepspeed_has_the_batch_and_the_zero_stage_of_the_arguments() -> None:
    for dtype in ("bf16", "fp16"):
        p, s = a_plan(dtype=dtype)
        config, arguments = deepspeed_config(p, s), megatron_deepspeed_arguments(p, s)
        assert config["train_batch_size"] == config["train_micro_batch_size_per_gpu"] * s.dp * s.num_microbatches
        assert str(config["train_batch_size"]) == value(arguments, "--global-batch-size")
        assert str(config["zero_optimization"]["stage"]) == value(arguments, "--zero-stage")
        assert str(config["gradient_clipping"]) == value(arguments, "--clip-grad")
        assert config[dtype]["enabled"] and f"--{dtype}" in arguments
        assert len({"bf16", "fp16"} & set(config)) == 1


@pytest.mark.parametrize(("dtype", "zero", "stage"), [("bf16", 1, 0), ("fp16", 1, 1), ("fp16", 0, 0)])
def test_the_bf16_optimizer_divides_its_states_under_stage_0(dtype: str, zero: int, stage: int) -> None:
    p, s = a_plan(dtype=dtype)
    assert deepspeed_config(p, replace(s, zero=zero))["zero_optimization"] == {"stage": stage}


def test_dropout_is_the_runtime_profiles() -> None:
    assert value(megatron_deepspeed_arguments(*a_plan()), "--hidden-dropout") == "0.0"
    assert value(megatron_deepspeed_arguments(*a_plan(dtype="fp16")), "--hidden-dropout") == "0.1"


def test_no_recomputation_needs_no_flag() -> None:
    p, s = a_plan()
    assert "--checkpoint-activations" not in megatron_deepspeed_arguments(p, replace(s, recompute="none"))


@pytest.mark.parametrize(("sequence", "fused"), [(2048, True), (4096, False), (2046, False)])
def test_the_fused_softmax_is_insisted_on_where_it_is_possible(sequence: int, fused: bool) -> None:
    p = problem(**{**BLOOM, "sequence": sequence})
    s = fitted(p, **PLAN)
    assert ("--abort-on-unmet-fused-kernel-constraints" in megatron_deepspeed_arguments(p, s)) is fused
    assert ("softmax run one after the other" in LAUNCHER.render(p, s)["launch.sh"]) is not fused


def test_the_vocabulary_is_padded_as_the_cost_model_does() -> None:
    p = problem(GPT, gpus=64, batch=64, sequence=2048)
    arguments = megatron_deepspeed_arguments(p, fitted(p, tp=8, dp_overlap=False))
    assert int(value(arguments, "--pad-vocab-size-to")) == 51200
    assert int(value(arguments, "--make-vocab-size-divisible-by")) == p.runtime.vocab_multiple


def test_torchrun_gets_exactly_the_arguments(bench: Path) -> None:
    p, s = a_plan()
    write(bench, p, s)
    called = run(bench, "launch.sh", "--save", "a b", NODE_RANK="3", MASTER_ADDR="n1", MEGATRON_PATH="/opt/m m", **DATA)
    argv = called["argv"]
    assert isinstance(argv, list)
    at = argv.index("/opt/m m/pretrain_gpt.py")
    # Underscores: PyTorch of 2022 has no other spelling.
    assert argv[:at] == [
        "--nnodes", "48", "--nproc_per_node", "8", "--node_rank", "3", "--master_addr", "n1", "--master_port", "29500",
    ]  # fmt: skip
    data = ["--data-path", "/data/my text", "--data-impl", "mmap", "--tokenizer-type", "PretrainedFromHF"]
    data += ["--tokenizer-name-or-path", "bigscience/bloom"]
    config = ["--deepspeed_config", str(bench / "ds_config.json")]
    assert argv[at + 1 :] == [*data, *megatron_deepspeed_arguments(p, s), *config, "--save", "a b"]
    assert json.loads((bench / "ds_config.json").read_text()) == deepspeed_config(p, s)


def test_data_and_tokenizer_are_asked_for(bench: Path) -> None:
    write(bench, *a_plan())
    done = subprocess.run(["bash", "launch.sh"], cwd=bench, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "DATA_PATH: set it to" in done.stderr


def test_names_cannot_leave_their_comment(bench: Path) -> None:
    nasty = replace(
        model("gpt-2-medium"), name="x\n$(touch owned) `touch owned` '\"; touch owned #", architecture="\ntouch owned"
    )
    p = problem(nasty, sequence=1024)
    write(bench, p, fitted(p, pp=4, dp_overlap=False))
    run(bench, "launch.sh", **DATA)
    assert not (bench / "owned").exists()


def test_a_placement_fixes_the_order_of_the_hosts(bench: Path) -> None:
    p = problem("gpt-2-medium", gpus=16, batch=16, sequence=1024)
    write(bench, p, fitted(p, pp=2, dp_overlap=False), LaunchSettings(hosts=("n7", "n2"), job_name="mine"))
    assert (bench / "hostfile").read_text() == "n7\nn2\n"
    text = (bench / "sbatch.sh").read_text()
    assert "--distribution=arbitrary" in text and "--job-name=mine" in text


def test_what_is_yours_and_what_was_assumed_stands_in_one_place() -> None:
    text = LAUNCHER.render(*a_plan())["launch.sh"]
    yours, planned = text.split("# ---- The plan")
    for name in ("DATA_ARGS", "TOKENIZER", "SCHEDULE_ARGS", "CHECK_ARGS", "MEGATRON_PATH"):
        assert f"\n{name}=" in yours and f"\n{name}=" not in planned
    assert yours.count("# Assumed: ") >= 2

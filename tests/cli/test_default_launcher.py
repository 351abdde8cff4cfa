"""``plan`` without ``--launcher``: who writes the files, and what is said when nobody can."""

import json
import os
import subprocess

BLOOM = {
    "--model": "bloom-176b",
    "--cluster": "dgx-a100",
    "--gpus": "384",
    "--global-batch": "2048",
    "--seq-len": "2048",
}
NOBODYS = {"--model": "gpt-j-6b"}
BECAUSE = "launcher megatron-deepspeed: megatron cannot express ALiBi positions"


def test_bloom_gets_a_plan_that_the_framework_which_trained_it_can_run(run, request_args):
    document = json.loads(run("plan", *request_args(BLOOM), "--no-refine", "--json").stdout)
    assert (document["launcher"], document["runtime"]) == ("megatron-deepspeed", "megatron-deepspeed-bf16")
    assert BECAUSE in document["assumptions"]


def test_the_pasted_command_writes_what_the_script_reads(run, request_args, tmp_path):
    result = run("plan", *request_args(BLOOM), "--no-refine")
    assert result.exit_code == 0, result.stderr
    assert BECAUSE in result.stdout and "No launch files" not in result.stdout
    (tmp_path / "pasted.sh").write_text(result.stdout[result.stdout.index("cat >ds_config.json") :])
    fake = tmp_path / "torchrun"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "DATA_PATH": "d", "TOKENIZER": "t"}
    done = subprocess.run(["bash", "pasted.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[words.index("--deepspeed_config") + 1] == str(tmp_path / "ds_config.json")
    assert json.loads((tmp_path / "ds_config.json").read_text())["train_batch_size"] == 2048


def test_out_has_the_settings_of_deepspeed(run, request_args, tmp_path):
    assert run("plan", *request_args(BLOOM), "--no-refine", "--out", tmp_path / "job").exit_code == 0
    names = sorted(p.name for p in (tmp_path / "job").iterdir())
    assert {"ds_config.json", "launch.sh", "plan.json", "sbatch.sh"} <= set(names)


def test_a_model_that_no_launcher_can_express_is_planned_all_the_same(run, request_args):
    result = run("plan", *request_args(NOBODYS), "--no-refine")
    assert result.exit_code == 0, result.stderr
    assert "To launch" not in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("No launch files")]
    assert line.startswith("No launch files: no launcher takes this job (megatron cannot express ")


def test_a_launcher_that_was_asked_for_must_express_the_model(run, request_args):
    result = run("plan", *request_args({**BLOOM, "--launcher": "megatron"}))
    assert result.exit_code == 2
    assert "cannot express ALiBi positions" in result.stderr


def test_the_generic_launcher_that_was_asked_for_says_nothing(run, request_args):
    result = run("plan", *request_args({**NOBODYS, "--launcher": "generic"}), "--no-refine")
    assert result.exit_code == 0 and "No launch files" not in result.stdout

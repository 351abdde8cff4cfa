"""``plan`` and ``estimate`` for people: what is printed, written, and said when it cannot be."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

SECTIONS = (
    "recommended", "step time", "tokens/s/GPU", "MFU", "memory", "Time by part", "Memory by pipeline rank",
    "Traffic per GPU and step", "Why not otherwise", "Runners-up", "Short list", "Proof", "assumptions", "To launch",
)  # fmt: skip


def test_plan_prints_every_part_in_order(run, request_args):
    result = run("plan", *request_args())
    assert result.exit_code == 0, result.stderr
    places = [result.stdout.index(section) for section in SECTIONS]
    assert places == sorted(places)
    assert "TP " in result.stdout
    assert "torchrun" in result.stdout
    assert result.stderr == ""
    assert "\x1b" not in result.stdout


def test_the_pasted_command_is_a_script(run, request_args, tmp_path):
    text = run("plan", *request_args()).stdout
    script = text[text.index("bash <<'LAUNCH'") :]
    (tmp_path / "pasted.sh").write_text(script)
    assert subprocess.run(["bash", "-n", tmp_path / "pasted.sh"], check=False).returncode == 0
    fake = tmp_path / "torchrun"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", tmp_path / "pasted.sh"], env=env, capture_output=True, text=True, check=True)
    assert "--tensor-model-parallel-size" in result.stdout.split()
    assert result.stdout.split()[result.stdout.split().index("--global-batch-size") + 1] == "64"


def test_out_writes_the_launch_files_and_the_plan(run, request_args, tmp_path):
    result = run("plan", *request_args(), "--out", tmp_path / "job")
    assert result.exit_code == 0, result.stderr
    names = sorted(p.name for p in (tmp_path / "job").iterdir())
    assert names == ["benchmark.sh", "candidates", "launch.sh", "plan.json", "sbatch.sh"]
    assert os.access(tmp_path / "job" / "benchmark.sh", os.X_OK) and "To try the short list: bash" in result.stdout
    assert os.access(tmp_path / "job" / "launch.sh", os.X_OK)
    assert "sbatch sbatch.sh" in result.stdout
    written = json.loads((tmp_path / "job" / "plan.json").read_text())
    printed = json.loads(run("plan", *request_args(), "--json").stdout)
    for document in (written, printed):
        del document["proof"]["time_s"]
    assert written == printed


def test_a_plan_with_no_rival_has_no_benchmark(run, request_args, tmp_path):
    args = ("plan", *request_args({"--gpus": "8"}), "--pin", "tp=8,mbs=1,pp=1,cp=1", "--no-refine")
    result = run(*args, "--out", tmp_path / "job")
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == ["launch.sh", "plan.json", "sbatch.sh"]
    assert "no other layout is predicted within 6.0 % of this one" in result.stdout


def test_a_launcher_without_files_still_plans(run, request_args, tmp_path):
    result = run("plan", *request_args({"--launcher": "generic"}), "--no-refine", "--out", tmp_path / "job")
    assert result.exit_code == 0, result.stderr
    assert [p.name for p in (tmp_path / "job").iterdir()] == ["plan.json"]
    assert result.stderr.startswith("shardwise: warning: no launch files")


@pytest.mark.parametrize("option", ["--pin", "--min", "--max"])
def test_wishes_are_kept(run, request_args, option):
    value = {"--pin": "tp=2|4", "--min": "tp=2", "--max": "tp=4"}[option]
    document = json.loads(run("plan", *request_args(), option, value, "--no-refine", "--json").stdout)
    assert document["strategy"]["tp"] in {"--pin": (2, 4), "--min": (2, 4, 8), "--max": (1, 2, 4)}[option]


def test_bans_are_kept(run, request_args):
    args = ("--ban", "recompute=full", "--ban", "zero=2|3", "--max", "cp=1", "--no-refine", "--json")
    strategy = json.loads(run("plan", *request_args(), *args).stdout)["strategy"]
    assert strategy["recompute"] != "full"
    assert strategy["zero"] in (0, 1)
    assert strategy["cp"] == 1


def test_nothing_fits(run, request_args):
    result = run("plan", *request_args({"--model": "llama-3.1-405b", "--gpus": "8"}))
    assert result.exit_code == 3
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "GiB" in line
    assert "What would help" in line


def test_nothing_is_left_behind_when_nothing_fits(run, request_args, tmp_path):
    run("plan", *request_args({"--model": "llama-3.1-405b", "--gpus": "8"}), "--out", tmp_path / "job")
    assert list((tmp_path / "job").iterdir()) == []


def test_estimate_prints_and_names_broken_rules(run, request_args):
    good = run("estimate", *request_args(), "--strategy", "tp=4,pp=2,mbs=1")
    assert good.exit_code == 0, good.stderr
    assert "refuses" not in good.stdout
    bad = run("estimate", *request_args(), "--strategy", "tp=4,pp=2,mbs=1,sp=off,tp_overlap=on")
    assert bad.exit_code == 0, bad.stderr
    assert "megatron refuses it" in bad.stdout


def test_a_megatron_argument_file_is_a_model(run, request_args, tmp_path):
    path = tmp_path / "args.sh"
    path.write_text(
        "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --vocab-size 50304 "
        "--max-position-embeddings 2048\n"
    )
    document = json.loads(
        run("plan", *request_args({"--model": str(path), "--seq-len": "2048"}), "--no-refine", "--json").stdout
    )
    assert document["model"] == "args"


def test_a_time_limit_is_stated(run, request_args):
    changes = {"--model": "deepseek-v3", "--cluster": "h800-mpft", "--gpus": "2048", "--global-batch": "15360"}
    result = run("plan", *request_args(changes), "--time-limit", "0.01", "--no-refine", "--json")
    if result.exit_code == 0:
        assert not json.loads(result.stdout)["proof"]["finished"]
    else:
        assert result.exit_code == 3


def test_no_progress_in_a_pipe(run_process, request_args):
    result = run_process("plan", *request_args(), "--json")
    assert result.returncode == 0
    assert result.stderr == ""
    json.loads(result.stdout)


def test_progress_on_a_terminal_only(request_args, tmp_path):
    code = "from shardwise.cli.main import main; main()"
    try:
        parent, child = pty.openpty()
    except OSError:
        pytest.skip("no terminals here")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan", *request_args(), "--json"],
        stdout=subprocess.PIPE,
        stderr=child,
        cwd=tmp_path,
    )
    os.close(child)
    out = process.stdout.read()
    seen = b""
    try:
        while chunk := os.read(parent, 4096):
            seen += chunk
    except OSError:  # the terminal is gone once the process has ended
        pass
    os.close(parent)
    assert process.wait() == 0
    json.loads(out)
    assert b"Ctrl-C" in seen


@pytest.mark.parametrize("delay_s", [0.7, 2.0])
def test_ctrl_c_ends_in_an_answer_or_one_line(request_args, tmp_path, delay_s):
    code = "import sys; from shardwise.cli.main import main; print(0, file=sys.stderr, flush=True); main()"
    changes = {"--model": "deepseek-v3", "--cluster": "h800-mpft", "--gpus": "2048", "--global-batch": "15360"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan", *request_args(changes), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    process.stderr.readline()  # imported: the delay counts from here, however slow the machine
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    assert process.returncode in (0, 130, 3), err
    if process.returncode == 0:
        json.loads(out)

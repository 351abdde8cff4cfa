"""``benchmark.sh`` from end to end, with a torchrun that prints what Megatron's log has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.planned_row import planned_row
from shardwise.costmodel.validation import validate_rows
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.benchmark import SCRIPT, Candidate, benchmark_files

from .problems import fitted, problem

# One log line of each kind as Megatron-LM prints them (the second, BigScience's fork); steps 1 to 5 are slow.
TORCHRUN = """#!{python}
import sys
args = sys.argv
tp, of = int(args[args.index("--tensor-model-parallel-size") + 1]), {stop!r}
last = int(args[len(args) - args[::-1].index(of)])
if tp == 8:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    sys.exit(1)
if tp == 4:
    sys.exit("AssertionError: no such flag")
open({calls!r}, "a").write(" ".join(args) + "\\n")
for step in range(1, last + 1):
    time = 1000.0 * tp * (9 if step <= 5 else 1 + 0.01 * (step % 3))
    shown = f"(ms): {{time:.1f}}" if {unit!r} == "ms" else f"(s): {{time / 1000:.2f}}"
    print(f" iteration {{step:8d}}/{{100:8d}} | consumed samples: {{64 * step:12d}} |"
          f" elapsed time per iteration {{shown}} | learning rate: 1.000000E-04 | lm loss: 1.1E+01 |")
    if step == 1:
        for rank in (0, 8):
            print(f"[Rank {{rank}}] (after 1 iterations) memory (MB) | allocated: 100.5 | max allocated: "
                  f"{{20480.0 + rank}} | reserved: 99999.0 | max reserved: 99999.0", end="")
        print()
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def job(folder: Path, who: str = "megatron", name: str = "llama-3.1-8b", gpus: int = 16, tps: tuple[int, ...] = (1, 2)):
    """The files of a benchmark in ``folder/job``, a fake torchrun in ``folder/bin``; the problem and strategies."""
    launcher = get_launcher(who)
    p = problem(name, gpus=gpus, batch=64, runtime=launcher.default_runtime, cluster="dgx-a100-80gb", sequence=2048)
    zero = {"zero": 1} if who == "megatron" else {"zero": 1, "recompute": "full", "dp_overlap": False}
    strategies = [fitted(p, tp=tp, sp=who == "megatron" and tp > 1, **zero) for tp in tps]
    title = "shardwise benchmark"
    candidates = [
        Candidate(s, estimate(p, s).step_time_s, planned_row(p, s, f"b-{i}", "g", title))
        for i, s in enumerate(strategies)
    ]
    for path, text in benchmark_files(launcher, p, candidates).items():
        (folder / "job" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "job" / path).write_text(text)
    (folder / "bin").mkdir()
    (folder / "code").mkdir()
    unit, stop = ("ms", "--exit-interval") if who == "megatron" else ("s", "--train-iters")
    calls = str(folder / "calls")
    executable(folder / "bin" / "torchrun", TORCHRUN.format(python=sys.executable, calls=calls, unit=unit, stop=stop))
    return p, strategies


def start(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "MEGATRON_PATH": str(folder / "code")}
    given = {"DATA_PATH": "d", "TOKENIZER": "t", **env}
    return subprocess.run(
        ["bash", str(folder / "job" / SCRIPT), *arguments], cwd=folder, env={**known, **given},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def runs(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "job" / "runs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("who", "name"), [("megatron", "llama-3.1-8b"), ("megatron-deepspeed", "gpt-3-175b")])
def test_it_measures_what_the_log_says_and_writes_runs_that_validate_reads(tmp_path, who, name):
    p, strategies = job(tmp_path, who, name)
    done = start(tmp_path, "--data-path", "my data", START="bash")
    assert done.returncode == 0, done.stderr
    one, two = runs(tmp_path)
    # By hand: steps 6 to 20 take 1.00, 1.01 and 1.02 times tp seconds, five of each: the median is 1.01 · tp.
    assert (one["step_time_s"], two["step_time_s"]) == (1.01, 2.02)
    assert one["measured"] == {"step_time_s": 1.01, "peak_memory_gb": 21.483, "oom": False}  # 20488 MiB
    assert "quickest: 1-" in done.stdout and "1.01 s" in done.stdout
    result = validate_rows(tmp_path / "job" / "runs.jsonl")
    assert [r.skipped for r in result.rows] == [None, None]
    for row, strategy in zip(result.rows, strategies, strict=True):
        assert row.predicted_step_time_s == pytest.approx(estimate(p, strategy).step_time_s, rel=1e-12)
        assert not any("pipeline rank" in note for note in row.assumptions)  # the log has every stage
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2 and all(call.count("--data-path my data") == 1 for call in calls)


def test_the_framework_is_told_to_stop_and_not_to_save(tmp_path):
    job(tmp_path, tps=(2,))
    assert start(tmp_path, START="bash", ITERATIONS="8", WARMUP="6").returncode == 0
    call = (tmp_path / "calls").read_text().split()
    assert call[-6:] == ["--exit-interval", "8", "--log-interval", "1", "--eval-iters", "0"]
    assert "--save" not in call and runs(tmp_path)[0]["step_time_s"] == 2.03  # steps 7 and 8: 1.01 and 1.02 times 2


def test_what_runs_out_of_memory_or_fails_is_said_and_the_rest_goes_on(tmp_path):
    job(tmp_path, tps=(8, 4, 2))
    done = start(tmp_path, START="bash")
    assert done.returncode == 0
    table = done.stdout.splitlines()
    assert "no memory" in table[1] and "failed" in table[2] and "2.02 s" in table[3]
    assert done.stderr.count("did not finish") == 2
    first, last = runs(tmp_path)
    assert first["measured"] == {"step_time_s": None, "peak_memory_gb": None, "oom": True}
    assert last["step_time_s"] == 2.02
    summary = validate_rows(tmp_path / "job" / "runs.jsonl").summary
    assert summary["fits"]["oom_called_fitting"] + summary["fits"]["oom_called_oom"] == 1


def test_nothing_measured_is_a_failure(tmp_path):
    job(tmp_path, tps=(4,))
    done = start(tmp_path, START="bash")
    assert done.returncode == 1 and "no layout was measured" in done.stderr


def test_some_layouts_only_and_earlier_logs_are_reported_again(tmp_path):
    job(tmp_path)
    assert start(tmp_path, START="bash", ONLY="2").returncode == 0
    assert [r["id"] for r in runs(tmp_path)] == ["b-1"]
    assert start(tmp_path, START="bash", ONLY="1").returncode == 0
    assert [r["id"] for r in runs(tmp_path)] == ["b-0", "b-1"]
    (tmp_path / "bin" / "torchrun").unlink()
    done = start(tmp_path, START="none")
    assert done.returncode == 0 and done.stdout.count(" s ") >= 2


def test_only_the_last_host_has_the_times(tmp_path):
    job(tmp_path)
    first = start(tmp_path, NODE_RANK="0", MASTER_ADDR="a")
    assert first.returncode == 0 and "NODE_RANK=1" in first.stderr and not (tmp_path / "job" / "runs.jsonl").exists()
    assert start(tmp_path, NODE_RANK="1", MASTER_ADDR="a").returncode == 0
    assert len(runs(tmp_path)) == 2


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_PROCID=1 exec "$@"
"""
SBATCH = """#!/bin/bash
for word; do case $word in --output=*) log=${word#--output=} ;; --wait) wait=1 ;; esac; done
[[ $wait ]] || exit 9
while [[ $1 == --* ]]; do shift; done
SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NODELIST=a exec bash "$@" >"$log" 2>&1
"""


@pytest.mark.parametrize(("env", "how"), [({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a"}, "srun"), ({}, "sbatch")])
def test_under_slurm(tmp_path, env, how):
    job(tmp_path)
    executable(tmp_path / "bin" / "srun", SRUN)
    executable(tmp_path / "bin" / "scontrol", "#!/bin/sh\necho host-a\n")
    executable(tmp_path / "bin" / "sbatch", SBATCH)
    done = start(tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert f"with {how}" in done.stderr
    assert [r["step_time_s"] for r in runs(tmp_path)] == [1.01, 2.02]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"ITERATIONS": "many"}, "expected whole numbers"),
        ({"ITERATIONS": "101"}, "expected 100 at most"),
        ({"WARMUP": "20"}, "expected fewer than the 20 steps"),
        ({"START": "docker"}, "expected bash, srun, sbatch or none"),
        ({"MEGATRON_PATH": "nowhere"}, "MEGATRON_PATH=nowhere: no such folder"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, env, said):
    job(tmp_path)
    done = start(tmp_path, **env)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_folders_with_blanks_and_quotes(tmp_path):
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    job(folder)
    assert start(folder, START="bash").returncode == 0 and len(runs(folder)) == 2


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here")
def test_shellcheck_has_nothing_to_say(tmp_path):
    job(tmp_path)
    done = subprocess.run(["shellcheck", str(tmp_path / "job" / SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_launcher_without_short_runs_is_refused():
    p = problem()
    with pytest.raises(InputError, match="knows no way to run a few steps only"):
        benchmark_files(get_launcher("generic"), p, [])

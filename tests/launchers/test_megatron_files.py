"""Launch files run as shell: what torchrun gets is the argument list, whatever the names contain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import LaunchSettings, get_launcher
from shardwise.launchers.megatron_files import megatron_arguments

from .bench import run
from .problems import DEEPSEEK, LLAMA, fitted, model, problem

MEGATRON = get_launcher("megatron")


def write(folder: Path, p: Problem, s: Strategy, settings: LaunchSettings | None = None) -> None:
    for name, text in MEGATRON.render(p, s, settings).items():
        (folder / name).write_text(text)


def a_plan() -> tuple[Problem, Strategy]:
    p = problem(DEEPSEEK, dtype="fp8_block", runtime="megatron-core-moe")
    s = fitted(p, tp=2, sp=True, pp=8, vpp=2, schedule="interleaved", ep=32, recompute="selective")
    return p, s


def test_torchrun_gets_exactly_the_arguments(bench: Path) -> None:
    p, s = a_plan()
    write(bench, p, s)
    called = run(bench, "launch.sh", "--save", "a b", NODE_RANK="3", MASTER_ADDR="n1", MEGATRON_PATH="/opt/m m")
    argv = called["argv"]
    assert isinstance(argv, list)
    assert argv[:2] == ["--nnodes", "64"]
    at = argv.index("/opt/m m/pretrain_gpt.py")
    assert argv[2:at] == [
        "--nproc-per-node", "8", "--node-rank", "3", "--master-addr", "n1", "--master-port", "29500",
    ]  # fmt: skip
    assert argv[at + 1 :] == [*megatron_arguments(p, s), "--save", "a b"]
    assert called["env"] == {"NODE_RANK": "3", "MASTER_ADDR": "n1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_sharded_parameters_leave_the_device_connections_alone(bench: Path) -> None:
    p = problem(LLAMA)
    write(bench, p, fitted(p, zero=3))
    environment = run(bench, "launch.sh")["env"]
    assert isinstance(environment, dict) and environment["CUDA_DEVICE_MAX_CONNECTIONS"] is None


def test_names_cannot_leave_their_comment_or_their_word(bench: Path) -> None:
    nasty = replace(
        model(LLAMA), name="x\n$(touch owned) `touch owned` '\"; touch owned #", architecture="\ntouch owned"
    )
    p = problem(nasty)
    write(bench, p, fitted(p, tp=8, sp=True, pp=4))
    run(bench, "launch.sh")
    assert not (bench / "owned").exists()


def test_slurm_starts_one_torchrun_on_each_host_with_its_rank(bench: Path) -> None:
    p, s = a_plan()
    write(bench, p, s)
    text = (bench / "sbatch.sh").read_text()
    for line in ("--nodes=64", "--ntasks-per-node=1", "--gpus-per-node=8", "--job-name=shardwise"):
        assert f"#SBATCH {line}\n" in text
    srun = bench / "bin" / "srun"
    srun.write_text('#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_PROCID=5 exec "$@"\n')
    scontrol = bench / "bin" / "scontrol"
    # More hosts than a pipe holds: reading only the first must not fail.
    scontrol.write_text("#!/usr/bin/env bash\nprintf 'n%d\\n' {1..20000}\n")
    for program in (srun, scontrol):
        program.chmod(0o755)
    called = run(bench, "sbatch.sh", "--save", "c d", SLURM_JOB_NODELIST="n[1-2]", SLURM_SUBMIT_DIR=str(bench))
    argv = called["argv"]
    assert isinstance(argv, list) and argv[-2:] == ["--save", "c d"]
    assert called["env"] == {"NODE_RANK": "5", "MASTER_ADDR": "n1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_a_placement_fixes_the_order_of_the_hosts(bench: Path) -> None:
    p = problem(LLAMA, gpus=16, batch=16)
    settings = LaunchSettings(hosts=("n7", "n2"), job_name="mine")
    write(bench, p, fitted(p, tp=8, sp=True, pp=2), settings)
    assert (bench / "hostfile").read_text() == "n7\nn2\n"
    text = (bench / "sbatch.sh").read_text()
    assert "--distribution=arbitrary" in text and "SLURM_HOSTFILE" in text and "--job-name=mine" in text


def test_hosts_must_be_as_many_as_the_nodes() -> None:
    p = problem(LLAMA, gpus=16, batch=16)
    with pytest.raises(InputError, match="3 hosts: expected 2"):
        MEGATRON.render(p, fitted(p, tp=8, sp=True, pp=2), LaunchSettings(hosts=("a", "b", "c")))


def test_a_cluster_must_be_whole_hosts() -> None:
    p = problem(LLAMA, gpus=16, batch=16)
    with pytest.raises(InputError, match="no whole number of hosts with 3"):
        MEGATRON.render(p, fitted(p, tp=8, sp=True, pp=2), LaunchSettings(gpus_per_node=3))


@pytest.mark.parametrize(
    "bad",
    [
        {"train_iters": 0},
        {"gpus_per_node": 0},
        *({"job_name": name} for name in ("a b", "", "a'b", 'a"b', "a#b", "a/b", "a\\b", "-x", "a\nb")),
        *({"time_limit": time} for time in ("four", "4h", "1:2:3:4", "1-2:3:4:5", "-5", "")),
        *({"hosts": hosts} for hosts in (("a\nb",), ("n[1-2]",), ("n1,n2",), ("",), ("n1", "n2", "n1"))),
    ],
)
def test_bad_settings_are_refused_where_they_are_made(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="launch settings"):
        LaunchSettings(**bad)  # type: ignore[arg-type]


def test_what_is_yours_and_what_was_assumed_stands_in_one_place() -> None:
    p, s = a_plan()
    text = MEGATRON.render(p, s)["launch.sh"]
    yours, planned = text.split("# ---- The plan")
    for name in ("DATA_ARGS", "TOKENIZER_ARGS", "SCHEDULE_ARGS", "CHECK_ARGS", "MEGATRON_PATH"):
        assert f"\n{name}=" in yours and f"\n{name}=" not in planned
    assert yours.count("# Assumed: ") >= 2

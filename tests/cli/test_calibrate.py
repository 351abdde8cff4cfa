"""``shardwise calibrate``: from logs to a profile that loads, with every figure's origin; faults in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

from shardwise.cli.bench_script import KERNELS, bench_script
from shardwise.hardware_profiles.cluster_schema import json_schema
from shardwise.hardware_profiles.load_cluster import load_cluster

from ..costmodel.test_training_logs import TIMES, dump, megatron_steps
from ..hardware_profiles.readers import printed

RUNS = Path(__file__).parent.parent / "data" / "runs"
SIZES = tuple(1 << p for p in range(12, 33))


def slow(nbytes):
    """A network at half of what the profile of dgx-h100 says."""
    return 90e-6 + nbytes / 1.1e11


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_nodes.txt").write_text("\n".join(printed.log(ranks=16, sizes=SIZES, seconds=slow)))
    (tmp_path / "gather.txt").write_text("\n".join(printed.log("all_gather", ranks=16, sizes=SIZES, seconds=slow)))
    shapes = [(m, n, k) for m in (1024, 4096, 16384) for n in (4096, 8192) for k in (4096, 8192)]
    rows = [f"{m},{n},{k},bf16,{2.0 * m * n * k / 6e14 * 1e6 + 5.0}" for m, n, k in shapes]
    (tmp_path / "gemm.csv").write_text("m,n,k,dtype,time_us\n" + "\n".join(rows) + "\n")
    (tmp_path / "train.log").write_text("\n".join([*dump(), *megatron_steps([1.4 * t for t in TIMES])]))
    return tmp_path


def test_a_profile_that_loads_with_the_origin_of_every_figure(run, folder):
    result = run("calibrate", "--cluster", "dgx-h100", "--nccl", "two_nodes.txt", "gather.txt", "--gemm", "gemm.csv",
                 "--runs", "train.log", "--out", "mine.yaml")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "su-leaf all_reduce share of the rate" in result.stdout and "mine.yaml" in result.stdout
    document = yaml.safe_load((folder / "mine.yaml").read_text())
    jsonschema.validate(document, json_schema())
    base, mine = load_cluster("dgx-h100"), load_cluster("mine.yaml")
    figures = mine.figures
    assert figures["tiers.1.efficiency.all_reduce"].origin == "fitted"
    assert "two_nodes.txt" in figures["tiers.1.efficiency.all_reduce"].source
    assert "gather.txt" in figures["tiers.1.efficiency.all_gather"].source
    assert figures["tiers.1.efficiency.reduce_scatter"].origin == "derived"
    assert "gemm.csv" in mine.accelerator.figures["gemm.bf16.efficiency"].source
    sizes = np.array([float(s) for s in SIZES if s >= 1 << 20])
    job = mine.with_num_gpus(16)
    for kind in ("all_reduce", "all_gather"):
        error = np.abs(job.collective_time_s(kind, sizes, 16, 1) / [slow(s) for s in sizes] - 1.0)
        assert np.median(error) < 0.05, kind
    assert float(base.collective_time_s("reduce_scatter", 1e9, 64, 8)) < float(
        mine.collective_time_s("reduce_scatter", 1e9, 64, 8)
    )
    assert mine.calibration.covered("all_reduce", "su-leaf").ranks == (16, 16)
    assert mine.calibration.base == "dgx-h100"


def test_the_plan_says_how_the_interval_changed(run, folder, request_args):
    lines = []
    for i, share in enumerate((0.97, 1.0, 1.0, 1.02, 1.01, 0.99, 1.0, 1.01)):
        name = f"train{i}.log"
        (folder / name).write_text("\n".join([*dump(), *megatron_steps([1.15 * share * t for t in TIMES])]))
        lines.append(name)
    result = run("calibrate", "--cluster", "dgx-h100", "--runs", *lines, "--out", "mine.yaml")
    assert result.exit_code == 0, result.stderr
    assert "interval of dense models under megatron" in result.stdout
    answer = run("estimate", *request_args({"--cluster": "mine.yaml"}), "--strategy", "tp=2", "--json")
    assert answer.exit_code == 0, answer.stderr
    found = json.loads(answer.stdout)
    calibration = found["calibration"]
    assert calibration["runs"] == 8 and calibration["half_width"] != calibration["half_width_before"]
    low, high = found["step_time_interval_s"]
    assert (high - low) / 2 / found["step_time_s"] == pytest.approx(calibration["half_width"])
    shown = run("estimate", *request_args({"--cluster": "mine.yaml"}), "--strategy", "tp=2")
    assert "calibrated on 8 runs of this cluster" in shown.stdout
    plain = run("estimate", *request_args(), "--strategy", "tp=2", "--json")
    assert json.loads(plain.stdout)["calibration"] is None


def test_what_lies_beyond_the_measurements_is_an_assumption(run, folder, request_args):
    assert run("calibrate", "--cluster", "dgx-h100", "--nccl", "two_nodes.txt", "--out", "mine.yaml").exit_code == 0
    args = request_args({"--cluster": "mine.yaml", "--gpus": "256", "--global-batch": "256"})
    answer = json.loads(run("estimate", *args, "--strategy", "tp=8,zero=1", "--json").stdout)
    told = [a for a in answer["assumptions"] if a.startswith("calibration:")]
    assert any("was not measured" in a for a in told)
    assert run("calibrate", "--cluster", "dgx-h100", "--gemm", "gemm.csv", "--out", "mine.yaml").exit_code == 0
    args = request_args({"--cluster": "mine.yaml", "--seq-len": "131072", "--global-batch": "16"})
    told = json.loads(run("estimate", *args, "--strategy", "tp=8", "--json").stdout)["assumptions"]
    assert "calibration: gemm bf16 is extrapolated to 131072 rows (measured: 1024 to 16384)" in told


def test_a_profile_calibrated_twice_keeps_what_it_knew(run, folder):
    assert run("calibrate", "--cluster", "dgx-h100", "--nccl", "two_nodes.txt", "--out", "a.yaml").exit_code == 0
    assert run("calibrate", "--cluster", "a.yaml", "--gemm", "gemm.csv", "--out", "b.yaml").exit_code == 0
    first, second = load_cluster("a.yaml"), load_cluster("b.yaml")
    assert second.tiers == first.tiers
    assert second.calibration.covered("all_reduce", "su-leaf") == first.calibration.covered("all_reduce", "su-leaf")
    assert [k.name for k in second.calibration.kernels] == ["bf16"]


def test_json_holds_figures_and_errors(run, folder):
    result = run("calibrate", "--cluster", "dgx-h100", "--nccl", "two_nodes.txt", "--json")
    document = json.loads(result.stdout)
    assert document["base"] == "dgx-h100" and document["figures"] and document["written"] == []
    assert document["calibration"]["collectives"][0]["rows"] == 2 * len(SIZES)


def test_figures(run, folder):
    pytest.importorskip("matplotlib")
    result = run("calibrate", "--cluster", "dgx-h100", "--nccl", "two_nodes.txt", "--gemm", "gemm.csv", "--runs",
                 "train.log", "--figures", "drawn", "--format", "svg")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    names = sorted(p.name for p in (folder / "drawn").iterdir())
    assert names == ["all_reduce_16_in_2.svg", "gemm_bf16.svg", "runs.svg"]
    assert all("<svg" in (folder / "drawn" / name).read_text()[:1000] for name in names)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "--cluster: missing"),
        (("--cluster", "dgx-h100"), "nothing to calibrate on"),
        (("--cluster", "dgx-h100", "--nccl", "none.txt"), "none.txt: cannot be read"),
        (("--cluster", "dgx-h100", "--nccl", "two_nodes.txt:ranks=eight"), "ranks = eight"),
        (("--cluster", "dgx-h100", "--nccl", "two_nodes.txt:speed=8"), "'speed=8'"),
        (("--cluster", "dgx-h100", "--nccl", "two_nodes.txt:ranks=8"), "--ranks 8"),
        (("--cluster", "dgx-h100", "--nccl", "two_nodes.txt:kind=gossip"), "kind = gossip"),
        (("--cluster", "dgx-h100", "--nccl", "gemm.csv"), "gemm.csv: line 2"),
        (("--cluster", "dgx-h100", "--gemm", "two_nodes.txt"), "two_nodes.txt"),
        (("--cluster", "dgx-h100", "--runs", "gemm.csv"), "no line with a step time"),
        (("--cluster", "dgx-h200", "--runs", "train.log", "--out", "."), "--out"),
    ],
)
def test_faults_are_one_line(run, folder, args, words):
    result = run("calibrate", *args)
    assert result.exit_code != 0
    message = result.stderr or str(result.exception)
    assert words in message and "Traceback" not in message


def test_runs_of_another_accelerator_are_refused(run, folder):
    text = (RUNS / "published_subset.jsonl").read_text().splitlines()
    (folder / "theirs.jsonl").write_text(text[0] + "\n")
    result = run("calibrate", "--cluster", "dgx-h100", "--runs", "theirs.jsonl")
    message = result.stderr or str(result.exception)
    assert "theirs.jsonl: line 1" in message and "A100" in message and "H100" in message


def test_a_log_of_another_accelerator_is_noted(run, folder):
    result = run("calibrate", "--cluster", "dgx-a100", "--nccl", "two_nodes.txt", "--json")
    assert any("measured on NVIDIA H100" in note for note in json.loads(result.stdout)["notes"])


def test_said_of_one_log_after_its_name(run, folder):
    (folder / "unlisted.txt").write_text("\n".join(printed.log(ranks=4, listed=False, named=False, sizes=SIZES)))
    asked = run("calibrate", "--cluster", "dgx-h100", "--nccl", "unlisted.txt")
    assert "--nodes" in (asked.stderr or str(asked.exception))
    for words in (("unlisted.txt:nodes=1",), ("unlisted.txt", "--nodes", "1")):
        assert run("calibrate", "--cluster", "dgx-h100", "--nccl", *words).exit_code == 0


def test_the_script_is_a_script(run, folder):
    result = run("calibrate", "--script", "--cluster", "gb200-nvl72")
    assert result.exit_code == 0 and result.stdout == bench_script("gb200-nvl72")
    checked = subprocess.run(["bash", "-n"], input=result.stdout, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for op in ("all_reduce", "alltoall", "sendrecv"):
        assert f"measure {op} 1 4 4G" in result.stdout
    assert "racks" in result.stdout and KERNELS.read_text() in result.stdout


def test_the_script_runs_what_it_says(folder):
    """With programs in the place of nccl-tests, srun and Python: every log lands under its name."""
    bin_ = folder / "bin"
    bin_.mkdir()
    for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"):
        (bin_ / f"{op}_perf").write_text('#!/bin/bash\necho "$0 $ranks on $nodes: $*"\n')
        (bin_ / f"{op}_perf").chmod(0o755)
    (bin_ / "python").write_text("#!/bin/bash\necho '{}'\n")
    (bin_ / "python").chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "NCCL_TESTS": str(bin_), "RUN": "env nodes=$nodes ranks=$ranks",
           "PYTHON": str(bin_ / "python"), "SLURM_JOB_NUM_NODES": "2"}  # fmt: skip
    done = subprocess.run(
        ["bash", "-s"], input=bench_script("dgx-h100"), text=True, capture_output=True, env=env, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    names = {p.name for p in (folder / "measured").iterdir()}
    assert {"all_reduce_8_on_1.txt", "alltoall_16_on_2.txt", "all_reduce_2_on_2.txt", "kernels.jsonl"} <= names
    assert "all_reduce_32_on_4.txt" not in names
    assert "16 on 2: -b 1K" in (folder / "measured" / "all_gather_16_on_2.txt").read_text()


def test_the_sweep_needs_nothing_of_shardwise():
    source = KERNELS.read_text()
    assert "shardwise." not in source.replace("``shardwise calibrate", "")
    assert subprocess.run([sys.executable, KERNELS, "--help"], capture_output=True, check=False).returncode == 0

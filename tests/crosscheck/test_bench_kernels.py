"""The sweep that ``shardwise calibrate --script`` prints runs under PyTorch, and what it prints is read back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.hardware_profiles.calibrate import calibrate_benchmarks
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.hardware_profiles.readers.kernel_tables import read_attention_table, read_gemm_table

pytestmark = pytest.mark.crosscheck
SWEEP = Path(__file__).parent.parent.parent / "cli" / "bench_kernels.py"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("sweep") / "kernels.jsonl"
    done = subprocess.run(
        [sys.executable, SWEEP, "--tiny", "--dtype", "bf16", "fp32"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout)
    return path


def test_every_line_is_a_row(measured):
    lines = [json.loads(line) for line in measured.read_text().splitlines()]
    gemms, attentions = read_gemm_table(measured, "here"), read_attention_table(measured, "here")
    assert len(gemms) + len(attentions) == len(lines)
    assert {row.dtype for row in gemms} == {"bf16", "fp32"} and {row.device for row in gemms} == {"CPU"}
    assert {row.causal for row in attentions} == {True, False}
    assert all(0.0 < row.time_s < 60.0 for row in (*gemms, *attentions))


def test_the_command_fits_it(measured):
    """Only that it reads: a CPU's times mean nothing for a GPU, which is said."""
    text = "\n".join(line for line in measured.read_text().splitlines() if '"bf16"' in line)
    measured.with_name("bf16.jsonl").write_text(text)
    path = measured.with_name("bf16.jsonl")
    answer = calibrate_benchmarks(load_cluster("dgx-h100"), "dgx-h100", [], [path], [path])
    assert {(k.operation, k.name) for k in answer.kernels} == {("gemm", "bf16"), ("attention", "fa2")}
    assert any("measured on CPU" in note for note in answer.notes)

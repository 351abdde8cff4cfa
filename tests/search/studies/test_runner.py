"""Studies: the same rows whichever way they ran, and nothing lost or repeated after a kill."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardwise import plan
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.search.studies.journal import NAME
from shardwise.search.studies.runner import study
from shardwise.search.studies.tables import to_csv, to_parquet

STUDY = {
    "model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8, "global_batch": 64, "seq_len": 2048,
    "vary": {"gpus": [8, 16], "seq_len": [1024, 2048]},
}  # fmt: skip


@pytest.fixture(scope="module")
def alone():
    return study(STUDY)


def test_each_point_is_what_plan_says(alone):
    for row in alone.rows:
        answer = plan(
            "llama-3.2-1b", "dgx-h100", Workload(64, row["seq_len"]), num_gpus=row["gpus"], refine_trials=0, top=1
        )
        assert row["status"] == "ok"
        assert row["step_time_s"] == answer.step_time_s
        assert row["strategy.tp"] == answer.strategy.tp
        assert sum(v for k, v in row.items() if k.startswith("time.")) == pytest.approx(row["step_time_s"])


def test_the_rows_are_the_same_by_threads_and_processes(alone):
    with ThreadPoolExecutor(2) as pool:
        assert study(STUDY, executor=pool).rows == alone.rows
    assert study(STUDY, workers=2).rows == alone.rows


@pytest.mark.slow
def test_the_rows_are_the_same_on_a_dask_cluster(alone):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as machines,
        distributed.Client(machines) as client,
    ):
        assert study(STUDY, executor=client.get_executor(pure=False)).rows == alone.rows


def test_a_stopped_study_goes_on_without_losing_or_repeating_points(tmp_path, alone):
    seen = []

    def stop(done, total):
        seen.append((done, total))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(STUDY, tmp_path, progress=stop)
    lines = (tmp_path / NAME).read_text().splitlines()
    assert len(lines) == 1 + 2
    # A kill in the middle of a write leaves half a line.
    with (tmp_path / NAME).open("a") as journal:
        journal.write('{"key": "torn')
    again = study(STUDY, tmp_path)
    assert again.solved == 2
    assert again.rows == alone.rows
    lines = (tmp_path / NAME).read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines[1:]]
    assert len(keys) == len(set(keys)) == 4
    assert study(STUDY, tmp_path).solved == 0


def test_a_wider_study_in_the_same_folder_searches_only_what_is_new(tmp_path):
    study(STUDY, tmp_path)
    wider = {**STUDY, "vary": {"gpus": [8, 16], "seq_len": [1024, 2048, 4096]}}
    assert study(wider, tmp_path).solved == 2


def test_a_folder_with_another_file_is_left_alone(tmp_path):
    (tmp_path / NAME).write_text("important\n")
    with pytest.raises(InputError, match="line 1: not a line of a study's journal"):
        study(STUDY, tmp_path)
    assert (tmp_path / NAME).read_text() == "important\n"


def test_what_does_not_fit_is_a_row_with_its_reason():
    result = study({**STUDY, "model": "llama-3.1-70b", "vary": {"gpus": [8, 64]}, "pin": {"zero": 0}})
    assert [row["status"] for row in result.rows] == ["infeasible", "ok"]
    assert "GiB" in result.rows[0]["message"]
    assert len(result.solved_rows()) == 1


def test_money_is_gpu_hours_times_the_price():
    row = study({**STUDY, "price_per_gpu_hour": 3.6, "vary": {"gpus": [16]}}).rows[0]
    assert row["usd_per_million_tokens"] == pytest.approx(16 * row["step_time_s"] * 0.001 / (64 * 2048) * 1e6)


def test_the_tables_hold_every_input_and_answer(alone):
    rows = list(csv.DictReader(io.StringIO(to_csv(alone))))
    assert [float(r["step_time_s"]) for r in rows] == [r["step_time_s"] for r in alone.rows]
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(to_parquet(alone))).to_pylist()
    assert [r["step_time_s"] for r in table] == [r["step_time_s"] for r in alone.rows]
    assert tuple(table[0]) == alone.columns
    for column in ("model", "cluster", "global_batch", "accelerator.memory_bytes", "proof.gap", "strategy.pp"):
        assert column in alone.columns


@pytest.mark.slow
def test_kill_nine_loses_nothing(tmp_path):
    """The process dies without a word; the journal has whole points, and the next run searches only the others."""
    file = tmp_path / "study.yaml"
    vary = "gpus: [8, 16]\n  seq_len: {from: 1024, to: 16384, step: 1024}"
    file.write_text(f"model: llama-3.2-1b\ncluster: dgx-h100\nglobal_batch: 64\nvary:\n  {vary}\n")
    command = [
        sys.executable,
        "-c",
        "from shardwise.cli.main import main; main()",
        "study",
        str(file),
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path)
    journal = tmp_path / NAME
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes().count(b"\n") - 1
    assert 5 <= kept < 32
    result = study(str(file), tmp_path)
    assert result.solved == 32 - kept
    assert result.rows == study(str(file)).rows

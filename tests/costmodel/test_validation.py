"""The validation command's engine: one entry per row, honest errors, and the regression gate on the shipped subset."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.costmodel._validation_stats import kendall, spread
from shardwise.costmodel.fit_runs import Fit, apply_knobs, load_runs, start_value
from shardwise.costmodel.validation import Validation, report_markdown, validate_rows
from shardwise.hardware_profiles.errors import InputError

SUBSET = Path(__file__).parents[1] / "data" / "runs" / "published_subset.jsonl"

GATE = {"median": 0.05, "p90": 0.15, "moe_median": 0.08, "memory_median": 0.08}
"""The gate: errors on the shipped subset may not grow beyond these shares."""


@pytest.fixture(scope="module")
def subset() -> Validation:
    return validate_rows(SUBSET)


def errors(validation: Validation, kind: str) -> list[float]:
    return [f.error for f in validation.facts if f.kind == kind and f.error is not None and not f.suspect]


def test_one_entry_per_row_in_order(subset: Validation):
    ids = [json.loads(line)["id"] for line in SUBSET.read_text(encoding="utf-8").splitlines()]
    assert [row.row_id for row in subset.rows] == ids
    assert not [row for row in subset.rows if row.skipped]


def test_gate_step_time(subset: Validation):
    dense = np.abs(errors(subset, "dense"))
    assert np.median(dense) <= GATE["median"]
    assert np.quantile(dense, 0.9) <= GATE["p90"]


def test_gate_mixture_of_experts(subset: Validation):
    assert np.median(np.abs(errors(subset, "moe"))) <= GATE["moe_median"]


def test_gate_memory(subset: Validation):
    assert subset.summary["memory"]["all"]["median"] <= GATE["memory_median"]


def test_rows_are_plain_json(subset: Validation):
    data = json.loads(json.dumps(subset.as_dict(), allow_nan=False))
    assert set(data) == {"schema_version", "source", "rows", "summary"}
    keys = {"id", "predicted_step_time_s", "predicted_peak_memory_bytes", "fits", "skipped", "assumptions"}
    assert all(set(row) == keys for row in data["rows"])


def test_report_names_every_table(subset: Validation):
    report = report_markdown(subset)
    for title in ("Step time", "Peak memory", "Fits or runs out", "Ranking", "one constant MFU", "Rows left out"):
        assert title in report
    for line in report.splitlines():
        if line.startswith("|") and not set(line) <= set("|-"):
            assert line.endswith("|")


def test_bad_lines_are_skipped_with_their_number(tmp_path: Path):
    good = SUBSET.read_text(encoding="utf-8").splitlines()[0]
    lines = [good, "{broken", "[1, 2]", "", '{"id": "lonely"}', json.dumps({**json.loads(good), "id": 7})]
    folder = tmp_path / "measurements"
    folder.mkdir()
    path = folder / "runs.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = validate_rows(path).rows
    assert len(rows) == 5
    assert rows[0].skipped is None
    assert [str(row.skipped).split(":")[0] for row in rows[1:]] == ["line 2", "line 3", "line 5", "line 6"]


@pytest.mark.parametrize("section", ["model", "hardware", "parallel", "measured", "source", "unstated"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_no_row_however_wrong_raises(tmp_path: Path, section: str, value: Any):
    row = json.loads(SUBSET.read_text(encoding="utf-8").splitlines()[0])
    row[section] = value
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    validation = validate_rows(path)
    assert len(validation.rows) == 1
    report_markdown(validation)


@pytest.mark.parametrize(
    "key", ["num_layers", "hidden_size", "seq_len", "vocab_size", "num_attention_heads", "head_dim"]
)
@pytest.mark.parametrize("value", [-1, 0, 1.5, "many", True, [], 10**30])
def test_no_wrong_size_raises(tmp_path: Path, key: str, value: Any):
    row = json.loads(SUBSET.read_text(encoding="utf-8").splitlines()[0])
    row["model"][key] = value
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    assert validate_rows(path).rows[0].skipped


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path):
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.jsonl", tmp_path, binary):
        with pytest.raises(InputError) as caught:
            validate_rows(path)
        assert "\n" not in str(caught.value)


def test_an_empty_file_has_no_rows(tmp_path: Path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n", encoding="utf-8")
    validation = validate_rows(path)
    assert validation.rows == ()
    report_markdown(validation)


def memory_row(**changes: Any) -> dict[str, Any]:
    """A pipelined row of the subset with a memory figure."""
    rows = [json.loads(line) for line in SUBSET.read_text(encoding="utf-8").splitlines()]
    row = next(r for r in rows if (r["parallel"]["pp"] or 1) > 1 and r["software"] == "nemo-dgxc-24.11.1")
    row["measured"]["peak_memory_gb"] = 50.0
    return {**row, "memory_kind": "allocator peak", **changes}


def predicted_bytes(tmp_path: Path, **changes: Any) -> float:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(memory_row(**changes)), encoding="utf-8")
    peak = validate_rows(path).rows[0].predicted_peak_memory_bytes
    assert peak is not None
    return peak


def test_gigabytes_are_decimal_whatever_the_source_counted_in(tmp_path: Path):
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(memory_row(memory_kind="allocator reserved, GiB")), encoding="utf-8")
    assert validate_rows(path).facts[0].measured_bytes == 50.0e9


def test_memory_is_that_of_the_rank_that_logged_it(tmp_path: Path):
    last = predicted_bytes(tmp_path, remark="read on the logging rank (last global rank)")
    assert predicted_bytes(tmp_path, remark="rank-0 max allocated") > last
    assert predicted_bytes(tmp_path, remark=None) == last  # the training log is the last rank's
    assert predicted_bytes(tmp_path, memory_kind="device total (nvidia-smi)", remark=None) > last


def test_kendall_by_hand():
    assert kendall(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])) == 1.0
    assert kendall(np.array([1.0, 2.0, 3.0]), np.array([30.0, 20.0, 10.0])) == -1.0
    assert kendall(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])) == pytest.approx(1 / 3)


def test_spread_by_hand():
    assert spread([0.1, -0.1, 0.3]) == {"n": 3, "median": 0.1, "p90": 0.26, "bias": 0.1}
    assert spread([]) == {"n": 0}


def test_knobs_at_their_shipped_values_change_nothing():
    runs = load_runs([str(SUBSET)])
    fit = Fit(runs)
    for batch in fit.batches[:10]:
        values = {fit.knobs[k]: start_value(fit.knobs[k], batch.problem) for k in batch.knobs}
        changed = apply_knobs(batch.problem, {k: v for k, v in values.items() if v is not None})
        assert batch.step_times(changed) == pytest.approx(batch.step_times(batch.problem), rel=1e-9)


def test_a_fit_does_not_make_things_worse():
    runs = [r for r in load_runs([str(SUBSET)]) if "Korthikanti" in r.source]
    fit = Fit(runs)
    before, after = np.abs(fit.errors()), np.abs(fit.errors(fit.solve(4)))
    assert after.mean() <= before.mean() + 0.005


def _shared() -> Path | None:
    root = Path(os.environ.get("SHARDWISE_SHARED", Path(__file__).parents[3] / "shared"))
    return root / "measurements" if (root / "measurements").is_dir() else None


@pytest.mark.slow
@pytest.mark.skipif(_shared() is None, reason="the measured runs are not beside the project")
@pytest.mark.parametrize("name", ["published", "sweep_vtrain", "sweep_hagemann"])
def test_every_measured_run_in_seconds(name: str):
    folder = _shared()
    assert folder is not None
    started = time.process_time()
    validation = validate_rows(folder / f"{name}.jsonl")
    assert time.process_time() - started < 30.0
    assert len(validation.rows) == len((folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    report_markdown(validation)

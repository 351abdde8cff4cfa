"""Rows whose values are of another kind than rows have: each is skipped with the key named, none ends the run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel._validation_types import wrong_kind
from shardwise.costmodel.validation import validate_rows

from .test_rows import LLAMA

ODD = [0, -1, 7, 1.5, "x", "", [], [1], {}, True, float("nan"), float("inf"), 10**30, "../../x", "a" * 5000, "a\0b"]


def changed(section: str, key: str, value: Any) -> dict[str, Any]:
    row = copy.deepcopy(LLAMA)
    if section:
        row.setdefault(section, {})[key] = value
    else:
        row[key] = value
    return row


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "software", ["megatron"]),
        ("model", "hidden_size", "4096"),
        ("model", "num_layers", True),
        ("model", "moe", 8),
        ("model", "hf_config", "a" * 5000),
        ("hardware", "gpus_per_node", "8"),
        ("parallel", "schedule", ["1f1b"]),
        ("parallel", "tp", 1.5),
        ("parallel", "sequence_parallel", 1),
        ("parallel", "dp", float("nan")),
        ("measured", "step_time_s", "1.0"),
    ],
)
def test_the_key_is_named(section: str, key: str, value: Any) -> None:
    reason = wrong_kind(changed(section, key, value))
    assert reason is not None and f"{section}.{key}".strip(".") in reason and "expected" in reason


def test_a_row_as_it_should_be_and_keys_that_are_not_stated() -> None:
    assert wrong_kind(LLAMA) is None
    for section in ("model", "hardware", "parallel"):
        for key in LLAMA[section]:
            assert wrong_kind(changed(section, key, None)) is None


def test_no_value_ends_a_run(tmp_path: Path) -> None:
    rows = [changed("", key, value) for key in LLAMA for value in ODD if key != "id"]
    for section in ("model", "hardware", "parallel", "source"):
        rows += [changed(section, key, value) for key in LLAMA[section] for value in ODD]
    rows += [changed("measured", key, value) for key in ("step_time_s", "peak_memory_gb") for value in ODD]
    path = tmp_path / "rows" / "runs.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert len(validate_rows(path).rows) == len(rows)


def test_only_line_feeds_end_a_row(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    text = json.dumps(changed("source", "title", "a\u2028b\x85c"), ensure_ascii=False)
    path.write_text(f"{text}\r\n\n{text}", encoding="utf-8-sig", newline="")
    assert [row.skipped for row in validate_rows(path).rows] == [None, None]

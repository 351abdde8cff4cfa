"""The shipped link constants come from the shipped rows, and predict what people measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shardwise.hardware_profiles.cluster import Ramp
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.fit_collectives import (
    LARGE_BYTES,
    SHIPPED_ROWS,
    Row,
    crossing,
    fit_technology,
    main,
    predict,
    read_rows,
    shipped_errors,
    shipped_sources,
    systems_of,
)
from shardwise.hardware_profiles.load_cluster import load_cluster

ROWS = read_rows()
CLUSTERS = systems_of(ROWS)
ERRORS = shipped_errors(ROWS, CLUSTERS)
ONE_NODE = [key for key, (count, _, _) in ERRORS.items() if key[2] == 1 and count >= 6]


def test_rows_are_compact_and_sourced():
    assert len(ROWS) > 2000 and SHIPPED_ROWS.stat().st_size < 200_000
    sources = shipped_sources()
    assert {row.group for row in ROWS} == set(sources) and all(sources.values())


@pytest.mark.parametrize("key", ONE_NODE, ids=lambda key: f"{key[0]}-{key[1]}")
def test_one_node_median_error_is_at_most_ten_percent(key):
    assert ERRORS[key][1] <= 0.10


# busbw in GB/s that people posted for large messages: system, kind, ranks, domains, bytes, busbw, tolerance
POSTED = [
    ("dgx-a100", "all_reduce", 16, 4 << 30, 188.5, 0.2),
    ("dgx-a100", "all_reduce", 32, 4 << 30, 191.0, 0.2),
    ("dgx-h100", "all_reduce", 16, 16 << 30, 469.2, 0.2),
    ("dgx-h100", "all_reduce", 32, 16 << 30, 365.8, 0.2),
    ("dgx-h100", "all_reduce", 64, 16 << 30, 320.0, 0.2),
    ("aws-p5", "all_reduce", 16, 16 << 30, 487.1, 0.2),
    ("aws-p4d", "all_reduce", 16, 8 << 30, 78.3, 0.2),
    ("aws-p6-b200", "all_reduce", 32, 16 << 30, 381.8, 0.2),
    ("gcp-a3-ultra", "all_gather", 16, 8 << 30, 328.8, 0.2),
    ("gcp-a3-mega", "all_gather", 16, 8 << 30, 188.9, 0.2),
    ("gcp-a3-high", "all_gather", 16, 512 << 20, 71.0, 0.2),
    ("mi300x-8x400g", "all_reduce", 16, 16 << 30, 358.4, 0.2),
    ("gb200-nvl72", "all_reduce", 72, 4 << 30, 839.2, 0.2),
    ("gb300-nvl72", "all_reduce", 64, 16 << 30, 930.5, 0.2),
    ("gb300-nvl72", "all_reduce", 128, 16 << 30, 738.4, 0.2),
    ("dgx-h200", "all_reduce", 8, 16 << 30, 482.3, 0.1),
    ("aws-p6-b200", "all_reduce", 8, 16 << 30, 845.7, 0.1),
]


@pytest.mark.parametrize(("system", "kind", "ranks", "nbytes", "busbw", "tolerance"), POSTED)
def test_large_messages_agree_with_posts(system, kind, ranks, nbytes, busbw, tolerance):
    c = load_cluster(system, ranks)
    passes = 2 if kind == "all_reduce" else 1
    predicted = passes * (ranks - 1) / ranks * nbytes / float(c.collective_time_s(kind, nbytes, ranks, 1)) / 1e9
    assert predicted == pytest.approx(busbw, rel=tolerance)


@pytest.mark.parametrize(
    "name", ["nvlink3", "nvlink4", "nvlink5", "xgmi", "ib-hdr", "ib-ndr", "roce", "roce-gcp", "tcpxo"]
)
def test_refitting_finds_the_shipped_constants(name):
    fits = fit_technology(name, ROWS, CLUSTERS)
    assert fits
    tier = next(crossing(r, CLUSTERS[r.system]) for r in ROWS if crossing(r, CLUSTERS[r.system]).technology == name)
    for fit in fits:
        for kind in fit.kind.split("+"):
            ramp = tier.ramps.get(kind, Ramp())
            assert tier.efficiency[kind] == pytest.approx(fit.efficiency, rel=0.02)
            assert ramp.fill_s == pytest.approx(fit.fill_s, rel=0.1, abs=2e-8)
            assert ramp.launch_s == pytest.approx(fit.launch_s, rel=0.1)
            assert tier.latency_s == pytest.approx(fit.latency_s, rel=0.1)


def test_a_fit_recovers_constants_from_rows_it_generated():
    truth = {"made": load_cluster("dgx-a100")}
    rows = [
        Row("made", "made", kind, n, 1, float(2**p), 1.0)
        for kind in ("all_reduce", "all_gather")
        for n in (2, 4, 8)
        for p in range(10, 31)
    ]
    made = [
        Row(r.group, r.system, r.kind, r.ranks, r.nodes, r.nbytes, s)
        for r, s in zip(rows, predict(rows, truth), strict=True)
    ]
    for fit in fit_technology("nvlink3", made, truth):
        assert fit.median_error < 0.01
        assert fit.efficiency == pytest.approx(truth["made"].tiers[0].efficiency[fit.kind], rel=0.03)


def test_command_reads_jsonl_and_prints_errors(tmp_path, capsys):
    lines = [
        {"device": "A100-SXM4-80GB", "op": "all_reduce", "ranks": r.ranks, "nodes": 1, "bytes": r.nbytes,
         "latency_us": r.seconds * 1e6, "source": r.group}
        for r in ROWS
        if r.system == "dgx-a100" and r.kind == "all_reduce" and r.nodes == 1
    ]  # fmt: skip
    lines.append({"device": "L40S", "op": "all_reduce", "ranks": 8, "nodes": 1, "bytes": 1024, "latency_us": 9.0})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "nvlink3     all_reduce" in printed and "dgx-a100" in printed and "L40S" not in printed


def test_command_says_what_is_wrong_with_rows(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"op": "all_reduce"}\n')
    assert main([str(path)]) == 2
    assert "line 1" in capsys.readouterr().err
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")


def test_small_messages_are_in_the_right_place():
    small = [row for row in ROWS if row.nbytes < LARGE_BYTES and row.nodes == 1]
    ratio = predict(small, CLUSTERS) / np.array([row.seconds for row in small])
    assert 0.85 < np.median(ratio) < 1.15

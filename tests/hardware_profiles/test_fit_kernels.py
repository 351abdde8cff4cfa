"""The shipped laws come out of the shipped measured rows, with the errors the profiles state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shardwise.hardware_profiles.accelerator import AttentionLaw, GemmLaw
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.fit_kernels import (
    FitQuality,
    attention_rows_for,
    fit_attention,
    fit_gemm,
    gemm_rows_for,
    main,
    predict_attention,
    predict_gemm,
)
from shardwise.hardware_profiles.load_accelerator import load_accelerator
from shardwise.hardware_profiles.measured_kernels import (
    MEASURED,
    AttentionRow,
    GemmRow,
    read_attention_rows,
    read_gemm_rows,
    write_rows,
)

# Median error at m >= 1024 that the fit must reach, in percent.
GEMM_MEDIANS = [
    ("A100-SXM4-80GB", "bf16", 5.5),
    ("A100-PCIe-80GB", "bf16", 3.0),
    ("H100-SXM5-80GB", "bf16", 3.0),
    ("H100-SXM5-80GB", "fp8", 2.0),
    ("H100-SXM5-80GB", "fp8_block", 2.5),
    ("H200-SXM", "bf16", 4.5),
    ("H200-SXM", "fp8", 2.0),
    ("H200-SXM", "fp8_block", 2.5),
    ("B200-SXM", "bf16", 4.1),
    ("B200-SXM", "fp8", 4.2),
    ("B200-SXM", "fp8_block", 3.0),
    ("B200-SXM", "nvfp4", 4.0),
    ("B300-SXM", "bf16", 8.0),
    ("B300-SXM", "fp8", 4.5),
    ("B300-SXM", "nvfp4", 3.5),
    ("GB200", "bf16", 6.6),
    ("GB200", "fp8", 4.2),
    ("GB200", "nvfp4", 5.0),
    ("L40S", "bf16", 8.0),
    ("H800-SXM", "fp8_block", 5.5),
]
ATTENTION_MEDIANS = [
    ("A100-SXM4-80GB", "fa2", 1.0),
    ("A100-SXM4-80GB", "vendor", 2.0),
    ("H100-SXM5-80GB", "fa2", 5.0),
    ("H100-SXM5-80GB", "fa3", 4.5),
    ("H100-SXM5-80GB", "cudnn", 8.0),
    ("H100-SXM5-80GB", "vendor", 5.5),
    ("B200-SXM", "cudnn", 12.0),
    ("B200-SXM", "vendor", 4.0),
    ("B300-SXM", "vendor", 5.0),
    ("GB200", "vendor", 4.0),
]
REFITTED = [("A100-SXM4-80GB", "bf16"), ("H100-SXM5-80GB", "bf16"), ("H100-SXM5-80GB", "fp8"), ("B200-SXM", "nvfp4")]


@pytest.fixture(scope="module")
def gemm_rows() -> list[GemmRow]:
    return read_gemm_rows()


@pytest.fixture(scope="module")
def attention_rows() -> list[AttentionRow]:
    return read_attention_rows()


def _errors(predicted, rows) -> np.ndarray:
    return np.abs(predicted / np.array([row.time_s for row in rows]) - 1.0)


# --- shipped laws against measured rows ---------------------------------------------------------------------------


@pytest.mark.parametrize(("device", "dtype", "percent"), GEMM_MEDIANS)
def test_shipped_gemm_laws_meet_the_measurements(gemm_rows, device, dtype, percent):
    accelerator = load_accelerator(device)
    rows = [row for row in gemm_rows_for(device, dtype, gemm_rows) if row.m >= 1024]
    errors = _errors(predict_gemm(accelerator, accelerator.gemm[dtype], dtype, rows), rows)
    assert len(rows) >= 20
    assert 100.0 * np.median(errors) <= percent
    figure = accelerator.figures[f"gemm.{dtype}.efficiency"]
    assert figure.origin == "fitted"
    assert f"median error {100.0 * np.median(errors):.1f} %" in figure.source


@pytest.mark.parametrize(("device", "kernel", "percent"), ATTENTION_MEDIANS)
def test_shipped_attention_laws_meet_the_measurements(attention_rows, device, kernel, percent):
    accelerator = load_accelerator(device)
    rows = [row for row in attention_rows_for(device, kernel, attention_rows) if row.seq_k >= 2048]
    errors = _errors(predict_attention(accelerator, accelerator.attention[kernel], rows), rows)
    assert 100.0 * np.median(errors) <= percent
    assert accelerator.figures[f"attention.{kernel}.forward"].origin == "fitted"


@pytest.mark.parametrize(("device", "dtype"), REFITTED)
def test_a_refit_reproduces_the_shipped_gemm_law(gemm_rows, device, dtype):
    accelerator = load_accelerator(device)
    rows = gemm_rows_for(device, dtype, gemm_rows)
    law, quality = fit_gemm(accelerator, dtype, rows)
    again = predict_gemm(accelerator, law, dtype, rows)
    np.testing.assert_allclose(again, predict_gemm(accelerator, accelerator.gemm[dtype], dtype, rows), rtol=0.01)
    assert law.efficiency == pytest.approx(accelerator.gemm[dtype].efficiency, abs=0.005)
    assert quality.rows == len(rows)


@pytest.mark.parametrize(("device", "kernel"), [("H100-SXM5-80GB", "fa3"), ("B200-SXM", "cudnn")])
def test_a_refit_reproduces_the_shipped_attention_law(attention_rows, device, kernel):
    accelerator = load_accelerator(device)
    rows = attention_rows_for(device, kernel, attention_rows)
    law, _ = fit_attention(accelerator, rows)
    shipped = accelerator.attention[kernel]
    np.testing.assert_allclose(
        predict_attention(accelerator, law, rows), predict_attention(accelerator, shipped, rows), rtol=0.02
    )


def test_half_of_the_rows_predict_the_other_half(gemm_rows):
    accelerator = load_accelerator("H100-SXM5-80GB")
    rows = gemm_rows_for("H100-SXM5-80GB", "bf16", gemm_rows)
    law, _ = fit_gemm(accelerator, "bf16", rows[::2])
    held_out = [row for row in rows[1::2] if row.m >= 1024]
    assert np.median(_errors(predict_gemm(accelerator, law, "bf16", held_out), held_out)) < 0.05


def test_another_laboratory_agrees_on_large_shapes(gemm_rows):
    """Timings after 10,000 warm-up runs, not fitted to: within 15 % from 8192 cubed on."""
    for row in gemm_rows:
        if "Azure" in row.source and min(row.m, row.n, row.k) >= 8192:
            accelerator = load_accelerator(row.device)
            predicted = predict_gemm(accelerator, accelerator.gemm[row.dtype], row.dtype, [row])
            assert _errors(predicted, [row])[0] < 0.15, row


def test_long_runs_of_b200_show_the_sustained_fraction(gemm_rows):
    """SimuMax times long runs on B200: they reach about the fraction of the short kernels that training sustains."""
    accelerator = load_accelerator("B200-SXM")
    rows = [
        row
        for row in gemm_rows
        if row.device == "B200-SXM" and "SimuMax" in row.source and min(row.m, row.n, row.k) >= 2048
    ]
    short = predict_gemm(accelerator, accelerator.gemm["bf16"], "bf16", rows)
    ratio = np.median(short / np.array([row.time_s for row in rows]))
    assert ratio == pytest.approx(accelerator.sustained["bf16"], abs=0.12)


# --- the fitter itself --------------------------------------------------------------------------------------------


def test_the_gemm_fit_recovers_a_law_that_it_was_given():
    accelerator = load_accelerator("H100-SXM5-80GB")
    truth = GemmLaw(0.7, 50.0, 300.0, 150.0, 5e-6)
    shapes = [(m, n, k) for m in (256, 1024, 4096, 16384) for n in (1024, 4096, 8192) for k in (1024, 4096, 8192)]
    blank = [GemmRow("H100-SXM5-80GB", "bf16", m, n, k, 1, "", 1.0, "made up") for m, n, k in shapes]
    times = predict_gemm(accelerator, truth, "bf16", blank)
    rows = [
        GemmRow(r.device, r.dtype, r.m, r.n, r.k, 1, "", float(t), r.source) for r, t in zip(blank, times, strict=True)
    ]
    law, quality = fit_gemm(accelerator, "bf16", rows)
    assert quality.median < 1e-3
    assert law.efficiency == pytest.approx(0.7, rel=1e-2)
    assert law.n0 == pytest.approx(300.0, rel=5e-2)


def test_the_attention_fit_recovers_a_law_that_it_was_given():
    accelerator = load_accelerator("H100-SXM5-80GB")
    truth = AttentionLaw(0.6, 0.45, 200.0, True, head_dim_ramp=30.0, fill=16896.0)
    blank = [
        AttentionRow("H100-SXM5-80GB", "bf16", "fa3", back, 2, 32, s, s, d, d, causal, 1.0, "made up")
        for back in (False, True)
        for s in (512, 2048, 8192)
        for d in (64, 128)
        for causal in (False, True)
    ]
    times = predict_attention(accelerator, truth, blank)
    rows = [AttentionRow(*[*_fields(r)[:-2], float(t), r.source]) for r, t in zip(blank, times, strict=True)]
    law, quality = fit_attention(accelerator, rows)
    assert quality.median < 1e-3
    assert (law.forward, law.backward) == pytest.approx((0.6, 0.45), rel=1e-2)
    assert law.head_dim_ramp == pytest.approx(30.0, rel=5e-2)


def _fields(row: AttentionRow) -> list:
    return [getattr(row, name) for name in AttentionRow.__dataclass_fields__]


def test_quality_is_over_training_shapes_first():
    quality = FitQuality.of(np.array([1.0, 2.0, 1.1]), np.ones(3), np.array([True, False, True]))
    assert (quality.rows, quality.median) == (3, pytest.approx(0.05))
    assert quality.median_all == pytest.approx(0.1)
    assert FitQuality.of(np.array([1.2]), np.ones(1), np.array([False])).median == pytest.approx(0.2)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_measured_files_are_small_and_round_trip(tmp_path, gemm_rows, attention_rows):
    assert sum((MEASURED / name).stat().st_size for name in ("gemm.csv.gz", "attention.csv.gz")) < 300_000
    write_rows(gemm_rows, tmp_path / "g.csv.gz")
    write_rows(attention_rows, tmp_path / "a.csv.gz")
    assert (tmp_path / "g.csv.gz").read_bytes() == (MEASURED / "gemm.csv.gz").read_bytes()
    assert read_gemm_rows(tmp_path / "g.csv.gz") == gemm_rows
    assert read_attention_rows(tmp_path / "a.csv.gz") == attention_rows


def test_every_measured_row_is_physical_and_sourced(gemm_rows, attention_rows):
    assert len(gemm_rows) > 2000 and len(attention_rows) > 700
    assert all(row.time_s > 0.0 and len(row.source) > 8 for row in gemm_rows)
    assert all(row.time_s > 0.0 and len(row.source) > 8 and "index id" not in row.source for row in attention_rows)


def test_no_attention_row_is_above_the_peak(attention_rows):
    for row in attention_rows:
        if row.device.startswith("Hopper"):
            continue
        device = load_accelerator(row.device)
        pairs = row.batch * row.heads * row.seq_q * row.seq_k * (0.5 if row.causal else 1.0)
        per_pair = 3 * row.qk_dim + 2 * row.v_dim if row.backward else row.qk_dim + row.v_dim
        assert 2.0 * pairs * per_pair / row.time_s < device.peak_flops[row.dtype]


def _raw(**changes) -> str:
    row = {
        "device": "B200-SXM",
        "kind": "attention_fwd",
        "dtype": "bf16",
        "batch": 1,
        "heads": 64,
        "seq": 4096,
        "head_dim": 128,
        "causal": None,
        "tflops": 1900.0,
        "frac_of_peak": 0.87,
        "source": "SimuMax table",
        "confidence": "quoted",
    }
    return json.dumps({**row, **changes}) + "\n"


def test_rows_of_unknown_mask_are_left_out_and_simumax_is_read_as_full_square(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        _raw()
        + _raw(frac_of_peak=1.2)
        + _raw(source="someone else")
        + _raw(confidence="recalled")
        + _raw(heads=None)
        + _raw(deterministic=True, causal=True)
        + _raw(source="someone else", causal=True)
    )
    first, other = read_attention_rows(path)
    assert (first.kernel, first.causal, other.kernel) == ("cudnn", True, "vendor")
    assert first.time_s == pytest.approx(4.0 * 64 * 4096**2 * 128 / 1900e12)
    assert other.time_s == pytest.approx(first.time_s / 2.0)
    assert read_gemm_rows(path) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{not json\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"kind": "gemm", "m": 1, "n": 1, "k": 1, "tflops": 1}\n', "'device' is missing"),
        (
            '{"kind": "gemm", "device": "x", "dtype": "bf16", "m": "a", "n": 1, "k": 1, "tflops": 1}\n',
            "invalid literal",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, text, says):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_gemm_rows(path)


def test_bad_row_files_are_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_gemm_rows(Path("nowhere.jsonl"))
    junk = tmp_path / "junk.csv.gz"
    junk.write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot be read as gzip CSV"):
        read_attention_rows(junk)


def test_the_command_prints_laws_and_errors(tmp_path, capsys, gemm_rows):
    path = tmp_path / "rows.jsonl"
    rows = gemm_rows_for("A100-SXM4-80GB", "bf16", gemm_rows)
    path.write_text(
        "".join(
            json.dumps(
                {
                    "kind": "gemm",
                    "device": r.device,
                    "dtype": r.dtype,
                    "m": r.m,
                    "n": r.n,
                    "k": r.k,
                    "latency_us": r.time_s * 1e6,
                    "source": r.source,
                }
            )
            + "\n"
            for r in rows
        )
    )
    assert main([str(path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("A100-SXM4-80GB"))
    efficiency = load_accelerator("A100-SXM4-80GB").gemm["bf16"].efficiency
    assert float(line.split()[2]) == pytest.approx(efficiency, abs=0.01)


def test_the_command_reports_a_missing_file_in_one_line(capsys):
    assert main(["nowhere.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("error: nowhere.jsonl: cannot be read")

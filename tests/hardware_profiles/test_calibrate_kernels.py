"""Laws calibrated to a user's own sweep: planted numbers lie in their intervals, few rows move little, most help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.hardware_profiles.accelerator import AttentionLaw, GemmLaw
from shardwise.hardware_profiles.calibrate_kernels import fit_attentions, fit_gemms
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.fit_kernels import gemm_rows_for, predict_attention, predict_gemm
from shardwise.hardware_profiles.load_accelerator import load_accelerator
from shardwise.hardware_profiles.measured_kernels import AttentionRow, GemmRow, read_gemm_rows

H100 = load_accelerator("H100-SXM5-80GB")
SHAPES = [(m, n, k) for m in (256, 1024, 4096, 16384) for n in (1024, 4096, 12288) for k in (1024, 4096, 12288)]
GEMMS = [GemmRow("H100", "bf16", m, n, k, 1, "", 1.0, "made") for m, n, k in SHAPES]
ATTENTIONS = [
    AttentionRow("H100", "bf16", "fa3", back, 2, heads, s, s, d, d, causal, 1.0, "made")
    for back in (False, True)
    for s in (512, 2048, 8192)
    for heads in (4, 32)
    for d in (64, 128)
    for causal in (False, True)
]


def timed(rows, seconds, noise, rng, odd=0.05):
    seconds = seconds * np.exp(noise * rng.standard_normal(len(rows)))
    seconds = np.where(rng.random(len(rows)) < odd, seconds * rng.uniform(1.3, 3.0, len(rows)), seconds)
    return [replace(row, time_s=float(s)) for row, s in zip(rows, seconds, strict=True)]


def test_planted_gemm_laws_lie_in_their_intervals():
    held, near = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = GemmLaw(*(rng.uniform(*span) for span in ((0.6, 0.95), (0, 80), (0, 250), (0, 150), (2e-6, 8e-6))))
        (fit,) = fit_gemms(H100, timed(GEMMS, predict_gemm(H100, truth, "bf16", GEMMS), 0.03, rng))
        held += [f.interval[0] <= getattr(truth, f.name) <= f.interval[1] for f in fit.figures]
        near.append(abs(fit.law.efficiency / truth.efficiency - 1.0))
    assert np.mean(held) >= 0.85 and np.median(near) < 0.02


def test_planted_attention_laws_lie_in_their_intervals():
    held = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        truth = AttentionLaw(rng.uniform(0.5, 0.8), rng.uniform(0.4, 0.7), rng.uniform(100, 400), True,
                             head_dim_ramp=rng.uniform(10, 60), fill=rng.uniform(5e3, 3e4))  # fmt: skip
        (fit,) = fit_attentions(H100, timed(ATTENTIONS, predict_attention(H100, truth, ATTENTIONS), 0.03, rng))
        held += [f.interval[0] <= getattr(truth, f.name) <= f.interval[1] for f in fit.figures]
    assert np.mean(held) >= 0.85


@pytest.mark.parametrize(("device", "profile"), [("H200-SXM", "H100-SXM5-80GB"), ("B200-SXM", "B300-SXM")])
def test_twenty_rows_of_another_device_bring_its_profile_near(device, profile):
    accelerator = load_accelerator(profile)
    rows = [row for row in gemm_rows_for(device, "bf16", read_gemm_rows()) if row.m >= 1024]
    chosen = rows[:: len(rows) // 20]
    rest = [row for row in rows if row not in chosen]
    (fit,) = fit_gemms(accelerator, chosen)
    assert isinstance(fit.law, GemmLaw)
    measured = np.array([row.time_s for row in rest])
    before, after = (
        np.median(np.abs(predict_gemm(accelerator, law, "bf16", rest) / measured - 1.0))
        for law in (accelerator.gemm["bf16"], fit.law)
    )
    assert after < 0.05 and after <= before + 0.002


def test_rows_that_the_law_already_meets_leave_it_alone():
    law = H100.gemm["bf16"]
    seconds = predict_gemm(H100, law, "bf16", GEMMS)
    (fit,) = fit_gemms(H100, [replace(r, time_s=float(s)) for r, s in zip(GEMMS, seconds, strict=True)])
    assert fit.law.efficiency == pytest.approx(law.efficiency, rel=1e-3)
    np.testing.assert_allclose(fit.after_s, seconds, rtol=2e-3)


def test_one_large_shape_tells_the_share_and_nothing_else():
    row = GemmRow("H100", "bf16", 8192, 8192, 8192, 1, "", 2.0 * 8192**3 / 6.5e14, "made")
    (fit,) = fit_gemms(H100, [row] * 3)
    told = {f.name: f.told for f in fit.figures}
    assert told["efficiency"] > 0.5 and max(told[n] for n in ("m0", "n0", "k0", "overhead_s")) < 0.2
    assert fit.after_s == pytest.approx(fit.measured_s, rel=0.02)


def test_a_dtype_without_a_law_but_with_a_peak():
    accelerator = replace(H100, gemm={"bf16": H100.gemm["bf16"]})
    rows = [replace(row, dtype="fp8", time_s=2.0 * row.m * row.n * row.k / 1.2e15 + 5e-6) for row in GEMMS]
    (fit,) = fit_gemms(accelerator, rows)
    assert np.median(np.abs(fit.after_s / fit.measured_s - 1.0)) < 0.05


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(InputError, match="mxfp4"):
        fit_gemms(H100, [replace(GEMMS[0], dtype="mxfp4")])
    with pytest.raises(InputError, match="mxfp4"):
        fit_attentions(H100, [replace(ATTENTIONS[0], dtype="mxfp4")])


def test_unfused_rows_are_left_to_the_gemms():
    assert fit_attentions(H100, [replace(ATTENTIONS[0], kernel="unfused")]) == []

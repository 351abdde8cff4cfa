"""Every shipped accelerator passes the same conformance, and the two kernel laws behave as time must."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.accelerator import (
    DTYPE_BYTES,
    Accelerator,
    AttentionLaw,
    GemmLaw,
    visible_keys,
)
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_accelerator import list_accelerators, load_accelerator

NAMES = list_accelerators()
ORIGINS = {"datasheet", "published", "fitted", "measured", "derived", "assumed"}
sizes = st.integers(min_value=1, max_value=200_000)


@pytest.fixture(params=NAMES)
def accelerator(request) -> Accelerator:
    return load_accelerator(request.param)


def plain(**changes) -> Accelerator:
    """A device with round numbers: 1 PFLOP/s, 1 TB/s."""
    base = Accelerator(
        name="plain",
        vendor="none",
        peak_flops={"bf16": 1e15, "fp8": 2e15},
        memory_bytes=80e9,
        memory_bytes_per_s=1e12,
        memory_efficiency=1.0,
        host_bytes_per_s=50e9,
        gemm={"bf16": GemmLaw(0.5, 0.0, 0.0, 0.0, 0.0), "fp8": GemmLaw(0.5, 10.0, 20.0, 30.0, 1e-6)},
        attention={
            "fa2": AttentionLaw(0.5, 0.25, 0.0, True),
            "square": AttentionLaw(0.5, 0.25, 0.0, False),
            "unfused": AttentionLaw(1.0, 1.0, 0.0, False, softmax_passes_forward=4.0, softmax_passes_backward=6.0),
        },
        sustained={"bf16": 0.8},
    )
    return replace(base, **changes)


# --- conformance of every shipped profile -------------------------------------------------------------------------


def test_there_is_a_profile_for_every_device_that_published_runs_name():
    for gpu in (
        "A100-80GB-SXM",
        "H100-80GB-SXM",
        "GB200",
        "GB300",
        "A100-40GB-SXM",
        "V100-32GB-SXM2",
        "H100-96GB-HBM2e-SXM (500W)",
        "V100-16GB-SXM2",
        "B300-SXM",
        "B200-SXM",
        "V100-SXM2 (125 TFLOP/s; 4x8)",
        "TPU-v6e",
        "TPU7x-Ironwood",
        "MI355X-288GB",
        "MI300X-192GB",
        "A800-80GB-SXM",
        "H800-80GB-SXM",
        "B200-SXM (power limited)",
        "H200-141GB-SXM",
        "A100-80GB-SXM (DGX)",
        "TPU v4",
        "H20-96GB-SXM",
        "A800-80GB (32 GPUs, 4 nodes per text)",
    ):
        device = load_accelerator(gpu)
        assert gpu in (device.name, *device.aliases)


def test_every_number_carries_an_origin_and_a_source(accelerator):
    figures = accelerator.figures
    assert {f.origin for f in figures.values()} <= ORIGINS
    assert all(len(f.source) >= 8 for f in figures.values())
    assert figures["memory_bytes"].value == accelerator.memory_bytes
    for dtype, law in accelerator.gemm.items():
        for key in ("efficiency", "m0", "n0", "k0", "overhead_s"):
            assert figures[f"gemm.{dtype}.{key}"].value == getattr(law, key)
        assert figures[f"sustained.{dtype}"].value == accelerator.sustained[dtype]
    for kernel, attention in accelerator.attention.items():
        for key in ("forward", "backward", "ramp", "head_dim_ramp", "fill", "sustained"):
            assert figures[f"attention.{kernel}.{key}"].value == getattr(attention, key)


def test_figures_are_plausible(accelerator):
    assert 1e13 < max(accelerator.peak_flops.values()) < 1e17
    assert 10e9 < accelerator.memory_bytes < 1e12
    assert 5e11 < accelerator.memory_bytes_per_s < 2e13
    assert 0.7 <= accelerator.memory_efficiency <= 0.95
    assert 5e9 < accelerator.host_bytes_per_s < 1e12
    assert accelerator.scale_up is not None and accelerator.scale_up.domain >= 1
    assert "unfused" in accelerator.attention and len(accelerator.attention) >= 2
    assert "bf16" in accelerator.gemm or accelerator.name.startswith("V100")
    for law in accelerator.gemm.values():
        assert 0.25 <= law.efficiency <= 1.0
        assert 0.0 <= law.overhead_s <= 50e-6


@pytest.mark.parametrize("sustained", [True, False])
def test_no_gemm_passes_the_peak_or_the_memory(accelerator, sustained):
    m, n, k = np.meshgrid([1, 128, 2048, 65536], [64, 4096, 65536], [64, 4096, 65536])
    for dtype in accelerator.gemm:
        time = accelerator.gemm_time_s(m, n, k, dtype, sustained=sustained)
        assert np.all(2.0 * m * n * k / time <= accelerator.peak_flops[dtype])
        read = DTYPE_BYTES[dtype] * (1.0 * m * k + 1.0 * n * k)
        assert np.all(read / time <= accelerator.memory_bytes_per_s)


@pytest.mark.parametrize("backward", [False, True])
def test_no_attention_passes_the_peak(accelerator, backward):
    dtype = "bf16" if "bf16" in accelerator.peak_flops else "fp16"
    for kernel in accelerator.attention:
        for dim in (64, 128, 192, 256, 512):
            time = accelerator.attention_time_s(kernel, 64, 32768, 32768, dim, dim, True, backward, dtype)
            done = 64 * 32768.0**2 * dim * (5.0 if backward else 2.0)
            assert 0.0 < done / time < accelerator.peak_flops[dtype]


def test_isolated_kernels_are_at_least_as_fast_as_sustained_ones(accelerator):
    for dtype in accelerator.gemm:
        hot = accelerator.gemm_time_s(4096, 4096, 4096, dtype)
        assert hot >= accelerator.gemm_time_s(4096, 4096, 4096, dtype, sustained=False)
        assert 0.4 <= accelerator.sustained[dtype] <= 1.0


def test_backward_takes_longer_than_forward_and_unfused_longer_than_fused(accelerator):
    dtype = "bf16" if "bf16" in accelerator.gemm else "fp16"
    shape = (64, 4096, 4096, 128, 128, True)
    forward = {k: accelerator.attention_time_s(k, *shape, False, dtype) for k in accelerator.attention}
    backward = {k: accelerator.attention_time_s(k, *shape, True, dtype) for k in accelerator.attention}
    assert all(backward[k] > forward[k] for k in forward)
    assert all(forward["unfused"] >= time for time in forward.values())


def test_known_relations_between_devices():
    at = {
        n: load_accelerator(n).gemm_time_s(8192, 8192, 8192, "bf16").item() for n in ("A100", "H100", "B200", "GB300")
    }
    assert at["A100"] > at["H100"] > at["B200"] > at["GB300"]
    h100, limited = load_accelerator("H100"), load_accelerator("H100-96GB-HBM2e-SXM (500W)")
    ratio = h100.gemm_time_s(8192, 8192, 8192, "bf16") / limited.gemm_time_s(8192, 8192, 8192, "bf16")
    assert 0.65 < ratio < 0.9, "the 500 W part is slower, by less than its power limit of 0.71"


# --- the GEMM law -------------------------------------------------------------------------------------------------


def test_gemm_law_by_hand():
    device = plain()
    # 2·4096³ flops at half of a peak of 1e15, of which training sustains 0.8.
    expected = 2.0 * 4096**3 / (1e15 * 0.5)
    assert device.gemm_time_s(4096, 4096, 4096, "bf16", sustained=False) == pytest.approx(expected)
    assert device.gemm_time_s(4096, 4096, 4096, "bf16") == pytest.approx(expected / 0.8)
    device = replace(device, memory_bytes_per_s=1e14)
    shaped = 1.0 + 10 / 4096 + 20 / 2048 + 30 / 1024
    assert device.gemm_time_s(4096, 2048, 1024, "fp8") == pytest.approx(2.0 * 4096 * 2048 * 1024 / 1e15 * shaped + 1e-6)


def test_a_thin_gemm_is_bound_by_reading_its_weights():
    moved = 2.0 * (1 * 8192 + 8192 * 8192) + 2.0 * 8192
    assert plain().gemm_time_s(1, 8192, 8192, "bf16") == pytest.approx(moved / 1e12)


def test_a_group_costs_one_overhead():
    device = plain()
    one = device.gemm_time_s(512, 512, 512, "fp8") - 1e-6
    assert device.gemm_time_s(512, 512, 512, "fp8", batch=16) == pytest.approx(16 * one + 1e-6)


def test_empty_gemms_cost_the_overhead_and_no_nan():
    assert plain().gemm_time_s(0, 4096, 4096, "bf16", batch=0) == 0.0
    assert plain().gemm_time_s(0, 0, 4096, "fp8") == pytest.approx(1e-6)


def test_gemm_arrays_broadcast():
    m, n = np.array([[128], [256]]), np.array([64, 128, 256])
    time = plain().gemm_time_s(m, n, 512, "bf16")
    assert time.shape == (2, 3)
    assert time[1, 2] == pytest.approx(plain().gemm_time_s(256, 256, 512, "bf16"))


def test_a_dtype_without_law_is_an_error_that_lists_the_others():
    with pytest.raises(InputError, match=r"plain: no GEMM law for dtype 'nvfp4'; it has bf16, fp8"):
        plain().gemm_time_s(1, 1, 1, "nvfp4")
    with pytest.raises(InputError, match="no peak for dtype 'fp16'"):
        plain().attention_time_s("fa2", 1, 1, 1, 64, 64, True, False, "fp16")
    with pytest.raises(InputError, match="no attention law for kernel 'fa9'; it has fa2, square, unfused"):
        plain().attention_time_s("fa9", 1, 1, 1, 64, 64, True, False)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), m=sizes, n=sizes, k=sizes, more=st.integers(1, 4096))
def test_gemm_time_grows_with_every_dimension(name, m, n, k, more):
    device = load_accelerator(name)
    dtype = next(iter(device.gemm))
    base = device.gemm_time_s(m, n, k, dtype)
    assert math.isfinite(base) and base > 0.0
    for shape in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert device.gemm_time_s(*shape, dtype) > base


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), m=sizes, n=sizes, k=sizes, faster=st.floats(1.01, 10.0))
def test_gemm_time_falls_with_bandwidth_and_peak(name, m, n, k, faster):
    device = load_accelerator(name)
    dtype = next(iter(device.gemm))
    base = device.gemm_time_s(m, n, k, dtype)
    wide = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * faster)
    fast = replace(device, peak_flops={d: p * faster for d, p in device.peak_flops.items()})
    both = replace(fast, memory_bytes_per_s=wide.memory_bytes_per_s)
    assert wide.gemm_time_s(m, n, k, dtype) <= base
    assert fast.gemm_time_s(m, n, k, dtype) <= base
    assert both.gemm_time_s(m, n, k, dtype) < base


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), m=st.integers(1, 65536), n=sizes, k=sizes)
def test_splitting_a_gemm_never_pays(name, m, n, k):
    device = load_accelerator(name)
    dtype = next(iter(device.gemm))
    assert device.gemm_time_s(2 * m, n, k, dtype) <= 2.0 * device.gemm_time_s(m, n, k, dtype) * (1 + 1e-12)


# --- attention ----------------------------------------------------------------------------------------------------


def test_fused_attention_by_hand():
    device = plain()
    full = 4.0 * 8 * 1024.0**2 * 128  # two products over the square
    assert device.attention_time_s("fa2", 8, 1024, 1024, 128, 128, False, False) == pytest.approx(full / 0.5e15)
    assert device.attention_time_s("fa2", 8, 1024, 1024, 128, 128, False, True) == pytest.approx(2.5 * full / 0.25e15)
    causal = device.attention_time_s("fa2", 8, 1024, 1024, 128, 128, True, False)
    assert causal == pytest.approx(full * (512 + 64) / 1024 / 0.5e15)
    assert device.attention_time_s("square", 8, 1024, 1024, 128, 128, True, False) == pytest.approx(full / 0.5e15)


def test_unfused_attention_is_two_gemms_and_four_passes():
    device = plain(sustained={})
    bh, s, d = 16.0, 2048.0, 128.0
    scores = device.gemm_time_s(s, s, d, "bf16", bh)
    values = device.gemm_time_s(s, d, s, "bf16", bh)
    forward = scores + values + 4 * 2 * bh * s * s / 1e12
    assert device.attention_time_s("unfused", bh, s, s, d, d, True, False) == pytest.approx(forward)
    backward = scores + 3 * values + 6 * 2 * bh * s * s / 1e12
    assert device.attention_time_s("unfused", bh, s, s, d, d, True, True) == pytest.approx(backward)


def test_small_problems_do_not_fill_the_device():
    law = AttentionLaw(0.5, 0.5, 0.0, True, fill=16384.0)
    device = plain(attention={"fa2": law})
    few = device.attention_time_s("fa2", 1, 1024, 1024, 128, 128, True, False)
    many = device.attention_time_s("fa2", 1024, 1024, 1024, 128, 128, True, False)
    assert many < 1024 * few / 10


def test_attention_of_nothing_takes_no_time():
    for kernel in ("fa2", "unfused"):
        assert plain().attention_time_s(kernel, 0, 1024, 1024, 128, 128, True, False) == 0.0


def brute_force_keys(q: int, k: int, causal: bool, window: int | None) -> float:
    total = 0.0
    for i in range(q):
        last = k - q + i + 1 if causal else k
        total += min(max(last, 0), window if window is not None else k)
    return total / q


@settings(max_examples=200, deadline=None)
@given(
    q=st.integers(1, 60), k=st.integers(1, 60), causal=st.booleans(), window=st.one_of(st.none(), st.integers(1, 80))
)
def test_visible_keys_match_counting(q, k, causal, window):
    counted = brute_force_keys(q, k, causal, window)
    # The closed form drops the half key of the diagonal.
    assert visible_keys(q, k, causal, window) == pytest.approx(counted, abs=0.5 + 1e-9)


def test_visible_keys_of_usual_shapes():
    assert visible_keys(4096, 4096, True) == 2048.0
    assert visible_keys(4096, 4096, False) == 4096.0
    assert visible_keys(1024, 4096, True) == 3072.0 + 512.0
    assert visible_keys(4096, 4096, True, 1024) == pytest.approx(1024 * (1 - 1024 / 8192))
    assert visible_keys(4096, 4096, False, 1024) == 1024.0
    assert visible_keys([128, 256], [[128], [256]], False).shape == (2, 2)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    bh=st.integers(1, 4096),
    s=st.integers(16, 131072),
    d=st.sampled_from([32, 64, 96, 128, 192, 256]),
    causal=st.booleans(),
    backward=st.booleans(),
    window=st.one_of(st.none(), st.integers(16, 8192)),
)
def test_attention_time_is_finite_and_grows(name, bh, s, d, causal, backward, window):
    device = load_accelerator(name)
    dtype = "bf16" if "bf16" in device.gemm else "fp16"
    for kernel in device.attention:
        base = device.attention_time_s(kernel, bh, s, s, d, d, causal, backward, dtype, window=window)
        assert math.isfinite(base) and base > 0.0
        assert device.attention_time_s(kernel, 2 * bh, s, s, d, d, causal, backward, dtype, window=window) > base
        assert device.attention_time_s(kernel, bh, 2 * s, 2 * s, d, d, causal, backward, dtype, window=window) > base


def test_the_laws_are_cheap_on_arrays():
    device = load_accelerator("H100")
    m = np.full(100_000, 4096.0)
    assert device.gemm_time_s(m, 8192.0, 1024.0, "bf16").shape == (100_000,)
    assert device.attention_time_s("fa3", m, 4096.0, 4096.0, 128.0, 128.0, True, True).shape == (100_000,)

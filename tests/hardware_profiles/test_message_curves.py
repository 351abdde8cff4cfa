"""Curves are drawn where sizes show a pattern, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.message_curves import draw_curve

SIZES = np.repeat(np.arange(10.0, 31.0), 2)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_a_switch_of_protocol_is_followed(seed):
    rng = np.random.default_rng(seed)
    pattern = 0.5 * np.exp(-(((SIZES - 18.0) / 2.0) ** 2))
    drawn = draw_curve(SIZES, pattern + 0.02 * rng.standard_normal(len(SIZES)))
    assert drawn is not None
    assert np.median(np.abs(np.interp(SIZES, *drawn) - pattern)) < 0.05


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_noise_alone_changes_little(seed):
    rng = np.random.default_rng(seed)
    drawn = draw_curve(SIZES, 0.05 * rng.standard_normal(len(SIZES)))
    assert drawn is None or np.max(np.abs(drawn[1])) < 0.1


def test_one_odd_size_does_not_bend_the_curve():
    error = np.full(len(SIZES), 0.2)
    error[20:22] = 2.5
    drawn = draw_curve(SIZES, error)
    assert drawn is not None and np.max(np.abs(drawn[1] - 0.2)) < 0.1


def test_repeats_that_scatter_count_by_the_quickest():
    error = np.tile([0.0, 1.5], len(SIZES) // 2)
    drawn = draw_curve(SIZES, error)
    assert drawn is None or np.max(np.abs(drawn[1])) < 0.1


def test_two_sizes_may_shift_and_one_may_not():
    shifted = draw_curve(np.array([20.0, 21.0]), np.array([0.3, 0.31]))
    assert shifted is not None and shifted[1] == pytest.approx([0.305, 0.305], abs=0.01)
    assert draw_curve(np.array([20.0, 20.0]), np.array([0.3, 0.3])) is None

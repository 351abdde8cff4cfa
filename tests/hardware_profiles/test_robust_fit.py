"""Intervals hold planted parameters as often as they claim; odd rows and far priors bend nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.robust_fit import solve


def planted(seed, noise, outliers, rows=40, heavy=False):
    """A linear problem in three parameters, one of them barely told, with odd rows that only ever add."""
    rng = np.random.default_rng(seed)
    prior = np.array([0.3, 0.5, 0.5])
    truth = prior * rng.standard_normal(3)
    design = np.column_stack([np.ones(rows), np.linspace(-1.0, 1.0, rows), 0.02 * np.linspace(-1.0, 1.0, rows) ** 2])
    scatter = rng.standard_t(3, rows) if heavy else rng.standard_normal(rows)
    data = design @ truth + noise * scatter
    data += np.where(rng.random(rows) < outliers, rng.uniform(0.5, 2.0, rows), 0.0)
    return truth, solve(lambda x: design @ x - data, np.zeros(3), prior)


@pytest.mark.parametrize(("noise", "outliers", "heavy"), [(0.02, 0.0, False), (0.1, 0.05, False), (0.05, 0.1, True)])
def test_ninety_per_cent_intervals_hold_the_truth_ninety_times_in_a_hundred(noise, outliers, heavy):
    held = []
    for seed in range(60):
        truth, found = planted(seed, noise, outliers, heavy=heavy)
        held.append(np.abs(found.x - truth) <= found.half_width)
    share = np.mean(held)
    assert 0.86 <= share <= 1.0
    assert np.mean(held, axis=0).min() >= 0.8


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.1, 0.3))
def test_what_rows_do_not_tell_keeps_the_doubt_of_the_prior(seed, noise):
    _, found = planted(seed, noise, 0.0)
    assert found.sd[2] > 0.7 * 0.5  # its column is 0.02 wide
    assert found.sd[0] < 0.5 * 0.3
    assert np.all(found.sd <= np.array([0.3, 0.5, 0.5]) + 1e-12)


@settings(deadline=None, max_examples=30)
@given(shift=st.floats(-3.0, 3.0))
def test_clean_rows_win_over_a_prior_that_is_far_off(shift):
    found = solve(lambda x: np.full(12, x[0] - shift), np.zeros(1), np.array([0.2]))
    assert found.x[0] == pytest.approx(shift, abs=0.01)


def test_a_third_of_the_rows_gone_wrong_does_not_move_the_rest():
    data = np.array([0.1] * 20 + [3.0] * 8)
    found = solve(lambda x: x[0] - data, np.zeros(1), np.array([0.3]))
    assert found.x[0] == pytest.approx(0.1, abs=0.05)


def test_bounds_hold_and_no_row_is_less_doubtful_than_half_a_per_cent():
    found = solve(lambda x: np.full(5, x[0] - 1.0), np.zeros(1), np.array([0.3]), high=0.0)
    assert found.x[0] <= 0.0
    found = solve(lambda x: np.full(5, x[0] - 0.2), np.zeros(1), np.array([0.3]))
    assert found.scale == 0.005

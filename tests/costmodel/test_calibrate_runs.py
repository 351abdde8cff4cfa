"""Global factors from a few step times: planted ones are found, scatter alone moves nothing, intervals say how sure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.costmodel.calibrate_runs import FACTORS, apply_factors, fit_factors, interval_after, step_times
from shardwise.costmodel.fit_runs import Run, batches_of, load_runs

RUNS = load_runs([str(Path(__file__).parent.parent / "data" / "runs" / "published_subset.jsonl")])
A100 = [run for run in RUNS if run.inputs.problem.cluster.accelerator.name.startswith("A100")]


def predicted(runs, factors):
    return step_times(runs, batches_of(runs), {**dict.fromkeys(FACTORS, 1.0), **factors})


def measured_as(runs, seconds):
    return [Run(run.inputs, run.source, float(s)) for run, s in zip(runs, seconds, strict=True)]


@pytest.mark.parametrize("factor", [0.8, 0.9, 1.08])
def test_a_planted_rate_is_found_from_five_runs(factor):
    runs = A100[:5]
    scatter = np.exp(0.01 * np.random.default_rng(0).standard_normal(5))
    fit = fit_factors(measured_as(runs, predicted(runs, {"compute": factor}) * scatter))
    assert fit.agreed and (fit.values["compute"] > 1.0) == (factor > 1.0)
    rest = A100[5:15]
    truth = predicted(rest, {"compute": factor})
    before, after = (np.abs(predicted(rest, f) / truth - 1.0).mean() for f in ({}, fit.values))
    assert after < 0.75 * before


def test_scatter_about_a_right_profile_moves_little():
    runs = A100[:6]
    moved = []
    for seed in range(3):
        scatter = np.exp(0.06 * np.random.default_rng(seed).standard_normal(len(runs)))
        fit = fit_factors(measured_as(runs, predicted(runs, {}) * scatter))
        moved += [abs(np.log(v)) for v in fit.values.values()]
        assert fit.agreed or set(fit.values.values()) == {1.0}
    assert np.mean(moved) < 0.02


def test_runs_that_disagree_move_nothing():
    runs = A100[:6]
    fit = fit_factors(measured_as(runs, predicted(runs, {}) * np.array([0.7, 1.4, 0.8, 1.3, 0.75, 1.35])))
    assert not fit.agreed and set(fit.values.values()) == {1.0}
    np.testing.assert_allclose(fit.after_s, fit.before_s)


def test_one_run_agrees_with_nobody():
    fit = fit_factors(measured_as(A100[:1], predicted(A100[:1], {}) * 1.3))
    assert not fit.agreed


def test_factors_multiply_figures_and_stay_within_one():
    cluster = A100[0].inputs.problem.cluster
    same = apply_factors(cluster, dict.fromkeys(FACTORS, 1.0))
    assert same.tiers == cluster.tiers and same.accelerator.memory_efficiency == cluster.accelerator.memory_efficiency
    fast = apply_factors(cluster, dict.fromkeys(FACTORS, 1.5))
    assert max(fast.accelerator.sustained.values()) <= 1.0
    assert all(share <= 1.0 for tier in fast.tiers for share in tier.efficiency.values())
    slow = apply_factors(cluster, {"compute": 0.8, "network": 0.5, "scale_up": 0.9})
    problem = A100[0].inputs.problem
    times = [
        batch.step_times(replace(problem, cluster=c))
        for batch in batches_of(A100[:1])
        for c in (cluster, slow)
    ]  # fmt: skip
    assert times[1] > times[0]


def test_intervals_shrink_when_left_out_runs_are_predicted_well():
    good, bad = np.full(10, 0.02), np.full(10, 0.3)
    assert interval_after(good, 0.12) < 0.09 < 0.12 < interval_after(bad, 0.12)
    assert interval_after(good, 0.12) < interval_after(good[:3], 0.12)
    assert interval_after(np.zeros(1000), 0.12) < 0.02


@pytest.mark.slow
def test_intervals_hold_what_they_claim():
    """Fits on five runs that scatter by six per cent about a rate of 0.9: four in five of the others lie inside."""
    inside = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        seconds = predicted(A100, {"compute": 0.9}) * np.exp(0.06 * rng.standard_normal(len(A100)))
        order = rng.permutation(len(A100))
        five = [A100[i] for i in order[:5]]
        fit = fit_factors(measured_as(five, seconds[order[:5]]))
        half = interval_after(fit.left_out, 0.10)
        rest = order[5:25]
        error = predicted([A100[i] for i in rest], fit.values) / seconds[rest] - 1.0
        inside += list(np.abs(error) <= half)
    assert 0.72 <= np.mean(inside) <= 0.97

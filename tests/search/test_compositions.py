"""What ranks may hold and what that says of a step: against random splits, and of many strategies as of each alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.splits import rank_counts
from shardwise.costmodel.step import hides_steadily
from shardwise.costmodel.strategy import RECOMPUTES, SCHEDULES, Strategies, Strategy
from shardwise.search.bounds import split_bounds
from shardwise.search.closing import in_pipeline_s
from shardwise.search.compositions import _loads, compositions, least_rests_s
from shardwise.search.rows import kind_rows

from .small import dense_model, group_of, moe_model, problem


@st.composite
def random_splits(draw, schedules=SCHEDULES):
    """A pipeline of a dense or mixed model and a layer split; stages at the model's ends may be empty."""
    schedule, layers = draw(st.sampled_from(schedules)), draw(st.integers(9, 12))
    pp = draw(st.sampled_from([2, 4] if schedule == "dualpipe" else [2, 3, 4]))
    vpp = 2 if schedule in ("interleaved", "zb-v") else 1
    some = tuple(draw(st.integers(0, 1)) for _ in range(layers - 1))
    mixed = replace(moe_model(layers, 256, 4, 4), layers=(*some, 1))
    model = draw(st.sampled_from([mixed, dense_model(layers, 256), dense_model(layers, 256, tied=True)]))
    least = np.array([0, *(1 for _ in range(pp * vpp - 2)), 0])
    cuts = sorted(draw(st.integers(0, layers - int(least.sum()))) for _ in range(pp * vpp - 1))
    split = np.diff([0, *cuts, layers - int(least.sum())]) + least
    m = 2 * pp if schedule == "dualpipe" else draw(st.sampled_from([1, 2, pp, 4 * pp]))
    s = Strategy(
        pp=pp, vpp=vpp, schedule=schedule, dp=2, num_microbatches=m, zero=draw(st.integers(0, 3)),
        dp_overlap=draw(st.booleans()), layers_per_stage=tuple(int(n) for n in split),
    )  # fmt: skip
    # The second hides no traffic of data parallelism, the third gathers and scatters with every micro-batch.
    runtime = draw(st.sampled_from(["megatron-core", "megatron-2021", "torchtitan"]))
    return problem(model, 2 * pp, 2 * m, draw(st.sampled_from([64, 2048])), runtime=runtime), s


@settings(max_examples=60, deadline=None)
@given(random_splits())
def test_the_loads_hold_every_rank_of_every_split(case):
    p, s = case
    rows = kind_rows(group_of(p, Strategies.of([s])))
    held = rank_counts(p, s.pp, s.vpp, s.schedule, s.layers_per_stage)
    for longest in (np.inf, float((held @ rows.time).max())):
        listed = {tuple(load) for load in _loads(rows, np.array([longest])).tolist()}
        assert {tuple(load) for load in held.tolist()} <= listed


def bounded(p, s, mode, slack):
    """No more is claimed of the splits of a strategy than this one takes."""
    answer = estimate(p, replace(s, recompute=mode))
    incumbent = answer.step_time_s * slack
    group = group_of(p, Strategies.of([replace(answer.strategy, layers_per_stage=None)]))
    bounds = split_bounds(p, group.strategies, np.zeros(1), incumbent)
    pipeline = float(bounds.pipeline_s[0])
    loads = compositions(group, pipeline, float(bounds.longest_s[0]), incumbent)
    assert pipeline <= in_pipeline_s(answer) * (1 + 1e-9) or s.schedule not in ("gpipe", "1f1b", "interleaved")
    assert pipeline + loads.rest_above(loads.least_params) <= answer.step_time_s * (1 + 1e-9)


@pytest.mark.filterwarnings("error")
@settings(max_examples=60, deadline=None)
@given(random_splits(), st.sampled_from(RECOMPUTES), st.sampled_from([1.0, 1.02, 1.5]))
def test_no_split_undercuts_what_its_loads_say(case, mode, slack):
    bounded(*case, mode, slack)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_micro_batch_that_hides_no_traffic_is_bounded(schedule):
    p = problem(dense_model(9, 256), gpus=4, batch=2, sequence=2048, runtime="megatron-2021")
    for first in range(10):
        split = (first, 9 - first)
        bounded(p, Strategy(pp=2, dp=2, schedule=schedule, num_microbatches=1, layers_per_stage=split), "full", 1.0)


@settings(max_examples=25, deadline=None)
@given(random_splits(), st.sampled_from(RECOMPUTES), st.data())
def test_many_strategies_at_once_are_each_alone(case, mode, data):
    p, s = case
    bare, count = replace(s, recompute=mode, layers_per_stage=None), data.draw(st.integers(2, 4))
    several = [
        replace(bare, zero=data.draw(st.integers(0, 3)), dp_overlap=data.draw(st.booleans())) for _ in range(count)
    ]
    strategies = Strategies.of(several)
    group = group_of(p, strategies)
    incumbent = max(estimate(p, one).step_time_s for one in several)
    bounds = split_bounds(p, strategies, np.zeros(count), incumbent)
    together = least_rests_s(kind_rows(group), bounds.pipeline_s, bounds.longest_s, incumbent)
    for i, one in enumerate(several):
        pipeline, longest = float(bounds.pipeline_s[i]), float(bounds.longest_s[i])
        alone = compositions(group_of(p, Strategies.of([one])), pipeline, longest, incumbent)
        least = alone.rest_above(alone.least_params)
        assert together[i] <= least * (1 + 1e-9)
        if mode != "full" or hides_steadily(group).all():  # else pairs of loads say nothing of any of them
            assert together[i] == pytest.approx(least, rel=1e-9)

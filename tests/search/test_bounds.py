"""Bounds over layer splits against splits drawn at random, priced by the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import SCHEDULES, Strategies, Strategy
from shardwise.search.bounds import room_for_layers, split_bounds

from .small import compositions, moe_model, pipelined, problem

RECOMPUTES = ("none", "selective", "full")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_split_that_fits_is_under_the_bound(data):
    p, s = data.draw(pipelined(RECOMPUTES, SCHEDULES))
    answer = estimate(p, s)
    assume(answer.fits)
    bare = Strategies.of([replace(s, layers_per_stage=None)])
    bound = split_bounds(p, bare, np.zeros(1), answer.step_time_s * 1.001)
    assert bound.bound_s[0] <= answer.step_time_s * (1 + 1e-9)
    assert bound.pipeline_s[0] + bound.rest_s[0] <= bound.bound_s[0] * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_fits_had_room(data):
    p, s = data.draw(pipelined(RECOMPUTES))
    assume(estimate(p, s).fits)
    assert room_for_layers(p, Strategies.of([replace(s, layers_per_stage=None)]))[0]


def test_one_micro_batch_may_have_any_slowest_rank():
    # With m = 1 the pipeline takes what all ranks take together: a longer slowest rank costs nothing and hides more.
    p = problem(moe_model(4, 1024, 8, 8, first_dense=1), 16, 4, 4096, memory_gib=3.0, fixed_s_per_step=0.0)
    s = Strategy(tp=2, sp=True, pp=2, schedule="gpipe", dp=4, ep=8, zero=2, num_microbatches=1)
    even = estimate(p, s).step_time_s
    least = min(estimate(p, replace(s, layers_per_stage=split)).step_time_s for split in compositions(4, 2))
    assert split_bounds(p, Strategies.of([s]), np.zeros(1), even).bound_s[0] <= least * (1 + 1e-9) < even

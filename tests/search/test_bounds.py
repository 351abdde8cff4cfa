"""Bounds over layer splits against splits drawn at random, priced by the cost model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import SCHEDULES, Strategies, Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.search.bounds import room_for_layers, split_bounds
from shardwise.search.closing import in_pipeline_s
from shardwise.search.compositions import compositions as rank_loads
from shardwise.search.compositions import rank_params
from shardwise.search.rows import kind_rows
from shardwise.search.turns import Turns, least_pipeline_s

from .small import compositions, group_of, moe_model, pipelined, problem

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


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_split_has_less_outside_the_pipeline_than_its_fullest_rank_must(data):
    p, s = data.draw(pipelined(RECOMPUTES, SCHEDULES))
    answer = estimate(p, s)
    assume(answer.fits and s.num_microbatches > 1)
    bare, above = replace(s, layers_per_stage=None), answer.step_time_s * 1.001
    group = group_of(p, Strategies.of([bare]))
    bound = split_bounds(p, Strategies.of([bare]), np.zeros(1), above)
    rows, least = kind_rows(group), float(bound.pipeline_s[0])
    if s.schedule == "interleaved":
        whole = float(rows.layers @ rows.time[: rows.num_kinds, 0] + rows.first_s[0] + rows.last_s[0])
        least = max(least, least_pipeline_s(Turns.of(p, bare, rows), bare, whole).pipeline_s)
    loads = rank_loads(group, least, float(bound.longest_s[0]), above)
    assert least + loads.rest_above(loads.least_params) <= answer.step_time_s * (1 + 1e-9)
    assert least + loads.rest_above(rank_params(p, s)) <= answer.step_time_s * (1 + 1e-9)


def test_a_real_interleaved_split_is_not_under_its_bounds():
    """DeepSeek-V3 on 16,384 GPUs, by hand: a short first rank full of dense parameters, and turns longer than ranks."""
    work = Workload(16384, 4096, dtype="fp8_block")
    cluster, runtime = load_cluster("h800-mpft", 16384), load_runtime("megatron-core")
    p = Problem(ModelSpec.from_preset("deepseek-v3"), cluster, work, runtime)
    bare = Strategy(
        cp=2, pp=8, vpp=4, schedule="interleaved", dp=1024, ep=32, zero=1, num_microbatches=16, recompute="selective",
        ep_overlap=True,
    )  # fmt: skip
    answer = estimate(p, replace(bare, layers_per_stage=(3, *[2] * 7, *[1] * 8, *[2] * 8, 2, *[3] * 6, 0)))
    step, group = answer.step_time_s * (1 + 1e-9), group_of(p, Strategies.of([bare]))
    rows, none = kind_rows(group), np.zeros(1)
    whole = float(rows.layers @ rows.time[: rows.num_kinds, 0] + rows.first_s[0] + rows.last_s[0])
    least = least_pipeline_s(Turns.of(p, bare, rows), bare, whole).pipeline_s
    assert least <= in_pipeline_s(answer) * (1 + 1e-9)
    bound = split_bounds(p, Strategies.of([bare]), none, step, None, np.array([least]))
    loads = rank_loads(group, least, float(bound.longest_s[0]), step)
    assert evaluate(p, Strategies.of([bare])).lower_bound_s[0] <= step
    assert bound.bound_s[0] <= step and least + bound.rest_s[0] <= step
    assert least + loads.rest_above(rank_params(p, answer.strategy)) <= step

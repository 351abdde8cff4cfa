"""The split solver on its own, and the shape of what it returns."""

import math
from dataclasses import replace

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.splits import chunk_ranks
from shardwise.costmodel.strategy import Strategy
from shardwise.search.proof import Clock
from shardwise.search.split import one_number, solve_split, splittable, spread

from .small import dense_model, launcher, moe_model, problem

QUIET = {"fixed_s_per_step": 0.0, "host_s_per_layer": 0.0, "host_s_per_moe_layer": 0.0, "host_s_per_microbatch": 0.0}


@pytest.mark.parametrize(
    ("totals", "vpp", "schedule", "layers"),
    [
        ([3, 4], 1, "1f1b", (3, 4)),
        ([3, 4, 3], 2, "interleaved", (1, 2, 2, 2, 2, 1)),
        ([4, 5], 2, "zb-v", (2, 3, 2, 2)),
    ],
)
def test_a_ranks_layers_are_spread_over_its_chunks(totals, vpp, schedule, layers):
    assert spread(totals, vpp, schedule) == layers
    ranks = chunk_ranks(len(totals), vpp, schedule)
    assert [sum(n for n, r in zip(layers, ranks, strict=True) if r == rank) for rank in range(len(totals))] == totals


@pytest.mark.parametrize("model", [dense_model(7, vocabulary=131072), moe_model(7, first_dense=3)])
@pytest.mark.parametrize(("vpp", "schedule"), [(1, "1f1b"), (1, "gpipe"), (2, "interleaved"), (2, "zb-v")])
def test_a_split_covers_the_model_and_is_no_slower_than_the_even_one(model, vpp, schedule):
    p = problem(model, gpus=2, batch=8, sequence=4096, **QUIET)
    s = Strategy(pp=2, vpp=vpp, schedule=schedule, num_microbatches=8)
    split = solve_split(p, s, uniform=False, pipeline_limit_s=math.inf)
    assert (
        split.optimal and sum(split.strategy.layers_per_stage) == 7 and len(split.strategy.layers_per_stage) == 2 * vpp
    )
    even, best = estimate(p, s), estimate(p, split.strategy)
    assert schedule == "zb-v" or best.step_time_s <= even.step_time_s * (1.0 + 1e-6)
    relaxed = solve_split(p, s, uniform=False, pipeline_limit_s=math.inf, relaxed=True)
    assert relaxed.pipeline_s <= split.pipeline_s * (1.0 + 1e-9)


def test_the_same_split_comes_out_every_time():
    p = problem(moe_model(9, first_dense=3), gpus=4, batch=8, sequence=4096, **QUIET)
    s = Strategy(pp=4, vpp=2, schedule="interleaved", num_microbatches=8)
    assert len({solve_split(p, s, uniform=False, pipeline_limit_s=math.inf) for _ in range(3)}) == 1


def test_no_split_fits_a_device_that_is_too_small():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=8, memory_gib=0.2)
    s = Strategy(pp=2, num_microbatches=8, recompute="full")
    assert solve_split(p, s, uniform=False, pipeline_limit_s=math.inf) is None


def test_uniform_recomputation_is_one_number_per_chunk():
    p = problem(dense_model(8, 1024, 8), gpus=2, batch=8, sequence=4096, memory_gib=3.0, **QUIET)
    s = Strategy(pp=2, vpp=2, schedule="interleaved", num_microbatches=8, recompute="full", offload_optimizer=1.0)
    split = solve_split(p, s, uniform=True, pipeline_limit_s=math.inf)
    assert split is not None
    assert not launcher("megatron").violations(p, split.strategy)
    free = solve_split(p, s, uniform=False, pipeline_limit_s=math.inf)
    assert free.pipeline_s <= split.pipeline_s * (1.0 + 1e-9)


def test_what_a_launcher_can_express_is_read_off_its_rules():
    p = problem(dense_model(8), gpus=4, batch=8)
    s = Strategy(pp=2, dp=2, num_microbatches=4)
    assert splittable(p, launcher("generic"), s) and splittable(p, launcher("megatron"), s)
    assert not splittable(p, launcher("generic"), replace(s, pp=1, dp=4, num_microbatches=2))
    assert one_number(p, launcher("megatron"), s) and not one_number(p, launcher("generic"), s)


def test_the_nearest_split_to_the_even_one_can_be_asked_for():
    p = problem(dense_model(11, 1024, 8), gpus=4, batch=16, sequence=4096, **QUIET)
    s = Strategy(pp=4, num_microbatches=16)
    best = solve_split(p, s, uniform=False, pipeline_limit_s=math.inf)
    limit = 2.0 * best.pipeline_s
    tidy = solve_split(p, s, uniform=False, pipeline_limit_s=limit, tidy=True)
    assert tidy.strategy.layers_per_stage == (2, 3, 3, 3)
    same = solve_split(p, s, uniform=False, pipeline_limit_s=best.pipeline_s * (1.0 + 1e-9), tidy=True)
    assert estimate(p, same.strategy).step_time_s <= estimate(p, best.strategy).step_time_s * (1.0 + 1e-3)


def test_a_clock_without_a_limit_never_expires():
    assert not Clock(None).expired
    assert Clock(0.0).expired and Clock(0.0).elapsed_s >= 0.0

"""The step as a whole: sums, one formula for one or many, bounds, and directions that must hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.flops import model_flops_per_token
from shardwise.costmodel.splits import even_split, rank_counts
from shardwise.costmodel.strategy import SCHEDULES, Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError

from . import cases


@st.composite
def layouts(draw, experts=False):
    pp = draw(st.sampled_from([1, 2, 4]))
    names = [s for s in SCHEDULES if s not in ("interleaved", "zb-v") and (s != "dualpipe" or pp > 1)]
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    schedule = draw(st.sampled_from(["interleaved", "zb-v"] if vpp == 2 else names if pp > 1 else ["1f1b"]))
    tp = draw(st.sampled_from([1, 2, 4]))
    dp = draw(st.sampled_from([1, 2, 4, 8]))
    cp = draw(st.sampled_from([1, 2]))
    # These schedules are priced for as many micro-batches as launch rules ask for; with fewer no formula holds.
    counted = pp > 1 and schedule in ("interleaved", "zb-h1", "zb-v", "dualpipe")
    return Strategy(
        tp=tp, sp=tp > 1 and (experts or draw(st.booleans())), cp=cp, pp=pp, vpp=vpp, schedule=schedule, dp=dp,
        cp_comm=draw(st.sampled_from(["p2p", "all_gather", "a2a"])), ulysses=1,
        ep=draw(st.sampled_from([e for e in (1, 2, 4) if (tp * cp * dp) % e == 0])) if experts else 1,
        zero=draw(st.integers(0, 3)), micro_batch_size=draw(st.sampled_from([1, 2])),
        num_microbatches=draw(st.sampled_from([2 * pp, 32] if counted else [1, 4, 32])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        recompute_layers=draw(st.sampled_from([-1, 1])), dp_overlap=draw(st.booleans()),
        tp_overlap=draw(st.booleans()), ep_overlap=draw(st.booleans()),
    )  # fmt: skip


def problem_for(strategy, model=None, **changes):
    batch = strategy.dp * strategy.micro_batch_size * strategy.num_microbatches
    return cases.problem(model, num_gpus=strategy.world_size, batch=batch, **changes)


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.data())
def test_parts_sum_to_the_step_and_arrays_equal_scalars(experts, data):
    strategy = data.draw(layouts(experts))
    problem = problem_for(strategy, cases.moe() if experts else cases.gpt())
    one = estimate(problem, strategy)
    assert sum(one.time_parts_s.values()) == pytest.approx(one.step_time_s)
    assert all(v >= 0 for v in one.time_parts_s.values())
    many = evaluate(problem, Strategies.of([strategy, replace(strategy, recompute="full"), strategy]))
    assert many.step_time_s[[0, 2]] == pytest.approx(one.step_time_s)
    assert many.peak_memory_bytes[[0, 2]] == pytest.approx(one.peak_memory_bytes)
    assert many.lower_bound_s[0] <= one.step_time_s * (1 + 1e-9)
    assert sum(t.share for t in one.traffic) == pytest.approx(1.0) or not one.traffic


@settings(max_examples=60, deadline=None)
@given(layouts(), st.data())
def test_the_bound_holds_for_every_split(strategy, data):
    chunks = strategy.pp * strategy.vpp
    cuts = sorted(data.draw(st.lists(st.integers(0, 16), min_size=chunks - 1, max_size=chunks - 1)))
    split = tuple(int(x) for x in np.diff([0, *cuts, 16]))
    problem = problem_for(strategy, cases.gpt(layers=16))
    bound = evaluate(problem, Strategies.of([strategy]))
    uneven = estimate(problem, replace(strategy, layers_per_stage=split))
    assert bound.lower_bound_s[0] <= uneven.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("zero", [0, 3])
def test_the_bound_holds_where_one_micro_batch_hides_more_than_it_costs(zero):
    """With one micro-batch the pipeline takes the sum of its stages however they are split; a long stage hides more."""
    strategy = Strategy(tp=4, cp=2, pp=2, dp=8, zero=zero, num_microbatches=1)
    problem = problem_for(strategy, cases.gpt(layers=16))
    bound = evaluate(problem, Strategies.of([strategy])).lower_bound_s[0]
    steps = [estimate(problem, replace(strategy, layers_per_stage=(n, 16 - n))).step_time_s for n in range(17)]
    assert bound <= min(steps) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.data())
def test_better_hardware_is_never_slower(experts, data):
    strategy = data.draw(layouts(experts))
    problem = problem_for(strategy, cases.moe() if experts else cases.gpt())
    base = estimate(problem, strategy)
    acc = problem.cluster.accelerator
    quick = cases.faster(problem, peak_flops={k: 2 * v for k, v in acc.peak_flops.items()})
    assert estimate(quick, strategy).step_time_s <= base.step_time_s * (1 + 1e-9)
    wide = cases.faster(problem, memory_bytes_per_s=2 * acc.memory_bytes_per_s)
    assert estimate(wide, strategy).step_time_s <= base.step_time_s * (1 + 1e-9)
    every = range(len(problem.cluster.tiers))
    for quicker in (every, *([i] for i in every)):
        tiers = tuple(
            replace(t, bytes_per_s=(2 if i in quicker else 1) * t.bytes_per_s)
            for i, t in enumerate(problem.cluster.tiers)
        )
        linked = replace(problem, cluster=replace(problem.cluster, tiers=tiers))
        assert estimate(linked, strategy).step_time_s <= base.step_time_s * (1 + 1e-9)


def test_llama_405b_split_is_the_published_one():
    """Llama 3 (arXiv 2407.21783, section 3.3.2): one layer fewer on the first and on the last of 16 stages."""
    assert even_split(126, 16) == (7, *([8] * 14), 7)


def test_every_layer_is_on_one_rank():
    problem = cases.problem(cases.gpt(layers=61), num_gpus=8)
    for pp, vpp, schedule in ((1, 1, "1f1b"), (8, 1, "1f1b"), (4, 3, "interleaved"), (4, 2, "zb-v")):
        counts = rank_counts(problem, pp, vpp, schedule)
        assert counts[:, 0].sum() == 61
        assert counts[:, 1:3].sum() == 2
        assert np.ptp(counts[:, 0]) <= vpp


def test_a_split_that_misses_layers_is_refused():
    problem = cases.problem(num_gpus=8)
    with pytest.raises(InputError, match="layers_per_stage sums to 7: expected the 8 layers"):
        estimate(problem, Strategy(pp=2, dp=4, num_microbatches=16, layers_per_stage=(3, 4)))


def test_flops_follow_narayanan_equation_3():
    """Narayanan et al. (arXiv 2104.04473), appendix: 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) without recomputation.

    Theirs counts the whole score matrix, ours the causal half, so s/(12h) stands where they have s/(6h).
    """
    model, s = cases.gpt(hidden=12288, layers=96, heads=96, vocabulary=51200), 2048
    h, layers, v = 12288, 96, 51200
    expected = 72 * layers * h**2 * (1 + s / (12 * h) + v / (12 * layers * h))
    assert model_flops_per_token(model, s) == pytest.approx(expected, rel=1e-9)


def test_moe_flops_follow_active_parameters():
    """6 FLOPs per active matrix parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), attention apart."""
    model = cases.moe(layers=1)
    kind = model.kinds[0]
    matrices = sum(op.in_features * op.out_features for op in kind.mixer.linears)
    matrices += 2 * 2 * 1024 * 2048 + 1024 * 8 + model.vocab_size * 1024
    attention = 3 * 2 * 16 * (2048 / 2) * 128
    assert model_flops_per_token(model, 2048) == pytest.approx(6 * matrices + attention, rel=1e-9)

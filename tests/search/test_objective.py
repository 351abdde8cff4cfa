"""Objectives over GPU counts and precisions: against plain enumeration, and what must never change."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.strategy import Strategies
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.choice import Choice
from shardwise.search import cases as cases_module
from shardwise.search.cases import Case, gpu_counts, select
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search
from shardwise.search.goal import decide
from shardwise.search.objective import OBJECTIVES, Objective
from shardwise.search.opening import candidates
from shardwise.search.planner import plan
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space

from .small import dense_model, every_strategy, launcher, moe_model, problem

QUIET = {"host_s_per_layer": 0.0, "host_s_per_moe_layer": 0.0, "host_s_per_microbatch": 0.0}
WHOLE = Constraints.of({"pp": 1, "zero_group": 0, "offload": "0|1"})
"""No pipeline, groups of shards or part of an optimizer offloaded: each layout is one that ``every_strategy`` lists."""


def on(p, gpus):
    return replace(p, cluster=p.cluster.with_num_gpus(gpus))


def cases_of(p, counts, who="megatron"):
    return [Case(on(p, n), Choice(launcher(who), p.runtime)) for n in counts]


@st.composite
def questions(draw):
    model = draw(st.sampled_from((dense_model(3), dense_model(2, 1024, 8), moe_model(3))))
    p = problem(
        model,
        gpus=1,
        batch=draw(st.sampled_from((4, 6, 12))),
        sequence=draw(st.sampled_from((1024, 4096))),
        memory_gib=draw(st.sampled_from((None, 0.7, 1.5))),
        fixed_s_per_step=draw(st.sampled_from((0.0, 0.02))),
        **QUIET,
    )
    counts = sorted(draw(st.sets(st.sampled_from((1, 2, 3, 4)), min_size=2)))
    return p, counts


def enumerated(p, counts):
    """The shortest step of each count that has a layout, by evaluating all of them."""
    steps = {}
    for n in counts:
        here = on(p, n)
        rows = [s for s in every_strategy(here, launcher("megatron")) if s.pp == 1]
        if rows:
            e = evaluate(here, Strategies.of(rows))
            if e.fits.any():
                steps[n] = float(e.step_time_s[e.fits].min())
    return steps


SCORES = {
    "step-time": lambda n, t: t,
    "tokens-per-gpu": lambda n, t: n * t,
    "cost": lambda n, t: n * t,
    "fewest-gpus": lambda n, t: n,
}


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(questions(), st.sampled_from((0.5, 1.0, 1.5, 3.0)))
def test_the_best_count_equals_enumeration(question, slack):
    p, counts = question
    steps = enumerated(p, counts)
    limit = slack * float(np.median(list(steps.values()))) if steps else 1.0
    for name in OBJECTIVES:
        check_against(p, steps, counts, Objective(name, max_step_time_s=limit, price_usd_per_gpu_hour=2.0))


def check_against(p, steps, counts, wanted):
    chosen = select(cases_of(p, counts), wanted, WHOLE, Clock(None))
    in_time = {n: t for n, t in steps.items() if t <= wanted.max_step_time_s}
    assert (chosen.found is None) == (not in_time)
    assert len(chosen.outcome) == len(counts)
    if not in_time:
        return
    score = SCORES[wanted.name]
    best = min(score(n, t) for n, t in in_time.items())
    n, t = chosen.case.num_gpus, chosen.found.step_s
    assert score(n, t) == pytest.approx(best, rel=2 * TOLERANCE)
    assert t == pytest.approx(steps[n], rel=2 * TOLERANCE)
    assert chosen.gap == 0.0
    for result in chosen.outcome:
        if result.bound_s is None:
            assert result.outcome == "impossible" and result.num_gpus not in steps
        elif result.num_gpus in steps:
            assert result.bound_s <= steps[result.num_gpus] * (1.0 + 5 * TOLERANCE)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(questions(), st.sampled_from(("dgx-a100", "dgx-h100")), st.sampled_from(("bf16", "fp8", "fp32")))
def test_no_layout_undercuts_the_floor(question, cluster, dtype):
    p, counts = question
    p = problem(p.model, 1, p.workload.global_batch_size, p.workload.sequence_length, cluster=cluster, **QUIET)
    if dtype == "fp8" and cluster == "dgx-a100":
        return
    p = replace(p, workload=replace(p.workload, dtype=dtype))
    for case in cases_of(p, counts, "generic"):
        found = candidates(case.space(Constraints()))
        assert case.floor_s <= found.bound_s.min(initial=math.inf)
        assert case.floor_s > 0.0


def uneven():
    """5 sequences and one attention head: 5 accelerators share the batch, 3 or 6 must cut it up in worse ways."""
    return problem(dense_model(3, 768, 1), gpus=1, batch=5, sequence=1024, fixed_s_per_step=0.0, **QUIET)


def test_step_time_that_does_not_fall_with_more_gpus_is_no_trap():
    p, counts = uneven(), (2, 3, 4, 5, 6, 8)
    steps = {n: search(Space(on(p, n), launcher("megatron"), Constraints())).step_s for n in counts}
    assert steps[3] > steps[2] and steps[6] > steps[5], "the example is meant to be slower on more GPUs"
    for limit in (steps[2], steps[3], steps[5], steps[6]):
        wanted = Objective("fewest-gpus", max_step_time_s=limit)
        chosen, found = decide(cases_of(p, counts), wanted, Constraints(), Clock(None), None)
        fewest = min(n for n, t in steps.items() if t <= limit * (1.0 + TOLERANCE))
        assert chosen.case.num_gpus == fewest
        assert found.step_s == pytest.approx(steps[fewest], rel=TOLERANCE)


def test_more_time_never_needs_more_gpus():
    p, counts = uneven(), (1, 2, 3, 4, 5, 6, 8)
    alone = search(Space(on(p, 1), launcher("megatron"), Constraints())).step_s
    needed = []
    for share in (0.3, 0.4, 0.6, 1.0, 2.0):
        wanted = Objective("fewest-gpus", max_step_time_s=share * alone)
        chosen = select(cases_of(p, counts), wanted, Constraints(), Clock(None))
        needed.append(chosen.case.num_gpus if chosen.found else math.inf)
    assert needed == sorted(needed, reverse=True) and len(set(needed)) > 1


def test_a_deadline_is_a_limit_on_the_step():
    work = Workload(8, 1024)
    wanted = Objective(tokens=8192 * 10, deadline_s=50.0)
    assert wanted.limit_s(work) == 5.0
    # 81,921 tokens are eleven steps, the last one mostly empty.
    assert replace(wanted, tokens=81921).limit_s(work) == pytest.approx(50.0 / 11)
    assert replace(wanted, max_step_time_s=4.0).limit_s(work) == 4.0
    assert Objective(tokens=8192 * 10).run_s(2.0, work) == 20.0


@pytest.fixture(scope="module")
def priced():
    p = problem(dense_model(3), gpus=4, batch=8, **QUIET)
    ask = {"num_gpus": (2, 4, 8), "runtime": p.runtime, "launcher": "megatron", "refine_trials": 0}
    return [
        plan(
            p.model, p.cluster, p.workload, objective=Objective("cost", tokens=1e9, price_usd_per_gpu_hour=price), **ask
        )
        for price in (1.0, 3.0)
    ]


def test_cost_follows_the_price(priced):
    one, three = priced
    assert three.goal.value == pytest.approx(3.0 * one.goal.value)
    assert three.goal.run_usd == pytest.approx(3.0 * one.goal.run_usd)
    assert three.strategy == one.strategy and three.problem.cluster.num_gpus == one.problem.cluster.num_gpus


def test_cost_is_hours_times_price(priced):
    one = priced[0]
    steps = math.ceil(1e9 / (8 * 1024))
    hours = steps * one.step_time_s * one.problem.cluster.num_gpus / 3600
    assert one.goal.run_usd == pytest.approx(hours)
    assert one.goal.run_s == pytest.approx(steps * one.step_time_s)
    assert one.goal.usd_per_token * steps * 8 * 1024 == pytest.approx(hours)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_plan_is_the_one_of_the_winning_count(name):
    p = problem(moe_model(3), gpus=8, batch=16, memory_gib=2.0)
    ask = {"runtime": p.runtime, "launcher": "megatron", "refine_trials": 0}
    wanted = Objective(name, max_step_time_s=60.0, price_usd_per_gpu_hour=1.0)
    several = plan(p.model, p.cluster, p.workload, num_gpus=range(1, 17), objective=wanted, **ask)
    alone = plan(p.model, p.cluster, p.workload, num_gpus=several.problem.cluster.num_gpus, **ask)
    assert several.strategy == alone.strategy and several.step_time_s == alone.step_time_s
    assert several.alternatives == alone.alternatives
    assert [c.num_gpus for c in several.goal.cases] == [1, 2, 3, 4, 5, 6, 7, 8, 16]
    assert [c.outcome for c in several.goal.cases].count("best") == 1


def test_several_precisions_give_the_best_of_them():
    work = Workload(64, 4096)
    ask = {"num_gpus": 16, "refine_trials": 0}
    steps = {
        dtype: plan("llama-3.1-8b", "dgx-h100", replace(work, dtype=dtype), **ask).step_time_s
        for dtype in ("bf16", "fp8")
    }
    both = plan("llama-3.1-8b", "dgx-h100", work, dtypes=("bf16", "fp8"), **ask)
    best = min(steps, key=steps.__getitem__)
    assert both.problem.workload.dtype == best and both.step_time_s == pytest.approx(steps[best], rel=TOLERANCE)
    assert {c.dtype for c in both.goal.cases} == {"bf16", "fp8"}


def test_a_time_limit_leaves_an_honest_gap():
    p = problem(dense_model(6), gpus=8, batch=48, sequence=4096, memory_gib=1.2, **QUIET)
    cases, wanted = cases_of(p, (8, 16, 24, 32, 48)), Objective("tokens-per-gpu")
    whole = select(cases, wanted, Constraints(), Clock(None))
    hasty = select(cases, wanted, Constraints(), Clock(1e-9))
    assert hasty.found is not None and hasty.stopped_by == "time limit"
    assert hasty.gap > 0.0
    assert hasty.best[0] * (1.0 - hasty.gap) <= whole.best[0] <= hasty.best[0] * (1.0 + TOLERANCE)
    assert any(c.outcome == "open" for c in hasty.outcome)


def test_an_interrupt_gives_the_best_case_so_far(monkeypatch):
    p = problem(moe_model(6), gpus=8, batch=48, sequence=4096, memory_gib=0.9, **QUIET)
    counts, first = (8, 16, 24, 32, 48, 56, 64), iter([search])

    def interrupted(*args, **kwargs):
        try:
            return next(first)(*args, **kwargs)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(cases_module, "search", interrupted)
    chosen, found = decide(cases_of(p, counts), Objective("tokens-per-gpu"), Constraints(), Clock(None), None)
    assert chosen.stopped_by == "interrupt" and found.best is not None
    assert [c.outcome for c in chosen.outcome].count("best") == 1
    assert any(c.reason == "not searched (interrupt)" for c in chosen.outcome)
    monkeypatch.undo()
    whole = select(cases_of(p, counts), Objective("tokens-per-gpu"), Constraints(), Clock(None))
    assert chosen.best[0] * (1.0 - chosen.gap) <= whole.best[0] <= chosen.best[0]


# ---- what cannot be


def test_a_limit_that_nothing_meets_says_what_would():
    p = problem(dense_model(3), gpus=2, batch=16, sequence=4096, fixed_s_per_step=0.0, **QUIET)
    alone = search(Space(p, launcher("megatron"), Constraints())).step_s
    ask = {"num_gpus": 2, "runtime": p.runtime, "launcher": "megatron"}
    with pytest.raises(InfeasibleError, match=r"takes .* per step or less: the fastest takes .* on 2 GPUs") as no:
        plan(p.model, p.cluster, p.workload, objective=Objective(max_step_time_s=alone / 1.6), **ask)
    (change,) = no.value.changes
    assert change.description == "4 GPUs" and change.step_time_s <= alone / 1.6


def test_memory_that_no_count_has_is_told_for_the_most_gpus():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=4, sequence=4096, memory_gib=0.3)
    with pytest.raises(InfeasibleError, match="no layout for any of 2 counts from 1 to 2 GPUs; with 2: nothing fits"):
        plan(p.model, p.cluster, p.workload, num_gpus=(1, 2), runtime=p.runtime, launcher="megatron")


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"name": "speed"}, "expected one of step-time"),
        ({"name": "fewest-gpus"}, "needs a limit"),
        ({"deadline_s": 5.0}, "give its tokens too"),
        ({"max_step_time_s": 0.0}, "max_step_time_s = 0.0"),
        ({"tokens": 1e300}, "tokens = 1e.300"),
        ({"price_usd_per_gpu_hour": 1e308}, "price_usd_per_gpu_hour = 1e.308"),
        ({"tokens": math.inf}, "tokens = inf"),
        ({"price_usd_per_gpu_hour": -1.0}, "price_usd_per_gpu_hour = -1.0"),
    ],
)
def test_bad_objectives_are_named(objective, said):
    with pytest.raises(InputError, match=said):
        Objective(**objective)


def test_cost_without_a_price_says_how_to_give_one():
    with pytest.raises(InputError, match="objective cost needs a price and DGX H100"):
        plan("llama-3.1-8b", "dgx-h100", Workload(64, 4096), num_gpus=16, objective="cost")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((), "0 counts"),
        ((12,), "whole nodes of 8"),
        ((8, 8.0), "expected whole numbers"),
        ((True,), "expected whole numbers"),
        (range(9, 16), "whole number of nodes"),
        (range(5, 5), "nothing"),
        (range(1, 1 << 40), "counts: expected 1 to 4096"),
        (range(-(1 << 40), 0), "whole number of nodes"),
        (range(1 << 30, 1 << 40), "whole number of nodes"),
    ],
)
def test_bad_counts_are_named(counts, said):
    with pytest.raises(InputError, match=said):
        gpu_counts(counts, problem().cluster)


def test_a_range_holds_its_whole_nodes():
    cluster = problem().cluster
    assert gpu_counts(range(6, 34), cluster) == (6, 7, 8, 16, 24, 32)
    assert gpu_counts(range(33, -9, -1), cluster) == (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32)
    assert gpu_counts(range(-4, 40, 4), cluster) == (4, 8, 16, 24, 32)
    assert gpu_counts([16, 8, 16], cluster) == (8, 16)
    assert gpu_counts(None, cluster) == (cluster.num_gpus,)

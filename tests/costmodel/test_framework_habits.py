"""Habits of frameworks that change a step: sliced stage boundaries, deep zero-bubble queues, waiting dispatchers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.costmodel.boundary import boundary_messages
from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategies, Strategy

from . import cases

PIPELINE = Strategy(tp=4, pp=4, dp=4, micro_batch_size=1, num_microbatches=16, schedule="1f1b")
WHOLE = 2048 * 1024 * 2.0  # tokens, hidden size, bytes


@pytest.mark.parametrize(
    ("how", "sp", "sent"),
    [("none", False, (1, 1)), ("forward", False, (4, 1)), ("both", False, (4, 4)), ("both", True, (4, 4))],
)
def test_stage_boundaries_are_sliced_over_tp_where_the_framework_slices(how, sp, sent):
    problem = cases.problem(cases.gpt(), pp_scatter_gather=how)
    strategy = replace(PIPELINE, sp=sp)
    passes = boundary_messages(problem, Strategies.of([strategy]))
    assert tuple(WHOLE / float(nbytes[0]) for nbytes, _ in passes) == sent
    gathers = [t for t in estimate(problem, strategy).traffic if (t.parallelism, t.collective) == ("pp", "all_gather")]
    assert bool(gathers) == (how != "none" and not sp)  # shards of sequence parallelism stay shards
    for nbytes, gathered in passes:
        assert np.all(gathered == (WHOLE if nbytes[0] < WHOLE and not sp else 0.0))


def test_a_zero_bubble_queue_of_2p_costs_memory_and_ends_the_bubble():
    """Qi et al., arXiv 2401.10241, table 1: ZB-H2 holds 2p - 1 micro-batches and has no bubble, ZB-H1 p."""
    strategy = replace(PIPELINE, schedule="zb-h1")
    one, two = (estimate(cases.problem(cases.gpt(), zb_pending=x), strategy) for x in (1.0, 2.0))
    assert one.time_parts_s["pp_bubble"] > 0 == two.time_parts_s["pp_bubble"]
    ratio = two.memory_parts_bytes["activations"] / one.memory_parts_bytes["activations"]
    assert ratio == pytest.approx(7 / 4)


def test_only_hybridep_spares_the_host_the_wait_for_token_counts():
    strategy = Strategy(tp=1, dp=64, ep=8, micro_batch_size=1, num_microbatches=1)
    steps = {}
    for dispatcher in ("alltoall", "deepep", "hybridep"):
        for wait in (0.0, 0.05):
            problem = cases.problem(cases.moe(), moe_dispatcher=dispatcher, moe_sync_s=wait)
            steps[dispatcher, wait] = estimate(problem, strategy).step_time_s
    assert steps["alltoall", 0.05] > steps["alltoall", 0.0]
    assert steps["deepep", 0.05] > steps["deepep", 0.0]
    assert steps["hybridep", 0.05] == steps["hybridep", 0.0]


def test_biases_in_experts_cost_traffic_that_a_fused_activation_does_not():
    model = cases.moe()
    kind = model.kinds[0]
    biased = replace(model, kinds=(replace(kind, moe=replace(kind.moe, expert=replace(kind.moe.expert, bias=True))),))
    strategy = Strategy(dp=64, micro_batch_size=1, num_microbatches=1)
    plain, unfused, fused = (
        estimate(cases.problem(m, biased_expert_passes=x), strategy).time_parts_s["elementwise"]
        for m, x in ((model, 8.0), (biased, 8.0), (biased, 1.0))
    )
    assert unfused > fused == pytest.approx(plain, rel=0.01)


def test_a_host_that_launches_faster_shortens_what_waits_for_it_and_nothing_else():
    problem = cases.problem(cases.moe(), host_s_per_moe_layer=1.0)
    strategy = Strategy(tp=1, dp=64, ep=8, micro_batch_size=1, num_microbatches=1)
    slow, fast = estimate(problem, strategy), estimate(cases.faster(problem, host_time=0.5), strategy)
    assert fast.time_parts_s["host"] < 0.55 * slow.time_parts_s["host"]
    assert fast.time_parts_s["gemm"] == slow.time_parts_s["gemm"]

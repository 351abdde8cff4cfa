"""Schedules as data: legal, complete, and holding as much in memory as the closed form says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shardwise.costmodel.schedule import in_flight
from shardwise.costmodel.simulation.graph import build, graph
from shardwise.costmodel.simulation.orders import BACKWARD, FORWARD, WEIGHT, WHOLE, Op, orders, positions
from shardwise.hardware_profiles.errors import InputError

CASES = [
    (schedule, p, v, m)
    for schedule, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2))
    for p in (2, 3, 4, 8)
    for m in (p, 2 * p, 2 * p + 1, 5 * p)
    if schedule != "interleaved" or m % p == 0
] + [("dualpipe", p, 1, m) for p in (2, 4, 8) for m in (2 * p, 2 * p + 2, 6 * p)]


def held(order) -> int:
    """Most activations of chunks that a rank holds: taken by a forward, given back with the weight gradient."""
    now = most = 0
    for op in order:
        now += (op.kind == FORWARD) - (op.kind in (WEIGHT, WHOLE))
        most = max(most, now)
    return most


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_every_pass_runs_once_and_after_what_it_needs(schedule, p, v, m):
    where = positions(schedule, p, v)
    assert sorted(s for chunks in where for s in chunks) == sorted(
        [*range(p * v)] * (2 if schedule == "dualpipe" else 1)
    )
    halves = [range(m // 2), range(m // 2, m)] if schedule == "dualpipe" else [range(m)] * v
    for order in orders(schedule, p, v, m):
        count = Counter((op.chunk, op.microbatch, op.kind) for op in order)
        assert set(count.values()) == {1}
        for chunk, microbatches in enumerate(halves):
            for i in microbatches:
                kinds = {k for k in (FORWARD, BACKWARD, WEIGHT, WHOLE) if count[chunk, i, k]}
                assert kinds in ({FORWARD, WHOLE}, {FORWARD, BACKWARD, WEIGHT})
        assert len(order) == sum(count.values())
    graph(schedule, p, v, m)  # raises if ranks wait for each other in a circle


@pytest.mark.parametrize(("schedule", "p", "v", "m"), [c for c in CASES if c[0] != "zb-v" or c[3] >= 2 * c[1]])
def test_memory_in_flight_is_the_closed_form(schedule, p, v, m):
    chunks = 2 if schedule == "dualpipe" else v
    expected = in_flight(schedule, p, v, np.array([m]))[:, 0] * chunks
    assert [held(order) for order in orders(schedule, p, v, m)] == pytest.approx(expected.tolist())


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_v_with_few_microbatches_holds_no_more_than_the_closed_form(p):
    for m in range(p, 2 * p):
        most = in_flight("zb-v", p, 2, np.array([m]))[:, 0] * 2
        assert all(held(order) <= bound for order, bound in zip(orders("zb-v", p, 2, m), most, strict=True))


def test_1f1b_of_two_ranks():
    """PipeDream-Flush as drawn by Narayanan et al., arXiv 2104.04473, figure 4."""
    first, last = orders("1f1b", 2, 1, 3)
    assert [f"{op.kind}{op.microbatch}" for op in first] == ["F0", "F1", "BW0", "F2", "BW1", "BW2"]
    assert [f"{op.kind}{op.microbatch}" for op in last] == ["F0", "BW0", "F1", "BW1", "F2", "BW2"]


def test_interleaved_ranks_turn_after_each_group():
    """Narayanan et al., figure 4: the first rank of 4 runs micro-batches 1-4 through chunk 1, then through chunk 2."""
    order = orders("interleaved", 4, 2, 8)[0]
    forwards = [(op.chunk, op.microbatch) for op in order if op.kind == FORWARD]
    assert forwards[:8] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    backwards = [(op.chunk, op.microbatch) for op in order if op.kind == WHOLE]
    assert backwards[:8] == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(("m", "group"), [(8, 4), (8, 8), (12, 6), (11, 6), (16, 5)])
def test_any_group_that_megatron_takes_is_legal(m, group):
    """From pp to m; what is left over at the end is nothing or at least pp (Megatron-Core's schedules.py)."""
    if m % group and m % group < 4:
        with pytest.raises(InputError, match="microbatch_group"):
            orders("interleaved", 4, 2, m, group)
    else:
        graph("interleaved", 4, 2, m, group)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("interleaved", 4, 2, 8, 3), "microbatch_group = 3"),
        (("interleaved", 4, 2, 8, 9), "microbatch_group = 9"),
        (("1f1b", 4, 1, 8, 4), "not interleaved"),
        (("dualpipe", 3, 1, 8), "even pp"),
        (("dualpipe", 4, 1, 6), "at least 2·pp"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        orders(*arguments)


def test_a_deadlock_is_told():
    """Two ranks that both want the other's result first."""
    first = (Op(WHOLE, 0, 0), Op(FORWARD, 0, 0))
    with pytest.raises(ValueError, match="circle"):
        build((first, (Op(FORWARD, 0, 0), Op(WHOLE, 0, 0))), ((0,), (1,)))


def test_a_pass_listed_twice_is_told():
    with pytest.raises(ValueError, match="twice"):
        build(((Op(FORWARD, 0, 0), Op(FORWARD, 0, 0)),), ((0,),))


def test_zb_h2_keeps_twice_as_many_in_flight():
    """Qi et al., arXiv 2401.10241, table 1: ZB-H2 holds 2p - 1 micro-batches, ZB-H1 p."""
    assert held(orders("zb-h1", 4, 1, 32, 0, 2.0)[0]) == 7

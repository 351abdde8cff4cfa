"""The engine against the published bubbles, the closed form, and a slow replay written another way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.schedule import bubble_s
from shardwise.costmodel.simulation.graph import KINDS, graph
from shardwise.costmodel.simulation.orders import orders, positions

seconds = st.floats(0.05, 3.0)


def step(schedule, p, v, m, forward, backward, weight, delay=0.0, group=0) -> float:
    """Simulated seconds with even stages; a rank's whole share of one micro-batch takes the given seconds."""
    known = graph(schedule, p, v, m, group)
    chunks = 1 if schedule == "dualpipe" else v
    each = {"F": forward, "B": backward, "W": weight, "BW": backward + weight}
    passes = np.array([each[kind] / chunks for kind in KINDS])[known.kind]
    return float(known.ends_s(passes, np.where(known.filling, delay, 0.0)).max())


def closed(schedule, p, v, forward, backward, weight, delay=0.0) -> float:
    rank = [np.full((1, 1), x) for x in (forward, backward, weight)]
    return float(bubble_s(schedule, v, *rank, np.array([float(p)]), delay)[0])


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_fraction_of_gpipe_and_1f1b(schedule, p):
    """(p - 1) / m of the ideal time: Narayanan et al., arXiv 2104.04473, section 2.2.1."""
    m, ideal = 4 * p, 4 * p * 3.0
    assert (step(schedule, p, 1, m, 1.0, 1.0, 1.0) - ideal) / ideal == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_bubble_fraction_of_interleaving(p, v):
    """(p - 1) / (m v): Narayanan et al., section 2.2.2."""
    m, ideal = 4 * p, 4 * p * 3.0
    assert (step("interleaved", p, v, m, 1.0, 1.0, 1.0) - ideal) / ideal == pytest.approx((p - 1) / (m * v))


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.9), (2.0, 2.5, 1.5)])
def test_published_zero_bubble_figures(p, times):
    """ZB-H1: (p-1)(F + B - W), Qi et al., arXiv 2401.10241, table 1. DualPipe: DeepSeek-V3, table 2, (p/2 - 1)(F&B + B
    - 3W) with B the whole backward (here B + W) and F&B = F + B where nothing overlaps.
    """
    forward, backward, weight = times
    m, whole = 4 * p, backward + weight
    ideal = m * sum(times)
    assert step("zb-h1", p, 1, m, *times) - ideal == pytest.approx((p - 1) * (forward + backward - weight))
    dualpipe = (p / 2 - 1) * (forward + whole + whole - 3 * weight)
    assert step("dualpipe", p, 1, m, *times) - ideal == pytest.approx(dualpipe)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_v_has_no_bubble_from_each_ranks_start_to_its_end(p):
    """The published zero with F = B = W (arXiv 2405.15362, section 4.4): optimizer steps that need not meet."""
    known = graph("zb-v", p, 2, 4 * p)
    ends = known.ends_s(np.ones(len(known)))
    for rank in range(p):
        mine = ends[known.rank == rank]
        assert mine.max() - (mine.min() - 1.0) == pytest.approx(4 * p * 2 * 3)


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.2, 0.9)])
def test_zb_v_as_torch_runs_it(times):
    """Replay of PyTorch's ScheduleZBVZeroBubble at p 4 (tests/crosscheck): chunks of (1, 1, 1) idle 3.0, of (1, 1.2,
    0.9) idle 3.6.
    """
    whole = [2 * t for t in times]
    assert step("zb-v", 4, 2, 16, *whole) - 16 * sum(whole) == pytest.approx(3.0 * times[1])


SHAPES = st.one_of(
    st.tuples(st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 9), st.just(1), st.integers(1, 30)),
    st.tuples(st.just("zb-h1"), st.integers(2, 9), st.just(1), st.integers(0, 20)).map(
        lambda s: (s[0], s[1], s[2], s[1] + s[3])
    ),
    st.tuples(st.just("interleaved"), st.integers(2, 6), st.integers(2, 5), st.integers(1, 5)).map(
        lambda s: (s[0], s[1], s[2], s[1] * s[3])
    ),
    st.tuples(st.just("zb-v"), st.integers(2, 8), st.just(2), st.integers(0, 20)).map(
        lambda s: (s[0], s[1], s[2], 2 * s[1] - 1 + s[3])
    ),
    st.tuples(st.just("dualpipe"), st.integers(1, 5), st.just(1), st.integers(0, 10)).map(
        lambda s: (s[0], 2 * s[1], s[2], 4 * s[1] + 2 * s[3])
    ),
)


@given(shape=SHAPES, forward=seconds, backward=seconds, weight=seconds)
def test_closed_form_is_the_simulation_where_stages_are_even(shape, forward, backward, weight):
    schedule, p, v, m = shape
    total = m * (forward + backward + weight) + closed(schedule, p, v, forward, backward, weight)
    assert step(*shape, forward, backward, weight) == pytest.approx(total, rel=1e-9)


@given(shape=SHAPES, forward=seconds, backward=seconds, weight=seconds)
def test_messages_while_filling_and_draining(shape, forward, backward, weight):
    """A delay that is short beside the passes: every hop of the longest chain counts, none twice."""
    schedule, p, v, m = shape
    times = (forward, backward, weight)
    total = m * sum(times) + closed(schedule, p, v, *times, 1e-6)
    if m >= 2 * p:
        assert step(*shape, *times, 1e-6) == pytest.approx(total, rel=1e-9)
    assert step(*shape, *times, 0.02) >= m * sum(times) + closed(schedule, p, v, *times, 0.02) - 1e-9


def replayed(schedule, p, v, m, times) -> float:
    """The same step by asking every rank in turn whether its next pass can start. ``times[kind][rank][chunk]``."""
    where, todo = positions(schedule, p, v), [list(order) for order in orders(schedule, p, v, m)]
    last = max(max(chunks) for chunks in where)
    done: dict[tuple[bool, int, int], float] = {}
    clock = [0.0] * p

    def needs(rank, op):
        stage = where[rank][op.chunk]
        if op.kind == "W" or (op.kind == "F" and stage == 0):
            return None
        if op.kind == "F":
            return True, stage - 1, op.microbatch
        return (True, stage, op.microbatch) if stage == last else (False, stage + 1, op.microbatch)

    while any(todo):
        moved = False
        for rank in range(p):
            while todo[rank]:
                together = todo[rank][: 2 if todo[rank][0].joined else 1]
                wanted = [needs(rank, op) for op in together]
                if any(w is not None and w not in done for w in wanted):
                    break
                start = max([clock[rank], *(done[w] for w in wanted if w is not None)])
                clock[rank] = start + sum(times[KINDS.index(op.kind)][rank][op.chunk] for op in together)
                for op in together:
                    if op.kind != "W":
                        done[op.kind == "F", where[rank][op.chunk], op.microbatch] = clock[rank]
                del todo[rank][: len(together)]
                moved = True
        assert moved, "deadlock"
    return max(clock)


@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_the_graph_says_what_a_replay_says(shape, seed):
    """Any durations, every stage its own."""
    schedule, p, v, m = shape
    chunks = 2 if schedule == "dualpipe" else v
    times = np.random.default_rng(seed).uniform(0.1, 2.0, (len(KINDS), p, chunks))
    known = graph(schedule, p, v, m)
    ends = known.ends_s(times[known.kind, known.rank, known.chunk])
    assert ends.max() == pytest.approx(replayed(schedule, p, v, m, times), rel=1e-9)


def uneven(schedule, p, v, m, stages) -> tuple[float, float, float]:
    """Simulated and closed seconds for stages of given sizes ``[p, v]``, and the slowest rank's warm-up forwards."""
    each = {"F": 1.0, "B": 1.2, "W": 0.9, "BW": 2.1}
    known = graph(schedule, p, v, m)
    passes = np.array([each[kind] for kind in KINDS])[known.kind] * stages[known.rank, known.chunk]
    ranks = stages.sum(axis=1)
    parts = [each[kind] * ranks[:, None] for kind in ("F", "B", "W")]
    total = m * 3.1 * ranks.max() + float(bubble_s(schedule, v, *parts, np.ones(p))[0])
    slow = int(np.argmax(ranks))
    return float(known.ends_s(passes).max()), total, (p - 1 - slow) * ranks[slow]


@given(p=st.integers(2, 9), m=st.integers(1, 40), seed=st.integers(0, 1000))
def test_uneven_stages(p, m, seed):
    """GPipe never takes less than its closed form. 1F1B takes less, by at most the slowest rank's warm-up forwards:
    its path starts with the forwards before it, has all its passes, and waits for the first gradient meanwhile.
    """
    stages = np.random.default_rng(seed).uniform(0.2, 2.0, (p, 1))
    simulated, total, _ = uneven("gpipe", p, 1, m, stages)
    assert simulated >= total * (1.0 - 1e-9)
    simulated, total, warm = uneven("1f1b", p, 1, m, stages)
    assert total - warm - 1e-9 <= simulated <= total * (1.0 + 1e-9)


def test_a_slow_first_rank_of_1f1b_never_waits():
    """Two ranks, the first ten times as long: its forwards fill the time in which the other works."""
    simulated, total, _ = uneven("1f1b", 2, 1, 50, np.array([[10.0], [1.0]]))
    assert simulated == pytest.approx(50 * 31.0)
    assert total == pytest.approx(50 * 31.0 + 3.1)


def test_many_trials_at_once_are_each_alone():
    known = graph("interleaved", 4, 2, 8)
    trials = np.random.default_rng(0).uniform(0.5, 1.5, (len(known), 7))
    together = known.ends_s(trials, 0.01, np.arange(4.0))
    assert np.allclose(together, np.stack([known.ends_s(t, 0.01, np.arange(4.0)) for t in trials.T], axis=1))


def test_a_larger_group_gives_messages_time():
    """What Megatron's microbatch-group-size-per-virtual-pipeline-stage is for: a slow message is waited for less."""
    times = (1.0, 1.0, 1.0)
    small, large = (step("interleaved", 4, 2, 16, *times, delay=0.2, group=g) for g in (4, 8))
    assert large < small
    assert step("interleaved", 4, 2, 16, *times, group=8) == pytest.approx(step("interleaved", 4, 2, 16, *times))

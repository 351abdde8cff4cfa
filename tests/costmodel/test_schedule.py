"""Bubbles against the published figures."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.costmodel.schedule import bubble_s

F, B, W = 1.0, 1.2, 0.9


def even(schedule: str, p: int, v: int = 1, f: float = F, b: float = B, w: float = W) -> float:
    ranks = np.ones((p, 1))
    return float(bubble_s(schedule, v, f * ranks, b * ranks, w * ranks, np.ones(p))[0])


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_published_bubbles(p):
    """Narayanan et al. sections 2.2.1-2.2.2: (p-1)(tf+tb), over v when interleaved; DeepSeek-V3 table 2 for the others.

    DeepSeek's B is the whole backward (here B + W) and W its weight gradient: 1F1B (PP-1)(F+B), ZB1P (PP-1)(F+B-2W),
    DualPipe (PP/2-1)(F&B+B-3W), with F&B = F+B when nothing overlaps.
    """
    whole = B + W
    assert even("1f1b", p) == pytest.approx((p - 1) * (F + whole))
    assert even("gpipe", p) == pytest.approx((p - 1) * (F + whole))
    assert even("interleaved", p, v=4) == pytest.approx((p - 1) * (F + whole) / 4)
    assert even("zb-h1", p) == pytest.approx((p - 1) * (F + whole - 2 * W))
    assert even("dualpipe", p) == pytest.approx((p / 2 - 1) * (F + whole + whole - 3 * W))


def test_zb_v_fills_one_chunk_per_rank():
    """Replay of PyTorch's ScheduleZBVZeroBubble table at p 4 (tests/crosscheck): chunks of (1, 1, 1) idle 3.0 a step,
    (1, 1.2, 0.9) 3.6. A rank holds two chunks.
    """
    assert even("zb-v", 4, v=2, f=2.0, b=2.0, w=2.0) == pytest.approx(3.0)
    assert even("zb-v", 4, v=2, f=2.0, b=2.4, w=1.8) == pytest.approx(3.6)


def test_uneven_stages_wait_for_the_others():
    """The slowest stage idles one pass of every other: the fill and drain of 1F1B."""
    f = np.array([[1.0], [2.0], [1.5]])
    none = np.zeros_like(f)
    assert bubble_s("1f1b", 1, f, none, none, np.ones(3))[0] == pytest.approx(2.5)


def test_one_row_may_stand_for_many_ranks():
    f = np.array([[1.0], [2.0]])
    none = np.zeros_like(f)
    full = np.array([[1.0], [1.0], [1.0], [2.0]])
    for schedule in ("gpipe", "1f1b", "interleaved", "zb-h1"):
        few = bubble_s(schedule, 2, f, none, none, np.array([3.0, 1.0]))
        assert few == pytest.approx(bubble_s(schedule, 2, full, 0 * full, 0 * full, np.ones(4)))


def test_uneven_turns_of_an_interleaved_pipeline_cost_time():
    """Two ranks, two chunks each: layers 3, 1, 1, 3 in model order give both ranks 4 layers, yet each turn lasts 3.

    Even turns (2, 2, 2, 2) take 4 per micro-batch, these 3 + 3: ranks that take turns wait for the slower chunk.
    """
    from shardwise.costmodel.estimate import estimate
    from shardwise.costmodel.strategy import Strategy

    from . import cases

    problem = cases.problem(cases.gpt(layers=8, vocabulary=128), num_gpus=2, batch=512, cluster="dgx-a100")
    even = Strategy(pp=2, vpp=2, schedule="interleaved", num_microbatches=512, layers_per_stage=(2, 2, 2, 2))
    uneven = Strategy(pp=2, vpp=2, schedule="interleaved", num_microbatches=512, layers_per_stage=(3, 1, 1, 3))
    work = [sum(estimate(problem, s).time_parts_s[k] for k in ("gemm", "attention")) for s in (even, uneven)]
    assert work[0] == pytest.approx(work[1])
    times = [estimate(problem, s).step_time_s for s in (even, uneven)]
    assert times[1] > 1.3 * times[0]

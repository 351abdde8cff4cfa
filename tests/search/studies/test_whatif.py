"""What-if questions against arithmetic, monotony and a dense grid of whole searches."""

import math

import numpy as np
import pytest

from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.search.studies import breakeven, whatif
from shardwise.search.studies.runner import study

BASE = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 32, "global_batch": 64, "seq_len": 2048}
OUT = "cluster.tiers.scale-out.bytes_per_s"


def test_strong_scaling_is_throughput_over_that_of_the_smallest():
    answer = whatif.scale(BASE, [16, 8, 32], bound=0.99)
    assert [row["gpus"] for row in answer.rows] == [8, 16, 32]
    steps = [row["step_time_s"] for row in answer.rows]
    for row, step, share in zip(answer.rows, steps, answer.efficiency, strict=True):
        assert share == pytest.approx(steps[0] * 8 / (step * row["gpus"]))
    under = [row["gpus"] for row, share in zip(answer.rows, answer.efficiency, strict=True) if share < 0.99]
    assert (answer.drops is None) == (not under)
    assert not under or answer.drops[1] == under[0]


def test_weak_scaling_keeps_the_work_of_each_accelerator():
    answer = whatif.scale(BASE, [8, 16], weak=True)
    assert [row["global_batch"] for row in answer.rows] == [64, 128]


def test_more_of_a_resource_never_makes_the_best_step_longer():
    answer = whatif.sensitivity(BASE)
    assert {i.resource for i in answer.influences} == set(whatif.RESOURCES)
    for i in answer.influences:
        good, bad = (i.less_s, i.more_s) if "latency" in i.resource else (i.more_s, i.less_s)
        assert good <= answer.step_time_s * (1 + 1e-9)
        assert bad >= answer.step_time_s * (1 - 1e-9)
        assert i.elasticity == pytest.approx(math.log(i.more_s / i.less_s) / math.log(1.1 / 0.9))
    strength = [abs(i.elasticity) for i in answer.influences]
    assert strength == sorted(strength, reverse=True)


def test_a_bill_is_tokens_over_throughput():
    bill, none = whatif.cost(BASE, [("dgx-h100", 16, 2.0), ("dgx-a100", 8, None)], 1e12)
    assert bill.row["gpus"] == 16
    assert bill.gpu_hours == pytest.approx(1e12 / bill.row["tokens_per_s_per_gpu"] / 3600)
    assert bill.days == pytest.approx(bill.gpu_hours / 16 / 24)
    assert bill.usd == pytest.approx(2 * bill.gpu_hours)
    assert none.usd is None


def test_the_price_that_equals_another_cluster_is_the_ratio_of_gpu_hours():
    other = {**BASE, "cluster": "dgx-b200", "price_per_gpu_hour": 5.0}
    found = breakeven.even(BASE, other, "price_per_gpu_hour", 0.1, 50.0, "usd_per_million_tokens")
    ours, theirs = (study({**b, "vary": {"gpus": [32]}}).rows[0]["step_time_s"] for b in (BASE, other))
    assert found == pytest.approx(5.0 * theirs / ours, rel=2e-3)


def test_no_value_is_an_answer_too():
    other = {**BASE, "cluster": "dgx-b200"}
    assert breakeven.even(BASE, other, OUT, 4e10, 5e10) is None


MEMORY = "cluster.accelerator.memory_bytes"


def test_changes_with_memory_are_where_the_layout_above_begins_to_fit():
    """Enumeration on a grid: between two changes the best layout is the same, and just below one it does not fit."""
    base = {**BASE, "gpus": 8, "max": {"cp": 1, "pp": 1}}
    low, high = 1.2e10, 9.0e10
    told = []
    found = breakeven.changes(base, MEMORY, low, high, progress=lambda done, total: told.append(done))
    assert found, "the range is chosen so that the best layout changes in it"
    assert [c.value for c in found] == sorted(c.value for c in found)
    grid = [float(x) for x in np.geomspace(low, high, 12)]
    rows = study({**base, "vary": {MEMORY: grid}}).rows
    for x, row in zip(grid, rows, strict=True):
        if not any(c.low <= x <= c.high for c in found):
            at = sum(c.high < x for c in found)
            assert breakeven.layout_of(row) == breakeven.layout_of(found[at - 1].after if at else found[0].before), x
    for c in found:
        assert c.high / c.low <= 1 + 1.01 * breakeven.PRECISION
        assert c.after["peak_memory_bytes"] <= c.value * 0.95 * (1 + 1e-6)
        assert c.before["status"] != "ok" or c.before["step_time_s"] >= c.after["step_time_s"] * (1 - 1e-9)
    assert max(told) <= 60


@pytest.mark.slow
def test_changes_of_the_best_layout_are_those_of_a_dense_grid():
    low, high = 1e9, 2e10
    found = breakeven.changes(BASE, OUT, low, high)
    grid = [float(x) for x in np.geomspace(low, high, 25)]
    rows = study({**BASE, "vary": {OUT: grid}}).rows
    assert found, "the range is chosen so that the best layout changes in it"
    for x, row in zip(grid, rows, strict=True):
        if any(c.low <= x <= c.high for c in found):
            continue
        after = [c for c in found if c.high < x]
        expected = after[-1].after if after else found[0].before
        assert breakeven.layout_of(row) == breakeven.layout_of(expected), x
    for c in found:
        assert c.high / c.low <= 1 + 1.01 * breakeven.PRECISION
        assert c.low <= c.value <= c.high


def test_two_clusters_side_by_side_are_two_searches():
    rows = whatif.compare(BASE, [("dgx-h100", 16), ("dgx-a100", 16)])
    assert [row["cluster"] for row in rows] == ["dgx-h100", "dgx-a100"]
    alone = study({**BASE, "cluster": "dgx-a100", "vary": {"gpus": [16]}}).rows[0]
    assert rows[1]["step_time_s"] == alone["step_time_s"]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: whatif.scale(BASE, [8], bound=2.0), "bound = 2"),
        (lambda: whatif.scale({k: v for k, v in BASE.items() if k != "global_batch"}, [8], weak=True), "global_batch"),
        (lambda: whatif.sensitivity(BASE, change=1.0), "change = 1"),
        (lambda: whatif.cost(BASE, [], 1e9), "expected at least one"),
        (lambda: whatif.cost(BASE, [("dgx-h100", 8, None)], 0), "tokens = 0"),
        (lambda: whatif.cost(BASE, [("dgx-h100", 8, None)], 1e300), "tokens = 1e+300"),
        (lambda: whatif.cost(BASE, [("dgx-h100", 8, math.nan)], 1e9), "price_usd_per_gpu_hour = nan"),
        (lambda: whatif.cost(BASE, [("dgx-h100", 8, -3.0)], 1e9), "price_usd_per_gpu_hour = -3.0"),
        (lambda: whatif.scale({**BASE, "pin": {"tq": 8}}, [8, 16]), "study: pin: unknown dimension 'tq'"),
        (lambda: whatif.scale({**BASE, "model": "lama"}, [8, 16]), "study: unknown preset 'lama'"),
        (lambda: whatif.scale(BASE, [9, 12]), "study: vary.gpus = 9"),
        (lambda: breakeven.even(BASE, {**BASE, "price_per_gpu_hour": math.nan}, OUT, 1, 2), "price_per_gpu_hour = nan"),
        (lambda: breakeven.changes(BASE, OUT, 5, 1), "the smaller first"),
        (lambda: breakeven.changes(BASE, "gpus", 8, 64), "whole numbers"),
        (lambda: breakeven.changes(BASE, "cluster.tiers.x.bytes_per_s", 1, 5), "no such tier"),
        (lambda: breakeven.even(BASE, BASE, OUT, 1e9, 1e10, "strategy.schedule"), "a column of numbers"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(ask, words):
    with pytest.raises(InputError) as refused:
        ask()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda base: whatif.scale(base, [8, 16]),
        lambda base: whatif.compare(base, [("dgx-h100", 8), ("dgx-a100", 8)]),
        lambda base: whatif.cost(base, [("dgx-h100", 8, 2.0)], 1e12),
        lambda base: whatif.sensitivity({**base, "gpus": 8}),
    ],
)
def test_where_nothing_fits_anywhere_there_is_no_answer_but_why(ask):
    """405 B parameters in 16-bit alone are 810 GB, more than 8 × 80 GB."""
    with pytest.raises(InfeasibleError, match=r"nothing to compare: nothing fits in memory.*says what would help"):
        ask({**BASE, "model": "llama-3.1-405b", "pin": {"zero": 0, "offload": 0}})

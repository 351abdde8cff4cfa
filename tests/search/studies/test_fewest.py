"""The fewest GPUs against a whole search at every count, and against the bytes that a model cannot do without."""

import math

import pytest

from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.search.studies.fewest import Limits, fewest_gpus
from shardwise.search.studies.runner import study

BASE = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "global_batch": 24, "seq_len": 2048}
COUNTS = [8, 16, 24, 32, 40, 48]


@pytest.fixture(scope="module")
def steps():
    """A whole search at every count: the answer by enumeration."""
    rows = study({**BASE, "vary": {"gpus": COUNTS}}).rows
    return {row["gpus"]: row["step_time_s"] if row["status"] == "ok" else math.inf for row in rows}


def test_it_is_the_first_count_whose_best_step_will_do(steps):
    for limit_s in (1.001 * steps[8], 1.001 * steps[24], 0.9 * steps[8]):
        want = min(n for n, step_s in steps.items() if step_s <= limit_s)
        found = fewest_gpus(BASE, COUNTS, Limits(max_step_time_s=limit_s))
        assert found.gpus == want
        assert found.undecided == ()
        assert [c.num_gpus for c in found.smaller] == [n for n in COUNTS if n < want]
        for count in found.around:
            assert count.row["status"] == ("ok" if math.isfinite(steps[count.gpus]) else "infeasible")
            verdict = "enough" if steps[count.gpus] <= limit_s else "too slow"
            assert count.verdict == (verdict if math.isfinite(steps[count.gpus]) else "impossible")


def test_a_larger_count_may_fail_where_a_smaller_one_does(steps):
    """40 GPUs: a batch of 24 and 32 heads split by 8 at most, so a factor of 5 is left for stages of 16 layers."""
    assert steps[40] > steps[32]
    found = fewest_gpus(BASE, COUNTS, Limits(max_step_time_s=1.001 * steps[32]))
    verdicts = {c.gpus: c.verdict for c in found.around}
    assert verdicts[found.gpus] == "enough"
    assert found.gpus > 32 or verdicts[40] in ("too slow", "impossible")


def test_every_limit_is_a_longest_step(steps):
    tokens = BASE["global_batch"] * BASE["seq_len"]
    step_s = 1.001 * steps[24]
    by_step = fewest_gpus(BASE, [16, 24], Limits(max_step_time_s=step_s))
    by_rate = fewest_gpus(BASE, [16, 24], Limits(tokens_per_s=tokens / step_s))
    by_date = fewest_gpus(BASE, [16, 24], Limits(tokens=1000 * tokens, deadline_s=1000 * step_s))
    assert by_step.gpus == by_rate.gpus == by_date.gpus
    assert by_rate.limit_s == pytest.approx(step_s)
    assert by_date.answer.run_s == pytest.approx(1000 * by_date.answer.row["step_time_s"])


def test_fitting_at_all_takes_at_least_the_bytes_of_the_states():
    """Weights and gradients in 16 and 32 bits and three FP32 states are 18 bytes a parameter, wherever they lie."""
    base = {**BASE, "model": "llama-3.1-8b", "pin": {"offload_optimizer": 0}}
    found = fewest_gpus(base, [1, 2, 4])
    parameters = found.answer.row["model.parameters"]
    assert found.gpus * found.answer.row["capacity_bytes"] >= 18 * parameters
    assert found.limit_s is None
    assert {c.reason for c in found.smaller} == {"no layout fits in memory"}
    below = [c for c in found.around if c.gpus < found.gpus]
    assert below
    assert all("nothing fits in memory" in c.why for c in below)


def test_money_is_hours_times_the_price():
    found = fewest_gpus({**BASE, "price_per_gpu_hour": 2.0}, [8], Limits(tokens=1e9))
    assert found.answer.run_usd == pytest.approx(2.0 * 8 * found.answer.run_s / 3600)


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: fewest_gpus(BASE, [8], Limits(max_step_time_s=1e-3)), InfeasibleError, "takes 0.001 s per step"),
        (lambda: fewest_gpus(BASE, [8], Limits(deadline_s=1.0)), InputError, "give its tokens too"),
        (lambda: fewest_gpus(BASE, [8], Limits(tokens_per_s=-1.0)), InputError, "tokens_per_s = -1.0"),
        (lambda: fewest_gpus(BASE, [8], Limits(max_step_time_s=math.nan)), InputError, "max_step_time_s = nan"),
        (lambda: fewest_gpus(BASE, [9]), InputError, "whole nodes of 8"),
        (lambda: fewest_gpus({**BASE, "cluster": None}), InputError, "cluster: missing"),
        (lambda: fewest_gpus({**BASE, "global_batch": None, "batch_per_gpu": 2}), InputError, "batch_per_gpu"),
        (lambda: fewest_gpus({**BASE, "model": "lama"}), InputError, "lama"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_line(ask, error, words):
    with pytest.raises(error) as refused:
        ask()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)

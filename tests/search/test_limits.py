"""Time limits on large problems: what is shown by then is true of what a search without a limit finds."""

import math
import time

import pytest

import shardwise
from shardwise.search.proof import TOLERANCE

LARGE = {
    "llama-3.1-405b": ("dgx-h100", 16384, shardwise.Workload(2048, 8192)),
    "deepseek-v3": ("h800-mpft", 16384, shardwise.Workload(15360, 4096)),
    "minimax-m1": ("dgx-h800", 512, shardwise.Workload(1024, 8192)),
}
LIMITS_S = (0.1, 0.5, 1.0, 2.0, 5.0)
MOST_BEYOND_S = 10.0
"""Processor time of what no limit cuts short, on a slow core: listing and bounding every candidate once, explaining the
answer, one step of closing a layer split."""


def planned(model, limit_s):
    cluster, gpus, workload = LARGE[model]
    start = time.process_time()
    found = shardwise.plan(model, cluster, workload, num_gpus=gpus, time_limit_s=limit_s, refine_trials=0)
    return found, time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("model", LARGE)
def test_limits_are_kept_and_their_gaps_are_honest(model):
    whole, _ = planned(model, None)
    best, shown = whole.step_time_s, whole.proof.best_bound_s
    last = math.inf
    for limit_s in LIMITS_S:
        found, took_s = planned(model, limit_s)
        proof = found.proof
        assert took_s <= limit_s + MOST_BEYOND_S
        assert proof.best_bound_s <= best * (1.0 + TOLERANCE)
        assert found.step_time_s >= shown * (1.0 - TOLERANCE)
        assert found.estimate.fits
        assert proof.gap == pytest.approx(1.0 - proof.best_bound_s / proof.incumbent_s)
        assert proof.incumbent_s * (1.0 - proof.gap) <= best * (1.0 + TOLERANCE)
        assert proof.stopped_by in (None, "time limit")
        assert proof.finished == (not proof.gap and proof.stopped_by is None)
        last = min(last, found.step_time_s)
    assert last <= 1.2 * best

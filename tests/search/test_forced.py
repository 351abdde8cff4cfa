"""Plans under every objective, with wishes, on several GPU counts and precisions, against estimates of every layout."""

from dataclasses import replace

import numpy as np
import pytest

import shardwise
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.strategy import Strategies
from shardwise.launchers.base import get_launcher
from shardwise.search.objective import OBJECTIVES, Objective
from shardwise.search.proof import TOLERANCE

from .small import dense_model, every_strategy, moe_model, problem

WHOLE = {"pp": 1, "zero_group": 0, "offload_optimizer": "0|1"}
"""Each layout is then one that ``every_strategy`` lists."""
WISHES = (
    {}, {}, {"bans": {"zero": 3}}, {"most": {"tp": 1}}, {"least": {"micro_batch_size": 2}},
    {"bans": {"recompute": "full"}}, {"least": {"tp": 2}}, {"pins": {"recompute": "selective"}},
    {"pins": {"micro_batch_size": "1|2"}}, {"pins": {"sp": "off"}, "most": {"cp": 1}}, {"bans": {"tp": "2|4", "cp": 2}},
    {"pins": {"zero": "1|2"}, "bans": {"micro_batch_size": 1}},
    {"most": {"micro_batch_size": 2}, "bans": {"dp_overlap": "on"}},
)  # fmt: skip
WRITERS = {
    "torchtitan": "qwen3-0.6b", "deepspeed": "llama-3.2-1b", "nanotron": "llama-3.2-1b", "accelerate": "llama-3.2-1b",
    "megatron-bridge": "llama-3.2-1b", "megatron-deepspeed": "gpt-2-medium",
}  # fmt: skip
"""Launchers that take real models only, and a small one each."""


def granted(s, wishes):
    """Whether a strategy keeps to wishes, read word for word."""
    shown = {True: "on", False: "off"}
    for kind, of in wishes.items():
        for name, wish in of.items():
            value = getattr(s, name)
            named = shown[value] if isinstance(value, bool) else value if isinstance(value, str) else f"{value:g}"
            inside = named in str(wish).split("|")
            if not {"pins": inside, "bans": not inside}.get(kind, True):
                return False
            if (kind == "least" and value < wish) or (kind == "most" and value > wish):
                return False
    return True


def layouts(p, who, wishes):
    """Those with a chance: the public estimate of each that is among the quickest that fit."""
    rows = [s for s in every_strategy(p, who, {"pp": 1}) if granted(s, wishes)]
    if not rows:
        return []
    e = evaluate(p, Strategies.of(rows))
    # The public estimate judges; arrays only choose whom it looks at: what fits, quickest and lightest first.
    fits = np.flatnonzero(e.fits)
    quick = fits[np.argsort(e.step_time_s[fits], kind="stable")[:60]]
    light = fits[np.argsort(e.peak_memory_bytes[fits], kind="stable")[:20]]
    return [
        shardwise.estimate(p.model, p.cluster, p.workload, rows[i], runtime=p.runtime)
        for i in dict.fromkeys([*quick.tolist(), *light.tolist()])
    ]


SCORES = {
    "step-time": lambda e: (e.step_time_s,),
    "tokens-per-gpu": lambda e: (-e.tokens_per_s_per_gpu,),
    "cost": lambda e: (e.problem.cluster.num_gpus * e.step_time_s,),
    "fewest-gpus": lambda e: (e.problem.cluster.num_gpus, e.step_time_s),
}


def question(seed):
    """A problem on one accelerator, a launcher, GPU counts, precisions and wishes."""
    rng = np.random.default_rng(seed)
    counts = sorted(rng.choice((1, 2, 3, 4), size=2, replace=False).tolist())
    dtypes, wishes = (("bf16",), ("bf16", "fp8"))[rng.integers(2)], WISHES[rng.integers(len(WISHES))]
    who = str(rng.choice(("megatron", "generic", "megatron", "generic", *WRITERS)))
    if who in WRITERS:
        model, memory = ModelSpec.from_preset(WRITERS[who]), (None, 14.0, 24.0)[rng.integers(3)]
        wishes = {**wishes, "pins": {"micro_batch_size": "1|2", **wishes.get("pins", {})}}
        p = problem(model, 1, 4, 1024, memory, "dgx-h100", get_launcher(who).default_runtime)
        return p, who, counts, ("bf16",), wishes
    model = (dense_model(3), dense_model(2, 1024, 8), moe_model(3))[rng.integers(3)]
    p = problem(model, 1, int(rng.choice((4, 6, 12))), 2048, (None, 1.5, 2.5, 4.0)[rng.integers(4)], "dgx-h100")
    return p, who, counts, dtypes, wishes


def agrees(seed):
    p, who, counts, dtypes, wishes = question(seed)
    cases = [
        replace(p, cluster=p.cluster.with_num_gpus(n), workload=replace(p.workload, dtype=dtype))
        for n in counts
        for dtype in dtypes
    ]
    every = [e for case in cases for e in layouts(case, get_launcher(who), wishes)]
    slack = float(np.random.default_rng(seed).choice((0.7, 1.2, 5.0)))
    limit = slack * float(np.median([e.step_time_s for e in every] or [1.0]))
    asked = {**wishes, "pins": {**WHOLE, **wishes.get("pins", {})}}
    for name in OBJECTIVES:
        wanted = Objective(name, max_step_time_s=limit, price_usd_per_gpu_hour=2.0)
        in_time = [e for e in every if e.step_time_s <= limit]
        try:
            found = shardwise.plan(
                p.model, p.cluster, p.workload, num_gpus=counts, dtypes=dtypes, runtime=p.runtime, launcher=who,
                objective=wanted, refine_trials=0, **asked,
            )  # fmt: skip
        except shardwise.InfeasibleError:
            assert not in_time, (seed, name)
            continue
        best = min(SCORES[name](e) for e in in_time)
        assert SCORES[name](found.estimate) == pytest.approx(best, rel=3.0 * TOLERANCE), (seed, name)
        assert granted(found.strategy, asked) and found.goal.gap == 0.0
        assert found.step_time_s <= limit * (1.0 + TOLERANCE)
    return len(every)


def front_agrees(seed, points=5):
    """Every share of the memory left free has the fastest layout that leaves it."""
    p, who, counts, _, wishes = question(seed)
    case = replace(p, cluster=p.cluster.with_num_gpus(counts[-1]))
    every = layouts(case, get_launcher(who), wishes)
    if not every:
        return 0
    asked = {**wishes, "pins": {**WHOLE, **wishes.get("pins", {})}}
    front = shardwise.plan(
        case.model, case.cluster, case.workload, runtime=case.runtime, launcher=who, refine_trials=0,
        pareto_points=points, **asked,
    ).pareto  # fmt: skip
    for share in range(points):
        allowed = every[0].capacity_bytes * (1.0 - share / points)
        least = min((e.step_time_s for e in every if e.peak_memory_bytes <= allowed), default=np.inf)
        mine = min((f.step_time_s for f in front if f.peak_memory_bytes <= allowed), default=np.inf)
        # Only the quickest and the lightest were looked at: between them there may be a quicker one.
        assert mine <= least * (1.0 + 3.0 * TOLERANCE), (seed, share)
    for f in front:
        assert f.bound_s <= f.step_time_s
        lighter = [e.step_time_s for e in every if e.peak_memory_bytes <= f.peak_memory_bytes]
        assert f.bound_s * (1.0 - TOLERANCE) <= min(lighter, default=np.inf)
    return len(front)


def test_objectives_with_wishes_agree_with_the_estimate_of_every_layout():
    assert sum(agrees(seed) for seed in (0, 5, 6, 8)) > 100


def test_fronts_with_wishes_agree_with_the_estimate_of_every_layout():
    assert sum(front_agrees(seed) for seed in (5, 6, 8, 10)) > 6


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 120, 140])
def test_more_objectives_with_wishes_agree(first):
    assert sum(agrees(seed) for seed in range(first, first + 20)) > 1000


@pytest.mark.slow
def test_more_fronts_with_wishes_agree():
    assert sum(front_agrees(seed) for seed in range(200, 220)) > 15

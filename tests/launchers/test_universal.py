"""Universal rules: every one refuses what no framework can run, by its name and with a useful message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.base import universal_rules, violations
from shardwise.launchers.rule import allowed

from .problems import DEEPSEEK, LLAMA, MIXTRAL, fitted, problem

GOOD: dict[str, Any] = {"tp": 8, "sp": True, "pp": 4}

REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("positive-degrees", {}, {"tp": 8, "vpp": 0, "dp": 64, "num_microbatches": 16}, "1 or more"),
    ("world-size", {}, {**GOOD, "dp": 8, "num_microbatches": 128}, "dp = 16 would fill it"),
    ("world-size", {}, {"tp": 3, "dp": 8, "num_microbatches": 128}, "does not divide it"),
    ("expert-mesh", {"name": MIXTRAL, "gpus": 16}, {"pp": 4, "ep": 8, "dp": 4}, "ep that does is 4"),
    ("rank-order", {}, {**GOOD, "cp": 2, "dp": 8, "rank_order": "tp-cp-ep-pp-dp"}, "needs cp = 1"),
    ("global-batch", {}, {**GOOD, "dp": 16, "num_microbatches": 63}, "m = 64 would fit"),
    ("global-batch", {"batch": 100}, {**GOOD, "dp": 16, "num_microbatches": 6}, "does not divide it"),
    ("heads", {}, {"tp": 128, "dp": 4, "num_microbatches": 256}, "nearest tp that does is 64"),
    ("kv-heads", {}, {"tp": 12, "dp": 43, "num_microbatches": 1}, "key-value heads 8"),
    ("ulysses-heads", {}, {"tp": 8, "cp": 16, "cp_comm": "a2a", "ulysses": 16, "dp": 4}, "ulysses that does is 8"),
    ("ffn-width", {}, {"tp": 17, "dp": 30}, "nearest tp"),
    ("ep-needs-moe", {}, {"tp": 8, "dp": 64, "ep": 2}, "use ep = 1"),
    ("ep-needs-moe", {}, {"tp": 8, "dp": 64, "etp": 8}, "use ep = 1"),
    ("block-scales", {"dtype": "mxfp8"}, {"dp": 512}, "has no mxfp8 units: use another dtype"),
    ("experts", {"name": DEEPSEEK}, {"dp": 512, "ep": 512}, "nearest ep that does is 256"),
    ("expert-width", {"name": MIXTRAL, "gpus": 504}, {"etp": 9, "dp": 504}, "nearest etp that does is 8"),
    ("vocabulary", {"changes": {"vocab_multiple": 1}, "gpus": 512}, {"tp": 512}, "does not pad it"),
    ("ulysses-degree", {}, {"cp": 4, "cp_comm": "a2a", "dp": 128}, "needs ulysses = 4, not 1"),
    ("ulysses-degree", {}, {"cp": 4, "ulysses": 2, "dp": 128}, "needs ulysses = 1, not 2"),
    ("ulysses-degree", {}, {"cp": 8, "cp_comm": "a2a+p2p", "ulysses": 8, "dp": 64}, "needs ulysses = 4, not 8"),
    ("ulysses-degree", {}, {"cp": 2, "cp_comm": "a2a+p2p", "dp": 256}, "there is none"),
    ("sequence-cp", {"sequence": 4100}, {"cp": 4, "dp": 128}, "2·cp = 8"),
    ("sequence-cp", {"sequence": 4098}, {"cp": 4, "cp_comm": "a2a", "ulysses": 4, "dp": 128}, "cp = 4"),
    ("sequence-sp", {"sequence": 4100}, {"tp": 8, "sp": True, "dp": 64}, "nearest tp that fits is"),
    ("sp-needs-tp", {}, {"sp": True, "dp": 512}, "use sp = off"),
    ("tp-overlap-needs-tp", {}, {"tp_overlap": True, "dp": 512}, "use tp_overlap = off"),
    ("ep-overlap-needs-ep", {}, {"ep_overlap": True, "dp": 512}, "use ep_overlap = off"),
    ("pipeline-depth", {"gpus": 128}, {"pp": 128}, "only 80 layers"),
    ("pipeline-depth", {}, {"pp": 16, "vpp": 8, "schedule": "interleaved", "dp": 32}, "only 80 layers"),
    ("schedule-needs-pp", {}, {"schedule": "zb-h1", "dp": 512}, "use schedule = 1f1b"),
    ("vpp-schedule", {}, {**GOOD, "vpp": 2, "dp": 16}, "needs vpp = 1, not vpp = 2"),
    ("vpp-schedule", {}, {**GOOD, "schedule": "interleaved", "dp": 16}, "needs vpp > 1"),
    ("vpp-schedule", {}, {**GOOD, "schedule": "zb-v", "vpp": 3, "dp": 16}, "needs vpp = 2"),
    ("schedule-microbatches", {}, {**GOOD, "schedule": "interleaved", "vpp": 2, "dp": 16, "num_microbatches": 3},
     "at least pp = 4 micro-batches, not 3"),
    ("dualpipe", {}, {**GOOD, "schedule": "dualpipe", "dp": 16, "num_microbatches": 7}, "even m of at least 2·pp"),
    ("layer-split", {}, {**GOOD, "layers_per_stage": (20, 20, 40)}, "3 entries, but pp·vpp = 4"),
    ("layer-split", {}, {**GOOD, "layers_per_stage": (20, 20, 20, 21)}, "81 layers, but the model has 80"),
    ("layer-split", {}, {**GOOD, "layers_per_stage": (20, 20, 50, -10)}, "negative entry: -10"),
    ("layer-split", {}, {**GOOD, "layers_per_stage": (20, 0, 40, 20)}, "an empty stage between the first and the last"),
    ("layer-split", {}, {**GOOD, "recompute": "full", "recompute_per_stage": (1, 2)}, "2 entries, but pp = 4"),
    ("recompute-layers", {}, {**GOOD, "recompute_layers": 3}, "goes with recompute = full"),
    ("recompute-layers", {}, {**GOOD, "recompute": "full", "recompute_layers": 80}, "at most 79 layers"),
    ("recompute-layers", {}, {**GOOD, "recompute_per_stage": (1, 1, 1, 1)}, "goes with recompute = full"),
    ("recompute-layers", {}, {**GOOD, "recompute": "full", "layers_per_stage": (20, 20, 20, 20),
                              "recompute_per_stage": (21, 1, 1, 1)}, "those of its split"),
    ("zero-group", {}, {**GOOD, "dp": 16, "zero_group": 5}, "nearest that does is 4"),
    ("zero-group", {}, {**GOOD, "dp": 16, "zero": 0, "zero_group": 4}, "zero 1 to 3"),
    ("host-memory", {"gpus": 8, "name": "llama-3.1-405b"}, {"tp": 8, "sp": True, "offload_optimizer": 1.0}, "or less"),
    ("offload-share", {}, {**GOOD, "dp": 16, "offload_optimizer": 1.5}, "not a share"),
    ("offload-activations-recompute", {}, {**GOOD, "dp": 16, "recompute": "full", "offload_activations": True},
     "use one of them"),
    ("offload-activations-latent", {"name": DEEPSEEK}, {**GOOD, "dp": 16, "recompute": "selective",
                                                        "offload_activations": True}, "use recompute = none"),
    ("zero-stage", {}, {**GOOD, "dp": 16, "zero": 4}, "stage from 0 to 3"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given_", "settings", "words"), REFUSED)
def test_refused_by_name_and_with_a_reason(
    rule: str, given_: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    found = {v.rule: v.message for v in violations(problem(**given_), Strategy(**settings))}
    assert rule in found, found
    assert words in found[rule]


def test_every_universal_rule_is_tested_here() -> None:
    assert {rule.name for rule in universal_rules()} == {case[0] for case in REFUSED}


@pytest.mark.parametrize(
    ("given_", "settings"),
    [
        ({}, GOOD),
        ({}, {**GOOD, "vpp": 5, "schedule": "interleaved"}),
        ({}, {**GOOD, "vpp": 2, "schedule": "zb-v"}),
        ({}, {**GOOD, "schedule": "dualpipe"}),
        ({}, {"tp": 16, "sp": True, "pp": 2}),
        ({}, {"tp": 2, "cp": 8, "cp_comm": "a2a+p2p", "ulysses": 4}),
        ({}, {**GOOD, "zero": 3, "zero_group": 4}),
        ({}, {**GOOD, "recompute": "full", "recompute_layers": 20, "offload_optimizer": 1.0}),
        ({"name": DEEPSEEK}, {"pp": 8, "ep": 64}),
        ({"name": MIXTRAL}, {"tp": 4, "sp": True, "pp": 4, "ep": 4, "etp": 4}),
    ],
)
def test_what_can_run_is_not_refused(given_: dict[str, Any], settings: dict[str, Any]) -> None:
    p = problem(**given_)
    assert violations(p, fitted(p, **settings)) == []


POWERS = st.sampled_from([1, 2, 4, 8, 16])


@given(
    tp=POWERS,
    cp=POWERS,
    pp=POWERS,
    dp=POWERS,
    ep=POWERS,
    sp=st.booleans(),
    zero=st.integers(0, 3),
    m=st.integers(1, 40),
)
def test_arrays_and_single_strategies_agree(
    tp: int, cp: int, pp: int, dp: int, ep: int, sp: bool, zero: int, m: int
) -> None:
    p = problem(MIXTRAL, gpus=64, batch=64)
    s = Strategy(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, sp=sp, zero=zero, num_microbatches=m)
    together = allowed(p, Strategies.of([Strategy(), s, s]), universal_rules())
    assert together[1] == together[2] == (violations(p, s) == [])


def test_a_million_strategies_take_about_a_second() -> None:
    import time

    rng = np.random.default_rng(0)
    many = Strategies(
        **{name: 2 ** rng.integers(0, 5, 1_000_000) for name in ("tp", "cp", "pp", "dp", "num_microbatches")}
    )
    start = time.perf_counter()
    allowed(problem(LLAMA), many, universal_rules())
    assert time.perf_counter() - start < 5.0


def test_offloaded_states_must_fit_in_the_host():
    """Llama 3.1 405B holds 405,853,388,800 parameters; Adam with FP32 masters and gradients is 16 bytes for each."""
    job = problem("llama-3.1-405b", gpus=8, batch=64)
    whole = Strategy(tp=8, sp=True, num_microbatches=64, offload_optimizer=1.0)
    (refusal,) = violations(job, whole, universal_rules())
    assert refusal.rule == "host-memory"
    needed = 405_853_388_800 * 16 / 8 / 2**30
    assert f"{needed:.1f} GiB per GPU" in str(refusal)
    assert not violations(job, replace(whole, offload_optimizer=0.2), universal_rules())

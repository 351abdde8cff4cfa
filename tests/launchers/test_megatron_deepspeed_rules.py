"""Megatron-DeepSpeed's own rules: refused by name, and the neighbouring strategy that it would run is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.megatron_deepspeed_rules import megatron_deepspeed_rules, partition_method

from .problems import GPT, fitted, problem

LAUNCHER = get_launcher("megatron-deepspeed")
GIVEN: dict[str, Any] = {"name": "bloom-176b", "gpus": 384, "batch": 2304, "sequence": 2048, "cluster": "dgx-a100"}
PLAN: dict[str, Any] = {"tp": 4, "pp": 12, "micro_batch_size": 2, "recompute": "full", "dp_overlap": False}
FIVES = (5, *[6] * 10, 5)

Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]

CASES: list[Case] = [
    # rule, problem, refused, what to change so that it is allowed
    ("megatron-deepspeed-sp", {}, {"sp": True}, {"sp": False}),
    ("megatron-deepspeed-cp", {}, {"cp": 2}, {"cp": 1}),
    ("megatron-deepspeed-vpp", {}, {"pp": 2, "vpp": 5, "schedule": "interleaved"}, {"vpp": 1, "schedule": "1f1b"}),
    ("megatron-deepspeed-schedule", {}, {"schedule": "gpipe"}, {"schedule": "1f1b"}),
    ("megatron-deepspeed-tp-overlap", {}, {"tp_overlap": True}, {"tp_overlap": False}),
    ("megatron-deepspeed-dp-overlap", {}, {"dp_overlap": True}, {"dp_overlap": False}),
    ("megatron-deepspeed-zero", {}, {"zero": 2}, {"zero": 1}),
    ("megatron-deepspeed-zero", {}, {"zero": 3, "pp": 1}, {"zero": 1, "pp": 12}),
    ("megatron-deepspeed-zero-group", {}, {"zero_group": 4}, {"zero_group": 0}),
    ("megatron-deepspeed-offload-optimizer", {}, {"offload_optimizer": 0.5}, {"offload_optimizer": 0.0}),
    ("megatron-deepspeed-offload-activations", {}, {"offload_activations": True}, {"offload_activations": False}),
    ("megatron-deepspeed-recompute", {}, {"recompute": "selective"}, {"recompute": "none"}),
    ("megatron-deepspeed-recompute-layers", {}, {"recompute_layers": 3}, {"recompute_layers": -1}),
    ("learned-positions", {"name": GPT, "sequence": 4096}, {}, {}),
    ("accelerator", {"cluster": "tpu-v5p"}, {}, {}),
    ("fused-softmax", {}, {"tp": 8, "micro_batch_size": 1}, {"micro_batch_size": 2}),
    ("fused-softmax", {}, {"tp": 8, "micro_batch_size": 3}, {"micro_batch_size": 4}),
    ("layer-partition", {}, {"pp": 16}, {"pp": 12}),
    ("layer-partition-given", {}, {"layers_per_stage": (6, *[6] * 10, 4)}, {"layers_per_stage": FIVES}),
    ("layer-partition-given", {}, {"pp": 2, "layers_per_stage": (36, 34)}, {"layers_per_stage": (35, 35)}),
    ("recompute-every-layer", {}, {"recompute_per_stage": (5,) * 12}, {"recompute_per_stage": FIVES}),
    ("bf16-zero", {}, {"zero": 0}, {"zero": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given", "settings", "change"), CASES)
def test_refused_by_its_rule_and_allowed_after_the_change(
    rule: str, given: dict[str, Any], settings: dict[str, Any], change: dict[str, Any]
) -> None:
    p = problem(**{**GIVEN, **given})
    refused = fitted(p, **{**PLAN, **settings})
    assert rule in [v.rule for v in LAUNCHER.violations(p, refused)]
    with pytest.raises(InputError, match=rule):
        LAUNCHER.render(p, refused)
    if change:
        assert LAUNCHER.violations(p, fitted(p, **{**PLAN, **settings, **change})) == []


def test_every_own_rule_is_among_them() -> None:
    assert {rule.name for rule in megatron_deepspeed_rules()} <= {case[0] for case in CASES}


@pytest.mark.parametrize("zero", [0, 1])
def test_fp16_may_leave_the_states_whole(zero: int) -> None:
    p = problem(**GIVEN, dtype="fp16")
    assert LAUNCHER.violations(p, fitted(p, **PLAN, zero=zero)) == []


def test_the_depths_that_divide_70_layers_or_72_blocks() -> None:
    p = problem(**GIVEN)
    (rule,) = (r for r in LAUNCHER.rules if r.name == "layer-partition")
    depths = np.arange(1, 71)
    allowed = depths[rule.check(p, Strategies.of([Strategy(pp=int(pp)) for pp in depths]))]
    assert allowed.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 18, 24, 35, 36, 70]


@pytest.mark.parametrize(
    ("pp", "method"),
    [(1, "type:transformer"), (2, "type:transformer"), (12, "type:transformer|embedding"), (14, "type:transformer")],
)
def test_what_deepspeed_counts(pp: int, method: str) -> None:
    assert partition_method(problem(**GIVEN), Strategy(pp=pp)) == method


def test_the_nearest_depth_is_named() -> None:
    p = problem(**GIVEN)
    (found,) = (v for v in LAUNCHER.violations(p, fitted(p, **{**PLAN, "pp": 16})) if v.rule == "layer-partition")
    assert found.message == (
        "DeepSpeed divides 70 layers, or 72 with the embedding and the head, evenly over the pipeline: pp = 16 divides "
        "neither; the nearest pp that does is 14"
    )


def test_the_nearest_micro_batch_that_fuses_the_softmax_is_named_and_long_sequences_cannot() -> None:
    p = problem(**GIVEN)
    s = fitted(p, **{**PLAN, "tp": 16, "micro_batch_size": 1})
    (found,) = LAUNCHER.violations(p, s)
    assert "mbs = 112/16·1 to be a multiple of 4; the nearest mbs that makes it one is 4" in found.message
    assert LAUNCHER.violations(problem(**{**GIVEN, "sequence": 4096}), s) == []

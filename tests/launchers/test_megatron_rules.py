"""Megatron's own rules: refused by name, and the neighbouring strategy that it would run is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwise.costmodel.model import AttentionCore, ModelSpec
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.megatron_rules import megatron_rules

from .problems import DEEPSEEK, GPT, LLAMA, MIXTRAL, fitted, model, problem

MEGATRON = get_launcher("megatron")
TP8: dict[str, Any] = {"tp": 8, "sp": True}
WEAVE = {"schedule": "interleaved", "vpp": 2}


def windowed() -> ModelSpec:
    """Llama with a window on every layer."""
    spec = model(LLAMA)
    kinds = []
    for kind in spec.kinds:
        assert kind.mixer is not None and isinstance(kind.mixer.core, AttentionCore)
        kinds.append(replace(kind, mixer=replace(kind.mixer, core=replace(kind.mixer.core, window=1024))))
    return replace(spec, kinds=tuple(kinds))


Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]

CASES: list[Case] = [
    # rule, problem, refused, what to change so that it is allowed
    ("megatron-schedule", {}, {**TP8, "pp": 4, "schedule": "zb-h1"}, {"schedule": "1f1b"}),
    ("megatron-schedule", {}, {**TP8, "pp": 4, "schedule": "zb-v", "vpp": 2}, {"schedule": "interleaved"}),
    ("megatron-schedule", {}, {**TP8, "pp": 4, "schedule": "dualpipe"}, {"schedule": "1f1b"}),
    ("megatron-schedule", {}, {**TP8, "pp": 4, "schedule": "gpipe"}, {"schedule": "1f1b"}),
    ("learned-positions", {"name": GPT, "sequence": 4096}, {**TP8}, {}),
    ("accelerator", {"cluster": "tpu-v5p"}, {**TP8}, {}),
    ("low-precision-shape", {"name": DEEPSEEK, "dtype": "mxfp8", "cluster": "dgx-b200"},
     {"etp": 128, "ep": 4, "tp": 128, "sp": True}, {"tp": 8, "etp": 1}),
    ("low-precision-shape", {"dtype": "fp8", "sequence": 1040}, {"cp": 8}, {"cp": 1}),
    ("sequence-2cp", {"sequence": 4100}, {"cp": 4, "cp_comm": "a2a", "ulysses": 4}, {"cp": 1, "ulysses": 1}),
    ("ulysses-kv-heads", {}, {**TP8, "cp": 2, "cp_comm": "a2a", "ulysses": 2}, {"tp": 4}),
    ("ulysses-kv-heads", {}, {"tp": 4, "cp": 8, "cp_comm": "a2a+p2p", "ulysses": 4}, {"ulysses": 2}),
    ("mla-cp-comm", {"name": DEEPSEEK}, {"cp": 4, "cp_comm": "all_gather", "ep": 8}, {"cp_comm": "p2p"}),
    ("mla-cp-comm", {"name": DEEPSEEK}, {"cp": 4, "cp_comm": "a2a", "ulysses": 4}, {"cp_comm": "p2p", "ulysses": 1}),
    ("window-cp-comm", {"name": windowed()}, {"cp": 4}, {"cp_comm": "all_gather"}),
    ("tp-overlap-needs-sp", {}, {"tp": 8, "tp_overlap": True}, {"sp": True}),
    ("sinks-cp-comm", {"name": "gpt-oss-20b"}, {"cp": 4, "cp_comm": "all_gather"}, {"cp_comm": "a2a", "ulysses": 4}),
    ("overlap-connections", {}, {**TP8, "zero": 2, "tp_overlap": True}, {"zero": 1}),
    ("tp-overlap-multicast", {"cluster": "dgx-a100"}, {**TP8, "tp_overlap": True}, {"tp_overlap": False}),
    ("overlap-connections", {"name": MIXTRAL}, {"tp": 2, "sp": True, "ep": 8, "ep_overlap": True, "tp_overlap": True},
     {"tp_overlap": False}),
    ("tp-overlap-domain", {}, {"tp": 16, "sp": True, "tp_overlap": True}, {"tp": 8}),
    ("interleave-microbatches", {"batch": 96}, {**TP8, "pp": 4, **WEAVE}, {"tp": 16}),
    ("recompute-chunks", {}, {**TP8, "pp": 4, **WEAVE, "recompute": "full", "recompute_layers": 3},
     {"recompute_layers": 4}),
    ("recompute-some", {}, {**TP8, "recompute": "full", "recompute_layers": 0}, 
     {"recompute": "none", "recompute_layers": -1}),
    ("recompute-one-number", {}, {**TP8, "pp": 4, "recompute": "full", "recompute_per_stage": (1, 2, 3, 4)},
     {"recompute_per_stage": (2, 2, 2, 2)}),
    ("recompute-one-number", {}, {**TP8, "pp": 2, "recompute": "full", "layers_per_stage": (39, 41),
                                  "recompute_per_stage": (39, 38)}, {"recompute_per_stage": (39, 41)}),
    ("moe-tp-needs-sp", {"name": MIXTRAL}, {"tp": 2, "ep": 8}, {"sp": True}),
    ("ep-overlap-pipeline", {"name": MIXTRAL}, {"pp": 4, "ep": 8, "ep_overlap": True}, {**WEAVE}),
    ("ep-overlap-recompute", {"name": MIXTRAL}, {"ep": 8, "ep_overlap": True, "recompute": "full"},
     {"recompute": "none"}),
    ("ep-overlap-dispatcher", {"name": MIXTRAL, "changes": {"moe_dispatcher": "allgather"}},
     {"ep": 8, "ep_overlap": True}, {"ep_overlap": False}),
    ("ep-overlap-dtype", {"name": MIXTRAL, "dtype": "fp32"}, {"ep": 8, "ep_overlap": True}, {"ep_overlap": False}),
    ("fsdp-pipeline", {}, {"zero": 3, "pp": 2}, {"pp": 1}),
    ("fsdp-pipeline", {}, {"zero": 2, "pp": 2}, {"zero": 1}),
    ("fsdp-rank-order", {}, {"zero": 3, "rank_order": "tp-cp-ep-pp-dp"}, {"zero": 1}),
    ("fsdp-optimizer", {"optimizer": "muon"}, {"zero": 2}, {"zero": 1}),
    ("fsdp-ep-overlap", {"name": MIXTRAL}, {"ep": 8, "zero": 3, "ep_overlap": True}, {"zero": 1}),
    ("zero-group-experts", {"name": MIXTRAL}, {"ep": 8, "zero_group": 4}, {"zero_group": 8}),
    ("zero-group-muon", {"optimizer": "muon"}, {**TP8, "zero_group": 8}, {"zero_group": 0}),
    ("offload-optimizer", {"optimizer": "sgd"}, {**TP8, "offload_optimizer": 0.5}, {"offload_optimizer": 0.0}),
    ("offload-optimizer", {}, {**TP8, "zero": 0, "offload_optimizer": 0.5}, {"zero": 1}),
    ("offload-activations-fsdp", {}, {"zero": 3, "offload_activations": True}, {"zero": 1}),
    ("offload-activations-graphs", {"changes": {"cuda_graphs": True}}, {**TP8, "offload_activations": True},
     {"offload_activations": False}),
    ("precision-aware-zero", {"optimizer": "adam_8bit"}, {**TP8, "zero": 0}, {"zero": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "given", "settings", "change"), CASES)
def test_refused_by_its_rule_alone_and_allowed_after_the_change(
    rule: str, given: dict[str, Any], settings: dict[str, Any], change: dict[str, Any]
) -> None:
    p = problem(**given)
    refused = fitted(p, **settings)
    assert rule in [v.rule for v in MEGATRON.violations(p, refused)]
    with pytest.raises(InputError, match=rule):
        MEGATRON.render(p, refused)
    if change:
        assert MEGATRON.violations(p, fitted(p, **{**settings, **change})) == []


def test_there_are_at_least_twenty_and_nearly_every_rule_is_among_them() -> None:
    assert len(CASES) >= 20
    # expert-bias and ep-overlap-mtp have tests of their own: no preset has such a model.
    assert {rule.name for rule in megatron_rules()} - {case[0] for case in CASES} == {"expert-bias", "ep-overlap-mtp"}


def test_experts_with_biases_are_not_divided() -> None:
    spec = model(MIXTRAL)
    (kind,) = spec.kinds
    assert kind.moe is not None
    biased = replace(spec, kinds=(replace(kind, moe=replace(kind.moe, expert=replace(kind.moe.expert, bias=True))),))
    p = problem(biased)
    s = fitted(p, tp=2, sp=True, etp=2)
    assert "expert-bias" in [v.rule for v in MEGATRON.violations(p, s)]
    assert "expert-bias" not in [v.rule for v in MEGATRON.violations(p, replace(s, etp=1))]


def test_overlapped_experts_allow_one_prediction_layer() -> None:
    spec = model(DEEPSEEK)
    s = {"ep": 64, "ep_overlap": True}
    one, two = problem(spec), problem(replace(spec, mtp=spec.mtp * 2))
    assert "ep-overlap-mtp" not in [v.rule for v in MEGATRON.violations(one, fitted(one, **s))]
    (found,) = [v for v in MEGATRON.violations(two, fitted(two, **s)) if v.rule == "ep-overlap-mtp"]
    assert found.message.endswith("the model has 2")
    untrained = problem(replace(spec, mtp=spec.mtp * 2), train_mtp=False)
    assert MEGATRON.violations(untrained, fitted(untrained, **s)) == []


def test_the_nearest_number_of_microbatches_is_named() -> None:
    p = problem(batch=96)
    (found,) = MEGATRON.violations(p, fitted(p, **TP8, pp=4, **WEAVE))
    assert (
        found.message
        == "interleaving needs m to be a multiple of pp = 4, not 6; the nearest that divides the batch is 4"
    )

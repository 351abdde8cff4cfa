from dataclasses import replace

import pytest

from shardwise.cli import words
from shardwise.costmodel.strategy import CP_COMMS, SCHEDULES, Strategy

DENSE = Strategy(tp=8, sp=True, pp=4, vpp=5, schedule="interleaved", dp=16, num_microbatches=64)


def test_a_dense_layout():
    assert words.layout(DENSE) == (
        "TP 8 + SP · CP 1 · PP 4 × VPP 5 (interleaved 1F1B) · DP 16 · ZeRO-1 · micro-batch 1 × 64 · no recompute"
    )


def test_experts_are_said_where_there_are_any():
    assert "EP 1 × ETP 1 (EDP 128)" in words.layout(DENSE, moe=True)
    assert "EP 64 × ETP 1 (EDP 2)" in words.layout(replace(DENSE, ep=64))
    assert "EP64" in words.short_layout(replace(DENSE, ep=64))


def test_hybrid_context_parallelism_names_both_degrees():
    assert "CP 8 (Ulysses × ring 2 × 4)" in words.layout(replace(DENSE, cp=8, cp_comm="a2a+p2p", ulysses=2))


@pytest.mark.parametrize("cp_comm", CP_COMMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_kind_has_a_word(cp_comm, schedule):
    assert words.layout(replace(DENSE, cp=2, cp_comm=cp_comm, schedule=schedule))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "no recompute"),
        ({"recompute": "selective"}, "selective recompute"),
        ({"recompute": "full"}, "full recompute"),
        ({"recompute": "full", "recompute_layers": 3}, "full recompute of 3 layers per rank"),
        ({"recompute": "full", "recompute_per_stage": (3, 3, 2, 2)}, "full recompute of 3 × 2, 2 × 2 layers"),
    ],
)
def test_recompute(changes, text):
    assert words.recompute(replace(DENSE, **changes)) == text


def test_sharding():
    assert "FSDP (ZeRO-3) in groups of 8" in words.layout(replace(DENSE, zero=3, zero_group=8))
    assert "no ZeRO" in words.layout(replace(DENSE, zero=0))
    assert "activations on the host" in words.layout(replace(DENSE, offload_activations=True))
    assert "25% of the optimizer on the host" in words.layout(replace(DENSE, offload_optimizer=0.25))


def test_split_folds_repeats():
    assert words.split((7, 8, 8, 8, 7)) == "7, 8 × 3, 7"


def test_overlaps():
    assert words.overlaps(replace(DENSE, tp_overlap=True)) == "TP, DP"
    assert words.overlaps(replace(DENSE, dp_overlap=False)) == "none"

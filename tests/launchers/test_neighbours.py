"""Layouts near a layout."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import get_launcher, universal_rules
from shardwise.launchers.neighbours import distance, moves, nearest_legal, pairs, settle
from shardwise.launchers.rule import violations

from .problems import GPT, LLAMA, MIXTRAL, fitted, problem

MEGATRON = get_launcher("megatron")


def test_a_change_brings_what_follows_from_it() -> None:
    p = problem(LLAMA, gpus=64, batch=128)
    s = fitted(p, tp=4, sp=True, pp=2, vpp=4, schedule="interleaved", tp_overlap=True)
    assert settle(p, s, {"tp": 1}) == fitted(p, pp=2, vpp=4, schedule="interleaved")
    assert settle(p, s, {"pp": 1}) == fitted(p, tp=4, sp=True, tp_overlap=True)
    assert settle(p, s, {"vpp": 1}) == fitted(p, tp=4, sp=True, pp=2, tp_overlap=True)
    assert settle(p, fitted(p), {"tp": 2}) == fitted(p, tp=2, sp=p.runtime.default_sp)
    assert settle(p, s, {"tp": 3}) is None and settle(p, s, {"micro_batch_size": 5}) is None


def test_an_explicit_split_stays_while_the_pipeline_does() -> None:
    p = problem(LLAMA, gpus=64, batch=128)
    s = fitted(p, tp=4, sp=True, pp=4, layers_per_stage=(19, 21, 21, 19))
    kept = settle(p, s, {"recompute": "selective"})
    assert kept is not None and kept.layers_per_stage == (19, 21, 21, 19)
    anew = settle(p, s, {"pp": 8})
    assert anew is not None and anew.layers_per_stage is None


@pytest.mark.parametrize("name", [LLAMA, MIXTRAL])
@pytest.mark.parametrize("recompute", [{}, {"recompute": "full", "recompute_layers": 3}])
def test_moves_fill_the_gpus_and_the_batch(name: str, recompute: dict[str, Any]) -> None:
    p = problem(name, gpus=32, batch=64)
    s = fitted(p, tp=2, sp=True, pp=2, **recompute)
    near = moves(p, s)
    assert len(near) > 20 and len({m.strategy for m in near}) == len(near)
    arithmetic = [r for r in universal_rules() if r.name in ("world-size", "global-batch", "positive-degrees")]
    for move in near:
        assert len(move.changes) == 1 and move.strategy != s
        assert violations(p, move.strategy, arithmetic) == []
    two = pairs(p, s)
    assert len(two) > len(near) and all(len(m.changes) == 2 for m in two)


def test_the_nearest_legal_layout_is_legal_and_near() -> None:
    p = problem(GPT, gpus=96, batch=96, sequence=2048)
    odd = Strategy(tp=5, sp=True, pp=4, dp=4, num_microbatches=24)
    near = nearest_legal(p, MEGATRON, odd)
    assert near is not None and MEGATRON.violations(p, near) == []
    # 4 and 6 divide the heads and, with pp = 4, the GPUs; 6 is nearer, but does not divide the sequence, as sp asks.
    assert near.tp == 4 and near.pp == 4 and near.sp
    assert distance(near, near) == 0.0 and distance(Strategy(tp=2), Strategy(tp=8)) == 2.0


def test_a_layout_that_only_lacks_the_arithmetic_keeps_its_degrees() -> None:
    p = problem(LLAMA, gpus=512)
    near = nearest_legal(p, MEGATRON, Strategy(tp=8, sp=True, pp=4, dp=3))
    assert near == fitted(p, tp=8, sp=True, pp=4)


def test_there_may_be_none() -> None:
    p = problem(GPT, gpus=64, batch=64, sequence=4096)  # more tokens than learned positions: no layout helps
    assert nearest_legal(p, MEGATRON, fitted(p, tp=8)) is None

"""Memory against published formulas and tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.layers import layer_table
from shardwise.costmodel.model import Extra, LayerKind, ModelSpec
from shardwise.costmodel.schedule import in_flight
from shardwise.costmodel.strategy import Strategies, Strategy

from . import cases


def bare(parameters: int) -> ModelSpec:
    """A model of exactly this many parameters and nothing else that takes memory."""
    kind = LayerKind("bare", extras=(Extra("all", parameters - 1),))
    return ModelSpec("bare", 1, 1, (kind,), (0,), tied_embeddings=True)


# Rajbhandari et al., ZeRO (arXiv 1910.02054), figure 1 and table 1: K = 12 bytes of optimizer states per parameter,
# 2 bytes of weights and of gradients; gigabytes are 1e9 bytes.
ZERO_PAPER = [
    (7.5e9, 64, (120.0, 31.4, 16.6, 1.88)),
    (1e12, 1024, (16000.0, 4011.0, 2013.0, 15.6)),
    (1e12, 64, (16000.0, 4187.0, 2218.0, 250.0)),
    (128e9, 256, (2048.0, 518.0, 263.0, 8.0)),
]


@pytest.mark.parametrize(("parameters", "dp", "published_gb"), ZERO_PAPER)
def test_model_states_reproduce_the_zero_paper(parameters, dp, published_gb):
    problem = cases.problem(
        bare(int(parameters)), num_gpus=dp, batch=dp, sequence=1, runtime="deepspeed-zero",
        param_memory_bytes=2.0, grad_memory_bytes=2.0, master_weights=True,
    )  # fmt: skip
    for stage, expected in enumerate(published_gb):
        parts = estimate(problem, Strategy(dp=dp, zero=stage)).memory_parts_bytes
        states = sum(parts[name] for name in ("weights", "gradients", "optimizer")) / 1e9
        assert states == pytest.approx(expected, rel=0.005)


def saved(problem, **fields) -> float:
    """Bytes one layer of the first kind keeps for one micro-batch."""
    return float(layer_table(problem, Strategies.of([Strategy(**fields)])).saved[0, 0])


@pytest.mark.parametrize(("hidden", "heads", "sequence"), [(6144, 64, 2048), (12288, 96, 2048), (25600, 160, 2048)])
@pytest.mark.parametrize("tp", [1, 8])
def test_activations_reproduce_korthikanti(hidden, heads, sequence, tp):
    """Korthikanti et al. (arXiv 2205.05198): equation 1, table 2 rows for TP, TP + SP and selective recomputation."""
    plain = cases.problem(
        cases.gpt(hidden, 2, heads), sequence=sequence, runtime="megatron-2021",
        attention_kernel="unfused", dropout=True, activation_scale=1.0,
    )  # fmt: skip
    unit = sequence * hidden
    scores = 5 * heads * sequence / hidden
    assert saved(plain, tp=tp) == pytest.approx(unit * (10 + 24 / tp + scores / tp), rel=1e-6)
    assert saved(plain, tp=tp, sp=tp > 1) == pytest.approx(unit * (34 + scores) / tp, rel=1e-6)
    table = layer_table(plain, Strategies.of([Strategy(tp=tp, sp=tp > 1, recompute="selective")]))
    assert table.saved_selective[0, 0] == pytest.approx(unit * 34 / tp, rel=1e-6)
    assert table.boundary[0, 0] == pytest.approx(2 * unit / tp, rel=1e-6)


def test_interleaving_holds_more_activations():
    """Korthikanti et al., section 4.2.3: the first stage keeps L(1 + (p-1)/(pv)) layers interleaved."""
    p, v = 8, 3
    held = in_flight("interleaved", p, v, np.array([10_000]))[0, 0] / p
    assert held == pytest.approx(1 + (p - 1) / (p * v))
    assert in_flight("1f1b", p, 1, np.array([10_000]))[:, 0].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


def test_zb_h1_and_zb_v_keep_the_memory_of_1f1b():
    """Qi et al. (arXiv 2401.10241, table 1; arXiv 2405.15362, table 1): both peak at p micro-batches like 1F1B."""
    for schedule, v in (("zb-h1", 1), ("zb-v", 2)):
        assert in_flight(schedule, 8, v, np.array([64])).max() == 8


LAYOUTS = st.builds(
    Strategy,
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 8]),
    zero=st.integers(0, 3),
    micro_batch_size=st.sampled_from([1, 2]),
    num_microbatches=st.sampled_from([1, 4, 16]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)


@settings(max_examples=60, deadline=None)
@given(LAYOUTS)
def test_parts_sum_and_levers_never_add_memory(strategy):
    from dataclasses import replace

    problem = cases.problem(num_gpus=strategy.world_size, batch=1024)
    base = estimate(problem, strategy)
    assert sum(base.memory_parts_bytes.values()) == pytest.approx(base.peak_memory_bytes)
    assert max(base.memory_by_rank_bytes) == base.peak_memory_bytes
    assert len(base.memory_by_rank_bytes) == strategy.pp

    def held(s):
        e = estimate(problem, s)
        return max(sum(v for k, v in parts.items() if k != "gathered_parameters") for parts in e.memory_parts_by_rank)

    if strategy.zero < 3:
        assert held(replace(strategy, zero=strategy.zero + 1)) <= held(strategy) * (1 + 1e-9)
    if strategy.recompute == "none":
        assert held(replace(strategy, recompute="selective")) <= held(strategy) * (1 + 1e-9)
    assert held(replace(strategy, offload_optimizer=1.0)) <= held(strategy) * (1 + 1e-9)

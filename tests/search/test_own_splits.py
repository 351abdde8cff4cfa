"""Splits that a framework makes by itself: the search against plain enumeration with exactly those."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.base import Launcher
from shardwise.launchers.neighbours import nearest_legal
from shardwise.launchers.own_splits import splits_of, with_own_split
from shardwise.launchers.rule import allowed
from shardwise.search.closing import best_split
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search
from shardwise.search.space import Space

from .small import divisors, every_mesh, launcher, problem

MICRO_BATCH = 1
"""The one size that is tried: a split has nothing to do with it."""


def every_step(p: Problem, who: Launcher, own, **pins) -> dict[Strategy, float]:
    """The step of every layout that fits, pipelines with each split of ``own``; no offload, no groups of shards."""
    layouts = []
    for tp, cp, pp, dp, mbs, m in every_mesh(p):
        # Tensor parallelism is searched within a host.
        if cp > 1 or tp > 8 or any(pins.get(name, value) != value for name, value in (("tp", tp), ("pp", pp))):
            continue
        if mbs != MICRO_BATCH:
            continue
        mesh = Strategy(tp=tp, pp=pp, dp=dp, micro_batch_size=mbs, num_microbatches=m)
        for sp, overlap, schedule, zero, mode in itertools.product(
            (False, True), (False, True), ("1f1b", "gpipe"), (0, 1), ("none", "full")
        ):
            s = replace(mesh, sp=sp, tp_overlap=overlap, schedule=schedule, zero=zero, recompute=mode)
            layouts += [replace(s, layers_per_stage=split) for split in (own(p, tp, pp) if pp > 1 else (None,))]
    fine = allowed(p, Strategies.of(layouts), who.search_rules)
    answers = [estimate(p, s) for s, may in zip(layouts, fine, strict=True) if may]
    return {e.strategy: e.step_time_s for e in answers if e.fits}


def agrees(p: Problem, who: Launcher, **pins) -> Strategy | None:
    steps = every_step(p, who, who.own_splits, **pins)
    for splits in (True, False):
        found = search(Space(p, who, Constraints.of(pins={**pins, "micro_batch_size": MICRO_BATCH})), splits=splits)
        assert (found.best is None) == (not steps)
        if found.best is not None:
            assert found.step_s == pytest.approx(min(steps.values()), rel=1e-9)
            assert not who.violations(p, found.best)
            assert found.stopped_by is None
    return found.best


@pytest.mark.parametrize(
    ("model", "gpus", "memory_gib", "pins", "split"),
    [
        ("llama-3.2-1b", 8, None, {}, None),
        ("llama-3.2-1b", 8, 6.0, {"tp": 2}, (5, 5, 5, 1)),
        ("llama-3.2-1b", 8, 12.0, {"tp": 1}, (10, 6)),
        ("llama-3.1-8b", 16, 40.0, {"tp": 1}, (9, 9, 8, 6)),
        ("llama-3.1-8b", 8, None, {"pp": 8}, None),
        ("llama-2-7b", 16, 20.0, {}, (9, 8, 8, 7)),
        ("llama-2-7b", 16, 8.0, {}, None),
    ],
)
def test_nanotrons_pipelines_are_searched_with_its_own_division(model, gpus, memory_gib, pins, split) -> None:
    p = problem(ModelSpec.from_preset(model), gpus, 2 * gpus, 2048, memory_gib, "dgx-h100", "nanotron")
    best = agrees(p, launcher("nanotron"), **pins)
    if split is not None:
        assert best is not None and best.layers_per_stage == split


def _two(p: Problem, tp: int, pp: int) -> tuple[tuple[int, ...], ...]:
    """Two made-up divisions, neither of them even; none where a stage would be empty."""
    layers = p.model.num_layers
    first = even_split(layers - 2, pp)
    if layers < 2 * pp or pp > 4:
        return ()
    return ((first[0] + 2, *first[1:]), (*first[:-1], first[-1] + 2))


@pytest.mark.parametrize(("memory_gib", "pp"), [(None, 2), (None, 4), (12.0, 2), (None, 8)])
def test_of_several_splits_the_better_is_taken(memory_gib, pp) -> None:
    made_up = replace(launcher("nanotron"), own_splits=_two)
    p = problem(ModelSpec.from_preset("llama-3.2-1b"), 8, 32, 2048, memory_gib, "dgx-h100", "nanotron")
    best = agrees(p, made_up, pp=pp)
    assert (best is None) == (pp == 8)
    if best is not None:
        # The head costs as much as several layers: the last stage is not the one that takes two more.
        assert best.layers_per_stage == _two(p, best.tp, pp)[0]


def test_a_layout_is_brought_to_the_launchers_split() -> None:
    nanotron = launcher("nanotron")
    p = problem(ModelSpec.from_preset("llama-3.1-8b"), 16, 64, 4096, None, "dgx-h100", "nanotron")
    even = Strategy(pp=4, dp=4, num_microbatches=16)
    (own,) = splits_of(nanotron, p, even) or ()
    assert nanotron.violations(p, even) and not nanotron.violations(p, own)
    assert with_own_split(nanotron, p, even) == own and with_own_split(launcher("generic"), p, even) == even
    assert nearest_legal(p, nanotron, even) == own
    answer = best_split(p, nanotron, even, gap=0.0)
    assert answer is not None and answer.strategy == own
    for pp in divisors(16):
        s = Strategy(pp=pp, dp=16 // pp, num_microbatches=4 * pp)
        near = nearest_legal(p, nanotron, s)
        assert near is not None and not nanotron.violations(p, near)


@pytest.mark.parametrize(
    ("model", "gpus", "memory_gib", "split"),
    [
        ("llama-3.1-8b", 16, 12.0, None),
        ("llama-3.1-8b", 16, 16.0, (2, 5, 5, 5, 5, 4, 4, 2)),
        ("llama-3.1-8b", 16, 20.0, (7, 9, 9, 7)),
        ("llama-3.1-8b", 16, 30.0, (8, 9, 9, 6)),
        ("gemma-2-9b", 8, 40.0, (8, 13, 13, 8)),
    ],
)
def test_deepspeeds_partition_methods_are_weighed_against_each_other(model, gpus, memory_gib, split) -> None:
    """By memory and step the best is a split by parameters here and a uniform one there: as enumeration has it."""
    who = launcher("deepspeed")
    p = problem(ModelSpec.from_preset(model), gpus, 4 * gpus, 2048, memory_gib, "dgx-h100", "deepspeed-zero")
    fixed = {"tp": 1, "cp": 1, "zero": 1, "micro_batch_size": MICRO_BATCH, "offload_optimizer": 0.0}
    steps = {}
    for pp, mode, hidden in itertools.product(divisors(gpus), ("none", "full"), (False, True)):
        s = Strategy(pp=pp, dp=gpus // pp, num_microbatches=4 * pp, recompute=mode, dp_overlap=hidden)
        for one in splits_of(who, p, s) or (() if pp > 1 else (s,)):
            if not who.violations(p, one) and (answer := estimate(p, one)).fits:
                steps[one] = answer.step_time_s
    found = search(Space(p, who, Constraints.of(pins=fixed)))
    assert (found.best is None) == (not steps) == (split is None)
    if found.best is not None:
        assert found.step_s == pytest.approx(min(steps.values()), rel=1e-9)
        assert found.best.layers_per_stage == split and not who.violations(p, found.best)

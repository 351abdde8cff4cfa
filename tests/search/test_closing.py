"""What closing one strategy after another leaves: wishes kept, bounds of one not taken for another's, nothing lost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.search import exact
from shardwise.search.bounds import split_bounds
from shardwise.search.closing import Band, Closer, Unit, best_split
from shardwise.search.constraints import Constraints
from shardwise.search.exact import Found, search
from shardwise.search.opening import candidates, open_candidates
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space

from .small import compositions, dense_model, launcher, problem

QUIET = {"fixed_s_per_step": 0.0, "host_s_per_layer": 0.0, "host_s_per_microbatch": 0.0}


def closed(p, base, modes):
    """One search's knowledge after it closed a strategy with each mode of recomputation, and the last one's unit."""
    pins = {"pp": base.pp, "tp": 1, "cp": 1, "schedule": base.schedule, "vpp": base.vpp}
    space = Space(p, launcher("generic"), Constraints.of(pins=pins))
    found = Found(space, candidates(space))
    closer = Closer(found, Clock(None))
    for mode in modes:
        rows = Strategies.of([replace(base, recompute=mode)])
        (unit,) = closer.tightened([Unit.at(rows, split_bounds(p, rows, np.zeros(1), found.step_s), 0)])
        if unit is not None:
            closer.close(Band(unit, effort=1))
    return found, unit


def test_what_does_not_fit_bounds_nothing_that_recomputes():
    p = problem(dense_model(18, 1024, 8), gpus=4, batch=16, sequence=2048, memory_gib=3.9, **QUIET)
    base = Strategy(pp=4, vpp=2, schedule="interleaved", num_microbatches=16)
    alone, _ = closed(p, base, ["full"])
    both, unit = closed(p, base, ["none", "full"])
    assert alone.best.recompute == "full" and alone.best.recompute_per_stage
    assert both.step_s <= alone.step_s * (1.0 + TOLERANCE)
    assert unit is None or unit.bound_s <= alone.step_s


@pytest.mark.parametrize("who", ["generic", "megatron"])
@pytest.mark.parametrize("wished", ["2", "1|2|3", "-1"])
@pytest.mark.parametrize("memory", [2.0, 3.2])
def test_wishes_about_recomputed_layers_hold_for_uneven_splits(who, wished, memory):
    layers = 7
    p = problem(dense_model(layers, 1024, 8), gpus=2, batch=8, sequence=2048, memory_gib=memory)
    pins = {"pp": 2, "schedule": "1f1b|interleaved", "recompute": "full", "recompute_layers": wished, "zero": 1}
    space = Space(p, launcher(who), Constraints.of(pins={**pins, "offload": 0, "micro_batch_size": 1}))
    found = search(space)
    numbers = [int(n) for n in wished.split("|")]
    base = Strategy(pp=2, num_microbatches=8, recompute="full")
    some = [
        estimate(p, replace(base, layers_per_stage=split, recompute_layers=n))
        for split in compositions(layers, 2) for n in numbers
    ]  # fmt: skip
    assert found.step_s <= min((e.step_time_s for e in some if e.fits), default=math.inf) * (1.0 + TOLERANCE)
    if found.best is not None:
        assert space.allows(Strategies.of([found.best])).all()
        assert found.best.recompute_per_stage is None and found.best.recompute_layers in numbers
        again = estimate(p, found.best)
        assert again.fits and again.step_time_s == pytest.approx(found.step_s, rel=1e-9)


def test_who_recomputes_all_layers_or_none_splits_them_unevenly():
    """The second rank has the head of a large vocabulary: the even split is not the quickest."""
    p = problem(dense_model(7, 1024, 8, vocabulary=120_000), gpus=2, batch=8, sequence=2048, runtime="torchtitan")
    s = Strategy(pp=2, num_microbatches=8, zero=2, recompute="full")
    every = [estimate(p, replace(s, layers_per_stage=split)) for split in compositions(7, 2)]
    answer = best_split(p, launcher("torchtitan"), s, gap=0.0)
    assert answer.strategy.recompute_layers == -1 and answer.strategy.recompute_per_stage is None
    assert answer.strategy.layers_per_stage not in ((4, 3), (3, 4))
    assert answer.step_time_s == pytest.approx(min(e.step_time_s for e in every if e.fits), rel=1e-9)


class Inexact:
    """Closes nothing: the first strategy has to wait, and by then as many splits are solved as a search may solve."""

    solved = 0

    def tightened(self, units):
        return units

    def is_exact(self, strategy):
        self.solved = exact.MAX_SOLVES
        return False


def test_a_search_that_stops_keeps_the_bounds_of_what_waits():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=8, sequence=2048)
    space = Space(p, launcher("megatron"), Constraints.of(pins={"pp": 2}))
    c = candidates(space)
    found = Found(space, c)
    opened, bounds = exact._open_pipelines(found, open_candidates(space, c, np.arange(len(c))))
    opened, bounds = (x.take(np.array([0, len(opened) - 1])) for x in (opened, bounds))
    exact._close(found, Inexact(), opened, Clock(None), lambda *_: None, most=1)
    assert found.stopped_by == "split limit"
    assert found.open_bound_s == bounds.bound_s[0] < bounds.bound_s[1]


def test_a_time_limit_that_leaves_bands_is_told():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=8, sequence=2048)
    space = Space(p, launcher("megatron"), Constraints.of(pins={"pp": 2}))
    found = Found(space, candidates(space), step_s=2.0)
    closer = Closer(found, Clock(0.0))
    closer.bands = [Band(Unit(Strategy(pp=2), bound, 0.5, 0.1, 1.0), below=1e9) for bound in (1.5, 1.2)]
    exact._close_bands(found, closer, closer.clock, lambda *_: None)
    assert found.open_bound_s == 1.2 and found.stopped_by == "time limit"

"""The space: every strategy is in it once, rules are counted, and its size does not cost memory."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.costmodel.strategy import DIMENSIONS, Strategies
from shardwise.search.axes import BREADTHS, SWITCHES
from shardwise.search.constraints import Constraints
from shardwise.search.opening import candidates, join, open_candidates
from shardwise.search.space import BUDGET, Space, fastest_switches

from .small import every_strategy, launcher, moe_model, problem


def walk(p, who="megatron", **wishes):
    space = Space(p, launcher(who), Constraints.of(**wishes))
    blocks = list(space.blocks())
    return space, Strategies(**join(blocks)) if blocks else Strategies.empty()


def meshes(strategies):
    names = (
        "tp",
        "cp",
        "pp",
        "dp",
        "ep",
        "etp",
        "micro_batch_size",
        "schedule",
        "vpp",
        "zero",
        "sp",
        "cp_comm",
        "ulysses",
    )
    return {tuple(int(getattr(s, n)[i]) for n in names) for s in [strategies] for i in range(len(s))}


@pytest.mark.parametrize("who", ["generic", "megatron"])
@pytest.mark.parametrize("model", [None, moe_model(4)])
def test_candidates_are_the_meshes_of_all_strategies(who, model):
    p = problem(model, gpus=4, batch=4)
    _, rows = walk(p, who, pins={"zero_group": 0})
    assert meshes(rows) == meshes(Strategies.of(every_strategy(p, launcher(who))))


def test_no_candidate_is_there_twice():
    _, rows = walk(problem(moe_model(4), gpus=8, batch=8))
    columns = np.stack([np.asarray(getattr(rows, n)).astype(int) for n in DIMENSIONS])
    assert np.unique(columns, axis=1).shape == columns.shape


@pytest.mark.parametrize("who", ["generic", "megatron"])
def test_opened_strategies_satisfy_every_rule(who):
    p = problem(moe_model(4), gpus=4, batch=4)
    space = Space(p, launcher(who), Constraints())
    opened = open_candidates(space, found := candidates(space), np.arange(len(found)))
    assert len(opened) and launcher(who).allowed(p, opened.strategies).all() and space.allows(opened.strategies).all()


def test_counts_add_up():
    space, rows = walk(problem(gpus=8, batch=16), pins={"tp": 2}, most={"cp": 1})
    tally = space.tally
    assert list(tally.removed)[:2] == ["pin tp=2", "max cp=1"]
    assert tally.removed["pin tp=2"] > 0 and tally.candidates == len(rows)
    assert tally.considered - sum(tally.removed.values()) >= len(rows)
    assert set(rows.tp.tolist()) == {2} and set(rows.cp.tolist()) == {1}


def test_wishes_remove_what_they_say_and_nothing_else():
    p = problem(gpus=8, batch=16)
    _, free = walk(p)
    _, pinned = walk(p, pins={"tp": "1|4"}, bans={"cp_comm": "a2a"})
    keep = np.isin(free.tp, (1, 4)) & (free.cp_comm != 2)
    assert meshes(pinned) == meshes(free.take(keep))


def test_a_pin_reaches_beyond_the_default_axes():
    p = problem(gpus=16, batch=16)
    tiers = p.cluster.tiers
    small = replace(p, cluster=replace(p.cluster, tiers=(replace(tiers[0], size=2), *tiers[1:])))
    space, rows = walk(small)
    assert rows.tp.max() == 2 and any("tp is searched up to 2" in a for a in space.assumptions())
    space, rows = walk(small, pins={"tp": 4})
    assert set(rows.tp.tolist()) == {4} and not any(a.startswith("tp ") for a in space.assumptions())


def test_rules_do_not_depend_on_when_they_are_applied():
    p = problem(moe_model(4), gpus=4, batch=4)
    who = launcher("megatron")
    _, rows = walk(p)
    late = [r for r in who.rules if r.name.startswith(("recompute", "offload", "ep-overlap-recompute"))]
    early = [r for r in who.rules if r not in late]
    assert all(r.check(p, rows).all() for r in early)


@pytest.mark.parametrize(
    ("codes", "kept"),
    [([0, 1, 3], [False, False, True]), ([1, 2], [True, True]), ([0, 4], [False, True]), ([0], [True])],
)
def test_only_undominated_switches_stay(codes, kept):
    bits = np.array(codes)
    rows = {"tp": np.full(len(codes), 2), **{n: (bits >> i & 1).astype(bool) for i, n in enumerate(SWITCHES)}}
    assert fastest_switches(rows).tolist() == kept


def test_breadth_is_reduced_openly_and_not_by_wishes():
    p = problem(moe_model(24, heads=16, experts=64), gpus=3840, batch=15360 * 4, sequence=16384)
    free = Space(p, launcher("generic"), Constraints())
    assert free.breadth.name != BREADTHS[0].name
    assert any(free.breadth.name in a for a in free.assumptions())
    pinned = Space(p, launcher("generic"), Constraints.of({"tp": 2, "pp": 1}))
    assert pinned.breadth == free.breadth
    assert sum(len(b["tp"]) for b in free.blocks()) < 4 * BUDGET

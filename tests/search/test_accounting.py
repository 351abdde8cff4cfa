"""What a proof says was considered and removed, against plain loops over the axes that the pages name."""

import itertools

import pytest

from shardwise.costmodel.strategy import CP_COMMS, Strategies, Strategy
from shardwise.launchers.capability import FULL_CAPABILITIES
from shardwise.launchers.rule import allowed
from shardwise.search.axes import KNOBS, SWITCHES
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search
from shardwise.search.space import Space

from .small import dense_model, divisors, every_mesh, experts, launcher, moe_model, pipelines, problem


def contexts(cp, inner):
    for kind in CP_COMMS if cp > 1 else ("p2p",):
        several = [d for d in inner if 1 < d < cp and cp % d == 0]
        yield from ((kind, u) for u in {"a2a": [cp], "a2a+p2p": several}.get(kind, [1]))


def everything(p, who):
    """Every setting of every dimension, unfiltered, for a job within one node: no group of shards is smaller."""
    can, layers = who.capabilities, p.model.num_layers
    offloads = [v for v in (0.0, 1.0) if v in can["offload_optimizer"]]
    for tp, cp, pp, dp, mbs, m in every_mesh(p):
        held = -(-layers // pp)
        settings = [("none", -1), ("selective", -1), *(("full", n) for n in range(1, held)), ("full", -1)]
        settings = [s for s in settings if s[0] in can["recompute"]]
        if len(can["recompute_layers"] if isinstance(can["recompute_layers"], tuple) else "any") == 1:
            settings = [s for s in settings if s[1] == -1]
        cells = [(ep, etp) for ep, etp in experts(p, tp) if tp * cp * dp % (ep * etp) == 0]
        cells = [(ep, etp) for ep, etp in cells if ep in can["ep"] and etp in can["etp"]]
        switches = [
            [v for v in (False, True) if v in can[name] and (not v or fits)]
            for name, fits in zip(SWITCHES, (tp > 1, True, p.model.is_moe), strict=True)
        ]
        lines = (
            list(pipelines(pp, layers, tuple(can["schedule"]))), cells, [z for z in range(4) if z in can["zero"]],
            [s for s in (False, True) if s in can["sp"] and (not s or tp > 1)], list(contexts(cp, divisors(cp))),
            list(itertools.product(*switches)), list(itertools.product(settings, offloads)),
        )  # fmt: skip
        for (schedule, vpp), (ep, etp), zero, sp, (kind, u), on, ((mode, again), offload) in itertools.product(*lines):
            yield Strategy(
                tp=tp, cp=cp, pp=pp, dp=dp, micro_batch_size=mbs, num_microbatches=m, schedule=schedule, vpp=vpp, ep=ep,
                etp=etp, zero=zero, sp=sp, cp_comm=kind, ulysses=u, recompute=mode, recompute_layers=again,
                offload_optimizer=offload, **dict(zip(SWITCHES, on, strict=True)),
            )  # fmt: skip


@pytest.mark.parametrize("who", ["generic", "megatron"])
@pytest.mark.parametrize("model", [dense_model(2), moe_model(2, experts=2)])
@pytest.mark.parametrize("wishes", [{}, {"pins": {"tp": "1|2"}, "bans": {"zero": 3}, "most": {"micro_batch_size": 1}}])
def test_considered_and_removed_equal_enumeration(who, model, wishes):
    p = problem(model, gpus=4, batch=4, sequence=1024, memory_gib=1.0)
    space = Space(p, launcher(who), Constraints.of(**wishes))
    found = search(space, splits=False)
    proof = found.proof(0.0)
    rows = list(everything(p, launcher(who)))
    assert len(set(rows)) == len(rows)
    assert proof.considered == len(rows)
    many = Strategies.of(rows)
    early = [rule for rule in space.rules if rule not in space.late_rules]
    assert sum(proof.removed_by_rule.values()) == len(rows) - int(allowed(p, many, early).sum())
    for name, count in proof.removed_by_rule.items():
        (rule,) = [r for r in space.rules if r.name == name]
        assert 0 < count <= int((~allowed(p, many, [rule])).sum())
    assert proof.considered == sum(proof.removed_by_rule.values()) + proof.evaluated + proof.bounded_out
    assert proof.evaluated <= int(allowed(p, many, early).sum())


@pytest.mark.parametrize("who", ["generic", "megatron", "megatron-deepspeed"])
def test_every_dimension_is_declared_and_searched_or_derived(who):
    """Each dimension has its line in the launcher's table; the space holds it as a column or as a knob."""
    assert set(launcher(who).capabilities) == set(FULL_CAPABILITIES)
    space = Space(problem(dense_model(2), gpus=4, batch=4), launcher(who), Constraints())
    (block, *_) = space.blocks()
    assert {*block, *KNOBS} == set(FULL_CAPABILITIES)

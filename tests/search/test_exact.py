"""The search against plain enumeration, and the properties that no optimum may break."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.strategy import RECOMPUTES, Strategies, Strategy
from shardwise.search.axes import chunk_numbers
from shardwise.search.bounds import split_bounds
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search
from shardwise.search.opening import candidates, open_candidates
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space

from .small import brute_force, dense_model, every_split, every_strategy, launcher, least_shares, moe_model, problem

QUIET = {"fixed_s_per_step": 0.0, "host_s_per_layer": 0.0, "host_s_per_moe_layer": 0.0, "host_s_per_microbatch": 0.0}


def solve(p, who="megatron", splits=True, **wishes):
    return search(Space(p, launcher(who), Constraints.of(**wishes)), splits=splits)


@st.composite
def models(draw):
    layers, hidden = draw(st.integers(2, 6)), draw(st.sampled_from((256, 512, 1024)))
    heads = draw(st.sampled_from((2, 4, 8)))
    if draw(st.booleans()):
        return moe_model(layers, hidden, heads, draw(st.sampled_from((2, 4))), draw(st.integers(0, 1)))
    return dense_model(layers, hidden, heads, tied=draw(st.booleans()))


@st.composite
def problems(draw):
    return problem(
        draw(models()),
        gpus=draw(st.sampled_from((1, 2, 2, 4))),
        batch=draw(st.sampled_from((2, 4, 6, 8))),
        sequence=draw(st.sampled_from((256, 1024, 4096))),
        memory_gib=draw(st.sampled_from((None, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0))),
        cluster=draw(st.sampled_from(("dgx-a100", "dgx-h100"))),
        **{**QUIET, "host_s_per_layer": draw(st.sampled_from((0.0, 2e-4)))},
    )


PINS = (
    {}, {}, {}, {"tp": 2}, {"pp": 2}, {"dp": 2}, {"zero": 1}, {"zero": 3}, {"recompute": "full"},
    {"micro_batch_size": 1},
    {"recompute": "selective", "tp": 1}, {"pp": 2, "schedule": "1f1b"}, {"dp_overlap": False}, {"cp": 2},
)  # fmt: skip


def agrees_with_enumeration(p, who, pins):
    best, strategy = brute_force(p, launcher(who), pins)
    found = solve(p, who, splits=False, pins=pins)
    assert (found.best is None) == (strategy is None)
    if strategy is not None:
        # Groups of ZeRO shards, recomputing some layers with a part of the optimizer offloaded, and virtual stages that
        # do not divide the layers are not enumerated: there the search may be faster, never slower.
        assert found.step_s <= best * (1.0 + 1e-9)
        whole = p.model.num_layers % (found.best.pp * found.best.vpp) == 0
        if found.best.zero_group == 0 and found.best.offload_optimizer in (0.0, 1.0) and whole:
            assert found.step_s == pytest.approx(best, rel=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from(("generic", "megatron")), st.sampled_from(PINS))
def test_the_best_even_split_equals_enumeration(p, who, pins):
    agrees_with_enumeration(p, who, pins)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(), st.sampled_from(("generic", "megatron")), st.sampled_from(PINS))
def test_the_best_of_300_even_splits_equals_enumeration(p, who, pins):
    agrees_with_enumeration(p, who, pins)


REAL = [
    ("llama-3.2-1b", "dgx-a100", 8, {}), ("llama-3.2-3b", "dgx-h100", 8, {}), ("qwen3-0.6b", "dgx-h100", 8, {}),
    ("gpt-2-xl", "dgx-a100", 8, {}), ("qwen2.5-1.5b", "dgx-h100", 16, {"cp": 1}), ("llama-3.1-8b", "dgx-h100", 8, {}),
    ("mistral-7b", "dgx-a100", 16, {"cp": 1}), ("gemma-2-9b", "dgx-h100", 16, {"cp": 1}),
    ("llama-2-13b", "dgx-a100", 32, {"cp": 1, "micro_batch_size": 1}), ("qwen2.5-32b", "dgx-h100", 32, {"tp": 4}),
    ("llama-3.1-70b", "dgx-h100", 64, {"tp": 8, "cp": 1}), ("llama-2-70b", "dgx-a100", 64, {"tp": 8, "cp": 1}),
    ("gpt-3-175b", "dgx-a100", 128, {"tp": 8, "cp": 1}), ("llama-3.1-405b", "dgx-h100", 512, {"tp": 8, "pp": 16}),
    ("mixtral-8x7b", "dgx-h100", 64, {"tp": 1, "pp": 4, "cp": 1}),
    ("qwen3-30b-a3b", "dgx-h100", 32, {"tp": 1, "cp": 1, "pp": 2}),
    ("deepseek-v2-lite", "dgx-h100", 16, {"tp": 1, "cp": 1, "pp": 1}),
    ("gpt-oss-20b", "dgx-h100", 16, {"tp": 1, "cp": 1, "pp": 2}),
    ("qwen1.5-moe-a2.7b", "dgx-a100", 16, {"tp": 1, "cp": 1}),
    ("deepseek-v3", "h800-mpft", 512, {"tp": 1, "pp": 16, "cp": 1, "etp": 1}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "gpus", "pins"), REAL, ids=[f"{r[0]}-{r[2]}" for r in REAL])
def test_real_problems_equal_enumeration(model, cluster, gpus, pins):
    p = problem(ModelSpec.from_preset(model), gpus=gpus, batch=2 * gpus, sequence=4096, cluster=cluster)
    agrees_with_enumeration(p, "megatron", pins)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from((2, 3)), st.sampled_from((4, 8)), st.sampled_from((None, 0.7, 1.1, 1.5, 2.5)))
@pytest.mark.parametrize("who", ["generic", "megatron"])
def test_the_best_split_equals_enumeration(who, model, pp, batch, memory):
    p = problem(model, gpus=pp, batch=batch, sequence=2048, memory_gib=memory, **QUIET)
    if model.num_layers < pp or model.num_layers > 4:
        return
    base = Strategy(pp=pp, num_microbatches=batch)
    answers = [estimate(p, s) for s in every_split(p, launcher(who), base, uniform=who == "megatron")]
    best = min((e.step_time_s for e in answers if e.fits), default=np.inf)
    pins = {"pp": pp, "tp": 1, "cp": 1, "schedule": "1f1b", "micro_batch_size": 1, "zero": 1, "offload": "0|1"}
    found = solve(p, who, pins=pins)
    assert (found.best is None) == np.isinf(best)
    if found.best is not None:
        assert found.step_s == pytest.approx(best, rel=TOLERANCE)
        assert found.open_bound_s <= best * (1.0 + 1e-9) or np.isinf(found.open_bound_s)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(models(), st.sampled_from((4, 8)), st.sampled_from((None, 1.0, 2.0)), st.sampled_from(RECOMPUTES))
def test_no_split_undercuts_its_bounds(model, batch, memory, mode):
    pp = 2
    p = problem(model, gpus=pp, batch=batch, sequence=2048, memory_gib=memory, **QUIET)
    base = Strategy(pp=pp, num_microbatches=batch, recompute=mode)
    one = Strategies.of([base])
    bound = float(split_bounds(p, one, np.zeros(1), 1e9).bound_s[0])
    for s in every_split(p, launcher("generic"), base, uniform=False):
        if s.recompute == mode and s.offload_optimizer == 0.0:
            answer = estimate(p, s)
            assert not answer.fits or answer.step_time_s >= bound * (1.0 - 1e-9)


def test_the_order_of_knobs_is_as_the_search_assumes():
    """Overlap on is never slower and takes no memory; recomputing less or offloading less is never slower."""
    p = problem(moe_model(4), gpus=4, batch=8, memory_gib=2.0)
    space = Space(p, launcher("generic"), Constraints())
    rows = candidates(space).strategies
    rows = rows.take(np.arange(0, len(rows), 7))
    fast = evaluate(p, rows)
    for changed in (
        {"recompute": 1}, {"recompute": 2}, {"recompute": 2, "recompute_layers": 1}, {"offload_optimizer": 1.0},
        {"tp_overlap": False}, {"dp_overlap": False}, {"ep_overlap": False},
    ):  # fmt: skip
        slow = evaluate(p, rows.replace(**changed))
        assert (slow.step_time_s >= fast.step_time_s * (1.0 - 1e-12)).all(), changed
        if "overlap" in next(iter(changed)):
            assert np.array_equal(slow.peak_memory_bytes, fast.peak_memory_bytes)
    one, two = (evaluate(p, rows.replace(recompute=2, recompute_layers=k)) for k in (1, 2))
    assert (two.peak_memory_bytes <= one.peak_memory_bytes * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("model", [dense_model(6), moe_model(6, first_dense=2)])
class TestProperties:
    def base(self, model, **changes):
        return problem(model, gpus=8, batch=16, sequence=4096, memory_gib=3.0, **{**QUIET, **changes})

    def test_more_memory_is_never_slower(self, model):
        p = self.base(model)
        steps = []
        for memory in (2.0, 2.5, 3.0, 4.0, 8.0):
            acc = replace(p.cluster.accelerator, memory_bytes=memory * 2**30 + p.runtime.context_bytes)
            steps.append(solve(replace(p, cluster=replace(p.cluster, accelerator=acc))).step_s)
        assert all(b <= a * (1.0 + TOLERANCE) for a, b in pairwise(steps))

    def test_more_memory_bandwidth_is_never_slower(self, model):
        p = self.base(model)
        acc = p.cluster.accelerator
        twice = replace(acc, memory_bytes_per_s=2.0 * acc.memory_bytes_per_s)
        faster = solve(replace(p, cluster=replace(p.cluster, accelerator=twice)))
        assert faster.step_s <= solve(p).step_s * (1.0 + TOLERANCE)

    def test_a_pin_equal_to_the_optimum_changes_nothing(self, model):
        p = self.base(model)
        found = solve(p)
        for name in ("tp", "pp", "cp", "micro_batch_size", "zero", "recompute", "vpp", "schedule"):
            again = solve(p, pins={name: getattr(found.best, name)})
            assert again.step_s == pytest.approx(found.step_s, rel=TOLERANCE), name

    def test_fewer_constraints_are_never_slower(self, model):
        p = self.base(model)
        free = solve(p).step_s
        for wishes in ({"pins": {"tp": 2}}, {"most": {"pp": 1}}, {"bans": {"recompute": "full"}}, {"least": {"cp": 2}}):
            assert free <= solve(p, **wishes).step_s * (1.0 + TOLERANCE)

    def test_faster_parts_are_never_slower(self, model):
        p = self.base(model)
        free, tiers, acc = solve(p).step_s, p.cluster.tiers, p.cluster.accelerator
        quick = replace(acc, peak_flops={name: 2.0 * rate for name, rate in acc.peak_flops.items()})
        changed = [replace(p.cluster, accelerator=quick)]
        for one in range(len(tiers)):
            wide = tuple(
                replace(t, bytes_per_s=t.bytes_per_s * (2.0 if i == one else 1.0)) for i, t in enumerate(tiers)
            )
            changed.append(replace(p.cluster, tiers=wide))
        for cluster in changed:
            assert solve(replace(p, cluster=cluster)).step_s <= free * (1.0 + TOLERANCE)

    def test_the_order_of_wishes_changes_nothing(self, model):
        pins = {"pp": 2, "micro_batch_size": "1|2", "zero": 1}
        one, two = (solve(self.base(model), pins=dict(order)) for order in (pins.items(), reversed(pins.items())))
        assert (one.best, one.step_s) == (two.best, two.step_s)

    def test_the_same_question_has_the_same_answer(self, model):
        p = self.base(model)
        assert solve(p).best == solve(p).best


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems())
def test_activations_on_the_host_are_chosen_as_enumeration_would(p):
    who = launcher("megatron")
    rows = [s for s in every_strategy(p, who) if s.pp == 1]
    rows += [replace(s, offload_activations=True) for s in rows]
    rows = [s for s, fine in zip(rows, who.allowed(p, Strategies.of(rows)), strict=True) if fine]
    rows += least_shares(p, rows, who)
    e = evaluate(p, Strategies.of(rows)) if rows else None
    best = e.step_time_s[e.fits].min(initial=np.inf) if rows else np.inf
    found = solve(p, splits=False, pins={"offload_activations": "off|on", "pp": 1, "zero_group": 0})
    assert (found.best is None) == np.isinf(best)
    if found.best is not None:
        assert found.step_s == pytest.approx(best, rel=1e-9)
    proof = found.proof(0.0)
    assert proof.considered == sum(proof.removed_by_rule.values()) + proof.evaluated + proof.bounded_out


def test_a_time_limit_gives_an_answer_with_an_honest_gap():
    p = problem(dense_model(6), gpus=8, batch=16, memory_gib=3.0, **QUIET)
    space = Space(p, launcher("megatron"), Constraints())
    clock = Clock(1e-9)
    found = search(space, clock)
    proof = found.proof(clock.elapsed_s)
    whole = solve(p)
    assert found.best is not None and proof.best_bound_s <= whole.step_s <= found.step_s
    assert proof.finished == (not proof.gap and not proof.stopped_by)
    if found.stopped_by:
        assert proof.stopped_by == "time limit" and not proof.finished


def test_an_interrupt_gives_the_best_so_far(monkeypatch):
    from shardwise.search import exact

    def interrupted(*args):
        raise KeyboardInterrupt

    p = problem(dense_model(6), gpus=8, batch=16, **QUIET)
    whole = solve(p)
    monkeypatch.setattr(exact, "_explore", interrupted)
    found = solve(p)
    proof = found.proof(0.0)
    assert found.best is not None and not proof.finished and proof.stopped_by == "interrupt"
    assert proof.best_bound_s <= whole.step_s <= proof.incumbent_s


def test_an_interrupt_while_reporting_keeps_an_honest_gap():
    p = problem(dense_model(6), gpus=8, batch=16, memory_gib=3.0, **QUIET)
    whole = solve(p)

    def interrupted(now, incumbent, bound):
        if np.isfinite(incumbent):
            raise KeyboardInterrupt

    proof = search(Space(p, launcher("megatron"), Constraints()), progress=interrupted).proof(0.0)
    assert not proof.finished and proof.stopped_by == "interrupt"
    assert proof.best_bound_s <= whole.step_s <= proof.incumbent_s


def test_every_strategy_is_accounted_for():
    proof = solve(problem(moe_model(4), gpus=8, batch=16, memory_gib=3.0)).proof(1.0)
    assert proof.considered == sum(proof.removed_by_rule.values()) + proof.evaluated + proof.bounded_out


def test_recomputation_uses_the_fewest_layers_that_fit():
    p = problem(dense_model(6), gpus=1, batch=4, sequence=4096, memory_gib=2.0, **QUIET)
    space = Space(p, launcher("megatron"), Constraints.of({"micro_batch_size": 1}))
    opened = open_candidates(space, found := candidates(space), np.arange(len(found)))
    for i, s in enumerate(opened.strategies):
        if s.recompute == "full" and opened.fits[i] and s.recompute_layers > 1:
            fewer = replace(s, recompute_layers=s.recompute_layers - 1)
            assert not evaluate(p, Strategies.of([fewer])).fits[0]


@pytest.mark.parametrize("pp", [2, 3])
def test_an_end_of_the_model_without_a_layer_may_be_all_that_fits(pp):
    p = problem(dense_model(3, 256, 2), gpus=pp, batch=4, sequence=2048, memory_gib=0.7, **QUIET)
    base = Strategy(pp=pp, num_microbatches=4)
    answers = [estimate(p, s) for s in every_split(p, launcher("megatron"), base, uniform=True)]
    best = min((e for e in answers if e.fits and not e.strategy.offload_optimizer), key=lambda e: e.step_time_s)
    pins = {"pp": pp, "tp": 1, "cp": 1, "schedule": "1f1b", "micro_batch_size": 1, "zero": 1, "offload": 0}
    assert best.strategy.layers_per_stage[-1] == 0
    assert solve(p, pins=pins).step_s == pytest.approx(best.step_time_s, rel=TOLERANCE)


def test_shares_between_the_quarters_are_looked_for():
    p = problem(ModelSpec.from_preset("deepseek-v2"), 64, 256, 4096, cluster="dgx-h800")
    pins = {"tp": 1, "cp": 2, "cp_comm": "p2p", "pp": 8, "vpp": 7, "schedule": "interleaved", "ep": 8, "zero": 1,
            "recompute": "selective", "micro_batch_size": 1}  # fmt: skip
    free = solve(p, "megatron", pins=pins)
    pinned = solve(p, "megatron", pins={**pins, "offload_optimizer": 0.55})
    assert pinned.best is not None and free.step_s <= pinned.step_s * (1.0 + TOLERANCE)


@pytest.mark.parametrize(("layers", "pp"), [(92, 4), (88, 8), (126, 16), (61, 6), (80, 8)])
def test_no_step_between_numbers_of_virtual_stages_is_wide(layers, pp):
    numbers = [1, *chunk_numbers(layers, pp)]
    assert all(layers // pp % v or v in numbers for v in range(1, layers // pp + 1))
    assert all(high <= 2 * low for low, high in pairwise(numbers))

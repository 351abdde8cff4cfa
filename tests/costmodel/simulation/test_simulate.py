"""Whole steps: the simulation against the closed form on real problems, and what it must answer to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.presets import load_preset
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.schedule import in_flight
from shardwise.costmodel.simulation import Simulator, simulate, simulated_step_s
from shardwise.costmodel.splits import stage_counts
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster

from .. import cases

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"]


def even(schedule: str, pp: int = 4, m: int = 16, **changes) -> tuple[Problem, Strategy]:
    vpp = {"interleaved": 3, "zb-v": 2}.get(schedule, 1)
    model = cases.gpt(layers=2 * pp * vpp, tied=False)
    problem = cases.problem(model, num_gpus=pp, batch=m, **changes)
    return problem, Strategy(pp=pp, vpp=vpp, schedule=schedule, num_microbatches=m, zero=0)


@pytest.fixture
def bare_stages(monkeypatch):
    """Stages of layers alone: without embedding, head and loss, all of them are alike."""

    def layers_only(*arguments):
        counts = stage_counts(*arguments)
        counts[:, -3:] = 0.0
        return counts

    monkeypatch.setattr("shardwise.costmodel.splits.stage_counts", layers_only)
    monkeypatch.setattr("shardwise.costmodel.simulation.durations.stage_counts", layers_only)


@pytest.mark.usefixtures("bare_stages")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("runtime", ["megatron-core", "hagemann", "megatron-deepspeed"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_even_stages_take_what_the_closed_form_says(schedule, runtime, recompute):
    """Messages, the host's time and the optimizer included."""
    problem, strategy = even(schedule, runtime=runtime)
    strategy = replace(strategy, recompute=recompute)
    assert simulate(problem, strategy).step_time_s == pytest.approx(estimate(problem, strategy).step_time_s, rel=1e-9)


def real(model: str, gpus: int, batch: int, strategy: str, sequence: int = 4096) -> tuple[Problem, Strategy]:
    problem = Problem(
        load_preset(model), load_cluster("dgx-h100", gpus), Workload(batch, sequence), load_runtime("megatron-core")
    )
    return problem, Strategy.parse(strategy).with_batch(gpus, batch)


LLAMA_405B = ("llama-3.1-405b", 2048, 2048, "tp=8,sp=on,pp=16", 8192)
REAL = {
    "405b 1f1b": LLAMA_405B,
    "405b zb-h1": (*LLAMA_405B[:3], "tp=8,sp=on,pp=16,schedule=zb-h1", 8192),
    "405b interleaved": (*LLAMA_405B[:3], "tp=8,sp=on,pp=16,vpp=4,schedule=interleaved", 8192),
    "405b zb-v": (*LLAMA_405B[:3], "tp=8,sp=on,pp=16,vpp=2,schedule=zb-v,recompute=full", 8192),
    "deepseek 1f1b": ("deepseek-v3", 2048, 4096, "pp=16,ep=64"),
    "deepseek interleaved": ("deepseek-v3", 2048, 4096, "pp=16,ep=64,vpp=2,schedule=interleaved,recompute=selective"),
    "deepseek dualpipe": ("deepseek-v3", 2048, 4096, "pp=16,ep=64,schedule=dualpipe"),
    "deepseek zb-v": ("deepseek-v3", 2048, 4096, "pp=16,ep=64,vpp=2,schedule=zb-v"),
}


@pytest.mark.parametrize("name", REAL)
def test_every_rank_accounts_for_the_whole_step(name):
    """126 and 61 layers over 16 stages: nothing divides."""
    simulation = simulate(*real(*REAL[name]))
    for rank, parts in enumerate(simulation.parts_by_rank_s):
        assert sum(parts.values()) == pytest.approx(simulation.step_time_s)
        assert all(seconds >= -1e-9 for seconds in parts.values()), rank
    assert min(simulation.bubble_by_rank_s) == simulation.bubble_by_rank_s[simulation.slowest_rank]
    assert max(simulation.end_s) <= simulation.meet_s <= simulation.step_time_s


@pytest.mark.parametrize("name", REAL)
def test_work_is_the_closed_forms(name):
    """No second cost formula: all chunks of a rank add up to the rank's load in ``estimate``."""
    problem, strategy = real(*REAL[name])
    simulation, closed = simulate(problem, strategy), estimate(problem, strategy)
    for rank, (forward, backward) in enumerate(closed.stage_times_s):
        parts = simulation.parts_by_rank_s[rank]
        worked = strategy.num_microbatches * (forward + backward)
        assert parts["compute"] + parts["recompute"] == pytest.approx(worked)


@pytest.mark.parametrize("name", REAL)
def test_passes_of_a_rank_do_not_overlap_and_wait_for_their_input(name):
    s = simulate(*real(*REAL[name]))
    starts = s.end_s - s.durations.table[s.graph.kind, s.graph.rank, s.graph.chunk]
    for needed in (s.graph.before, s.graph.awaited):
        has = needed < len(s.graph)
        assert (starts[has] >= s.end_s[needed[has]] - 1e-9).all()


def test_the_short_entries_give_the_same_seconds():
    simulators: dict[str, Simulator] = {}
    for name in REAL:
        problem, strategy = real(*REAL[name])
        shared = simulators.setdefault(problem.model.name, Simulator(problem))
        whole = simulate(problem, strategy).step_time_s
        assert simulated_step_s(problem, strategy) == whole == shared.step_s(strategy)


@pytest.mark.parametrize("name", REAL)
def test_memory_in_flight_is_what_the_memory_model_counts(name):
    problem, strategy = real(*REAL[name])
    expected = in_flight(strategy.schedule, strategy.pp, strategy.vpp, np.array([strategy.num_microbatches]))[:, 0]
    assert simulate(problem, strategy).in_flight_by_rank == pytest.approx(expected.tolist())


def test_a_larger_group_holds_more():
    """Megatron's warm-up, 2 (p - i - 1) + (v - 1) group, and one more: what a rank holds when it turns to backward."""
    problem, strategy = real(*REAL["405b interleaved"])
    wide = simulate(problem, strategy, microbatch_group=32)
    assert wide.in_flight_by_rank == pytest.approx([(2 * (15 - i) + 3 * 32 + 1) / 4 for i in range(16)])


def test_pipelines_of_one_rank_have_no_bubble():
    problem, strategy = real("llama-3.1-8b", 64, 128, "tp=2,sp=on")
    simulation = simulate(problem, strategy)
    assert simulation.step_time_s == pytest.approx(estimate(problem, strategy).step_time_s)
    assert simulation.bubble_by_rank_s == pytest.approx([0.0])


def test_more_work_on_any_stage_is_never_faster():
    problem, strategy = real(*LLAMA_405B)
    base = simulated_step_s(problem, strategy)
    for rank in (0, 7, 15):
        again = tuple(int(r == rank) for r in range(16))
        assert simulated_step_s(problem, replace(strategy, recompute="full", recompute_per_stage=again)) >= base


def test_zero_3_gathers_with_every_microbatch():
    problem, strategy = real("llama-3.1-8b", 64, 256, "pp=4,zero=3")
    simulation = simulate(problem, strategy)
    assert simulation.durations.gathers == pytest.approx([0.0] * 4)
    assert (simulation.durations.forward_traffic > 0).all()
    assert simulation.step_time_s > estimate(problem, strategy).step_time_s  # the fill waits for gathers, too


def test_a_light_last_stage_hides_its_gradients_while_the_pipeline_drains():
    """The first rank ends last: what it reduces is waited for, not what the last one does."""
    problem, strategy = real("llama-3.1-8b", 64, 256, "pp=4")
    s = simulate(problem, strategy)
    assert s.rank_end_s[0] == s.rank_end_s.max()
    assert s.rank_end_s[-1] < s.rank_end_s[0]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (Strategy(pp=4, schedule="dualpipe", num_microbatches=6), "at least 2·pp"),
        (Strategy(pp=4, num_microbatches=8, layers_per_stage=(8, 8, 8)), "layers_per_stage has 3 entries"),
    ],
)
def test_bad_strategies_are_refused(strategy, message):
    problem, _ = real("llama-3.1-8b", 64, 256, "pp=4")
    with pytest.raises(InputError, match=message):
        simulate(problem, strategy)


def test_groups_are_for_interleaving():
    problem, strategy = real("llama-3.1-8b", 64, 256, "pp=4")
    with pytest.raises(InputError, match="microbatch_group"):
        simulate(problem, strategy, microbatch_group=8)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([(4, 3), (4, 6), (8, 2), (8, 4)]), st.integers(1, 4), st.randoms(use_true_random=False))
def test_an_interleaved_split_is_never_priced_far_below_what_the_simulation_has(shape, rounds, random):
    """A search finds every split that is priced too low: chunks one layer apart, in any order."""
    (pp, vpp), model = shape, cases.gpt(layers=61)
    chunks = pp * vpp
    split = [61 // chunks + (i < 61 % chunks) for i in range(chunks)]
    random.shuffle(split)
    micro_batches = rounds * pp
    problem = cases.problem(model, num_gpus=64, batch=64 // pp * micro_batches)
    strategy = Strategy(
        pp=pp,
        vpp=vpp,
        schedule="interleaved",
        dp=64 // pp,
        num_microbatches=micro_batches,
        layers_per_stage=tuple(split),
    )
    assert estimate(problem, strategy).step_time_s >= 0.98 * simulated_step_s(problem, strategy)

"""The short list: who is on it, in what order, and that it says when the plan stands alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardwise.costmodel.estimate import INTERVALS, TELL_APART, estimate, tell_apart
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.strategy import Strategies
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.search.planner import plan
from shardwise.search.short_list import LONGEST

from .small import dense_model, every_strategy, launcher, moe_model, problem


def planned(p, who="megatron", **options):
    return plan(p.model, p.cluster, p.workload, runtime=p.runtime, launcher=who, refine_trials=0, **options)


@pytest.fixture(scope="module")
def llama():
    return plan("llama-3.1-8b", "dgx-h100", Workload(64, 4096), num_gpus=16, refine_trials=0)


def test_it_starts_with_the_plan_and_stays_within_the_error(llama):
    steps = [e.step_time_s for e in llama.short_list]
    assert llama.short_list[0] == llama.estimate and steps == sorted(steps) and 1 < len(steps) <= LONGEST
    assert steps[-1] <= steps[0] * (1 + tell_apart(llama.problem))
    for e in llama.short_list:
        assert e.fits and e == estimate(llama.problem, e.strategy)
        assert not launcher(llama.launcher).violations(llama.problem, e.strategy)


def test_its_layouts_differ_in_mesh_micro_batch_or_schedule(llama):
    def key(s):
        return s.tp, s.cp, s.pp, s.vpp, s.schedule, s.ep, s.etp, s.micro_batch_size

    assert len({key(e.strategy) for e in llama.short_list}) == len(llama.short_list)


def test_a_wider_error_makes_a_longer_list():
    p = problem(dense_model(8, 1024, 8), gpus=8, batch=32, sequence=2048, memory_gib=6.0)
    unmeasured = replace(p, runtime=p.runtime.model_copy(update={"measured": False}))
    assert tell_apart(p) < tell_apart(unmeasured) == TELL_APART * INTERVALS["dense"][1]
    assert len(planned(unmeasured).short_list) >= len(planned(p).short_list)


@pytest.mark.parametrize("model", [dense_model(4), moe_model(4)])
def test_nothing_that_close_is_missing_from_a_small_space(model):
    """Against every strategy of a small problem, one pipeline stage: no even splits to differ in."""
    p = problem(model, gpus=4, batch=8, memory_gib=1.2)
    found = planned(p, "generic", pins={"pp": 1, "cp": 1, "offload": "0|1"})
    limit = found.step_time_s * (1 + tell_apart(p))
    every = [s for s in every_strategy(p, launcher("generic")) if s.pp == s.cp == 1]
    e = evaluate(p, Strategies.of(every))
    quick = np.flatnonzero(e.fits & (e.step_time_s <= limit))
    near = {(s.tp, s.ep, s.etp, s.micro_batch_size) for s in (every[i] for i in quick)}
    listed = {(s.tp, s.ep, s.etp, s.micro_batch_size) for s in (e.strategy for e in found.short_list)}
    assert listed <= near and len(listed) == min(len(near), LONGEST)


def test_a_plan_with_no_rival_stands_alone():
    p = problem(dense_model(4), gpus=1, batch=1)
    assert len(planned(p).short_list) == 1


def test_the_benchmark_has_every_layout(llama):
    files = llama.benchmark()
    folders = {name.split("/")[1] for name in files if name.startswith("candidates/")}
    assert len(folders) == len(llama.short_list) and {name[0] for name in folders} == set("123456")
    for folder, file in itertools.product(folders, ("launch.sh", "sbatch.sh", "run.json")):
        assert f"candidates/{folder}/{file}" in files
    with pytest.raises(InputError, match="no way to run a few steps"):
        llama.benchmark("generic")

"""The whole answer: what a plan holds, what its prices mean, and what is said when nothing fits."""

import json
import math
import warnings
from dataclasses import replace

import pytest

import shardwise
from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InfeasibleError, InputError, UnknownNameError
from shardwise.launchers.rule import violations
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search, with_split
from shardwise.search.infeasible import NothingFitsError
from shardwise.search.planner import complete, plan
from shardwise.search.space import Space

from .small import dense_model, launcher, moe_model, problem


def planned(p, who="megatron", **options):
    return plan(p.model, p.cluster, p.workload, runtime=p.runtime, launcher=who, **options)


@pytest.fixture(scope="module")
def mixture():
    p = problem(moe_model(8, 1024, 8, 8), gpus=16, batch=64, sequence=4096, memory_gib=3.0)
    return planned(p)


def test_llama_405b_gets_the_published_split():
    found = plan("llama-3.1-405b", "dgx-h100", Workload(2048, 8192), num_gpus=16384, pins={"pp": 16, "vpp": 1})
    assert found.strategy.layers_per_stage == (7, *(8,) * 14, 7)


def test_llama_405b_gets_the_published_split_over_virtual_stages():
    found = plan("llama-3.1-405b", "dgx-h100", Workload(2048, 8192), num_gpus=16384, pins={"pp": 16})
    layers = found.strategy.layers_per_stage
    assert [sum(layers[rank::16]) for rank in range(16)] == [7, *[8] * 14, 7]


def test_the_plan_is_what_the_cost_model_says(mixture):
    e = estimate(mixture.problem, mixture.strategy)
    assert (e.step_time_s, e.peak_memory_bytes) == (mixture.step_time_s, mixture.estimate.peak_memory_bytes)
    assert e.fits and not launcher("megatron").violations(mixture.problem, mixture.strategy)
    assert mixture.step_time_s <= mixture.proof.incumbent_s * (1.0 + 1e-9)


def test_the_split_is_always_written_out(mixture):
    s = mixture.strategy
    assert s.pp == 1 or sum(s.layers_per_stage) == mixture.problem.model.num_layers


def test_runners_up_are_distinct_fit_and_come_in_order(mixture):
    steps = [e.step_time_s for e in mixture.alternatives]
    assert len(steps) == 4 and steps == sorted(steps) and all(e.fits for e in mixture.alternatives)
    keys = {(e.strategy.tp, e.strategy.cp, e.strategy.pp, e.strategy.ep, e.strategy.micro_batch_size, e.strategy.etp)
            for e in (mixture.estimate, *mixture.alternatives)}  # fmt: skip
    assert len(keys) == 5


def test_the_frontier_trades_time_for_headroom(mixture):
    points = mixture.pareto
    assert points[0].strategy == mixture.strategy
    assert [p.step_time_s for p in points] == sorted(p.step_time_s for p in points)
    assert [p.headroom_bytes for p in points] == sorted(p.headroom_bytes for p in points)


def test_prices_are_those_of_a_search_with_that_pin(mixture):
    p = mixture.problem
    checked = exact = 0
    for notch in mixture.why:
        if notch.dimension not in ("tp", "cp", "pp", "ep", "micro_batch_size", "zero"):
            continue
        wishes = Constraints.of({notch.dimension: notch.other})
        best = search(Space(p, launcher("megatron"), wishes))
        if notch.step_time_s is None:
            assert best.best is None, notch
        else:
            assert getattr(notch.strategy, notch.dimension) == notch.other
            assert best.step_s * (1.0 - 1e-4) <= notch.step_time_s <= best.step_s * (1.0 + 3e-4 if notch.exact else 1.1)
            assert notch.price_s == pytest.approx(max(0.0, notch.step_time_s - mixture.step_time_s))
        checked += 1
        exact += notch.exact
    assert checked >= 6 and exact >= 1


def test_a_value_that_a_rule_removes_is_named():
    p = problem(dense_model(4, heads=4), gpus=8, batch=8)
    found = planned(p, pins={"tp": "2|4"})
    (up,) = [n for n in found.why if n.dimension == "tp" and n.other == 8] or [None]
    if found.strategy.tp == 4:
        assert up.step_time_s is None and "tp" in up.reason


def test_memory_binds_where_more_memory_is_faster():
    p = problem(dense_model(6, 1024, 8), gpus=4, batch=16, sequence=4096, memory_gib=1.5, fixed_s_per_step=0.0)
    tight = planned(p, pins={"micro_batch_size": 1, "tp": 1, "cp": 1})
    assert tight.binding.kind == "memory" and tight.binding.gain_s > 0 and "GiB" in tight.binding.message
    roomy = planned(problem(dense_model(4), gpus=4, batch=8))
    assert roomy.binding.kind == "nothing"


def test_the_same_question_has_the_same_answer():
    p = problem(moe_model(4), gpus=8, batch=16, memory_gib=3.0)
    one, two = planned(p), planned(p)
    assert one.estimate == two.estimate and one.alternatives == two.alternatives and one.why == two.why


def test_json_is_complete_and_plain(mixture):
    document = mixture.as_dict()
    for key in (
        "schema_version", "strategy", "step_time_s", "time_parts_s", "peak_memory_bytes", "memory_parts_bytes",
        "memory_by_rank_bytes", "tokens_per_s_per_gpu", "mfu", "traffic", "proof", "assumptions",
    ):  # fmt: skip
        assert key in document
    assert json.loads(json.dumps(document, allow_nan=False)) == document


# ---- inputs


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model": "llama-3.1-70c"}, UnknownNameError, "llama-3.1-70b"),
        ({"cluster": "dgx-h1000"}, UnknownNameError, "dgx-h100"),
        ({"launcher": "megatron-lm"}, UnknownNameError, "megatron"),
        ({"runtime": "megatron-cor"}, UnknownNameError, "megatron-core"),
        ({"pins": {"tq": 8}}, InputError, "unknown dimension"),
        ({"top": 0}, InputError, "top = 0"),
    ],
)
def test_bad_inputs_are_named(options, error, said):
    inputs = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "launcher": "megatron", **options}
    model, cluster = inputs.pop("model"), inputs.pop("cluster")
    with pytest.raises(error, match=said):
        plan(model, cluster, Workload(64, 4096), num_gpus=16, **inputs)


def test_settings_left_out_follow_the_runtime():
    p = problem(moe_model(8), gpus=16, batch=64)
    s = complete(p, "tp=2,pp=2,vpp=2,ep=2,mbs=1")
    r = p.runtime
    assert (s.schedule, s.sp, s.zero, s.dp, s.num_microbatches) == ("interleaved", r.default_sp, r.default_zero, 4, 16)
    assert complete(p, {"tp": 2, "sp": False}).sp is False
    assert complete(p, "cp=4,cp_comm=a2a").ulysses == 4


# ---- nothing fits


def test_memory_that_is_missing_is_told_by_rank_and_amount():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=4, sequence=4096, memory_gib=0.4)
    with pytest.raises(
        NothingFitsError, match=r"nothing fits in memory: the closest layout .* needs [\d.]+ GiB more"
    ) as e:
        planned(p)
    error = e.value
    assert isinstance(error, InfeasibleError) and error.exit_code == 3
    over = error.closest.peak_memory_bytes - error.closest.capacity_bytes
    assert over > 0 and f"{over / 2**30:.2f} GiB" in error.reason
    assert json.dumps(error.as_dict(), allow_nan=False)


def test_more_gpus_are_offered_and_work():
    p = problem(dense_model(6, 1024, 8), gpus=2, batch=16, sequence=4096, memory_gib=0.7)
    with pytest.raises(NothingFitsError) as e:
        planned(p)
    (change,) = [c for c in e.value.changes if "GPUs" in c.description]
    more = replace(p, cluster=p.cluster.with_num_gpus(int(change.description.split()[0])))
    assert estimate(more, with_split(more, change.strategy)).fits
    assert not violations(more, change.strategy, launcher("megatron").rules)


def test_a_pin_that_is_in_the_way_is_offered_to_be_dropped():
    p = problem(dense_model(6, 1024, 8), gpus=4, batch=16, sequence=4096, memory_gib=1.5)
    with pytest.raises(NothingFitsError) as e:
        planned(p, pins={"recompute": "none", "offload_optimizer": 0.0}, least={"micro_batch_size": 4})
    assert any(c.description.startswith("drop ") for c in e.value.changes)


@pytest.mark.parametrize(
    ("gpus", "batch", "wishes", "said"),
    [
        (8, 7, {"pins": {"pp": 1, "tp": 1, "cp": 1}}, "divide the batch of 7"),
        (8, 8, {"pins": {"ep": 2}}, "rules leave no layout"),
        (8, 8, {"pins": {"tp": 3}}, "must be 8 GPUs"),
        (8, 8, {"pins": {"pp": 8}}, "no layout"),
    ],
)
def test_rules_and_wishes_that_leave_nothing_are_told(gpus, batch, wishes, said):
    p = problem(dense_model(4), gpus=gpus, batch=batch)
    with pytest.raises(NothingFitsError, match=said) as e:
        planned(p, **wishes)
    assert e.value.closest is None and e.value.changes


def test_no_trials_change_nothing():
    p = problem(dense_model(4), gpus=8, batch=8)
    found = planned(p, refine_trials=0)
    assert found.refinement is None


def test_public_estimate_accepts_a_strategy():
    p = problem(gpus=4, batch=8)
    s = Strategy(dp=4, num_microbatches=2)
    assert shardwise.estimate(p.model, p.cluster, p.workload, s, runtime=p.runtime).strategy == s


def test_a_launcher_that_does_not_run_on_the_accelerator_is_said_to_be_the_reason():
    with pytest.raises(NothingFitsError, match="megatron takes no layout: Megatron-LM has no kernels for Gaudi3") as no:
        plan("llama-3.1-8b", "gaudi3-hls3", Workload(64, 1024), num_gpus=8, launcher="megatron")
    assert [c.description for c in no.value.changes] == ["launcher generic, without launch files"]
    found = plan("llama-3.1-8b", "gaudi3-hls3", Workload(64, 1024), num_gpus=8, launcher="generic", refine_trials=0)
    assert found.step_time_s <= no.value.changes[0].step_time_s * (1.0 + 1e-9)


def test_what_no_launcher_changes_is_said_without_advice():
    with pytest.raises(NothingFitsError, match=r"no mxfp8 units: use another dtype$"):
        plan("llama-3.1-8b", "dgx-h100", Workload(64, 1024, dtype="mxfp8"), num_gpus=8)


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_work_too_small_for_the_device_to_notice(sequence):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plan("llama-3.1-8b", "dgx-h100", Workload(128, sequence), num_gpus=64, refine_trials=0)
    assert math.isfinite(found.step_time_s) and found.proof.incumbent_s > 0.0

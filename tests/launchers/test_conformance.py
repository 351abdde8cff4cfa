"""What every launcher promises, whichever framework it writes for.

A new launcher joins by its name in ``launchers/base.py`` and a sample in ``samples`` (docs/adding-a-launcher.md).
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import CP_COMMS, RECOMPUTES, SCHEDULES, Strategies, Strategy
from shardwise.costmodel.workload import DTYPES
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.launchers.base import Given, Launcher, Range, get_launcher, list_launchers, universal_rules
from shardwise.launchers.canonical import canonical
from shardwise.launchers.capability import FULL_CAPABILITIES
from shardwise.launchers.neighbours import nearest_legal
from shardwise.launchers.ranks import rank_groups
from shardwise.launchers.reading import recognise
from shardwise.launchers.refusal import judged

from .drawn import drawn_plans
from .problems import LLAMA, MIXTRAL, QWEN, fitted, problem
from .samples import WRITERS, sample


@pytest.fixture(params=list_launchers())
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return get_launcher(request.param)


def test_it_is_named_like_its_module_and_titled(launcher: Launcher) -> None:
    assert launcher.name in list_launchers() and launcher.title


def test_its_default_runtimes_are_shipped(launcher: Launcher) -> None:
    assert launcher.runtime_for("unheard-of") == launcher.default_runtime
    for name in (launcher.default_runtime, *launcher.dtype_runtimes.values(), *launcher.vendor_runtimes.values()):
        assert load_runtime(name).name == name
    assert set(launcher.dtype_runtimes) <= set(DTYPES)


def test_its_capabilities_cover_every_dimension_with_known_values(launcher: Launcher) -> None:
    assert set(launcher.capabilities) == set(FULL_CAPABILITIES)
    for name, values in launcher.capabilities.items():
        everything = FULL_CAPABILITIES[name]
        if isinstance(values, Range):
            assert isinstance(everything, Range) and values.least >= everything.least
        else:
            assert len(values) > 0
            assert isinstance(everything, Range) or set(values) <= set(everything), name


def test_its_rules_have_distinct_names_and_include_the_universal_ones(launcher: Launcher) -> None:
    names = [rule.name for rule in launcher.rules]
    assert len(names) == len(set(names))
    assert {rule.name for rule in universal_rules()} <= set(names)


def test_every_message_can_be_filled_in(launcher: Launcher) -> None:
    odd = Strategy(tp=3, cp=5, cp_comm="a2a", pp=7, vpp=3, dp=9, ep=11, etp=13, zero_group=2, recompute_layers=3)
    for p in (problem(LLAMA), problem(MIXTRAL)):
        for rule in launcher.rules:
            assert "{" not in rule.explain(p, odd), rule.name


def _random(n: int, seed: int) -> Strategies:
    rng = np.random.default_rng(seed)

    def power(most: int) -> Any:
        return 2 ** rng.integers(0, most, n)

    return Strategies(
        tp=power(5), cp=power(4), pp=power(4), vpp=power(2), dp=power(7), ep=power(4), etp=power(2), ulysses=power(2),
        sp=rng.random(n) < 0.5, cp_comm=rng.integers(0, len(CP_COMMS), n), schedule=rng.integers(0, len(SCHEDULES), n),
        zero=rng.integers(0, 4, n), zero_group=rng.integers(0, 5, n), num_microbatches=power(7),
        recompute=rng.integers(0, len(RECOMPUTES), n), recompute_layers=rng.integers(-1, 3, n),
        tp_overlap=rng.random(n) < 0.2, ep_overlap=rng.random(n) < 0.2,
    )  # fmt: skip


@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, QWEN])
def test_arrays_and_single_strategies_agree(launcher: Launcher, name: str) -> None:
    p = problem(name, gpus=64, batch=64)
    many = _random(300, seed=7)
    keep = launcher.allowed(p, many)
    assert keep.shape == (300,) and keep.dtype == np.bool_
    assert keep.tolist() == [launcher.violations(p, s) == [] for s in many]


@pytest.mark.parametrize("name", [LLAMA, QWEN])
def test_of_its_own_splits_each_may_be_launched_and_no_other(launcher: Launcher, name: str) -> None:
    p, rule = problem(name, gpus=64, batch=64), f"{launcher.name}-stages"
    if launcher.own_splits is None:
        assert rule not in {r.name for r in launcher.rules}
        return
    for pp in (2, 4, 8, 16):
        own = launcher.own_splits(p, 1, pp)
        assert len(set(own)) == len(own)
        for split in own:
            assert len(split) == pp and sum(split) == p.model.num_layers
            fine = fitted(p, pp=pp, layers_per_stage=split)
            moved = fitted(p, pp=pp, layers_per_stage=(split[0] - 1, split[1] + 1, *split[2:]))
            assert rule not in {v.rule for v in launcher.violations(p, fine)}
            assert (rule in {v.rule for v in launcher.violations(p, moved)}) == (moved.layers_per_stage not in own)
        even = even_split(p.model.num_layers, pp)
        assert (rule in {v.rule for v in launcher.violations(p, fitted(p, pp=pp))}) == (even not in own)


def test_no_strategies_give_no_answers(launcher: Launcher) -> None:
    assert launcher.allowed(problem(), Strategies.empty()).shape == (0,)


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Launcher:
    return get_launcher(request.param)


@cache
def plans_of(name: str) -> list[tuple[Problem, Strategy]]:
    """The plans of a launcher's sample, and sixty drawn ones."""
    tested = sample(name)
    own = [(p, fitted(p, **settings)) for given, settings in tested.plans for p in [problem(**given)]]
    return own + drawn_plans(get_launcher(name), tested, count=60, seed=11)


def test_its_sample_spans_models_clusters_and_degrees(writer: Launcher) -> None:
    plans = plans_of(writer.name)
    assert len(plans) >= 60
    assert len({p.model.name for p, _ in plans}) >= 4 and len({p.cluster.num_gpus for p, _ in plans}) >= 4
    assert len({s for _, s in plans}) >= 50
    assert len(sample(writer.name).refused) >= 20


def test_its_files_are_the_same_every_time_and_parse(writer: Launcher) -> None:
    seen = set()
    for p, s in plans_of(writer.name):
        files = writer.render(p, s)
        if p.model.name not in seen:
            seen.add(p.model.name)
            assert files == writer.render(p, s)
            for file, text in files.items():
                check_text(file, text)


def check_text(file: str, text: str) -> None:
    assert text.endswith("\n") and not text.endswith("\n\n"), file
    assert "\t" not in text and "\r" not in text
    if file.endswith(".json"):
        json.loads(text)
    if file.endswith((".yaml", ".yml")):
        yaml.safe_load(text)
    if file.endswith(".py"):
        compile(text, file, "exec")
    if file.endswith(".sh"):
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, (file, done.stderr)


def test_reading_its_files_gives_the_strategy_back(writer: Launcher) -> None:
    for p, s in plans_of(writer.name):
        assert writer.violations(p, s) == [], s
        parsed = writer.parse(writer.render(p, s))
        assert parsed.launcher == writer.name
        assert parsed.strategy == canonical(s, p.model.num_layers), (p.model.name, s)
        assert parsed.unknown == (), (p.model.name, s)


def test_reading_its_files_gives_the_job_back(writer: Launcher) -> None:
    for p, s in plans_of(writer.name):
        parsed = writer.parse(writer.render(p, s), Given(model=p.model, sequence_length=p.workload.sequence_length))
        work = parsed.workload
        assert work.global_batch_size == p.workload.global_batch_size
        assert (work.dtype, work.optimizer) == (p.workload.dtype, p.workload.optimizer)
        assert work.train_mtp == (p.workload.train_mtp and bool(p.model.mtp))
        again = parsed.problem(p.cluster, runtime=p.runtime)
        for name in parsed.runtime_changes:
            if name != "selective_recompute" or s.recompute == "selective":
                assert getattr(again.runtime, name) == getattr(p.runtime, name), name


def test_the_model_that_its_files_describe_is_the_one_they_were_written_for(writer: Launcher) -> None:
    for p, s in plans_of(writer.name):
        parsed = writer.parse(writer.render(p, s))
        found = parsed.model
        if found is None:
            continue
        wanted = p.model.mtp_parameters if p.workload.train_mtp else 0
        have = found.mtp_parameters if parsed.workload.train_mtp else 0
        assert found.total_parameters + have == p.model.total_parameters + wanted, p.model.name
        assert found.num_layers == p.model.num_layers


def test_it_claims_its_own_files_and_no_other_launcher_does(writer: Launcher) -> None:
    p, s = plans_of(writer.name)[0]
    assert recognise(writer.render(p, s)) == writer.name


@pytest.mark.parametrize(("name", "index"), [(name, i) for name in WRITERS for i in range(len(sample(name).refused))])
def test_a_refusal_names_option_value_rule_and_a_way_out(name: str, index: int) -> None:
    launcher = get_launcher(name)
    given, s, rule = sample(name).refused[index]
    p = problem(**given)
    found = {r.rule: r for r in launcher.refusals(p, s)}
    assert rule in found, (rule, list(found))
    refusal = found[rule]
    wide = {r.name for r in launcher.rules if r.scope != "strategy"}
    assert refusal.message and (refusal.settings or rule in wide)
    assert refusal.fix.startswith("nearest legal choice: ") or rule in wide or wide & set(found), refusal
    for option, value in refusal.settings:
        assert option and value
        assert f"{option} {value}" in str(refusal) or option in Strategy().as_dict()
    near = nearest_legal(p, launcher, s)
    if not wide & set(found):
        assert near is not None and launcher.violations(p, near) == []


def test_every_rule_has_a_name_and_a_message_and_rules_on_the_whole_job_a_fix(launcher: Launcher) -> None:
    p = problem()
    for rule in launcher.rules:
        assert rule.name and rule.name == rule.name.lower() and " " not in rule.name
        assert rule.message.strip()
        assert rule.scope == "strategy" or rule.explain_fix(p, fitted(p, tp=8)), rule.name
        assert rule.scope != "strategy" or judged(rule, p, fitted(p, tp=8)), f"{rule.name} judges no dimension"


def test_its_options_name_dimensions(launcher: Launcher) -> None:
    assert set(launcher.options) <= set(Strategy().as_dict())
    can_set = {d for d, values in launcher.capabilities.items() if isinstance(values, Range) or len(values) > 1}
    if launcher.name != "generic":
        assert can_set <= set(launcher.options) | {"schedule"}, can_set - set(launcher.options)


def test_render_refuses_what_the_rules_refuse(writer: Launcher) -> None:
    given, s, rule = sample(writer.name).refused[0]
    with pytest.raises(InputError, match=rf"cannot launch this strategy: .*{rule}: .*nearest legal choice: "):
        writer.render(problem(**given), s)


def test_unknown_options_are_listed(writer: Launcher) -> None:
    p, s = plans_of(writer.name)[0]
    files = {f: t.replace('"$@"', '--tensor-parallel-siz 4 "$@"') for f, t in writer.render(p, s).items()}
    if not any("--tensor-parallel-siz" in t for t in files.values()):
        pytest.skip("its files have no command line for the training script")
    assert [o.name for o in writer.parse(files).unknown] == ["--tensor-parallel-siz"]


def test_its_rank_orders_make_groups_of_the_right_sizes(launcher: Launcher) -> None:
    orders = launcher.capabilities["rank_order"]
    assert isinstance(orders, tuple) and orders[0] == Strategy().rank_order
    for order in orders:
        s = Strategy(tp=4, dp=4, pp=2, ep=2, etp=2, rank_order=order)
        sizes = {name: len(groups[0]) for name, groups in rank_groups(s).items()}
        assert sizes == {"tp": 4, "cp": 1, "dp": 4, "dp_cp": 4, "shard": 4, "pp": 2, "ep": 2, "etp": 2, "edp": 4}


def test_the_generic_launcher_has_only_the_universal_rules_and_writes_nothing() -> None:
    generic = get_launcher("generic")
    assert generic.rules == universal_rules()
    p = problem()
    s = fitted(p, tp=8, pp=4)
    assert generic.violations(p, s) == []
    with pytest.raises(InputError, match="cannot write launch files"):
        generic.render(p, s)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'megatron'"):
        get_launcher("megatrom")
    with pytest.raises(UnknownNameError, match=f"expected one of {', '.join(list_launchers())}"):
        get_launcher("xyz")

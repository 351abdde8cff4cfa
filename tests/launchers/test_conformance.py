"""What every launcher promises, whichever framework it writes for."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
import pytest

from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import CP_COMMS, RECOMPUTES, SCHEDULES, Strategies, Strategy
from shardwise.costmodel.workload import DTYPES
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.launchers.base import Launcher, Range, get_launcher, list_launchers, universal_rules
from shardwise.launchers.capability import FULL_CAPABILITIES
from shardwise.launchers.ranks import rank_groups

from .problems import GPT, LLAMA, MIXTRAL, QWEN, fitted, problem

WRITERS = {"megatron": [GPT, LLAMA, MIXTRAL, QWEN], "megatron-deepspeed": [GPT, "gpt-2-medium", "bloom-176b"]}
"""The launchers that write files, and models that they can express."""


@pytest.fixture(params=list_launchers())
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return get_launcher(request.param)


def test_it_is_named_like_its_module_and_titled(launcher: Launcher) -> None:
    assert launcher.name in list_launchers() and launcher.title


def test_its_default_runtimes_are_shipped(launcher: Launcher) -> None:
    assert launcher.runtime_for("unheard-of") == launcher.default_runtime
    for name in (launcher.default_runtime, *launcher.dtype_runtimes.values()):
        assert load_runtime(name).name == name
    assert set(launcher.dtype_runtimes) <= set(DTYPES)


def test_every_launcher_that_writes_files_is_tested_on_models() -> None:
    assert {*WRITERS, "generic"} == set(list_launchers())


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


def test_no_strategies_give_no_answers(launcher: Launcher) -> None:
    assert launcher.allowed(problem(), Strategies.empty()).shape == (0,)


def test_render_refuses_what_the_rules_refuse(launcher: Launcher) -> None:
    with pytest.raises(InputError, match=r"world-size|write launch files"):
        launcher.render(problem(GPT, sequence=2048), Strategy(tp=8, dp=2))


@pytest.mark.parametrize(("name", "model_name"), [(name, m) for name, models in WRITERS.items() for m in models])
def test_its_files_are_the_same_every_time_and_parse(name: str, model_name: str) -> None:
    p = problem(model_name, sequence=1024)
    has_sp = True in get_launcher(name).capabilities["sp"]
    s = fitted(p, tp=2, sp=has_sp, pp=2, dp_overlap=has_sp)
    files = get_launcher(name).render(p, s)
    assert files == get_launcher(name).render(p, s)
    for file, text in files.items():
        assert text.endswith("\n") and not text.endswith("\n\n"), file
        assert "\t" not in text and "\r" not in text
        if file.endswith(".json"):
            json.loads(text)
        if file.endswith(".sh"):
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert done.returncode == 0, (file, done.stderr)


def test_its_rank_order_makes_groups_of_the_right_sizes(launcher: Launcher) -> None:
    s = Strategy(tp=2, cp=2, dp=4, pp=2, ep=4)
    sizes = {name: len(groups[0]) for name, groups in rank_groups(s, launcher.rank_order).items()}
    assert sizes == {"tp": 2, "cp": 2, "dp": 4, "dp_cp": 8, "shard": 8, "pp": 2, "ep": 4, "etp": 1, "edp": 4}


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
    with pytest.raises(UnknownNameError, match="expected one of generic, megatron"):
        get_launcher("xyz")

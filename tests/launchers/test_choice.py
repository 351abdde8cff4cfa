"""Which launcher and runtime a plan gets when some, all or none are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.costmodel.presets import list_presets
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import list_launchers
from shardwise.launchers.choice import NO_FILES, PREFERENCE, Choice, choose_launcher

from .problems import LLAMA, model

CLUSTER = load_cluster("dgx-a100", num_gpus=64)


def choose(name: str, dtype: str = "bf16", **named: str) -> Choice:
    return choose_launcher(model(name), CLUSTER, Workload(64, 1024, dtype=dtype), **named)  # type: ignore[arg-type]


def names(choice: Choice) -> tuple[str, str]:
    return choice.launcher.name, choice.runtime.name


def test_megatron_comes_first_and_needs_no_word() -> None:
    choice = choose(LLAMA)
    assert names(choice) == ("megatron", "megatron-core") and choice.reason is None


@pytest.mark.parametrize(("dtype", "runtime"), [("bf16", "megatron-deepspeed-bf16"), ("fp16", "megatron-deepspeed")])
def test_bloom_goes_to_the_framework_that_trained_it(dtype: str, runtime: str) -> None:
    choice = choose("bloom-176b", dtype)
    assert names(choice) == ("megatron-deepspeed", runtime)
    assert choice.reason == "launcher megatron-deepspeed: megatron cannot express ALiBi positions"


def test_a_model_that_only_transformers_builds_goes_to_accelerate() -> None:
    choice = choose("gemma-2-9b")
    assert names(choice) == ("accelerate", "accelerate-fsdp2")
    assert choice.reason == (
        "launcher accelerate: megatron cannot express soft-capped logits and four norms a layer, "
        "megatron-deepspeed cannot express 8 key-value heads for 16 query heads, "
        "torchtitan cannot express sizes that it ships no configuration for"
    )


def test_a_model_that_none_can_express_is_planned_without_files() -> None:
    choice = choose("command-r-35b")
    assert names(choice) == ("generic", "megatron-core")
    assert (choice.reason or "").startswith(NO_FILES + "no launcher takes this job (")
    for name in PREFERENCE:
        assert f"{name} cannot express " in (choice.reason or "")


def test_runtimes_of_fsdp_trainers_lead_to_accelerate() -> None:
    assert names(choose(LLAMA, runtime="pytorch-fsdp")) == ("accelerate", "pytorch-fsdp")


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_gets_a_launcher_that_takes_it(name: str) -> None:
    choice = choose(name)
    assert (choice.launcher.name == "megatron") == (choice.reason is None)
    assert (choice.launcher.name == "generic") == (choice.reason or "").startswith(NO_FILES)


def test_a_named_launcher_is_taken_whatever_the_model() -> None:
    choice = choose("bloom-176b", launcher="megatron")
    assert names(choice) == ("megatron", "megatron-core") and choice.reason is None
    assert names(choose(LLAMA, launcher="megatron-deepspeed", runtime="megatron-2021")) == (
        "megatron-deepspeed",
        "megatron-2021",
    )


@pytest.mark.parametrize("runtime", ["megatron-core", "megatron-2021"])
def test_a_named_runtime_leaves_its_own_launcher(runtime: str) -> None:
    assert names(choose(LLAMA, runtime=runtime)) == ("megatron", runtime)
    choice = choose("bloom-176b", runtime=runtime)
    assert names(choice) == ("generic", runtime)
    assert choice.reason == NO_FILES + "no launcher takes this job (megatron cannot express ALiBi positions)"


@pytest.mark.parametrize("runtime", ["megatron-deepspeed-bf16", "megatron-deepspeed"])
def test_the_default_runtimes_of_a_launcher_lead_to_it(runtime: str) -> None:
    choice = choose("bloom-176b", runtime=runtime)
    assert names(choice) == ("megatron-deepspeed", runtime) and choice.reason is None


def test_a_runtime_that_no_launcher_writes_for() -> None:
    choice = choose(LLAMA, runtime="jax")
    assert names(choice) == ("generic", "jax")
    assert choice.reason == NO_FILES + "no launcher writes for the framework of runtime jax"


@pytest.mark.parametrize("runtime", ["torchtitan", "torchtitan-2025"])
def test_a_runtime_of_torchtitan_leads_to_it(runtime: str) -> None:
    choice = choose(LLAMA, runtime=runtime)
    assert names(choice) == ("torchtitan", runtime) and choice.reason is None


def test_a_runtime_may_be_given_as_an_object() -> None:
    given = load_runtime("megatron-core").model_copy(update={"name": "ours"})
    assert choose_launcher(model(LLAMA), CLUSTER, Workload(64, 1024), runtime=given).runtime is given


def test_unknown_names_are_refused_before_the_model_is_looked_at() -> None:
    odd = replace(model(LLAMA), layers=())
    for named in ({"launcher": "megatrn"}, {"runtime": "megatron-cor"}):
        with pytest.raises(UnknownNameError, match="did you mean"):
            choose_launcher(odd, CLUSTER, Workload(64, 1024), **named)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        choose(LLAMA, runtime="absent.yaml")


def test_every_launcher_that_writes_files_is_tried() -> None:
    assert {*PREFERENCE, "generic"} == set(list_launchers())


@pytest.mark.parametrize("system", ["tpu-v5p", "trn2-efa", "gaudi3-hls3", "cloudmatrix384"])
def test_an_accelerator_without_a_launcher_is_planned_without_files(system: str) -> None:
    cluster = load_cluster(system, num_gpus=64)
    choice = choose_launcher(model(LLAMA), cluster, Workload(64, 1024))
    assert choice.launcher.name == "generic"
    assert (choice.reason or "").startswith(NO_FILES)
    assert f"megatron: Megatron-LM has no kernels for {cluster.accelerator.name}" in (choice.reason or "")
    # The published runs on TPU are JAX's (PaLM, MaxText, Google's recipes).
    assert (choice.runtime.name == "jax") == (cluster.accelerator.vendor == "Google")


def test_a_precision_that_the_accelerator_lacks_is_no_reason_for_another_launcher() -> None:
    cluster = load_cluster("dgx-h100", num_gpus=64)
    assert choose_launcher(model(LLAMA), cluster, Workload(64, 1024, dtype="mxfp8")).launcher.name == "megatron"

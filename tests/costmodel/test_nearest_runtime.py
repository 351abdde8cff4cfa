"""Software without a profile takes the nearest one: family and release first, device and precision otherwise."""

from __future__ import annotations

import re

import pytest

from shardwise.costmodel._nearest_runtime import FAMILIES, family_of, nearest_runtime, runs_on
from shardwise.costmodel.runtime import list_runtimes
from shardwise.hardware_profiles.load_accelerator import load_accelerator

A100, V100 = load_accelerator("A100-SXM4-80GB"), load_accelerator("V100-SXM2-32GB")
H100, GB200 = load_accelerator("H100-SXM5-80GB"), load_accelerator("GB200")


def test_families_name_shipped_profiles_once_and_shipped_heirs():
    members = [profile for family in FAMILIES for profile in family.profiles]
    assert len(members) == len(set(members))
    assert set(members) <= set(list_runtimes())
    assert {heir for family in FAMILIES for heir in family.heirs} <= {family.name for family in FAMILIES}


@pytest.mark.parametrize("profile", [p for family in FAMILIES for p in family.profiles])
def test_the_name_of_a_profile_leads_to_its_own_family(profile: str):
    family = next(f for f in FAMILIES if re.search(f.words, profile))
    assert family.name == family_of(profile)


@pytest.mark.parametrize(
    ("software", "device", "expected"),
    [
        ("nemo-dgxc-25.03", H100, "nemo-dgxc-25.02.02"),
        ("nemo-25.11", H100, "nemo-dgxc-25.05.05"),
        ("nemo-23.01", H100, "nemo-24.07"),
        ("Megatron-Bridge 26.05", GB200, "megatron-bridge-26.04.01"),
        ("megatron-bridge-27.01", GB200, "megatron-bridge-26.08"),
        ("megatron-bridge-27.01", H100, "megatron-bridge-26.04.01"),
        ("megatron-core-0.7", H100, "megatron-core"),
        ("megatron-2021", H100, "megatron-core"),
        ("Megatron-LM 2022", A100, "megatron-2022"),
        ("MaxText", load_accelerator("TPUv5e"), "jax"),
        ("torchtitan-0.3", GB200, "torchtitan-2025"),
        ("PyTorch FSDP2", A100, "pytorch-fsdp"),
        ("Colossal-AI", A100, "deepspeed-zero"),
    ],
)
def test_by_family_and_release(software: str, device, expected: str):
    assert nearest_runtime(software, device, "bf16") == expected


def test_by_device_precision_and_sharding_where_nothing_is_said():
    assert nearest_runtime(None, A100, "fp16") == "megatron-2021"
    assert nearest_runtime(None, V100, "fp16") == "megatron-2020"
    assert nearest_runtime(None, A100, "bf16") == "megatron-core"
    assert nearest_runtime("megatron-2021", H100, "bf16", sharded=True) == "megatron-core"
    assert nearest_runtime(None, H100, "fp8", sharded=True) == "torchtitan"
    assert nearest_runtime("a framework nobody knows", H100, "bf16") == "megatron-core"


def test_struck_profiles_pass_to_their_family_then_to_its_heirs():
    nemo = next(f for f in FAMILIES if f.name == "nemo").profiles
    assert nearest_runtime("nemo-24.07", H100, "bf16", struck={"nemo-24.07"}) == "nemo-dgxc-24.11.1"
    assert family_of(nearest_runtime("nemo-24.07", H100, "bf16", struck=nemo)) == "megatron-bridge"
    assert nearest_runtime(None, H100, "bf16", struck=list_runtimes()) == "megatron-core"


def test_early_software_runs_on_early_devices_only():
    assert runs_on("megatron-2021", A100)
    assert runs_on("megatron-2021", V100)
    assert not runs_on("megatron-2021", H100)
    assert runs_on("megatron-core", GB200)

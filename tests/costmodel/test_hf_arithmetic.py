"""Rotary base, epsilon and activation are what the file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.hf import model_from_config
from shardwise.costmodel.megatron_args import read_megatron_args
from shardwise.costmodel.presets import load_preset
from shardwise.hardware_profiles.errors import InputError

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs"
MEGATRON = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --max-position-embeddings 64 "


def facts(name: str, without: tuple[str, ...] = (), **changes: Any) -> tuple[float | None, float | None, str | None]:
    data = json.loads((CONFIGS / f"{name}.json").read_text())
    data = {key: value for key, value in data.items() if key not in without} | changes
    model = model_from_config(data, "model", "model.json")
    return model.rotary_base, model.norm_epsilon, model.activation


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2-7b", (10000.0, 1e-5, "silu")),
        ("llama-3.1-70b", (500000.0, 1e-5, "silu")),
        ("llama-3.2-3b", (500000.0, 1e-5, "silu")),
        ("mistral-7b", (10000.0, 1e-5, "silu")),
        ("qwen2.5-7b", (1000000.0, 1e-6, "silu")),
        ("qwen2.5-14b", (1000000.0, 1e-5, "silu")),
        ("deepseek-v3", (10000.0, 1e-6, "silu")),
        ("phi-4", (250000.0, 1e-5, "silu")),
        ("gpt-3-175b", (None, None, "gelu_new")),
        ("bloom-176b", (None, None, None)),
        ("starcoder2-7b", (None, None, "gelu_pytorch_tanh")),
    ],
)
def test_presets(name: str, expected: tuple[float | None, float | None, str | None]) -> None:
    model = load_preset(name)
    assert (model.rotary_base, model.norm_epsilon, model.activation) == expected


def test_where_the_base_stands() -> None:
    bare = ("rope_theta",)
    assert facts("Llama-3.1-8B", bare)[0] == 10000
    assert facts("Llama-3.1-8B", bare, rope_scaling=None, rope_parameters={"rope_theta": 7e5})[0] == 7e5
    assert facts("Llama-3.1-8B", rope_parameters={"rope_theta": 500000, "rope_type": "default"})[0] == 500000
    kinds = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    assert facts("Gemma-2-27B", bare, rope_parameters=kinds)[0] == 1e6
    assert facts("Gemma-2-27B", bare)[0] is None
    assert facts("GPT-NeoX-20B", rotary_emb_base=25000)[0] == 25000


def test_epsilons_that_differ_are_no_fact() -> None:
    assert facts("Llama-3.1-8B", rms_norm_eps=1e-6, layer_norm_eps=1e-6)[1] == 1e-6
    assert facts("Llama-3.1-8B", rms_norm_eps=1e-6, layer_norm_eps=1e-5)[1] is None


def test_a_class_default_is_said() -> None:
    assert "rope_theta is not given: 10000 (class default)" in load_preset("llama-2-7b").assumptions
    assert not any("rope_theta" in note for note in load_preset("llama-3.1-8b").assumptions)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", (None, 1e-5, "gelu")),
        ("--position-embedding-type rope", (10000.0, 1e-5, "gelu")),
        ("--position-embedding-type rope --rotary-base 500000 --norm-epsilon 1e-6 --swiglu", (5e5, 1e-6, "silu")),
        ("--position-embedding-type rope --rotary-base=$BASE --squared-relu", (None, 1e-5, "relu2")),
        ("--norm-epsilon 1e-5 --norm-epsilon 1e-6 --quick-geglu", (None, None, "quick_gelu")),
    ],
)
def test_megatron(more: str, expected: tuple[float | None, float | None, str]) -> None:
    model = read_megatron_args(MEGATRON + more)
    assert (model.rotary_base, model.norm_epsilon, model.activation) == expected


@pytest.mark.parametrize(
    "flag", ["--norm-epsilon 0", "--norm-epsilon tiny", "--rotary-base 1e99", "--rotary-base 1.2.3"]
)
def test_a_megatron_number_that_is_none_is_refused(flag: str) -> None:
    with pytest.raises(InputError, match=f"{flag.split()[0]} = .*expected a positive finite number") as caught:
        read_megatron_args(MEGATRON + flag)
    assert "\n" not in str(caught.value)

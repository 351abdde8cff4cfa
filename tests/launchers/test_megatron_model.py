"""A model description as Megatron's arguments: every size, and a clear refusal where the script cannot follow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.costmodel.hf import model_from_config
from shardwise.costmodel.model import Extra, Linear, ModelSpec, Split
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.megatron_model import layer_pattern, model_arguments

from .problems import DEEPSEEK, GPT, LLAMA, MIXTRAL, QWEN, model, problem

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs"


def arguments(name: str | ModelSpec, **work: object) -> dict[str, str]:
    """Flag to its value ('' for a switch)."""
    made = model_arguments(problem(name, **work))  # type: ignore[arg-type]
    found: dict[str, str] = {}
    flag = ""
    for word in (*made.shape, *made.facts):
        if word.startswith("--"):
            flag = word
            assert flag not in found
            found[flag] = ""
        else:
            found[flag] = word
    return found


def test_llama() -> None:
    found = arguments(LLAMA)
    expected = {
        "--num-layers": "80",
        "--hidden-size": "8192",
        "--ffn-hidden-size": "28672",
        "--num-attention-heads": "64",
        "--group-query-attention": "",
        "--num-query-groups": "8",
        "--kv-channels": "128",
        "--position-embedding-type": "rope",
        "--rotary-base": "500000",
        "--swiglu": "",
        "--normalization": "RMSNorm",
        "--untie-embeddings-and-output-weights": "",
        "--disable-bias-linear": "",
        "--seq-length": "4096",
        "--max-position-embeddings": "131072",
    }
    assert expected.items() <= found.items()
    assert "--num-experts" not in found and "--qk-layernorm" not in found


def test_gpt3_keeps_biases_layer_norm_learned_positions_and_tied_embeddings() -> None:
    found = arguments(GPT, sequence=2048)
    assert found["--normalization"] == "LayerNorm"
    assert found["--position-embedding-type"] == "learned_absolute"
    assert found["--max-position-embeddings"] == "2048"
    absent = {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--rotary-base"}
    assert not absent & set(found) and "--group-query-attention" not in found


def test_mixtral_has_its_experts_everywhere() -> None:
    found = arguments(MIXTRAL)
    assert (found["--num-experts"], found["--moe-router-topk"], found["--moe-ffn-hidden-size"]) == ("8", "2", "16384")
    assert "--moe-layer-freq" not in found and "--moe-shared-expert-intermediate-size" not in found


def test_deepseek_has_latent_attention_groups_shared_expert_and_prediction() -> None:
    expected = {
        "--multi-latent-attention": "",
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--qk-layernorm": "",
        "--num-experts": "256",
        "--moe-layer-freq": "([0]*3+[1]*58)",
        "--moe-ffn-hidden-size": "2048",
        "--ffn-hidden-size": "18432",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-router-num-groups": "8",
        "--moe-router-group-topk": "4",
        "--moe-router-score-function": "sigmoid",
        "--moe-router-topk-scaling-factor": "2.5",
        "--mtp-num-layers": "1",
    }
    found = arguments(DEEPSEEK)
    assert expected.items() <= found.items()
    assert "--group-query-attention" not in found
    assert "--mtp-num-layers" not in arguments(DEEPSEEK, train_mtp=False)


def test_qwen_has_head_norms() -> None:
    found = arguments(QWEN)
    assert "--qk-layernorm" in found and found["--kv-channels"] == "128" and found["--num-query-groups"] == "4"


def test_biases_on_queries_keys_and_values_alone() -> None:
    found = arguments("qwen2.5-7b")
    assert "--disable-bias-linear" in found and "--add-qkv-bias" in found


def test_a_gate_on_the_shared_expert() -> None:
    found = arguments("qwen1.5-moe-a2.7b")
    assert found["--moe-shared-expert-intermediate-size"] == "5632" and "--moe-shared-expert-gate" in found


def test_a_window_counts_the_token_itself() -> None:
    assert arguments("mistral-7b")["--window-size"] == "(4095,0)"


def test_squared_relu_and_a_norm_less_one() -> None:
    found = arguments("nemotron-4-340b")
    assert {"--squared-relu", "--apply-layernorm-1p"} <= set(found) and found["--rotary-percent"] == "0.5"


def test_sinks_biases_and_a_clamped_gate() -> None:
    found = arguments("gpt-oss-20b")
    assert found["--softmax-type"] == "learnable" and found["--window-size"] == "(127,0)"
    assert found["--window-attn-skip-freq"].startswith("([1]*1+[0]*1+[1]*1")
    assert (found["--glu-linear-offset"], found["--activation-func-clamp-value"]) == ("1.0", "7.0")
    absent = {"--qk-layernorm", "--swiglu", "--disable-bias-linear", "--add-qkv-bias"}
    assert "--quick-geglu" in found and not absent & set(found)


def test_a_softmax_over_one_expert_comes_before_the_choice() -> None:
    spec = model(MIXTRAL)
    (kind,) = spec.kinds
    assert kind.moe is not None
    one = replace(spec, kinds=(replace(kind, moe=replace(kind.moe, top_k=1)),))
    assert "--moe-router-pre-softmax" in arguments(one)
    assert "--moe-router-pre-softmax" not in arguments(spec)


def test_facts_the_description_lacks_are_said_to_be_assumed() -> None:
    bare = replace(model(DEEPSEEK), rotary_base=None, norm_epsilon=None, activation=None)
    notes = " ".join(model_arguments(problem(bare)).assumptions)
    assert all(
        word in notes for word in ("rotary base 10000", "norm epsilon 1e-6", "activation SiLU", "router sigmoid")
    )
    unknown = model_arguments(problem(replace(model(LLAMA), architecture="Novel")))
    assert "Novel is no known family" in unknown.assumptions[0]


def test_what_the_file_says_comes_before_the_family_and_is_not_assumed() -> None:
    config = json.loads((CONFIGS / "Llama-2-7B.json").read_text()) | {"rms_norm_eps": 1e-5}
    assert "rope_theta" not in config
    found = arguments(model_from_config(config, "llama", "config.json"))
    assert (found["--rotary-base"], found["--norm-epsilon"]) == ("10000", "1e-05")
    found = arguments(model_from_config(config | {"rope_theta": 5e6, "rms_norm_eps": 1e-6}, "yi", "config.json"))
    assert (found["--rotary-base"], found["--norm-epsilon"]) == ("5000000", "1e-06")
    for name, base in (("llama-2-7b", "10000"), ("llama-3.1-8b", "500000"), ("mistral-7b", "10000")):
        found = arguments(name)
        assert (found["--rotary-base"], found["--norm-epsilon"]) == (base, "1e-05")
        notes = model_arguments(problem(name)).assumptions
        assert not any(word in note for note in notes for word in ("rotary base", "epsilon", "activation"))
        assert any("without scaling" in note for note in notes)


def test_activations() -> None:
    plain = replace(model(GPT), architecture="Novel")
    assert "--squared-relu" in arguments(replace(plain, activation="relu2"))
    assert "--squared-relu" not in arguments(replace(plain, activation="gelu_pytorch_tanh"))
    quick = arguments(replace(model(LLAMA), activation="quick_gelu"))
    assert "--quick-geglu" in quick and "--swiglu" not in quick
    for spec, words in (
        (replace(plain, activation="relu"), "the activation relu"),
        (replace(model(LLAMA), activation="gelu"), "the activation gelu in a gate"),
        (replace(model(LLAMA), rotary_base=10000.5), "no whole number"),
    ):
        with pytest.raises(InputError, match=words):
            model_arguments(problem(spec))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([True], "([1]*1)"),
        ([False, False, True], "([0]*2+[1]*1)"),
        ([True, False, True, True], "([1]*1+[0]*1+[1]*2)"),
    ],
)
def test_layer_pattern(flags: list[bool], text: str) -> None:
    assert layer_pattern(flags) == text
    # The spelling is a Python expression, which is how Megatron reads it.
    assert [bool(x) for x in eval(text)] == flags


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen3-next-80b-a3b", r"layer kind 'gated delta\+moe'.*gated delta token mixer"),
        ("nemotron-h-56b", "layer kind 'mamba'.*mamba token mixer"),
        ("kimi-linear-48b-a3b", "kda token mixer"),
        ("minimax-m1", "lightning token mixer"),
        ("deepseek-v3.2", "indexer_q"),
        ("deepseek-v4-flash", "cannot express"),
        ("bloom-176b", "ALiBi"),
        ("opt-175b", "ReLU"),
        ("gemma-2-9b", "four norms"),
        ("gemma-4-26b-a4b", "exactly one feed-forward"),
        ("gpt-neox-20b", "in parallel"),
        ("olmo-2-32b", "over all heads together"),
        ("llama-4-scout", "without rotary positions"),
        ("phi-3.5-moe", "head_bias"),
    ],
)
def test_what_the_script_cannot_build_is_refused_by_layer_kind(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_arguments(problem(name, sequence=1024))


def _with_mixer_linear(extra: Linear) -> ModelSpec:
    spec = model(LLAMA)
    (kind,) = spec.kinds
    assert kind.mixer is not None
    return replace(spec, kinds=(replace(kind, mixer=replace(kind.mixer, linears=(*kind.mixer.linears, extra))),))


def test_an_unknown_projection_is_refused() -> None:
    with pytest.raises(InputError, match="attention projection gate"):
        model_arguments(problem(_with_mixer_linear(Linear("gate", 8192, 8192, Split.COLUMN))))


def test_an_unknown_weight_of_a_layer_is_refused() -> None:
    spec = model(LLAMA)
    odd = replace(spec, kinds=(replace(spec.kinds[0], extras=(Extra("layer_scale", 8192),)),))
    with pytest.raises(InputError, match="'layer_scale' beside attention"):
        model_arguments(problem(odd))


def test_a_bias_on_the_output_alone_is_refused() -> None:
    spec = model(LLAMA)
    (kind,) = spec.kinds
    assert kind.mixer is not None
    linears = tuple(replace(op, bias=op.name == "attention_out") for op in kind.mixer.linears)
    odd = replace(spec, kinds=(replace(kind, mixer=replace(kind.mixer, linears=linears)),))
    with pytest.raises(InputError, match="biases on some"):
        model_arguments(problem(odd))


def test_layers_of_several_widths_are_refused() -> None:
    spec = model(LLAMA)
    (kind,) = spec.kinds
    assert kind.mlp is not None
    wide = replace(kind, name="wide", mlp=replace(kind.mlp, width=4096))
    with pytest.raises(InputError, match=r"layer kind 'wide'.*several shapes"):
        model_arguments(problem(replace(spec, kinds=(kind, wide), layers=(0, 1) * 40)))

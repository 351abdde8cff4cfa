"""A model description as Megatron-DeepSpeed's arguments, and a clear refusal where its script cannot follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.costmodel.model import Extra, LayerKind, Linear, Mlp, ModelSpec, Split
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.megatron_deepspeed_model import model_arguments

from .problems import GPT, model, problem

BLOOM = "bloom-176b"


def arguments(name: str | ModelSpec) -> dict[str, str]:
    """Flag to its value ('' for a switch)."""
    made = model_arguments(problem(name, sequence=1024))
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


def gpt(**changes: object) -> ModelSpec:
    """GPT-3 with fields of the model changed."""
    return replace(model(GPT), **changes)  # type: ignore[arg-type]


def gpt_layer(**changes: object) -> ModelSpec:
    """GPT-3 with fields of its layer kind changed."""
    (kind,) = model(GPT).kinds
    return gpt(kinds=(replace(kind, **changes),))  # type: ignore[arg-type]


def gpt_attention(**changes: object) -> ModelSpec:
    (kind,) = model(GPT).kinds
    assert kind.mixer is not None and kind.mixer.core is not None
    return gpt_layer(mixer=replace(kind.mixer, core=replace(kind.mixer.core, **changes)))  # type: ignore[arg-type]


def test_bloom_is_described_as_its_own_job_did() -> None:
    assert arguments(BLOOM) == {
        "--num-layers": "70",
        "--hidden-size": "14336",
        "--num-attention-heads": "112",
        "--kv-channels": "128",
        "--ffn-hidden-size": "57344",
        "--seq-length": "1024",
        "--position-embedding-type": "alibi",
        "--max-position-embeddings": "1024",
        "--embed-layernorm": "",
        "--layernorm-epsilon": "1e-5",
    }


def test_gpt3_has_a_table_of_positions_and_no_norm_on_the_embedding() -> None:
    found = arguments(GPT)
    assert (found["--position-embedding-type"], found["--max-position-embeddings"]) == ("absolute", "2048")
    assert "--embed-layernorm" not in found and "--glu-activation" not in found


def test_rotary_positions_go_without_a_largest_one_and_their_base_is_said() -> None:
    spec = gpt(embedding_extras=(), architecture="Novel")
    found = arguments(spec)
    assert found["--position-embedding-type"] == "rotary" and "--max-position-embeddings" not in found
    notes = " ".join(model_arguments(problem(spec)).assumptions)
    assert "rotary base 10000" in notes and "Novel is no known family" in notes


def test_what_the_file_says_is_not_assumed() -> None:
    spec = gpt(embedding_extras=(), rotary_base=10000.0, norm_epsilon=1e-6, activation="gelu")
    made = model_arguments(problem(spec))
    assert made.facts == ("--layernorm-epsilon", "1e-06")
    assert made.assumptions == ("rotary positions without scaling (not carried by the model description)",)
    for changes, words in (({"rotary_base": 5e5}, "base 500000"), ({"activation": "relu"}, "activation relu")):
        with pytest.raises(InputError, match=words):
            model_arguments(problem(replace(spec, **changes)))  # type: ignore[arg-type]


def test_a_gate_runs_without_the_fused_gelu() -> None:
    spec = gpt_layer(mlp=Mlp(12288, 32768, gated=True, bias=True))
    assert arguments(spec)["--glu-activation"] == "geglu"
    found = arguments(replace(spec, activation="silu"))
    assert found["--glu-activation"] == "swiglu" and "--no-bias-gelu-fusion" in found
    assert found["--ffn-hidden-size"] == "32768"


def _second_kind() -> ModelSpec:
    spec = model(GPT)
    (kind,) = spec.kinds
    assert kind.mlp is not None
    wide = replace(kind, name="wide", mlp=replace(kind.mlp, width=4096))
    return replace(spec, kinds=(kind, wide), layers=(0, 1) * 48)


def _only_kind(spec: ModelSpec) -> LayerKind:
    (kind,) = spec.kinds
    return kind


def _with_linear(name: str, bias: bool) -> ModelSpec:
    kind = _only_kind(model(GPT))
    assert kind.mixer is not None
    more = (*kind.mixer.linears, Linear(name, 12288, 12288, Split.COLUMN, bias))
    return gpt_layer(mixer=replace(kind.mixer, linears=more))


def _without_biases() -> ModelSpec:
    kind = _only_kind(model(GPT))
    assert kind.mixer is not None
    return gpt_layer(mixer=replace(kind.mixer, linears=tuple(replace(op, bias=False) for op in kind.mixer.linears)))


def _with_attention_weight() -> ModelSpec:
    kind = _only_kind(model(GPT))
    assert kind.mixer is not None
    return gpt_layer(mixer=replace(kind.mixer, extras=(Extra("sinks", 96),)))


REFUSED: list[tuple[str | ModelSpec, str]] = [
    ("llama-2-7b", "attention projections without biases"),
    ("llama-3.1-70b", "8 key-value heads for 64 query heads"),
    ("mixtral-8x22b", "experts"),
    ("deepseek-v3", "multi-token prediction"),
    ("deepseek-v2", "attention projections q_down"),
    ("nemotron-h-56b", "mamba token mixer"),
    ("command-r-35b", "in parallel"),
    ("mpt-30b", "without biases"),
    ("opt-175b", "family OPTForCausalLM.*ReLU"),
    ("falcon-180b", "cannot express"),
    (_second_kind(), "layer kind 'wide'.*second kind"),
    (_with_linear("gate", True), "attention projections qkv, attention_out, gate"),
    (_without_biases(), "attention projections without biases"),
    (_with_attention_weight(), "'sinks' in the attention"),
    (gpt_layer(mlp=None), "without a feed-forward"),
    (gpt_layer(mlp=Mlp(12288, 49152, gated=False)), "feed-forward without biases"),
    (gpt_layer(extras=(Extra("layer_scale", 12288),)), "'layer_scale' beside"),
    (gpt_layer(norms=(Extra("input_norm", 12288, norm=True),) * 2), "two LayerNorms"),
    (gpt_attention(window=512), "windowed"),
    (gpt_attention(causal=False), "bidirectional"),
    (gpt_attention(v_head_dim=64), "value heads of another size"),
    (gpt_attention(num_heads=100, num_kv_heads=100), "100 heads that do not divide"),
    (gpt(tied_embeddings=False), "does not share the embedding"),
    (gpt(embedding_dim=512), "512 wide"),
    (gpt(embedding_extras=(Extra("projection", 7),)), "'projection' after the embedding"),
    (gpt(head_extras=(Extra("final_norm", 12288, norm=True),)), "one LayerNorm before"),
    (gpt(architecture="GPTNeoXForCausalLM"), "on a part of each head"),
    (gpt(architecture="NemotronForCausalLM"), "its activation"),
    (gpt(architecture="LlamaForCausalLM", embedding_extras=()), "rotary positions of base 500000 on 100%"),
]


@pytest.mark.parametrize(("name", "words"), REFUSED)
def test_what_the_script_cannot_build_is_refused(name: str | ModelSpec, words: str) -> None:
    with pytest.raises(InputError, match=f"cannot express.*{words}|{words}.*cannot express|{words}"):
        model_arguments(problem(name, sequence=1024))


@pytest.mark.parametrize("work", [{"dtype": "fp8"}, {"dtype": "fp32"}, {"optimizer": "muon"}])
def test_precisions_and_optimizers_of_a_later_time_are_refused(work: dict[str, str]) -> None:
    with pytest.raises(InputError, match=next(iter(work.values()))):
        model_arguments(problem(BLOOM, sequence=1024, **work))  # type: ignore[arg-type]

"""Laws that hold for every model the reader can make."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.hf import model_from_config
from shardwise.costmodel.model import ModelSpec


def total_of_parts(model: ModelSpec) -> int:
    parts = [model.embedding_parameters, model.head_parameters]
    parts += [e.parameters for e in (*model.embedding_extras, *model.head_extras)]
    for number in model.layers:
        kind = model.kinds[number]
        parts += [e.parameters for e in (*kind.norms, *kind.extras)]
        if kind.mixer:
            parts += [op.parameters for op in (*kind.mixer.linears, *kind.mixer.extras)]
        if kind.mlp:
            parts += [op.parameters for op in (*kind.mlp.linears, *kind.mlp.extras)]
        if kind.moe:
            parts += [kind.moe.num_experts * op.parameters for op in kind.moe.expert.linears]
            parts += [op.parameters for op in (kind.moe.router, *kind.moe.latent_linears, *kind.moe.extras)]
            parts += [op.parameters for op in (kind.moe.shared.linears if kind.moe.shared else ())]
            parts += [e.parameters for e in kind.moe.shared_extras]
    return sum(parts)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    head_dim, kv, group = draw(st.sampled_from([32, 64, 128])), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    base = {
        "hidden_size": draw(st.integers(1, 64)) * 64,
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "num_hidden_layers": draw(st.integers(1, 12)),
        "intermediate_size": draw(st.integers(1, 20_000)),
        "vocab_size": draw(st.integers(1, 300_000)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    routed = {"num_experts_per_tok": draw(st.integers(1, 4)), "moe_intermediate_size": draw(st.integers(1, 4096))}
    choice = draw(st.sampled_from(["llama", "qwen3", "qwen3_moe", "deepseek_v3", "mixtral", "qwen3_next"]))
    if choice in ("qwen3_moe", "qwen3_next"):
        base |= routed | {"num_experts": draw(st.integers(4, 64)), "decoder_sparse_step": draw(st.integers(1, 3))}
    if choice == "deepseek_v3":
        first = draw(st.integers(0, 12))
        base |= routed | {"n_routed_experts": 8 * draw(st.integers(1, 8)), "first_k_dense_replace": first}
    if choice == "mixtral":
        base |= {"num_experts_per_tok": 2, "num_local_experts": draw(st.integers(2, 16))}
    return base | {"model_type": choice}


@settings(max_examples=60, deadline=None)
@given(configs())
def test_sum_of_parts_is_the_total(config: dict[str, Any]) -> None:
    model = model_from_config(config, "m", "m")
    assert total_of_parts(model) == model.total_parameters
    assert 0 < model.active_parameters <= model.total_parameters
    if not model.is_moe:
        assert model.active_parameters == model.total_parameters


@settings(max_examples=40, deadline=None)
@given(configs(), st.integers(1, 5))
def test_more_layers_of_the_last_kind_add_their_parameters(config: dict[str, Any], more: int) -> None:
    few = model_from_config(config, "m", "m")
    many = model_from_config(config | {"num_hidden_layers": config["num_hidden_layers"] + more}, "m", "m")
    added = [many.kinds[k].parameters for k in many.layers[few.num_layers :]]
    assert many.total_parameters - few.total_parameters == sum(added)


@settings(max_examples=40, deadline=None)
@given(configs())
def test_tying_saves_one_table(config: dict[str, Any]) -> None:
    tied = model_from_config(config | {"tie_word_embeddings": True}, "m", "m")
    untied = model_from_config(config | {"tie_word_embeddings": False}, "m", "m")
    assert untied.total_parameters - tied.total_parameters == tied.embedding_parameters


@settings(max_examples=40, deadline=None)
@given(configs())
def test_kinds_are_distinct_used_and_hashable(config: dict[str, Any]) -> None:
    model = model_from_config(config, "m", "m")
    assert len(set(model.kinds)) == len(model.kinds)
    assert {*model.layers, *model.mtp} == set(range(len(model.kinds)))
    assert model == model_from_config(config, "m", "m")

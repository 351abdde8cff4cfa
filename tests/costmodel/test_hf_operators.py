"""Shapes, splits and attention cores: what the cost model computes with, beyond the counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwise.costmodel.hf import model_from_config, read_hf_config
from shardwise.costmodel.model import AttentionCore, LayerKind, Mixer, ModelSpec, RecurrentCore, Split

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs"
MEMORY = json.loads((CONFIGS.parent / "model_configs_from_memory.json").read_text())


def read(name: str) -> ModelSpec:
    if name in MEMORY:
        return model_from_config(MEMORY[name]["config"], name, name)
    return read_hf_config(CONFIGS / f"{name}.json")


def layer(name: str, number: int) -> LayerKind:
    model = read(name)
    return model.kinds[model.layers[number]]


def mixer(name: str, number: int = 0) -> Mixer:
    found = layer(name, number).mixer
    assert found is not None
    return found


def core(name: str, number: int = 0) -> AttentionCore:
    found = mixer(name, number).core
    assert isinstance(found, AttentionCore)
    return found


def recurrent(name: str, number: int = 0) -> RecurrentCore:
    found = mixer(name, number).core
    assert isinstance(found, RecurrentCore)
    return found


def splits(name: str, number: int = 0) -> dict[str, Split]:
    return {op.name: op.split for op in mixer(name, number).linears}


def test_grouped_query_attention() -> None:
    shapes = {op.name: (op.in_features, op.out_features, op.split) for op in mixer("Llama-3.1-70B").linears}
    assert shapes == {"qkv": (8192, 10240, Split.COLUMN), "attention_out": (8192, 8192, Split.ROW)}
    assert core("Llama-3.1-70B") == AttentionCore(64, 8, 128, 128)
    assert mixer("Llama-3.1-70B").kind == "gqa"
    assert mixer("SantaCoder-1.1B").kind == "mqa"
    assert mixer("GPT-3-175B").kind == "mha"


def test_head_width_is_not_hidden_over_heads() -> None:
    assert core("Qwen3-0.6B").qk_head_dim == 128
    assert core("gpt-oss-20b").qk_head_dim == 64
    assert core("Mistral-Nemo-12B").qk_head_dim == 128


def test_latent_attention() -> None:
    assert core("DeepSeek-V3") == AttentionCore(128, 128, 192, 128)
    found = splits("DeepSeek-V3")
    assert found["q_down"] is found["kv_down"] is Split.NONE
    assert found["q_up"] is found["kv_up"] is Split.COLUMN
    assert found["attention_out"] is Split.ROW
    assert "q_down" not in splits("Moonlight-16B-A3B")
    # head_dim in these files is not the width of a projection.
    assert core("GLM-5").qk_head_dim == 256
    assert core("Kimi-Linear-48B-A3B", 3).qk_head_dim == 192


def test_indexer() -> None:
    found = core("DeepSeek-V3.2")
    assert (found.selected_keys, found.indexer_heads, found.indexer_head_dim) == (2048, 64, 128)
    owner, borrower = core("GLM-5.2", 0), core("GLM-5.2", 3)
    assert owner.selected_keys == borrower.selected_keys == 2048
    assert owner.indexer_heads == 32
    assert borrower.indexer_heads == 0
    assert core("MiniMax-M3", 0).selected_keys is None
    assert core("MiniMax-M3", 3).selected_keys == 16 * 128


def test_compressed_attention() -> None:
    sliding, sparse, heavy = (core("DeepSeek-V4-Flash", i) for i in (0, 2, 3))
    assert (sliding.window, sliding.compression, sliding.num_kv_heads, sliding.qk_head_dim) == (128, 1, 1, 512)
    assert (sparse.window, sparse.compression, sparse.selected_keys, sparse.local_keys) == (None, 4, 512, 128)
    assert (heavy.window, heavy.compression, heavy.selected_keys, heavy.local_keys) == (None, 128, None, 128)
    assert sparse.indexer_heads == 64
    assert heavy.indexer_heads == 0


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("Mistral-7B", [4096] * 4),
        ("Mistral-7B-v0.3", [None] * 4),
        ("Qwen2.5-7B", [None] * 4),
        ("Gemma-2-27B", [4096, None, 4096, None]),
        ("Gemma-3-1B", [512, 512, 512, 512, 512, None, 512]),
        ("Gemma-4-26B-A4B", [1024, 1024, 1024, 1024, 1024, None]),
        ("gpt-oss-20b", [128, None, 128, None]),
        ("Llama-4-Scout", [8192, 8192, 8192, None]),
        ("OLMo-3.1-32B", [4096, 4096, 4096, None]),
        ("MiMo-V2-Flash", [None, 129, 129, 129, 129, None]),
        ("Step-3.7-Flash", [None] * 4),
        ("SmolLM3-3B", [None] * 4),
    ],
)
def test_windows(name: str, windows: list[int | None]) -> None:
    assert [core(name, i).window for i in range(len(windows))] == windows


def test_chunks_start_anew() -> None:
    assert core("Llama-4-Scout", 0).chunked
    assert not core("Mistral-7B", 0).chunked


def test_heads_by_layer_type() -> None:
    assert (core("MiMo-V2-Flash", 0).num_kv_heads, core("MiMo-V2-Flash", 1).num_kv_heads) == (4, 8)
    assert core("MiMo-V2-Flash", 0).v_head_dim == 128
    full, sliding = core("Gemma-4-26B-A4B", 5), core("Gemma-4-26B-A4B", 0)
    assert (full.num_kv_heads, full.qk_head_dim) == (2, 512)
    assert (sliding.num_kv_heads, sliding.qk_head_dim) == (8, 256)


def test_linear_attention() -> None:
    assert recurrent("Qwen3-Next-80B-A3B") == RecurrentCore("gated_delta", 32, 128, 128, 16, 4, 8192)
    assert recurrent("Kimi-Linear-48B-A3B") == RecurrentCore("kda", 32, 128, 128, 32, 4, 3 * 4096)
    assert recurrent("MiniMax-M1") == RecurrentCore("lightning", 64, 128, 128, 64)
    assert recurrent("Nemotron-3-Nano-30B-A3B") == RecurrentCore("mamba2", 64, 128, 64, 8, 4, 6144)
    assert core("Qwen3-Next-80B-A3B", 3).num_kv_heads == 2


def test_nemotron_layers_are_sub_blocks() -> None:
    mamba, experts, attention = (layer("Nemotron-3-Nano-30B-A3B", i) for i in (0, 1, 5))
    assert mamba.mixer is not None
    assert mamba.mlp is mamba.moe is None
    assert experts.moe is not None
    assert experts.mixer is None
    assert isinstance(attention.mixer.core if attention.mixer else None, AttentionCore)
    whole = read("Nemotron-3-Ultra-550B-A55B")
    mtp = whole.kinds[whole.mtp[0]]
    assert mtp.mixer is not None
    assert mtp.moe is not None


def test_experts() -> None:
    moe = layer("DeepSeek-V3", 10).moe
    assert moe is not None
    assert (moe.num_experts, moe.top_k, moe.num_groups, moe.top_groups) == (256, 8, 8, 4)
    assert moe.shared is not None
    assert moe.router.split is Split.NONE
    two = layer("DeepSeek-V2", 5).moe
    assert two is not None
    assert two.shared is not None
    assert two.shared.width == 2 * 1536
    latent = layer("Nemotron-3-Ultra-550B-A55B", 1).moe
    assert latent is not None
    assert latent.expert.in_features == 2048
    assert [op.out_features for op in latent.latent_linears] == [2048, 8192]
    one_group = layer("Kimi-K2", 10).moe
    assert one_group is not None
    assert (one_group.num_groups, one_group.top_groups) == (0, 0)


def test_gated_and_plain_feed_forwards() -> None:
    gated, plain = layer("Llama-2-7B", 0).mlp, layer("GPT-2-XL", 0).mlp
    assert gated is not None
    assert plain is not None
    assert [(op.out_features, op.split) for op in gated.linears] == [(2 * 11008, Split.COLUMN), (4096, Split.ROW)]
    assert [(op.out_features, op.split) for op in plain.linears] == [(6400, Split.COLUMN), (1600, Split.ROW)]


@pytest.mark.parametrize("name", ["GPT-NeoX-20B", "Falcon-180B", "GPT-J-6B", "Command-R-35B"])
def test_parallel_branches(name: str) -> None:
    assert layer(name, 0).parallel_residual


def test_dense_network_beside_the_experts() -> None:
    both = layer("Gemma-4-26B-A4B", 0)
    assert both.mlp is not None
    assert both.moe is not None


def test_blocks_without_attention() -> None:
    model = read("Nemotron-Super-49B-NAS")
    empty = [i for i, kind in enumerate(model.layers) if model.kinds[kind].mixer is None]
    assert len(empty) == 31
    assert core("Nemotron-Super-49B-NAS", 0).num_kv_heads == 8


def test_layers_that_borrow_keys() -> None:
    owner, borrower = mixer("Hunyuan-Large", 0), mixer("Hunyuan-Large", 1)
    assert {op.name for op in owner.linears} == {"qkv", "attention_out"}
    assert {op.name for op in borrower.linears} == {"q", "attention_out"}


def test_where_other_parameters_live() -> None:
    gpt = read("GPT-2-XL")
    assert {e.name for e in gpt.embedding_extras} == {"position_embedding"}
    assert {e.name for e in read("BLOOM-176B").embedding_extras} == {"embedding_norm"}
    assert {e.name for e in read("GPT-J-6B").head_extras} == {"final_norm", "head_bias"}
    assert {e.name for e in gpt.head_extras} == {"final_norm"}

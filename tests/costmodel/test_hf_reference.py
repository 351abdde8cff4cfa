"""Small models of every family, counted here and built by the transformers library on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.costmodel.hf import model_from_config

pytestmark = pytest.mark.validators

PLAIN = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "intermediate_size": 50,
    "vocab_size": 301,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 40, "vocab_size": 301}
LATENT = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24, "num_key_value_heads": 4}
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 22}
DEEPSEEK = LATENT | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 22,
    "n_shared_experts": 2,
    "q_lora_rank": 20,
    "first_k_dense_replace": 2,
    "n_group": 2,
    "topk_group": 1,
}
INDEX = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
    "shared_expert_intermediate_size": 30,
}

CASES: dict[str, dict[str, Any]] = {
    "llama": PLAIN | {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "mistral": PLAIN | {"head_dim": 24},
    "ministral3": PLAIN | {"head_dim": 24},
    "qwen2": PLAIN | {"tie_word_embeddings": True},
    "qwen3": PLAIN | {"head_dim": 24, "attention_bias": True},
    "phi3": PLAIN,
    "phi": PLAIN,
    "olmo": PLAIN,
    "olmo2": PLAIN,
    "olmo3": PLAIN | {"attention_bias": True},
    "olmoe": PLAIN | {"num_experts": 8, "num_experts_per_tok": 2},
    "gemma": PLAIN | {"head_dim": 24},
    "gemma2": PLAIN | {"head_dim": 24},
    "gemma3_text": PLAIN | {"head_dim": 24},
    "gemma4_text": PLAIN
    | {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True}
    | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 22},
    "glm": PLAIN | {"head_dim": 24},
    "glm4": PLAIN | {"head_dim": 24, "attention_bias": False},
    "smollm3": PLAIN,
    "seed_oss": PLAIN | {"head_dim": 24, "attention_out_bias": True},
    "cohere": PLAIN | {"use_qk_norm": True},
    "cohere2": PLAIN,
    "ernie4_5": PLAIN | {"use_bias": True, "head_dim": 24},
    "exaone4": PLAIN | {"sliding_window": None, "layer_types": ["full_attention"] * 6},
    "arcee": PLAIN,
    "hunyuan_v1_dense": PLAIN | {"head_dim": 24},
    "starcoder2": PLAIN | {"use_bias": False},
    "nemotron": PLAIN | {"head_dim": 24, "mlp_bias": True},
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 4},
    "gpt_bigcode": GPT | {"multi_query": True, "n_inner": 70},
    "gpt_neox": {key: value for key, value in PLAIN.items() if key != "num_key_value_heads"},
    "opt": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "ffn_dim": 50, "vocab_size": 301}
    | {"word_embed_proj_dim": 24, "do_layer_norm_before": False},
    "bloom": {"hidden_size": 64, "n_head": 4, "n_layer": 3, "vocab_size": 301},
    "falcon": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 301}
    | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 301},
    "mixtral": PLAIN | {"num_local_experts": 8},
    "phimoe": PLAIN | {"num_local_experts": 8, "attention_bias": True, "lm_head_bias": True},
    "granitemoe": PLAIN | {"num_local_experts": 8},
    "minimax_m2": PLAIN | {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 24},
    "qwen2_moe": PLAIN | ROUTED | {"shared_expert_intermediate_size": 30, "decoder_sparse_step": 2},
    "qwen3_moe": PLAIN | ROUTED | {"head_dim": 24, "mlp_only_layers": [0, 1]},
    "qwen3_next": PLAIN | ROUTED | DELTA,
    "qwen3_5_moe_text": PLAIN | ROUTED | DELTA,
    "gpt_oss": PLAIN | {"num_local_experts": 8, "head_dim": 24},
    "llama4_text": PLAIN | {"num_local_experts": 8, "intermediate_size_mlp": 77, "interleave_moe_layer_step": 2},
    "glm4_moe": PLAIN
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "first_k_dense_replace": 2}
    | {"attention_bias": True, "use_qk_norm": True, "head_dim": 24},
    "deepseek_v2": PLAIN | DEEPSEEK | {"q_lora_rank": None},
    "deepseek_v3": PLAIN | DEEPSEEK | {"attention_bias": True},
    "deepseek_v32": PLAIN | DEEPSEEK | INDEX,
    "glm_moe_dsa": PLAIN | DEEPSEEK | INDEX | {"index_topk_freq": 2},
    "deepseek_v4": {key: value for key, value in PLAIN.items() if key != "intermediate_size"}
    | INDEX
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "num_key_value_heads": 1}
    | {"head_dim": 16, "q_lora_rank": 20, "o_groups": 1, "o_lora_rank": 8, "hc_mult": 2, "qk_rope_head_dim": 8}
    | {"compress_ratios": [0, 128, 4, 128, 4, 0]},
    "ernie4_5_moe": PLAIN | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 22, "moe_layer_interval": 2},
    "minimax": PLAIN
    | {"num_local_experts": 8, "head_dim": 24, "layer_types": ["linear_attention", "full_attention"] * 3},
    "mimo_v2_flash": PLAIN
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "head_dim": 24, "v_head_dim": 16}
    | {"num_key_value_heads": 2},
    "nemotron_h": {key: value for key, value in PLAIN.items() if key != "num_hidden_layers"}
    | {"hybrid_override_pattern": "M*E-ME", "n_routed_experts": 8, "num_experts_per_tok": 2, "head_dim": 24}
    | {"moe_intermediate_size": 22, "moe_shared_expert_intermediate_size": 30, "moe_latent_size": 16}
    | {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 3},
}


@pytest.mark.parametrize("model_type", sorted(CASES))
def test_same_count_as_the_reference_builds(model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers release does not know {model_type}")
    settings = CASES[model_type]
    reference = transformers.CONFIG_MAPPING[model_type].from_dict(dict(settings))
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(reference)
    built.tie_weights()
    wanted = sum(p.numel() for p in built.parameters())
    model = model_from_config(settings | {"model_type": model_type}, model_type, model_type)
    assert model.total_parameters == wanted

"""Keys of ``config.json`` files that change no shape, and the words that make an unknown key suspicious."""

from __future__ import annotations

import re
from typing import Final

_HARMLESS_TEXT: Final = """
    _name_or_path name_or_path architectures auto_map model_type transformers_version torch_dtype dtype
    is_decoder is_encoder_decoder use_cache return_dict return_dict_in_generate output_attentions
    output_hidden_states output_scores output_router_logits output_dropout embedding_dropout
    id2label label2id num_labels problem_type pruned_heads task_specific_params finetuning_task tokenizer_class
    prefix torchscript use_bfloat16 tf_legacy_loss tie_encoder_decoder cross_attention_hidden_size
    chunk_size_feed_forward bad_words_ids begin_suppress_tokens suppress_tokens forced_bos_token_id
    forced_eos_token_id decoder_start_token_id sep_token_id pad_id eod_token_id
    do_sample temperature top_k top_p typical_p repetition_penalty length_penalty diversity_penalty early_stopping
    num_beams num_beam_groups num_return_sequences max_length min_length no_repeat_ngram_size
    encoder_no_repeat_ngram_size exponential_decay_length_penalty remove_invalid_values max_new_tokens
    initializer_range init_std init_method_std init_device init_config initializer_factor
    attention_dropout attention_probs_dropout_prob hidden_dropout hidden_dropout_prob resid_pdrop embd_pdrop
    attn_pdrop emb_pdrop dropout layerdrop residual_dropout classifier_dropout summary_first_dropout
    rms_norm_eps layer_norm_epsilon layer_norm_eps layernorm_epsilon norm_eps norm_epsilon hc_eps
    rope_theta rope_scaling rope_parameters rope_interleave rope_local_base_freq rope_ratio rope_type rotary_dim
    rotary_pct rotary_emb_base rotary_base partial_rotary_factor original_max_position_embeddings use_mrope
    position_embedding_xdrope xdrope_section indexer_rope_interleave compress_rope_theta rope_pct
    swa_rope_theta local_rope_theta rope_mode max_window_layers mrope_section
    max_position_embeddings max_seq_len seq_length n_ctx model_max_length initial_context_length
    context_window_size prefill_chunk_size sliding_window_size tensor_parallel_shards max_batch_size
    cache_implementation quantization_config compression_config expert_dtype quantization
    attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled use_flash_attn
    pretraining_tp ep_size num_logits_to_keep use_sdpa
    bos_token_id eos_token_id pad_token_id unk_token_id
    router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux input_jitter_noise router_z_loss_coef
    scoring_func score_function norm_topk_prob topk_method routed_scaling_factor moe_router_activation_func
    moe_renormalize moe_norm_min moe_router_scaling_factor
    attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar logit_scale attention_multiplier
    logits_scaling residual_multiplier embedding_multiplier
    swiglu_limit swiglu_alpha swiglu_limits swiglu_limits_shared
    skip_bias_add skip_bias_add_qkv slow_but_exact masked_softmax_fusion attention_softmax_in_fp32
    bias_dropout_fusion fp32_residual_connection apply_query_key_layer_scaling residual_in_fp32
    scale_attention_softmax_in_fp32 scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
    runner_max_sequence_length summary_activation summary_proj_to_labels summary_type summary_use_proj
    gradient_checkpointing  verbose for_llm_compressor hc_sinkhorn_iters
    attn_temperature_tuning floor_scale attn_scale mamba_ssm_dtype mamba_ssm_cache_dtype
    use_unified_vision_chunk language label_smoothing
    source notes
"""
_HARMLESS: Final = frozenset(_HARMLESS_TEXT.split())
"""``source`` and ``notes`` are where shardwise's own preset files say where they come from."""

_HARMLESS_PATTERN: Final = re.compile(
    r"^(bos|eos|pad|sep|cls|mask|unk|bo[iav]|eo[iav]|image|img|video|audio|vision\w*|media\w*)_token(_ids?|_index)?$"
    r"|(_token_ids?|_token_index|_dropout|_pdrop|_eps|_epsilon|_std|_dtype|_fusion|_in_fp32|_loss_coef)$"
    r"|^(rope|vision|vit|image|audio|video|projector|multimodal|mm|im|img|text_start|text_end)_"
)

_SUSPICIOUS: Final = re.compile(
    r"size|dim|layer|head|expert|rank|bias|(^|_)tied?(_|$)|norm|gat(e|ing)|moe|mlp|attention|attn|ffn|hidden|width|depth"
    r"|block|group|latent|lora|embed|vocab|mtp|nextn|share|router|conv|state|mamba|ssm|linear|sparse|index|pattern"
    r"|channel|kernel|factor|mult|ratio|position|sink|compress|inner|interval|freq|step|window|hash|cross|num_|^n_|_num"
    r"|_n$|(^|_)(mla|cla|kv|nas)(_|$)|proj"
)


def is_harmless(key: str) -> bool:
    """Whether the key is known to change no shape in any family."""
    return key in _HARMLESS or bool(_HARMLESS_PATTERN.search(key))


def may_shape_the_model(key: str) -> bool:
    """Whether an unknown key's name sounds as if it could change parameter shapes."""
    return bool(_SUSPICIOUS.search(key.lower()))

"""The architecture of a measured run: from its Hugging Face file, or from the flat keys of the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.hardware_profiles.errors import InputError

from .hf_families.parts import Heads, layer, layer_norm, rms_norm, router, softmax_attention
from .model import Extra, LayerKind, Mixer, Mlp, ModelSpec, Moe
from .presets import load_preset

GPT2_VOCABULARY = 50257
"""Byte-pair vocabulary of GPT-2, what Megatron's scripts train with unless told otherwise."""

_FLAT_KEYS = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


class RowSkippedError(InputError):
    """A measured run that cannot be expressed; the message is the reason."""


def row_model(row: Mapping[str, Any], folder: Path, notes: list[str]) -> ModelSpec:
    """The model of a row. ``folder`` holds ``model_configs``; assumptions are appended to ``notes``.

    Raises RowSkippedError where neither a file nor the flat keys describe the architecture.
    """
    model = row["model"]
    preset, name = model.get("preset"), model.get("hf_config")
    if preset:
        return _from_preset(preset)
    if not name:
        return _flat_model(model, notes)
    path = folder / name
    if path.is_file():
        return _checked(_from_file(path), model, path)
    if model.get("attention") == "mla" or _is_hybrid(model) or any(model.get(k) is None for k in _FLAT_KEYS):
        raise RowSkippedError(f"model.hf_config = {name!r}: no such file, and the flat keys do not describe the model")
    notes.append(f"model.hf_config = {name!r} is not there: the flat keys are used")
    return _flat_model(model, notes)


def _from_file(path: Path) -> ModelSpec:
    try:
        return ModelSpec.from_hf(path)
    except InputError as error:
        raise RowSkippedError(f"model.hf_config: {error}") from None


def _from_preset(name: str) -> ModelSpec:
    try:
        return load_preset(name)
    except InputError as error:
        raise RowSkippedError(f"model.preset: {error}") from None


def _checked(spec: ModelSpec, model: Mapping[str, Any], path: Path) -> ModelSpec:
    """The file's model, refused where the row states another size (a proxy of the model)."""
    for key, value in (("num_layers", spec.num_layers), ("hidden_size", spec.hidden_size)):
        stated = model.get(key)
        if stated is not None and stated != value:
            raise RowSkippedError(f"model.{key} = {stated}: {path.name} has {value}")
    return replace(spec, name=str(model.get("name") or spec.name))


def _is_hybrid(model: Mapping[str, Any]) -> bool:
    return any(word in str(model.get("name", "")).lower() for word in ("mamba", "hybrid", "linear"))


def _flat_model(model: Mapping[str, Any], notes: list[str]) -> ModelSpec:
    if model.get("attention") == "mla" or _is_hybrid(model):
        raise RowSkippedError("model: the flat keys cannot express its attention; model.hf_config is needed")
    hidden, layers = _needed(model, "hidden_size"), _needed(model, "num_layers")
    gated, tied = _switches(model, notes)
    mixer = _mixer(model, hidden, gated, notes)
    kinds, order = _layer_kinds(model, hidden, layers, gated, mixer, notes)
    vocab = model.get("vocab_size")
    if vocab is None:
        vocab = GPT2_VOCABULARY
        notes.append(f"model.vocab_size is not stated: {vocab}, the GPT-2 vocabulary of Megatron's scripts")
    learned = not gated and model.get("attention") == "mha"
    positions = (Extra("position_embedding", _needed(model, "seq_len") * hidden),) if learned else ()
    return ModelSpec(
        name=str(model.get("name") or "unnamed"),
        hidden_size=hidden,
        vocab_size=_whole("vocab_size", vocab),
        kinds=kinds,
        layers=order,
        tied_embeddings=tied,
        embedding_extras=positions,
        head_extras=(_norm("final_norm", hidden, gated),),
        architecture="flat keys",
        source="row",
    )


def _switches(model: Mapping[str, Any], notes: list[str]) -> tuple[bool, bool]:
    gated = model.get("gated_mlp")
    if gated is None:
        raise RowSkippedError("model.gated_mlp is not stated")
    tied = model.get("tied_embeddings")
    if tied is None:
        tied = not gated
        notes.append(f"model.tied_embeddings is not stated: {str(tied).lower()}, as in GPT-2 (gated models untie)")
    return bool(gated), bool(tied)


def _norm(name: str, hidden: int, gated: bool) -> Extra:
    return rms_norm(name, hidden) if gated else layer_norm(name, hidden)


def _mixer(model: Mapping[str, Any], hidden: int, gated: bool, notes: list[str]) -> Mixer:
    head_dim, heads, kv = (_optional(model, key) for key in ("head_dim", "num_attention_heads", "num_kv_heads"))
    if heads is None:
        head_dim = min((d for d in range(64, 257) if hidden % d == 0), key=lambda d: abs(d - 128), default=None)
        if head_dim is None:
            raise RowSkippedError("model.num_attention_heads is not stated")
        heads = hidden // head_dim
        notes.append(f"model.num_attention_heads is not stated: {heads} of dimension {head_dim}")
    if head_dim is None:
        if hidden % heads:
            raise RowSkippedError(f"model.num_attention_heads = {heads} does not divide hidden_size = {hidden}")
        head_dim = hidden // heads
    kv = kv or heads
    biased = not gated and model.get("attention") == "mha"
    return softmax_attention(Heads(hidden, heads, kv, head_dim), qkv_bias=biased, out_bias=biased)


def _layer_kinds(
    model: Mapping[str, Any], hidden: int, layers: int, gated: bool, mixer: Mixer, notes: list[str]
) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Distinct layer kinds and the kind of each layer."""
    biased = not gated and model.get("attention") == "mha"
    norms = (_norm("input_norm", hidden, gated), _norm("post_attention_norm", hidden, gated))
    moe = model.get("moe")
    if not moe:
        dense = Mlp(hidden, _needed(model, "ffn_hidden_size"), gated, biased)
        return (layer(mixer, dense, norms),), (0,) * layers
    routed = layer(mixer, _moe(moe, hidden, gated), norms)
    first = moe.get("first_dense_layers")
    if first is not None and (not isinstance(first, int) or isinstance(first, bool) or not 0 <= first <= layers):
        raise RowSkippedError(f"model.moe.first_dense_layers = {first!r}: expected 0 to {layers}")
    if first is None:
        first = 0
        notes.append("model.moe.first_dense_layers is not stated: 0")
    if not first:
        return (routed,), (0,) * layers
    dense = Mlp(hidden, _needed(model, "ffn_hidden_size"), gated, biased)
    return (layer(mixer, dense, norms), routed), (0,) * first + (1,) * (layers - first)


def _moe(moe: Mapping[str, Any], hidden: int, gated: bool) -> Moe:
    experts, top_k = _needed(moe, "num_experts", "model.moe"), _needed(moe, "top_k", "model.moe")
    width = _needed(moe, "moe_ffn_hidden_size", "model.moe")
    shared = moe.get("num_shared_experts") or 0
    total = _optional(moe, "shared_expert_intermediate_size", "model.moe") or shared * width
    return Moe(
        num_experts=experts,
        top_k=top_k,
        expert=Mlp(hidden, width, gated),
        router=router(hidden, experts),
        shared=Mlp(hidden, total, gated) if shared else None,
        num_groups=moe.get("n_group") or 0,
        top_groups=moe.get("topk_group") or 0,
    )


def _optional(table: Mapping[str, Any], key: str, where: str = "model") -> int | None:
    value = table.get(key)
    return None if value is None else _whole(f"{where}.{key}", value)


def _needed(table: Mapping[str, Any], key: str, where: str = "model") -> int:
    value = table.get(key)
    if value is None:
        raise RowSkippedError(f"{where}.{key} is not stated")
    return _whole(f"{where}.{key}", value)


def _whole(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise RowSkippedError(f"{key} = {value!r}: expected a whole number of 1 or more")
    return value

"""The arithmetic of the model description itself."""

from __future__ import annotations

import dataclasses

import pytest

from shardwise.costmodel.model import Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split

ROUTER = Linear("router", 8, 4, Split.NONE)


def test_linear_counts_its_bias() -> None:
    assert Linear("a", 3, 5, Split.COLUMN).parameters == 15
    assert Linear("a", 3, 5, Split.COLUMN, bias=True).parameters == 20


def test_mlp_fuses_the_gate() -> None:
    assert [op.out_features for op in Mlp(8, 6, gated=True).linears] == [12, 8]
    assert Mlp(8, 6, gated=True).parameters == 3 * 48
    assert Mlp(8, 6, gated=False, bias=True).parameters == 2 * 48 + 6 + 8


def test_moe_parts() -> None:
    shared, gate = Mlp(8, 2, gated=True), Extra("gate", 8)
    moe = Moe(4, 2, Mlp(8, 6, gated=True), ROUTER, shared=shared, shared_extras=(gate,), extras=(Extra("bias", 4),))
    assert moe.expert_parameters == 4 * 144
    assert moe.shared_parameters == 48 + 8
    assert moe.dense_parameters == 32 + 4 + 56
    assert moe.parameters == moe.expert_parameters + moe.dense_parameters


def test_layer_and_model() -> None:
    mixer = Mixer("mha", (Linear("qkv", 8, 24, Split.COLUMN),), None, (Extra("q_norm", 2, norm=True),))
    dense = LayerKind("d", mixer, Mlp(8, 6, gated=True), norms=(Extra("n", 8, norm=True),))
    routed = LayerKind("r", mixer, None, Moe(4, 2, Mlp(8, 6, gated=True), ROUTER))
    model = ModelSpec("m", 8, 10, (dense, routed), (0, 1, 1), tied_embeddings=False, head_extras=(Extra("f", 8),))
    assert dense.parameters == 192 + 2 + 144 + 8
    assert routed.active_parameters == routed.parameters - 2 * 144
    assert model.total_parameters == dense.parameters + 2 * routed.parameters + 80 + 80 + 8
    assert model.active_parameters == model.total_parameters - 4 * 144
    assert model.is_moe
    assert model.num_layers == 3


def test_mtp_is_outside_the_total() -> None:
    kind = LayerKind("d", None, Mlp(8, 6, gated=True))
    plain = ModelSpec("m", 8, 10, (kind,), (0,), tied_embeddings=True)
    more = dataclasses.replace(
        plain, mtp=(0, 0), mtp_linears=(Linear("join", 16, 8, Split.COLUMN),), mtp_extras=(Extra("n", 8),)
    )
    assert more.total_parameters == plain.total_parameters
    assert more.mtp_parameters == 2 * (144 + 128 + 8)


def test_narrow_embedding() -> None:
    model = ModelSpec("m", 8, 10, (LayerKind("d"),), (0,), tied_embeddings=False, embedding_dim=4)
    assert model.embedding_parameters == model.head_parameters == 40


def test_everything_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ROUTER.in_features = 9  # type: ignore[misc]

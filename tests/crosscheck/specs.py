"""The same blocks as the cost model sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.costmodel.hf_families.deepseek import Latent, latent_attention
from shardwise.costmodel.layers import LayerTable, layer_table
from shardwise.costmodel.model import LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy

from ..costmodel import cases
from .sizes import Sizes


def model(s: Sizes, gated: bool, layers: int = 1, vocabulary: int = 1024, tied: bool = False) -> ModelSpec:
    """A model of blocks of this shape: experts where it has any, else a dense network."""
    dense = moe = None
    if s.experts:
        shared = Mlp(s.hidden, s.shared_width, gated) if s.shared_width else None
        router = Linear("router", s.hidden, s.experts, Split.NONE)
        moe = Moe(s.experts, s.top_k, Mlp(s.hidden, s.width, gated), router, shared)
    else:
        dense = Mlp(s.hidden, s.width, gated)
    kind = LayerKind("block", mixer(s), dense, moe, cases.norms(s.hidden))
    head = cases.norms(s.hidden, 1)
    return ModelSpec("real", s.hidden, vocabulary, (kind,), (0,) * layers, tied_embeddings=tied, head_extras=head)


def mixer(s: Sizes) -> Mixer:
    """Latent attention where the shape has latents, else grouped queries."""
    latent = s.latent
    if latent is None:
        return cases.attention(s.hidden, s.heads, s.kv_heads)
    sizes = (latent.q_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.v_dim)
    return latent_attention(Latent(s.hidden, s.heads, *sizes))


def problem(s: Sizes, gated: bool, layers: int = 1, num_gpus: int = 8, batch: int = 0, **runtime: Any) -> Problem:
    """The block under a runtime; eight H100s, unless told otherwise."""
    return cases.problem(
        model(s, gated, layers), "dgx-h100", num_gpus, batch or s.batch, s.sequence,
        **{"runtime": "megatron-core", "activation_scale": 1.0, **runtime},
    )  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """Bytes one layer keeps for one micro-batch, as the model has it."""

    saved: float
    selective: float
    boundary: float


def kept(s: Sizes, gated: bool, **runtime: Any) -> Kept:
    """The layer table's three columns for this block and its degrees."""
    strategy = Strategy(tp=s.tp, sp=s.sp, etp=s.etp, micro_batch_size=s.batch)
    table: LayerTable = layer_table(problem(s, gated, **runtime), Strategies.of([strategy]))
    return Kept(*(float(np.asarray(c)[0, 0]) for c in (table.saved, table.saved_selective, table.boundary)))

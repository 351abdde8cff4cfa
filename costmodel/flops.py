"""Model FLOPs: the numerator of MFU."""

from __future__ import annotations

from collections import Counter

import numpy as np

from .model import AttentionCore, LayerKind, ModelSpec
from .operators import scan_flops_per_token, views

MFU_CONVENTION = (
    "matrix-multiplication FLOPs of forward and backward (3 x forward), attention over visible (causal) pairs only, "
    "active experts only, no recomputation, embedding look-up not counted; over the dense peak of the GEMM dtype"
)


def kind_flops_per_token(kind: LayerKind, sequence: int) -> float:
    """Forward FLOPs of one layer for one token of a sequence of this length."""
    linears = [] if kind.mixer is None else list(kind.mixer.linears)
    for mlp in (kind.mlp, kind.moe.shared if kind.moe else None):
        linears += [] if mlp is None else list(mlp.linears)
    flops = sum(2.0 * op.in_features * op.out_features for op in linears)
    if kind.moe is not None:
        fixed = (kind.moe.router, *kind.moe.latent_linears)
        flops += sum(2.0 * op.in_features * op.out_features for op in fixed)
        flops += kind.moe.top_k * sum(2.0 * op.in_features * op.out_features for op in kind.moe.expert.linears)
    core = kind.mixer.core if kind.mixer else None
    if isinstance(core, AttentionCore):
        flops += _attention_flops(core, sequence)
    elif core is not None:
        flops += float(scan_flops_per_token(core, np.ones(1))[0])
    return flops


def _attention_flops(core: AttentionCore, sequence: int) -> float:
    pairs = sum(view.pairs for view in views(core, sequence)) / sequence
    index = 0.0
    if core.indexer_heads:
        seen = sequence / core.compression / (2.0 if core.causal else 1.0)
        index = 2.0 * core.indexer_heads * core.indexer_head_dim * seen
    return 2.0 * core.num_heads * pairs * (core.qk_head_dim + core.v_head_dim) + index


def model_flops_per_token(model: ModelSpec, sequence: int, train_mtp: bool = True) -> float:
    """FLOPs of forward and backward for one token, by ``MFU_CONVENTION``."""
    per_kind = [kind_flops_per_token(kind, sequence) for kind in model.kinds]
    forward = sum(per_kind[k] * n for k, n in Counter(model.layers).items())
    head = 2.0 * model.vocab_size * (model.embedding_dim or model.hidden_size)
    forward += head
    if train_mtp:
        own = sum(2.0 * op.in_features * op.out_features for op in model.mtp_linears)
        forward += sum(per_kind[k] + own + head for k in model.mtp)
    return 3.0 * forward

"""Sizes of a model that rules divide: collected over all layer kinds that are trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.costmodel.memo import Last
from shardwise.costmodel.model import AttentionCore, LayerKind, ModelSpec, RecurrentCore
from shardwise.costmodel.problem import Problem


@dataclass(frozen=True, slots=True)
class Facts:
    """Distinct sizes over the layer kinds in use, multi-token-prediction layers included when they are trained."""

    heads: tuple[int, ...]
    """Query heads of the softmax attentions."""
    kv_heads: tuple[int, ...]
    recurrent_heads: tuple[int, ...]
    recurrent_key_heads: tuple[int, ...]
    """Key heads (gated delta) or groups (Mamba)."""
    widths: tuple[int, ...]
    """Of dense feed-forwards and shared experts."""
    experts: tuple[int, ...]
    expert_widths: tuple[int, ...]
    is_moe: bool
    has_mla: bool
    has_window: bool
    has_sinks: bool
    """A learned sink per head in the softmax."""
    has_expert_bias: bool
    """A bias on the experts' linear layers."""
    mtp_layers: int


def model_facts(problem: Problem) -> Facts:
    """The facts of the problem's model."""
    return _FACTS(problem.model, problem.workload.train_mtp)


def used_kinds(model: ModelSpec, train_mtp: bool) -> tuple[LayerKind, ...]:
    """The layer kinds that occur, in the order of ``model.kinds``."""
    used = sorted({*model.layers, *(model.mtp if train_mtp else ())})
    return tuple(model.kinds[k] for k in used)


def is_mla(kind: LayerKind) -> bool:
    """Whether the layer's attention is multi-head latent attention (low-rank keys and values)."""
    return kind.mixer is not None and kind.mixer.kind.startswith("mla")


def _facts(model: ModelSpec, train_mtp: bool) -> Facts:
    kinds = used_kinds(model, train_mtp)
    cores = [k.mixer.core for k in kinds if k.mixer]
    attention = [c for c in cores if isinstance(c, AttentionCore)]
    recurrent = [c for c in cores if isinstance(c, RecurrentCore)]
    moes = [k.moe for k in kinds if k.moe]
    dense = [*(k.mlp for k in kinds if k.mlp), *(m.shared for m in moes if m.shared)]
    return Facts(
        heads=_distinct(c.num_heads for c in attention),
        kv_heads=_distinct(c.num_kv_heads for c in attention),
        recurrent_heads=_distinct(c.num_heads for c in recurrent),
        recurrent_key_heads=_distinct(c.num_key_heads for c in recurrent),
        widths=_distinct(m.width for m in dense),
        experts=_distinct(m.num_experts for m in moes),
        expert_widths=_distinct(m.expert.width for m in moes),
        is_moe=bool(moes),
        has_mla=any(is_mla(k) for k in kinds),
        has_window=any(c.window is not None for c in attention),
        has_sinks=any(e.name == "sinks" for k in kinds if k.mixer for e in k.mixer.extras),
        has_expert_bias=any(m.expert.bias for m in moes),
        mtp_layers=len(model.mtp) if train_mtp else 0,
    )


_FACTS = Last(_facts)


def _distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))

"""A model's parameter counts as plain values: what ``shardwise models show`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.costmodel.model import LayerKind, Mixer, ModelSpec

_Key = tuple[tuple[str, Any], ...]


def model_as_dict(model: ModelSpec) -> dict[str, Any]:
    """The model with its parameter counts; layers whose parts have equal counts are one entry."""
    return {
        "name": model.name,
        "architecture": model.architecture,
        "source": model.source,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "num_layers": model.num_layers,
        "max_sequence": model.max_sequence,
        "params": {
            "total": model.total_parameters,
            "active": model.active_parameters,
            "embedding": model.embedding_parameters,
            # The output matrix, also where it is the embedding's own and so counts once in the total.
            "head": model.embedding_parameters if model.tied_embeddings else model.head_parameters,
            "tied": model.tied_embeddings,
            "mtp": model.mtp_parameters,
            "other": {e.name: e.parameters for e in (*model.embedding_extras, *model.head_extras)},
            "layers": _layer_groups(model),
        },
        "assumptions": list(model.assumptions),
    }


def _layer_groups(model: ModelSpec) -> list[dict[str, Any]]:
    """One entry per distinct set of counts, in order of first appearance."""
    members: dict[_Key, list[int]] = {}
    kinds: dict[_Key, list[str]] = {}
    parts_of = [_parts(kind) for kind in model.kinds]
    for index, which in enumerate(model.layers):
        key = tuple(parts_of[which].items())
        members.setdefault(key, []).append(index)
        names = kinds.setdefault(key, [])
        if model.kinds[which].name not in names:
            names.append(model.kinds[which].name)
    return [
        {"count": len(indices), "layers": ranges(indices), "kinds": kinds[key], **dict(key)}
        for key, indices in members.items()
    ]


def _parts(kind: LayerKind) -> dict[str, Any]:
    """Counts of one layer by part; the parts present add up to ``total`` (``expert_each`` is within ``experts``)."""
    out: dict[str, Any] = {"total": kind.parameters, "active": kind.active_parameters}
    if kind.mixer:
        norms = _mixer_norms(kind.mixer)
        out["mixer"] = kind.mixer.kind
        out["attention"] = kind.mixer.parameters - norms
        out["attention_norms"] = norms
    if kind.mlp:
        out["dense_mlp"] = kind.mlp.parameters
    if kind.moe:
        moe = kind.moe
        out["router"] = moe.dense_parameters - moe.shared_parameters
        out["shared_experts"] = moe.shared.parameters if moe.shared else 0
        out["shared_expert_gate"] = sum(e.parameters for e in moe.shared_extras)
        out["experts"] = moe.expert_parameters
        out["expert_each"] = moe.expert.parameters
        out["num_experts"] = moe.num_experts
        out["experts_per_token"] = moe.top_k
    out["norms"] = sum(e.parameters for e in kind.norms)
    if kind.extras:
        out["extras"] = sum(e.parameters for e in kind.extras)
    return out


def _mixer_norms(mixer: Mixer) -> int:
    return sum(e.parameters for e in mixer.extras if e.norm)


def ranges(indices: list[int]) -> str:
    """Ascending indices in short: ``0-2,5,7-9``."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)

"""What kind of value each key of a measured run holds, checked before anything reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT = (str, "a text")
_WHOLE = (int, "a whole number of 0 or more")
_FLAG = (bool, "true or false")
_NUMBER = ((int, float), "a number")
_GROUP = (Mapping, "a mapping")

_Kind = tuple[type | tuple[type, ...], str]

_KINDS: dict[str, dict[str, _Kind]] = {
    "": {"software": _TEXT, "source": _GROUP, "measured": _GROUP, "group": _TEXT},
    "model": {
        **dict.fromkeys(("name", "attention", "hf_config", "preset"), _TEXT),
        **dict.fromkeys(
            (
                "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads", "head_dim",
                "vocab_size", "seq_len",
            ),
            _WHOLE,
        ),
        **dict.fromkeys(("gated_mlp", "tied_embeddings"), _FLAG),
        "moe": _GROUP,
    },
    "moe": dict.fromkeys(
        (
            "num_experts", "top_k", "moe_ffn_hidden_size", "num_shared_experts", "shared_expert_intermediate_size",
            "first_dense_layers", "n_group", "topk_group",
        ),
        _WHOLE,
    ),
    "hardware": {
        **dict.fromkeys(("gpu", "intra_node", "inter_node", "system"), _TEXT),
        **dict.fromkeys(("num_gpus", "gpus_per_node"), _WHOLE),
    },
    "parallel": {
        **dict.fromkeys(
            (
                "tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero_stage", "micro_batch_size", "global_batch_size_seqs",
            ),
            _WHOLE,
        ),
        **dict.fromkeys(("sequence_parallel", "fsdp", "train_mtp"), _FLAG),
        **dict.fromkeys(("cp_kind", "recompute", "schedule", "dtype", "notes", "optimizer"), _TEXT),
        "expert_imbalance": _NUMBER,
        "strategy": _GROUP,
    },
    "measured": dict.fromkeys(("step_time_s", "peak_memory_gb", "mfu", "tokens_per_s_per_gpu"), _NUMBER),
}  # fmt: skip
"""By section. A key that is null is a key that is not stated."""

_LARGEST = 1 << 31
_LONGEST_NAME = 255
"""Of a file's name on common file systems, and above any other text that a row's key holds but ``notes``."""


def wrong_kind(row: Mapping[str, Any]) -> str | None:
    """The first key whose value is of another kind than the reader of rows takes, or None."""
    sections: list[tuple[str, str, Any]] = [("", "", row)]
    sections += [(name, f"{name}.", row.get(name)) for name in ("model", "hardware", "parallel", "measured")]
    model = row.get("model")
    sections.append(("moe", "model.moe.", model.get("moe") if isinstance(model, Mapping) else None))
    for name, prefix, section in sections:
        if isinstance(section, Mapping):
            for key, kind in _KINDS[name].items():
                if not _is(section.get(key), kind, key):
                    return f"{prefix}{key} = {_shown(section[key])}: expected {kind[1]}"
    return None


def _is(value: Any, kind: _Kind, key: str) -> bool:
    wanted, _ = kind
    if value is None:
        return True
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        return False
    if isinstance(value, str):
        return key == "notes" or (len(value) <= _LONGEST_NAME and "\0" not in value)
    if isinstance(value, (int, float)):
        return 0 <= value < _LARGEST
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""The list of arguments that Megatron-LM prints when it starts, as one row of measured runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import whole_number

_ARGUMENT = re.compile(r"(?:^|\s)([a-z][a-z0-9_]+) \.{3,} ?(.*)$")
LEAST_ARGUMENTS = 10
"""Fewer dotted lines are not Megatron's list but some other table."""

_UNKNOWN = {
    "multi_latent_attention": "multi-latent attention",
    "is_hybrid_model": "a hybrid model",
    "hybrid_override_pattern": "a hybrid model",
    "mtp_num_layers": "multi-token prediction",
    "use_megatron_fsdp": "Megatron FSDP",
    "use_torch_fsdp2": "FSDP 2",
    "decoder_first_pipeline_num_layers": "uneven stages",
    "decoder_last_pipeline_num_layers": "uneven stages",
    "pipeline_model_parallel_layout": "an explicit layout of stages",
}
"""Arguments that a flat row does not express."""


def read_dump(lines: Iterable[str]) -> dict[str, str]:
    """Name and value of every argument of the list; empty where the log has none."""
    found: dict[str, str] = {}
    for line in lines:
        if match := _ARGUMENT.search(line):
            found.setdefault(match[1], match[2].strip())
    return found if len(found) >= LEAST_ARGUMENTS else {}


def row_of_dump(arguments: Mapping[str, str], path: Path, cluster: Cluster) -> dict[str, Any]:
    """The run as a row of docs/runs.md on the cluster's accelerator. Raises InputError naming the argument."""
    for name, what in _UNKNOWN.items():
        if arguments.get(name, "None") not in ("None", "False", "0", "[]"):
            raise InputError(f"{path}: {name} = {arguments[name]}: {what} is not read from a log: give {path}:row=FILE")
    read = _Arguments(arguments, path)
    moe = _moe(read)
    return {
        "id": path.stem,
        "model": _model(read, moe),
        "hardware": {
            "gpu": cluster.accelerator.name,
            "num_gpus": read.whole("world_size"),
            "gpus_per_node": cluster.node_size,
        },
        "parallel": _parallel(read, moe is not None),
        "measured": {},
        "software": _software(read, moe is not None),
    }


class _Arguments:
    """Typed access to the values, which Megatron prints as Python does."""

    def __init__(self, values: Mapping[str, str], path: Path) -> None:
        self._values, self._path = values, path

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value in (None, "None", "") else value

    def flag(self, name: str) -> bool:
        return self.text(name) == "True"

    def whole(self, name: str, default: int | None = None) -> int:
        text = self.text(name)
        if text is None:
            if default is None:
                raise InputError(f"{self._path}: its list of arguments has no {name}: give {self._path}:row=FILE")
            return default
        if not text.isascii() or not text.isdigit():
            raise InputError(f"{self._path}: {name} = {text[:40]}: expected a whole number")
        return int(text)


def _model(read: _Arguments, moe: dict[str, Any] | None) -> dict[str, Any]:
    heads, hidden = read.whole("num_attention_heads"), read.whole("hidden_size")
    grouped = read.flag("group_query_attention")
    return {
        "name": "as in the log",
        "num_layers": read.whole("num_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": read.whole("ffn_hidden_size", 4 * hidden),
        "num_attention_heads": heads,
        "num_kv_heads": read.whole("num_query_groups", heads) if grouped else heads,
        "head_dim": read.whole("kv_channels", hidden // heads),
        "vocab_size": read.whole("padded_vocab_size", read.whole("vocab_size", 0) or None),
        "seq_len": read.whole("seq_length"),
        "gated_mlp": read.flag("swiglu"),
        "tied_embeddings": not read.flag("untie_embeddings_and_output_weights"),
        "attention": "gqa" if grouped else "mha",
        "moe": moe,
    }


def _moe(read: _Arguments) -> dict[str, Any] | None:
    text = read.text("num_experts")
    if text in (None, "[1]", "1", "0"):
        return None
    shared = read.text("moe_shared_expert_intermediate_size")
    width = read.whole("moe_ffn_hidden_size", read.whole("ffn_hidden_size"))
    return {
        "num_experts": read.whole("num_experts"),
        "top_k": read.whole("moe_router_topk", 2),
        "moe_ffn_hidden_size": width,
        "num_shared_experts": 1 if shared else 0,
        "shared_expert_intermediate_size": whole_number(shared or ""),
        "first_dense_layers": 0,
    }


def _parallel(read: _Arguments, moe: bool) -> dict[str, Any]:
    tp, pp = read.whole("tensor_model_parallel_size"), read.whole("pipeline_model_parallel_size")
    cp = read.whole("context_parallel_size", 1)
    virtual = read.text("virtual_pipeline_model_parallel_size")
    zero = whole_number(read.text("zero_stage") or "")
    granularity = read.text("recompute_granularity")
    if granularity is None:
        granularity = (
            "full" if read.text("activations_checkpoint_method") or read.flag("checkpoint_activations") else "none"
        )
    return {
        "tp": tp,
        "sequence_parallel": read.flag("sequence_parallel"),
        "cp": cp,
        "pp": pp,
        "vpp": whole_number(virtual or "") or 1,
        "dp": read.whole("world_size") // (tp * pp * cp),
        "ep": read.whole("expert_model_parallel_size", 1),
        "etp": read.whole("expert_tensor_parallel_size", tp) if moe else None,
        "zero_stage": int(read.flag("use_distributed_optimizer")) if zero is None else zero,
        "micro_batch_size": read.whole("micro_batch_size"),
        "global_batch_size_seqs": read.whole("global_batch_size"),
        "recompute": granularity,
        "dtype": _dtype(read),
        "schedule": None,
    }


def _dtype(read: _Arguments) -> str:
    if read.text("fp8") not in (None, "False"):
        recipe = read.text("fp8_recipe") or ""
        return {"mxfp8": "mxfp8", "blockwise": "fp8_block"}.get(recipe, "fp8")
    return "bf16" if read.flag("bf16") else "fp16" if read.flag("fp16") else "fp32"


def _software(read: _Arguments, moe: bool) -> str:
    if read.flag("deepspeed"):
        return "megatron-deepspeed"
    return "megatron-core-moe" if moe else "megatron-core"

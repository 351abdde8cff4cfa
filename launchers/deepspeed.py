"""DeepSpeed 0.19 under Hugging Face transformers: what it can express, its rules, and its launch files."""

from __future__ import annotations

from shardwise.costmodel.strategy import RANK_ORDERS

from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .deepspeed_files import write_files
from .deepspeed_pipeline import partition_splits
from .deepspeed_read import is_deepspeed, parse_files
from .deepspeed_rules import check_model, deepspeed_rules
from .deepspeed_tables import DIMENSION_OPTIONS

_CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    "sp": (False,),
    # Ulysses; the kind that a layout of cp = 1 names has no effect.
    "cp_comm": ("p2p", "a2a"),
    # A pipeline is a PipelineModule of the training script, one chunk per rank, one forward one backward.
    "vpp": (1,),
    "schedule": ("1f1b",),
    # Experts stay whole.
    "ep": (1,),
    "etp": (1,),
    "ep_overlap": (False,),
    "tp_overlap": (False,),
    "zero_group": (0,),
    "recompute": ("none", "full"),
    "recompute_layers": (-1,),
    "offload_optimizer": (0.0, 1.0),
    "offload_activations": (False,),
    "rank_order": RANK_ORDERS[:1],
}

LAUNCHER = Launcher(
    name="deepspeed",
    title="DeepSpeed 0.19 (ZeRO, Ulysses, AutoTP) under Hugging Face transformers, or its PipelineModule",
    default_runtime="deepspeed-zero",
    capabilities=_CAPABILITIES,
    own_rules=deepspeed_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_deepspeed,
    own_splits=partition_splits,
)

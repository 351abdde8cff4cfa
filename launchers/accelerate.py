"""Hugging Face Accelerate with FSDP2: what it can express, its rules, and its launch files."""

from __future__ import annotations

from shardwise.costmodel.strategy import RANK_ORDERS

from .accelerate_files import write_files
from .accelerate_models import check_model
from .accelerate_read import DIMENSION_OPTIONS, is_accelerate, parse_files
from .accelerate_rules import accelerate_rules
from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .short_run import ShortRun

_CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    # Plans of transformers split no sequence, and nothing hides their collectives.
    "sp": (False,),
    "tp_overlap": (False,),
    # PyTorch's context parallelism hands keys and values round or gathers them; Ulysses is DeepSpeed's.
    "cp_comm": ("p2p", "all_gather"),
    "ulysses": (1,),
    # No pipeline, and no expert parallelism in ParallelismConfig.
    "pp": (1,),
    "vpp": (1,),
    "schedule": ("1f1b",),
    "ep": (1,),
    "ep_overlap": (False,),
    # FSDP2 divides parameters (ZeRO 3), or keeps them from forward to backward (ZeRO 2); it always prefetches.
    "zero": (2, 3),
    "dp_overlap": (True,),
    "offload_optimizer": (0.0,),
    "offload_activations": (False,),
    # Every layer is a checkpoint or none is.
    "recompute": ("none", "full"),
    "recompute_layers": (-1,),
    "rank_order": RANK_ORDERS[:1],
}

LAUNCHER = Launcher(
    name="accelerate",
    title="Hugging Face Accelerate 1.15 (FSDP2 and ParallelismConfig)",
    default_runtime="accelerate-fsdp2",
    capabilities=_CAPABILITIES,
    own_rules=accelerate_rules(),
    # The mesh is (dp_replicate, dp_shard, cp, tp), outermost first.
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_accelerate,
    short_run=ShortRun(
        arguments=('--max_steps "$ITERATIONS"',),
        step=r"time per step \((ms|s)\): *([0-9.]+)",
        peak=r"max allocated: *([0-9.]+)",
    ),
)

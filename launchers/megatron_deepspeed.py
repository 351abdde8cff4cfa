"""BigScience's Megatron-DeepSpeed, which trained BLOOM: what it can express, its rules, and its launch files."""

from __future__ import annotations

from shardwise.costmodel.strategy import RANK_ORDERS

from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .megatron_deepspeed_files import write_files
from .megatron_deepspeed_model import check_model
from .megatron_deepspeed_read import DIMENSION_OPTIONS, is_megatron_deepspeed, parse_files
from .megatron_deepspeed_rules import megatron_deepspeed_rules
from .short_run import MEGATRON_PEAK, MEGATRON_STEP, ShortRun

_CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    # Its Megatron is of 2021: no sequence or context parallelism, no overlap of tensor traffic, no experts.
    "sp": (False,),
    "cp": (1,),
    "cp_comm": ("p2p",),
    "ulysses": (1,),
    "tp_overlap": (False,),
    "ep": (1,),
    "etp": (1,),
    "ep_overlap": (False,),
    # DeepSpeed's pipeline engine runs even without a pipeline: one chunk per rank, one forward one backward, gradients
    # reduced after the last micro-batch, optimizer states divided at most.
    "vpp": (1,),
    "schedule": ("1f1b",),
    "dp_overlap": (False,),
    "zero": (0, 1),
    "zero_group": (0,),
    "offload_optimizer": (0.0,),
    "offload_activations": (False,),
    # Every layer is a checkpoint or none is.
    "recompute": ("none", "full"),
    "recompute_layers": (-1,),
    "rank_order": RANK_ORDERS[:1],
}

LAUNCHER = Launcher(
    name="megatron-deepspeed",
    title="Megatron-DeepSpeed (BigScience's fork, which trained BLOOM)",
    default_runtime="megatron-deepspeed-bf16",
    dtype_runtimes={"fp16": "megatron-deepspeed"},
    capabilities=_CAPABILITIES,
    own_rules=megatron_deepspeed_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_megatron_deepspeed,
    short_run=ShortRun(
        # Not --exit-interval: this fork saves a checkpoint there, whether or not it has a folder for it.
        arguments=('--train-iters "$ITERATIONS"', "--log-interval 1", "--eval-iters 0"),
        step=MEGATRON_STEP,
        peak=MEGATRON_PEAK,
        folders=("MEGATRON_PATH",),
    ),
)

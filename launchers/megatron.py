"""Megatron-LM (Megatron-Core 0.19): what it can express, its rules, and its launch files."""

from __future__ import annotations

from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .megatron_files import write_files
from .megatron_model import check_model
from .megatron_read import is_megatron, parse_files
from .megatron_rules import megatron_rules
from .megatron_tables import DIMENSION_OPTIONS
from .short_run import MEGATRON_PEAK, MEGATRON_STEP, ShortRun

CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    # Zero-bubble and DualPipe live outside Megatron-Core; GPipe is not offered by its training loop.
    "schedule": ("1f1b", "interleaved"),
}

LAUNCHER = Launcher(
    name="megatron",
    title="Megatron-LM (Megatron-Core 0.19)",
    default_runtime="megatron-core",
    capabilities=CAPABILITIES,
    own_rules=megatron_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_megatron,
    tunable=("microbatch_group", "buckets"),
    short_run=ShortRun(
        # Ends there whatever the length of the run, in iterations or samples; saves only where --save is given.
        arguments=('--exit-interval "$ITERATIONS"', "--log-interval 1", "--eval-iters 0"),
        step=MEGATRON_STEP,
        peak=MEGATRON_PEAK,
        folders=("MEGATRON_PATH",),
    ),
)

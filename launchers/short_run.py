"""How a framework is told to run a few steps only, and what its log says of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShortRun:
    """Facts of one training script.

    ``arguments`` stop it after ``$ITERATIONS`` steps, write every step to the log and neither evaluate nor save; they
    come last, where they override what stands before. The patterns are extended regular expressions of the log:
    ``step`` has two groups, the unit (``ms`` or ``s``) and the number; ``peak`` one, the allocator's peak in MiB.
    ``folders`` are environment variables that name folders. ``most`` steps are all there are in ``launch.sh``.
    """

    arguments: tuple[str, ...]
    step: str
    peak: str
    folders: tuple[str, ...] = ()
    most: int = 100


MEGATRON_STEP = r"elapsed time per iteration \((ms|s)\): *([0-9.]+)"
"""Megatron-LM counts milliseconds, BigScience's fork seconds."""

MEGATRON_PEAK = r"max allocated: *([0-9.]+)"
"""In MiB, of every data-parallel rank 0, when the optimizer has its states."""

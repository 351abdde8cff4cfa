"""Which layers torchtitan gives each pipeline stage, and the options that give a wanted split.

torchtitan divides the layers, plus weights for the first and the last stage, evenly; what is left over goes to the
first stages (``_generate_llm_fqn_per_model_part`` of torchtitan 0.3.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

MOST_WEIGHT = 8
"""Largest weight of the first or last stage that is tried."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Layers that the first and the last stage hold fewer; layers per stage where the number of stages needs it."""

    first: int
    last: int
    layers_per_stage: int | None


def split_of(num_layers: int, stages: int, first: int, last: int) -> tuple[int, ...] | None:
    """Layers of every stage in model order; None where torchtitan refuses the weights."""
    if stages == 1:
        return (num_layers,)
    base, extra = divmod(num_layers + first + last, stages)
    if base == 0 or first > base or last > base:
        return None
    held = [base + (stage < extra) for stage in range(stages)]
    held[0] -= first
    held[-1] -= last
    return tuple(held) if min(held) >= 0 else None


def stages_of(num_layers: int, first: int, last: int, layers_per_stage: int) -> int:
    """Virtual stages of all ranks together."""
    return -(-(num_layers + first + last) // layers_per_stage)


@lru_cache(maxsize=4096)
def weights_for(num_layers: int, stages: int, default_stages: int, split: tuple[int, ...]) -> Weights | None:
    """The least weights that give ``split``; None where none up to ``MOST_WEIGHT`` do.

    ``default_stages`` is the number of stages that torchtitan makes of the schedule alone.
    """
    for total in range(2 * MOST_WEIGHT + 1):
        for first in range(max(0, total - MOST_WEIGHT), min(total, MOST_WEIGHT) + 1):
            last = total - first
            if split_of(num_layers, stages, first, last) != split:
                continue
            if stages == default_stages:
                return Weights(first, last, None)
            each = -(-(num_layers + total) // stages)
            if stages_of(num_layers, first, last, each) == stages:
                return Weights(first, last, each)
    return None

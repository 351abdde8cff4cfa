"""What a launcher can express, as data: solver, validator and writer all read the same table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import CP_COMMS, ENUMS, RANK_ORDERS, RECOMPUTES, SCHEDULES, Strategies, enum_code

from .rule import Allowed, Rule


@dataclass(frozen=True, slots=True)
class Range:
    """Every value from ``least`` to ``most`` (None: no limit)."""

    least: float
    most: float | None = None

    def __contains__(self, value: float) -> bool:
        return self.least <= value and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


Values = tuple[Any, ...] | Range
"""The values of one dimension that a launcher can write down: a list of them, or a range."""

FULL_CAPABILITIES: Mapping[str, Values] = {
    "tp": Range(1),
    "sp": (False, True),
    "cp": Range(1),
    "cp_comm": CP_COMMS,
    "ulysses": Range(1),
    "pp": Range(1),
    "vpp": Range(1),
    "schedule": SCHEDULES,
    "dp": Range(1),
    "ep": Range(1),
    "etp": Range(1),
    "zero": (0, 1, 2, 3),
    "zero_group": Range(0),
    "micro_batch_size": Range(1),
    "num_microbatches": Range(1),
    "recompute": RECOMPUTES,
    "recompute_layers": Range(-1),
    "offload_optimizer": Range(0.0, 1.0),
    "offload_activations": (False, True),
    "tp_overlap": (False, True),
    "dp_overlap": (False, True),
    "ep_overlap": (False, True),
    "rank_order": RANK_ORDERS,
}
"""Every dimension with every value that the cost model knows."""


def capability_rules(launcher: str, capabilities: Mapping[str, Values]) -> tuple[Rule, ...]:
    """One rule ``<launcher>-<dimension>`` for every dimension whose values are fewer than the cost model's."""
    return tuple(
        _rule(launcher, name, values) for name, values in capabilities.items() if values != FULL_CAPABILITIES[name]
    )


def _rule(launcher: str, dimension: str, values: Values) -> Rule:
    shown = str(values) if isinstance(values, Range) else ", ".join(map(str, values))
    label = dimension.replace("_", "-")

    def check(problem: Problem, s: Strategies) -> Allowed:
        have = getattr(s, dimension)
        if isinstance(values, Range):
            top = np.inf if values.most is None else values.most
            return np.asarray((have >= values.least) & (have <= top))
        codes = [enum_code(dimension, v) for v in values] if dimension in ENUMS else list(values)
        return np.isin(have, codes)

    return Rule(f"{launcher}-{label}", f"{launcher} cannot run {dimension} = {{{dimension}}}: it has {shown}", check)

"""What Megatron-Bridge 0.6 refuses or changes beyond Megatron-Core's own rules."""

from __future__ import annotations

import numpy as np

from .megatron_model import learned_positions
from .megatron_rules import megatron_rules
from .rule import Rule

_TITLE = "Megatron-Bridge"


def bridge_rules() -> tuple[Rule, ...]:
    """Rules of Megatron-Bridge in addition to the universal ones and the capability table."""
    return (
        *megatron_rules(_TITLE),
        # run: the table of positions has as many rows as the sequence.
        Rule("position-rows", "{model} has {positions} learned positions; Megatron-Bridge makes one for each of the "
             "{sequence} tokens of a sequence",
             lambda p, s: np.full(len(s), learned_positions(p.model) in (None, p.workload.sequence_length)),
             values=lambda p, s: {"positions": learned_positions(p.model)}, scope="workload",
             fix="train on sequences of {positions} tokens"),
    )  # fmt: skip

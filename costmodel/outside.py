"""What a step costs outside the layers: messages between stages and the traffic of data parallelism, before overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .boundary import p2p_s
from .group import at_rank
from .problem import Array, Ints
from .step import Group, gradient_times, tied_embedding_s
from .strategy import Strategies


@dataclass(frozen=True, slots=True)
class Totals:
    """What a step costs beyond the pipeline, for the rank that holds most parameters, ``[n]`` each."""

    dense: Array
    expert: Array
    p2p: Array
    """One message over a stage boundary."""
    gradients: dict[str, Array]
    tied: Array

    def scaled(self, dense: Array, expert: Array) -> Totals:
        """The same for a rank with fewer parameters. Collective time is concave in bytes, so this never overstates."""
        ratio = np.minimum(1.0, (dense + expert) / np.maximum(1.0, self.dense + self.expert))
        times = {phase: seconds * ratio for phase, seconds in self.gradients.items()}
        return replace(self, dense=dense, expert=expert, gradients=times)


def totals(group: Group, dense: Array, expert: Array) -> Totals:
    """Traffic of a step outside the layers, for parameters ``[rank, n]``."""
    d, e = fullest(dense, expert)
    return Totals(d, e, p2p_s(group), gradient_times(group, d, e), tied_embedding_s(group))


def fullest(dense: Array, expert: Array) -> tuple[Array, Array]:
    """Parameters of the rank that holds most, ``[n]`` each, from those of all ranks."""
    most = np.argmax(dense + expert, axis=0)
    return at_rank(dense, most), at_rank(expert, most)


def totals_together(
    strategies: Strategies, parts: Sequence[tuple[Ints, Group]], held: Sequence[tuple[Array, Array]]
) -> list[Totals]:
    """``totals`` of all groups of some strategies: their traffic is timed in one go, which many small groups gain from.

    ``parts``: positions in ``strategies`` and the group, as ``evaluate.groups`` gives them; ``held``: the parameters
    ``[rank, n]`` of each group.
    """
    dense, expert, number = (np.zeros(len(strategies)) for _ in range(3))
    for i, ((where, _), each) in enumerate(zip(parts, held, strict=True)):
        dense[where], expert[where] = fullest(*each)
        number[where] = i
    whole = replace(parts[0][1], strategies=strategies, key=np.zeros(len(strategies), dtype=np.int64), pp=2)
    message = np.where(strategies.pp > 1, p2p_s(whole), 0.0)
    times = gradient_times(whole, dense, expert, number.astype(np.int64))
    return [
        Totals(
            dense[where], expert[where], message[where], {phase: seconds[where] for phase, seconds in times.items()},
            tied_embedding_s(group),
        )
        for where, group in parts
    ]  # fmt: skip

"""The least bubble of schedules whose bubble depends on the passes of the rank that paces them, over all splits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .problem import Array
from .schedule import others_divisor
from .step import Group, idle_s, pass_wait_s, repeated_forward_s


@dataclass(frozen=True, slots=True)
class Shares:
    """The least and the largest parts of a rank's time that each pass can be, whatever it holds, ``[n]`` each."""

    forward: tuple[Array, Array]
    backward: tuple[Array, Array]
    weight: tuple[Array, Array]


def pass_shares(group: Group) -> Shares:
    """From the layer table. Recomputation counts as backward: it can only shrink the parts of the other passes."""
    t, model = group.table, group.problem.model
    mtp = [t.mtp] if model.mtp and group.problem.workload.train_mtp else []
    carried = [*sorted(set(model.layers)), t.embedding, t.head, *mtp]
    f, b, w = (x.sum(axis=0)[carried] for x in (t.forward, t.backward, t.weight))
    again = repeated_forward_s(group)[carried]
    selective = t.selective[carried]
    total = f + b + w

    def part(x: Array, whole: Array) -> Array:
        return np.divide(x, whole, out=np.zeros_like(x), where=whole > 0.0)

    longest = total + np.maximum(again, selective)
    key = group.key
    spread = (
        (part(f, longest).min(axis=0)[key], part(f, total).max(axis=0)[key]),
        (part(b, total).min(axis=0)[key], part(b + np.maximum(again, selective), longest).max(axis=0)[key]),
        (part(w, longest).min(axis=0)[key], part(w, total).max(axis=0)[key]),
    )
    return Shares(*spread)


def least_bubble_s(
    group: Group, slowest: Array, wholes: tuple[Array, Array, Array], shares: Shares, message: Array
) -> Array:
    """A bubble, waiting for messages of ``message`` seconds included, that no split undercuts, ``[n]``.

    ``slowest``: seconds per micro-batch of the slowest rank. ``wholes``: forward, backward and weight of all ranks
    together, recomputation left out. Where a bubble grows with a pass, the pass is as short as any rank's may be; where
    it shrinks, as long.
    """
    others = group.pp - 1
    sides = tuple(zip(wholes, (shares.forward, shares.backward, shares.weight), strict=True))
    short = [np.stack([x[0] * slowest, np.maximum(0.0, whole - x[1] * slowest) / others]) for whole, x in sides]
    long = [np.stack([x[1] * slowest, np.maximum(0.0, whole - x[0] * slowest) / others]) for whole, x in sides]
    two = replace(group, repeats=np.array([1.0, float(others)]))
    return idle_s(
        two, (short[0], short[1], short[2]), pass_wait_s(group, message), message * group.problem.runtime.pp_hidden,
        np.zeros(len(slowest), dtype=np.int64), (long[0], long[1], long[2]),
    )  # fmt: skip


def steady_wait_s(group: Group, message: Array) -> Array:
    """Seconds that the micro-batches of the slowest rank wait for their messages and the host in the steady state."""
    return np.asarray(2.0 * group.strategies.num_microbatches * group.vpp * pass_wait_s(group, message))


def paced_by_passes(group: Group) -> bool:
    """Whether the bubble depends on the passes of the slowest rank, not on the sum over the others alone."""
    return group.pp > 1 and others_divisor(group.schedule, group.vpp) is None

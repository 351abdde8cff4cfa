"""Pipeline schedules as data: what each rank runs, in order.

GPipe (arXiv 1811.06965): all forwards, then all backwards. 1F1B and interleaved 1F1B (Narayanan et al., arXiv
2104.04473, sections 2.2.1-2.2.2) in Megatron-Core's order. ZB-H1 (Qi et al., arXiv 2401.10241, section 2.2), ZB-V (Qi
et al., arXiv 2405.15362, section 4.4) and DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1 and figure 5) split
the backward pass into the data gradient, which the previous stage waits for, and the weight gradient, which nobody
waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from shardwise.hardware_profiles.errors import InputError

from ..splits import chunk_ranks

FORWARD, BACKWARD, WEIGHT, WHOLE = "F", "B", "W", "BW"
"""Kinds of pass: forward, data gradient, weight gradient, and both gradients in one."""


class Op(NamedTuple):
    """One pass of one of a rank's chunks over one micro-batch."""

    kind: str
    chunk: int
    """Of the rank: its virtual stages in model order; under DualPipe the direction, 0 from first to last rank."""
    microbatch: int
    joined: bool = False
    """Whether a forward runs interleaved with the backward that follows it: both start and end together."""


Order = tuple[Op, ...]


def positions(schedule: str, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Stage in model order of each rank's chunks, ``[pp][chunk]``."""
    if schedule == "dualpipe":
        return tuple((rank, pp - 1 - rank) for rank in range(pp))
    held: list[list[int]] = [[] for _ in range(pp)]
    for stage, rank in enumerate(chunk_ranks(pp, vpp, schedule)):
        held[rank].append(stage)
    return tuple(tuple(stages) for stages in held)


@lru_cache(maxsize=64)
def orders(
    schedule: str, pp: int, vpp: int, microbatches: int, group: int = 0, pending: float = 1.0
) -> tuple[Order, ...]:
    """Every rank's passes in order.

    ``group``: micro-batches that an interleaved rank runs through one chunk before it turns to the next
    (Megatron's ``microbatch-group-size-per-virtual-pipeline-stage``), 0 for pp. ``pending``: micro-batches that zb-h1
    keeps in flight over pp, 1 to 2 (``Runtime.zb_pending``).

    Raises InputError where the schedule does not exist for these numbers.
    """
    p, v, m = pp, vpp, microbatches
    if schedule == "interleaved":
        size = _checked_group(p, m, group)
        return tuple(_interleaved(p, v, m, size, rank) for rank in range(p))
    if group:
        raise InputError(f"microbatch_group = {group}: expected none, schedule = {schedule} is not interleaved")
    if schedule == "gpipe":
        return (tuple(chain(_run(FORWARD, 0, 0, m), _run(WHOLE, 0, 0, m))),) * p
    if schedule == "1f1b":
        return tuple(tuple(_alternating(m, min(m, p - 1 - rank))) for rank in range(p))
    if schedule == "zb-h1":
        return tuple(tuple(_zb_h1(p, m, rank, pending)) for rank in range(p))
    if schedule == "zb-v":
        return tuple(tuple(_zb_v(p, m, rank)) for rank in range(p))
    if p % 2 or m % 2 or m < 2 * p:
        raise InputError(f"dualpipe: pp = {p}, m = {m}: expected an even pp and an even m of at least 2·pp")
    return tuple(tuple(_dualpipe(p, m, rank)) for rank in range(p))


def _run(kind: str, chunk: int, first: int, last: int) -> Iterator[Op]:
    """The same pass over consecutive micro-batches."""
    return (Op(kind, chunk, i) for i in range(first, last))


def _alternating(m: int, warmup: int) -> Iterator[Op]:
    """1F1B: fill, then a backward after each forward, then drain."""
    yield from _run(FORWARD, 0, 0, warmup)
    for i in range(m - warmup):
        yield Op(FORWARD, 0, warmup + i)
        yield Op(WHOLE, 0, i)
    yield from _run(WHOLE, 0, m - warmup, m)


# ---- interleaved


def _checked_group(p: int, m: int, group: int) -> int:
    """Megatron's rule: from pp to m, and what is left over at the end is nothing or at least pp."""
    size = group or min(p, m)
    if group and not (p <= group <= m and (m % group == 0 or m % group >= p)):
        raise InputError(
            f"microbatch_group = {group}: expected {p} (pp) to {m} (m), with a remainder of m of 0 or at least pp"
        )
    return size


def _interleaved(p: int, v: int, m: int, group: int, rank: int) -> Order:
    """Micro-batches go through a chunk in groups; backwards visit the chunks in reverse."""
    table = [
        (chunk, i) for start in range(0, m, group) for chunk in range(v) for i in range(start, min(m, start + group))
    ]
    forward = [Op(FORWARD, chunk, i) for chunk, i in table]
    backward = [Op(WHOLE, v - 1 - chunk, i) for chunk, i in table]
    warmup = min(m * v, 2 * (p - 1 - rank) + (v - 1) * group)
    steady = chain.from_iterable(zip(forward[warmup:], backward, strict=False))
    return (*forward[:warmup], *steady, *backward[m * v - warmup :])


# ---- zero bubble


def _zb_h1(p: int, m: int, rank: int, pending: float) -> Iterator[Op]:
    """1F1B whose weight gradients wait: on rank i for i micro-batches, so that all ranks hold p at a time.

    With more pending every rank fills further ahead, up to the 2p - 1 of ZB-H2 on the first rank.
    """
    ahead = round((pending - 1.0) * (p - 1 - rank))
    warmup = min(m, p - 1 - rank + ahead)
    late = rank + round((pending - 1.0) * rank)
    weight = 0
    for op in _alternating(m, warmup):
        if op.kind == FORWARD:
            yield op
            continue
        yield Op(BACKWARD, 0, op.microbatch)
        if op.microbatch - weight >= late or op.microbatch >= m - warmup:
            yield Op(WEIGHT, 0, weight)
            weight += 1
    yield from _run(WEIGHT, 0, weight, m)


def _zb_v(p: int, m: int, rank: int) -> Iterator[Op]:
    """Chunk 0 goes down the V and chunk 1 back up; 2p chunks in flight on every rank."""
    n = max(2 * p - 1, m)  # fewer micro-batches take the same order with the missing ones left out
    return (op for op in _zb_v_full(p, n, rank) if op.microbatch < m)


def _zb_v_full(p: int, m: int, rank: int) -> Iterator[Op]:
    count = dict.fromkeys(((k, c) for k in (FORWARD, BACKWARD, WEIGHT) for c in (0, 1)), 0)

    def one(kind: str, chunk: int) -> Op:
        count[kind, chunk] += 1
        return Op(kind, chunk, count[kind, chunk] - 1)

    for _ in range(2 * (p - rank) - 1):
        yield one(FORWARD, 0)
    for _ in range(rank):
        yield one(FORWARD, 1)
        yield one(FORWARD, 0)
    for _ in range(p - rank):
        yield from (one(FORWARD, 1), one(BACKWARD, 1), one(WEIGHT, 1))
    while count[FORWARD, 1] < m:
        if count[FORWARD, 0] < m:
            yield one(FORWARD, 0)
        yield from (one(BACKWARD, 0), one(WEIGHT, 0))
        yield from (one(FORWARD, 1), one(BACKWARD, 1), one(WEIGHT, 1))
    for _ in range(rank):
        yield from (one(BACKWARD, 0), one(BACKWARD, 1))
    for _ in range(p - rank):
        yield from (one(BACKWARD, 0), one(WEIGHT, 0))
    for chunk in (1, 0):
        while count[WEIGHT, chunk] < m:
            yield one(WEIGHT, chunk)


# ---- DualPipe


def _dualpipe(p: int, m: int, rank: int) -> Iterator[Op]:
    """Half of the micro-batches enter at each end; the middle of the step pairs a forward with a backward.

    ``near`` is the direction that enters at the nearer end. Weight gradients are split off only while filling and
    draining.
    """
    half, depth = p // 2, min(rank, p - 1 - rank)
    near = int(rank >= half)
    far = 1 - near
    inner, outer = half - 1 - depth, depth + 1
    count = dict.fromkeys(((k, c) for k in (FORWARD, BACKWARD) for c in (0, 1)), 0)
    waiting: list[Op] = []

    def microbatch(kind: str, chunk: int) -> int:
        count[kind, chunk] += 1
        return count[kind, chunk] - 1 + chunk * (m // 2)  # the second direction has the second half

    def forward(chunk: int, joined: bool = False) -> Op:
        return Op(FORWARD, chunk, microbatch(FORWARD, chunk), joined)

    def backward(chunk: int, split: bool = False) -> Op:
        op = Op(BACKWARD if split else WHOLE, chunk, microbatch(BACKWARD, chunk))
        if split:
            waiting.append(Op(WEIGHT, chunk, op.microbatch))
        return op

    yield from (forward(near) for _ in range(2 * inner))
    for _ in range(outer):
        yield from (forward(near), forward(far))
    for _ in range(inner):
        yield from (backward(far, split=True), waiting.pop(0), forward(far))
    for _ in range(m // 2 - p + depth + 1):
        yield from (forward(near, joined=True), backward(far), forward(far, joined=True), backward(near))
    for _ in range(inner):
        yield from (backward(far), forward(far, joined=True), backward(near))
    split = False
    for i in range(outer):
        split = split or (i == outer // 2 and depth % 2 == 1)
        yield backward(far, split)
        split = split or (i == outer // 2 and depth % 2 == 0)
        yield backward(near, split)
    for _ in range(inner):
        yield from (waiting.pop(0), backward(near, split=True))
    yield from waiting

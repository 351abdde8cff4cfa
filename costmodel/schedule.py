"""Pipeline schedules in closed form: the bubble, and how many micro-batches are in flight on each rank.

With even stages these are the published figures; with uneven ones the slowest stage paces the steady state and the
others add their one pass of filling and draining. Sources: GPipe (arXiv 1811.06965), 1F1B and interleaving (Narayanan
et al., arXiv 2104.04473, sections 2.2.1-2.2.2), ZB-H1 (Qi et al., arXiv 2401.10241, table 1), ZB-V (Qi et al., arXiv
2405.15362, section 4), DualPipe (DeepSeek-V3, arXiv 2412.19437, table 2).
"""

from __future__ import annotations

import numpy as np

from .problem import Array, Ints


def others_divisor(schedule: str, vpp: int) -> int | None:
    """What the bubble divides the other ranks' passes by, where it is nothing but those; None for other schedules."""
    return {"gpipe": 1, "1f1b": 1, "interleaved": vpp}.get(schedule)


def bubble_s(schedule: str, vpp: int, forward: Array, backward: Array, weight: Array, repeats: Array) -> Array:
    """Idle seconds of the slowest rank in one step; inputs are seconds per micro-batch and rank, ``[rank, n]``.

    ``repeats[rank]``: pipeline ranks that each row stands for (they sum to p).

    gpipe, 1f1b: the other ranks' passes, (p-1)(F+B+W) if even. interleaved: the same over vpp. zb-h1: (p-1)(F+B-W).
    zb-v: (p-1) max(F, B) of one of the rank's two chunks: the V has to fill. (The published zero counts each rank from
    its own start to its own end, which takes optimizer steps that do not wait for each other.)
    dualpipe: (p/2-1)(F+B+B-W) with F and B not overlapped; here B is the data gradient and W the weight gradient.
    """
    total = forward + backward + weight
    slow = np.argmax(total, axis=0)[None]
    others = repeats @ total - np.take_along_axis(total, slow, axis=0)[0]
    pp = float(repeats.sum())
    divisor = others_divisor(schedule, vpp)
    if divisor is not None:
        return np.asarray(others / divisor)
    f, b, w = (np.take_along_axis(x, slow, axis=0)[0] for x in (forward, backward, weight))
    if schedule == "zb-h1":
        return np.asarray(np.maximum(0.0, others - 2.0 * (repeats @ weight - w)))
    if schedule == "zb-v":
        return np.asarray((pp - 1) * np.maximum(f, b) / 2.0)
    return np.asarray(max(0.0, pp / 2.0 - 1.0) * np.maximum(0.0, f + 2.0 * b - w))


def in_flight(schedule: str, pp: int, vpp: int, microbatches: Array | Ints) -> Array:
    """Micro-batches whose activations a rank holds at its peak, in units of the rank's whole share: ``[rank, n]``.

    1f1b: p - i. interleaved: 2(p - i - 1) + (v - 1)p + 1 chunks (Korthikanti et al., arXiv 2205.05198, section 4.2.3,
    gives the first rank's 1 + (p-1)/(pv) factor). zb-h1: p on every rank (delayed weight gradients). zb-v: p (two
    chunks of half a share). dualpipe: p + 1 stages, of the two that a rank holds (a stage and its mirror image).
    """
    m = np.asarray(microbatches, dtype=float)[None, :]
    rank = np.arange(pp, dtype=float)[:, None]
    if schedule == "gpipe":
        return np.asarray(np.broadcast_to(m, (pp, m.shape[1])).copy())
    if schedule == "1f1b":
        return np.asarray(np.minimum(m, pp - rank))
    if schedule == "interleaved":
        chunks = 2.0 * (pp - rank - 1.0) + (vpp - 1.0) * pp + 1.0
        return np.asarray(np.minimum(m * vpp, chunks) / vpp)
    if schedule == "dualpipe":
        return np.asarray(np.minimum(m, pp + 1.0 + 0.0 * rank) / 2.0)
    return np.asarray(np.minimum(m, pp + 0.0 * rank))

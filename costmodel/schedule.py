"""Pipeline schedules in closed form: the bubble, and how many micro-batches are in flight on each rank.

With even stages these are the published figures, and what ``simulation`` measures; with uneven ones the slowest stage
paces the steady state and the others add their one pass of filling and draining. Sources: GPipe (arXiv 1811.06965),
1F1B and interleaving (Narayanan et al., arXiv 2104.04473, sections 2.2.1-2.2.2), ZB-H1 (Qi et al., arXiv 2401.10241,
table 1), ZB-V (Qi et al., arXiv 2405.15362, section 4), DualPipe (DeepSeek-V3, arXiv 2412.19437, table 2).
"""

from __future__ import annotations

import numpy as np

from .group import at_rank
from .problem import Array, Ints

FOLDED = frozenset({"zb-v", "dualpipe"})
"""Schedules whose ranks hold one stretch of layers from either end of what is left."""


def others_divisor(schedule: str, vpp: int) -> int | None:
    """What the bubble divides the other ranks' passes by, where it is nothing but those; None for other schedules."""
    return {"gpipe": 1, "1f1b": 1, "interleaved": vpp}.get(schedule)


def bubble_s(
    schedule: str,
    vpp: int,
    forward: Array,
    backward: Array,
    weight: Array,
    repeats: Array,
    delay: Array | float = 0.0,
    slow: Ints | None = None,
    less: tuple[Array, Array, Array] | None = None,
) -> Array:
    """Idle seconds of the slowest rank in one step; inputs are seconds per micro-batch and rank, ``[rank, n]``.

    ``repeats[rank]``: pipeline ranks that each row stands for (they sum to p). ``delay[n]``: seconds from one stage to
    the next while the pipeline fills and drains. B is the data gradient (recomputation included) and W the weight
    gradient. With even stages these are what ``simulation`` gives, to rounding:

    gpipe, 1f1b: the other ranks' passes, (p-1)(F+B+W). interleaved: the same over vpp; without slack where the
    micro-batch group is pp, a message is waited for vpp times by every rank. zb-h1: (p-1)(F+B-W), published for W <= F,
    B, and never below (p-1) max(F, B). zb-v: ``zb_v_bubble_s``. dualpipe: (p/2-1)(F + max(F, B) + max(0, B-W)) with F
    and B not overlapped; published for F, W <= B as (p/2-1)(F&B + B - 3W), B the whole backward.

    For bounds: ``slow[n]`` names the slowest rank, and ``less`` holds the passes to take where a bubble shrinks with
    them.
    """
    total = forward + backward + weight
    slow = np.argmax(total, axis=0) if slow is None else slow
    others = repeats @ total - at_rank(total, slow)
    pp = float(repeats.sum())
    divisor = others_divisor(schedule, vpp)
    if divisor is not None:
        return np.asarray(others / divisor + 2.0 * (divisor * pp - 1.0) * delay)
    f, b, w = (at_rank(x, slow) for x in (forward, backward, weight))
    most = less or (forward, backward, weight)
    f_less, b_less, w_less = (at_rank(x, slow) for x in most)
    if schedule == "zb-h1":
        others_f, others_b, others_w = (repeats @ x - y for x, y in ((forward, f), (backward, b), (most[2], w_less)))
        once = (pp - 1.0) * np.asarray(delay)
        one_way = np.maximum(others_f, others_b) + once
        return np.asarray(np.maximum(one_way, others_f + others_b - others_w + 2.0 * once))
    if schedule == "zb-v":
        return zb_v_bubble_s(pp, (f, b, w), (f_less, b_less, w_less), delay)
    fill = max(0.0, pp / 2.0 - 1.0)
    hops = np.where(b >= w_less, 2.0 * pp - 2.0, 2.0 * pp - 2.0 - fill)
    return np.asarray(fill * (f + np.maximum(f, b) + np.maximum(0.0, b - w_less)) + hops * delay)


def zb_v_bubble_s(
    pp: float, passes: tuple[Array, Array, Array], less: tuple[Array, Array, Array], delay: Array | float = 0.0
) -> Array:
    """Idle seconds of ZB-V, given forward, backward and weight of a rank's two chunks together: the V has to fill.

    (p-1) B of one chunk while W is between half of B and B, and F at most B. The other terms are the longest chains of
    passes elsewhere (m >= 2p-1). The published zero (arXiv 2405.15362, section 4.4) counts each rank from its own start
    to its own end, which takes optimizer steps that do not wait for each other, and F = B = W.
    """
    p, c = pp, np.asarray(delay)
    f, b, w = (x / 2.0 for x in passes)
    less_b, less_w = less[1] / 2.0, less[2] / 2.0
    chains = (
        (p - 1) * b + (4 * p - 6) * c,
        2 * (p - 1) * (b - less_w) + (5 * p - 7) * c,
        b + (p - 2) * w + (3 * p - 4) * c,
        f + (p - 2) * w + (3 * p - 5) * c,
        (2 * p - 3) * f - (p - 2) * less_b + (2 * p - 3) * c,
        (2 * p - 3) * f + b - 2 * (p - 1) * less_w + (3 * p - 4) * c,
        2 * (p - 1) * f - (p - 1) * less_b - less_w + 2 * (p - 1) * c,
        2 * (p - 1) * f - (2 * p - 1) * less_w + 3 * (p - 1) * c,
    )
    return np.asarray(np.max(chains, axis=0))


def in_flight(schedule: str, pp: int, vpp: int, microbatches: Array | Ints, group: int = 0) -> Array:
    """Micro-batches whose activations a rank holds at its peak, in units of the rank's whole share: ``[rank, n]``.

    1f1b: p - i. interleaved: 2(p - i - 1) + (v - 1)p + 1 chunks (Korthikanti et al., arXiv 2205.05198, section 4.2.3,
    gives the first rank's 1 + (p-1)/(pv) factor); a ``group`` of g micro-batches through one chunk in turn makes it
    (v - 1)g instead of (v - 1)p. zb-h1: p on every rank (delayed weight gradients). zb-v: p (two
    chunks of half a share). dualpipe: p + 1 stages, of the two that a rank holds (a stage and its mirror image).
    """
    m = np.asarray(microbatches, dtype=float)[None, :]
    rank = np.arange(pp, dtype=float)[:, None]
    if schedule == "gpipe":
        return np.asarray(np.broadcast_to(m, (pp, m.shape[1])).copy())
    if schedule == "1f1b":
        return np.asarray(np.minimum(m, pp - rank))
    if schedule == "interleaved":
        chunks = 2.0 * (pp - rank - 1.0) + (vpp - 1.0) * (group or pp) + 1.0
        return np.asarray(np.minimum(m * vpp, chunks) / vpp)
    if schedule == "dualpipe":
        return np.asarray(np.minimum(m, pp + 1.0 + 0.0 * rank) / 2.0)
    return np.asarray(np.minimum(m, pp + 0.0 * rank))

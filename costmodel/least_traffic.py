"""The least that data parallelism and the optimizer cost, whatever layers the rank with most parameters holds.

That rank holds the mean or more. Where experts are shared among other ranks than the rest, it also matters which
parameters they are: traffic is concave in bytes, so it is least where they are mostly of one sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .outside import Totals
from .problem import Array, Ints
from .schedule import FOLDED
from .step import GRADIENT_KEY, Group, gradient_times_each
from .strategy import Strategies

Mixes = tuple[tuple[Array, Array], tuple[Array, Array]]


def least_totals_together(
    strategies: Strategies,
    parts: Sequence[tuple[Ints, Group]],
    held: Sequence[tuple[Array, Array]],
    rest: Sequence[Totals],
) -> list[Totals]:
    """``Totals`` that no layer split undercuts, from those of some split; arguments as ``totals_together`` has them."""
    mixed = [group.pp > 1 and bool(group.table.expert.any()) for _, group in parts]
    whole, number = np.zeros(len(strategies)), np.zeros(len(strategies), dtype=np.int64)
    mixes: dict[int, Mixes] = {}
    for i, (where, group) in enumerate(parts):
        if mixed[i]:
            whole[where], mixes[i] = extreme_mixes(group)
            number[where] = 2 * group.pp + (group.schedule == "dualpipe")
    rates: list[dict[str, Array]] = []
    if mixes:
        all_of_them = replace(parts[0][1], strategies=strategies, key=np.zeros(len(strategies), dtype=np.int64))
        rates = parameter_rates(all_of_them, whole, number)
    out = []
    for i, ((where, group), (dense, expert)) in enumerate(zip(parts, held, strict=True)):
        if mixed[i]:
            mine = [{phase: each[where] for phase, each in rate.items()} for rate in rates]
            out.append(_least_of(group, rest[i], mixes[i], mine))
        else:
            out.append(rest[i].scaled(group.repeats @ dense / group.pp, group.repeats @ expert / group.pp))
    return out


def extreme_mixes(group: Group) -> tuple[Array, Mixes]:
    """Mean parameters of a rank, and as many of them dense, or expert, as can be: ``[n]`` each.

    A rank holds one end of the model only, or both where the schedule folds it.
    """
    t = group.table
    # Strategies share columns of the table: each is looked at once, or once a strategy where those are fewer.
    shared = t.dense.shape[1] <= len(group.key)
    params, dense = (x if shared else x[:, group.key] for x in (t.dense + t.expert, t.dense))
    whole = np.asarray((group.repeats @ group.counts) @ params / group.pp)
    own = group.chunks.sum(axis=(0, 1)) / (2.0 if group.schedule == "dualpipe" else 1.0)
    amount = own[:, None] * params
    if group.schedule not in FOLDED:
        first, last = amount[t.embedding].copy(), amount[t.head].copy()
        amount[t.embedding], amount[t.head] = np.where(first >= last, first, 0.0), np.where(first < last, last, 0.0)
    share = np.divide(dense, params, out=np.ones_like(params), where=params > 0.0)
    out = [whole]
    for order in (np.argsort(-share, axis=0, kind="stable"), np.argsort(share, axis=0, kind="stable")):
        there, part = (np.take_along_axis(x, order, axis=0) for x in (amount, share))
        taken = np.clip(whole - (np.cumsum(there, axis=0) - there), 0.0, there)
        plain = (taken * part).sum(axis=0)
        out += [plain, np.maximum(0.0, taken.sum(axis=0) - plain)]
    mean, d, e, other_d, other_e = (x[group.key] if shared else x for x in out)
    return mean, ((d, e), (other_d, other_e))


def parameter_rates(group: Group, whole: Array, number: Ints | None = None) -> list[dict[str, Array]]:
    """Seconds per dense and per expert parameter by phase, ``[n]``: ``whole`` of them or fewer take no less each."""
    first, inverse = group.strategies.distinct(GRADIENT_KEY, number)
    twice, held, none = np.tile(first, 2), whole[first], np.zeros(len(first))
    both = replace(group, strategies=group.strategies.take(twice), key=group.key[twice])
    times = gradient_times_each(both, np.concatenate([held, none]), np.concatenate([none, held]))
    each = np.maximum(held, 1.0)
    return [
        {phase: (seconds[side] / each)[inverse] for phase, seconds in times.items()}
        for side in (slice(len(first)), slice(len(first), None))
    ]


def _least_of(group: Group, rest: Totals, mixes: Mixes, rates: Sequence[dict[str, Array]]) -> Totals:
    """The cheaper mix by phase, and for the optimizer."""
    (d, e), (other_d, other_e) = mixes
    per_dense, per_expert = rates
    gradients = {
        phase: np.minimum(d * per_dense[phase] + e * per_expert[phase],
                          other_d * per_dense[phase] + other_e * per_expert[phase])
        for phase in per_dense
    }  # fmt: skip
    a, b = group.strategies.zero_shards
    first = d / a + e / b <= other_d / a + other_e / b
    return replace(rest, dense=np.where(first, d, other_d), expert=np.where(first, e, other_e), gradients=gradients)


def least_totals(group: Group, rest: Totals, mean: tuple[Array, Array]) -> Totals:
    """``least_totals_together`` of one group, whose ranks hold ``mean`` dense and expert parameters on average."""
    if group.pp == 1 or not group.table.expert.any():
        return rest.scaled(*mean)
    whole, mixes = extreme_mixes(group)
    return _least_of(group, rest, mixes, parameter_rates(group, whole))

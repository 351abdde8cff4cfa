"""The layouts too close to the best to be told apart by their predictions: those worth a benchmark of a few steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate, tell_apart
from shardwise.costmodel.problem import Array, Ints
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.rule import violations

from .exact import Found, with_split
from .opening import can_fit, open_candidates
from .pool import DISTINCT, Pool

LONGEST = 6
"""Layouts on the list, at most: what a cluster is given to within half an hour."""

MESH_TWICE = 2
"""Variants of one mesh and micro-batch (schedule, virtual stages) on the list, at most: others differ more."""

_VARIANT = ("vpp", "schedule")
"""Dimensions in which two layouts of one mesh and micro-batch still count as two."""

_ALL = (*DISTINCT, *_VARIANT)

_OPENED = 2048
"""Candidates that no one opened because their bound cannot beat the best, and that are opened for the list, at most."""


def short_list(found: Found, pool: Pool, best: Estimate) -> tuple[Estimate, ...]:
    """``best`` and the layouts predicted within the error of it, at most ``LONGEST``.

    They differ in mesh, micro-batch, virtual stages or schedule, and each is the quickest of its kind that fits, in the
    order of their steps. One entry means that no other layout is that close.
    """
    limit_s = best.step_time_s * (1.0 + tell_apart(found.problem))
    rivals = [(step_s, s) for step_s, s in found.splits if step_s <= limit_s]
    for rows, step_s in (_pooled(pool, limit_s), _reopened(found, limit_s)):
        keys = np.stack([getattr(rows, name) for name in _ALL])
        _, first = np.unique(keys, axis=1, return_index=True)
        rivals += [(float(step_s[i]), rows[int(i)]) for i in np.sort(first)]
    chosen, meshes, seen = [best], {_key(best.strategy, DISTINCT): 1}, {_key(best.strategy, _ALL)}
    for _, strategy in sorted(rivals, key=lambda rival: rival[0]):
        key, mesh = _key(strategy, _ALL), _key(strategy, DISTINCT)
        if len(chosen) == LONGEST:
            break
        if key in seen or meshes.get(mesh, 0) >= MESH_TWICE:
            continue
        answer = estimate(found.problem, with_split(found.problem, strategy))
        if answer.step_time_s <= limit_s and answer.fits and not _refused(found, answer.strategy):
            seen.add(key)
            meshes[mesh] = meshes.get(mesh, 0) + 1
            chosen.append(answer)
    return (best, *sorted(chosen[1:], key=lambda e: e.step_time_s))


def refined(listed: Sequence[Estimate], best: Estimate, quickest: Estimate | None) -> tuple[Estimate, ...]:
    """The list with what a refinement made of its first layout, and with what it found ``quickest`` in simulation."""
    out = [best, *listed[1:]]
    limit_s = best.step_time_s * (1.0 + tell_apart(best.problem))
    if quickest is not None and quickest.step_time_s <= limit_s:
        mine = _key(quickest.strategy, _ALL)
        out = [e for e in out if e is best or _key(e.strategy, _ALL) != mine][: LONGEST - 1]
        out.append(quickest)
    return (best, *sorted(out[1:], key=lambda e: e.step_time_s))


def _pooled(pool: Pool, limit_s: float) -> tuple[Strategies, Array]:
    """What the search evaluated within the limit, quickest first."""
    near = np.arange(int(np.searchsorted(pool.step_s, limit_s, side="right")))
    return pool.strategies.take(near), pool.step_s[near]


def _reopened(found: Found, limit_s: float) -> tuple[Strategies, Array]:
    """Candidates within the limit that fit only with recomputation or offload, quickest first.

    The search leaves those alone whose bound is above the best; what is nearly as quick is among them.
    """
    c = found.candidates
    near = np.flatnonzero(~c.fits & (c.bound_s <= limit_s) & (c.bound_s >= found.step_s))
    near = near[np.argsort(c.bound_s[near], kind="stable")][:_OPENED]
    near = near[can_fit(found.space, c.strategies.take(near))]
    opened = open_candidates(found.space, c, near)
    good: Ints = np.flatnonzero(opened.fits & (opened.step_s <= limit_s))
    good = good[np.argsort(opened.step_s[good], kind="stable")]
    return opened.strategies.take(good), opened.step_s[good]


def _refused(found: Found, strategy: Strategy) -> bool:
    return bool(violations(found.problem, strategy, found.space.rules))


def _key(s: Strategy, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(s, name) for name in names)

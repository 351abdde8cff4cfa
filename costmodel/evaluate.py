"""Evaluate many strategies at once: step time, peak memory, and bounds over every layer split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .group import passes_of
from .layers import LayerTable, distinct, layer_columns
from .least_bubble import least_bubble_s, paced_by_passes, pass_shares, steady_wait_s
from .least_traffic import least_totals_together
from .outside import Totals, totals_together
from .problem import Array, Ints, Problem
from .splits import chunk_counts
from .step import (
    SELECTIVE,
    Group,
    Load,
    dp_exposed_s,
    hides_steadily,
    load,
    memory_parts,
    parameters,
    recompute_share,
    step_s,
)
from .strategy import SCHEDULES, Strategies, Strategy

__all__ = ["Evaluation", "Problem", "capacity_bytes", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results for ``n`` strategies under the even layer split; every array has shape ``[n]``.

    ``lower_bound_s``: no layer split or smaller number of recomputed layers of the same strategy is faster.
    """

    step_time_s: Array
    lower_bound_s: Array
    peak_memory_bytes: Array
    fits: NDArray[np.bool_]


def capacity_bytes(problem: Problem) -> float:
    """Memory of one accelerator that a plan may use: what the driver reports, less the margin."""
    return problem.cluster.accelerator.memory_bytes * (1.0 - problem.memory_margin)


def evaluate(problem: Problem, strategies: Strategies) -> Evaluation:
    """Step time and memory of each strategy with its layers split evenly.

    The strategies must satisfy the universal launch rules (degrees that multiply to the cluster and so on).
    """
    n = len(strategies)
    out = {name: np.zeros(n) for name in ("step", "bound", "peak")}
    parts = list(groups(problem, strategies))
    held = [parameters(group) for _, group in parts]
    rests = totals_together(strategies, parts, held) if parts else []
    leasts = least_totals_together(strategies, parts, held, rests)
    for (where, group), rest, least in zip(parts, rests, leasts, strict=True):
        share = recompute_share(group)
        work = load(group, share)
        out["step"][where] = sum(step_s(group, work, rest)[0].values())
        out["bound"][where] = _bound_s(group, work, least)
        out["peak"][where] = np.asarray(sum(memory_parts(group, share).values())).max(axis=0)
    fits = out["peak"] <= capacity_bytes(problem)
    return Evaluation(out["step"], out["bound"], out["peak"], fits)


def least_offload(problem: Problem, strategies: Strategies) -> Array:
    """The smallest share of the optimizer to keep on the host for each strategy to fit under the even split, ``[n]``.

    Not above 0 where it fits without; above 1 (infinite without states) where no share is enough.
    """
    out = np.zeros(len(strategies))
    for where, group in groups(problem, strategies.replace(offload_optimizer=0.0)):
        parts = memory_parts(group, recompute_share(group))
        over = np.asarray(sum(parts.values())) - capacity_bytes(problem)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(over > 0.0, over / parts["optimizer"], 0.0)
        out[where] = share.max(axis=0)
    return out


def groups(problem: Problem, strategies: Strategies) -> Iterator[tuple[Ints, Group]]:
    """Strategies by pipeline shape: positions and a group for each (pp, vpp, schedule)."""
    if not len(strategies):
        return
    keys, inverse = distinct(strategies)
    table = layer_columns(problem).of(keys)
    passes = passes_of(table)
    code = (strategies.pp * (int(strategies.vpp.max()) + 1) + strategies.vpp) * len(SCHEDULES) + strategies.schedule
    order = np.argsort(code, kind="stable")
    edges = np.flatnonzero(np.diff(code[order])) + 1
    ordered, key = strategies.take(order), inverse[order]
    for start, stop in pairwise([0, *edges.tolist(), len(order)]):
        where, part = order[start:stop], ordered.between(start, stop)
        pp, vpp, schedule = int(part.pp[0]), int(part.vpp[0]), SCHEDULES[part.schedule[0]]
        chunks = chunk_counts(problem, pp, vpp, schedule)
        few = _representatives(chunks.sum(axis=0))
        yield where, Group(problem, table, part, key[start:stop], *few, pp, vpp, schedule, chunks, passes)


def _representatives(counts: Array) -> tuple[Array, Ints, Array]:
    """One pipeline rank for each distinct load: the earliest, which has most micro-batches in flight."""
    rows: dict[bytes, list[int]] = {}
    for rank, row in enumerate(counts):
        rows.setdefault(row.tobytes(), []).append(rank)
    first = np.array([ranks[0] for ranks in rows.values()])
    return counts[first], first, np.array([float(len(ranks)) for ranks in rows.values()])


def single_group(problem: Problem, strategy: Strategy, table: LayerTable | None = None) -> Group:
    """A group of one strategy on every pipeline rank, its explicit layer split honoured; ``table`` if it is known."""
    s, pp, vpp = Strategies.of([strategy]), strategy.pp, strategy.vpp
    table, key = table or layer_columns(problem).of(s), np.zeros(1, dtype=np.int64)
    chunks = chunk_counts(problem, pp, vpp, strategy.schedule, strategy.layers_per_stage)
    every = chunks.sum(axis=0), np.arange(pp), np.ones(pp)
    return Group(problem, table, s, key, *every, pp, vpp, strategy.schedule, chunks, passes_of(table))


def _mean(group: Group, per_rank: Array) -> Array:
    """Mean over all pipeline ranks of ``[rank, n]``: the same for every layer split."""
    return np.asarray(group.repeats @ per_rank / group.pp)


def _bound_s(group: Group, work: Load, rest: Totals) -> Array:
    """The step if every rank carried the mean load and parameters, and nothing were recomputed in full."""
    selective = np.where(group.strategies.recompute == SELECTIVE, work.recompute, 0.0)
    f, b, w, again = (_mean(group, x)[None] for x in (work.forward, work.backward, work.weight, selective))
    # A rank might hold every layer: the most buckets to hide traffic with that any split allows.
    whole = (group.repeats @ group.counts)[None]
    even = replace(group, counts=whole, ranks=group.ranks[:1], repeats=np.array([float(group.pp)]))
    mean = Load(f, b, w, again, np.zeros(len(group.strategies)))
    parts, slow = step_s(even, mean, rest)
    if paced_by_passes(group):
        wholes = (group.pp * f[0], group.pp * (b + again)[0], group.pp * w[0])
        bubble = least_bubble_s(group, mean.total[0], wholes, pass_shares(group), rest.p2p)
        parts |= {"pp_bubble": bubble, "pp_comm": steady_wait_s(group, rest.p2p)}
        del parts["host_per_microbatch"]
    steady = hides_steadily(group)
    if group.pp > 1 and not steady.all():
        # With so few micro-batches an uneven split may be quicker: its longest passes hide more than they cost.
        longest = Load(group.pp * f, group.pp * b, group.pp * w, group.pp * again, mean.stagger)
        exposed = dp_exposed_s(even, longest, slow, rest.gradients) + rest.tied
        parts["dp_comm"] = np.where(steady, parts["dp_comm"], exposed)
    return np.asarray(sum(parts.values()))

"""Layouts near a layout: one dimension changed and the others brought in line, and the nearest that may be launched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import (
    CP_COMMS,
    DIMENSIONS,
    ENUMS,
    RANK_ORDERS,
    RECOMPUTES,
    SCHEDULES,
    Strategies,
    Strategy,
)

from .canonical import canonical
from .facts import model_facts
from .own_splits import with_own_split
from .rule import allowed, divisors

if TYPE_CHECKING:
    from .base import Launcher

_SWITCHES = ("sp", "offload_activations", "tp_overlap", "dp_overlap", "ep_overlap")
_MOST_VALUES = 64
"""Values tried of one dimension, at most."""


@dataclass(frozen=True, slots=True)
class Move:
    """A layout reached from another by setting ``changes``; what follows from those is in ``strategy`` only."""

    changes: tuple[tuple[str, Any], ...]
    strategy: Strategy


def moves(problem: Problem, strategy: Strategy) -> list[Move]:
    """Every layout that differs in one dimension and what follows from it: legal under a launcher or not."""
    found: dict[Strategy, Move] = {}
    start = canonical(strategy, problem.model.num_layers)
    for dimension, values in _values(problem, start).items():
        for value in values:
            reached = settle(problem, start, {dimension: value})
            if reached is not None and reached != start:
                found.setdefault(reached, Move(((dimension, value),), reached))
    return list(found.values())


def pairs(problem: Problem, strategy: Strategy) -> list[Move]:
    """Every layout that two such changes reach, of different dimensions."""
    start = canonical(strategy, problem.model.num_layers)
    values = _values(problem, start)
    found: dict[Strategy, Move] = {}
    names = list(values)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            for one in values[first]:
                for other in values[second]:
                    reached = settle(problem, start, {first: one, second: other})
                    if reached is not None and reached != start:
                        found.setdefault(reached, Move(((first, one), (second, other)), reached))
    return list(found.values())


def nearest_legal(problem: Problem, launcher: Launcher, strategy: Strategy) -> Strategy | None:
    """The closest layout that the launcher accepts: fewest changes, then smallest; None within two changes."""
    settled = settle(problem, strategy, {})
    anew = settle(problem, replace(strategy, layers_per_stage=None), {})
    first = [Move((), s) for s in (settled, anew) if s is not None]
    steps = (None, moves, pairs)
    for step in steps:
        near = with_own_splits(problem, launcher, step(problem, strategy) if step else first)
        for move in sorted(_legal(problem, launcher, near), key=lambda m: distance(strategy, m.strategy)):
            if not launcher.violations(problem, move.strategy):
                return move.strategy
    return None


def with_own_splits(problem: Problem, launcher: Launcher, found: list[Move]) -> list[Move]:
    """The moves with a split that the launcher makes itself, where it does and they have none."""
    return [replace(move, strategy=with_own_split(launcher, problem, move.strategy)) for move in found]


def distance(one: Strategy, other: Strategy) -> float:
    """How far apart two layouts are: doublings of degrees, and 1 for every other setting that differs."""
    far = 0.0
    for name in DIMENSIONS:
        a, b = getattr(one, name), getattr(other, name)
        if name in ("dp", "num_microbatches") or a == b:
            continue
        degree = type(a) is int and a > 0 and b > 0
        far += abs(math.log2(b / a)) if degree else 1.0
    return far


def settle(problem: Problem, strategy: Strategy, changes: Mapping[str, Any]) -> Strategy | None:
    """The layout with ``changes`` made and all that follows from them; None where the GPUs or the batch do not divide.

    What follows: dp and the number of micro-batches; settings of a parallelism whose degree is 1 are off; sequence
    parallelism comes with tensor parallelism where the runtime has it by default; a schedule that fits the virtual
    stages; a new pipeline is split evenly.
    """
    s = replace(strategy, **changes)
    gpus, batch = problem.cluster.num_gpus, problem.workload.global_batch_size
    if min(s.tp, s.cp, s.pp, s.vpp, s.micro_batch_size) < 1 or gpus % (s.tp * s.cp * s.pp):
        return None
    dp = gpus // (s.tp * s.cp * s.pp)
    if batch % (dp * s.micro_batch_size):
        return None
    s = replace(s, dp=dp, num_microbatches=batch // (dp * s.micro_batch_size))
    s = _settle_states(_settle_experts(problem, _settle_sequence(problem, strategy, s, changes), strategy, changes))
    s = _settle_pipeline(problem, strategy, s, changes)
    return canonical(s, problem.model.num_layers) if s.pp * s.vpp <= problem.model.num_layers else s


def _settle_sequence(problem: Problem, old: Strategy, s: Strategy, changes: Mapping[str, Any]) -> Strategy:
    if s.tp == 1:
        s = replace(s, sp=False, tp_overlap=False)
    elif old.tp == 1 and "sp" not in changes:
        s = replace(s, sp=problem.runtime.default_sp)
    if not s.sp and "tp_overlap" not in changes:
        s = replace(s, tp_overlap=False)
    if s.cp == 1:
        return replace(s, cp_comm="p2p", ulysses=1)
    if s.cp_comm in ("p2p", "all_gather"):
        return replace(s, ulysses=1)
    if s.cp_comm == "a2a":
        return replace(s, ulysses=s.cp)
    inner = [d for d in divisors(s.cp) if 1 < d < s.cp]
    if "ulysses" in changes or s.ulysses in inner or not inner:
        return s
    most = max(problem.cluster.tiers[0].size // s.tp, inner[0])
    return replace(s, ulysses=max(d for d in inner if d <= most))


def _settle_experts(problem: Problem, s: Strategy, old: Strategy, changes: Mapping[str, Any]) -> Strategy:
    if not model_facts(problem).is_moe:
        return replace(s, ep=1, etp=1, ep_overlap=False) if "ep" not in changes and "etp" not in changes else s
    if "etp" not in changes and old.etp == old.tp != s.tp:
        s = replace(s, etp=s.tp)
    return replace(s, ep_overlap=False) if s.ep == 1 and "ep_overlap" not in changes else s


def _settle_states(s: Strategy) -> Strategy:
    mesh = s.dp * s.cp
    return replace(s, zero_group=0) if s.zero == 0 or (s.zero_group and mesh % s.zero_group) else s


def _settle_pipeline(problem: Problem, old: Strategy, s: Strategy, changes: Mapping[str, Any]) -> Strategy:
    if s.pp == 1 and "vpp" not in changes and "schedule" not in changes:
        s = replace(s, vpp=1, schedule="1f1b")
    if "schedule" in changes and "vpp" not in changes:
        chunks = max(s.vpp, 2) if s.schedule == "interleaved" else 2 if s.schedule == "zb-v" else 1
        s = replace(s, vpp=chunks)
    elif "schedule" not in changes and (s.vpp > 1) != (s.schedule in ("interleaved", "zb-v")):
        s = replace(s, schedule="interleaved" if s.vpp > 1 else "1f1b")
    if (s.pp, s.vpp, s.schedule) != (old.pp, old.vpp, old.schedule) or sum(s.layers_per_stage or ()) == 0:
        s = replace(s, layers_per_stage=None)
    if s.recompute != "full":
        return replace(s, recompute_layers=-1, recompute_per_stage=None)
    if s.pp != old.pp or "recompute_layers" in changes:
        s = replace(s, recompute_per_stage=None)
    most = problem.model.num_layers - s.pp + 1
    return s if s.recompute_layers <= most else replace(s, recompute_layers=-1)


def _values(problem: Problem, s: Strategy) -> dict[str, list[Any]]:
    """Other values of each dimension that are worth a look, the nearest first where there are many."""
    gpus, batch, layers = problem.cluster.num_gpus, problem.workload.global_batch_size, problem.model.num_layers
    facts = model_facts(problem)
    degrees = divisors(gpus)
    held = max(1, layers // max(s.pp, 1))
    options: dict[str, list[Any]] = {
        "tp": degrees,
        "cp": degrees,
        "pp": [d for d in degrees if d <= layers],
        "vpp": list(range(1, held + 1)),
        "micro_batch_size": divisors(batch),
        "ep": [d for d in degrees if all(n % d == 0 for n in facts.experts)] if facts.is_moe else [1],
        "etp": degrees if facts.is_moe else [1],
        "zero": [0, 1, 2, 3],
        "zero_group": [0, *(d for d in divisors(max(s.dp * s.cp, 1)) if d > 1)],
        "ulysses": divisors(max(s.cp, 1)),
        "cp_comm": list(CP_COMMS),
        "schedule": list(SCHEDULES),
        "rank_order": list(RANK_ORDERS),
        "recompute": list(RECOMPUTES),
        "recompute_layers": [-1, *range(1, held)] if s.recompute == "full" else [-1],
        "offload_optimizer": [0.0, 0.5, 1.0],
        **{name: [False, True] for name in _SWITCHES},
        "layers_per_stage": [None],
        "recompute_per_stage": [None],
    }
    return {name: _others(name, getattr(s, name), values) for name, values in options.items()}


def _others(name: str, have: Any, values: list[Any]) -> list[Any]:
    rest = [v for v in values if v != have]
    if len(rest) <= _MOST_VALUES or name in ENUMS:
        return rest
    return sorted(rest, key=lambda v: abs(math.log2(max(v, 1) / max(have, 1))))[:_MOST_VALUES]


def _legal(problem: Problem, launcher: Launcher, found: list[Move]) -> Iterator[Move]:
    if not found:
        return
    fine = allowed(problem, Strategies.of(m.strategy for m in found), launcher.search_rules)
    yield from (found[int(i)] for i in np.flatnonzero(fine))

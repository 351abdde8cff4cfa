"""When nothing fits: which constraint binds, by how much, and the smallest changes that make the request possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.base import Launcher, get_launcher
from shardwise.launchers.own_splits import with_own_split
from shardwise.launchers.rule import divisors

from .constraints import Constraints
from .exact import Found, search, with_split
from .opening import evaluate_chunked, open_candidates
from .space import Space

_GIB = float(1 << 30)
_CLOSEST = 64
"""Candidates opened to find the one that comes closest to fitting."""
_MOST_GPUS = 64
"""How many times more GPUs are tried, at most."""
_NEXT_COUNTS = 8
"""More GPUs: so many of the next counts of whole nodes are tried one by one."""
_NEAR_BATCHES = 8
"""Other batches that are tried, at most."""
_SHOWN_RULES = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the request that makes it possible, with the best strategy it then has (layers split evenly)."""

    description: str
    strategy: Strategy
    step_time_s: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "description": self.description,
            "strategy": self.strategy.as_dict(),
            "step_time_s": self.step_time_s,
        }


class NothingFitsError(InfeasibleError):
    """No strategy satisfies the request. Its text is the whole answer in one line.

    ``find_changes`` looks for what would help: searches, made when the text or ``changes`` are first asked for.
    """

    def __init__(
        self, reason: str, find_changes: Callable[[], Iterable[Change]], closest: Estimate | None, tried: bool = True
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        """The binding constraint."""
        self.closest = closest
        """The strategy that comes closest to fitting; None where rules leave no strategy at all."""
        self._find, self._tried = find_changes, tried
        self._changes: tuple[Change, ...] | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """Changes that were searched and work, the smallest first."""
        if self._changes is None:
            self._changes = tuple(self._find())
        return self._changes

    def __str__(self) -> str:
        helps = "; ".join(f"{c.description} ({c.step_time_s:.3g} s per step)" for c in self.changes)
        without = ". No single change tried would help" if self._tried else ""
        return f"{self.reason}. What would help: {helps}" if helps else self.reason + without

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "error": "infeasible",
            "reason": self.reason,
            "changes": [c.as_dict() for c in self.changes],
            "closest": None if self.closest is None else self.closest.as_dict(),
        }


def explain(found: Found) -> NothingFitsError:
    """Why a finished search found nothing, as the error to raise."""
    space = found.space
    closest = _closest(found) if len(found.candidates) else None
    reason = _memory_reason(closest) if closest is not None else _rule_reason(space)
    tried = space.launcher.refusal(space.problem, "workload") is None
    changes = partial(_changes, space.problem, space.launcher, space.constraints)
    return NothingFitsError(reason, changes, closest, tried)


# ---- what binds


def _closest(found: Found) -> Estimate | None:
    """The strategy whose fullest rank exceeds the memory least, every setting of the knobs considered."""
    c, space = found.candidates, found.space
    modes, offloads = space.axes.knob_values("recompute"), space.axes.knob_values("offload_optimizer")
    away = space.axes.knob_values("offload_activations")
    if not len(modes) or not len(offloads) or not len(away):
        return None
    lightest = c.strategies.replace(
        recompute=modes.max(), offload_optimizer=offloads.max(), offload_activations=away.max()
    )
    peak = evaluate_chunked(found.problem, lightest).peak_memory_bytes
    opened = open_candidates(space, c, np.argsort(peak, kind="stable")[:_CLOSEST])
    if not len(opened):
        return None
    best = opened.strategies[int(np.argmin(opened.peak_bytes))]
    best = with_own_split(space.launcher, found.problem, best)
    return estimate(found.problem, with_split(found.problem, best))


def _memory_reason(closest: Estimate) -> str:
    s = closest.strategy
    rank = int(np.argmax(closest.memory_by_rank_bytes))
    over = closest.peak_memory_bytes - closest.capacity_bytes
    parts = sorted(closest.memory_parts_bytes.items(), key=lambda p: -p[1])[:2]
    most = " and ".join(f"{name} {size / _GIB:.1f} GiB" for name, size in parts)
    where = f"pipeline rank {rank} of {s.pp}" if s.pp > 1 else "every rank"
    return (
        f"nothing fits in memory: the closest layout ({_brief(s)}) needs {over / _GIB:.2f} GiB more than the "
        f"{closest.capacity_bytes / _GIB:.1f} GiB per GPU on {where}, most of it {most}"
    )


def _brief(s: Strategy) -> str:
    ep = f" ep={s.ep}" if s.ep > 1 else ""
    offload = f" offload={s.offload_optimizer:g}" if s.offload_optimizer else ""
    return f"tp={s.tp} cp={s.cp} pp={s.pp}{ep} zero={s.zero} mbs={s.micro_batch_size} recompute={s.recompute}{offload}"


def _rule_reason(space: Space) -> str:
    problem, tally = space.problem, space.tally
    if not tally.considered:
        return (
            f"no layout exists: no tp·cp·pp within the request divides {problem.cluster.num_gpus} GPUs so that what is "
            f"left (dp) divides the global batch of {problem.workload.global_batch_size}"
        )
    refused = space.launcher.refusal(problem, "workload", "machine")
    if refused is not None:
        return f"launcher {space.launcher.name} takes no layout: {refused.message}"
    removed = [(name, count) for name, count in tally.removed.items() if count]
    last = ", ".join(f"{name} ({count:,})" for name, count in removed[-_SHOWN_RULES:])
    gpus, batch = problem.cluster.num_gpus, problem.workload.global_batch_size
    whole = (
        f" (tp·cp·pp·dp must be {gpus} GPUs and dp·mbs divide the batch of {batch})" if space.constraints.items else ""
    )
    return f"rules leave no layout of {tally.considered:,}: the last to remove any were {last}{whole}"


# ---- what would help


def _changes(problem: Problem, launcher: Launcher, constraints: Constraints) -> Iterator[Change]:
    """Relaxations of the request that a search shows to work."""
    if launcher.refusal(problem, "workload") is not None:
        return
    if launcher.refusal(problem, "machine") is not None:
        yield from _tried("launcher generic, without launch files", problem, get_launcher("generic"), constraints)
        return
    for item in constraints.items:
        yield from _tried(f"drop {item.name}", problem, launcher, constraints.without(item))
    if len(constraints.items) > 1:
        yield from _tried("drop all wishes", problem, launcher, Constraints())
    yield from _other_batch(problem, launcher, constraints)
    yield from _more_gpus(problem, launcher, constraints)


def _tried(description: str, problem: Problem, launcher: Launcher, constraints: Constraints) -> Iterator[Change]:
    found = search(Space(problem, launcher, constraints), splits=False)
    if found.best is not None:
        yield Change(description, found.best, found.step_s)


def _other_batch(problem: Problem, launcher: Launcher, constraints: Constraints) -> Iterator[Change]:
    """The nearest batch that does, of those that other numbers of replicas can share."""
    batch = problem.workload.global_batch_size
    for other in _near_batches(batch, problem.cluster.num_gpus, constraints):
        workload = replace(problem.workload, global_batch_size=other)
        changes = list(_tried(f"a global batch of {other}", replace(problem, workload=workload), launcher, constraints))
        if changes:
            yield changes[0]
            return


def _near_batches(batch: int, gpus: int, constraints: Constraints) -> list[int]:
    """The next multiples, up and down, of what the GPUs' divisors take as replicas and pinned micro-batches: nearest
    first, and the one that all GPUs could share last where it is farther."""
    sizes = [int(v) for v in constraints.values("micro_batch_size")] or [1]
    units = [d * size for d in divisors(gpus) for size in sizes]
    near = {b for unit in units for b in (batch // unit * unit, -(-batch // unit) * unit)} - {0, batch}
    ranked = sorted(near, key=lambda b: (abs(b - batch), b))
    whole = -(-batch // gpus) * gpus
    return [*ranked[:_NEAR_BATCHES], *([whole] if whole in ranked[_NEAR_BATCHES:] else [])]


def _more_gpus(problem: Problem, launcher: Launcher, constraints: Constraints) -> Iterator[Change]:
    """The fewest more GPUs that do: every count is tried of the next few, beyond them those between doubled ones."""
    tried = partial(_on_gpus, problem, launcher, constraints)
    fewest = fewest_more(problem.cluster, lambda gpus: next(tried(gpus), None))
    if fewest is not None:
        yield fewest


def _on_gpus(problem: Problem, launcher: Launcher, constraints: Constraints, gpus: int) -> Iterator[Change]:
    larger = replace(problem, cluster=problem.cluster.with_num_gpus(gpus))
    return _tried(f"{gpus} GPUs", larger, launcher, constraints)


def fewest_more(cluster: Cluster, attempt: Callable[[int], Change | None]) -> Change | None:
    """The change on the fewest more GPUs that ``attempt`` makes: whole nodes, up to 64 times as many.

    The next counts are tried one by one, then doubled ones; between the last two of these, counts are halved down to
    one whose next lower count does not do.
    """
    gpus, node = cluster.num_gpus, cluster.node_size

    def whole(count: int) -> int:
        return count if count <= node else -(-count // node) * node

    def after(count: int) -> int:
        return whole(count + 1)

    counts = [after(gpus)]
    while len(counts) < _NEXT_COUNTS:
        counts.append(after(counts[-1]))
    while (double := whole(2 * counts[-1])) <= whole(_MOST_GPUS * gpus):
        counts.append(double)
    low, best = gpus, None
    for count in counts:
        if not _can_have(cluster, count):
            return None
        best = attempt(count)
        if best is not None:
            break
        low = count
    high = count
    while best is not None and after(low) < high:
        middle = whole((low + high) // 2)
        middle = middle if middle < high else after(low)
        change = attempt(middle)
        low, high, best = (low, middle, change) if change else (middle, high, best)
    return best


def _can_have(cluster: Cluster, gpus: int) -> bool:
    try:
        cluster.with_num_gpus(gpus)
    except InputError:
        return False
    return True

"""Questions with an answer: how far a job scales, what more of something would buy, where the best choice changes.

Every function takes ``base``, the keys of a study file without ``vary``, and asks the planner anew at each point: what
is compared are the best layouts of each situation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from shardwise.hardware_profiles.errors import InfeasibleError, InputError

from ..objective import check_amount
from .points import HELP, INFEASIBLE, OK, Row
from .runner import Progress, study

Base = Mapping[str, Any]

RESOURCES: dict[str, str] = {
    "compute": "cluster.accelerator.peak_flops",
    "memory bandwidth": "cluster.accelerator.memory_bytes_per_s",
    "memory": "cluster.accelerator.memory_bytes",
    "scale-up bandwidth": "cluster.tiers.scale-up.bytes_per_s",
    "scale-up latency": "cluster.tiers.scale-up.latency_s",
    "scale-out bandwidth": "cluster.tiers.scale-out.bytes_per_s",
    "scale-out latency": "cluster.tiers.scale-out.latency_s",
    "host link": "cluster.accelerator.host_bytes_per_s",
}
"""What sensitivity varies, by the name it is printed with."""


@dataclass(frozen=True, slots=True)
class Runs:
    """How the points of a question are searched: as ``study`` takes it."""

    workers: int = 1
    executor: Executor | None = None
    progress: Progress | None = None

    def rows(self, base: Base, vary: Mapping[str, Any], mode: str = "grid") -> tuple[Row, ...]:
        """The rows of a study over ``vary``."""
        asked = {**base, "vary": dict(vary), "mode": mode}
        return study(asked, workers=self.workers, executor=self.executor, progress=self.progress).rows


# ---- scale


@dataclass(frozen=True, slots=True)
class Scaling:
    """A job on more and more accelerators. ``efficiency[i]``: tokens/s/GPU over those of the smallest that fits."""

    weak: bool
    rows: tuple[Row, ...]
    efficiency: tuple[float | None, ...]
    bound: float
    drops: tuple[int | None, int] | None
    """The last count that keeps the bound and the first that does not; None where all that fit keep it."""


def scale(
    base: Base, gpus: Sequence[int], *, weak: bool = False, bound: float = 0.8, runs: Runs | None = None
) -> Scaling:
    """Strong scaling (the same global batch) or weak (the batch grows with the accelerators) over ``gpus``.

    Raises InputError for a base without a batch or counts that the cluster has no whole nodes for, InfeasibleError
    where nothing fits on any.
    """
    if not 0.0 < bound < 1.0:
        raise InputError(f"bound = {bound:g}: expected an efficiency between 0 and 1")
    counts = sorted(set(gpus))
    if weak:
        batch = base.get("global_batch")
        if batch is None:
            raise InputError("global_batch: missing; expected the sequences per step of the smallest job")
        base = {**base, "global_batch": None, "batch_per_gpu": batch / counts[0]}
    rows = (runs or Runs()).rows(base, {"gpus": counts})
    first = _any_answered(rows)
    efficiency = tuple(
        row["tokens_per_s_per_gpu"] / first["tokens_per_s_per_gpu"] if row["status"] == OK else None for row in rows
    )
    kept: int | None = None
    drops = None
    for row, share in zip(rows, efficiency, strict=True):
        if share is not None and share < bound:
            drops = (kept, int(row["gpus"]))
            break
        kept = int(row["gpus"]) if share is not None else kept
    return Scaling(weak, rows, efficiency, bound, drops)


# ---- sensitivity


@dataclass(frozen=True, slots=True)
class Influence:
    """What a change of one resource does to the best step. Seconds are None where nothing fits.

    ``elasticity``: per cent of step time for one per cent more, d ln(step) / d ln(resource) between the two sides.
    """

    resource: str
    path: str
    less_s: float | None
    more_s: float | None
    elasticity: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Every resource's influence, the strongest first; ``change`` is the share by which each was varied."""

    step_time_s: float
    change: float
    influences: tuple[Influence, ...]
    row: Row


def sensitivity(base: Base, *, change: float = 0.1, runs: Runs | None = None) -> Sensitivity:
    """The best step with ``change`` less and more of each resource of ``RESOURCES``, planned anew each time.

    Raises InputError for a change out of range, or where nothing fits to begin with.
    """
    if not 0.0 < change < 1.0:
        raise InputError(f"change = {change:g}: expected a share between 0 and 1")
    factors = (1.0 - change, 1.0 + change)
    vary = {path: {"times": list(factors)} for path in RESOURCES.values()}
    rows = (runs or Runs()).rows(base, vary, "one-at-a-time")
    start = _answered(rows[0])
    influences = []
    for at, (name, path) in enumerate(RESOURCES.items()):
        less, more = (row.get("step_time_s") for row in rows[1 + 2 * at : 3 + 2 * at])
        elasticity = math.log(more / less) / math.log(factors[1] / factors[0]) if less and more else None
        influences.append(Influence(name, path, less, more, elasticity))
    influences.sort(key=lambda x: -abs(x.elasticity or 0.0))
    return Sensitivity(start["step_time_s"], change, tuple(influences), start)


def _answered(row: Row) -> Row:
    if row["status"] != OK:
        raise refusal(row)
    return row


def _any_answered(rows: Sequence[Row]) -> Row:
    """The first row with an answer; without one there is nothing to say but why."""
    return next((row for row in rows if row["status"] == OK), None) or _answered(rows[0])


def refusal(row: Row) -> InputError | InfeasibleError:
    """The error of a row without an answer, where an answer needs one."""
    if row["status"] == INFEASIBLE:
        return InfeasibleError(f"nothing to compare: {row['message']}. {HELP}")
    return InputError(f"nothing to compare: {row['message']}")


# ---- cost


@dataclass(frozen=True, slots=True)
class Bill:
    """What some tokens take on one cluster. Money is None without a price."""

    row: Row
    gpu_hours: float
    days: float
    usd: float | None


def cost(
    base: Base, offers: Sequence[tuple[str, int, float | None]], tokens: float, *, runs: Runs | None = None
) -> tuple[Bill | Row, ...]:
    """GPU-hours, days and US dollars for ``tokens`` on each offer: a cluster, accelerators, a price per GPU-hour.

    In the order given; a row instead of a bill where nothing fits. Steps run back to back: no restarts, no checkpoints.
    """
    if not offers:
        raise InputError("clusters: expected at least one to price")
    check_amount("tokens", tokens)
    for _, _, price in offers:
        check_amount("price_usd_per_gpu_hour", price)
    rows = compare(base, [(cluster, gpus) for cluster, gpus, _ in offers], runs=runs)
    return tuple(_bill(row, price, tokens) for row, (_, _, price) in zip(rows, offers, strict=True))


def _bill(row: Row, price: float | None, tokens: float) -> Bill | Row:
    if row["status"] != OK:
        return row
    seconds = tokens / row["tokens_per_s"]
    hours = seconds * row["gpus"] / 3600.0
    return Bill(row, hours, seconds / 86400.0, None if price is None else hours * price)


# ---- comparison


def compare(base: Base, places: Sequence[tuple[str, int]], *, runs: Runs | None = None) -> tuple[Row, ...]:
    """The row of the best layout on each place, a cluster and its accelerators, in the order given.

    Raises InputError for what cannot be used, InfeasibleError where nothing fits on any place.
    """
    vary = ({"cluster": [cluster], "gpus": [gpus]} for cluster, gpus in places)
    rows = tuple((runs or Runs()).rows(base, one, "zip")[0] for one in vary)
    _any_answered(rows)
    return rows

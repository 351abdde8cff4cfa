"""The fewest accelerators on which a job fits at all, or is quick enough, and what the counts around that do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import get_launcher
from shardwise.launchers.choice import Choice

from ..cases import Case, CaseResult, NumGpus, gpu_counts
from ..constraints import Constraints
from ..goal import decide
from ..objective import MOST, Objective, run_usd
from ..proof import TOLERANCE, Clock
from .knobs import inputs
from .points import OK, Row
from .study_file import make_file
from .whatif import Base, Runs

ENOUGH, TOO_SLOW, IMPOSSIBLE = "enough", "too slow", "impossible"
"""What becomes of a count: a layout fits and is quick enough; the best that fits is not; none fits in memory, or the
rules of arithmetic and of the launcher leave none."""

DEFAULT_COUNTS = range(1, 4097)
"""Counts that are looked through, of which whole nodes count."""

_FITS_AT_ALL_S = MOST["max_step_time_s"]
_BELOW, _ABOVE = 3, 3
"""Counts next to the answer that are shown, besides its double and four times it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is quick enough: nothing for fitting at all, else the tightest of the limits given.

    ``tokens``: of the whole run, which may take ``deadline_s``. ``tokens_per_s``: the least throughput of the job.
    """

    max_step_time_s: float | None = None
    tokens: float | None = None
    deadline_s: float | None = None
    tokens_per_s: float | None = None

    def objective(self, work: Workload) -> Objective:
        """The limits as an objective. Raises InputError for an amount out of range, or a deadline without tokens."""
        limits = [x for x in (self.max_step_time_s, self._step_for_rate(work)) if x is not None]
        longest = min(limits) if limits else _FITS_AT_ALL_S if self.deadline_s is None else None
        return Objective("fewest-gpus", max_step_time_s=longest, tokens=self.tokens, deadline_s=self.deadline_s)

    @property
    def is_any(self) -> bool:
        """Whether there is a limit beside memory."""
        return any(x is not None for x in (self.max_step_time_s, self.deadline_s, self.tokens_per_s))

    def _step_for_rate(self, work: Workload) -> float | None:
        if self.tokens_per_s is None:
            return None
        if not 0.0 < self.tokens_per_s < math.inf:
            raise InputError(f"tokens_per_s = {self.tokens_per_s!r}: expected a number above 0")
        return work.tokens_per_step / self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Count:
    """One count next to the answer, with a search of its own."""

    row: Row
    verdict: str
    why: str
    """What binds, in one sentence; empty where the count is enough."""
    run_s: float | None
    """Seconds of the whole run, where its tokens are given."""
    run_usd: float | None

    @property
    def gpus(self) -> int:
        """Accelerators."""
        return int(self.row["gpus"])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"verdict": self.verdict, "why": self.why, "run_s": self.run_s, "run_usd": self.run_usd, **self.row}


@dataclass(frozen=True, slots=True)
class Fewest:
    """The fewest accelerators that do, with what became of every smaller count and a few searches around.

    A larger count need not do: one that splits badly into degrees may be slower than a smaller one, or have no layout.
    Only what is in ``around`` was searched; only ``smaller`` is claimed not to do.
    """

    gpus: int
    limit_s: float | None
    """The longest step that will do; None where fitting is all that is asked."""
    smaller: tuple[CaseResult, ...]
    """Every smaller count asked about and what ruled it out."""
    around: tuple[Count, ...]
    """Ascending; the answer is among them."""

    @property
    def undecided(self) -> tuple[int, ...]:
        """Smaller counts without a proof that they do not do."""
        limit_s = math.inf if self.limit_s is None else self.limit_s * (1.0 + TOLERANCE)
        return tuple(c.num_gpus for c in self.smaller if c.bound_s is not None and c.bound_s <= limit_s)

    @property
    def answer(self) -> Count:
        """The count itself."""
        return next(c for c in self.around if c.gpus == self.gpus)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "gpus": self.gpus, "limit_s": self.limit_s, "undecided": list(self.undecided),
            "smaller": [c.as_dict() for c in self.smaller], "around": [c.as_dict() for c in self.around],
        }  # fmt: skip


def fewest_gpus(
    base: Base, gpus: NumGpus = DEFAULT_COUNTS, limits: Limits | None = None, *, runs: Runs | None = None
) -> Fewest:
    """The fewest of ``gpus`` on which the job fits and keeps to the limits, proven count by count.

    Counts are taken in ascending order, as nothing says that a count does where a smaller one does. Raises InputError
    for what cannot be used, NothingFitsError where no count does: it says what binds and what would help.
    """
    limits = limits or Limits()
    cases, wishes, price = _cases(base, gpus)
    objective = limits.objective(cases[0].problem.workload)
    chosen, _ = decide(cases, objective, wishes, Clock(None), None)
    found = chosen.case.num_gpus
    counts = [case.num_gpus for case in cases]
    smaller = tuple(_memory_alone(c) for c in chosen.outcome if c.num_gpus < found)
    shown = _around(counts, counts.index(found), smaller)
    rows = (runs or Runs()).rows({**base, "gpus": None}, {"gpus": shown})
    limit_s = objective.limit_s(cases[0].problem.workload) if limits.is_any else None
    around = tuple(_count(row, cases, objective, limit_s, price) for row in rows)
    return Fewest(found, limit_s, smaller, around)


def _cases(base: Base, gpus: NumGpus) -> tuple[list[Case], Constraints, float | None]:
    """The job on every count, ascending. Raises InputError."""
    if base.get("batch_per_gpu") is not None:
        raise InputError("batch_per_gpu: grows with the accelerators; expected a global_batch to find their number for")
    if base.get("cluster") is None:
        raise InputError("cluster: missing; expected cluster profile, by name or YAML file")
    counts = gpu_counts(gpus, load_cluster(base["cluster"]))
    file = make_file({**base, "vary": {"gpus": [counts[0]]}})
    given = inputs(file, {"gpus": counts[0]})
    choice = Choice(get_launcher(given.launcher), given.problem.runtime)
    first = Case(given.problem, choice)
    choice.launcher.check_model(first.problem)
    cases = [first, *(first.on(first.problem.cluster.with_num_gpus(n)) for n in counts[1:])]
    wishes = Constraints.of(*(given.wishes[kind] for kind in ("pin", "ban", "min", "max")))
    return cases, wishes, given.price_per_gpu_hour


def _memory_alone(result: CaseResult) -> CaseResult:
    """A count with no layout below the limit that stands for none has no layout that fits."""
    if result.bound_s is None or result.bound_s < _FITS_AT_ALL_S:
        return result
    return replace(result, outcome=IMPOSSIBLE, reason="no layout fits in memory", bound_s=None)


def _around(counts: Sequence[int], at: int, smaller: Sequence[CaseResult]) -> list[int]:
    """The counts to show: those next to the answer, the last smaller one with a layout, twice and four times it."""
    near = {*counts[max(0, at - _BELOW) : at + 1 + _ABOVE]}
    possible = [c.num_gpus for c in smaller if c.outcome != IMPOSSIBLE]
    near |= {*possible[-1:], *(n for n in counts if n in (2 * counts[at], 4 * counts[at]))}
    return sorted(near)


def _count(row: Row, cases: Sequence[Case], objective: Objective, limit_s: float | None, price: float | None) -> Count:
    """What a row says about its count."""
    if row["status"] != OK:
        return Count(row, IMPOSSIBLE, row["message"], None, None)
    case = next(c for c in cases if c.num_gpus == row["gpus"])
    step_s = row["step_time_s"]
    run_s = objective.run_s(step_s, case.problem.workload)
    usd = None if run_s is None or price is None else run_usd(case.num_gpus, run_s, price)
    if limit_s is None or step_s <= limit_s * (1.0 + TOLERANCE):
        return Count(row, ENOUGH, "", run_s, usd)
    return Count(row, TOO_SLOW, _late(step_s, limit_s, case.floor_s), run_s, usd)


def _late(step_s: float, limit_s: float, floor_s: float) -> str:
    over = f"{100.0 * (step_s / limit_s - 1.0):.1f} % over the longest step"
    return f"{over}; the model's FLOPs at peak alone take {floor_s:.4g} s" if floor_s > limit_s else over

"""From a request with an objective to the case that meets it best, and what the answer says about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.costmodel.estimate import Estimate, estimate

from .cases import Case, CaseResult, Selection, select
from .constraints import Constraints
from .exact import Found, Progress, search, with_split
from .infeasible import Change, NothingFitsError, explain, fewest_more
from .objective import Objective, run_usd, usd_per_token
from .proof import TOLERANCE, Clock


@dataclass(frozen=True, slots=True)
class Goal:
    """How a plan does by its objective, and what became of every GPU count and precision asked about."""

    objective: str
    value: float
    """In ``unit``: more is better for ``tokens-per-gpu`` only."""
    unit: str
    dtype: str
    """The precision chosen."""
    gap: float
    """How much better, as a share, another case might be at most: 0 when none is."""
    limit_s: float | None
    """The longest step allowed."""
    usd_per_token: float | None
    """None where no price is stated."""
    run_s: float | None
    """The whole run, None where its tokens are not given."""
    run_usd: float | None
    cases: tuple[CaseResult, ...]

    @classmethod
    def of(cls, chosen: Selection, answer: Estimate) -> Goal:
        """What to say about the plan made for a selection."""
        wanted, cluster, work = chosen.objective, answer.problem.cluster, answer.problem.workload
        gpus, step, price = cluster.num_gpus, answer.step_time_s, wanted.price_usd(cluster)
        run, limit = wanted.run_s(step, work), wanted.limit_s(work)
        return cls(
            objective=wanted.name,
            value=wanted.value(gpus, step, work, price),
            unit=wanted.unit,
            dtype=work.dtype,
            gap=chosen.gap,
            limit_s=limit if math.isfinite(limit) else None,
            usd_per_token=None if price is None else usd_per_token(gpus, step, work, price),
            run_s=run,
            run_usd=None if price is None or run is None else run_usd(gpus, run, price),
            cases=chosen.outcome,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "objective": self.objective, "value": self.value, "unit": self.unit, "dtype": self.dtype, "gap": self.gap,
            "limit_s": self.limit_s, "usd_per_token": self.usd_per_token, "run_s": self.run_s,
            "run_usd": self.run_usd, "cases": [c.as_dict() for c in self.cases],
        }  # fmt: skip


def decide(
    cases: Sequence[Case], objective: Objective, wishes: Constraints, clock: Clock, progress: Progress | None
) -> tuple[Selection, Found]:
    """The best case and its finished search.

    Raises NothingFitsError, which says what binds and what would help, where no case will do.
    """
    for case in cases:
        objective.price_usd(case.problem.cluster)
    chosen = select(cases, objective, wishes, clock, progress)
    if chosen.found is None:
        raise _refusal(cases, objective, wishes)
    if len(cases) == 1 or clock.expired or chosen.stopped_by:
        return chosen, chosen.found
    # That search left out what would not have won: look at the winner again for all there is to say about it.
    whole = search(chosen.case.space(wishes), clock, progress=progress)
    return chosen, whole if whole.step_s <= chosen.found.step_s * (1.0 + TOLERANCE) else chosen.found


def _refusal(cases: Sequence[Case], objective: Objective, wishes: Constraints) -> NothingFitsError:
    """Why no case will do: the fastest layout is too slow, or the most GPUs have none that fits."""
    largest = cases[-1]
    fastest = select(cases, Objective(), wishes, Clock(None)) if objective.is_limited else None
    found = fastest.found if fastest is not None else None
    if fastest is None or found is None or found.best is None:
        error = explain(search(largest.space(wishes)))
        if len(cases) == 1:
            return error
        reason = f"no layout for any of {_span(cases)}; with {largest.num_gpus}: {error.reason}"
        return NothingFitsError(reason, lambda: error.changes, error.closest)
    gpus = fastest.case.num_gpus
    limit = objective.limit_s(found.problem.workload)
    reason = (
        f"no layout for {_span(cases)} takes {limit:.4g} s per step or less: the fastest takes {found.step_s:.4g} s "
        f"on {gpus} GPUs"
    )
    best = estimate(found.problem, with_split(found.problem, found.best))
    return NothingFitsError(reason, partial(_more_gpus, largest, limit, wishes), best)


def _span(cases: Sequence[Case]) -> str:
    counts = sorted({c.num_gpus for c in cases})
    return f"{counts[0]} GPUs" if len(counts) == 1 else f"{len(counts)} counts from {counts[0]} to {counts[-1]} GPUs"


def _more_gpus(largest: Case, limit_s: float, wishes: Constraints) -> list[Change]:
    """The fewest more GPUs that meet the limit, as far as ``fewest_more`` looks."""

    def attempt(gpus: int) -> Change | None:
        case = largest.on(largest.problem.cluster.with_num_gpus(gpus))
        if case.floor_s > limit_s:
            return None
        found = search(case.space(wishes), splits=False, below_s=limit_s * (1.0 + TOLERANCE))
        return None if found.best is None else Change(f"{gpus} GPUs", found.best, found.step_s)

    fewest = fewest_more(largest.problem.cluster, attempt)
    return [fewest] if fewest else []

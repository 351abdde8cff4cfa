"""Several GPU counts or precisions in one request: which of them has the best plan, and the proof that none is better.

Cases are taken best bound first. A bound is cheap at first (the model's FLOPs at peak), then the least bound of the
case's layouts; only a case that may still win is searched, for layouts that would make it win. Nothing is assumed about
how step time changes with the number of accelerators.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from shardwise.costmodel.flops import model_flops_per_token
from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.cluster import LARGEST_JOB, Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.choice import Choice

from .constraints import Constraints
from .exact import Found, Progress, search
from .objective import Objective, Score
from .opening import candidates
from .proof import TOLERANCE, Clock
from .space import Space

MOST_COUNTS = 4096
"""GPU counts of one request, at most."""

NumGpus = int | Sequence[int]


def gpu_counts(num_gpus: NumGpus | None, cluster: Cluster) -> tuple[int, ...]:
    """The counts asked for, ascending: one, those listed, or those of a ``range`` that are whole nodes.

    None stands for the cluster's own. Raises InputError for a count that the cluster cannot have.
    """
    if num_gpus is None:
        return (cluster.num_gpus,)
    if isinstance(num_gpus, range):
        counts = _whole_nodes(num_gpus, cluster)
    else:
        counts = [num_gpus] if isinstance(num_gpus, int) else list(num_gpus)
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool):
            raise InputError(f"num_gpus = {count!r}: expected whole numbers")
        cluster.with_num_gpus(count)
    if not 1 <= len(counts) <= MOST_COUNTS:
        raise InputError(f"num_gpus: {len(counts)} counts: expected 1 to {MOST_COUNTS}")
    return tuple(sorted(set(counts)))


def _whole_nodes(counts: range, cluster: Cluster) -> list[int]:
    node = cluster.node_size
    upwards = counts if counts.step > 0 else counts[::-1]
    first, end = ((limit - upwards.start + upwards.step - 1) // upwards.step for limit in (1, LARGEST_JOB + 1))
    # Cut before it is walked through: its end may be anything.
    inside = [n for n in upwards[max(first, 0) : max(end, 0)] if n <= node or n % node == 0]
    if not inside:
        shown = f"{upwards[0]} to {upwards[-1]}" if upwards else "nothing"
        raise InputError(f"{cluster.name}: num_gpus = {shown}: expected a range with a whole number of nodes of {node}")
    return inside


@dataclass(frozen=True, slots=True)
class Case:
    """One way to ask the question: a GPU count and a precision, and the launcher that writes for it."""

    problem: Problem
    choice: Choice

    @property
    def num_gpus(self) -> int:
        """Accelerators."""
        return self.problem.cluster.num_gpus

    @property
    def floor_s(self) -> float:
        """A step no layout undercuts: the model's FLOPs at the accelerators' peak, and the runtime's fixed time."""
        p = self.problem
        peaks = p.cluster.accelerator.peak_flops
        flops = model_flops_per_token(p.model, p.workload.sequence_length, p.workload.train_mtp)
        fastest = max(peaks[p.gemm_dtype], peaks[p.wide_dtype])
        return flops * p.workload.tokens_per_step / (fastest * self.num_gpus) + p.runtime.fixed_s_per_step

    def on(self, cluster: Cluster) -> Case:
        """The same question on another number of accelerators."""
        return replace(self, problem=replace(self.problem, cluster=cluster))

    def space(self, wishes: Constraints) -> Space:
        """All its layouts."""
        return Space(self.problem, self.choice.launcher, wishes)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case. ``step_time_s`` is its best layout's, None where none was needed or found."""

    num_gpus: int
    dtype: str
    outcome: str
    """``best``; ``beaten`` by it; ``ruled out`` by a bound; ``impossible``: no layout; ``open``: a limit came first."""
    step_time_s: float | None
    bound_s: float | None
    """No layout of the case is faster than this; None where it has none."""
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(slots=True)
class Selection:
    """A search over cases: the best so far, and what became of each. ``found`` is None until something will do."""

    cases: Sequence[Case]
    objective: Objective
    best: Score | None = None
    found: Found | None = None
    winner: int = 0
    results: dict[int, CaseResult] = field(default_factory=dict)
    floors: dict[int, Score] = field(default_factory=dict)
    """A score that each case cannot beat; cases without a layout in time are left out."""
    stopped_by: str | None = None

    @property
    def case(self) -> Case:
        """The case of ``found``."""
        return self.cases[self.winner]

    @property
    def outcome(self) -> tuple[CaseResult, ...]:
        """What became of every case, in the order of the cases."""
        return tuple(self.results[i] for i in sorted(self.results))

    @property
    def gap(self) -> float:
        """How much better, as a share, a case might be at most: 0 when the answer is proven."""
        if self.best is None:
            return 0.0
        gap = 1.0 - min(score[0] for score in (self.best, *self.floors.values())) / self.best[0]
        return gap if gap > TOLERANCE else 0.0

    def limit_s(self, case: Case) -> float:
        """The longest step that meets the objective's limits."""
        return self.objective.limit_s(case.problem.workload)

    def is_late(self, case: Case, step_s: float) -> bool:
        """Whether a step is longer than the limits allow."""
        return step_s > self.limit_s(case) * (1.0 + TOLERANCE)

    def note(
        self, index: int, outcome: str, reason: str, bound_s: float = math.inf, step_s: float | None = None
    ) -> None:
        """Keep what became of a case; ``bound_s`` is infinite where it has no layout."""
        case = self.cases[index]
        if not self.is_late(case, bound_s):
            self.floors[index] = self.objective.score(case.num_gpus, bound_s)
        bound = bound_s if math.isfinite(bound_s) else None
        dtype = case.problem.workload.dtype
        self.results[index] = CaseResult(case.num_gpus, dtype, outcome, step_s, bound, reason)

    def leave(self, index: int, reason: str, bound_s: float) -> None:
        """Leave a case unsearched because a limit or Ctrl-C came first."""
        self.stopped_by = reason
        self.note(index, "open", f"not searched ({reason})", bound_s)

    def offer(self, index: int, found: Found, bound_s: float) -> None:
        """Keep a searched case, as the best where it is."""
        case = self.cases[index]
        score = self.objective.score(case.num_gpus, found.step_s)
        if self.is_late(case, found.step_s):
            self.note(index, "beaten", "too slow", bound_s, found.step_s)
        elif self.best is not None and score >= self.best:
            self.note(index, "beaten", "searched", bound_s, found.step_s)
        else:
            if self.best is not None:
                self.results[self.winner] = replace(self.results[self.winner], outcome="beaten")
            self.best, self.found, self.winner = score, found, index
            self.note(index, "best", "searched", bound_s, found.step_s)


def select(
    cases: Sequence[Case], objective: Objective, wishes: Constraints, clock: Clock, progress: Progress | None = None
) -> Selection:
    """The best case under an objective and its limits, or a selection without ``found``."""
    chosen = Selection(cases, objective)
    alone = len(cases) == 1
    queue = [(objective.score(c.num_gpus, c.floor_s), i, alone, c.floor_s) for i, c in enumerate(cases)]
    heapq.heapify(queue)
    while queue:
        _, index, enumerated, bound_s = heapq.heappop(queue)
        case = cases[index]
        target_s = objective.beaten_from_s(case.num_gpus, chosen.best, chosen.limit_s(case))
        if chosen.is_late(case, bound_s) or (chosen.best and bound_s >= target_s * (1.0 - TOLERANCE)):
            chosen.note(index, "ruled out", _why(chosen, case, enumerated, bound_s), bound_s)
            continue
        if chosen.found and (chosen.stopped_by or clock.expired):
            chosen.leave(index, chosen.stopped_by or "time limit", bound_s)
            continue
        try:
            if enumerated:
                _search(chosen, index, wishes, clock, progress, bound_s, math.inf if alone else target_s)
            elif math.isfinite(least := float(candidates(case.space(wishes)).bound_s.min(initial=math.inf))):
                bound_s = max(bound_s, least)
                heapq.heappush(queue, (objective.score(case.num_gpus, bound_s), index, True, bound_s))
            else:
                chosen.note(index, "impossible", "rules leave no layout")
        except KeyboardInterrupt:
            if chosen.found is None:
                raise
            chosen.leave(index, "interrupt", bound_s)
    return chosen


def _why(chosen: Selection, case: Case, enumerated: bool, bound_s: float) -> str:
    """Why a bound rules a case out, in one sentence."""
    if chosen.objective.name == "fewest-gpus" and chosen.best and case.num_gpus > chosen.best[0]:
        return "more GPUs than needed"
    verdict = "too slow" if chosen.is_late(case, bound_s) else "cannot win"
    what = "no layout takes less than" if enumerated else "the model's FLOPs at peak alone take"
    return f"{verdict}: {what} {bound_s:.4g} s"


def _search(
    chosen: Selection, index: int, wishes: Constraints, clock: Clock, progress: Progress | None, floor_s: float,
    target_s: float,
) -> None:  # fmt: skip
    """Search one case for layouts that would make it the best."""
    # The limit itself is good enough, a step as good as the best so far is not.
    below_s = target_s if chosen.best else target_s * (1.0 + 4.0 * TOLERANCE)
    found = search(chosen.cases[index].space(wishes), clock, below_s=below_s, progress=progress)
    chosen.stopped_by = "interrupt" if found.stopped_by == "interrupt" else chosen.stopped_by
    bound_s = max(floor_s, min(found.step_s, found.open_bound_s))
    if found.best is not None:
        chosen.offer(index, found, bound_s)
    elif math.isfinite(bound_s):
        chosen.note(index, "ruled out", f"searched: no layout takes less than {bound_s:.4g} s", bound_s)
    else:
        chosen.note(index, "impossible", "no layout fits in memory")

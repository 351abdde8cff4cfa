"""Optuna on top of the proof: what the closed form cannot see, judged by the simulation of a step.

By ask-and-tell, in memory or in any storage that Optuna knows, where many workers may share one study and a killed one
is continued. The answer is never worse than what was given: a variation takes its place only if the launcher accepts
it, it fits, the simulation has it faster, and (unless the simulation is preferred) the closed form does not have it
slower, so that the proof still holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.schedule import in_flight
from shardwise.costmodel.simulation import simulated_step_s
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.rule import violations

from .exact import with_split
from .plan import Refinement
from .space import Space
from .storage import open_storage, refusals
from .study import Study
from .variants import Knobs, Variant, knobs

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

DEFAULT_TRIALS = 12
PREFERENCES = ("closed-form", "simulation")
_SHAPE = 2
"""Of the parameters of a trial: raised when they change their meaning, so that no study mixes two."""

_MISFIT = 1e6
"""Added (times the share by which memory is exceeded, plus one) to the step of what does not fit or is refused."""

_FASTER = 1e-6
"""Share by which a simulated step is shorter to count as faster: above what the order of a sum changes."""


@dataclass(frozen=True, slots=True)
class Refining:
    """How to refine: trials, seed, where trials are kept (``open_storage``), and which view decides.

    ``prefer``: ``closed-form`` takes only what it has no slower than the given layout, so that the proof still holds;
    ``simulation`` takes what is quickest there whatever the closed form says.
    """

    trials: int = DEFAULT_TRIALS
    seed: int = 0
    storage: str | None = None
    prefer: str = "closed-form"

    def __post_init__(self) -> None:
        if self.prefer not in PREFERENCES:
            raise InputError(f"prefer = {self.prefer!r}: expected one of {', '.join(PREFERENCES)}")


@dataclass(frozen=True, slots=True)
class Judged:
    """One variation that the launcher accepts."""

    variant: Variant
    estimate: Estimate
    simulated_s: float
    excess: float
    """Share by which the fullest rank exceeds the memory: fits at 0 or less."""

    @property
    def value(self) -> float:
        """What a study minimises: the simulated step, far above any step where it does not fit."""
        return self.simulated_s + (_MISFIT * (1.0 + self.excess) if self.excess > 0 else 0.0)


@dataclass(slots=True)
class _Refiner:
    """One refinement: the bases, and what was judged so far."""

    space: Space
    given: Estimate
    bases: list[Knobs]
    known: dict[Variant, Judged | None] = field(default_factory=dict)

    def judge(self, variant: Variant) -> Judged | None:
        """The simulation's and the cost model's word on a variation; None where a rule refuses it."""
        if variant not in self.known:
            self.known[variant] = self._judge(variant)
        return self.known[variant]

    def _judge(self, variant: Variant) -> Judged | None:
        problem, strategy = self.space.problem, with_split(self.space.problem, variant.strategy)
        if violations(problem, strategy, self.space.rules):
            return None
        group, buckets = variant.microbatch_group, variant.buckets
        try:
            seconds = simulated_step_s(problem, strategy, microbatch_group=group, buckets=buckets)
        except InputError:  # a schedule that does not exist for these numbers
            return None
        one = estimate(problem, strategy)
        return Judged(Variant(strategy, group, buckets), one, seconds, _peak(one, group) / one.capacity_bytes - 1.0)

    def read(self, params: dict[str, Any]) -> Variant:
        """The variation that the parameters of a trial mean."""
        from optuna.trial import FixedTrial

        return self.suggest(FixedTrial(params))

    def suggest(self, trial: Any) -> Variant:
        """The variation of a trial."""
        index = trial.suggest_categorical("base", [k.index for k in self.bases])
        return next(k for k in self.bases if k.index == index).suggest(trial)

    def first(self) -> list[dict[str, Any]]:
        """Trials to start with: the bases as they are, and one notch from each, in turns."""
        queues = [list(k.notches()) for k in self.bases]
        out = [queue.pop(0) for queue in queues[:1]]
        while any(queues):
            out += [queue.pop(0) for queue in queues if queue]
        return out


def refine(
    space: Space,
    best: Estimate,
    runners_up: Sequence[Estimate],
    how: Refining,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Estimate, Refinement]:
    """The best of ``best`` and some variations of it and its runners-up, and what was tried.

    With a ``storage`` (see ``open_storage``) trials of other workers and of earlier runs of the same question count.
    The same inputs, seed and storage content give the same answer; one worker's does not depend on whether it was
    stopped or killed on its way. ``stop`` is asked before each trial; Ctrl-C ends the refinement with the best so far.

    Raises InputError, one line, for a storage that cannot be used.
    """
    trials, seed, storage = how.trials, how.seed, how.storage
    bases = [knobs(space, e.strategy, i) for i, e in enumerate((best, *runners_up))]
    bases = [k for k in bases if k.index == 0 or k.names]
    names = tuple(sorted({name for k in bases for name in k.names}))
    refiner = _Refiner(space, best, bases)
    given = refiner.judge(Variant(best.strategy))
    if not names or trials <= 0 or given is None:
        said = "no trials were asked for" if names else "nothing is left to vary beyond the proven space"
        said = "the simulation does not have this schedule" if given is None else said
        return best, Refinement(0, 0, 0.0, seed, names, said)
    with refusals(storage) if storage else contextlib.nullcontext():
        study = Study.open(open_storage(storage), fingerprint(space, best, runners_up, seed), seed)
        stopped = _run(study, refiner, trials, stop)
        done = sorted(study.values(), key=lambda t: (_value(t), t.number))
        winner, quickest = _answer(done, refiner, given, how.prefer)
    feasible = sum(_value(t) < _MISFIT for t in done)
    told = Refinement(
        trials=len(done),
        feasible=feasible,
        gain_s=given.simulated_s - winner.simulated_s,
        seed=seed,
        dimensions=names,
        message=_message(given, winner, names),
        simulated_before_s=given.simulated_s,
        simulated_s=winner.simulated_s,
        microbatch_group=winner.variant.microbatch_group,
        buckets=winner.variant.buckets,
        quickest=None if quickest is winner else quickest.estimate,
        quickest_s=quickest.simulated_s,
        stopped_by=stopped,
    )
    return winner.estimate, told


def _run(study: Study, refiner: _Refiner, trials: int, stop: Callable[[], bool]) -> str | None:
    """Ask and tell until the study has as many trials; what ended it early, if anything did."""
    first = refiner.first()
    try:
        while study.finished < trials:
            if stop():
                return "time limit"
            with study.asked(first) as trial:
                judged = refiner.judge(refiner.suggest(trial))
                if judged is not None and judged.excess <= 0:
                    trial.set_user_attr("closed_s", judged.estimate.step_time_s)
                study.tell(trial, 2.0 * _MISFIT if judged is None else judged.value)
    except KeyboardInterrupt:
        return "interrupt"
    return None


def _answer(done: Sequence[FrozenTrial], refiner: _Refiner, given: Judged, prefer: str) -> tuple[Judged, Judged]:
    """The winner and the quickest in simulation among finished trials, quickest first.

    What others told is judged again before it is believed.
    """
    winner = quickest = given
    limit = given.estimate.step_time_s * (1.0 + 1e-9) if prefer == "closed-form" else math.inf
    for trial in done:
        if _value(trial) >= winner.simulated_s * (1.0 - _FASTER):
            break
        if _value(trial) >= quickest.simulated_s and trial.user_attrs.get("closed_s", 0.0) > limit:
            continue
        judged = refiner.judge(refiner.read(trial.params))
        if judged is None or judged.excess > 0:
            continue
        if judged.simulated_s < quickest.simulated_s * (1.0 - _FASTER):
            quickest = judged
        if judged.simulated_s < winner.simulated_s * (1.0 - _FASTER) and judged.estimate.step_time_s <= limit:
            winner = judged
            break
    return winner, quickest


def _value(trial: FrozenTrial) -> float:
    """What a finished trial was told; infinite where another program told none."""
    return math.inf if trial.value is None else float(trial.value)


def _message(given: Judged, winner: Judged, names: tuple[str, ...]) -> str:
    if winner is given:
        return f"no variation of {', '.join(names)} was faster in simulation than the proven optimum"
    changed = _changes(given.variant, winner.variant)
    gain = 1.0 - winner.simulated_s / given.simulated_s
    return f"{gain:.2%} faster in simulation than the proven optimum, by {changed}"


def _changes(old: Variant, new: Variant) -> str:
    """What differs, in words: ``microbatch_group 32, vpp 4``."""
    out = [f"{name} {getattr(new, name)}" for name in ("microbatch_group", "buckets")
           if getattr(new, name) != getattr(old, name)]  # fmt: skip
    before, after = old.strategy.as_dict(), new.strategy.as_dict()
    plain = [name for name in Strategy.__slots__ if before[name] != after[name] and not name.endswith("_per_stage")]
    out += [f"{name} {after[name]}" for name in plain]
    split = {name for name in ("layers_per_stage", "recompute_per_stage") if before[name] != after[name]}
    words = {"layers_per_stage": "layers moved between stages", "recompute_per_stage": "other layers recomputed"}
    return ", ".join([*out, *(words[name] for name in sorted(split) if not plain)])


def _peak(one: Estimate, group: int) -> float:
    """Bytes of the fullest rank; a larger group keeps more micro-batches in flight."""
    s, runtime = one.strategy, one.problem.runtime
    if not group:
        return one.peak_memory_bytes
    m = np.array([s.num_microbatches])
    more = (in_flight(s.schedule, s.pp, s.vpp, m, group) / in_flight(s.schedule, s.pp, s.vpp, m))[:, 0] - 1.0
    extra = [parts["activations"] * (1.0 + runtime.fragmentation) for parts in one.memory_parts_by_rank]
    return max(float(b + share * e) for b, share, e in zip(one.memory_by_rank_bytes, more, extra, strict=True))


def fingerprint(space: Space, best: Estimate, runners_up: Sequence[Estimate], seed: int) -> str:
    """A short name of a question: the same in every process, another for anything that changes an answer.

    Problem (its memory margin included), launcher, request, seed, the layouts to start from and the shape of trials.
    """
    starts = tuple(e.strategy for e in (best, *runners_up))
    text = repr((space.problem, space.launcher.name, space.constraints, starts, seed, _SHAPE))
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""An existing launch file under the cost model: what it costs, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.estimate import estimate as predict
from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import MEMORY_MARGIN, Problem
from shardwise.costmodel.runtime import Runtime
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import Launcher, get_launcher, universal_rules
from shardwise.launchers.canonical import canonical
from shardwise.launchers.neighbours import Move, moves, pairs, with_own_splits
from shardwise.launchers.parsed import Given, Parsed
from shardwise.launchers.reading import read_launch
from shardwise.launchers.refusal import Refusal, in_one_line, show
from shardwise.launchers.rule import allowed

from .closing import best_split
from .planner import plan

_LOOK = 24
"""Layouts predicted one by one, with the explicit layer split that they keep: the quickest of an even split."""

_SPARE = 1.15
"""An even split's peak over the memory, up to which an explicit split may still fit."""

_WORTH = 1e-3
"""Share of the step below which a change is none."""

_SPLIT_GAP = 0.005

Item = tuple[str, str, Any, Any]
"""Dimension, the framework's option for it, the value now and then."""


@dataclass(frozen=True, slots=True)
class Change:
    """A better layout: ``items`` are all settings that differ from the present one, what follows included."""

    estimate: Estimate
    items: tuple[Item, ...]
    gain: float
    """Share of the present step that it saves; below 0 where a layout that fits takes longer than one that does not."""

    def __str__(self) -> str:
        return ", ".join(f"{d} {show(a)} -> {show(b)}" for d, _, a, b in self.items)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        answer = self.estimate
        return {
            "changes": [{"dimension": d, "option": o, "from": _plain(a), "to": _plain(b)} for d, o, a, b in self.items],
            "gain": self.gain,
            "strategy": answer.strategy.as_dict(),
            "step_time_s": answer.step_time_s,
            "peak_memory_bytes": answer.peak_memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Review:
    """A launch file's prediction, what its framework would refuse, and the best changes."""

    parsed: Parsed
    estimate: Estimate
    refusals: tuple[Refusal, ...]
    best_one: Change | None
    """The best single change; None where no single one helps."""
    best_two: Change | None
    """The best two changes together; None where no second one helps."""
    optimum: Change | None
    """The best layout of all; None where the present one is, or where none could be found."""
    optimum_note: str = ""
    """Why there is no optimum to show."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the reading and the prediction took for granted."""
        return (*self.parsed.assumptions, *self.estimate.assumptions)

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names of the published JSON schema."""
        lists = ("read", "neutral", "unmodelled", "unknown")
        better = {"best_one": self.best_one, "best_two": self.best_two, "optimum": self.optimum}
        return {
            **self.estimate.as_dict(),
            "launcher": self.parsed.launcher,
            "violations": [str(r) for r in self.refusals],
            "assumptions": list(self.assumptions),
            "options": {name: [o.as_dict() for o in getattr(self.parsed, name)] for name in lists},
            "changes": {name: None if c is None else c.as_dict() for name, c in better.items()},
            "optimum_note": self.optimum_note,
        }


def review(
    launch: str | Path | Parsed,
    cluster: Cluster | str | Path,
    *,
    launcher: str | None = None,
    model: ModelSpec | None = None,
    num_gpus: int | None = None,
    global_batch_size: int | None = None,
    sequence_length: int | None = None,
    variables: Mapping[str, str] | None = None,
    workload_changes: Mapping[str, Any] | None = None,
    runtime: Runtime | str | None = None,
    memory_margin: float = MEMORY_MARGIN,
    time_limit_s: float | None = None,
) -> Review:
    """Predict the job of a launch file (or a folder of them) on a cluster, and find what to change.

    What is given wins over what the files say; ``variables`` are those of the shell that would run them. The best
    single change, the best two, and the optimum under the launcher's rules are sought.

    Raises:
        InputError: a file, option or value that cannot be used, or a layout that breaks a rule of arithmetic; each
            names the option, its value, the rule and a fix.
    """
    given = Given(num_gpus, global_batch_size, sequence_length, model, variables or {})
    parsed = launch if isinstance(launch, Parsed) else read_launch(launch, launcher, given)
    if workload_changes:
        parsed = replace(parsed, workload=replace(parsed.workload, **workload_changes))
    estimate, refused = present(parsed, cluster, runtime=runtime, memory_margin=memory_margin)
    return _improve(parsed, get_launcher(parsed.launcher), estimate, refused, time_limit_s)


def present(
    parsed: Parsed,
    cluster: Cluster | str | Path,
    *,
    runtime: Runtime | str | None = None,
    memory_margin: float = MEMORY_MARGIN,
) -> tuple[Estimate, tuple[Refusal, ...]]:
    """The prediction for a launch file as it stands, and what its framework would refuse of it.

    Raises InputError for a layout that breaks a rule of arithmetic.
    """
    machines = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    problem = replace(parsed.problem(machines, runtime=runtime), memory_margin=memory_margin)
    refused = get_launcher(parsed.launcher).refusals(problem, parsed.strategy)
    fatal = {rule.name for rule in universal_rules()}
    broken = [r for r in refused if r.rule in fatal]
    if broken:
        raise InputError(f"{parsed.launcher} cannot run this layout: {in_one_line(broken)}")
    return predict(problem, parsed.strategy), tuple(refused)


def _improve(
    parsed: Parsed, launcher: Launcher, present: Estimate, refused: tuple[Refusal, ...], limit_s: float | None
) -> Review:
    problem = present.problem
    one = _best(launcher, present, moves, _split_anew(launcher, present))
    two = _best(launcher, present, pairs, one)
    optimum, note = _optimum(launcher, problem, two, limit_s)
    best = _quicker(two, optimum)
    answers = (one, None if two is one else two, best)
    changes = [None if e is None else _change(launcher, present, e) for e in answers]
    return Review(parsed, present, refused, changes[0], changes[1], changes[2], note)


def _split_anew(launcher: Launcher, present: Estimate) -> Estimate | None:
    """The present layout with its layers divided as well as can be."""
    if present.strategy.pp == 1:
        return None
    return _helps(present, best_split(present.problem, launcher, present.strategy, _SPLIT_GAP))


def _best(
    launcher: Launcher,
    present: Estimate,
    near: Callable[[Problem, Strategy], list[Move]],
    before: Estimate | None,
) -> Estimate | None:
    """The quickest layout near the present one that fits and may be launched, or ``before`` if none beats it."""
    problem, best = present.problem, before
    found = with_own_splits(problem, launcher, near(problem, present.strategy))
    rows = Strategies.of(m.strategy for m in found)
    kept = np.flatnonzero(allowed(problem, rows, launcher.search_rules)) if found else np.zeros(0, dtype=np.int64)
    if not len(kept):
        return best
    answer = evaluate(problem, rows.take(kept))
    kept = kept[answer.peak_memory_bytes <= present.capacity_bytes * _SPARE]
    seconds = answer.step_time_s[answer.peak_memory_bytes <= present.capacity_bytes * _SPARE]
    for row in kept[np.argsort(seconds, kind="stable")[:_LOOK]]:
        strategy = found[int(row)].strategy
        if not launcher.violations(problem, strategy):
            best = _quicker(best, _helps(present, predict(problem, strategy)))
    return best


def _optimum(
    launcher: Launcher, problem: Problem, near: Estimate | None, limit_s: float | None
) -> tuple[Estimate | None, str]:
    try:
        found = plan(
            problem.model,
            problem.cluster,
            problem.workload,
            runtime=problem.runtime,
            launcher=launcher.name,
            memory_margin=problem.memory_margin,
            top=1,
            time_limit_s=limit_s,
            refine_trials=0,
        )
    except (InputError, InfeasibleError) as error:
        return None, str(error)
    return found.estimate, ""


def _helps(present: Estimate, answer: Estimate | None) -> Estimate | None:
    """An estimate that is worth having: it fits, and is quicker than the present one where that fits."""
    if answer is None or not answer.fits:
        return None
    quicker = answer.step_time_s < present.step_time_s * (1 - _WORTH)
    return answer if quicker or not present.fits else None


def _quicker(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """The quicker of two; the first where they are equal."""
    if one is None or other is None:
        return one or other
    return other if other.step_time_s < one.step_time_s * (1 - 1e-9) else one


def _change(launcher: Launcher, present: Estimate, answer: Estimate) -> Change | None:
    layers = present.problem.model.num_layers
    before, after = (canonical(e.strategy, layers).as_dict() for e in (present, answer))
    items = tuple((d, launcher.options.get(d, d), before[d], after[d]) for d in before if before[d] != after[d])
    gain = 1 - answer.step_time_s / present.step_time_s
    if not items or (present.fits and gain < _WORTH):
        return None
    return Change(answer, items, gain)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

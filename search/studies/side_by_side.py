"""Two jobs side by side: clusters that the planner fills as well as it can, or launch files as they stand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shardwise.costmodel.estimate import Estimate, half_width, tell_apart
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.model_source import read_model_source
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import Runtime
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.canonical import canonical
from shardwise.launchers.parsed import Given, Parsed
from shardwise.launchers.reading import read_launch

from ..infeasible import NothingFitsError
from ..planner import plan
from ..review import present
from .points import HELP
from .runner import Progress

OPTION_LISTS = ("read", "neutral", "unmodelled", "unknown")

_RUNTIME_NAMES = frozenset({"name", "launcher", "description", "sources", "measured"})
"""Fields of a runtime profile that say what it is, not what it costs."""


@dataclass(frozen=True, slots=True)
class Place:
    """A side to plan for: a cluster and its accelerators."""

    cluster: str
    gpus: int

    @property
    def name(self) -> str:
        """How the side is called."""
        return f"{self.cluster}:{self.gpus}"


@dataclass(frozen=True, slots=True)
class Job:
    """What holds for both sides. None leaves it to the launch file; a place takes it from the other side's file."""

    model: str | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    cluster: str | None = None
    """Where launch files are priced."""
    gpus: int | None = None
    """Of launch files that do not say."""
    launcher: str | None = None
    runtime: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the workload, such as its dtype."""
    pins: Mapping[str, Any] = field(default_factory=dict)
    """For places."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the shell that would run launch files."""

    def model_spec(self) -> ModelSpec | None:
        """The model where it is named. Raises InputError."""
        return None if self.model is None else read_model_source(self.model).build({})


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two, priced; ``fault`` says why where there is no prediction."""

    name: str
    estimate: Estimate | None
    launcher: str
    parsed: Parsed | None = None
    """None for a place."""
    refusals: tuple[str, ...] = ()
    """What the framework would refuse of a launch file."""
    fault: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the prediction under the names of ``estimate``'s schema."""
        head = {"name": self.name, "kind": "launch" if self.parsed else "cluster", "launcher": self.launcher}
        if self.estimate is None:
            return {**head, "fault": self.fault}
        options = {k: [o.as_dict() for o in getattr(self.parsed, k)] for k in OPTION_LISTS} if self.parsed else None
        return {**head, "violations": list(self.refusals), "options": options, **self.estimate.as_dict()}


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that the two sides do not share."""

    setting: str
    a: Any
    b: Any

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"setting": self.setting, "a": _plain(self.a), "b": _plain(self.b)}


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two sides, what differs between them, and whether their predictions can be told apart."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    ratio: float | None
    """Seconds per token of B over A's; None where a side has no prediction."""
    same_problem: bool
    """Whether both are layouts of one model, cluster, workload and framework, whose predictions share much error."""
    told_apart_from: float | None
    """By how much, as a share, the two must differ for the difference to be more than the model's error."""

    @property
    def within_error(self) -> bool | None:
        """Whether the difference is no larger than the error of the predictions."""
        if self.ratio is None or self.told_apart_from is None:
            return None
        return max(self.ratio, 1.0 / self.ratio) - 1.0 <= self.told_apart_from

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "a": self.a.as_dict(), "b": self.b.as_dict(), "differences": [d.as_dict() for d in self.differences],
            "seconds_per_token_ratio": self.ratio, "same_problem": self.same_problem,
            "told_apart_from": self.told_apart_from, "within_error": self.within_error,
        }  # fmt: skip


def side_by_side(
    a: Place | str | Path, b: Place | str | Path, job: Job | None = None, *, progress: Progress | None = None
) -> SideBySide:
    """Price two sides, each a ``Place`` to plan for or the path of a launch file (or a folder of them).

    Raises InputError for what cannot be used or is nowhere said, InfeasibleError where neither side has a layout.
    """
    job, tell = job or Job(), progress or (lambda finished, total: None)
    files = [None if isinstance(side, Place) else _read(side, job) for side in (a, b)]
    borrowed = next((f for f in files if f is not None), None)
    sides = []
    for at, (given, parsed) in enumerate(zip((a, b), files, strict=True)):
        tell(at, 2)
        sides.append(_planned(given, job, borrowed) if isinstance(given, Place) else _priced(given, job, parsed))
    first, second = sides
    if first.estimate is None and second.estimate is None:
        said = dict.fromkeys((f"{first.name}: {first.fault}", f"{second.name}: {second.fault}"))
        raise InfeasibleError(f"nothing to compare: {'; '.join(said)}. {HELP}")
    if first.estimate is None or second.estimate is None:
        return SideBySide(first, second, (), None, False, None)
    one, other = first.estimate, second.estimate
    alike = _same_problem(one.problem, other.problem)
    return SideBySide(
        first, second, tuple(_differences(first, second)), one.tokens_per_s / other.tokens_per_s, alike,
        _error(one.problem, other.problem, alike),
    )  # fmt: skip


def _read(path: str | Path, job: Job) -> Parsed:
    if job.cluster is None:
        raise InputError(f"{path}: on which cluster is this launch file to be priced? name it (--cluster)")
    given = Given(job.gpus, job.global_batch, job.seq_len, job.model_spec(), dict(job.variables))
    parsed = read_launch(path, job.launcher, given)
    return replace(parsed, workload=replace(parsed.workload, **job.workload)) if job.workload else parsed


def _priced(path: str | Path, job: Job, parsed: Parsed | None) -> Side:
    assert parsed is not None and job.cluster is not None
    found, refusals = present(parsed, job.cluster, runtime=job.runtime)
    return Side(str(path), found, parsed.launcher, parsed, tuple(map(str, refusals)))


def _planned(place: Place, job: Job, borrowed: Parsed | None) -> Side:
    model = job.model_spec() or (borrowed.model if borrowed else None)
    if model is None:
        raise InputError(f"{place.name}: which model? name it (--model)")
    try:
        found = plan(
            model, place.cluster, _workload(place, job, borrowed), num_gpus=place.gpus, launcher=job.launcher,
            runtime=job.runtime, pins=job.pins, top=1, refine_trials=0,
        )  # fmt: skip
    except NothingFitsError as error:
        return Side(place.name, None, job.launcher or "", fault=error.reason)
    return Side(place.name, found.estimate, found.launcher)


def _workload(place: Place, job: Job, borrowed: Parsed | None) -> Workload:
    if borrowed is not None:  # it took over what the job says
        return borrowed.workload
    if job.global_batch is None or job.seq_len is None:
        missing = "--global-batch" if job.global_batch is None else "--seq-len"
        raise InputError(f"{place.name}: expected {missing}")
    return Workload(job.global_batch, job.seq_len, **job.workload)


# ---- what differs


def _same_problem(one: Problem, other: Problem) -> bool:
    return (
        _same_model(one.model, other.model)
        and one.cluster == other.cluster
        and one.workload == other.workload
        and one.runtime.name == other.runtime.name
    )


def _same_model(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models cost the same, whatever they are called and wherever they were read."""

    def bare(m: ModelSpec) -> ModelSpec:
        unpriced = replace(m, max_sequence=None, rotary_base=None, norm_epsilon=None, activation=None)
        return replace(unpriced, name="", architecture="", source="", assumptions=())

    return bare(one) == bare(other)


def _error(one: Problem, other: Problem, alike: bool) -> float:
    """Share within which the two cannot be told apart.

    Layouts of one problem share part of their error (``tell_apart``); otherwise the half-widths of the two intervals
    are taken to be of independent errors, which is on the safe side where some of it is shared.
    """
    return tell_apart(one) if alike else math.hypot(half_width(one), half_width(other))


def _differences(a: Side, b: Side) -> Iterator[Difference]:
    assert a.estimate is not None and b.estimate is not None
    one, other = a.estimate.problem, b.estimate.problem
    yield from _unequal(_around(a, one), _around(b, other))
    if not _same_model(one.model, other.model):
        models = [_model(p.model) for p in (one, other)]
        yield from list(_unequal(*models)) or [Difference("model", one.model.name, other.model.name)]
    yield from _unequal(_fields(one.workload), _fields(other.workload))
    if one.runtime.name == other.runtime.name:
        yield from _unequal(*(_runtime(p.runtime) for p in (one, other)))
    shapes = (canonical(e.strategy, e.problem.model.num_layers).as_dict() for e in (a.estimate, b.estimate))
    yield from _unequal(*shapes)


def _around(side: Side, problem: Problem) -> dict[str, Any]:
    cluster = problem.cluster
    return {
        "launcher": side.launcher, "runtime": problem.runtime.name, "cluster": cluster.name,
        "accelerator": cluster.accelerator.name, "GPUs": cluster.num_gpus,
    }  # fmt: skip


def _model(model: ModelSpec) -> dict[str, Any]:
    return {
        "model": model.name, "parameters": model.total_parameters, "active parameters": model.active_parameters,
        "layers": model.num_layers, "hidden size": model.hidden_size, "vocabulary": model.vocab_size,
    }  # fmt: skip


def _fields(work: Workload) -> dict[str, Any]:
    return {f.name: getattr(work, f.name) for f in fields(work)}


def _runtime(runtime: Runtime) -> dict[str, Any]:
    """What options of a launch file may have changed."""
    shown = runtime.model_dump()
    return {f"runtime {k}": v for k, v in shown.items() if k not in _RUNTIME_NAMES}


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys((*one, *other)):
        if one.get(key) != other.get(key):
            yield Difference(key, one.get(key), other.get(key))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""What a launch file says: the layout, the job around it, and every option that was not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import Runtime, load_runtime
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError

Files = Mapping[str, str]
"""Texts by file name, as ``Launcher.render`` gives them."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the file spells it. ``line`` counts from 1; ``note`` says what is to be known about it."""

    name: str
    value: str = ""
    file: str = ""
    line: int = 0
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} " if self.line else f"{self.file} " if self.file else ""
        note = f" ({self.note})" if self.note else ""
        return f"{where}{self.name}{' ' if self.value else ''}{self.value}{note}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: getattr(self, name) for name in ("name", "value", "file", "line", "note")}


@dataclass(frozen=True, slots=True)
class Given:
    """What the person who asks adds to the files; it wins over what they say."""

    num_gpus: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    model: ModelSpec | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the shell that would run the files."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The job of some launch files, in the terms of the cost model.

    Every option of the files stands in one of four lists: ``read`` shaped the answer; ``neutral`` changes neither time
    nor memory; ``unmodelled`` does, but the cost model does not count it; ``unknown`` is not known to the framework or
    could not be understood.
    """

    launcher: str
    strategy: Strategy
    workload: Workload
    model: ModelSpec | None
    """None where the files do not describe the model; ``model_note`` says why."""
    model_note: str = ""
    runtime: str = ""
    """Name of the runtime profile of the framework and its stated options."""
    runtime_changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of that profile that options of the files set."""
    read: tuple[Option, ...] = ()
    neutral: tuple[Option, ...] = ()
    unmodelled: tuple[Option, ...] = ()
    unknown: tuple[Option, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def num_gpus(self) -> int:
        """Accelerators of the job."""
        return self.strategy.world_size

    def with_options(self, lists: Mapping[str, tuple[Option, ...]]) -> Parsed:
        """The same with the options of the files, sorted into the four lists by name."""
        read, neutral, unmodelled, unknown = (lists[n] for n in ("read", "neutral", "unmodelled", "unknown"))
        return replace(self, read=read, neutral=neutral, unmodelled=unmodelled, unknown=unknown)

    def problem(
        self, cluster: Cluster, model: ModelSpec | None = None, runtime: Runtime | str | None = None
    ) -> Problem:
        """The job as the four inputs of every prediction, on ``cluster`` cut to the job's size.

        A runtime that is named keeps what the files say about it. Raises InputError when nobody describes the model.
        """
        spec = model or self.model
        if spec is None:
            raise InputError(f"the launch files do not describe the model ({self.model_note}): name it (--model)")
        profile = runtime if isinstance(runtime, Runtime) else load_runtime(runtime or self.runtime)
        changes = {k: v for k, v in self.runtime_changes.items() if getattr(profile, k) != v}
        if changes:
            profile = profile.model_copy(update=changes)
        return Problem(spec, cluster.with_num_gpus(self.num_gpus), self.workload, profile)


def as_files(source: Files | str | Sequence[str]) -> dict[str, str]:
    """Texts by name from such texts, from one text, or from an argument list."""
    if isinstance(source, str):
        return {"the launch file": source}
    if isinstance(source, Mapping):
        return dict(source)
    return {"the argument list": json.dumps([str(word) for word in source])}


def needed(value: int | None, what: str, option: str, source: str) -> int:
    """A number that the files or the person must give. Raises InputError saying which option would."""
    if value is None:
        raise InputError(f"{source}: does not say {what}: give it with {option}")
    return value


def with_batch(strategy: Strategy, num_gpus: int, global_batch_size: int, source: str) -> Strategy:
    """``Strategy.with_batch`` whose refusal names the file and the option that may set it right."""
    try:
        return strategy.with_batch(num_gpus, global_batch_size)
    except InputError as error:
        text = str(error).removeprefix("strategy: ")
        raise InputError(f"{source}: {text}: if another number is meant, give --gpus or --global-batch") from None

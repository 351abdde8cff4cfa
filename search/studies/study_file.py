"""The study file: what stays the same, what varies, and over which values. Every refusal names file and key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from shardwise.costmodel.problem import MEMORY_MARGIN
from shardwise.costmodel.workload import DTYPES, OPTIMIZERS
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.yaml_files import first_problem, read_mapping

from ..objective import MOST

MOST_VALUES = 10_000
"""Values of one axis, and points of one study ten times that: beyond it somebody mistyped a step."""
MOST_POINTS = 100_000

Count = Annotated[int, Field(ge=1, le=(1 << 40) - 1)]
"""Its largest is above any that a person means; that keeps arithmetic in range, as ``Number``'s does."""
Price = Annotated[float, Field(gt=0.0, le=MOST["price_usd_per_gpu_hour"])]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]

Scalar = int | float | bool | str
Mode = Literal["grid", "one-at-a-time", "zip"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Range(_Strict):
    """Numbers from one end to the other, both included where the step hits them."""

    start: Number = Field(alias="from", description="the first value")
    to: Number = Field(description="the last value")
    step: Annotated[float, Field(gt=0.0)] | None = Field(None, description="added from one value to the next")
    factor: Annotated[float, Field(gt=1.0)] | None = Field(None, description="multiplied from one value to the next")
    num: Annotated[int, Field(ge=2, le=MOST_VALUES)] | None = Field(None, description="so many, equally far apart")

    @model_validator(mode="after")
    def _one_way(self) -> Range:
        ways = [name for name in ("step", "factor", "num") if getattr(self, name) is not None]
        if len(ways) != 1:
            raise ValueError(f"from {self.start:g} to {self.to:g}: expected exactly one of step, factor, num")
        if self.to < self.start:
            raise ValueError(f"to = {self.to:g}: expected at least from = {self.start:g}")
        if self.factor is not None and self.start <= 0:
            raise ValueError(f"from = {self.start:g}: expected more than 0 where values grow by a factor")
        return self

    def values(self) -> tuple[Scalar, ...]:
        """The numbers; whole ones as integers. Raises InputError for more than ``MOST_VALUES``."""
        if self.num is not None:
            raw = [self.start + (self.to - self.start) * i / (self.num - 1) for i in range(self.num)]
        elif self.step is not None:
            count = _count((self.to - self.start) / self.step)
            raw = [self.start + self.step * i for i in range(count)]
        else:
            assert self.factor is not None
            count = _count(math.log(self.to / self.start, self.factor))
            raw = [self.start * self.factor**i for i in range(count)]
        return tuple(_whole(x) for x in raw)


class Times(_Strict):
    """Multiples of what the study has otherwise."""

    times: Annotated[list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=1, max_length=MOST_VALUES)]


Values = Annotated[list[Scalar], Field(min_length=1, max_length=MOST_VALUES)] | Range | Times


class StudyFile(_Strict):
    """One study. Keys that ``vary`` names may be left out above it."""

    name: str | None = Field(None, description="a title for tables and reports")
    model: str | None = Field(None, description="preset, config.json or file of Megatron-LM arguments")
    cluster: str | None = Field(None, description="cluster profile, by name or YAML file")
    gpus: Count | None = Field(None, description="accelerators in the job")
    global_batch: Count | None = Field(None, description="sequences per optimizer step")
    global_tokens: Annotated[int, Field(ge=1, le=1 << 62)] | None = Field(
        None, description="tokens per step, not sequences"
    )
    batch_per_gpu: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        None, description="sequences per step and accelerator"
    )
    seq_len: Count | None = Field(None, description="tokens per sequence")
    dtype: str = Field("bf16", description="GEMM precision")
    optimizer: str = Field("adam", description="optimizer")
    expert_imbalance: Annotated[float, Field(ge=1.0)] = Field(1.0, description="busiest expert rank over the mean")
    mtp: bool = Field(True, description="train the multi-token-prediction layers")
    launcher: str | None = Field(None, description="framework to plan for")
    runtime: str | None = Field(None, description="framework release, by name or YAML file")
    pin: dict[str, Scalar] = Field(default_factory=dict, description="dimensions held at a value")
    ban: dict[str, Scalar] = Field(default_factory=dict, description="values ruled out")
    min: dict[str, int] = Field(default_factory=dict, description="lower limits of dimensions")
    max: dict[str, int] = Field(default_factory=dict, description="upper limits of dimensions")
    memory_margin: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(MEMORY_MARGIN, description="memory left free")
    refine: Annotated[int, Field(ge=0, le=10_000)] = Field(0, description="trials of refinement at each point")
    price_per_gpu_hour: Price | None = Field(None, description="US dollars")
    set: dict[str, Scalar] = Field(default_factory=dict, description="changes to the model or cluster at every point")
    mode: Mode = Field("grid", description="grid (every combination), one-at-a-time or zip (values side by side)")
    vary: Annotated[dict[str, Values], Field(min_length=1)] = Field(description="what varies, and over which values")

    @field_validator("dtype", "optimizer")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        known = DTYPES if info.field_name == "dtype" else OPTIMIZERS
        if value not in known:
            raise ValueError(f"{info.field_name} = {value!r}: expected one of {', '.join(known)}")
        return value


@dataclass(frozen=True, slots=True)
class Study:
    """A study as read: the file, where it stands, and the settings of its points in order."""

    file: StudyFile
    path: Path
    axes: dict[str, tuple[Scalar, ...]]
    """Every axis with its values; multiples are written ``x0.5``."""
    points: tuple[dict[str, Scalar], ...]
    """What each point sets, axis by axis."""

    @property
    def title(self) -> str:
        """The study's name, or its file's."""
        return self.file.name or self.path.stem


def read_study(path: str | Path) -> Study:
    """Read a study file. Raises InputError naming file, key, value and what was expected."""
    path = Path(path)
    return make_study(read_mapping(path, "a study YAML file"), path)


def make_study(raw: dict[str, Any], path: Path) -> Study:
    """A study from the mapping that a study file holds; ``path`` is what errors call it."""
    try:
        file = make_file(raw)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    axes = {}
    for key, values in file.vary.items():
        try:
            axes[key] = _expanded(values)
        except InputError as error:
            raise InputError(f"{path}: vary.{key}: {error}") from None
        if len(set(map(repr, axes[key]))) < len(axes[key]):
            raise InputError(f"{path}: vary.{key}: expected each value once")
    return Study(file, path, axes, _combined(file.mode, axes, path))


def make_file(raw: dict[str, Any]) -> StudyFile:
    """The keys of a study, checked. Raises InputError that begins with the key at fault."""
    try:
        return StudyFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(_problem(error, raw)) from None


def _problem(error: ValidationError, raw: dict[str, Any]) -> str:
    """The first problem; one in an axis in words of its own, as pydantic lists each form that it might have had."""
    axes = [p for p in error.errors(include_url=False) if p["loc"][:1] == ("vary",) and len(p["loc"]) > 1]
    for problem in axes:
        if problem["type"] == "value_error":
            return f"vary.{problem['loc'][1]}: {problem['msg'].removeprefix('Value error, ')}"
    if axes:
        key = str(axes[0]["loc"][1])
        forms = "a list of values, {from, to, step|factor|num} or {times: [...]}"
        return f"vary.{key} = {str(raw['vary'][key])[:80]}: expected {forms}"
    return first_problem(error, StudyFile)


def _expanded(values: list[Scalar] | Range | Times) -> tuple[Scalar, ...]:
    if isinstance(values, Times):
        return tuple(f"x{x:g}" for x in values.times)
    return tuple(values) if isinstance(values, list) else values.values()


def _combined(mode: Mode, axes: dict[str, tuple[Scalar, ...]], path: Path) -> tuple[dict[str, Scalar], ...]:
    lengths = [len(v) for v in axes.values()]
    if mode == "zip":
        if len(set(lengths)) > 1:
            told = ", ".join(f"{key} {len(v)}" for key, v in axes.items())
            raise InputError(f"{path}: mode = 'zip': expected equally many values on every axis, not {told}")
        return tuple(dict(zip(axes, row, strict=True)) for row in zip(*axes.values(), strict=True))
    if mode == "one-at-a-time":
        return ({}, *({key: value} for key, values in axes.items() for value in values))
    if math.prod(lengths) > MOST_POINTS:
        raise InputError(f"{path}: vary: {math.prod(lengths)} points; expected at most {MOST_POINTS}")
    rows: list[dict[str, Scalar]] = [{}]
    for key, values in axes.items():
        rows = [{**row, key: value} for row in rows for value in values]
    return tuple(rows)


def _count(steps: float) -> int:
    """Values that so many steps make; a hair under a whole number is one."""
    if not steps < MOST_VALUES:  # also where the division overflowed
        raise InputError(f"{steps + 1:.10g} values; expected at most {MOST_VALUES}")
    return math.floor(steps + 1e-9) + 1


def _whole(x: float) -> int | float:
    nearest = round(x)
    return nearest if abs(x - nearest) <= 1e-9 * max(1.0, abs(x)) else x

"""The shape of what ``shardwise calibrate`` adds to a system file: ramps, curves, kernel figures and their coverage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .accelerator_schema import AttentionLawFile, DType, Fraction, GemmLawFile, Kernel, Origin, Text
from .calibration import Calibration, CoveredCollective, CoveredKernel, StepTimes

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast", "nvls"]
Share = Annotated[float, Field(ge=0.0, lt=100.0)]
Range = Annotated[list[float], Field(min_length=2, max_length=2)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RampFile(_Strict):
    """The message-size ramp of one kind on a tier, over its technology's."""

    launch_s: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(description="an empty collective, before its first step")
    fill_s: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(description="overhead of one chunk at one step: the ramp")
    copy_weight: Annotated[float, Field(ge=0.0, le=2.0)] = Field(
        0.0, description="wire bytes that the local copy of one rank's part costs as much as"
    )
    origin: Origin
    source: Text


class CurveFile(_Strict):
    """Measured over predicted seconds by message size, for groups like one that was measured."""

    kind: Kind
    ranks: Annotated[int, Field(ge=2)]
    domains: Annotated[int, Field(ge=1)] = Field(description="scale-up domains that the ranks lay in")
    bytes: Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=1, max_length=256)]
    factors: Annotated[list[Annotated[float, Field(gt=1e-3, lt=1e4)]], Field(min_length=1, max_length=256)]
    origin: Origin
    source: Text

    @model_validator(mode="after")
    def _beside(self) -> CurveFile:
        if len(self.bytes) != len(self.factors) or any(
            a >= b for a, b in zip(self.bytes, self.bytes[1:], strict=False)
        ):
            raise ValueError(f"curves: {self.kind}: expected bytes ascending, with as many factors beside them")
        return self


class AcceleratorFiguresFile(_Strict):
    """Figures of the accelerator as measured on this system, in place of its profile's."""

    gemm: dict[DType, GemmLawFile] = Field(default_factory=dict)
    attention: dict[Kernel, AttentionLawFile] = Field(default_factory=dict)
    sustained: dict[DType, Fraction] = Field(default_factory=dict)
    memory_efficiency: Fraction | None = None


class CoveredCollectiveFile(_Strict):
    """See ``CoveredCollective``."""

    kind: Kind
    tier: Text
    ranks: Annotated[list[int], Field(min_length=2, max_length=2)]
    bytes: Range
    rows: int
    error_before: Share
    error_after: Share
    half_width: Share


class CoveredKernelFile(_Strict):
    """See ``CoveredKernel``."""

    operation: Literal["gemm", "attention"]
    name: Text
    sizes: dict[Text, Range]
    rows: int
    error_before: Share
    error_after: Share
    half_width: Share


class StepTimesFile(_Strict):
    """See ``StepTimes``."""

    models: Literal["dense", "moe", "hybrid"]
    launcher: Text
    runs: Annotated[int, Field(ge=1)]
    error_before: Share
    error_after: Share
    half_width_before: Share
    half_width: Share


class CalibrationFile(_Strict):
    """The measurements behind a calibrated profile."""

    base: Text = Field(description="the profile that was calibrated")
    collectives: list[CoveredCollectiveFile] = Field(default_factory=list)
    kernels: list[CoveredKernelFile] = Field(default_factory=list)
    step_times: list[StepTimesFile] = Field(default_factory=list)
    not_identified: list[Text] = Field(default_factory=list, description="what the measurements do not tell")

    def build(self) -> Calibration:
        """The same as plain data."""
        return Calibration(
            base=self.base,
            collectives=tuple(
                CoveredCollective(
                    c.kind, c.tier, (c.ranks[0], c.ranks[1]), (c.bytes[0], c.bytes[1]), c.rows,
                    c.error_before, c.error_after, c.half_width,
                )
                for c in self.collectives
            ),
            kernels=tuple(
                CoveredKernel(
                    k.operation, k.name, {name: (r[0], r[1]) for name, r in k.sizes.items()}, k.rows,
                    k.error_before, k.error_after, k.half_width,
                )
                for k in self.kernels
            ),
            step_times=tuple(
                StepTimes(
                    s.models, s.launcher, s.runs, s.error_before, s.error_after, s.half_width_before, s.half_width
                )
                for s in self.step_times
            ),
            not_identified=tuple(self.not_identified),
        )  # fmt: skip

"""The shape of a system file and of a link technology file, and the JSON Schema of the first.

Every number is a mapping of ``value``, ``origin`` and ``source``. A system file may ``extends`` another one: its own
keys replace the base's, its tiers override the base's tier of the same name key by key (a new name adds a tier).
"""

from __future__ import annotations

from typing import Annotated, Any, Optional

from pydantic import BaseModel, ConfigDict, Field, create_model

from .accelerator_schema import Origin, Text
from .calibration_schema import AcceleratorFiguresFile, CalibrationFile, CurveFile, Kind, RampFile


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Sourced(_Strict):
    origin: Origin = Field(description="where the number comes from")
    source: Text = Field(description="who says so: an address, a sentence, or how it was derived or fitted")


class Rate(_Sourced):
    """Bytes per second, above 0."""

    value: Annotated[float, Field(gt=0.0, le=1e15)]


class Seconds(_Sourced):
    """Seconds, above 0 and below one second."""

    value: Annotated[float, Field(gt=0.0, lt=1.0)]


class Share(_Sourced):
    """A share, above 0 and at most 1."""

    value: Annotated[float, Field(gt=0.0, le=1.0)]


class Factor(_Sourced):
    """A factor of 1 or more."""

    value: Annotated[float, Field(ge=1.0, le=1e4)]


class Size(_Sourced):
    """A whole number of accelerators."""

    value: Annotated[int, Field(ge=1, le=10_000_000)]


class Bytes(_Sourced):
    """Bytes, above 0."""

    value: Annotated[float, Field(gt=0.0, le=1e15)]


class Price(_Sourced):
    """US dollars, above 0."""

    value: Annotated[float, Field(gt=0.0, le=1e6)]


class KindFile(_Sourced):
    """How one collective kind runs on a link technology; ``origin`` and ``source`` hold for the whole line."""

    efficiency: Annotated[float, Field(gt=0.0, le=1.0)] = Field(description="share of the rate at large messages")
    launch_s: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(description="an empty collective, before its first step")
    fill_s: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(description="overhead of one chunk at one step: the ramp")
    copy_weight: Annotated[float, Field(ge=0.0, le=2.0)] = Field(
        0.0, description="wire bytes that the local copy of one rank's part costs as much as"
    )


class TechnologyFile(_Strict):
    """A link technology: what is the same wherever it is used."""

    technology: Text
    latency_s: Seconds = Field(description="one step of a collective")
    kinds: dict[Kind, KindFile] = Field(min_length=1)


class TierFile(_Strict):
    """One network tier of a system."""

    name: Text
    technology: Text = Field(description="link technology: supplies latency, efficiency and ramps unless given here")
    size: Size = Field(description="accelerators inside one domain of this tier")
    bytes_per_s: Rate = Field(description="per accelerator and direction into this tier, bytes per second")
    oversubscription: Factor = Field(description="how many times less than that leaves at full load; 1 = non-blocking")
    latency_s: Seconds | None = Field(None, description="one step between two domains below, seconds")
    efficiency: dict[Kind, Share] = Field(
        default_factory=dict, description="share of the rate by kind, where it differs"
    )
    nvls: bool = Field(False, description="the switches reduce (innermost tier only)")
    ramps: dict[Kind, RampFile] = Field(default_factory=dict, description="message-size ramps by kind, where measured")
    curves: list[CurveFile] = Field(default_factory=list, description="what measurements add to the law, by size")


class SystemFile(_Strict):
    """One system file."""

    name: Text
    aliases: list[Text] = Field(default_factory=list, description="other names of the same system")
    accelerator: Text = Field(description="name or alias of an accelerator profile, or the path of one")
    gpus_per_node: Size = Field(description="accelerators under one operating system")
    host_memory_bytes_per_gpu: Bytes
    price_usd_per_gpu_hour: Price | None = Field(None, description="US dollars for one accelerator and hour")
    tiers: Annotated[list[TierFile], Field(min_length=1, max_length=8)] = Field(description="innermost first")
    num_gpus: Size | None = Field(None, description="accelerators of a job when none is asked for; default: all")
    assumptions: list[Text] = Field(default_factory=list, description="what is assumed for want of a source")
    accelerator_figures: AcceleratorFiguresFile | None = Field(
        None, description="figures of the accelerator as measured on this system"
    )
    calibration: CalibrationFile | None = Field(None, description="the measurements behind the profile")
    source: Text = Field(description="where the system is described")


def _optional(model: type[BaseModel], name: str, doc: str, keep: tuple[str, ...] = (), **extra: Any) -> type[BaseModel]:
    """The same fields as ``model``, all of them optional but ``keep``."""
    fields: dict[str, Any] = {
        key: (info.annotation, ...) if key in keep else (Optional[info.annotation], None)  # noqa: UP045
        for key, info in model.model_fields.items()
    }
    made: type[BaseModel] = create_model(name, __base__=_Strict, __doc__=doc, **(fields | extra))
    return made


TierOverride = _optional(TierFile, "TierOverride", "Keys of a tier that differ from the base's.", keep=("name",))

ExtendingFile = _optional(
    SystemFile,
    "ExtendingFile",
    "A system given by what differs from another one.",
    extends=(Text, Field(description="name, alias or path of the system that this one starts from")),
    tiers=(list[TierOverride] | None, Field(None, description="override the base's tiers of the same names")),  # type: ignore[valid-type]
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema that ships as ``cluster.schema.json``: a complete file, or one that extends another."""
    whole, part = SystemFile.model_json_schema(), ExtendingFile.model_json_schema()
    definitions = {**part.pop("$defs"), **whole.pop("$defs"), "SystemFile": whole, "ExtendingFile": part}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "shardwise system file",
        "anyOf": [{"$ref": "#/$defs/SystemFile"}, {"$ref": "#/$defs/ExtendingFile"}],
        "$defs": dict(sorted(definitions.items())),
    }

"""The shape of an accelerator file, and its JSON Schema.

Every number is a mapping of ``value``, ``origin`` and ``source``; the ranges below are what physics allows, not what is
usual. Text stays text, numbers stay numbers: nothing is coerced.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DType = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4"]
Kernel = Literal["unfused", "fa1", "fa2", "fa3", "cudnn", "vendor"]
Origin = Literal["datasheet", "published", "fitted", "measured", "derived", "assumed"]
Text = Annotated[str, Field(min_length=1, max_length=2000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Sourced(_Strict):
    origin: Origin = Field(description="where the number comes from")
    source: Annotated[str, Field(min_length=8, max_length=2000)] = Field(
        description="who says so: an address, a sentence, or how it was derived or fitted"
    )


class Positive(_Sourced):
    """A number above 0, in a range that arithmetic can hold."""

    value: Annotated[float, Field(ge=1e-12, le=1e24)]


class NotNegative(_Sourced):
    """A number of 0 or more, in a range that arithmetic can hold."""

    value: Annotated[float, Field(ge=0.0, le=1e12)]


class Fraction(_Sourced):
    """A number above 0 and at most 1."""

    value: Annotated[float, Field(gt=0.0, le=1.0)]


class Count(_Sourced):
    """A whole number of 1 or more."""

    value: Annotated[int, Field(ge=1, le=10_000_000)]


class GemmLawFile(_Strict):
    """Shape law of GEMMs of one dtype; see ``GemmLaw``."""

    efficiency: Fraction = Field(description="share of the dense peak that large GEMMs reach, run alone")
    m0: NotNegative = Field(description="ramp in rows (tokens), elements")
    n0: NotNegative = Field(description="ramp in output features, elements")
    k0: NotNegative = Field(description="ramp in input features, elements")
    overhead_s: NotNegative = Field(description="fixed time of one kernel, seconds")


class AttentionLawFile(_Strict):
    """Law of one attention kernel class; see ``AttentionLaw``."""

    forward: Fraction = Field(description="share of the dense peak: forward, head dimension 128, long sequence, alone")
    backward: Fraction = Field(description="the same, backward")
    ramp: NotNegative = Field(description="ramp in keys that an average query sees")
    head_dim_ramp: NotNegative = Field(description="ramp in the head dimension")
    fill: NotNegative = Field(description="queries of all heads together that half fill the device")
    sustained: Fraction = Field(description="share of the isolated speed left in long training")
    causal_skip: bool = Field(description="the kernel does not compute the masked half")
    softmax_passes_forward: NotNegative | None = Field(
        None, description="unfused kernels: 2-byte passes over the score matrix in forward"
    )
    softmax_passes_backward: NotNegative | None = Field(None, description="the same in backward")


class ScaleUpFile(_Strict):
    """Links between the accelerators of one domain."""

    name: Text
    topology: Text
    domain: Count = Field(description="accelerators that one domain joins at most")
    bytes_per_s: Positive = Field(description="per accelerator and direction, bytes per second")


class AcceleratorFile(_Strict):
    """One accelerator file."""

    name: Text
    vendor: Text
    aliases: list[Text] = Field(description="other names of the same device, as published runs write them")
    notes: Annotated[str, Field(max_length=4000)] = ""
    peak_flops: dict[DType, Positive] = Field(min_length=1, description="dense peak by dtype, FLOP/s")
    memory_bytes: Positive = Field(description="as the driver reports it; as marketed where nobody posted that")
    memory_bytes_per_s: Positive
    memory_efficiency: Fraction = Field(description="share of the memory bandwidth that streaming kernels reach")
    host_bytes_per_s: Positive = Field(description="device to host, one direction")
    scale_up: ScaleUpFile
    gemm: dict[DType, GemmLawFile] = Field(min_length=1)
    sustained: dict[DType, Fraction] = Field(description="share of the isolated GEMM speed left in long training")
    attention: dict[Kernel, AttentionLawFile] = Field(min_length=1)
    host_time: Positive | None = Field(
        None, description="host time to launch a kernel over that of an x86 server's; default 1"
    )
    price_per_hour: Positive | None = Field(None, description="US dollars per accelerator and hour")

    @model_validator(mode="after")
    def _tables_agree(self) -> AcceleratorFile:
        """A law needs its peak; a sustained fraction belongs to a law; the two pass counts come together."""
        for table, entries in (("gemm", self.gemm), ("sustained", self.sustained)):
            have = self.peak_flops if table == "gemm" else self.gemm
            needs = "peak_flops" if table == "gemm" else "gemm"
            for dtype in entries:
                if dtype not in have:
                    raise ValueError(f"{table}.{dtype} needs {needs}.{dtype}")
        for kernel, law in self.attention.items():
            if (law.softmax_passes_forward is None) != (law.softmax_passes_backward is None):
                raise ValueError(f"attention.{kernel} needs both softmax_passes_forward and softmax_passes_backward")
            if kernel == "unfused" and law.softmax_passes_forward is None:
                raise ValueError("attention.unfused needs softmax_passes_forward and softmax_passes_backward")
        return self


def json_schema() -> dict[str, Any]:
    """The JSON Schema that ships as ``accelerator.schema.json``."""
    schema = AcceleratorFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

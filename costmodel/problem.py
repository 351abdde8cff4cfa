"""The four inputs of every prediction, together, and the vocabulary padding they imply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware_profiles.accelerator import Accelerator
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError

from .model import ModelSpec
from .runtime import Runtime
from .workload import Workload

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LOW_PRECISION = frozenset({"fp8", "fp8_block", "mxfp8", "nvfp4"})

_GEMM_FALLBACK = {"fp16": "bf16", "fp32": "tf32", "fp8_block": "fp8", "mxfp8": "fp8"}
"""Tensor cores run FP16 at the BF16 rate; the scaled FP8 recipes run the FP8 units."""


MEMORY_MARGIN = 0.05
"""Share of memory kept free by default: about the median error of predicted peaks on published runs."""


KERNEL_FALLBACK = ("cudnn", "fa3", "fa2", "fa1", "vendor", "unfused")
"""Attention kernel classes, each followed by what stands in for it on a device without it."""


def nearest_kernel(kernel: str, accelerator: Accelerator) -> str:
    """The kernel class itself where the device has figures for it, else the next one down."""
    later = KERNEL_FALLBACK[KERNEL_FALLBACK.index(kernel) :]
    for candidate in (*later, *KERNEL_FALLBACK):
        if candidate in accelerator.attention:
            return candidate
    raise InputError(f"{accelerator.name}: attention: no figures for any kernel class")


@dataclass(frozen=True, slots=True)
class Problem:
    """What to train, where, on which batch, and how the framework executes it."""

    model: ModelSpec
    cluster: Cluster
    workload: Workload
    runtime: Runtime
    memory_margin: float = MEMORY_MARGIN
    """Share of the device's memory that a plan leaves free."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory_margin < 1.0:
            raise InputError(f"memory_margin = {self.memory_margin!r}: expected a share from 0 to below 1")

    @property
    def gemm_dtype(self) -> str:
        """The dtype whose GEMM law applies to linear layers. Raises InputError if the accelerator has none."""
        return self._law(self.workload.dtype)

    @property
    def wide_dtype(self) -> str:
        """The 16-bit (or FP32) dtype that attention, the router and the output head run in."""
        dtype = self.workload.dtype
        return self._law("bf16" if dtype in LOW_PRECISION else dtype)

    @property
    def attention_kernel(self) -> str:
        """The attention kernel class: the runtime's, or the nearest older one that the device has figures for."""
        return nearest_kernel(self.runtime.attention_kernel, self.cluster.accelerator)

    @property
    def activation_bytes(self) -> float:
        """Bytes per activation element: 2, or 4 in fp32."""
        return 4.0 if self.workload.dtype == "fp32" else 2.0

    @property
    def saved_input_bytes(self) -> float:
        """Bytes per element of the linear-layer inputs kept for backward: quantised copies are one byte."""
        return 1.0 if self.workload.dtype in LOW_PRECISION else self.activation_bytes

    def padded_vocabulary(self, tp: Ints) -> Ints:
        """Vocabulary rows after the framework's padding, per strategy."""
        unit = self.runtime.vocab_multiple * tp if self.runtime.vocab_multiple > 1 else tp
        return -(-self.model.vocab_size // unit) * unit

    def _law(self, dtype: str) -> str:
        gemm = self.cluster.accelerator.gemm
        for candidate in (dtype, _GEMM_FALLBACK.get(dtype, dtype), "bf16" if dtype == "fp16" else "fp16"):
            if candidate in gemm and (candidate == dtype or dtype not in LOW_PRECISION or candidate == "fp8"):
                return candidate
        have = ", ".join(sorted(gemm))
        raise InputError(f"{self.cluster.accelerator.name}: dtype = {dtype!r}: no GEMM figures for it; it has {have}")

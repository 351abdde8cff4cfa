"""Fits the kernel laws of the accelerator profiles to measured rows and prints law and error.

``python -m shardwise.hardware_profiles.fit_kernels [ROWS.jsonl]`` prints one line for each device, dtype and kernel
class from raw postings, or from the rows that ship with shardwise. Residuals are logarithms of predicted over measured
time, under a soft-L1 loss, so that a few odd rows (a kernel the library picked badly, tile quantisation) do not bend
the law.

Tried on these rows and left out of the law: 128 × 128 tiles in whole waves over the compute units (the median moves by
up to 1.7 points either way, the P90 over all shapes is up to six times worse; 256-wide tiles are worse still), a smooth
instead of a hard maximum with the bytes roofline (0.1 to 0.3 points either way), and a slow-down that grows with a
kernel's duration (0.5 to 1 point better on Hopper, 3 on L40S: it is the power limit, which ``sustained`` already
describes for training).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from .accelerator import Accelerator, AttentionLaw, GemmLaw
from .errors import ShardwiseError
from .load_accelerator import load_accelerator
from .measured_kernels import AttentionRow, GemmRow, read_attention_rows, read_gemm_rows

Array = NDArray[np.float64]

GEMM_PROTOCOL: dict[str, tuple[str, ...]] = {
    "A100-PCIe-80GB": ("SimuMax",),
    "H800-SXM": ("DeepGEMM", "InferSim"),
    "H20": ("InferSim",),
}
"""Sources that a device's GEMM law is fitted to; ``aiconfigurator`` where not listed. Protocols differ (cold or warm
cache, duration), so one law is fitted to one protocol. B200 by SimuMax (150 rows, long runs) is not mixed in: it
reaches 0.50 where the short kernels reach 0.71, the same 0.7 that training sustains."""

FILL: dict[str, float] = {
    "A100-PCIe-80GB": 108 * 128.0,
    "A100-SXM4-80GB": 108 * 128.0,
    "H100-SXM5-80GB": 132 * 128.0,
    "H200-SXM": 132 * 128.0,
    "H20-96GB": 78 * 128.0,
    "L40S": 142 * 128.0,
    "B200-SXM": 148 * 256.0,
    "B300-SXM": 148 * 256.0,
    "GB200": 148 * 256.0,
}
"""Queries of all heads that half fill a device where the rows do not show it: compute units × query rows of a tile."""

PROFILE_OF = {"H20": "H20-96GB"}
"""Profile of a device that the rows name otherwise."""

TRAINING_ROWS = 1024
"""Errors are reported for m at or above this: training GEMMs. Smaller ones count half in the fit."""

RAMP_START = 150.0
"""Ramp in keys where the rows are too long to show one: between FlashAttention-2 (143) and cuDNN (187) on H100."""

_GEMM_START = (0.8, 30.0, 100.0, 100.0, 3.0)
_GEMM_HIGH = (1.0, 1000.0, 6000.0, 3000.0, 50.0)
_GEMM_SCALE = (0.1, 50.0, 200.0, 200.0, 3.0)
_ATTENTION_HIGH = (1.0, 1.0, 4000.0, 512.0, 200_000.0)
_ATTENTION_SCALE = (0.1, 0.1, 100.0, 50.0, 10_000.0)


@dataclass(frozen=True, slots=True)
class FitQuality:
    """Relative errors of predicted time: median and 90th percentile, over training shapes and over all."""

    rows: int
    median: float
    p90: float
    median_all: float
    p90_all: float

    @classmethod
    def of(cls, predicted: Array, measured: Array, training: NDArray[np.bool_]) -> FitQuality:
        """Quality of ``predicted`` seconds; ``training`` marks the rows of the headline error."""
        error = np.abs(predicted / measured - 1.0)
        head = error[training] if training.any() else error
        quantiles = (float(np.median(head)), float(np.quantile(head, 0.9)))
        return cls(len(error), *quantiles, float(np.median(error)), float(np.quantile(error, 0.9)))


def gemm_rows_for(device: str, dtype: str, rows: Iterable[GemmRow]) -> list[GemmRow]:
    """The rows that the law of ``device`` and ``dtype`` is fitted to."""
    sources = GEMM_PROTOCOL.get(device, ("aiconfigurator",))
    return [
        row
        for row in rows
        if row.device == device and row.dtype == dtype and row.groups == 1 and any(s in row.source for s in sources)
    ]


def predict_gemm(accelerator: Accelerator, law: GemmLaw, dtype: str, rows: Sequence[GemmRow]) -> Array:
    """Seconds of each row by ``law``, as an isolated kernel."""
    shapes = np.array([(row.m, row.n, row.k, row.groups) for row in rows], dtype=np.float64).T
    trial = replace(accelerator, gemm={dtype: law})
    return trial.gemm_time_s(shapes[0], shapes[1], shapes[2], dtype, shapes[3], sustained=False)


def fit_gemm(accelerator: Accelerator, dtype: str, rows: Sequence[GemmRow]) -> tuple[GemmLaw, FitQuality]:
    """Fit the five numbers of the shape law."""
    measured = np.array([row.time_s for row in rows])
    m = np.array([row.m for row in rows])
    weight = np.where(m >= TRAINING_ROWS, 1.0, 0.5)

    def law_of(x: Array) -> GemmLaw:
        return GemmLaw(float(x[0]), float(x[1]), float(x[2]), float(x[3]), float(x[4]) * 1e-6)

    def residuals(x: Array) -> Array:
        return np.asarray(weight * np.log(predict_gemm(accelerator, law_of(x), dtype, rows) / measured))

    fit = least_squares(
        residuals,
        _GEMM_START,
        bounds=((0.02, 0.0, 0.0, 0.0, 0.0), _GEMM_HIGH),
        x_scale=_GEMM_SCALE,
        loss="soft_l1",
        f_scale=0.05,
    )
    law = law_of(fit.x)
    return law, FitQuality.of(predict_gemm(accelerator, law, dtype, rows), measured, m >= TRAINING_ROWS)


def predict_attention(accelerator: Accelerator, law: AttentionLaw, rows: Sequence[AttentionRow]) -> Array:
    """Seconds of each row by ``law``, as an isolated kernel; rows of several dtypes use their own peaks."""
    trial = replace(accelerator, attention={"trial": law})
    columns = ("batch", "heads", "seq_q", "seq_k", "qk_dim", "v_dim")
    out = np.empty(len(rows))
    for key in {(row.dtype, row.causal, row.backward) for row in rows}:
        where = [i for i, row in enumerate(rows) if (row.dtype, row.causal, row.backward) == key]
        b, h, sq, sk, dq, dv = np.array([[getattr(rows[i], c) for c in columns] for i in where], dtype=np.float64).T
        dtype, causal, backward = key
        out[where] = trial.attention_time_s("trial", b * h, sq, sk, dq, dv, causal, backward, dtype, sustained=False)
    return out


def fit_attention(accelerator: Accelerator, rows: Sequence[AttentionRow]) -> tuple[AttentionLaw, FitQuality]:
    """Fit fractions and ramps. What the rows do not vary keeps a start: ``RAMP_START``, no head ramp, ``FILL``."""
    fill = FILL.get(accelerator.name, 0.0)
    measured = np.array([row.time_s for row in rows])
    seen = [row.seq_k * (0.5 if row.causal else 1.0) for row in rows]
    varies_dim = len({row.qk_dim + row.v_dim for row in rows}) > 1
    free = np.array(
        [
            any(not row.backward for row in rows),
            any(row.backward for row in rows),
            min(seen) < 1024 and len(set(seen)) > 2,
            varies_dim,
            min(row.heads * row.batch * row.seq_q for row in rows) < fill,
        ]
    )
    start = np.array([0.5, 0.4, RAMP_START, 20.0 if varies_dim else 0.0, fill])

    def law_of(x: Array) -> AttentionLaw:
        full = start.copy()
        full[free] = x
        forward, backward, ramp, dim, fill_ = (float(v) for v in full)
        return AttentionLaw(forward, backward, ramp, True, head_dim_ramp=dim, fill=fill_)

    def residuals(x: Array) -> Array:
        return np.asarray(np.log(predict_attention(accelerator, law_of(x), rows) / measured))

    low, high, scale = (np.array(v)[free] for v in ((0.02, 0.02, 0.0, 0.0, 0.0), _ATTENTION_HIGH, _ATTENTION_SCALE))
    # Plain squares first: the robust loss alone can settle on half of the rows.
    near = least_squares(residuals, start[free], bounds=(low, high), x_scale=scale).x
    fit = least_squares(residuals, near, bounds=(low, high), x_scale=scale, loss="soft_l1", f_scale=0.05)
    law = law_of(fit.x)
    training = np.array([row.seq_k >= 2048 for row in rows])
    return law, FitQuality.of(predict_attention(accelerator, law, rows), measured, training)


def attention_rows_for(device: str, kernel: str, rows: Iterable[AttentionRow]) -> list[AttentionRow]:
    """The 16-bit rows of one kernel class on one device."""
    return [row for row in rows if row.device == device and row.kernel == kernel and row.dtype in ("bf16", "fp16")]


def fit_all_gemm(rows: Sequence[GemmRow]) -> dict[tuple[str, str], tuple[GemmLaw, FitQuality]]:
    """Every (profile name, dtype) with at least 20 rows."""
    found = {}
    for device, dtype in sorted({(row.device, row.dtype) for row in rows}):
        chosen = gemm_rows_for(device, dtype, rows)
        if len(chosen) >= 20:
            accelerator = load_accelerator(PROFILE_OF.get(device, device))
            found[accelerator.name, dtype] = fit_gemm(accelerator, dtype, chosen)
    return found


def fit_all_attention(rows: Sequence[AttentionRow]) -> dict[tuple[str, str], tuple[AttentionLaw, FitQuality]]:
    """Every (profile name, kernel class) with at least 5 rows."""
    found = {}
    for device, kernel in sorted({(row.device, row.kernel) for row in rows}):
        chosen = attention_rows_for(device, kernel, rows)
        if len(chosen) < 5 or device.startswith("Hopper"):
            continue
        accelerator = load_accelerator(PROFILE_OF.get(device, device))
        found[accelerator.name, kernel] = fit_attention(accelerator, chosen)
    return found


def _line(name: str, kind: str, numbers: Sequence[float], quality: FitQuality) -> str:
    """One line of the table: fractions below 1 with three digits, the rest with one, ``-`` for what no row shows."""
    law = "".join(f"{'-':>9s}" if x != x else f"{x:9.3f}" if x < 1.0 else f"{x:9.1f}" for x in numbers)
    errors = (quality.median, quality.p90, quality.median_all, quality.p90_all)
    return f"{name:18s}{kind:>10s}{law}{quality.rows:6d}" + "".join(f"{100.0 * x:9.1f}" for x in errors)


def _head(title: str, kind: str, numbers: Sequence[str]) -> str:
    columns = "".join(f"{n:>9s}" for n in numbers)
    return f"{title:18s}{kind:>10s}{columns}  rows  median%     P90%  med all  P90 all"


def _print_table(gemm: Sequence[GemmRow], attention: Sequence[AttentionRow]) -> None:
    print(_head("GEMM, m >= 1024", "dtype", ("eff", "m0", "n0", "k0", "us")))
    for (name, dtype), (law, quality) in fit_all_gemm(gemm).items():
        print(_line(name, dtype, (law.efficiency, law.m0, law.n0, law.k0, law.overhead_s * 1e6), quality))
    print(_head("\nattention, s >= 2k", "kernel", ("forward", "backward", "ramp", "dim", "fill")))
    timed_backward = {(PROFILE_OF.get(row.device, row.device), row.kernel) for row in attention if row.backward}
    for (name, kernel), (fit, quality) in fit_all_attention(attention).items():
        backward = fit.backward if (name, kernel) in timed_backward else float("nan")
        print(_line(name, kernel, (fit.forward, backward, fit.ramp, fit.head_dim_ramp, fit.fill), quality))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: fit and print."""
    parser = argparse.ArgumentParser(
        prog="python -m shardwise.hardware_profiles.fit_kernels",
        description="Fit the kernel laws of the accelerator profiles to measured rows; print laws and errors.",
    )
    parser.add_argument("rows", nargs="?", type=Path, help="JSON lines of posted timings; default: the shipped rows")
    path = parser.parse_args(argv).rows
    try:
        _print_table(read_gemm_rows(path), read_attention_rows(path))
    except ShardwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

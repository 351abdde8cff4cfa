"""Figures of a calibration: measured points, and the curves before and after. Needs matplotlib (extra ``report``)."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.hardware_profiles.errors import InputError

from .output import prepare_folder, write_files

if TYPE_CHECKING:
    from shardwise.costmodel.calibrate import Calibrated

MEASURED, BEFORE, AFTER = "#1f2937", "#9ca3af", "#2563eb"
SIZE_INCHES = (6.4, 4.2)


def draw(answer: Calibrated, folder: Path, image: str) -> list[Path]:
    """One file for each collective and group size, each GEMM dtype and attention kernel, and the runs.

    Raises InputError where matplotlib is not installed or the folder cannot be written to.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise InputError("--figures: matplotlib is not installed: pip install 'shardwise[report]'") from None
    prepare_folder(folder, "--figures")
    matplotlib.rcParams.update({"svg.hashsalt": "shardwise", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    files: dict[str, str | bytes] = {}
    for name, figure in _figures(answer, plt):
        stream = io.BytesIO()
        figure.savefig(stream, format=image, dpi=150, metadata={"Date": None} if image == "svg" else {"Software": None})
        plt.close(figure)
        files[f"{name}.{image}"] = stream.getvalue()
    return write_files(folder, files, "--figures")


def _figures(answer: Calibrated, plt: Any) -> list[tuple[str, Any]]:
    out = [*_collectives(answer, plt)]
    for fit in answer.benchmarks.kernels:
        title = f"{fit.operation}, {fit.name}"
        figure = _against(plt, title, "ms", fit.measured_s * 1e3, fit.before_s * 1e3, fit.after_s * 1e3)
        out.append((f"{fit.operation}_{fit.name}", figure))
    runs = answer.runs
    if runs is not None:
        out.append(("runs", _against(plt, "step times", "s", runs.measured_s, runs.before_s, runs.after_s)))
    return out


def _collectives(answer: Calibrated, plt: Any) -> list[tuple[str, Any]]:
    """Bus bandwidth over message size, as nccl-tests counts it."""
    from shardwise.hardware_profiles.calibrate_collectives import predict

    fit = answer.benchmarks.collectives
    if fit is None:
        return []
    out = []
    for kind, ranks, domains in sorted({(r.kind, r.ranks, r.nodes) for r in fit.rows}):
        rows = [r for r in fit.rows if (r.kind, r.ranks, r.nodes) == (kind, ranks, domains)]
        sizes = np.array([r.nbytes for r in rows])
        grid = np.geomspace(sizes.min(), sizes.max(), 200)
        line = [replace(rows[0], nbytes=float(b)) for b in grid]
        figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
        factor = _bus_factor(kind, ranks)
        axes.plot(grid, factor * grid / predict(line, answer.base) / 1e9, "--", color=BEFORE, label="profile before")
        axes.plot(grid, factor * grid / predict(line, fit.cluster) / 1e9, color=AFTER, label="fitted")
        seconds = np.array([r.seconds for r in rows])
        axes.plot(sizes, factor * sizes / seconds / 1e9, "o", ms=3.5, color=MEASURED, label="measured")
        axes.set(xscale="log", yscale="log", xlabel="message, bytes", ylabel="bus bandwidth, GB/s")
        where = f"{ranks} ranks" if domains == 1 else f"{ranks} ranks in {domains} domains"
        axes.set_title(f"{kind}, {where}")
        axes.legend(frameon=False)
        out.append((f"{kind}_{ranks}_in_{domains}", figure))
    return out


def _bus_factor(kind: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _against(plt: Any, title: str, unit: str, measured: Any, before: Any, after: Any) -> Any:
    """Predicted over measured, before and after, with the line where both agree."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    low, high = float(np.min(measured)) * 0.8, float(np.max(measured)) * 1.25
    axes.plot([low, high], [low, high], color=MEASURED, lw=0.8)
    axes.plot(measured, before, "o", ms=4, mfc="none", color=BEFORE, label="profile before")
    axes.plot(measured, after, "o", ms=3.5, color=AFTER, label="fitted")
    axes.set(xscale="log", yscale="log", xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}", title=title)
    axes.legend(frameon=False)
    return figure

"""Errors of predictions against measured runs: by stratum, memory, fits, ranking, and a trivial baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .estimate import interval, tell_apart
from .model import AttentionCore, ModelSpec, RecurrentCore
from .rows import RowInputs

Array = NDArray[np.float64]

LEAST_RANKED = 5
"""Groups with fewer timed rows say nothing about ranking."""

STATED_ENOUGH = frozenset({"parallel.zero_stage"})
"""Keys whose absence leaves a row fully stated."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured and predicted of one row, and the strata it belongs to."""

    row_id: str
    group: str
    layout_group: str
    """Rows of one group with the same accelerators, batch and precision: those a planner would choose between."""
    device: str
    source: str
    kind: str
    dtype: str
    runtime: str
    complete: bool
    suspect: str | None
    measured_s: float | None
    predicted_s: float
    measured_bytes: float | None
    memory_kind: str
    predicted_bytes: float
    oom: bool | None
    fits: bool
    interval_s: tuple[float, float]
    """The range that the prediction itself claims."""
    tell_apart: float
    """Share within which the prediction claims no difference to another layout of its group."""
    baseline_mfu: float | None
    """Useful FLOPs per accelerator and second over its peak, had the row run at its measured time (baseline MFU)."""

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, minus 1."""
        return None if not self.measured_s else self.predicted_s / self.measured_s - 1.0


def gather_facts(
    row: Mapping[str, Any], inputs: RowInputs, seconds: float | None, peak: float | None, fits: bool | None
) -> Facts:
    """The facts of one predicted row."""
    problem, parallel = inputs.problem, row["parallel"]
    measured = _mapping(row.get("measured"))
    step, gigabytes = _positive(row.get("step_time_s")), _positive(measured.get("peak_memory_gb"))
    group = str(row.get("group") or row["id"])
    memory_kind = str(row.get("memory_kind") or "not stated")
    peak_flops = problem.cluster.accelerator.peak_flops.get(problem.gemm_dtype)
    useful = _training_flops(problem.model, problem.workload.sequence_length) * problem.workload.tokens_per_step
    again = 4.0 / 3.0 if inputs.strategy.recompute == "full" else 1.0
    rate = useful * again / (step * problem.cluster.num_gpus * peak_flops) if step and peak_flops else None
    return Facts(
        row_id=inputs.row_id,
        group=group,
        layout_group=f"{group}|{problem.cluster.num_gpus}|{problem.workload.global_batch_size}|{problem.workload.dtype}",
        device=problem.cluster.accelerator.name,
        source=str(_mapping(row.get("source")).get("title") or "not stated"),
        kind=_kind(problem.model),
        dtype=str(parallel.get("dtype")),
        runtime=problem.runtime.name,
        complete=_complete(row.get("unstated")),
        suspect=row.get("suspect"),
        measured_s=step,
        predicted_s=float(seconds or 0.0),
        measured_bytes=gigabytes * 1e9 if gigabytes else None,
        memory_kind=memory_kind,
        predicted_bytes=float(peak or 0.0),
        oom=measured.get("oom") if isinstance(measured.get("oom"), bool) else None,
        fits=bool(fits),
        interval_s=interval(problem, float(seconds or 0.0)),
        tell_apart=tell_apart(problem),
        baseline_mfu=rate,
    )


def _complete(unstated: Any) -> bool:
    return isinstance(unstated, list) and all(isinstance(k, str) and k in STATED_ENOUGH for k in unstated)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1e15:
        return None
    return float(value)


def _kind(model: ModelSpec) -> str:
    mixers = [model.kinds[k].mixer for k in set(model.layers)]
    if any(m is not None and isinstance(m.core, RecurrentCore) for m in mixers):
        return "hybrid"
    return "moe" if model.is_moe else "dense"


def _training_flops(model: ModelSpec, sequence: int) -> float:
    """FLOPs per token, forward and backward: 6 per parameter used, and causal attention."""
    weights = model.active_parameters - model.embedding_parameters * (not model.tied_embeddings)
    attention = 0.0
    for k, n in Counter(model.layers).items():
        mixer = model.kinds[k].mixer
        if mixer is not None and isinstance(mixer.core, AttentionCore):
            core = mixer.core
            keys = min(core.window or sequence, sequence / 2)
            attention += n * 6.0 * core.num_heads * (core.qk_head_dim + core.v_head_dim) * keys
    return 6.0 * weights + attention


def spread(errors: Iterable[float]) -> dict[str, float | int]:
    """Count, median and 90th percentile of the absolute error, and mean error, as shares."""
    values = np.asarray(list(errors), dtype=np.float64)
    if not len(values):
        return {"n": 0}
    absolute = np.abs(values)
    return {
        "n": len(values),
        "median": round(float(np.median(absolute)), 4),
        "p90": round(float(np.quantile(absolute, 0.9)), 4),
        "bias": round(float(values.mean()), 4),
    }


def summarise(facts: Sequence[Facts], skipped: Sequence[tuple[str, str | None]]) -> dict[str, Any]:
    """All tables of a validation, as plain values."""
    trusted = [f for f in facts if not f.suspect]
    timed = [f for f in trusted if f.measured_s]
    full = [f for f in timed if f.complete]
    return {
        "predicted": len(facts),
        "skipped": len(skipped),
        "step_time": {
            "all": spread(_errors(timed)),
            "fully_stated": spread(_errors(full)),
            "partly_stated": spread(_errors(f for f in timed if not f.complete)),
            "by_kind": _by(timed, lambda f: f"{f.kind}, {_stated(f)}"),
            "by_device": _by(timed, lambda f: f"{f.device}, {_stated(f)}"),
            "by_precision": _by(timed, lambda f: f"{f.dtype}, {_stated(f)}"),
            "by_source": _by(timed, lambda f: f"{f.source} · {f.device}"),
            "by_runtime": _by(timed, lambda f: f.runtime),
        },
        "interval_coverage": coverage(timed),
        "suspect": _by([f for f in facts if f.suspect and f.measured_s], lambda f: str(f.suspect)),
        "memory": _memory(trusted),
        "fits": confusion(trusted),
        "ranking": ranking(timed, lambda f: f.layout_group),
        "ranking_by_group": ranking(timed, lambda f: f.group),
        "baseline": baseline(timed),
        "skipped_rows": [{"id": row_id, "reason": reason} for row_id, reason in skipped],
    }


def _stated(f: Facts) -> str:
    return "fully stated" if f.complete else "partly stated"


def _errors(facts: Iterable[Facts]) -> list[float]:
    return [f.error for f in facts if f.error is not None]


def _by(facts: Iterable[Facts], key: Callable[[Facts], str]) -> dict[str, dict[str, float | int]]:
    cells: dict[str, list[float]] = defaultdict(list)
    for f in facts:
        if f.error is not None:
            cells[key(f)].append(f.error)
    return {name: spread(values) for name, values in sorted(cells.items(), key=lambda kv: (-len(kv[1]), kv[0]))}


def coverage(facts: Sequence[Facts]) -> dict[str, dict[str, float | int]]:
    """Share of rows measured inside the predicted range, which claims 80 %, and the mean half-width of the ranges."""
    cells: dict[str, list[Facts]] = defaultdict(list)
    for f in facts:
        for name in ("all", f"{f.kind}, {_stated(f)}"):
            cells[name].append(f)
    out: dict[str, dict[str, float | int]] = {}
    for name, rows in sorted(cells.items(), key=lambda kv: -len(kv[1])):
        inside = [f.interval_s[0] <= (f.measured_s or 0.0) <= f.interval_s[1] for f in rows]
        width = [(f.interval_s[1] - f.interval_s[0]) / (2.0 * f.predicted_s) for f in rows]
        out[name] = {
            "n": len(rows),
            "inside": round(float(np.mean(inside)), 4),
            "half_width": round(float(np.mean(width)), 4),
        }
    return out


def _memory(facts: Sequence[Facts]) -> dict[str, Any]:
    cells: dict[str, list[float]] = defaultdict(list)
    for f in facts:
        if f.measured_bytes:
            error = f.predicted_bytes / f.measured_bytes - 1.0
            cells["all"].append(error)
            cells[f"{f.memory_kind} · {f.source}"].append(error)
    ordered = sorted(cells.items(), key=lambda kv: (-len(kv[1]), kv[0]))
    return {name: spread(values) for name, values in ordered}


def confusion(facts: Iterable[Facts]) -> dict[str, int | float | None]:
    """Out-of-memory facts against ``fits``: rows that ran (timed or said so) and rows that ran out of memory."""
    counts = {"oom_called_oom": 0, "oom_called_fitting": 0, "ran_called_fitting": 0, "ran_called_oom": 0}
    for f in facts:
        if f.oom:
            counts["oom_called_fitting" if f.fits else "oom_called_oom"] += 1
        elif f.measured_s:
            counts["ran_called_fitting" if f.fits else "ran_called_oom"] += 1
    oom = counts["oom_called_oom"] + counts["oom_called_fitting"]
    ran = counts["ran_called_fitting"] + counts["ran_called_oom"]
    return {
        **counts,
        "share_of_oom_called_fitting": round(counts["oom_called_fitting"] / oom, 4) if oom else None,
        "share_of_ran_called_oom": round(counts["ran_called_oom"] / ran, 4) if ran else None,
    }


def kendall(predicted: Array, measured: Array) -> float:
    """Kendall's tau: concordant less discordant pairs over all pairs; ties count as neither."""
    order = np.sign(predicted[:, None] - predicted[None]) * np.sign(measured[:, None] - measured[None])
    n = len(predicted)
    return float(order.sum() / (n * (n - 1))) if n > 1 else 0.0


def ranking(facts: Sequence[Facts], key: Callable[[Facts], str]) -> dict[str, Any]:
    """Kendall's tau and top-1 regret within each group of at least ``LEAST_RANKED`` rows.

    The short list of a group holds what is predicted too close to the best to be told apart: its length, and the regret
    of who tries all of it.
    """
    members: dict[str, list[Facts]] = defaultdict(list)
    for f in facts:
        members[key(f)].append(f)
    groups, by_source = [], defaultdict(list)
    for name, rows in sorted(members.items()):
        if len(rows) < LEAST_RANKED:
            continue
        predicted = np.array([f.predicted_s for f in rows])
        measured = np.array([f.measured_s for f in rows], dtype=np.float64)
        best = float(measured.min())
        listed = measured[predicted <= predicted.min() * (1.0 + rows[int(predicted.argmin())].tell_apart)]
        entry = {
            "group": name,
            "n": len(rows),
            "tau": round(kendall(predicted, measured), 4),
            "regret": round(float(measured[predicted.argmin()]) / best - 1.0, 4),
            "random_regret": round(float(measured.mean()) / best - 1.0, 4),
            "listed": len(listed),
            "listed_regret": round(float(listed.min()) / best - 1.0, 4),
        }
        groups.append(entry)
        by_source[rows[0].source].append(entry)
    return {
        **_mean_ranking(groups),
        "by_source": {s: _mean_ranking(g) for s, g in sorted(by_source.items())},
        "groups": groups,
    }


def _mean_ranking(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not groups:
        return {"num_groups": 0}
    keys = ("tau", "regret", "random_regret", "listed", "listed_regret")
    mean = {f"mean_{k}": round(float(np.mean([g[k] for g in groups])), 4) for k in keys}
    held = {f"{kind}best_within_1_percent": round(float(np.mean([g[key] <= 0.01 for g in groups])), 4)
            for kind, key in (("", "regret"), ("listed_", "listed_regret"))}  # fmt: skip
    return {"num_groups": len(groups), "rows": sum(g["n"] for g in groups), **mean, **held}


def baseline(facts: Sequence[Facts]) -> dict[str, Any]:
    """One constant MFU per source, device and precision, fitted to the very rows it is judged on, beside our errors."""
    cells: dict[tuple[str, str, str], list[Facts]] = defaultdict(list)
    for f in facts:
        if f.baseline_mfu:
            cells[f.source, f.device, f.dtype].append(f)
    trivial: dict[str, list[float]] = defaultdict(list)
    ours: dict[str, list[float]] = defaultdict(list)
    for (source, _, _), rows in cells.items():
        rates = np.array([f.baseline_mfu for f in rows], dtype=np.float64)
        typical = float(np.exp(np.median(np.log(rates))))
        trivial[source] += list(rates / typical - 1.0)
        ours[source] += _errors(rows)
    names = sorted(trivial, key=lambda s: (-len(trivial[s]), s))
    return {name: {"constant_mfu": spread(trivial[name]), "shardwise": spread(ours[name])} for name in names}

"""Fit efficiency figures to measured runs: ``python -m shardwise.costmodel.fit_runs FILES…``.

A knob is one figure that many rows share: of a device (``accelerator``), a link technology (``network``) or a framework
release (``runtime``). None belongs to a row. Each stays inside bounds that physics or the framework's code allows; one
that ends at a bound is reported, because it stands for a mechanism that is missing. Sources count by the square root of
their rows, so that a sweep of a thousand layouts does not drown ten careful rows of another paper.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from shardwise.hardware_profiles.accelerator import Accelerator, AttentionLaw
from shardwise.hardware_profiles.cluster import Cluster

from ._fit_knobs import KNOBS, Knob
from ._validation_stats import spread
from .estimate import estimate
from .evaluate import evaluate
from .problem import Problem
from .rows import RowInputs
from .strategy import Strategies, Strategy
from .validation import read_rows

Array = NDArray[np.float64]

LOSS_SCALE = 0.10
"""Log error beyond which a row counts linearly instead of squared (soft L1)."""

PRIOR = 0.235
"""Pull of each knob towards its shipped figure, per share of its bounds: what the runs do not tell stays as it is."""

STEP = 0.02
"""Step of the finite differences, as a share of a knob's bounds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One timed row."""

    inputs: RowInputs
    source: str
    measured_s: float


@dataclass(slots=True)
class Batch:
    """Runs that share a problem, with the knobs that reach it."""

    problem: Problem
    strategies: Strategies
    where: NDArray[np.int64]
    knobs: tuple[int, ...]
    split: Strategy | None = None
    """A batch of one whose layers are split explicitly."""

    def step_times(self, problem: Problem) -> Array:
        """Seconds per step of the batch under a changed problem."""
        if self.split is not None:
            return np.array([estimate(problem, self.split).step_time_s])
        return evaluate(problem, self.strategies).step_time_s


def batches_of(runs: Sequence[Run]) -> list[Batch]:
    """The runs by problem, without knobs; one whose layers are split explicitly stands alone."""
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        explicit = run.inputs.strategy.layers_per_stage is not None
        members[id(run.inputs.problem), i if explicit else -1].append(i)
    return [
        Batch(
            runs[where[0]].inputs.problem,
            Strategies.of(runs[i].inputs.strategy for i in where),
            np.array(where),
            (),
            runs[where[0]].inputs.strategy if key[1] >= 0 else None,
        )
        for key, where in members.items()
    ]


def thinned(runs: Sequence[Run], most: int) -> list[Run]:
    """At most that many runs of each source, evenly spaced in the order of the file."""
    members: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        members[run.source].append(run)
    kept: list[Run] = []
    for rows in members.values():
        count = min(most, len(rows))
        kept += [rows[k * len(rows) // count] for k in range(count)]
    return kept


def load_runs(paths: Iterable[str], kinds: frozenset[str] = frozenset()) -> list[Run]:
    """Timed, unsuspected rows of the files, each id once; ``kinds`` keeps dense or moe models only."""
    seen: dict[str, Run] = {}
    for path in paths:
        for entry in read_rows(path):
            seconds = entry.row.get("step_time_s")
            if entry.inputs is None or not seconds or entry.row.get("suspect") or entry.row_id in seen:
                continue
            if kinds and ("moe" if entry.inputs.problem.model.is_moe else "dense") not in kinds:
                continue
            title = str((entry.row.get("source") or {}).get("title"))
            seen[entry.row_id] = Run(entry.inputs, title, float(seconds))
    return list(seen.values())


def start_value(knob: Knob, problem: Problem) -> float | None:
    """The figure a knob would change in this problem, or None where it does not reach it."""
    if knob.target == "runtime":
        if not _matches(knob, problem.runtime.name):
            return None
        return float(getattr(problem.runtime, knob.field))
    if knob.target == "network":
        used = {t.technology for t in problem.cluster.tiers}
        return 1.0 if any(_matches(knob, name) for name in used) else None
    if not _matches(knob, problem.cluster.accelerator.name):
        return None
    return _device_value(problem.cluster.accelerator, knob.field, problem)


def _matches(knob: Knob, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in knob.match)


def _device_value(acc: Accelerator, field: str, problem: Problem) -> float | None:
    kind, _, name = field.partition(".")
    if kind == "sustained":
        used = [n for n in name.split("+") if n in (problem.gemm_dtype, problem.wide_dtype)]
        return acc.sustained.get(used[0], 1.0) if used else None
    if kind == "attention":
        law = acc.attention.get(name)
        if law is None or name != problem.runtime.attention_kernel:
            return None
        return 1.0 if law.softmax_passes_forward > 0.0 else law.sustained
    return float(getattr(acc, kind))


def apply_knobs(problem: Problem, values: Mapping[Knob, float]) -> Problem:
    """The problem with each knob's figure set (a network knob multiplies the tier's shares)."""
    runtime, cluster = problem.runtime, problem.cluster
    fields = {k.field: v for k, v in values.items() if k.target == "runtime"}
    if fields:
        runtime = runtime.model_copy(update=fields)
    acc = cluster.accelerator
    for knob, value in values.items():
        if knob.target == "accelerator":
            acc = _set_device(acc, knob.field, value)
        elif knob.target == "network":
            cluster = _scaled(cluster, knob, value)
    if acc is not cluster.accelerator:
        cluster = replace(cluster, accelerator=acc)
    return replace(problem, cluster=cluster, runtime=runtime)


def _set_device(acc: Accelerator, field: str, value: float) -> Accelerator:
    kind, _, name = field.partition(".")
    if kind == "sustained":
        return replace(acc, sustained={**acc.sustained, **dict.fromkeys(name.split("+"), value)})
    if kind == "attention":
        return replace(acc, attention={**acc.attention, name: _set_kernel(acc.attention[name], value)})
    changed: dict[str, Any] = {kind: value}
    return replace(acc, **changed)


def _set_kernel(law: AttentionLaw, value: float) -> AttentionLaw:
    """Flash kernels take the sustained share; the unfused class has its passes over the scores multiplied."""
    if law.softmax_passes_forward > 0.0:
        return replace(
            law,
            softmax_passes_forward=law.softmax_passes_forward * value,
            softmax_passes_backward=law.softmax_passes_backward * value,
        )
    return replace(law, sustained=value)


def _scaled(cluster: Cluster, knob: Knob, value: float) -> Cluster:
    p2p = knob.field.endswith("p2p")
    tiers = tuple(
        replace(t, efficiency={k: min(1.0, v * value) if (k == "p2p") == p2p else v for k, v in t.efficiency.items()})
        if _matches(knob, t.technology)
        else t
        for t in cluster.tiers
    )
    return replace(cluster, tiers=tiers)


class Fit:
    """A least-squares problem over the log error of the runs."""

    def __init__(self, runs: Sequence[Run], knobs: Sequence[Knob] = KNOBS) -> None:
        self.runs = runs
        starts: dict[int, list[float]] = defaultdict(list)
        by_problem: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, run in enumerate(runs):
            explicit = run.inputs.strategy.layers_per_stage is not None
            by_problem[id(run.inputs.problem), i if explicit else -1].append(i)
        reach: dict[tuple[int, int], list[int]] = defaultdict(list)
        for key, members in by_problem.items():
            for k, knob in enumerate(knobs):
                value = start_value(knob, runs[members[0]].inputs.problem)
                if value is not None:
                    reach[key].append(k)
                    starts[k] += [value] * len(members)
        used = sorted(starts)
        self.knobs = [knobs[k] for k in used]
        number = {k: n for n, k in enumerate(used)}
        self.start = np.array([np.median(starts[k]) for k in used])
        self.count = np.array([len(starts[k]) for k in used])
        self.batches = [
            Batch(
                runs[members[0]].inputs.problem,
                Strategies.of(runs[i].inputs.strategy for i in members),
                np.array(members),
                tuple(number[k] for k in reach[key]),
                runs[members[0]].inputs.strategy if key[1] >= 0 else None,
            )
            for key, members in by_problem.items()
        ]
        self.measured = np.array([run.measured_s for run in runs])
        sizes: dict[str, int] = defaultdict(int)
        for run in runs:
            sizes[run.source] += 1
        self.weight = np.array([sizes[run.source] ** -0.25 for run in runs])
        self.low = np.array([k.low for k in self.knobs])
        self.high = np.array([k.high for k in self.knobs])

    def predict(self, values: Array, only: int | None = None, base: Array | None = None) -> Array:
        """Step times under the knobs' values; ``only`` recomputes just the rows that knob reaches, over ``base``."""
        out = np.zeros(len(self.runs)) if base is None else base.copy()
        for batch in self.batches:
            if only is not None and only not in batch.knobs:
                continue
            problem = apply_knobs(batch.problem, {self.knobs[k]: float(values[k]) for k in batch.knobs})
            out[batch.where] = batch.step_times(problem)
        return out

    def solve(self, iterations: int = 12) -> Array:
        """Fitted values of the knobs, within their bounds."""
        span = self.high - self.low

        def values(x: Array) -> Array:
            return np.asarray(self.low + span * x)

        def residual(x: Array) -> Array:
            misfit = self.weight * np.log(self.predict(values(x)) / self.measured)
            return np.concatenate([misfit, pull * (x - x0)])

        def jacobian(x: Array) -> Array:
            base = self.predict(values(x))
            out = np.zeros((len(self.runs), len(x)))
            for k in range(len(x)):
                step = STEP if x[k] < 0.5 else -STEP
                moved = x.copy()
                moved[k] += step
                out[:, k] = self.weight * (np.log(self.predict(values(moved), k, base)) - np.log(base)) / step
            return np.vstack([out, pull * np.eye(len(x))])

        x0 = np.clip((self.start - self.low) / span, 0.001, 0.999)
        pull = PRIOR * float(np.mean(self.weight))
        result = least_squares(
            residual, x0, jac=jacobian, bounds=(0.0, 1.0), loss="soft_l1",
            f_scale=LOSS_SCALE * float(np.mean(self.weight)), max_nfev=iterations, x_scale=1.0,
        )  # fmt: skip
        return values(result.x)

    def errors(self, values: Array | None = None) -> Array:
        """Predicted over measured minus 1, with the shipped figures or the given values."""
        seconds = self.predict(self.start if values is None else values) if values is not None else self.shipped()
        return np.asarray(seconds / self.measured - 1.0)

    def shipped(self) -> Array:
        """Step times with the figures as shipped."""
        out = np.zeros(len(self.runs))
        for batch in self.batches:
            out[batch.where] = batch.step_times(batch.problem)
        return out


def leave_one_source_out(runs: Sequence[Run], knobs: Sequence[Knob], least: int, iterations: int) -> dict[str, Any]:
    """Errors on each source of at least ``least`` rows, with every figure fitted to the other sources."""
    out: dict[str, Any] = {}
    sizes: dict[str, int] = defaultdict(int)
    for run in runs:
        sizes[run.source] += 1
    for source in sorted((s for s, n in sizes.items() if n >= least), key=lambda s: -sizes[s]):
        train = Fit(thinned([r for r in runs if r.source != source], 150), knobs)
        fitted = dict(zip(train.knobs, train.solve(iterations), strict=True))
        test = Fit([r for r in runs if r.source == source], knobs)
        values = np.array([fitted.get(k, v) for k, v in zip(test.knobs, test.start, strict=True)])
        out[source] = spread(test.errors(values))
    return out


def by_source(runs: Sequence[Run], errors: Array) -> dict[str, Any]:
    """Errors by source and device, most rows first."""
    cells: dict[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        cells[f"{run.source[:60]} · {run.inputs.problem.cluster.accelerator.name}"].append(float(error))
    return {name: spread(v) for name, v in sorted(cells.items(), key=lambda kv: -len(kv[1]))}


def report(fit: Fit, values: Array, before: Array, after: Array) -> str:
    """Knobs with their start, fitted value and whether they ended at a bound; then errors by source."""
    lines = [f"{'knob':44s} {'rows':>5s} {'start':>10s} {'fitted':>10s}"]
    for knob, n, start, value in zip(fit.knobs, fit.count, fit.start, values, strict=True):
        margin = 0.01 * (knob.high - knob.low)
        mark = "  AT ITS BOUND" if value - knob.low < margin or knob.high - value < margin else ""
        lines.append(f"{knob.name:44s} {n:5d} {start:10.5g} {value:10.5g}{mark}")
    lines.append("")
    old, new = by_source(fit.runs, before), by_source(fit.runs, after)
    for name, cell in {"all": spread(after), **new}.items():
        was = spread(before) if name == "all" else old[name]
        lines.append(
            f"{name:84s} n={cell['n']:5d}  {100 * was['median']:5.1f} / {100 * was['p90']:5.1f} %  ->"
            f"  {100 * cell['median']:5.1f} / {100 * cell['p90']:5.1f} %  bias {100 * cell['bias']:+5.1f} %"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, print the figures and the errors before and after, and optionally the leave-one-source-out errors."""
    parser = argparse.ArgumentParser(prog="python -m shardwise.costmodel.fit_runs", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="RUNS.jsonl")
    parser.add_argument("--kind", action="append", choices=("dense", "moe"), help="only models of this kind")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="only knobs whose name matches")
    parser.add_argument("--most", type=int, default=150, metavar="ROWS", help="fit to that many rows of each source")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--leave-out", type=int, metavar="ROWS", help="also leave out each source of that many rows")
    options = parser.parse_args(argv)
    runs = load_runs(options.files, frozenset(options.kind or ()))
    knobs = [k for k in KNOBS if not options.only or any(fnmatchcase(k.name, p) for p in options.only)]
    train = Fit(thinned(runs, options.most), knobs)
    fitted = dict(zip(train.knobs, train.solve(options.iterations), strict=True))
    fit = Fit(runs, knobs)
    values = np.array([fitted.get(k, v) for k, v in zip(fit.knobs, fit.start, strict=True)])
    sys.stdout.write(report(fit, values, fit.errors(), fit.errors(values)) + "\n")
    if options.leave_out:
        for source, cell in leave_one_source_out(runs, knobs, options.leave_out, options.iterations).items():
            sys.stdout.write(f"left out: {source[:70]:70s} {cell}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""From benchmark logs to a calibrated cluster: read, fit, and say what changed and what the data do not tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .accelerator import GemmLaw
from .calibrate_collectives import CollectiveFit, Fitted, crossed, fit_cluster
from .calibrate_kernels import KernelFit, LawFigure, fit_attentions, fit_gemms
from .calibrated_profile import Origin, Sources
from .calibration import Calibration, CoveredCollective, CoveredKernel
from .cluster import Cluster
from .errors import InputError
from .fit_collectives import Row
from .measured_kernels import AttentionRow, GemmRow
from .readers.kernel_tables import read_attention_table, read_gemm_table
from .readers.nccl_log import read_nccl_log
from .readers.nccl_ranks import MODELLED, Said, settle

Array = NDArray[np.float64]

LEAST_TOLD = 0.3
"""Share of the prior's doubt that rows must remove from a figure for it to count as identified."""

HALF = 0.8
"""What half-widths of collectives and kernels hold of their own rows."""


_UNSAID = Said()


@dataclass(frozen=True, slots=True)
class Log:
    """An nccl-tests log, and what the user says of it."""

    path: Path
    said: Said = _UNSAID


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after, for people: ``interval`` 90 %, ``told`` the share of doubt removed."""

    figure: str
    unit: str
    before: float
    after: float
    interval: tuple[float, float] | None
    told: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Benchmarked:
    """A cluster calibrated on benchmarks: the new cluster, what changed, and the rows with both predictions."""

    cluster: Cluster
    changes: tuple[Change, ...]
    collectives: CollectiveFit | None
    kernels: tuple[KernelFit, ...]
    notes: tuple[str, ...]
    sources: Sources


def calibrate_benchmarks(
    base: Cluster, name: str, logs: Sequence[Log], gemm: Sequence[Path], attention: Sequence[Path]
) -> Benchmarked:
    """Read every file and fit the cluster to it. ``name``: how the base was named.

    Raises InputError with file and line where a file cannot be read, or a question where a log leaves something open.
    """
    notes: list[str] = []
    rows, files = _rows(base, logs, notes)
    kernels = [*_kernels(base, gemm, attention, notes)]
    fitted = fit_cluster(base, rows) if rows else None
    cluster = fitted.cluster if fitted else base
    accelerator = cluster.accelerator
    for fit in kernels:
        if isinstance(fit.law, GemmLaw):
            accelerator = replace(accelerator, gemm={**accelerator.gemm, fit.name: fit.law})
        else:
            accelerator = replace(accelerator, attention={**accelerator.attention, fit.name: fit.law})
    every = [*(log.path for log in logs), *gemm, *attention]
    sources = Sources(Origin("fitted", f"shardwise calibrate on {_names(every)}"))
    changes = _collective_changes(base, fitted, files, sources) if fitted else []
    changes += _kernel_changes(kernels, sources)
    made = replace(cluster, accelerator=accelerator, calibration=_remember(base, name, fitted, kernels, changes))
    return Benchmarked(made, tuple(changes), fitted, tuple(kernels), tuple(notes), sources)


def _names(paths: Iterable[Path]) -> str:
    """Names of files, the first few where they are many."""
    names = sorted({path.name for path in paths})
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _rows(base: Cluster, logs: Sequence[Log], notes: list[str]) -> tuple[list[Row], dict[tuple[int, str], set[str]]]:
    """Rows of all logs, and the files by domains crossed (1 or more) and kind."""
    rows: list[Row] = []
    files: dict[tuple[int, str], set[str]] = {}
    for log in logs:
        for table in read_nccl_log(log.path):
            found = settle(table, log.said, base.node_size, base.tiers[0].size)
            notes += [f"{log.path.name}: {note}" for note in found.notes]
            if found.kind not in MODELLED:
                notes.append(f"{log.path.name}: {found.kind}: no training framework uses it: left out")
                continue
            if found.ranks > base.tiers[-1].size:
                raise InputError(
                    f"{log.path}: table at line {table.line}: {found.ranks} ranks, but {base.name} has"
                    f" {base.tiers[-1].size} accelerators: is --cluster right?"
                )
            files.setdefault((min(found.domains, 2), found.kind), set()).add(log.path.name)
            notes += _other_device(base, log.path, (device.name for device in table.devices))
            for point in table.points:
                # An all-to-all in place is another algorithm; training runs it out of place.
                samples = point.samples_s[:1] if found.kind == "all_to_all" else point.samples_s
                rows += [
                    Row(log.path.name, base.name, found.kind, found.ranks, found.domains, float(point.nbytes), s)
                    for s in samples
                ]
    return rows, files


_MODELS = re.compile(
    r"(?<![A-Z0-9])(?:GB\d{3}|GH\d{3}|[ABHV]\d{2,3}|L40S|MI\d{3}[AX]?|CPU|TPU ?V\d\w?|GAUDI ?\d)(?![0-9])"
)
"""Model numbers of accelerators, as devices and profiles write them."""


def _other_device(base: Cluster, path: Path, names: Iterable[str]) -> list[str]:
    """A note where a file says that it was measured on another model of accelerator than the profile's."""
    ours = _MODELS.search(base.accelerator.name.upper())
    for name in names:
        theirs = _MODELS.search(name.upper())
        if ours and theirs and ours[0] != theirs[0]:
            return [f"{path.name}: measured on {name}, taken for {base.accelerator.name}: is --cluster right?"]
    return []


def _devices(path: Path, gemms: Iterable[GemmRow], attentions: Iterable[AttentionRow]) -> Iterable[str]:
    yield from (row.device for row in gemms if row.source == path.name)
    yield from (row.device for row in attentions if row.source == path.name)


def _kernels(base: Cluster, gemm: Sequence[Path], attention: Sequence[Path], notes: list[str]) -> list[KernelFit]:
    device = base.accelerator.name
    gemms = [row for path in gemm for row in read_gemm_table(path, device)]
    attentions = [row for path in attention for row in read_attention_table(path, device)]
    for path in (*gemm, *attention):
        notes += _other_device(base, path, _devices(path, gemms, attentions))
    grouped = [row for row in gemms if row.groups > 1]
    if grouped:
        notes.append(f"{len(grouped)} grouped GEMMs: their rate belongs to a framework (grouped_gemm_scale): left out")
    dropped = sum(row.kernel == "unfused" for row in attentions)
    if dropped:
        notes.append(f"{dropped} rows of unfused attention: it is made of GEMMs and passes over memory: left out")
    plain = [row for row in gemms if row.groups == 1]
    fits = fit_gemms(base.accelerator, plain) if plain else []
    return [*fits, *(fit_attentions(base.accelerator, attentions) if attentions else [])]


# --- what changed ---------------------------------------------------------------------------------------------------

_WORDS = {"efficiency": "share of the rate", "launch_s": "launch", "fill_s": "fill", "latency_s": "latency of a step"}


def _collective_changes(
    base: Cluster, fit: CollectiveFit, files: dict[tuple[int, str], set[str]], sources: Sources
) -> list[Change]:
    changes = []
    for fitted in fit.constants:
        changes.append(_constant_change(base, fitted, files, sources))
    for moved in fit.moved:
        constant, tier = moved.constant, base.tiers[moved.constant.tier].name
        field = "efficiency" if constant.field == "efficiency" else "ramps"
        told = f"not measured: moved along with {moved.along}"
        sources.by_key[f"tiers.{tier}.{field}.{constant.kind}"] = Origin("derived", told)
        if constant.field == "efficiency" and constant.kind in MODELLED:
            figure = f"{tier} {constant.kind} {_WORDS['efficiency']}"
            changes.append(Change(figure, "%", 100.0 * constant.value, 100.0 * moved.value, None, None, told))
    for made in fit.cluster.tiers:
        for curve in made.curves:
            rows = [r for r in fit.rows if (r.kind, r.ranks, r.nodes) == (curve.kind, curve.ranks, curve.domains)]
            source = _names(Path(r.group) for r in rows)
            sources.by_key[f"tiers.{made.name}.curves.{curve.kind}"] = Origin("measured", source or "an earlier file")
    return changes


def _constant_change(base: Cluster, fitted: Fitted, files: dict[tuple[int, str], set[str]], sources: Sources) -> Change:
    constant = fitted.constant
    tier, kind = base.tiers[constant.tier].name, constant.kind
    level = 1 if constant.tier == 0 else 2
    measured = "all_reduce" if kind == "nvls" else kind
    named = [n for (at, k), names in files.items() if at == level and measured in (k, "") for n in names]
    source = _names(Path(n) for n in named)
    field = {"latency_s": "latency_s", "efficiency": "efficiency"}.get(constant.field, "ramps")
    key = f"tiers.{tier}.{field}" + (f".{kind}" if kind else "")
    sources.by_key[key] = Origin("fitted", f"shardwise calibrate on {source}")
    share = constant.field == "efficiency"
    scale, unit = (100.0, "%") if share else (1e6, "us")
    low, high = (scale * x for x in fitted.interval)
    figure = " ".join(word for word in (tier, kind, _WORDS[constant.field]) if word)
    high = min(high, 100.0) if share else high
    return Change(figure, unit, scale * constant.value, scale * fitted.value, (low, high), fitted.told, source)


_LAW_UNITS = {
    "efficiency": (100.0, "%"), "forward": (100.0, "%"), "backward": (100.0, "%"), "overhead_s": (1e6, "us"),
    "ramp": (1.0, "keys"), "fill": (1.0, "queries"),
}  # fmt: skip


def _kernel_changes(kernels: Sequence[KernelFit], sources: Sources) -> list[Change]:
    changes = []
    for fit in kernels:
        names = _names(Path(row.source) for row in fit.rows)
        sources.by_key[f"{fit.operation}.{fit.name}"] = Origin("fitted", f"shardwise calibrate on {names}")
        changes += [_law_change(fit, figure, names) for figure in fit.figures]
    return changes


def _law_change(fit: KernelFit, figure: LawFigure, source: str) -> Change:
    scale, unit = _LAW_UNITS.get(figure.name, (1.0, "elements"))
    low, high = (scale * x for x in figure.interval)
    name = f"{fit.operation} {fit.name} {figure.name}"
    return Change(name, unit, scale * figure.before, scale * figure.after, (low, high), figure.told, source)


# --- what the profile remembers -------------------------------------------------------------------------------------


def _remember(
    base: Cluster, name: str, fit: CollectiveFit | None, kernels: Sequence[KernelFit], changes: Sequence[Change]
) -> Calibration:
    """Coverage and errors, over what an earlier calibration of the base knew."""
    old = base.calibration or Calibration(name)
    collectives = [*(_covered_collectives(base, fit) if fit else ())]
    known = [_covered_kernel(k) for k in kernels]
    again = {(c.kind, c.tier) for c in collectives}
    fresh = {(k.operation, k.name) for k in known}
    return replace(
        old,
        base=name,
        collectives=(*(c for c in old.collectives if (c.kind, c.tier) not in again), *collectives),
        kernels=(*(k for k in old.kernels if (k.operation, k.name) not in fresh), *known),
        not_identified=tuple(c.figure for c in changes if c.told is not None and c.told < LEAST_TOLD),
    )


def _covered_collectives(base: Cluster, fit: CollectiveFit) -> list[CoveredCollective]:
    measured = np.array([row.seconds for row in fit.rows])
    groups: dict[tuple[str, int], list[int]] = {}
    for at, row in enumerate(fit.rows):
        groups.setdefault((row.kind, crossed(row, base)), []).append(at)
    out = []
    for (kind, tier), where in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0])):
        rows = [fit.rows[i] for i in where]
        before, after, half = _quality(fit.before_s[where], fit.after_s[where], measured[where])
        ranks, sizes = [r.ranks for r in rows], [r.nbytes for r in rows]
        span, reach = (min(ranks), max(ranks)), (min(sizes), max(sizes))
        out.append(CoveredCollective(kind, base.tiers[tier].name, span, reach, len(rows), before, after, half))
    return out


def _covered_kernel(fit: KernelFit) -> CoveredKernel:
    before, after, half = _quality(fit.before_s, fit.after_s, fit.measured_s)
    names = ("m", "n", "k") if fit.operation == "gemm" else ("seq_q", "seq_k", "qk_dim", "heads")
    rows: Sequence[GemmRow | AttentionRow] = fit.rows
    sizes = {n: (float(min(getattr(r, n) for r in rows)), float(max(getattr(r, n) for r in rows))) for n in names}
    return CoveredKernel(fit.operation, fit.name, sizes, len(rows), before, after, half)


def _quality(before_s: Array, after_s: Array, measured: Array) -> tuple[float, float, float]:
    """Median error before and after, and the error that ``HALF`` of the rows stay under after."""
    before, after = (np.abs(s / measured - 1.0) for s in (before_s, after_s))
    return float(np.median(before)), float(np.median(after)), float(np.quantile(after, HALF))

"""Fitting the constants of link technologies to nccl-tests rows.

``python -m shardwise.hardware_profiles.fit_collectives [ROWS.jsonl]`` prints the fit and its errors.

Each technology has one set of constants for all devices, node counts and rank counts: the in-node ones are fitted to
rows of one node, the network ones to rows of several nodes with the in-node ones held. Errors are those of the shipped
law itself (``Cluster.collective_time_s``); there is no second formula here.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .cluster import Cluster, Ramp, Tier
from .errors import InputError
from .load_cluster import load_cluster

Array = NDArray[np.float64]

SHIPPED_ROWS = Path(__file__).parent / "measured" / "nccl_rows.csv.gz"
LARGE_BYTES = 1 << 20
"""From here on errors count as those of large messages; smaller ones weigh half in the fit."""

SMALLEST_TELLING_BYTES = 1 << 20
"""Rows of this size and more say nothing about latency."""

MOST_NETWORK_FILL_S = 6e-6

_DEVICE_SYSTEMS = {
    "A100-SXM4-80GB": "dgx-a100",
    "H100-SXM5-80GB": "dgx-h100",
    "H200-SXM": "dgx-h200",
    "B200-SXM": "dgx-b200",
    "B300-SXM": "dgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
}
"""Which system a row of a bare device was measured on. L40S is left out: its collector doubts its 8-GPU rows."""

_IN_NODE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of nccl-tests: ``ranks`` on ``nodes`` scale-up domains took ``seconds`` for ``nbytes``."""

    group: str
    system: str
    kind: str
    ranks: int
    nodes: int
    nbytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one technology and kind, with the errors they leave."""

    technology: str
    kind: str
    latency_s: float
    efficiency: float
    launch_s: float
    fill_s: float
    copy_weight: float
    rows: int
    median_error: float
    p90_error: float
    small_median_error: float


def read_rows(path: Path = SHIPPED_ROWS) -> list[Row]:
    """Rows of a JSONL file of measurements, or of the shipped table (gzipped CSV)."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if path.suffix == ".gz":
        lines = io.StringIO(gzip.decompress(data).decode())
        return [
            Row(
                r["group"],
                r["system"],
                r["kind"],
                int(r["ranks"]),
                int(r["nodes"]),
                float(r["bytes"]),
                float(r["latency_us"]) * 1e-6,
            )
            for r in csv.DictReader(line for line in lines if not line.startswith("#"))
        ]
    return list(_jsonl_rows(path, data.decode("utf-8", errors="replace")))


def _jsonl_rows(path: Path, text: str) -> Iterable[Row]:
    """Rows of devices without a system, and of ops that are not modelled, are left out."""
    for at, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            r = json.loads(line)
            kind = "all_to_all" if r["op"] == "alltoall" else r["op"]
            system = r.get("system") or _DEVICE_SYSTEMS.get(r["device"])
            row = Row(
                str(r.get("source", "")),
                str(system),
                kind,
                int(r["ranks"]),
                int(r["nodes"]),
                float(r["bytes"]),
                float(r["latency_us"]) * 1e-6,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: line {at}: {error!r}: expected op, device, ranks, nodes, bytes, latency_us"
            ) from None
        if system and row.nbytes > 0 and row.seconds > 0:
            yield row


def shipped_sources(path: Path = SHIPPED_ROWS) -> dict[str, str]:
    """Where each group of shipped rows comes from."""
    text = gzip.decompress(path.read_bytes()).decode()
    return dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("# "))


def predict(rows: list[Row], clusters: dict[str, Cluster]) -> Array:
    """Seconds of every row on its system, in order."""
    seconds = np.empty(len(rows))
    batches: dict[tuple[str, str, int, int], list[int]] = {}
    for at, row in enumerate(rows):
        batches.setdefault((row.system, row.kind, row.ranks, row.nodes), []).append(at)
    for (system, kind, ranks, nodes), members in batches.items():
        cluster = clusters[system]
        if nodes == 1:
            cluster, stride = replace(cluster, num_gpus=ranks, gpus_per_node=min(ranks, cluster.node_size)), 1
        else:
            stride = max(1, cluster.tiers[0].size * nodes // ranks)
        nbytes = np.array([rows[at].nbytes for at in members])
        seconds[members] = cluster.collective_time_s(kind, nbytes, ranks, stride)
    return seconds


def crossing(row: Row, cluster: Cluster) -> Tier:
    """The tier whose constants the row measures."""
    return cluster.tiers[0 if row.nodes == 1 else 1]


def fit_technology(name: str, rows: list[Row], clusters: dict[str, Cluster]) -> list[Fit]:
    """Constants of a technology, fitted to the rows that cross it; kinds without rows are left out."""
    mine = [row for row in rows if crossing(row, clusters[row.system]).technology == name]
    scale_up = [row for row in mine if row.nodes == 1]
    if scale_up:
        return _fit_scale_up(name, scale_up, clusters)
    return _fit_network(name, mine, clusters) if len(mine) >= 6 else []


def _fit_scale_up(name: str, rows: list[Row], clusters: dict[str, Cluster]) -> list[Fit]:
    """All-reduce first: it has the most steps, so it fixes the latency of one; then the others with that latency."""
    fits: list[Fit] = []
    latency = 0.0
    for kind in _IN_NODE_KINDS:
        members = [row for row in rows if row.kind == kind]
        if not members:
            continue
        nvls = kind == "all_reduce" and any(clusters[row.system].tiers[0].nvls for row in members)
        start = (
            [0.8, 6e-6, 1.0e-6, 0.5] + ([1e-6] if kind == "all_reduce" else []) + ([0.6, 2e-5, 5e-6] if nvls else [])
        )
        low = [0.2, 5e-7, 1e-9, 0.0] + ([1e-7] if kind == "all_reduce" else []) + ([0.3, 5e-6, 1e-7] if nvls else [])
        high = [1.0, 6e-5, 2e-5, 2.0] + ([5e-6] if kind == "all_reduce" else []) + ([1.0, 6e-5, 4e-5] if nvls else [])

        def apply(x: Array, kind: str = kind, latency: float = latency, nvls: bool = nvls) -> dict[str, Cluster]:
            laws = {kind: (x[0], Ramp(x[1], x[2], x[3]))}
            if nvls:
                laws["nvls"] = (x[5], Ramp(x[6], x[7], 0.0))
            step = x[4] if kind == "all_reduce" else latency or None
            return {key: _with_laws(value, name, laws, step) for key, value in clusters.items()}

        x, errors, small = _solve(apply, members, start, low, high)
        latency = float(x[4]) if kind == "all_reduce" else latency
        fits.append(_fit(name, kind, latency, x[:4], len(members), errors, small))
        if nvls:
            fits.append(_fit(name, "nvls", latency, (*x[5:8], 0.0), len(members), errors, small))
    return fits


def _fit_network(name: str, rows: list[Row], clusters: dict[str, Cluster]) -> list[Fit]:
    """One efficiency, launch, fill and latency for all kinds: few rows, and the NIC does not know the kind.

    Launch and latency stay as shipped where every row is of ``SMALLEST_TELLING_BYTES`` or more. Fill is held under
    ``MOST_NETWORK_FILL_S``: on two nodes a change of protocol in the middle sizes looks like a fill, and on long rings
    it would grow where nobody measured.
    """
    kinds = sorted({row.kind for row in rows if row.kind != "all_to_all"})
    members = [row for row in rows if row.kind in kinds]
    tier = crossing(members[0], clusters[members[0].system])
    held = min(row.nbytes for row in members) >= SMALLEST_TELLING_BYTES
    launch, latency = tier.ramps[kinds[0]].launch_s, tier.latency_s

    def apply(x: Array) -> dict[str, Cluster]:
        ramp = Ramp(launch if held else x[2], x[1], 0.0)
        laws = dict.fromkeys(kinds, (float(x[0]), ramp))
        return {key: _with_laws(value, name, laws, latency if held else x[3]) for key, value in clusters.items()}

    free = slice(0, 2 if held else 4)
    start, low = [0.9, 3e-6, 1e-5, 5e-6], [0.1, 1e-7, 1e-6, 2.5e-6]
    high = [0.97, MOST_NETWORK_FILL_S, 2e-4, 1e-4]
    x, errors, small = _solve(apply, members, start[free], low[free], high[free])
    found = (x[0], launch if held else x[2], x[1], 0.0)
    return [_fit(name, "+".join(kinds), latency if held else x[3], found, len(members), errors, small)]


def _with_laws(
    cluster: Cluster, technology: str, laws: dict[str, tuple[float, Ramp]], latency_s: float | None
) -> Cluster:
    """The cluster with other constants for one technology."""
    tiers = tuple(
        replace(
            tier,
            latency_s=tier.latency_s if latency_s is None else float(latency_s),
            efficiency=tier.efficiency | {kind: float(share) for kind, (share, _) in laws.items()},
            ramps=tier.ramps | {kind: ramp for kind, (_, ramp) in laws.items()},
        )
        if tier.technology == technology
        else tier
        for tier in cluster.tiers
    )
    return replace(cluster, tiers=tiers)


def _solve(
    apply: Callable[[Array], dict[str, Cluster]],
    rows: list[Row],
    start: list[float],
    low: list[float],
    high: list[float],
) -> tuple[Array, Array, Array]:
    """Robust least squares on log(predicted / measured): parameters, errors of large and of small messages."""
    from scipy.optimize import least_squares

    measured = np.array([row.seconds for row in rows])
    nbytes = np.array([row.nbytes for row in rows])
    weight = np.where(nbytes >= LARGE_BYTES, 1.0, 0.5)
    scale = np.array(start)

    def residual(z: Array) -> Array:
        return np.asarray(weight * np.log(predict(rows, apply(z * scale)) / measured))

    bounds = (np.array(low) / scale, np.array(high) / scale)
    solution = least_squares(
        residual, np.ones(len(start)), bounds=bounds, loss="soft_l1", f_scale=0.1, diff_step=[1e-4]
    )
    x = solution.x * scale
    errors = np.abs(predict(rows, apply(x)) / measured - 1.0)
    return x, errors[nbytes >= LARGE_BYTES], errors[nbytes < LARGE_BYTES]


def _fit(name: str, kind: str, latency: float, x: Iterable[float], rows: int, large: Array, small: Array) -> Fit:
    efficiency, launch, fill, copy = (float(value) for value in x)
    median, p90 = (float(np.quantile(large, at)) if large.size else float("nan") for at in (0.5, 0.9))
    below = float(np.median(small)) if small.size else float("nan")
    return Fit(name, kind, float(latency), efficiency, launch, fill, copy, rows, median, p90, below)


def systems_of(rows: list[Row]) -> dict[str, Cluster]:
    """The shipped profile of every system that occurs in the rows."""
    return {name: load_cluster(name) for name in sorted({row.system for row in rows})}


def shipped_errors(
    rows: list[Row], clusters: dict[str, Cluster]
) -> dict[tuple[str, str, int], tuple[int, float, float]]:
    """(system, kind, nodes) → rows, median and largest error of the shipped constants at large messages."""
    ratio = np.abs(predict(rows, clusters) / np.array([row.seconds for row in rows]) - 1.0)
    tables: dict[tuple[str, str, int], list[float]] = {}
    for row, error in zip(rows, ratio, strict=True):
        if row.nbytes >= LARGE_BYTES:
            tables.setdefault((row.system, row.kind, row.nodes), []).append(float(error))
    return {key: (len(e), float(np.median(e)), max(e)) for key, e in sorted(tables.items())}


def main(arguments: list[str]) -> int:
    """Print the fit of every technology that the rows cross, then the errors of the shipped constants."""
    try:
        rows = read_rows(Path(arguments[0])) if arguments else read_rows()
        clusters = systems_of(rows)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("technology  kind            step us  efficiency  launch us  fill us   copy  rows  median   P90  below 1 MiB")
    for name in sorted({crossing(row, clusters[row.system]).technology for row in rows}):
        for f in fit_technology(name, rows, clusters):
            print(
                f"{name:11s} {f.kind:15s} {f.latency_s * 1e6:7.2f} {f.efficiency:11.3f} {f.launch_s * 1e6:10.2f}"
                f" {f.fill_s * 1e6:8.2f} {f.copy_weight:6.2f} {f.rows:5d} {f.median_error:6.1%} {f.p90_error:6.1%}"
                f" {f.small_median_error:7.1%}"
            )
    print(
        "\nshipped constants, messages of 1 MiB and more\n"
        "system             kind            nodes  rows  median  largest"
    )
    for (system, kind, nodes), (count, median, largest) in shipped_errors(rows, clusters).items():
        print(f"{system:18s} {kind:15s} {nodes:5d} {count:5d} {median:7.1%} {largest:8.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""The JSON report of nccl-tests (``-J FILE``): the same rows as its table, with every digit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..text_files import read_text
from .log_lines import MAX_LOG_BYTES
from .nccl_log import Device, Point, Table, kind_of_program

WHAT = "a JSON report of nccl-tests"


def read_nccl_json(path: Path) -> list[Table]:
    """The one table of a report. Raises InputError naming file and key."""
    try:
        report = json.loads(read_text(path, WHAT, MAX_LOG_BYTES))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {str(error).splitlines()[0]}; expected {WHAT}") from None
    results = report.get("results") if isinstance(report, Mapping) else None
    if not isinstance(results, list) or not results:
        raise InputError(f"{path}: results: missing or empty; expected {WHAT}")
    points = [_point(path, at, row) for at, row in enumerate(results, start=1)]
    config = report.get("config")
    devices, ranks = _devices(config if isinstance(config, Mapping) else {})
    words = " ".join(str(word) for word in report.get("args") or ())
    kept = tuple(p for p in points if p.nbytes > 0)
    return [
        Table(
            path=str(path),
            line=1,
            kind=kind_of_program(words),
            points=kept,
            empty_rows=len(points) - len(kept),
            devices=devices,
            ranks_said=ranks,
            nodes_said=None,
            per_process=None,
            library=f"nccl {report.get('nccl_version', '')}".strip(),
            notes=(),
            complete=True,
        )
    ]


def _point(path: Path, at: int, row: Any) -> Point:
    try:
        out, inside = _seconds(row.get("out_of_place")), _seconds(row.get("in_place"))
        size, count = int(row["size"]), int(row["count"])
        root = int(str(row.get("root") or "-1"))
        if size > 0 and not (out or inside):
            raise ValueError("no time above 0")
        return Point(at, size, count, str(row["type"]), str(row.get("redop") or ""), root, out, inside, ())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: results.{at - 1}: {error}: expected size, count, type and times in us") from None


def _seconds(body: Any) -> float | None:
    if not isinstance(body, Mapping):
        return None
    value = float(body["time"] if "time" in body else body["cpu_time"])
    return value * 1e-6 if value > 0.0 else None


def _devices(config: Mapping[str, Any]) -> tuple[tuple[Device, ...], int | None]:
    """Devices as listed, one for each process, and the ranks: processes x threads x devices of a thread."""
    listed = [d for d in config.get("devices") or () if isinstance(d, Mapping)]
    try:
        per_process = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        devices = tuple(
            Device(int(d["rank"]), int(d.get("group", 0)), str(d["hostname"]), int(d["device"]), str(d["device_info"]))
            for d in listed
        )
    except (KeyError, TypeError, ValueError):
        return (), None
    if per_process > 1:
        hosts = {d.host for d in devices}
        return (), len(devices) * per_process if len(hosts) == len(devices) else None
    return devices, None

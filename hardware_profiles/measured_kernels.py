"""Measured kernel rows: GEMM and attention timings that people posted, and how they are stored here.

``measured/gemm.csv.gz`` and ``measured/attention.csv.gz`` are compact copies of the rows that the shipped laws were
fitted to: facts, each with its source.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError

MEASURED = Path(__file__).parent / "measured"
_MAX_ROWS = 1_000_000
Row = TypeVar("Row", "GemmRow", "AttentionRow")


@dataclass(frozen=True, slots=True)
class GemmRow:
    """One timed GEMM [m,k]x[k,n], ``groups`` of them at once in grouped kernels."""

    device: str
    dtype: str
    m: int
    n: int
    k: int
    groups: int
    layout: str
    """``TN`` forward, ``NN`` data gradient, ``NT`` weight gradient; empty where not stated."""
    time_s: float
    source: str


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One timed attention core, forward or backward."""

    device: str
    dtype: str
    kernel: str
    """Kernel class: ``fa2``, ``fa3``, ``cudnn``, ``vendor`` …"""
    backward: bool
    batch: int
    heads: int
    seq_q: int
    seq_k: int
    qk_dim: int
    v_dim: int
    causal: bool
    time_s: float
    source: str


def read_gemm_rows(path: Path | None = None) -> list[GemmRow]:
    """GEMM rows of a ``.jsonl`` of raw postings or a ``.csv.gz`` of this module; the shipped ones without a path."""
    path = path or MEASURED / "gemm.csv.gz"
    if path.suffix == ".jsonl":
        return [row for raw in _jsonl(path, "gemm") if (row := _posted(_raw_gemm, raw, path))]
    return [_from_strings(GemmRow, row) for row in _csv(path)]


def read_attention_rows(path: Path | None = None) -> list[AttentionRow]:
    """Attention rows, like ``read_gemm_rows``."""
    path = path or MEASURED / "attention.csv.gz"
    if path.suffix == ".jsonl":
        return [row for raw in _jsonl(path, "attention") if (row := _posted(_raw_attention, raw, path))]
    return [_from_strings(AttentionRow, row) for row in _csv(path)]


def write_rows(rows: Iterable[GemmRow] | Iterable[AttentionRow], path: Path) -> None:
    """Write rows as a gzip CSV, byte for byte the same for the same rows."""
    dicts = [asdict(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dicts[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()} for row in dicts)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _jsonl(path: Path, kind: str) -> list[dict[str, Any]]:
    """The objects of a JSON lines file whose ``kind`` starts with ``kind``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is not a JSON object")
        if str(row.get("kind")).startswith(kind):
            rows.append(row)
    return rows


def _posted(read: Callable[[dict[str, Any]], Row | None], raw: dict[str, Any], path: Path) -> Row | None:
    try:
        return read(raw)
    except KeyError as error:
        raise InputError(f"{path}: row {str(raw)[:120]}: key {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: row {str(raw)[:120]}: {error}") from None


def _csv(path: Path) -> list[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as handle:
            return [row for _, row in zip(range(_MAX_ROWS), csv.DictReader(handle), strict=False)]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as gzip CSV: {error}") from None


def _from_strings(kind: type[Row], row: dict[str, str]) -> Row:
    convert: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": lambda text: text == "True"}
    try:
        return kind(**{f.name: convert[str(f.type)](row[f.name]) for f in fields(kind)})
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"measured row {row!r}: {error}") from None


def _flops_to_time(flops: float, raw: dict[str, Any]) -> float | None:
    """Seconds from the posted latency, else from the posted rate."""
    if raw.get("latency_us"):
        return float(raw["latency_us"]) * 1e-6
    tflops = raw.get("tflops")
    return flops / (float(tflops) * 1e12) if tflops and math.isfinite(float(tflops)) else None


def _source(raw: dict[str, Any]) -> str:
    text = str(raw.get("source", ""))
    return "a benchmark log in a public repository; the GPU is not named" if "index id" in text else text


def _raw_gemm(raw: dict[str, Any]) -> GemmRow | None:
    """A posted GEMM; None where shape is missing or the number is from memory."""
    if raw.get("confidence") == "recalled" or not all(raw.get(key) for key in "mnk"):
        return None
    m, n, k, groups = int(raw["m"]), int(raw["n"]), int(raw["k"]), int(raw.get("groups") or 1)
    time_s = _flops_to_time(2.0 * m * n * k * groups, raw)
    if not time_s:
        return None
    return GemmRow(raw["device"], raw["dtype"], m, n, k, groups, raw.get("layout") or "", time_s, _source(raw))


def _raw_attention(raw: dict[str, Any]) -> AttentionRow | None:
    """A posted attention core; None where it cannot be used.

    Left out: numbers from memory, rows without heads, rows whose mask is not stated, deterministic backward (slower by
    design), and rows of SimuMax above the peak of the device. The other SimuMax rows state no mask, but its counting is
    known: the full square for a causal kernel, or the rates could not exceed the peak. They are read so. Their kernel
    is not named: Transformer Engine, which that simulator times, takes cuDNN on Blackwell and FlashAttention-2 on A100.
    """
    square = "SimuMax" in str(raw.get("source"))
    needed = ("batch", "heads", "seq", "head_dim")
    if raw.get("confidence") == "recalled" or not all(raw.get(key) for key in needed) or raw.get("deterministic"):
        return None
    if raw.get("causal") is None and (not square or float(raw["frac_of_peak"]) > 1.0):
        return None
    b, h, s, dq = (int(raw[key]) for key in needed)
    sk = int(raw.get("seq_kv") or s)
    dv, backward = int(raw.get("v_head_dim") or dq), raw["kind"] == "attention_bwd"
    causal = True if square else bool(raw["causal"])
    per_pair = 3 * dq + 2 * dv if backward else dq + dv
    pairs = b * h * s * sk * (0.5 if causal and not square else 1.0)
    time_s = _flops_to_time(2.0 * pairs * per_pair, raw)
    kernel = raw.get("impl") or ("vendor" if not square else "fa2" if "A100" in raw["device"] else "cudnn")
    if not time_s:
        return None
    shape = (b, h, s, sk, dq, dv)
    return AttentionRow(raw["device"], raw["dtype"], kernel, backward, *shape, causal, time_s, _source(raw))

"""One row of an nccl-tests, rccl-tests or nccom-test table, whatever its columns.

A row is ``size count type [redop] [root]`` and, for each placement, ``time algbw busbw [check] [per-iteration
columns]``. Widths cannot be trusted (numbers shrink from two decimals to none as they grow), so rows are split on
blanks; the word of the type anchors them, so that whatever stands before does not matter.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

TYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("int8", "uint8", "char", "uchar", "fp8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "float16", "fp16", "bfloat16", "bf16", "bfloat", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "float32", "fp32", "int", "int32", "uint32", "uint"), 4),
    **dict.fromkeys(("double", "float64", "fp64", "int64", "uint64", "long"), 8),
}
"""Bytes of an element, by the names that the tools print."""

REDUCTIONS = frozenset({"sum", "prod", "max", "min", "avg", "mulsum", "none", "all", "premulsum"})

_TYPES = "|".join(sorted(TYPE_BYTES, key=len, reverse=True))
_ROW = re.compile(rf"(?<![\w.])(\d+)[\s,]+(\d+)[\s,]+({_TYPES})(?=[\s,]|$)(.*)$")
_LIKE_ROW = re.compile(rf"^\W*(?:\S*:\s+)?(\S+)\s+(\S+)\s+({_TYPES})\s+(?:{'|'.join(REDUCTIONS)}|\S*[Xx?*]{{2,}})")
_HEADER = re.compile(r"(?:\bsize\b.*\bcount\b|\bbytes\b.*\bN\b).*\btype\b.*\btime\b", re.IGNORECASE)
_NOT_GIVEN = frozenset({"n/a", "-", "nan"})
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "ns": 1e-9}
_MASK = re.compile(r"[Xx?*#]{2,}")


@dataclass(frozen=True, slots=True)
class Columns:
    """What stands after the type in each row of a table. ``unit_s``: seconds of the time column, None if not said."""

    names: tuple[str, ...]
    unit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One placement of a row as printed: time in the table's unit, rates in GB/s, each with half its last digit."""

    time: float
    algbw: float
    busbw: float
    time_step: float
    algbw_step: float
    busbw_step: float
    wrong: str


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row as printed. ``out_of_place`` and ``in_place`` are None where the table does not have them."""

    nbytes: int
    count: int
    dtype: str
    redop: str
    root: int | None
    out_of_place: Timing | None
    in_place: Timing | None
    cut: bool
    """The line ends before its last column."""


class BrokenRowError(ValueError):
    """A row that cannot be read; the message says why, the caller where."""


def read_header(line: str) -> Columns | None:
    """The columns after ``type`` if the line names the columns of a table."""
    if not _HEADER.search(line):
        return None
    words = re.sub(r"\s+\(", "(", line).replace("#wrong", "wrong").replace("#", " ").split()
    lowered = [word.lower() for word in words]
    at = next((i for i, word in enumerate(lowered) if word.startswith("type")), None)
    if at is None:  # the word stands inside another: a damaged line
        return None
    names, unit = [], None
    for word in lowered[at + 1 :]:
        name, _, rest = word.partition("(")
        names.append(_column(name))
        if names[-1] == "time" and unit is None:
            unit = _UNITS.get(rest.rstrip(")"))
    return Columns(tuple(names), unit)


def _column(name: str) -> str:
    """The name of a column, spellings made alike; per-iteration columns and what is not known become ``other``."""
    if name.startswith(("time", "cputime")) and name != "timestamp":
        return "time"
    for known in ("algbw", "busbw", "redop", "root", "timestamp"):
        if name.startswith(known):
            return known
    return {"op": "redop", "error": "check", "wrong": "check", "res": "check"}.get(name, "other")


def read_units(line: str) -> float | None:
    """Seconds of the unit in the line below the header, ``(B) (elements) … (us) (GB/s)``."""
    found = re.search(r"\((us|µs|ms|ns|s)\)", line)
    return _UNITS[found[1]] if found and re.search(r"\([GM]i?B/s\)", line) else None


def looks_like_row(line: str) -> bool:
    """Whether a line inside a table was meant as a row although its numbers are not numbers."""
    return _LIKE_ROW.search(line) is not None


def read_row(line: str, columns: Columns | None) -> PrintedRow | None:
    """The row that the line holds, or None. Raises BrokenRowError where it holds one that cannot be read."""
    match = _ROW.search(line)
    if match is None:
        if looks_like_row(line):
            raise BrokenRowError(f"{' '.join(line.split())[:60]!r} is masked or broken: expected size and count")
        return None
    tokens = match[4].replace(",", " ").split()
    names = _fitted(tokens, columns)
    redop, root, timings = "", None, []
    cells = _cells(names, tokens)
    for name, token in cells:
        if name == "redop":
            redop = token.lower()
        elif name == "root":
            root = int(token) if re.fullmatch(r"-?\d+", token) else None
    bodies = _bodies(names)
    filled = dict(enumerate(token for _, token in cells))
    for body in bodies:
        timings.append(_timing([(names[i], filled.get(i)) for i in body]))
    if not timings or timings[0] is None:
        raise BrokenRowError(f"is cut: {len(tokens)} of {len(names)} columns after the type")
    second = timings[1] if len(timings) > 1 else None
    cut = len(cells) < len([n for n in names if n != "timestamp"])
    return PrintedRow(int(match[1]), int(match[2]), match[3], redop, root, timings[0], second, cut)


def _fitted(tokens: list[str], columns: Columns | None) -> tuple[str, ...]:
    """The table's columns, less those whose cell this row leaves empty; inferred where there was no header."""
    word = bool(tokens) and tokens[0].lower() in REDUCTIONS
    if columns is None:
        return _inferred(tokens, word)
    names = list(columns.names)
    if "redop" in names and not word:
        names.remove("redop")
    return tuple(names)


def _inferred(tokens: list[str], word: bool) -> tuple[str, ...]:
    """Columns of a row without a header, by how many numbers it has: 3 or 4 a placement, 8 with per-iteration ones."""
    numbers = tokens[1:] if word else tokens
    count = next((i for i, t in enumerate(numbers) if not _is_cell(t) or "-" in t[1:-3]), len(numbers))
    rooted = count in (5, 7, 9, 17) or (count == 4 and numbers[0] == "-1")
    body = {3: 3, 4: 4, 6: 3, 8: 4, 16: 8}.get(count - rooted, 4)
    names = ("time", "algbw", "busbw", "check", "other", "other", "other", "other")[:body]
    return (*(("redop",) if word else ()), *(("root",) if rooted else ()), *names, *(names if count >= 6 else ()))


def _cells(names: tuple[str, ...], tokens: list[str]) -> list[tuple[str, str]]:
    """Column and token in order, until the tokens end or one cannot be a cell (text that got into the line)."""
    cells: list[tuple[str, str]] = []
    for name, token in zip(names, tokens, strict=False):
        if name != "redop" and not _is_cell(token):
            if _MASK.search(token):
                raise BrokenRowError(f"{token!r} is masked: expected a number")
            break
        cells.append((name, token))
    return cells


def _is_cell(token: str) -> bool:
    if token.lower() in _NOT_GIVEN:
        return True
    try:
        return math.isfinite(float(token))
    except ValueError:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", token) is not None


def _bodies(names: tuple[str, ...]) -> list[list[int]]:
    """Indices of the columns of each placement: from one ``time`` column to the next."""
    starts = [i for i, name in enumerate(names) if name == "time" and "algbw" in names[i : i + 3]]
    return [list(range(a, b)) for a, b in zip(starts, [*starts[1:], len(names)], strict=False)]


def _timing(cells: list[tuple[str, str | None]]) -> Timing | None:
    """The placement, or None where its time and rates are not all there."""
    found: dict[str, str] = {}
    for name, token in cells:
        if token is not None:
            found.setdefault(name, token)
    wanted = [found.get(name) for name in ("time", "algbw", "busbw")]
    if any(token is None or token.lower() in _NOT_GIVEN for token in wanted):
        return None
    values = [float(str(token)) for token in wanted]
    if min(values) < 0.0:
        raise BrokenRowError(f"{min(values)} is negative: expected times and rates")
    time, algbw, busbw = values
    steps = [_half_step(str(token)) for token in wanted]
    return Timing(time, algbw, busbw, steps[0], steps[1], steps[2], found.get("check", ""))


def _half_step(token: str) -> float:
    """Half of the last printed digit."""
    mantissa, _, exponent = token.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)

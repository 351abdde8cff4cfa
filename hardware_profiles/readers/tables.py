"""Tables that people keep their timings in: CSV of any delimiter, Markdown, JSON lines, or a JSON list.

Every cell keeps its line, so that whatever is wrong with it is said with file and line.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..text_files import read_text
from .log_lines import MAX_LOG_BYTES, where

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_TIMES = frozenset(
    (
        "time", "latency", "duration", "mean", "median", "avg", "average", "elapsed", "mean_time", "avg_time",
        "median_time", "kernel_time", "avg_latency", "mean_latency",
    )
)  # fmt: skip
_RATES = {"tflops": 1e12, "tflop_s": 1e12, "tflops_s": 1e12, "gflops": 1e9, "gflop_s": 1e9, "pflops": 1e15}
_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a table: cells by column name, lower case and with ``_`` between words."""

    path: str
    line: int
    cells: Mapping[str, Any]

    def fault(self, text: str) -> InputError:
        """The error for something wrong with this row."""
        return InputError(f"{where(self.path, self.line)}: {text}")

    def text(self, *names: str) -> str:
        """The first of the columns that is there, or an empty text."""
        return next((str(self.cells[n]).strip() for n in names if self.cells.get(n) not in (None, "")), "")

    def number(self, *names: str) -> float | None:
        """The first of the columns that is there, as a finite number. Raises InputError where it is none."""
        text = self.text(*names)
        if not text or text.lower() in ("n/a", "-", "none", "null"):
            return None
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.fault(f"{next(n for n in names if self.cells.get(n))} = {text[:40]!r}: expected a number")
        return value

    def whole(self, *names: str) -> int | None:
        """The same, a whole number above 0."""
        value = self.number(*names)
        if value is None:
            return None
        if value != int(value) or not 0 < value < 1 << 40:
            raise self.fault(f"{names[0]} = {value:g}: expected a whole number above 0")
        return int(value)

    def flag(self, *names: str) -> bool | None:
        """The same, true or false."""
        text = self.text(*names).lower()
        if text in ("true", "1", "yes", "causal"):
            return True
        if text in ("false", "0", "no", "full", "none"):
            return False
        if text:
            raise self.fault(f"{names[0]} = {text[:40]!r}: expected true or false")
        return None

    def seconds(self, flops: float) -> float:
        """Seconds of the row: a time in the unit that its column names, else the work over a rate.

        Raises InputError where there is neither, one is not above 0, or both are there and disagree.
        """
        timed, rated = self._timed(), self._rated()
        if timed is not None and rated is not None:
            ratio = flops / rated / timed
            if not 0.9 < ratio < 1.1:
                raise self.fault(
                    f"its time and its rate disagree by a factor of {max(ratio, 1.0 / ratio):.3g}: a wrong unit, or"
                    " FLOPs counted otherwise"
                )
        if timed is not None:
            return timed
        if rated is not None:
            return flops / rated
        raise self.fault("no time and no rate: expected a column such as time_us, latency_ms, seconds or tflops")

    def _timed(self) -> float | None:
        """Seconds of the first column of times that has a value."""
        for name in self.cells:
            unit = time_unit(name)
            if unit is not None and (value := self.number(name)) is not None:
                if value <= 0.0:
                    raise self.fault(f"{name} = {value:g}: expected a time above 0")
                return value * unit
        return None

    def _rated(self) -> float | None:
        """FLOP/s of the first column of rates that has a value."""
        for start, unit in _RATES.items():
            for name in self.cells:
                if name.startswith(start) and (value := self.number(name)) is not None:
                    if value <= 0.0:
                        raise self.fault(f"{name} = {value:g}: expected a rate above 0")
                    return value * unit
        return None


def time_unit(name: str) -> float | None:
    """Seconds of the unit of a column of times, such as ``time_us``, ``latency (ms)`` or ``us``; None for others."""
    if name in _UNITS and name != "s":
        return _UNITS[name]
    stem, _, unit = name.rpartition("_")
    return _UNITS.get(unit) if stem in _TIMES else None


def read_table(path: str | Path, what: str) -> list[Record]:
    """The rows of a table. Raises InputError naming the file, and the line where one is wrong."""
    file = Path(path)
    text = read_text(file, what, MAX_LOG_BYTES)
    if not text.strip():
        raise InputError(f"{file}: is empty; expected {what}")
    first = text.lstrip()[0]
    records = _json(file, text, what) if first in "{[" else _separated(file, text, what)
    if not records:
        raise InputError(f"{file}: holds no row; expected {what}")
    return records


def column(name: str) -> str:
    """A column's name in one spelling: ``Time (us)`` and ``time_us`` are the same."""
    plain = name.strip().strip("*`").lower().replace("µ", "u").replace("flop/s", "flops")
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_")


def _json(file: Path, text: str, what: str) -> list[Record]:
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise InputError(f"{file}: not JSON: {str(error).splitlines()[0]}; expected {what}") from None
        return [_record(file, at, row) for at, row in enumerate(rows, start=1)]
    records = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                fault = f"not JSON: {str(error).splitlines()[0]}"
                raise InputError(f"{where(file, number)}: {fault}; expected one JSON object a line") from None
            records.append(_record(file, number, row))
    return records


def _record(file: Path, line: int, row: Any) -> Record:
    if not isinstance(row, Mapping):
        raise InputError(f"{where(file, line)}: expected a JSON object, one row")
    return Record(str(file), line, {column(str(key)): value for key, value in row.items()})


def _separated(file: Path, text: str, what: str) -> list[Record]:
    lines = [(n, t) for n, t in enumerate(text.splitlines(), start=1) if t.strip() and not t.lstrip().startswith("#")]
    if not lines:
        raise InputError(f"{file}: holds no row; expected {what}")
    delimiter = max(_DELIMITERS, key=lines[0][1].count)
    split = _blanks if lines[0][1].count(delimiter) == 0 else _by(delimiter)
    names = [column(cell) for cell in split(lines[0][1])]
    records = []
    for number, line in lines[1:]:
        if set(line.strip()) <= set("|-: +="):  # the rule under a Markdown header
            continue
        cells = split(line)
        if len(cells) != len(names):
            raise InputError(f"{where(file, number)}: {len(cells)} cells under {len(names)} columns")
        records.append(Record(str(file), number, dict(zip(names, cells, strict=True))))
    return records


def _by(delimiter: str) -> Any:
    def split(line: str) -> Sequence[str]:
        stripped = line.strip().strip("|") if delimiter == "|" else line
        return [cell.strip() for cell in next(csv.reader([stripped], delimiter=delimiter))]

    return split


def _blanks(line: str) -> Sequence[str]:
    return line.split()

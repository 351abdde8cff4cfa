"""Logs of nccl-tests, rccl-tests and nccom-test: every table of a file, with what the log says of its run.

The reader is liberal in layout and strict in meaning: a row whose time, size and rate do not agree, or whose digits are
masked, is refused with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import InputError
from .log_lines import read_lines, where, without_rank_labels
from .nccl_rows import BrokenRowError, Columns, PrintedRow, Timing, read_header, read_row, read_units

WHAT = "a log of nccl-tests, rccl-tests or nccom-test"

_NAMES = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "allr": "all_reduce",
    "all_gather": "all_gather", "allgather": "all_gather", "allg": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter", "redsct": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "alltoallv": "all_to_all",
    "sendrecv": "p2p", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "hypercube": "hypercube",
}  # fmt: skip
_PROGRAM = re.compile(r"(?<![A-Za-z])([a-z_]+?)_perf(?:_mpi|\b)")
_NCCOM = re.compile(r"\bnccom-test\b(.*)")
_NCCOM_RANKS = re.compile(r"(?:-r|--nworkers)[= ](\d+)")
_NCCOM_NODES = re.compile(r"(?:-N|--nnodes)[= ](\d+)")
_DEVICE = re.compile(
    r"Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+(?P<dev>\d+)"
    r"\s+\[[^\]]*\]\s*(?P<name>.*)"
)
_DEVICE_1 = re.compile(r"Device\s+(?P<rank>\d+)\s+->\s+(?P<dev>\d+)\s+\[[^\]]*\]\s*(?P<name>.*)")
_INFO_RANKS = re.compile(r"\brank\s+\d+\s+n[rR]anks\s+(\d+)(?:\s+nNodes\s+(\d+))?")
_PER_PROCESS = re.compile(r"\bnThread (\d+) nGpus (\d+)\b")
_LIBRARY = re.compile(r"NCCL version ([\w.+-]+)|(?:nccl|rccl)-tests version (\S+)|(rccl-tests: Version \S+)")
_STARTS = ("Collective test starting", "# Using devices", "nThread ", "rccl-tests version", "nccl-tests version")
_ENDS = ("Avg bus bandwidth", "Collective test concluded")

NCCOM = "nccom-test"
ONE_HOST = "one host"
"""Of NCCL 1, whose tests ran in one process and name no host."""
LEAST_RATE_SHARE = 0.45
"""The least that a printed algbw may be of size over time: early versions left out a rank's own part, half of it on
two ranks. A wrong unit is a factor of a thousand, so this still tells."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row: ``nbytes`` as the tools count them; seconds out of place and in place, None where not measured."""

    line: int
    nbytes: int
    count: int
    dtype: str
    redop: str
    root: int | None
    seconds: float | None
    in_place_s: float | None
    rates: tuple[tuple[Timing, float], ...]
    """The placements as printed, with seconds, for deriving rank counts."""

    @property
    def samples_s(self) -> tuple[float, ...]:
        """Seconds of the placements that were measured."""
        return tuple(s for s in (self.seconds, self.in_place_s) if s is not None)


@dataclass(frozen=True, slots=True)
class Device:
    """One line of the device list."""

    rank: int
    group: int
    host: str
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one log, with what the log says of its run; None and empty where it does not say."""

    path: str
    line: int
    """Of the first row."""
    kind: str | None
    points: tuple[Point, ...]
    """Rows of some bytes."""
    empty_rows: int
    """Rows of zero bytes, which measure nothing."""
    devices: tuple[Device, ...]
    ranks_said: int | None
    nodes_said: int | None
    per_process: int | None
    """Devices of one process, which are all on one node."""
    library: str
    notes: tuple[str, ...]
    complete: bool
    """Whether the footer was there."""

    @property
    def rows(self) -> int:
        """All rows of the table."""
        return len(self.points) + self.empty_rows


@dataclass(slots=True)
class _Run:
    """What is known of the run whose table is being read."""

    kind: str | None = None
    columns: Columns | None = None
    devices: list[Device] = field(default_factory=list)
    ranks: int | None = None
    nodes: int | None = None
    per_process: int | None = None
    library: str = ""
    rows: list[tuple[int, PrintedRow]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: bool = False


def read_nccl_log(path: str | Path) -> list[Table]:
    """Every table of a log. Raises InputError with file and line where it holds none or a row cannot be read."""
    file = Path(path)
    lines = read_lines(file, WHAT)
    if lines[0].lstrip().startswith("{"):
        from .nccl_json import read_nccl_json

        return read_nccl_json(file)
    tables = list(_tables(file, lines))
    if not tables:
        raise InputError(f"{file}: holds no row of a table of times; expected {WHAT}")
    return tables


def _tables(file: Path, lines: list[str]) -> Iterator[Table]:
    run = _Run()
    waiting: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        if waiting and (joined := _continued(waiting[1], line, run.columns)):
            run.rows.append((waiting[0], joined))
            waiting = None
            continue
        if waiting:
            _refuse(file, *waiting, run.columns)
        try:
            row = read_row(without_rank_labels(line), run.columns) if _may_be_row(line) else None
        except BrokenRowError:
            waiting = (number, without_rank_labels(line))
            continue
        waiting = None
        if row is not None:
            run.rows.append((number, row))
        elif run.rows and (run.ended or _starts(line)) and _starts_another(line):
            yield _finished(file, run)
            run = _Run()
        if row is None:
            _note_fact(line, run)
    if waiting:
        _last_row(file, waiting, run)
    if run.rows:
        yield _finished(file, run)


def _may_be_row(line: str) -> bool:
    """Anything but the names of the columns and what the library itself says."""
    return read_header(line) is None and "NCCL INFO" not in line


def _starts(line: str) -> bool:
    return any(mark in line for mark in _STARTS) or read_header(line) is not None or _NCCOM.search(line) is not None


def _starts_another(line: str) -> bool:
    """A table ends where the next run begins; what stands between a footer and that belongs to the next run."""
    return not any(mark in line for mark in _ENDS) and bool(line.strip("# "))


def _continued(start: str, line: str, columns: Columns | None) -> PrintedRow | None:
    """A row that another process's text or a flush broke in two, where the second line is its rest and no more."""
    rest = without_rank_labels(line).strip()
    if not rest or not re.fullmatch(r"[\d.eE+\-/NA\s]+", rest):
        return None
    try:
        row = read_row(f"{start} {rest}", columns)
    except BrokenRowError:
        return None
    return None if row is None or row.cut else row


def _refuse(file: Path, number: int, line: str, columns: Columns | None) -> None:
    try:
        read_row(line, columns)
    except BrokenRowError as error:
        raise InputError(f"{where(file, number)}: {error}") from None


def _last_row(file: Path, waiting: tuple[int, str], run: _Run) -> None:
    """A row cut by the end of the file is left out; a masked one is refused."""
    try:
        read_row(waiting[1], run.columns)
    except BrokenRowError as error:
        if "masked" in str(error) or not run.rows:
            raise InputError(f"{where(file, waiting[0])}: {error}") from None
        run.notes.append(f"line {waiting[0]}: the last row {error}: left out")


def _note_fact(line: str, run: _Run) -> None:
    """What a line that is no row says of the run."""
    columns = read_header(line)
    if columns is not None:
        run.columns = columns
        if "elems" in line:
            run.library = NCCOM
    elif run.columns is not None and run.columns.unit_s is None and not run.rows and (unit := read_units(line)):
        run.columns = replace(run.columns, unit_s=unit)
    elif any(mark in line for mark in _ENDS):
        run.ended = True
    if found := _DEVICE.search(line):
        run.devices.append(
            Device(
                int(found["rank"]), int(found["group"] or 0), found["host"], int(found["dev"]), found["name"].strip()
            )
        )
    elif found := _DEVICE_1.search(line):
        run.devices.append(Device(int(found["rank"]), 0, ONE_HOST, int(found["dev"]), found["name"].strip()))
    elif found := _INFO_RANKS.search(line):
        run.ranks, run.nodes = int(found[1]), int(found[2]) if found[2] else run.nodes
    elif found := _PER_PROCESS.search(line):
        run.per_process = int(found[1]) * int(found[2])
    elif found := _NCCOM.search(line):
        _note_nccom(found[1], run)
    elif (found := _LIBRARY.search(line)) and not run.library:
        run.library = next(text for text in found.groups() if text)
    run.kind = kind_of_program(line) or run.kind
    if "FAILED" in line and "Out of bounds" in line:
        run.notes.append("the tool's own check of the results failed")


def kind_of_program(text: str) -> str | None:
    """The collective of a program that the text names, such as ``all_reduce_perf`` or ``alltoall_perf_mpi``."""
    found = _PROGRAM.search(text)
    return _NAMES.get(found[1]) if found else None


def kind_of_name(text: str) -> str | None:
    """The collective that a file's name speaks of."""
    plain = re.sub(r"[^a-z]+", "_", text.lower())
    return next((kind for name, kind in _NAMES.items() if re.search(rf"(?:^|_){name}(?:_|$)", plain)), None)


def _note_nccom(words: str, run: _Run) -> None:
    """Operation, workers and nodes of an nccom-test command line."""
    for word in words.split():
        if word.lower() in _NAMES:
            run.kind = _NAMES[word.lower()]
    if found := _NCCOM_RANKS.search(words):
        run.ranks = int(found[1])
    if found := _NCCOM_NODES.search(words):
        run.nodes = int(found[1])


def _finished(file: Path, run: _Run) -> Table:
    rows = [row for _, row in run.rows]
    unit = _unit(file, run)
    points = [_point(file, number, row, unit) for number, row in run.rows if row.nbytes > 0]
    notes = list(run.notes)
    if any(row.cut for row in rows):
        line = next(number for number, row in run.rows if row.cut)
        notes.append(f"line {line}: columns are missing at the end of a row: read as far as it goes")
    if not run.ended:
        notes.append("the table has no footer: it may be cut")
    return Table(
        path=str(file),
        line=run.rows[0][0],
        kind=run.kind,
        points=tuple(points),
        empty_rows=len(rows) - len(points),
        devices=tuple(run.devices),
        ranks_said=run.ranks,
        nodes_said=run.nodes,
        per_process=run.per_process,
        library=run.library,
        notes=tuple(notes),
        complete=run.ended,
    )


def _unit(file: Path, run: _Run) -> float:
    """Seconds of the time column: as the header says, else the unit that agrees with the printed rates."""
    if run.columns is not None and run.columns.unit_s is not None:
        return run.columns.unit_s
    fastest = max((row for _, row in run.rows), key=lambda r: r.out_of_place.algbw if r.out_of_place else 0.0)
    timing = fastest.out_of_place
    if timing is None or timing.algbw <= 0.0 or timing.time <= 0.0:
        return 1e-6
    for unit in (1e-6, 1e-3, 1.0):
        if _agrees(fastest.nbytes, timing, unit):
            return unit
    line = next(number for number, row in run.rows if row is fastest)
    raise InputError(f"{where(file, line)}: size, time and algbw agree in no unit of time (us, ms, s)")


def _agrees(nbytes: int, timing: Timing, unit: float) -> bool:
    """Whether size over time is the printed algbw, within what their digits leave open."""
    if timing.time <= timing.time_step:
        return True
    low, high = (nbytes / ((timing.time + sign * timing.time_step) * unit) / 1e9 for sign in (1.0, -1.0))
    slack = timing.algbw_step + 0.01
    return LEAST_RATE_SHARE * low - slack <= timing.algbw <= high * 1.02 + slack


def _point(file: Path, number: int, row: PrintedRow, unit: float) -> Point:
    found = [(t, t.time * unit) for t in (row.out_of_place, row.in_place) if t is not None]
    for timing, seconds in found:
        if seconds <= 0.0:
            raise InputError(f"{where(file, number)}: time = {timing.time:g} for {row.nbytes} bytes: expected above 0")
        if not _agrees(row.nbytes, timing, unit):
            rate = row.nbytes / seconds / 1e9
            raise InputError(
                f"{where(file, number)}: {row.nbytes} bytes in {seconds * 1e6:g} us are {rate:.4g} GB/s, but algbw ="
                f" {timing.algbw:g}: a wrong unit or a broken row"
            )
    out, inside = row.out_of_place, row.in_place
    return Point(
        line=number,
        nbytes=row.nbytes,
        count=row.count,
        dtype=row.dtype,
        redop=row.redop,
        root=row.root,
        seconds=out.time * unit if out else None,
        in_place_s=inside.time * unit if inside else None,
        rates=tuple(found),
    )

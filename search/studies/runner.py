"""Running a study: every point once, in this process, in others or on other machines, and again after a kill."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.hardware_profiles.errors import InputError

from .journal import open_journal
from .knobs import inputs
from .points import OK, Point, Row, broken_point, make_point, solve
from .study_file import Scalar, Study, make_study, read_study

Progress = Callable[[int, int], None]
"""Called with the points finished and their number; for display only."""

_AHEAD = 64
"""Points handed to an executor before the first comes back: enough for any machine, little to lose."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A finished study: one row per point in the study's order, inputs first."""

    study: Study
    rows: tuple[Row, ...]
    solved: int
    """Points searched by this run; the others came out of the journal."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in the order of their first row."""
        return tuple(dict.fromkeys(key for row in self.rows for key in row))

    def solved_rows(self) -> tuple[Row, ...]:
        """The rows that have an answer."""
        return tuple(row for row in self.rows if row["status"] == OK)


def study(
    study: Study | str | Path | dict[str, Any],
    out: str | Path | None = None,
    *,
    workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> StudyResult:
    """Search every point of a study.

    ``study``: a study file, or the mapping that it would hold. ``out``: a folder for the journal; a study that was
    stopped there goes on where it stood. ``workers`` processes of this machine, or any ``executor`` of
    ``concurrent.futures`` (Dask's ``client.get_executor()`` too). The rows are the same whichever way it ran.

    Raises InputError naming file and key for what cannot be used; a point whose own settings do not go together, or
    where nothing fits, is a row that says so.
    """
    if isinstance(study, dict):
        study = make_study(study, Path("study"))
    elif not isinstance(study, Study):
        study = read_study(study)
    if workers < 1:
        raise InputError(f"workers = {workers}: expected 1 or more")
    points = read_points(study)
    if out is None:
        answers = dict(_keyed(_solved(points, workers, executor, progress, 0)))
        return _result(study, points, answers, len(answers))
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder: {error.strerror}") from None
    with open_journal(folder, _version()) as journal:
        known = {point.key for point in points} & set(journal.rows)
        left = [point for point in points if point.key not in known]
        solved = 0
        for row in _solved(left, workers, executor, progress, len(points) - len(left)):
            journal.add(row)
            solved += 1
        return _result(study, points, journal.rows, solved)


def read_points(study: Study) -> tuple[Point, ...]:
    """Every point with its inputs read.

    Raises InputError for a value that no point can use: then the study is wrong, not the point.
    """
    points = tuple(_point(study, i, settings) for i, settings in enumerate(study.points))
    hopeless = list(_hopeless(study, points))
    named = next((_placed(*blame) for blame in hopeless if _names(*blame)), None)
    alike = len(points) > 1 and all(p.inputs is None and p.fault == points[0].fault for p in points)
    if named is None and alike:
        named = points[0].fault  # it has nothing to do with what varies
    if hopeless or named:
        raise InputError(f"{study.path}: {named or _placed(*hopeless[0])}")
    return points


def _hopeless(study: Study, points: tuple[Point, ...]) -> Iterator[tuple[str, Scalar, str]]:
    """Every value that no point can use: its key, itself and the first fault."""
    for key, values in study.axes.items():
        having = [p for p in points if key in p.settings]
        used = {repr(p.settings[key]) for p in having if p.inputs is not None}
        faults = {repr(p.settings[key]): p.fault for p in reversed(having)}
        yield from ((key, v, faults[repr(v)]) for v in values if repr(v) in faults and repr(v) not in used)


def _names(key: str, value: Scalar, fault: str) -> bool:
    """Whether a fault speaks of a key or its value."""
    return _of_key(key, fault) or re.search(rf"(?<![\w.-]){re.escape(str(value))}(?![\w.-])", fault) is not None


def _of_key(key: str, fault: str) -> bool:
    return fault.startswith((f"{key}:", f"{key} "))


def _placed(key: str, value: Scalar, fault: str) -> str:
    """The fault with the path of the value that causes it."""
    return f"vary.{fault}" if _of_key(key, fault) else f"vary.{key} = {value!r}: {fault}"


def _point(study: Study, index: int, settings: dict[str, Scalar]) -> Point:
    try:
        return make_point(index, settings, inputs(study.file, settings))
    except InputError as error:
        return broken_point(index, settings, str(error))


def _solved(
    points: Iterable[Point], workers: int, executor: Executor | None, progress: Progress | None, before: int
) -> Iterator[Row]:
    """The answers of all different points, as they come."""
    different = list({point.key: point for point in points}.values())
    total, done = before + len(different), before
    tell = progress or (lambda finished, count: None)
    tell(done, total)
    for row in _ways(different, workers, executor):
        done += 1
        yield row
        tell(done, total)


def _ways(points: list[Point], workers: int, executor: Executor | None) -> Iterator[Row]:
    if executor is not None:
        yield from _fanned(points, executor)
    elif workers == 1 or len(points) < 2:
        yield from map(solve, points)
    else:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # Fresh processes: a forked one would share locks with the threads of the solver.
        with ProcessPoolExecutor(min(workers, len(points)), mp_context=get_context("spawn")) as pool:
            yield from _fanned(points, pool)


def _fanned(points: list[Point], executor: Executor) -> Iterator[Row]:
    """Answers in the order in which they come; what is under way is cancelled when the reader stops."""
    queue = iter(points)
    running: set[Future[Row]] = set()
    try:
        while True:
            for point in queue:
                running.add(executor.submit(solve, point))
                if len(running) >= _AHEAD:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        for future in running:
            future.cancel()


def _keyed(rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    for row in rows:
        yield row["key"], row


def _result(study: Study, points: tuple[Point, ...], answers: dict[str, Row], solved: int) -> StudyResult:
    rows = []
    for point in points:
        answer = {k: v for k, v in answers[point.key].items() if k not in ("key", "search_s")}
        rows.append({"point": point.index, **point.settings, **_shown(point), **answer})
    return StudyResult(study, tuple(_regular(rows)), solved)


def _regular(rows: list[Row]) -> Iterator[Row]:
    """Every row with every column, in one order."""
    columns = dict.fromkeys(key for row in rows for key in row)
    for row in rows:
        yield {key: row.get(key) for key in columns}


def _shown(point: Point) -> Row:
    """The inputs as columns: as a person states them, and the figures of the cluster that they come to."""
    if point.inputs is None:
        return {}
    given, problem = point.inputs, point.inputs.problem
    device, tiers = problem.cluster.accelerator, problem.cluster.tiers
    row: Row = {k: v for k, v in given.shown.items() if k not in point.settings}
    row |= {
        "model.parameters": problem.model.total_parameters,
        "model.active_parameters": problem.model.active_parameters,
        "model.layers": problem.model.num_layers,
        "accelerator": device.name,
        "accelerator.memory_bytes": device.memory_bytes,
        "price_per_gpu_hour": given.price_per_gpu_hour,
    }
    for at, tier in enumerate(tiers):
        for key in ("size", "bytes_per_s", "latency_s", "oversubscription"):
            row[f"tier{at}.{key}"] = getattr(tier, key)
    for kind, wishes in given.wishes.items():
        row |= {f"{kind}.{k}": v for k, v in wishes.items() if f"{kind}.{k}" not in point.settings}
    return row


def _version() -> str:
    from importlib.metadata import version

    return version("shardwise")

"""``shardwise study``: a whole search at every point of a grid, and the table of their answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError

from .failures import say_warning
from .options import PATH, integer
from .output import console, prepare_folder, print_json, refuse_written, write_files
from .reports.options import Wanted, report_options
from .units import plural

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from shardwise.search.studies.runner import StudyResult

    from .reports.content import Page

CSV, PARQUET = "results.csv", "results.parquet"


@click.command()
@click.argument("study", type=PATH, metavar="STUDY.yaml")
@click.option("--out", required=True, type=PATH, metavar="DIR", help="Journal and tables; goes on there.")
@click.option("--workers", type=integer, default="1", show_default=True, help="Processes of this machine.")
@click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster: tcp://HOST:PORT.")
@report_options
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON and nothing else.")
def study(study: Path, out: Path, workers: int, dask: str | None, wanted: Wanted, as_json: bool) -> None:
    """Search every point of a study file and write results.csv and results.parquet.

    Stopped by Ctrl-C or killed, the same command goes on where it stood. Exit code 2: a file that cannot be used.
    """
    from shardwise.search.studies.journal import NAME
    from shardwise.search.studies.runner import study as run
    from shardwise.search.studies.study_file import read_study

    asked = read_study(study)
    refuse_written("--report", wanted.report, out, (CSV, PARQUET, NAME), "--out")
    prepare_folder(out)
    with ExitStack() as stack:
        executor = stack.enter_context(_dask(dask)) if dask else None
        count = stack.enter_context(counted())
        try:
            result = run(asked, out, workers=workers, executor=executor, progress=count.tell)
        except KeyboardInterrupt:
            raise _Stopped(count.finished, count.total, out) from None
    written = _write(result, out)
    reported = _report(result, wanted)
    if as_json:
        print_json([dict(row) for row in result.rows])
        return
    from .report import text_line
    from .study_report import print_study

    terminal = console()
    print_study(terminal, result, written)
    for text in reported:
        text_line(terminal, f"  {text}")


def _report(result: StudyResult, wanted: Wanted) -> list[str]:
    """Write the report that is wanted of a study, and say where it is."""

    def page() -> Page:
        from .reports.study_page import study_page

        return study_page(result)

    return wanted.write(page)


class _Stopped(click.exceptions.Exit):
    """Ctrl-C: what is done stays, and the message says how to go on."""

    def __init__(self, finished: int, total: int, out: Path) -> None:
        super().__init__(130)
        click.echo(
            f"shardwise: interrupted: {finished} of {plural(total, 'point')} finished and kept in {out};"
            " the same command goes on there",
            err=True,
        )


class Counted:
    """How far a study is, on the terminal where there is one."""

    def __init__(self, show: Callable[[int, int], None] | None) -> None:
        self.finished = self.total = 0
        self._show = show

    def tell(self, finished: int, total: int) -> None:
        """So many of so many points are finished."""
        self.finished, self.total = finished, total
        if self._show is not None:
            self._show(finished, total)


@contextmanager
def counted() -> Iterator[Counted]:
    """Progress with the time left: on a terminal only, on standard error, gone at the end."""
    if not sys.stderr.isatty():
        yield Counted(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("searching"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("points", total=None)
        yield Counted(lambda finished, total: bar.update(task, completed=finished, total=total))


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster. Raises InputError where Dask or the cluster is missing."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs Dask: pip install 'shardwise[dask]'") from None
    try:
        client: Any = Client(address, timeout=10)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"--dask {address}: no scheduler answers there: {str(error)[:120]}") from None
    with client:
        yield client.get_executor(pure=False)


def _write(result: StudyResult, out: Path) -> list[Path]:
    """The tables; without pyarrow the CSV alone, with a word about it."""
    from shardwise.search.studies.tables import to_csv, to_parquet

    files: dict[str, str | bytes] = {CSV: to_csv(result)}
    try:
        files[PARQUET] = to_parquet(result)
    except InputError as error:
        say_warning(str(error))
    return write_files(out, files)

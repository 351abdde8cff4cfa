"""``--report FILE`` and ``--figures DIR``: checked before long work, written after it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.hardware_profiles.errors import InputError

from ..output import prepare_file, prepare_folder, write_file, write_files

if TYPE_CHECKING:
    from .content import Page

REPORT, FIGURES = "--report", "--figures"

MISSING = "{option}: {library} is not installed: pip install 'shardwise[report]'"

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command line asks for beyond its answer."""

    report: Path | None
    figures: Path | None

    def __bool__(self) -> bool:
        """Whether it asks for anything."""
        return self.report is not None or self.figures is not None

    def prepare(self) -> None:
        """Check before long work that it can be made and written. Raises InputError naming the option if not."""
        if self.report is not None:
            require(REPORT, "matplotlib", "jinja2")
            prepare_file(self.report, REPORT)
        if self.figures is not None:
            require(FIGURES, "matplotlib")
            prepare_folder(self.figures, FIGURES)

    def write(self, page: Page) -> list[Path]:
        """Write the page and its figures, each file whole or not at all. Raises InputError where one cannot be."""
        from .render import html
        from .sheet import files

        written: list[Path] = []
        if self.figures is not None:
            drawn = {name: content for chart in page.charts() for name, content in files(chart).items()}
            written += write_files(self.figures, drawn, FIGURES)
        if self.report is not None:
            write_file(self.report, html(page), REPORT)
            written.append(self.report)
        return written


def require(option: str, *libraries: str) -> None:
    """Raises InputError that names the option and what to install where a library is missing."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise InputError(MISSING.format(option=option, library=library))


def report_options(command: _F) -> _F:
    """Adds ``--report`` and ``--figures``."""
    for decorate in (
        click.option(
            FIGURES,
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Write each figure of the report as PNG, SVG and CSV.",
        ),
        click.option(
            REPORT,
            type=click.Path(path_type=Path),
            metavar="FILE.html",
            help="Write the answer as one HTML page with figures, for any browser, offline.",
        ),
    ):
        command = decorate(command)
    return command


def told(written: list[Path], wanted: Wanted) -> list[str]:
    """What was written, a line each: the page, and the folder of figures with their number."""
    lines = []
    if wanted.figures is not None:
        count = sum(path.suffix == ".csv" for path in written)
        lines.append(f"Figures: {count} as PNG, SVG and CSV in {wanted.figures}")
    if wanted.report is not None:
        lines.append(f"Report: {wanted.report}")
    return lines

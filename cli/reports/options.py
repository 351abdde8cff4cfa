"""``--report FILE`` and ``--figures DIR``: checked before long work, written after it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.hardware_profiles.errors import InputError

from ..options import PATH
from ..output import (
    prepare_file,
    prepare_folder,
    refuse_read,
    refuse_same,
    refuse_written,
    write_file,
    write_files,
)

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

    def write(self, make: Callable[[], Page]) -> list[str]:
        """Make the page where it is wanted, write it and its figures, each file whole or not at all, and say where.

        Raises InputError where one cannot be written.
        """
        if not self:
            return []
        from .render import html
        from .sheet import files

        page, said = make(), []
        if self.figures is not None:
            drawn = {name: content for chart in page.charts() for name, content in files(chart).items()}
            refuse_written(REPORT, self.report, self.figures, drawn, FIGURES)
            write_files(self.figures, drawn, FIGURES)
            said.append(f"Figures: {len(page.charts())} as PNG, SVG and CSV in {self.figures}")
        if self.report is not None:
            write_file(self.report, html(page), REPORT)
            said.append(f"Report: {self.report}")
        return said


def require(option: str, *libraries: str) -> None:
    """Raises InputError that names the option and what to install where a library is missing."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise InputError(MISSING.format(option=option, library=library))


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a command was given, by name; the questions' job is one of them, a mapping of its own."""
    base = given.get("base")
    return {**given, **(base if isinstance(base, Mapping) else {})}


def report_options(command: _F) -> _F:
    """Adds ``--report`` and ``--figures``, handed on together as ``wanted`` and checked before the command runs."""

    @wraps(command)
    def checked(*args: Any, report: Path | None, figures: Path | None, **kwargs: Any) -> Any:
        wanted, out, trace = Wanted(report, figures), kwargs.get("out"), kwargs.get("trace")
        refuse_same({"--trace": trace, REPORT: report}, {FIGURES: figures, "--out": out})
        for option, path in ((REPORT, report), ("--trace", trace)):
            refuse_read(option, path, {n: v for n, v in _named(kwargs).items() if n not in ("out", "trace")})
        wanted.prepare()
        return command(*args, wanted=wanted, **kwargs)

    made: Any = checked
    for decorate in (
        click.option(
            FIGURES,
            type=PATH,
            metavar="DIR",
            help="Write each figure of the report as PNG, SVG and CSV.",
        ),
        click.option(
            REPORT,
            type=PATH,
            metavar="FILE.html",
            help="Write the answer as one HTML page with figures, for any browser, offline.",
        ),
    ):
        made = decorate(made)
    return made  # type: ignore[no-any-return]

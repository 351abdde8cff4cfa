"""What a page is made of: sections of facts, tables, charts, lists and files. Data only; the template lays it out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .sheet import Sheet

Draw = Callable[["Sheet"], None]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading for people, its name in the CSV with the unit, and how a value is written on the page."""

    head: str
    name: str
    show: Callable[[Any], str] = str
    number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns; the first column names the row."""

    kind: ClassVar[str] = "table"

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: bool = False
    """Whether the last row is the sum of the others."""

    def cells(self) -> list[list[str]]:
        """The rows as people read them; empty where there is no value."""
        return [
            ["" if value is None else column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def csv(self) -> str:
        """The rows as CSV under a header line, values as they are: bytes and seconds."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return text.getvalue()


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure, the words that stand for it, and the values behind it."""

    kind: ClassVar[str] = "chart"

    name: str
    """Of its files, and of its place in the page."""
    title: str
    alt: str
    """What the figure shows, for who cannot see it: the figures that matter, in a sentence or two."""
    table: Table
    """Shown under the figure."""
    draw: Draw
    data: Table | None = None
    """The whole of the values where ``table`` is a summary."""
    note: str = ""
    open: bool = False
    """Whether the table is shown unasked."""

    def csv(self) -> str:
        """The values behind the figure."""
        return (self.data or self.table).csv()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and what they are."""

    kind: ClassVar[str] = "facts"

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs."""

    kind: ClassVar[str] = "text"

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    kind: ClassVar[str] = "bullets"

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Command:
    """Text to copy."""

    kind: ClassVar[str] = "command"

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Files:
    """Files by name, folded up."""

    kind: ClassVar[str] = "files"

    files: Mapping[str, str]


Block = Table | Chart | Facts | Text | Bullets | Command | Files


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    name: str
    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report."""

    title: str
    subtitle: str
    headline: tuple[tuple[str, str, str], ...]
    """The figures that people compare: label, value, what stands beside it."""
    sections: tuple[Section, ...]

    def charts(self) -> tuple[Chart, ...]:
        """Every figure, in order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Chart))

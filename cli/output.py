"""What leaves the program: JSON on stdout, tables, and files that are whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120
"""Columns of a table that does not go to a terminal."""

LEAST_WIDTH = 110
"""Columns that the widest table of figures needs. A narrower terminal breaks its lines; no digit is left out."""


def console() -> Console:
    """A console on standard output: coloured and as wide as the terminal, or plain and of fixed width in a pipe."""
    from rich.console import Console

    class Piped(Console):
        """One whose reader may go: that is no fault, and rich would exit as if it were."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Piped(width=_width(), highlight=False, emoji=False)


def _width() -> int:
    if not sys.stdout.isatty() and not _asked_columns():
        return PIPE_WIDTH
    return max(LEAST_WIDTH, shutil.get_terminal_size(fallback=(PIPE_WIDTH, 1)).columns)


def _asked_columns() -> int:
    """What ``COLUMNS`` asks for; containers set it to 0 where they do not know."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def to_json(value: Any, ascii_only: bool = False) -> str:
    """Indented JSON in the given key order. Not-a-number is refused: no reader of JSON would take it."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=ascii_only)


def print_json(value: Any) -> None:
    """The value and nothing else on standard output."""
    unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    click.echo(to_json(value, ascii_only=not unicode))


def prepare_folder(path: Path, option: str = "--out") -> None:
    """Check before long work that files can be written into ``path``. Raises InputError naming the option if not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be made a folder: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise InputError(f"{option} {path}: no permission to write there")


def prepare_file(path: Path, option: str = "--out") -> None:
    """The same for one file."""
    if is_there(path) and not path.is_file():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise InputError(f"{option} {path}: expected a file to write, this is {kind}")
    prepare_folder(path.parent, option)


def refuse_same(files: Mapping[str, Path | None], folders: Mapping[str, Path | None]) -> None:
    """Refuse before long work that one output would be written over another, by the options that name them.

    Raises InputError where two files are one, or a file has the place of a folder.
    """
    taken = {_whole(path): option for option, path in folders.items() if path is not None}
    for option, path in files.items():
        if path is not None and taken.setdefault(_whole(path), option) != option:
            raise InputError(f"{option} {path}: expected another place than {taken[_whole(path)]} has")


def refuse_written(option: str, file: Path | None, folder: Path | None, names: Iterable[str], other: str) -> None:
    """The same for a file that has the name of one that ``other`` writes into its ``folder``. Raises InputError."""
    if file is None or folder is None:
        return
    if _whole(file) in {_whole(folder / name) for name in names}:
        raise InputError(f"{option} {file}: expected another name: {other} {folder} writes a file of that name")


def refuse_read(option: str, path: Path | None, inputs: Mapping[str, Any]) -> None:
    """Refuse to write over a file that the command reads. Raises InputError naming its option or argument."""
    for name, value in inputs.items() if path is not None and path.is_file() else ():
        if isinstance(value, str | Path) and is_there(Path(value)) and Path(value).samefile(str(path)):
            raise InputError(f"{option} {path}: expected a file to write, this one is read as {name}")


def _whole(path: Path) -> str:
    return os.path.realpath(path)


def write_files(folder: Path, files: Mapping[str, str | bytes], option: str = "--out") -> list[Path]:
    """Write all files into ``folder``: first beside their places, then renamed, so that none is ever half-written.

    Scripts (first line ``#!``) are made executable. Raises InputError if one cannot be written; then none is renamed.
    """
    prepare_folder(folder, option)
    for name in files:
        if is_there(folder / name) and not (folder / name).is_file():
            raise InputError(f"{option} {folder}: cannot write {name}: what has that name is not a file")
    staged: list[tuple[Path, Path]] = []
    try:
        for name, text in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.append((_write_beside(target, text), target))
        for temporary, target in staged:
            temporary.replace(target)
    except OSError as error:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)
        raise InputError(f"{option} {folder}: cannot write {error.filename}: {error.strerror}") from None
    return [target for _, target in staged]


def write_file(path: Path, text: str | bytes, option: str = "--out") -> None:
    """Write one file whole or not at all."""
    prepare_file(path, option)
    write_files(path.parent, {path.name: text}, option)


def _write_beside(target: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod((0o777 if data.startswith(b"#!") else 0o666) & ~umask)
    return temporary

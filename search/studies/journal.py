"""The journal of a study: every finished point, one line of JSON each, on the disk before the next is counted.

A line that a kill cut short is dropped when the journal is opened again; a finished point is never solved twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from shardwise.hardware_profiles.errors import InputError

NAME = "points.jsonl"
_FORMAT = "shardwise-study-1"


class Journal:
    """Rows of finished points by key, in a file that only one process writes at a time."""

    def __init__(self, path: Path, stream: IO[bytes], rows: dict[str, dict[str, Any]]) -> None:
        self.path, self.rows, self._stream = path, rows, stream

    def add(self, row: dict[str, Any]) -> None:
        """Write a finished point down; it is on the disk when this returns."""
        self._stream.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.rows[row["key"]] = row


@contextmanager
def open_journal(folder: Path, version: str) -> Iterator[Journal]:
    """The journal in a folder, made there if need be.

    Rows of another version of shardwise do not count: its answers may differ. Raises InputError for a folder that
    another process is writing to, or a file that is no journal.
    """
    path = folder / NAME
    try:
        stream = path.open("a+b")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    with stream:
        _lock(stream, path)
        stream.seek(0)
        whole, torn = _read(stream.read(), path, version)
        if torn or whole is None:
            stream.truncate(torn if whole is not None else 0)
        if not whole:
            stream.write(json.dumps({"format": _FORMAT, "version": version}).encode() + b"\n")
            stream.flush()
        yield Journal(path, stream, {row["key"]: row for row in whole or () if "key" in row})


def _read(data: bytes, path: Path, version: str) -> tuple[list[dict[str, Any]] | None, int]:
    """The whole lines, and where a torn one begins (0: none). None where the rows are another version's."""
    end = data.rfind(b"\n") + 1
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data[:end].splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        wanted = "format" if number == 1 else "key"
        if not isinstance(row, dict) or wanted not in row or (number == 1 and row["format"] != _FORMAT):
            raise InputError(f"{path}: line {number}: not a line of a study's journal; expected another --out folder")
        rows.append(row)
    if rows and rows[0].get("version") != version:
        return None, 0
    return rows, end if end < len(data) else 0


def _lock(stream: IO[bytes], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks here: two studies in one folder are then the user's to avoid
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"{path}: another study is running in this folder; expected one at a time") from None

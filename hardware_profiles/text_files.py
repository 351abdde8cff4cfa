"""Reading a text file that a person named: every way it can be unusable becomes one line that names it."""

from __future__ import annotations

import stat
from pathlib import Path

from .errors import InputError


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """The whole of a regular UTF-8 file (a byte order mark is dropped); ``what`` names the wanted file in errors.

    A pipe or a device is refused unread: it may never end, and a second look at it would find nothing.
    """
    shown = str(path) if str(path).isprintable() else repr(str(path))
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{shown}: is a directory; expected {what}")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{shown}: not a regular file; expected {what}")
        if status.st_size > most_bytes:
            raise InputError(f"{shown}: {status.st_size} bytes; expected {what} of at most {most_bytes} bytes")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}; expected {what}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{shown}: byte {error.start} is not UTF-8; expected {what}") from None
    except InputError:
        raise
    except ValueError as error:  # a zero byte in the name
        raise InputError(f"{shown}: not a file name: {error}; expected {what}") from None


def is_there(path: Path) -> bool:
    """Whether the path exists. A text that no path can be, too long or with a zero byte, is not there."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def whole_number(text: str) -> int | None:
    """The number that up to 18 digits (0 to 9 only: ``²`` is a digit to Python) spell, None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None

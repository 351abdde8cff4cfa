"""Where the trials of a refinement are kept: in memory, an Optuna journal file, SQLite, or any database by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.hardware_profiles.errors import InputError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_JOURNAL = ".log"
_LOCK_GRACE_S = 10
"""A lock file this old belongs to a worker that was killed: no write takes as long."""

_WAIT_S = 60
"""How long a worker waits for another that writes to the same SQLite file."""


def open_storage(text: str | None) -> BaseStorage:
    """The storage that ``text`` names; None keeps trials in memory.

    ``journal:FILE`` and ``journal:///FILE``, or a path that ends in ``.log``, is an Optuna journal file, which many
    workers may share also over NFS; anything else is the URL of a database (``sqlite:///FILE``, ``postgresql://…``).
    Raises InputError, one line, for what cannot be opened.
    """
    from optuna.storages import InMemoryStorage

    if text is None:
        return InMemoryStorage()
    with refusals(text):
        path = journal_path(text)
        return _database(text) if path is None else _journal(path)


def check_storage(text: str | None) -> None:
    """Refuse a storage that cannot be opened before anything long runs. Raises InputError, one line."""
    if text is not None:
        open_storage(text)


def journal_path(text: str) -> Path | None:
    """The file of a journal, None for URLs of databases. Raises InputError where it is neither."""
    scheme, colon, rest = text.partition(":")
    if scheme == "journal" and colon:
        rest = rest.removeprefix("//")
        if not rest or rest.endswith("/"):
            raise InputError(f"--storage {text}: expected the name of a file after journal:")
        return Path(rest)
    if "://" in text:
        return None
    if text.endswith(_JOURNAL):
        return Path(text)
    raise InputError(
        f"--storage {shown(text)}: expected journal:FILE, a path that ends in {_JOURNAL}, or the URL of a database "
        "such as sqlite:///FILE"
    )


def _journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    if not path.parent.is_dir():
        raise InputError(f"--storage {path}: no such folder: {path.parent}")
    if path.exists() and not path.is_file():
        raise InputError(f"--storage {path}: expected a file")
    lock = JournalFileOpenLock(str(path), grace_period=_LOCK_GRACE_S)
    _drop_torn_line(path, lock)
    try:
        return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"--storage {path}: is not an Optuna journal file") from error


def _drop_torn_line(path: Path, lock: object) -> None:
    """Cut off what a killed worker left of its last line, which would spoil every line after it."""
    from optuna.storages.journal._file import get_lock_file

    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) == b"\n":
            return
    with get_lock_file(lock), path.open("r+b") as stream:  # type: ignore[arg-type]
        content = stream.read()
        if content and not content.endswith(b"\n"):
            if not content.startswith(b'{"'):
                raise InputError(f"--storage {path}: is not an Optuna journal file")
            stream.truncate(content.rfind(b"\n") + 1)


def _database(url: str) -> BaseStorage:
    from optuna.storages import RDBStorage

    sqlite = url.startswith("sqlite")
    return RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _WAIT_S}} if sqlite else None)


@contextmanager
def refusals(text: str | None) -> Iterator[None]:
    """What goes wrong with a storage, opened or in use, as one line of an InputError."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    name = shown(text or "in memory")
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        module = getattr(_root(error), "name", None) or "the driver of that database"
        raise InputError(f"--storage {name}: its driver is not installed: pip install {module}") from error
    except (SQLAlchemyError, optuna.exceptions.OptunaError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"--storage {name}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The root of an error in one line without the statement that a database was given."""
    error = _root(error)
    text = str(getattr(error, "orig", None) or error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return shown(first)[:200]


def _root(error: BaseException) -> BaseException:
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return error


def shown(text: str) -> str:
    """A URL or message without the password in it."""
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", text)

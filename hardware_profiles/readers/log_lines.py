"""Lines of a log without what launchers, terminals and web pages put around and into them."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import InputError
from ..text_files import read_text

MAX_LOG_BYTES = 64 * 1024 * 1024

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
_TAGS = re.compile(r"\[(?:[\w.+-]*@)?\d+(?:,\d+)?\]<std\w*>:?")
_RANK_LABELS = re.compile(r"\[\d+\]")
_BLANKS = str.maketrans({"\u00a0": " ", "\u2007": " ", "\t": " ", "\u2502": " ", "|": " "})


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a log, cleaned. Raises InputError that names the file where it cannot be read or is empty."""
    text = read_text(path, what, MAX_LOG_BYTES)
    if not text.strip():
        raise InputError(f"{path}: is empty; expected {what}")
    return [clean(line) for line in text.splitlines()]


def clean(line: str) -> str:
    """Without colours and mpirun's tags (``[1,0]<stdout>:``), which may stand anywhere; odd blanks made plain."""
    return _TAGS.sub(" ", _ANSI.sub("", line)).translate(_BLANKS).rstrip()


def without_rank_labels(line: str) -> str:
    """A table row without ``[0]``, which some launchers put before every write, so also inside a row."""
    return _RANK_LABELS.sub(" ", line)


def where(path: Path | str, line: int) -> str:
    """``FILE: line N``, as every refusal of a row begins."""
    return f"{path}: line {line}"

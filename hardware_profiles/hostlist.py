"""Host lists as schedulers write them: ``gpu[001-128,130],login``, any number of bracket groups, zeros kept."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from .errors import InputError

MOST_HOSTS = 1 << 18
"""Hosts that one list may name: above the largest job with four accelerators a host."""

_NAME = re.compile(r"[^\s,\[\]=#]*")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_TAIL = re.compile(r"(.*?)(\d*)", re.DOTALL)


def expand(text: str, most: int = MOST_HOSTS) -> tuple[str, ...]:
    """Every host that the list names, in its order, repeats included.

    Members between commas may be empty; ``a[1-2]b[3-4]`` is a1b3, a1b4, a2b3, a2b4, and ``n[08-10]`` keeps its zeros.
    Raises InputError naming the member that is wrong, or a list of more than ``most`` hosts before making it.
    """
    hosts: list[str] = []
    for member in _members(text):
        parts = _parts(member)
        count = math.prod(
            sum(last - first + 1 for first, last, _ in part) for part in parts if not isinstance(part, str)
        )
        if len(hosts) + count > most:
            raise InputError(f"host list {_short(text)}: more than {most} hosts; expected at most that many")
        choices = [[part] if isinstance(part, str) else list(_numbers(part)) for part in parts]
        hosts += ("".join(pieces) for pieces in itertools.product(*choices))
    return tuple(hosts)


def compress(hosts: Iterable[str]) -> str:
    """The shortest list of ranges that ``expand`` turns back into the same hosts in the same order."""
    out: list[str] = []
    for (prefix, numbered), run in itertools.groupby(hosts, key=_prefix):
        if not numbered:
            out += run
            continue
        numbers = [host[len(prefix) :] for host in run]
        ranges = [first if first == last else f"{first}-{last}" for first, last in _runs(numbers)]
        single = len(ranges) == 1 and "-" not in ranges[0]
        out.append(prefix + ranges[0] if single else f"{prefix}[{','.join(ranges)}]")
    return ",".join(out)


def natural(host: str) -> tuple[tuple[str, int, str], ...]:
    """Sort key that puts n2 before n10, as a scheduler's own order of nodes does."""
    return tuple((word, int(number or -1), number) for word, number in re.findall(r"(\D*)(\d{0,18})", host))


def _members(text: str) -> Iterator[str]:
    """The parts between commas outside brackets, empty ones left out."""
    depth = start = 0
    for at, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if depth not in (0, 1):
            raise InputError(f"host list {_short(text)}: brackets do not match at character {at + 1}")
        if character == "," and not depth:
            yield from filter(None, (text[start:at].strip(),))
            start = at + 1
    if depth:
        raise InputError(f"host list {_short(text)}: a bracket is never closed")
    yield from filter(None, (text[start:].strip(),))


_Ranges = list[tuple[int, int, int]]
"""First and last number, and the digits to pad to."""


def _parts(member: str) -> list[str | _Ranges]:
    """Texts and bracket groups of one member, in order."""
    parts: list[str | _Ranges] = []
    for at, piece in enumerate(re.split(r"[\[\]]", member)):
        if at % 2:
            parts.append([_range(member, text) for text in piece.split(",")])
        elif not _NAME.fullmatch(piece):
            raise InputError(f"host list: {_short(member)}: expected a name without spaces, '=' or '#'")
        else:
            parts.append(piece)
    return parts


def _range(member: str, text: str) -> tuple[int, int, int]:
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"host list: {_short(member)}: {_short(text)} in brackets: expected numbers such as 7 or 1-16")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise InputError(f"host list: {_short(member)}: range {text.strip()} runs backwards")
    return int(first), int(last), len(first)


def _numbers(ranges: _Ranges) -> Iterator[str]:
    for first, last, width in ranges:
        yield from (str(number).zfill(width) for number in range(first, last + 1))


def _prefix(host: str) -> tuple[str, bool]:
    """The host without its last digits, and whether it has any; a number too long to count with is part of the name."""
    match = _TAIL.fullmatch(host)
    assert match is not None
    return (match[1], True) if 0 < len(match[2]) <= 18 else (host, False)


def _runs(numbers: Sequence[str]) -> list[tuple[str, str]]:
    """First and last of each run of numbers that a range with the first one's width gives."""
    runs: list[tuple[str, str]] = []
    for text in numbers:
        if runs:
            first, last = runs[-1]
            if text == str(int(last) + 1).zfill(len(first)):
                runs[-1] = (first, text)
                continue
        runs.append((text, text))
    return runs


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")

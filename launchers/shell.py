"""Shell text that means exactly what it was given: quoting, arrays, comments."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 110


def array(name: str, arguments: Sequence[str]) -> str:
    """A bash array assignment, one flag with its values per line."""
    if not arguments:
        return f"{name}=()"
    return f"{name}=(\n" + "".join(f"  {line}\n" for line in _by_flag(arguments)) + ")"


def _by_flag(arguments: Sequence[str]) -> Iterable[str]:
    line: list[str] = []
    for argument in arguments:
        if argument.startswith("--") and line:
            yield shlex.join(line)
            line = []
        line.append(argument)
    yield shlex.join(line)


def comment(text: str) -> str:
    """``# `` lines, wrapped; characters that could end the comment are taken out."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return "\n".join(textwrap.wrap(clean, WIDTH, initial_indent="# ", subsequent_indent="#   ")) or "#"


def heading(text: str) -> str:
    """A rule with a title."""
    return f"# ---- {text} ".ljust(WIDTH, "-")


def file_of(blocks: Iterable[str]) -> str:
    """Blocks with an empty line between them and one line end at the end."""
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"

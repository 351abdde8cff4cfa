"""From the text of a launch script to ``--flag value`` pairs, without running anything.

Understood: comments, line continuations, quotes, arrays (``ARGS=( … )``), strings of arguments, simple assignments and
``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``$((arithmetic))``. What only a shell could know (positional parameters,
command substitution, branches) is left unexpanded, and :class:`Flags` refuses it where it would shape the model.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shardwise.hardware_profiles.errors import InputError

MAX_TEXT: Final = 4 * 1024 * 1024
_ASSIGNMENT: Final = re.compile(r"^([A-Za-z_]\w*)\+?=(.*)$", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}|\$([A-Za-z_]\w*)")
_ARITHMETIC: Final = re.compile(r"\$\(\(([^()$`]*(?:\([^()$`]*\)[^()$`]*)*)\)\)")
_ARRAY: Final = re.compile(r"^\$\{[A-Za-z_]\w*\[[@*]\]\}$")
_SCALAR: Final = re.compile(r"^\$(\w+|\{\w+\}|[@*])$")
_LINE_END: Final = "\n"
_OPERATORS: Final = frozenset({_LINE_END, "|", "||", "&", "&&", ";"})
_OPENERS: Final = frozenset({"if", "for", "while", "until", "case"})
_CLOSERS: Final = frozenset({"fi", "done", "esac"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One ``--flag`` with the words behind it; ``conditional`` when it stands inside a shell branch or loop."""

    name: str
    words: tuple[str, ...]
    conditional: bool = False
    line: int = 0
    """Line of the text, from 1; 0 in an argument list."""
    shown: str = ""
    """How a file that is no command line spells it; empty for ``--name``."""

    @property
    def value(self) -> str:
        """The words as one string; empty for a switch."""
        return " ".join(self.words)

    @property
    def spelled(self) -> str:
        """The flag as its file spells it, for messages."""
        return self.shown or f"--{self.name}"


Words = list[tuple[str, bool, int]]
"""Words with whether they stand inside a branch, and their line."""


def read_flags(
    text: str | Sequence[str],
    source: str,
    needs_value: Callable[[str], bool],
    variables: Mapping[str, str] | None = None,
) -> tuple[list[Flag], list[str]]:
    """All flags in the order of the text, and the variables that could not be expanded.

    ``needs_value`` says whether a flag takes its value from the next line when its own line ends. ``variables`` win
    over what a script assigns. Raises InputError for a text that is not a script or an argument list.
    """
    words = read_words(text, source, variables) if isinstance(text, str) else [(str(w), False, 0) for w in text]
    return _group(words, needs_value)


def read_words(text: str, source: str, variables: Mapping[str, str] | None = None) -> Words:
    """Every word of a script that may be an argument. Raises InputError as ``read_flags`` does."""
    listed = _as_list(text)
    return _Script(text, source, variables or {}).words() if listed is None else [(w, False, 0) for w in listed]


def read_variables(text: str, source: str, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a script assigns in plain sight, expanded. Raises InputError as ``read_flags`` does."""
    script = _Script(text, source, variables or {})
    script.words()
    return script.known()


def _as_list(text: str) -> list[str] | None:
    """The strings of a Python or JSON list of arguments, None when the text is not one."""
    stripped = text.strip()
    if not stripped.startswith("[") or not stripped.endswith("]"):
        return None
    try:
        value = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [str(v) for v in value] if isinstance(value, list) else None


def _group(words: Words, needs_value: Callable[[str], bool]) -> tuple[list[Flag], list[str]]:
    """Put the words behind each flag together; both ``--a b`` and ``--a=b``. A line's end or an operator ends them."""
    flags: list[Flag] = []
    unexpanded: list[str] = []
    closed = True
    for word, conditional, line in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            name = name[2:].rstrip(":").replace("_", "-").lower()
            flags.append(Flag(name, (value,) if equals else (), conditional, line))
            closed = bool(equals)
        elif re.match(r"^-[A-Za-z]", word):
            closed = True
        elif word in _OPERATORS or ">" in word:
            closed = not (word == _LINE_END and flags and not flags[-1].words and needs_value(flags[-1].name))
        elif _ARRAY.match(word) or (
            _SCALAR.match(word) and (closed or not needs_value(flags[-1].name) or flags[-1].words)
        ):
            unexpanded += [] if _ARRAY.match(word) else [word]
        elif word and not closed:
            last = flags[-1]
            flags[-1] = replace(last, words=(*last.words, word))
    return flags, unexpanded


class _Script:
    """The words of a script, with the variables that it assigns in plain sight."""

    def __init__(self, text: str, source: str, variables: Mapping[str, str]) -> None:
        if len(text) > MAX_TEXT:
            raise InputError(f"{source}: {len(text)} characters: expected a launch script of at most {MAX_TEXT}")
        if "\0" in text:
            raise InputError(f"{source}: a NUL character: expected the text of a launch script")
        self._source = source
        self._text = text
        self._given = dict(variables)
        self._variables: dict[str, str | None] = dict(variables)
        self._depth = 0

    def words(self) -> Words:
        """Every word that may be an argument, whether it stands inside a branch, and its line."""
        found: Words = []
        for number, line in self._logical_lines():
            for word in self._line_words(line):
                if word == _CONTINUED:
                    number += 1
                else:
                    found.append((word, self._depth > 0, number))
            found.append((_LINE_END, False, number))
        return [(self._expand(word), inside, number) for word, inside, number in found]

    def known(self) -> dict[str, str]:
        """The variables that were assigned in plain sight."""
        return {name: self._expand(value) for name, value in self._variables.items() if value is not None}

    def _logical_lines(self) -> list[tuple[int, list[str]]]:
        """Lines as lists of words, each with its number; continued lines and quotes over several lines are joined."""
        joined = re.sub(r"\\[ \t]*(?:#[^\n]*)?\n", f" {_CONTINUED} ", self._text.replace("\r\n", "\n"))
        lines: list[tuple[int, list[str]]] = []
        pending = ""
        number = first = 1
        for raw in joined.split("\n"):
            first = first if pending else number
            number += 1 + raw.count(_CONTINUED)
            pending = f"{pending}\n{raw}" if pending else raw
            try:
                lines.append((first, shlex.split(_protect(pending), comments=True)))
                pending = ""
            except ValueError:
                continue
        if pending:
            # An apostrophe in prose or an unfinished quote: read that part word by word.
            lines.append((first, pending.replace('"', " ").replace("'", " ").split()))
        return lines

    def _line_words(self, line: list[str]) -> list[str]:
        words: list[str] = []
        if line and line[0] in _OPENERS:
            self._depth += 1
        for word in line:
            if word.rstrip(";") in _CLOSERS and self._depth:
                self._depth -= 1
            assignment = _ASSIGNMENT.match(word)
            if assignment and not word.startswith("-"):
                words += self._assign(*assignment.groups())
            else:
                words.append(_unbalanced(word))
        return words

    def _assign(self, name: str, value: str) -> list[str]:
        """Remember a variable; the arguments inside an array or a string of arguments are handed back."""
        if value.startswith("("):
            return [_unbalanced(value[1:])]
        if "--" in value:
            self._variables[name] = ""
            return _split(value)
        if name in self._given:
            return []
        value = self._without_itself(name, value)
        # Inside a branch, or assigned twice, only the shell knows which value holds.
        known = self._depth == 0 and self._variables.get(name, value) == value
        self._variables[name] = value if known else None
        return []

    def _without_itself(self, name: str, value: str) -> str:
        """``TP=${TP:-8}`` leaves the variable as it was before, or takes the default."""

        def before(match: re.Match[str]) -> str:
            if match.group(1) != name or match.group(2) is None:
                return match.group(0)
            return self._variables.get(name) or match.group(2)

        return _REFERENCE.sub(before, value)

    def _expand(self, word: str) -> str:
        for _ in range(8):
            expanded = _ARITHMETIC.sub(self._arithmetic, _REFERENCE.sub(self._reference, word))
            if expanded == word:
                break
            word = expanded
        return word.replace(_SPACE, " ").replace(_CONTINUED, "")

    def _reference(self, match: re.Match[str]) -> str:
        name, default = match.group(1) or match.group(3), match.group(2)
        value = self._variables.get(name)
        if value is None and name not in self._variables and default is not None:
            value = default
        return match.group(0) if value is None else value

    def _arithmetic(self, match: re.Match[str]) -> str:
        names = re.sub(r"[A-Za-z_]\w*", lambda m: self._variables.get(m.group(0)) or m.group(0), match.group(1))
        value = evaluate_integer(names.replace(_SPACE, " "))
        return match.group(0) if value is None else str(value)


_SPACE: Final = "\ue000"
"""Stands for a space inside ``$(( … ))`` while words are split."""


_CONTINUED: Final = "\ue001"
"""Stands for the end of a line that the next one continues."""


def _protect(line: str) -> str:
    return _ARITHMETIC.sub(lambda m: m.group(0).replace(" ", _SPACE), line)


def _split(value: str) -> list[str]:
    words: list[str] = []
    try:
        for number, line in enumerate(value.split(_LINE_END)):
            words += [*([_CONTINUED] if number else []), *shlex.split(line, comments=True)]
    except ValueError:  # a quote over several lines
        try:
            return shlex.split(value, comments=True)
        except ValueError:
            return value.split()
    return words


def _unbalanced(word: str) -> str:
    """Drop the bracket that closes an array, but not one that belongs to the word."""
    while word.endswith(")") and word.count(")") > word.count("("):
        word = word[:-1]
    return "" if word == "(" else word


def evaluate_integer(text: str) -> int | None:
    """Whole-number arithmetic with ``+ - * / ( )``; None for anything else."""
    if len(text) > 200 or not re.fullmatch(r"[\d\s+\-*/()]+", text) or "**" in text:
        return None
    try:
        return _integer(ast.parse(text.strip().replace("//", "/"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _integer(node.left), _integer(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left // right
    raise ValueError("not arithmetic")


def evaluate_pattern(text: str, limit: int = 10_000) -> list[int] | None:
    """A list such as ``([0]*3+[1]*58)`` or ``[0, 1, 1]``; None for anything else. Never more than ``limit`` entries."""
    if len(text) > 16 * limit or not re.fullmatch(r"[\d\s+*,()\[\]]+", text):
        return None
    try:
        value = _pattern(ast.parse(text.strip(), mode="eval").body, limit)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list) else None


def _pattern(node: ast.expr, limit: int) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        entries = [_pattern(item, limit) for item in node.elts]
        whole = [entry for entry in entries if isinstance(entry, int)]
        return whole if len(whole) == len(entries) else _no()
    if not isinstance(node, ast.BinOp):
        return _no()
    left, right = _pattern(node.left, limit), _pattern(node.right, limit)
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right if len(left) + len(right) <= limit else _no()
    if isinstance(node.op, ast.Mult) and isinstance(left, int) != isinstance(right, int):
        count, items = (left, right) if isinstance(left, int) else (right, left)
        if isinstance(count, int) and isinstance(items, list) and len(items) * count <= limit:
            return items * count
    return _no()


def _no() -> list[int]:
    raise ValueError("not a layer pattern")

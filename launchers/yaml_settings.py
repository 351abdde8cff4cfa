"""Keys of a YAML launch file as typed values, each kept with its line, so that every refusal can name it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import whole_number

from .parsed import Option

_MOST: Final = 10_000
_DEEPEST: Final = 20
_OFF: Final = (None, False, "", "no", "none", "false", "False")


class YamlSettings:
    """The keys of one file, nested ones joined by dots; what was asked for is ``read``, tables judge the rest."""

    def __init__(self, file: str, text: str) -> None:
        """Raises InputError for a text that is no YAML mapping, for a key given twice and for one that is no word."""
        self._file = file
        self._found: dict[str, tuple[Any, int]] = {}
        self._read: set[str] = set()
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            for key, node in _leaves(root, (), file):
                self._add(key, _value(node), node.start_mark.line + 1)
        except yaml.YAMLError as error:
            raise InputError(f"{file}: not YAML: {' '.join(str(error).split())}") from None

    def _add(self, key: str, value: Any, line: int) -> None:
        if key in self._found:
            raise InputError(f"{self._file}:{line}: {key} is given twice, before on line {self._found[key][1]}")
        if len(self._found) >= _MOST:
            raise InputError(f"{self._file}: more than {_MOST} keys: expected a launch file")
        self._found[key] = (value, line)

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[str]:
        """Every key, in the order of the file."""
        return iter(self._found)

    def where(self, key: str) -> str:
        """The key with its file, line and value, for messages."""
        if key not in self._found:
            return f"{self._file}: {key} is missing"
        value, line = self._found[key]
        return f"{self._file}:{line} {key}: {_shown(value)}"

    def fail(self, key: str, expected: str) -> InputError:
        """The error of a value that cannot be used."""
        return InputError(f"{self.where(key)}: expected {expected}")

    def value(self, key: str) -> Any:
        """The plain value, None where the key is absent or null."""
        self._read.add(key)
        return self._found.get(key, (None, 0))[0]

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int | None:
        """A whole number. Raises InputError naming file, line, key and value."""
        value = self.value(key)
        if value is None:
            return default
        text = str(value).strip()
        number = whole_number(text) if not isinstance(value, bool) else None
        if number is None or number < minimum:
            raise self.fail(key, f"a whole number of at least {minimum}")
        return number

    def word(self, key: str, default: str = "", allowed: Sequence[str] = ()) -> str:
        """A word, one of ``allowed`` in any case where given. Raises InputError naming file, line, key and value."""
        value = self.value(key)
        if value is None:
            return default
        text = str(value)
        same = [w for w in allowed if w.lower() == text.lower()]
        if allowed and not same:
            raise self.fail(key, f"one of {', '.join(allowed)}")
        return same[0] if same else text

    def switch(self, key: str, default: bool = False) -> bool:
        """A yes or no. Raises InputError naming file, line, key and value."""
        value = self.value(key)
        if value is None:
            return default
        text = str(value).lower()
        if text not in ("true", "false", "yes", "no", "1", "0"):
            raise self.fail(key, "true or false")
        return text in ("true", "yes", "1")

    def sort(
        self, neutral: Collection[str], unmodelled: Mapping[str, str], known: Collection[str], framework: str
    ) -> dict[str, tuple[Option, ...]]:
        """Every key as ``read``, ``neutral``, ``unmodelled`` (with the reason) or ``unknown`` (with a near name).

        A name of ``neutral`` or ``unmodelled`` that ends in a dot stands for everything below it. What is not modelled
        and is switched off is neutral. ``known`` are all names of the framework, for hints.
        """
        lists: dict[str, list[Option]] = {"read": [], "neutral": [], "unmodelled": [], "unknown": []}
        for key, (value, line) in self._found.items():
            kind, note = self._judge(key, value, neutral, unmodelled)
            if kind == "unknown":
                note = near_key(key, known, framework)
            lists[kind].append(Option(key, _shown(value), self._file, line, note))
        return {kind: tuple(found) for kind, found in lists.items()}

    def _judge(self, key: str, value: Any, neutral: Collection[str], unmodelled: Mapping[str, str]) -> tuple[str, str]:
        reason = next((why for name, why in unmodelled.items() if _covers(name, key)), None)
        if reason is not None:
            return ("neutral", "") if value in _OFF else ("unmodelled", reason)
        if key in self._read:
            return "read", ""
        return ("neutral", "") if any(_covers(name, key) for name in neutral) else ("unknown", "")


def near_key(key: str, known: Collection[str], framework: str) -> str:
    """That a framework has no such key, with the nearest that it has."""
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.7)
    return f"no key of {framework}{f': did you mean {close[0]}?' if close else ''}"


def _covers(name: str, key: str) -> bool:
    return key == name or (name.endswith(".") and (key.startswith(name) or key == name[:-1]))


def _leaves(node: Any, path: tuple[str, ...], file: str) -> Iterator[tuple[str, Any]]:
    """Keys joined by dots with the nodes of their values; lists are values."""
    if len(path) > _DEEPEST:
        raise InputError(f"{file}: more than {_DEEPEST} levels of keys: expected a launch file")
    if not isinstance(node, yaml.MappingNode):
        if not path:
            raise InputError(f"{file}: expected a YAML mapping of settings")
        yield ".".join(path), node
        return
    if path and not node.value:
        yield ".".join(path), node
    for key, inner in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"{file}:{key.start_mark.line + 1}: expected a word as key")
        yield from _leaves(inner, (*path, key.value), file)


def _value(node: Any) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        # Lists are shown, not used: their text is enough.
        return yaml.serialize(node).strip() if node.value else []
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node, deep=True)
    except (ValueError, yaml.YAMLError):
        return node.value
    return node.value if _too_large(value) else value


def plain_value(text: str) -> Any:
    """What a word of a command line means as YAML; the word itself where it is none that a setting could have."""
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            return text
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if _too_large(value) else value


def _too_large(value: Any) -> bool:
    """Whether a whole number in the value has more digits than Python writes."""
    if isinstance(value, dict):
        return any(map(_too_large, (*value, *value.values())))
    if isinstance(value, list):
        return any(map(_too_large, value))
    return isinstance(value, int) and value.bit_length() > 99


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
    return json.dumps(value, default=str)

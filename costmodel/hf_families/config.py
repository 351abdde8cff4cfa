"""A checked view of a ``config.json``: typed getters, one-line errors, and a list of the keys nobody understood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from shardwise.hardware_profiles.errors import InputError

from .harmless import is_harmless, may_shape_the_model

MAX_INTEGER: Final = 10**12
"""Larger sizes are typing errors: no tensor dimension of any model comes near."""
MAX_LAYERS: Final = 10_000
"""More layers than any real model; keeps a wrong count from filling the memory."""

_REQUIRED: Final = object()


def one_line(text: str, limit: int = 400) -> str:
    """The text without line breaks and control characters, and not too long."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def show(value: object, limit: int = 60) -> str:
    """The value as one short line for an error message."""
    return one_line(repr(value), limit)


class Config:
    """One JSON object of a model description.

    Every key that a family reads or declares irrelevant is remembered; :meth:`finish` judges the rest. A null is
    the same as a missing key, as it is for the optional keys of the reference classes.
    """

    def __init__(self, data: dict[str, Any], source: str, prefix: str = "") -> None:
        self.data = data
        self.source = one_line(source)
        self.prefix = prefix
        self.assumptions: list[str] = []
        self._known: set[str] = set()

    # ---- errors and notes

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raise InputError naming the file, the key, its value and what was expected."""
        state = show(self.data[key]) if key in self.data else "missing"
        raise InputError(f"{self.source}: {one_line(self.prefix + key, 120)} = {state}: expected {expected}")

    def assume(self, note: str) -> None:
        """Record something the file does not say."""
        if note not in self.assumptions:
            self.assumptions.append(note)

    def ignore(self, *keys: str) -> None:
        """Declare keys that this family knows and that do not shape the model."""
        self._known.update(keys)

    def reject(self, key: str, why: str) -> None:
        """Refuse a switch that is known but not supported when it is on."""
        self._known.add(key)
        if self.data.get(key) not in (None, False, 0, 0.0, [], {}, ""):
            self.fail(key, why)

    # ---- getters

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.data.get(key) is not None

    def integer(self, *keys: str, default: Any = _REQUIRED, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        """The integer under the first of ``keys`` that is present; several that disagree are an error.

        Without a ``default`` (or with None) the key is required.
        """
        value = self.optional_integer(*keys, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is _REQUIRED or default is None:
            self.fail(keys[0], f"an integer of at least {minimum}")
        self.assume(f"{self.prefix}{keys[0]} is not given: {default} (class default)")
        return int(default)

    def optional_integer(self, *keys: str, minimum: int = 1, maximum: int = MAX_INTEGER) -> int | None:
        """As :meth:`integer`, None when every key is missing or null."""
        self._known.update(keys)
        found: tuple[str, int] | None = None
        for key in keys:
            if not self.has(key):
                continue
            value = self._whole(key, minimum, maximum)
            if found and found[1] != value:
                self.fail(key, f"the same value as {found[0]} = {found[1]}")
            found = found or (key, value)
        return found[1] if found else None

    def _whole(self, key: str, minimum: int, maximum: int) -> int:
        return self._check_whole(key, self.data[key], minimum, maximum)

    def _check_whole(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            limit = f"{minimum} to {maximum}" if maximum < MAX_INTEGER else f"at least {minimum} (at most 10^12)"
            self.fail(key, f"an integer, {limit}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive finite number."""
        self._known.add(key)
        if not self.has(key):
            return default
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float(MAX_INTEGER):
            self.fail(key, "a positive finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; the class default when missing or null."""
        self._known.add(key)
        if not self.has(key):
            return default
        value = self.data[key]
        if not isinstance(value, bool):
            self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None, allowed: Iterable[str] | None = None) -> str:
        """A string, one of ``allowed`` where given."""
        self._known.add(key)
        value = self.data.get(key)
        if value is None and default is not None:
            return default
        choice = tuple(allowed or ())
        if not isinstance(value, str) or (choice and value not in choice):
            self.fail(key, "one of " + ", ".join(choice) if choice else "a string")
        return value

    def section(self, key: str) -> Config | None:
        """A nested object as its own Config (finish it separately), None when missing."""
        self._known.add(key)
        if not self.has(key):
            return None
        value = self.data[key]
        if not isinstance(value, dict):
            self.fail(key, "an object")
        child = Config(value, self.source, f"{self.prefix}{key}.")
        child.assumptions = self.assumptions
        return child

    def items(self, key: str, length: int | None = None) -> list[Any] | None:
        """A list, of the given length where one is given; None when missing or null."""
        self._known.add(key)
        if not self.has(key):
            return None
        value = self.data[key]
        if not isinstance(value, list):
            self.fail(key, "a list" if length is None else f"a list of {length} entries")
        if length is not None and len(value) != length:
            self.fail(key, f"a list of {length} entries, one a layer; it has {len(value)}")
        return value

    def integers(self, key: str, length: int | None = None, minimum: int = 0) -> list[int] | None:
        """A list of integers; None when missing or null."""
        values = self.items(key, length)
        if values is None:
            return None
        return [self._check_whole(key, v, minimum, MAX_INTEGER) for v in values]

    def names(self, key: str, allowed: Iterable[str], length: int | None = None) -> list[str] | None:
        """A list of strings out of ``allowed``; None when missing or null."""
        values = self.items(key, length)
        choice = tuple(allowed)
        for value in values or ():
            if value not in choice:
                self.fail(key, f"entries out of {', '.join(choice)}; {show(value)} is not understood")
        return values

    def integer_per_layer(self, key: str, layers: int, default: int, minimum: int = 1) -> list[int]:
        """An integer for every layer: one for all, or a list of one each."""
        if isinstance(self.data.get(key), list):
            return self.integers(key, layers, minimum) or []
        return [self.integer(key, default=default, minimum=minimum)] * layers

    # ---- rules between keys

    def divides(self, part_key: str, part: int, whole_key: str, whole: int) -> None:
        """Require ``part`` to divide ``whole``."""
        if part <= 0 or whole % part:
            self.fail(part_key, f"a divisor of {whole_key} = {whole}")

    def at_most(self, key: str, value: int, bound_key: str, bound: int) -> None:
        """Require ``value <= bound``."""
        if value > bound:
            self.fail(key, f"at most {bound_key} = {bound}")

    def layers(self, *keys: str) -> int:
        """The number of layers."""
        return self.integer(*(keys or ("num_hidden_layers",)), maximum=MAX_LAYERS)

    def tied(self, default: bool) -> bool:
        """Whether embedding and head share their weights; the default belongs to the class."""
        if "tie_word_embeddings" in self.data and not self.has("tie_word_embeddings"):
            self.fail("tie_word_embeddings", "true or false")
        if not self.has("tie_word_embeddings"):
            self.assume(f"tie_word_embeddings is not given: {str(default).lower()} (class default)")
        return self.flag("tie_word_embeddings", default)

    def finish(self) -> None:
        """Judge the keys that nobody read: refuse those that may change shapes, record the others."""
        unread = [k for k in self.data if k not in self._known and not is_harmless(k)]
        for key in unread:
            if self.data[key] in (None, False, 0, 0.0, "", [], {}):
                continue
            if may_shape_the_model(key):
                self.fail(key, "no such key: what it does to the model is not understood")
            self.assume(one_line(f"{self.prefix}{key} is not understood and was taken to change nothing"))

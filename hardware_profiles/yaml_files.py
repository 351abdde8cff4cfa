"""Reading a YAML profile that a person wrote: every way it can be unusable becomes one line that says where and why."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .accelerator import Figure
from .errors import InputError
from .text_files import read_text

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Profiles are a few kilobytes; anything above this is the wrong file."""

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """The safe loader, except that a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping, refusing repeated keys."""
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, str(key_node.value))
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} twice", key_node.start_mark
                )
            seen.add(key)
        built: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return built


def _number_or_date(loader: Any, node: yaml.ScalarNode) -> Any:
    """A whole number or a date; one that is none, or that Python would not write out, is an error with its line."""
    try:
        whole = node.tag.endswith(":int")
        value = loader.construct_yaml_int(node) if whole else loader.construct_yaml_timestamp(node)
        str(value)
    except ValueError as error:
        shown = f"{node.value[:40]}{'…' if len(node.value) > 40 else ''}"
        raise yaml.constructor.ConstructorError(None, None, f"{shown}: {error}", node.start_mark) from None
    return value


for _tag in ("int", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _number_or_date)


def slug(name: str) -> str:
    """What two spellings of one name have in common."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file; ``what`` names the wanted file in errors."""
    try:
        raw = yaml.load(read_text(path, what, MAX_FILE_BYTES), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}: broken YAML{where}: {_short(getattr(error, 'problem', None) or error)}") from None
    except InputError:
        raise
    except (RecursionError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: broken YAML: {_short(error)}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds {type(raw).__name__}; expected {what}, a mapping")
    return raw


def read_head(path: Path, ends: re.Pattern[str]) -> dict[str, Any]:
    """The keys of a shipped file that stand before the line ``ends`` matches: quicker than reading all of it."""
    head: dict[str, Any] = yaml.load(ends.split(path.read_text(encoding="utf-8"), maxsplit=1)[0], _Loader)
    return head


def _short(thing: object, limit: int = 160) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """``key = value: expectation`` of the first problem (unknown keys first: they are usually misspelt wanted ones)."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda e: e["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"] if part != "[key]") or "file"
    if first["type"] == "missing":
        return f"{key}: missing; expected {_described(model, first['loc'])}"
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key{_near_key(model, str(first['loc'][-1]), first['loc'][:-1])}"
    if first["type"] == "value_error":
        return _short(first["msg"].removeprefix("Value error, "))
    expectation = first["msg"].removeprefix("Input should be ")
    return f"{key} = {_short(repr(first['input']), 80)}: expected {_short(expectation)}"


def _described(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    owner = _model_at(model, loc[:-1])
    info = owner.model_fields.get(str(loc[-1]))
    return info.description if info is not None and info.description else f"every {owner.__name__} to have it"


def _near_key(model: type[BaseModel], key: str, parents: tuple[int | str, ...]) -> str:
    fields = _model_at(model, parents).model_fields
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(fields)}"


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    for part in loc:
        info = model.model_fields.get(str(part))
        if info is not None:
            model = next(_models(info.annotation), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


def figures(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, Figure]]:
    """Every ``{value, origin, source}`` below ``part`` with its dotted key."""
    for name in type(part).model_fields:
        yield from _figures_in(getattr(part, name), f"{prefix}{name}")


def _figures_in(value: Any, key: str) -> Iterator[tuple[str, Figure]]:
    number = getattr(value, "value", None)
    if isinstance(value, BaseModel) and number is not None:
        yield key, Figure(float(number), str(getattr(value, "origin", "")), str(getattr(value, "source", "")))
    elif isinstance(value, BaseModel):
        yield from figures(value, f"{key}.")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _figures_in(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _figures_in(inner, f"{key}.{at}")

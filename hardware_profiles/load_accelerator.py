"""Reading accelerator files: by the name of a shipped profile, one of its aliases, or the path of a file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .accelerator import Accelerator, AttentionLaw, Figure, GemmLaw, ScaleUp
from .accelerator_schema import AcceleratorFile, AttentionLawFile
from .errors import InputError, UnknownNameError

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Profiles are a few kilobytes; anything above this is the wrong file."""

_SHIPPED = Path(__file__).parent / "accelerators"
_HEAD_ENDS = re.compile(r"^peak_flops:", re.MULTILINE)
_YAML_SUFFIXES = (".yaml", ".yml", ".json")

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """The safe loader, except that a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping, refusing repeated keys."""
        seen = set()
        for key_node, _ in node.value:
            key = (key_node.tag, str(key_node.value))
            if key in seen:
                problem = f"key {key_node.value!r} twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        built: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return built


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """The accelerator of that name, alias (case, spaces, ``-`` and ``_`` do not matter) or YAML file.

    Raises InputError in one line naming file, key, value and expectation; UnknownNameError with the nearest name.
    """
    if isinstance(name_or_path, Path) or _looks_like_path(name_or_path):
        return _read(Path(name_or_path))
    return _load_shipped(_find(name_or_path))


def list_accelerators() -> tuple[str, ...]:
    """Names of all shipped profiles, sorted."""
    return tuple(sorted({name for name, _ in _index().values()}))


def _looks_like_path(text: str) -> bool:
    return text.lower().endswith(_YAML_SUFFIXES) or (("/" in text or "\\" in text) and _slug(text) not in _index())


def _slug(name: str) -> str:
    """What two spellings of one name have in common."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, Path]]:
    """Slug of every name and alias → (name, file). Reads only the head of each file."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(_SHIPPED.glob("*.yaml")):
        head = yaml.load(_HEAD_ENDS.split(path.read_text(encoding="utf-8"), maxsplit=1)[0], _Loader)
        for alias in (head["name"], *head["aliases"]):
            found[_slug(alias)] = (head["name"], path)
    return found


def _find(name: str) -> Path:
    direct = _SHIPPED / f"{_slug(name)}.yaml"
    if direct.is_file():
        return direct
    index = _index()
    if _slug(name) in index:
        return index[_slug(name)][1]
    near = difflib.get_close_matches(_slug(name), index, n=1, cutoff=0.0)
    hint = f"; did you mean {index[near[0]][0]!r}?" if near else ""
    raise UnknownNameError(f"no accelerator {name!r}{hint} (known: {', '.join(list_accelerators())})")


@lru_cache(maxsize=64)
def _load_shipped(path: Path) -> Accelerator:
    return _read(path)


def _read(path: Path) -> Accelerator:
    raw = _parse(path, _text(path))
    try:
        checked = AcceleratorFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{path}: {_first_problem(error, raw)}") from None
    return _build(checked)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; expected an accelerator YAML file")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InputError(f"{path}: {size} bytes; expected an accelerator file of at most {MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; expected a text file") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{str(path)!r}: not a file name: {error}") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        raw = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{path}: broken YAML{where}: {_one_line(problem)}") from None
    except (RecursionError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: broken YAML: {_one_line(error)}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds {type(raw).__name__}; expected a mapping with name, peak_flops, gemm, …")
    return raw


def _one_line(thing: object, limit: int = 160) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _first_problem(error: ValidationError, raw: Any) -> str:
    """``key = value: expectation`` of the first problem (unknown keys first: they are usually misspelt wanted ones)."""
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda e: e["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"] if part != "[key]") or "file"
    kind = first["type"]
    if kind == "missing":
        return f"{key}: missing; every accelerator file needs it"
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_near_key(str(first['loc'][-1]), first['loc'][:-1])}"
    if kind == "value_error":
        return _one_line(first["msg"].removeprefix("Value error, "))
    expectation = first["msg"].removeprefix("Input should be ")
    return f"{key} = {_one_line(repr(first['input']), 80)}: expected {_one_line(expectation)}"


def _near_key(key: str, parents: tuple[int | str, ...]) -> str:
    model: Any = AcceleratorFile
    for part in parents:
        annotation = model.model_fields[part].annotation if part in getattr(model, "model_fields", {}) else None
        model = next(_models(annotation), model) if annotation is not None else model
    near = difflib.get_close_matches(key, getattr(model, "model_fields", {}), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(getattr(model, 'model_fields', {}))}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


def _figures(part: BaseModel | dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Figure]]:
    """Every ``{value, origin, source}`` below ``part`` with its dotted key."""
    names = list(part) if isinstance(part, dict) else list(type(part).model_fields)
    for name in names:
        value = part[name] if isinstance(part, dict) else getattr(part, name)
        key = f"{prefix}{name}"
        if isinstance(value, BaseModel) and hasattr(value, "origin"):
            yield key, Figure(float(value.value), value.origin, value.source)  # type: ignore[attr-defined]
        elif isinstance(value, BaseModel | dict):
            yield from _figures(value, f"{key}.")


def _attention(law: AttentionLawFile) -> AttentionLaw:
    return AttentionLaw(
        forward=law.forward.value,
        backward=law.backward.value,
        ramp=law.ramp.value,
        causal_skip=law.causal_skip,
        head_dim_ramp=law.head_dim_ramp.value,
        fill=law.fill.value,
        sustained=law.sustained.value,
        softmax_passes_forward=law.softmax_passes_forward.value if law.softmax_passes_forward else 0.0,
        softmax_passes_backward=law.softmax_passes_backward.value if law.softmax_passes_backward else 0.0,
    )


def _build(file: AcceleratorFile) -> Accelerator:
    laws = {
        dtype: GemmLaw(law.efficiency.value, law.m0.value, law.n0.value, law.k0.value, law.overhead_s.value)
        for dtype, law in file.gemm.items()
    }
    up = file.scale_up
    return Accelerator(
        name=file.name,
        vendor=file.vendor,
        peak_flops={dtype: figure.value for dtype, figure in file.peak_flops.items()},
        memory_bytes=file.memory_bytes.value,
        memory_bytes_per_s=file.memory_bytes_per_s.value,
        memory_efficiency=file.memory_efficiency.value,
        host_bytes_per_s=file.host_bytes_per_s.value,
        gemm={str(dtype): law for dtype, law in laws.items()},
        attention={kernel: _attention(law) for kernel, law in file.attention.items()},
        figures=dict(_figures(file)),
        aliases=tuple(file.aliases),
        price_per_hour=file.price_per_hour.value if file.price_per_hour else None,
        sustained={dtype: figure.value for dtype, figure in file.sustained.items()},
        scale_up=ScaleUp(up.name, up.topology, up.domain.value, up.bytes_per_s.value),
        notes=file.notes,
    )

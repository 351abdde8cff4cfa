"""A model's own file before it is read: so that single keys of it can be changed and the rest stays what it was."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there, read_text

from .hf import MAX_FILE_BYTES, model_from_config, parse_json_object
from .model import ModelSpec
from .presets import preset_config

LARGEST_ARGS_BYTES = 1 << 20
"""Megatron argument files are a few kilobytes; anything above this is the wrong file."""

_CONFIG_SUFFIXES = frozenset({".json"})
_ARGS_SUFFIXES = frozenset({".sh", ".txt", ".args", ".conf", ".cfg"})


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a person named as the model: the keys of a ``config.json``, or the text of Megatron-LM arguments."""

    name: str
    origin: str
    """What errors call the file."""
    config: dict[str, Any] | None = None
    arguments: str | None = None

    def value(self, key: str) -> Any:
        """What stands under a key (dots for nested ones); None where there is nothing to be read off."""
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def build(self, changes: Mapping[str, Any]) -> ModelSpec:
        """The model with some keys changed. Raises InputError naming file and key for what is not understood."""
        if self.arguments is not None:
            text = self.arguments
            for key, value in changes.items():
                text = _with_argument(text, key, value, self.origin)
            return ModelSpec.from_megatron_args(text, name=self.name)
        assert self.config is not None
        config = copy.deepcopy(self.config)
        for key, value in changes.items():
            _put(config, key, value, self.origin)
        return replace(model_from_config(config, self.name, self.origin), name=self.name)


def _with_argument(text: str, key: str, value: Any, origin: str) -> str:
    """The text with another value of an argument that it has. Raises InputError where it has none."""
    flag = f"--{key.replace('_', '-')}"
    changed, found = re.subn(rf"(?<!\S){re.escape(flag)}(=|\s+)[^\s\\]+", f"{flag} {value}", text)
    if not found:
        raise InputError(f"{origin}: model.{key}: no {flag} with a value in it; expected one of its arguments")
    return changed


def _put(config: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Replace a key that is there: a new one would be a misspelt one. Raises InputError."""
    *parents, last = key.split(".")
    inside = config
    for part in parents:
        below = inside.get(part)
        if not isinstance(below, dict):
            raise InputError(f"{origin}: model.{key}: no {part!r} in it; expected keys of the config")
        inside = below
    if last not in inside:
        raise InputError(f"{origin}: model.{key}: no such key; it has {', '.join(k for k in inside if k != 'source')}")
    inside[last] = value


def read_model_source(text: str) -> ModelSource:
    """A Hugging Face ``config.json``, a file of Megatron-LM arguments, or a preset, by what a person types.

    Raises InputError naming the file, or the nearest preset.
    """
    path = Path(text)
    if not is_path(text):
        name, config = preset_config(text)
        return ModelSource(name, f"preset {name}", config=config)
    if is_there(path) and path.is_dir():
        raise InputError(f"--model {text}: is a folder; expected a file, such as the config.json in it")
    what = "a config.json or Megatron-LM arguments"
    is_config = path.suffix.lower() in _CONFIG_SUFFIXES
    content = read_text(path, what, MAX_FILE_BYTES if is_config else LARGEST_ARGS_BYTES)
    if is_config or content.lstrip().startswith("{"):
        name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
        return ModelSource(name, str(path), config=parse_json_object(content, str(path)))
    return ModelSource(path.stem, str(path), arguments=content)


def is_path(text: str) -> bool:
    """Whether an argument means a file: it exists, or is spelled like one."""
    path = Path(text)
    spelled = path.suffix.lower() in _CONFIG_SUFFIXES | _ARGS_SUFFIXES or text.startswith((".", "/", "~"))
    return spelled or is_there(path)

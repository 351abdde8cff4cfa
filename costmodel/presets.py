"""Well-known models shipped with shardwise.

A preset is a JSON file of the Hugging Face keys that shape the model plus a ``source``; it goes through the same reader
as a user's ``config.json``, so a preset can never mean something else than the file it was taken from.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from shardwise.hardware_profiles.errors import InputError, UnknownNameError

from .model import ModelSpec

_FOLDER: Final = Path(__file__).parent / "presets"


def list_presets() -> list[str]:
    """The names of all presets, sorted. Reads the folder, not the files."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_preset(name: str) -> ModelSpec:
    """Read one preset; case, ``-``, ``_``, ``.`` and spaces do not matter in ``name``.

    Raises UnknownNameError, which offers the nearest name, for a preset that does not exist.
    """
    return _read(_known(name))


def preset_config(name: str) -> tuple[str, dict[str, Any]]:
    """A preset's exact name and the keys of its file. Raises UnknownNameError as ``load_preset`` does."""
    from .hf import parse_json_object

    known = _known(name)
    return known, parse_json_object((_FOLDER / f"{known}.json").read_text(encoding="utf-8"), f"preset {known}")


def _known(name: str) -> str:
    """The exact name of the preset that somebody means."""
    if not isinstance(name, str):
        raise InputError(f"preset name = {name!r}: expected a string")
    names = {_plain(known): known for known in list_presets()}
    known = names.get(_plain(name))
    if known is None:
        raise UnknownNameError(_unknown(name, names))
    return known


@lru_cache(maxsize=64)
def _read(known: str) -> ModelSpec:
    from .hf import model_from_config

    _, data = preset_config(known)
    return replace(model_from_config(data, known, f"preset {known}"), name=known)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _unknown(name: str, names: dict[str, str]) -> str:
    near = difflib.get_close_matches(_plain(name), names, n=3, cutoff=0.5)
    offer = f"did you mean {', '.join(names[key] for key in near)}?" if near else "see the list of presets"
    return f"unknown preset {name[:80]!r}: {offer}"

"""Reading DeepSpeed's JSON settings, whoever launches with them."""

from __future__ import annotations

import json
from typing import Any

from shardwise.hardware_profiles.errors import InputError


def flat_settings(file: str, text: str) -> dict[str, Any]:
    """A JSON document with the keys of its tables dotted; what is deeper stays a table.

    Raises InputError naming the file for anything but a JSON object.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{file}: expected a JSON object of DeepSpeed settings")
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat

"""Reading a Hugging Face ``config.json`` into a :class:`~shardwise.costmodel.model.ModelSpec`.

The file is only read as JSON: remote code named by ``auto_map`` is never looked at, let alone run.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import read_text

from .hf_families import arithmetic
from .hf_families.config import Config, one_line, show
from .hf_families.registry import FAMILIES, UNCLEAR_TIES, WRAPPERS, Family
from .model import ModelSpec

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The largest real configuration is about 3 MB; anything far above is the wrong file (weights, most likely)."""

_OTHER_HEADS: Final = re.compile(r"For(Sequence|Token)Classification|ForQuestionAnswering|ForMaskedLM|RewardModel")


def read_hf_config(path: str | Path) -> ModelSpec:
    """Read a ``config.json``.

    Returns the model, named after the file (or its folder when the file is called ``config.json``).
    Raises InputError, one line that names file, key, value and what was expected, for a file that cannot be read, an
    architecture that is not known, and any key that may shape the model and is not understood.
    """
    path = Path(path)
    data = parse_json_object(read_text(path, "a config.json", MAX_FILE_BYTES), str(path))
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return model_from_config(data, name, str(path))


def model_from_config(data: dict[str, Any], name: str, source: str) -> ModelSpec:
    """Turn the content of a ``config.json`` into a model; ``source`` is what errors call the file."""
    outer = Config(data, source)
    model_type = outer.text("model_type")
    for entry in outer.items("architectures") or ():
        if not isinstance(entry, str) or _OTHER_HEADS.search(entry):
            outer.fail("architectures", "language model classes")
    if outer.has("text_config") and not isinstance(data["text_config"], dict):
        outer.fail("text_config", "an object describing the language model")
    if model_type in WRAPPERS or outer.has("text_config"):
        return _read_wrapped(outer, model_type, name)
    family = _family(outer, model_type)
    _check_class(outer, family.classes)
    return _finish(family, outer, model_type, name)


def _finish(family: Family, cfg: Config, model_type: str, name: str) -> ModelSpec:
    model = family.read(cfg, name)
    cfg.finish()
    base = arithmetic.rotary_base(cfg, model_type)
    return replace(
        model,
        assumptions=(*model.assumptions, *cfg.assumptions),
        rotary_base=base,
        norm_epsilon=arithmetic.norm_epsilon(cfg),
        activation=arithmetic.activation(cfg, model_type),
    )


def _family(cfg: Config, model_type: str) -> Family:
    if model_type not in FAMILIES:
        known = sorted({*FAMILIES, *WRAPPERS})
        near = difflib.get_close_matches(model_type, known, n=3) or known[:3]
        cfg.fail("model_type", f"one of the {len(known)} supported architectures, such as {', '.join(near)}")
    return FAMILIES[model_type]


def _check_class(cfg: Config, beginnings: tuple[str, ...]) -> None:
    """A class that the model type does not imply may have other weights."""
    for entry in cfg.items("architectures") or ():
        plain = re.sub(r"[^a-z0-9]", "", entry.lower()) if isinstance(entry, str) else ""
        if not plain.startswith(beginnings):
            cfg.fail("architectures", f"the language model class of model_type {cfg.data.get('model_type')}")


def _read_wrapped(outer: Config, model_type: str, name: str) -> ModelSpec:
    """The text part of a multimodal configuration; everything else is left out and said to be."""
    if model_type not in WRAPPERS:
        outer.fail("model_type", "a supported multimodal wrapper: " + ", ".join(sorted(WRAPPERS)))
    inner = outer.section("text_config")
    if inner is None:
        outer.fail("text_config", "an object describing the language model")
    inner_type = inner.text("model_type", WRAPPERS[model_type])
    family = _family(inner, inner_type)
    _check_class(inner, family.classes)
    _tie_from_outside(outer, inner, model_type)
    for key in ("vision_config", "audio_config"):
        if outer.has(key):
            outer.assume(f"{key} is left out: only the language model is planned")
    model = _finish(family, inner, inner_type, name)
    _finish_wrapper(outer)
    return replace(model, assumptions=tuple(dict.fromkeys((*model.assumptions, *outer.assumptions))))


def _tie_from_outside(outer: Config, inner: Config, model_type: str) -> None:
    """The multimodal class follows the tie that stands beside ``text_config``, where one does."""
    key = "tie_word_embeddings"
    if key in outer.data:
        if inner.data.get(key, outer.data[key]) != outer.data[key]:
            outer.assume(f"{key} differs inside text_config: the outer value holds")
        inner.data = {**inner.data, key: outer.data[key]}
    elif key not in inner.data and model_type in UNCLEAR_TIES:
        outer.fail(key, f"true or false: {model_type} files do not agree on it")


def _finish_wrapper(outer: Config) -> None:
    """Keys beside ``text_config`` describe the other modalities, so none of them shapes the language model."""
    outer.ignore(*outer.data)


# ---- the file


def parse_json_object(text: str, source: str) -> dict[str, Any]:
    """Parse JSON strictly: an object, no key twice."""

    source = one_line(source)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputError(f"{source}: {show(key)} = {show(value)}: expected each key once")
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        _not_json(source, f"line {error.lineno} column {error.colno}: {error.msg}")
    except RecursionError:
        _not_json(source, "nested too deeply")
    except InputError:
        raise
    except ValueError as error:
        _not_json(source, str(error))
    if not isinstance(data, dict):
        raise InputError(f"{source}: {show(data)}: expected a JSON object")
    return data


def _not_json(source: str, reason: str) -> NoReturn:
    raise InputError(f"{source}: not JSON ({one_line(reason)}): expected a config.json object")

"""Recipes of Megatron-Bridge and NeMo 2 read back, with the overrides of a command line or a YAML file behind them.

A field becomes the option of Megatron-LM that says the same (``bridge_flags``), and the options are read as those of a
launch script are (``megatron_read``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from shardwise.costmodel.megatron_flags import REFUSED
from shardwise.costmodel.megatron_shell import Flag, read_flags, read_words
from shardwise.costmodel.presets import list_presets, load_preset
from shardwise.hardware_profiles.errors import InputError

from .bridge_fields import COMMON, SECTIONS, known_fields, option_of, precision_fields
from .bridge_flags import DERIVED, Fields, show_value
from .flag_reader import FlagReader, trimmed
from .megatron_read import SHAPING, known_options, read_job, takes_value
from .megatron_tables import UNMODELLED
from .parsed import Files, Given, Option, Parsed
from .recipe_reader import RecipeReader, Setting
from .recipe_values import Pretrained
from .yaml_settings import YamlSettings, near_key, plain_value

_OVERRIDE: Final = re.compile(r"^\+{0,2}~?([a-z_]\w*(?:\.\w+)+)=(.*)$", re.DOTALL)
_MARK: Final = re.compile(
    r"megatron\.bridge|\bnemo\.collections\b|\bimport nemo_run\b|\bConfigContainer\b"
    r"|\b(?:model|strategy)\.(?:tensor|pipeline)_model_parallel_size\s*=\s*[^=]"
)
_NEMO: Final[tuple[tuple[str, str], ...]] = (
    ("trainer.strategy.ddp.", "ddp."),
    ("trainer.strategy.", "model."),
    ("trainer.num_nodes", "nodes.num_nodes"),
    ("trainer.devices", "nodes.devices"),
    ("num_nodes", "nodes.num_nodes"),
    ("num_gpus_per_node", "nodes.devices"),
    ("trainer.max_steps", "train.train_iters"),
    ("trainer.plugins", "mixed_precision"),
    ("model.config.", "model."),
    ("data.micro_batch_size", "train.micro_batch_size"),
    ("data.global_batch_size", "train.global_batch_size"),
    ("data.seq_length", "dataset.seq_length"),
    ("optim.config.", "optimizer."),
)
"""Where NeMo 2 keeps what Megatron-Bridge has elsewhere."""

_PEFT: Final = "all weights are trained"


def is_bridge(files: Files) -> bool:
    """Whether texts are a recipe of Megatron-Bridge or NeMo 2, or overrides of one."""
    if any(_MARK.search(t) or re.search(r"\bnemo\b", t) for t in _of(files, ".py").values()):
        return True
    return any(_MARK.search(t) for t in _scripts(files).values()) or any(
        re.search(r"^model:\s*$", t, re.MULTILINE) and "tensor_model_parallel_size" in t
        for t in _of(files, ".yaml", ".yml").values()
    )


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a recipe and the script that starts it. Raises InputError naming file, field and value."""
    settings, notes = _settings(files, given)
    source = next(iter(files), "the recipe")
    if not settings:
        raise InputError(f"{source}: no setting found: expected a recipe of Megatron-Bridge or NeMo")
    fields = Fields(settings, notes)
    found = [*_shell_flags(files, given), *fields.flags()]
    found = _overlap(fields, found)
    flags = FlagReader(found)
    model = given.model or _named_model(fields)
    described = [flag for file, flag in found if _describes(file, flag)]
    job = read_job(flags, described, _scripts(files), replace(given, model=model), source)
    changes = dict(job.runtime_changes)
    if flags.has("grad-reduce-in-bf16") and not flags.switch("grad-reduce-in-bf16"):
        changes["grad_comm_bytes"] = 4.0
    return replace(
        job,
        launcher="megatron-bridge",
        runtime="megatron-bridge",
        runtime_changes=changes,
        model_note=_model_note(fields) or job.model_note,
        assumptions=(*job.assumptions, *fields.notes),
    ).with_options(_lists(flags, fields))


# ---- what the files set


def _settings(files: Files, given: Given) -> tuple[list[Setting], list[str]]:
    """Every setting in the order in which it takes effect: recipes, files of overrides, command lines."""
    found: list[Setting] = []
    notes: list[str] = []
    for file, text in _of(files, ".py").items():
        recipe = RecipeReader(file, text, given.variables).read()
        if "_pretrain_common" in {base.rpartition(".")[2] for base in recipe.bases}:
            found += [
                Setting(path, value, file, 0, f"_pretrain_common() {path}", implied=True)
                for path, value in COMMON.items()
            ]
            notes.append("what the recipe leaves to _pretrain_common() is as in Megatron-Bridge 0.6.2")
        named = next((base for base in recipe.bases if base.endswith(".pretrain_recipe")), None)
        if named is not None:
            found.append(Setting("model", Pretrained(named.split(".")[-2]), file, 0, named))
            notes.append(f"what the recipe leaves to {named} is at Megatron-Core's defaults")
        found += recipe.settings
    for file, text in _of(files, ".yaml", ".yml").items():
        keys = YamlSettings(file, text)
        found += [Setting(key, _plain(keys.value(key)), file, 0, key) for key in keys]
    for file, text in _scripts(files).items():
        found += _overrides(file, text, given)
    return list(_expanded(map(_placed, found))), notes


def _plain(value: Any) -> Any:
    """A value of YAML; a list comes as its text."""
    return plain_value(value) if isinstance(value, str) and value.startswith(("[", "- ")) else value


def _overrides(file: str, text: str, given: Given) -> Iterator[Setting]:
    for word, conditional, line in read_words(text, file, given.variables):
        match = _OVERRIDE.match(word)
        if match:
            value = plain_value(match.group(2))
            yield Setting(match.group(1), value, file, line, match.group(1), conditional)


def _placed(setting: Setting) -> Setting:
    """The setting under Megatron-Bridge's own path."""
    for prefix, place in _NEMO:
        if setting.path == prefix or (prefix.endswith(".") and setting.path.startswith(prefix)):
            return replace(setting, path=place + setting.path[len(prefix) :])
    return setting


def _expanded(settings: Iterable[Setting]) -> Iterator[Setting]:
    """Named recipes of mixed precision as the fields that they set."""
    for setting in settings:
        fields = None
        if setting.path == "mixed_precision" and isinstance(setting.value, str):
            fields = precision_fields(setting.value)
        if fields is None:
            yield setting
            continue
        for name in ("fp16", "bf16", "fp8", "fp4", "first_last_layers_bf16"):
            fields.setdefault(name, None)
        shown = f"{setting.shown}={setting.value}"
        for name, value in fields.items():
            implied = setting.implied or value is None
            path = f"mixed_precision.{name}"
            yield replace(setting, path=path, value=value, shown=f"{shown} {name}", implied=implied)


# ---- from settings to options


def _shell_flags(files: Files, given: Given) -> list[tuple[str, Flag]]:
    """The options of the commands that start the recipe; a word that is an override belongs to none of them."""
    found: list[tuple[str, Flag]] = []
    for file, text in _scripts(files).items():
        flags, _ = read_flags(text, file, takes_value, given.variables)
        for flag in flags:
            own = tuple(w for w in trimmed(flag, {}).words if not _OVERRIDE.match(w))
            found.append((file, replace(flag, words=own)))
    return found


def _overlap(fields: Fields, found: list[tuple[str, Flag]]) -> list[tuple[str, Flag]]:
    """Without tensor parallelism or sequence parallelism the overlap of tensor traffic is silently off."""
    on = {flag.name: flag.value for _, flag in found if not flag.conditional}
    alone = on.get("tensor-model-parallel-size", "1") == "1" or on.get("sequence-parallel", "false") == "false"
    if not alone or on.get("tp-comm-overlap") != "true":
        return found
    fields.notes.append("comm_overlap.tp_comm_overlap has no effect without tensor_model_parallel_size > 1 and "
                        "sequence_parallel")  # fmt: skip
    return [(file, replace(f, words=("false",)) if f.name == "tp-comm-overlap" else f) for file, f in found]


def _describes(file: str, flag: Flag) -> bool:
    """Whether a flag may describe the model: Megatron's options, and fields of the model that nobody knows."""
    if file == DERIVED or flag.name in SHAPING or flag.name in REFUSED:
        return True
    return flag.shown.startswith("model.") and (flag.name in known_options() or _path(flag) not in known_fields())


def _path(flag: Flag) -> str:
    return flag.shown if flag.shown in known_fields() else f"model.{flag.name.replace('-', '_')}"


def _lists(flags: FlagReader, fields: Fields) -> dict[str, tuple[Option, ...]]:
    """Every setting and every option of the scripts in one of the four lists."""
    known = {option_of(path): "1" for path in known_fields()}
    near = {option_of(s.path): near_key(s.path, known_fields(), "Megatron-Bridge 0.6") for s in fields.settings}
    peft = {option_of(s.path): _PEFT for s in fields.settings if s.path.startswith("peft") and s.value is not None}
    env = {option_of(s.path): "1" for s in fields.settings if s.path.startswith("env_vars")}
    lists = flags.sort(known | env, SHAPING, {**UNMODELLED, **peft}, near)
    written = {(s.shown, s.file, s.line): show_value(s.value) for s in fields.settings}
    lists = {kind: tuple(replace(o, value=written.get((o.name, o.file, o.line), o.value)) for o in found
                         if o.file != DERIVED) for kind, found in lists.items()}  # fmt: skip
    known_paths = known_fields() | SECTIONS
    left = [o for o in fields.left if o not in lists["read"]]
    odd = {s.shown for s in fields.settings if s.path not in known_paths and option_of(s.path) not in known}
    return lists | {
        "read": (*fields.named, *lists["read"]),
        "neutral": lists["neutral"] + tuple(o for o in left if o.name not in odd),
        "unknown": lists["unknown"] + tuple(o for o in left if o.name in odd),
    }


# ---- the model


def _named_model(fields: Fields) -> Any:
    """The shipped model that a name stands for, None where the recipe has sizes or nobody knows the name."""
    value = fields.value("model")
    if not isinstance(value, Pretrained) or fields.value("model.num_layers") is not None:
        return None
    wanted = _squashed(value.name)
    found = [name for name in list_presets() if _squashed(name) == wanted]
    if not found:
        return None
    fields.notes.append(f"model {value.name} is taken to be the shipped {found[0]}")
    return load_preset(found[0])


def _squashed(name: str) -> str:
    """Letters and digits of a model's name, without what vendors and classes add to it."""
    text = re.sub(r"[^a-z0-9]", "", name.rpartition("/")[2].lower())
    text = re.sub(r"^meta|modelprovider|provider|config|instruct|base$|hf$|chat$", "", text)
    return text


def _model_note(fields: Fields) -> str:
    value = fields.value("model")
    return f"it is {value.name}" if isinstance(value, Pretrained) else ""


# ---- files


def _of(files: Files, *suffixes: str) -> dict[str, str]:
    return {f: t for f, t in files.items() if f.endswith(suffixes)}


def _scripts(files: Files) -> Mapping[str, str]:
    """Texts that hold command lines."""
    texts = {f: t for f, t in files.items() if not f.endswith((".py", ".json", ".yaml", ".yml", "hostfile"))}
    return {f: t for f, t in texts.items() if f != "sbatch.sh" or len(texts) == 1}

"""What a study may vary, and how a setting changes the inputs of a search.

A setting is a dotted path and a value: a key of the study file (``gpus``, ``seq_len``, ``pin.tp``), a key of the
model's own file (``model.num_hidden_layers``), or a figure of the cluster (``cluster.tiers.scale-out.bytes_per_s``).
A value such as ``"x0.5"`` is a multiple of what the study has otherwise.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.model_source import ModelSource, read_model_source
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.accelerator import Accelerator
from shardwise.hardware_profiles.cluster import Cluster, Tier
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.hardware_profiles.yaml_files import first_problem
from shardwise.launchers.choice import choose_launcher

from ..constraints import Constraints
from .study_file import Scalar, StudyFile

_MULTIPLE = re.compile(r"x(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_WISHES = ("pin", "ban", "min", "max")
_TIER = ("size", "bytes_per_s", "latency_s", "oversubscription")
_ACCELERATOR = ("memory_bytes", "memory_bytes_per_s", "host_bytes_per_s", "peak_flops")
_SELECTORS = ("scale-up", "scale-out", "all")
_LARGEST = {"latency_s": 1.0, "oversubscription": 1e4, "size": 1e7, "peak_flops": 1e6}
"""What a profile may state at most (of the peak: its multiple); bytes and bytes per second are at most ``_BYTES``."""
_BYTES = 1e15

KNOBS: dict[str, str] = {
    "model.KEY": "a key of the model's config.json (dots for nested ones), or a Megatron-LM argument",
    "cluster.tiers.TIER.size": "accelerators inside one domain; TIER is a tier's name, its number from 0, scale-up (the"
    " innermost), scale-out (all others) or all",
    "cluster.tiers.TIER.bytes_per_s": "bytes per second, accelerator and direction",
    "cluster.tiers.TIER.latency_s": "seconds of one step",
    "cluster.tiers.TIER.oversubscription": "how many times less leaves at full load",
    "cluster.accelerator.memory_bytes": "memory of one accelerator",
    "cluster.accelerator.memory_bytes_per_s": "its bandwidth",
    "cluster.accelerator.host_bytes_per_s": "the link to the host, one direction",
    "cluster.accelerator.peak_flops": "peak of every precision; multiples only",
    "pin.DIMENSION": "a dimension held at a value; likewise ban, min and max",
}
"""Paths beyond the keys of a study file, and what they change."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that one point's search needs; picklable, so that another machine can run it."""

    problem: Problem
    launcher: str
    wishes: dict[str, dict[str, Any]]
    refine: int
    price_per_gpu_hour: float | None
    shown: dict[str, Scalar | None]
    """The inputs as a person would write them, for the tables."""


def inputs(file: StudyFile, settings: Mapping[str, Scalar]) -> Inputs:
    """The inputs of one point: the study's own, with its settings.

    Raises InputError that begins with the path of the setting at fault, without the file.
    """
    settings = {**file.set, **settings}
    head = _head(file, {k: v for k, v in settings.items() if not k.startswith(("model.", "cluster."))})
    model = _model(_needed(head, "model"), _under(settings, "model."))
    cluster = _cluster(_needed(head, "cluster"), _needed(head, "gpus"), _under(settings, "cluster."))
    workload = _workload(head)
    runtime = None if head.runtime is None else load_runtime(head.runtime)
    choice = choose_launcher(model, cluster, workload, head.launcher, runtime)
    problem = Problem(model, cluster, workload, choice.runtime, memory_margin=head.memory_margin)
    wishes = {name: dict(getattr(head, name)) for name in _WISHES}
    Constraints.of(*wishes.values())  # a misspelt wish is the study's fault, not an answer of its points
    price = head.price_per_gpu_hour or cluster.price_usd_per_gpu_hour
    shown: dict[str, Scalar | None] = {
        "model": head.model, "cluster": head.cluster, "gpus": cluster.num_gpus,
        "global_batch": workload.global_batch_size, "seq_len": workload.sequence_length, "dtype": workload.dtype,
        "optimizer": workload.optimizer, "expert_imbalance": workload.expert_imbalance, "mtp": workload.train_mtp,
        "launcher": choice.launcher.name, "runtime": choice.runtime.name,
    }  # fmt: skip
    return Inputs(problem, choice.launcher.name, wishes, head.refine, price, shown)


# ---- keys of the study file


def _head(file: StudyFile, settings: Mapping[str, Scalar]) -> StudyFile:
    """The file with its own keys changed."""
    changes: dict[str, Any] = {}
    for path, value in settings.items():
        key, _, rest = path.partition(".")
        if rest and key in _WISHES:
            changes.setdefault(key, dict(getattr(file, key)))[rest] = value
        elif path in StudyFile.model_fields and path not in (*_WISHES, "vary", "set", "mode", "name"):
            changes[path] = _multiplied(path, getattr(file, path), value)
        else:
            raise InputError(f"{path}: {_unknown(path)}")
    batches = ("global_batch", "global_tokens", "batch_per_gpu")
    if any(name in changes for name in batches):
        changes = {**dict.fromkeys(batches), **changes}
    try:
        return StudyFile.model_validate({**file.model_dump(by_alias=True, exclude_unset=True), **changes})
    except ValidationError as error:
        raise InputError(first_problem(error, StudyFile)) from None


def _needed(head: StudyFile, key: str) -> Any:
    value = getattr(head, key)
    if value is None:
        raise InputError(f"{key}: missing; expected {StudyFile.model_fields[key].description}, here or under vary")
    return value


def _workload(head: StudyFile) -> Workload:
    """The workload; the batch in sequences, from whichever way the study states it."""
    length = _needed(head, "seq_len")
    ways = {k: getattr(head, k) for k in ("global_batch", "global_tokens", "batch_per_gpu")}
    given = {k: v for k, v in ways.items() if v is not None}
    if len(given) != 1:
        raise InputError(f"{' and '.join(given) or 'global_batch'}: expected exactly one of {', '.join(ways)}")
    batch = _batch(next(iter(given)), next(iter(given.values())), length, _needed(head, "gpus"))
    return Workload(
        global_batch_size=batch, sequence_length=length, dtype=head.dtype, optimizer=head.optimizer,
        expert_imbalance=head.expert_imbalance, train_mtp=head.mtp,
    )  # fmt: skip


def _batch(way: str, value: float, length: int, gpus: int) -> int:
    batch = value if way == "global_batch" else value / length if way == "global_tokens" else value * gpus
    if batch != int(batch) or batch < 1:
        other = f"seq_len {length}" if way == "global_tokens" else f"gpus {gpus}"
        raise InputError(f"{way} = {value:g}: expected whole sequences per step, not {batch:g} (with {other})")
    return int(batch)


def _multiplied(path: str, base: Any, value: Scalar) -> Scalar:
    """The value, or the multiple of the base that it asks for; whole numbers stay whole."""
    factor = _factor(value)
    if factor is None:
        return value
    if isinstance(base, bool) or not isinstance(base, (int, float)):
        raise InputError(f"{path} = {value!r}: expected a value: there is no number to multiply")
    number = base * factor
    if isinstance(base, int) and number != int(number):
        raise InputError(f"{path} = {value!r}: {base} times that is {number:g}; expected a whole number")
    return type(base)(number)


def _factor(value: Scalar) -> float | None:
    found = _MULTIPLE.fullmatch(value) if isinstance(value, str) else None
    return None if found is None else float(found.group(1))


def _unknown(path: str) -> str:
    known = [*(k for k in StudyFile.model_fields if k not in ("vary", "set", "mode", "name", *_WISHES)), *KNOBS]
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    return f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; expected one of {', '.join(known)}"


def _under(settings: Mapping[str, Scalar], prefix: str) -> tuple[tuple[str, Scalar], ...]:
    return tuple((k.removeprefix(prefix), v) for k, v in settings.items() if k.startswith(prefix))


# ---- the model


@lru_cache(maxsize=64)
def _source(name: str) -> ModelSource:
    return read_model_source(name)


@lru_cache(maxsize=1024)
def _model(name: str, changes: tuple[tuple[str, Scalar], ...]) -> ModelSpec:
    source = _source(name)
    if not changes:
        return source.build({})
    resolved = {}
    for key, value in changes:
        factor = _factor(value)
        base = source.value(key) if factor is not None else None
        resolved[key] = _multiplied(f"model.{key}", base, value)
    return source.build(resolved)


# ---- the cluster


def _cluster(name: str, gpus: int, changes: tuple[tuple[str, Scalar], ...]) -> Cluster:
    cluster = load_cluster(name)
    for path, value in changes:
        cluster = _changed(cluster, path, value)
    return cluster.with_num_gpus(gpus)


def _changed(cluster: Cluster, path: str, value: Scalar) -> Cluster:
    parts = path.split(".")
    if parts[0] == "tiers" and len(parts) == 3 and parts[2] in _TIER:
        return _with_tiers(cluster, parts[1], parts[2], value)
    if parts[0] == "accelerator" and len(parts) == 2 and parts[1] in _ACCELERATOR:
        device = _with_figure(cluster.accelerator, parts[1], value)
        return replace(cluster, accelerator=device)
    raise UnknownNameError(f"cluster.{path}: {_unknown(f'cluster.{path}')}")


def _with_figure(device: Accelerator, key: str, value: Scalar) -> Accelerator:
    if key == "peak_flops":
        factor = _factor(value)
        if factor is None:
            raise InputError(f"cluster.accelerator.peak_flops = {value!r}: expected a multiple, such as x1.5")
        _in_range("cluster.accelerator.peak_flops", value, factor)
        return replace(device, peak_flops={k: v * factor for k, v in device.peak_flops.items()})
    number = _positive(f"cluster.accelerator.{key}", getattr(device, key), value)
    return replace(device, **{key: number})  # type: ignore[arg-type]


def _with_tiers(cluster: Cluster, selector: str, key: str, value: Scalar) -> Cluster:
    """The cluster with one figure of the selected tiers changed; a grown domain pushes the domains outside it."""
    path = f"cluster.tiers.{selector}.{key}"
    chosen = _selected(cluster, selector)
    tiers: list[Tier] = []
    told: list[str] = []
    for at, tier in enumerate(cluster.tiers):
        changed = tier
        if at in chosen:
            number = _positive(path, getattr(tier, key), value)
            if key == "oversubscription" and number < 1.0:
                raise InputError(f"{path} = {value!r}: expected 1 (non-blocking) or more")
            if key == "size" and number != int(number):
                raise InputError(f"{path} = {value!r}: expected a whole number of accelerators")
            changed = replace(tier, **{key: int(number) if key == "size" else number})  # type: ignore[arg-type]
        tiers.append(_around(changed, tiers[-1].size if tiers else cluster.node_size, at, told))
    return replace(cluster, tiers=tuple(tiers), assumptions=(*cluster.assumptions, *told))


def _around(tier: Tier, inner: int, at: int, told: list[str]) -> Tier:
    """The tier, made of whole inner domains and larger than one of them (the innermost: of whole nodes)."""
    least = inner if at == 0 else 2 * inner
    size = max(least, -(-tier.size // inner) * inner)
    if size == tier.size:
        return tier
    told.append(f"{tier.name} domains of {tier.size} are taken as {size}, whole domains of the {inner} inside")
    return replace(tier, size=size)


def _selected(cluster: Cluster, selector: str) -> set[int]:
    count, names = len(cluster.tiers), [t.name for t in cluster.tiers]
    if selector in names:
        return {names.index(selector)}
    if selector.isascii() and selector.isdigit() and int(selector) < count:
        return {int(selector)}
    picks: dict[str, Callable[[], set[int]]] = {
        "scale-up": lambda: {0},
        "scale-out": lambda: set(range(1, count)),
        "all": lambda: set(range(count)),
    }
    if selector not in picks:
        known = ", ".join((*names, *(str(i) for i in range(count)), *_SELECTORS))
        raise UnknownNameError(f"cluster.tiers.{selector}: {cluster.name} has no such tier; expected one of {known}")
    return picks[selector]()


def _positive(path: str, base: float, value: Scalar) -> float:
    number = _multiplied(path, float(base), value)
    if isinstance(number, (bool, str)) or not number > 0:
        raise InputError(f"{path} = {value!r}: expected a number above 0, or a multiple such as x0.5")
    _in_range(path, value, number)
    return float(number)


def _in_range(path: str, value: Scalar, number: float) -> None:
    """Refuse what no profile could state, so that nothing overflows on the way."""
    most = _LARGEST.get(path.rpartition(".")[2], _BYTES)
    if not 1e-15 <= number <= most:
        raise InputError(f"{path} = {value!r}: makes {number:g}; expected 1e-15 to {most:g}")

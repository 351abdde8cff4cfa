"""Reading system files: by the name of a shipped profile, one of its aliases, or the path of a file."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .accelerator import Figure
from .cluster import Cluster, Curve, Ramp, Tier
from .cluster_schema import ExtendingFile, SystemFile, TechnologyFile, TierFile
from .errors import InputError, UnknownNameError
from .load_accelerator import load_accelerator, with_figures
from .text_files import is_there
from .yaml_files import figures as figures_of
from .yaml_files import first_problem, read_head, read_mapping, slug

_SHIPPED = Path(__file__).parent / "systems"
_HEAD_ENDS = re.compile(r"^(accelerator|tiers|gpus_per_node|extends):", re.MULTILINE)
_SUFFIXES = (".yaml", ".yml", ".json")
_MOST_EXTENDS = 8
_Model = TypeVar("_Model", bound=BaseModel)
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")


def load_cluster(name_or_path: str | Path, num_gpus: int | None = None) -> Cluster:
    """The system of that name, alias or YAML file, for a job of ``num_gpus``.

    Names ignore case, spaces, ``-`` and ``_``. Without ``num_gpus``: as many as the file says, or the whole system.
    Raises InputError in one line naming file, key, value and expectation; UnknownNameError with the nearest name.
    """
    path = _locate(name_or_path)
    cluster = _load_shipped(path) if path.parent == _SHIPPED else _build(path, _read(path))
    return cluster if num_gpus is None else cluster.with_num_gpus(num_gpus)


def list_clusters() -> tuple[str, ...]:
    """Names of all shipped systems (the short ones, as ``load_cluster`` takes them), sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("[!_]*.yaml")))


def _locate(name_or_path: str | Path, beside: Path | None = None) -> Path:
    if isinstance(name_or_path, Path):
        return name_or_path
    direct = _SHIPPED / f"{slug(name_or_path)}.yaml"
    if is_there(direct):
        return direct
    if name_or_path.lower().endswith(_SUFFIXES):
        return Path(name_or_path) if beside is None else beside / name_or_path
    index = _index()
    if slug(name_or_path) in index:
        return index[slug(name_or_path)]
    if "/" in name_or_path or "\\" in name_or_path:
        return Path(name_or_path)
    near = difflib.get_close_matches(slug(name_or_path), index, n=1, cutoff=0.0)
    hint = f"; did you mean {index[near[0]].stem!r}?" if near else ""
    raise UnknownNameError(f"no system {name_or_path!r}{hint} (known: {', '.join(list_clusters())})")


@lru_cache(maxsize=1)
def _index() -> dict[str, Path]:
    """Slug of every name and alias → file. Parses only the head of each file."""
    found: dict[str, Path] = {}
    for path in sorted(_SHIPPED.glob("[!_]*.yaml")):
        head = read_head(path, _HEAD_ENDS)
        for alias in (path.stem, head["name"], *head.get("aliases", ())):
            found.setdefault(slug(alias), path)
    return found


@lru_cache(maxsize=64)
def _load_shipped(path: Path) -> Cluster:
    return _build(path, _read(path))


def _read(path: Path, depth: int = 0) -> SystemFile:
    return _validated(path, _merged(path, depth), SystemFile)


def _merged(path: Path, depth: int) -> dict[str, Any]:
    """The file's mapping, laid over the one it extends."""
    raw = read_mapping(path, "a system YAML file")
    if "extends" not in raw:
        return raw
    if depth >= _MOST_EXTENDS:
        raise InputError(
            f"{path}: extends = {raw['extends']!r}: expected at most {_MOST_EXTENDS} files, none extending itself"
        )
    _validated(path, raw, ExtendingFile)
    try:
        base = _merged(_locate(raw["extends"], path.parent), depth + 1)
    except UnknownNameError as error:
        raise InputError(f"{path}: extends = {raw['extends']!r}: {error}") from None
    own = {key: value for key, value in raw.items() if key not in ("extends", "tiers") and value is not None}
    merged = {"aliases": [], **base, **own}
    if "aliases" not in own:
        merged["aliases"] = []
    if raw.get("tiers"):
        merged["tiers"] = _merged_tiers(base.get("tiers"), raw["tiers"])
    return merged


def _merged_tiers(base: Any, own: list[dict[str, Any]]) -> list[Any]:
    tiers = {tier["name"]: tier for tier in base if isinstance(tier, dict) and "name" in tier}
    for tier in own:
        given = {key: value for key, value in tier.items() if value is not None}
        under = tiers.get(tier["name"], {})
        for key in ("efficiency", "ramps"):  # by kind: the base's other kinds stay
            if isinstance(under.get(key), dict) and isinstance(given.get(key), dict):
                given[key] = {**under[key], **given[key]}
        tiers[tier["name"]] = {**under, **given}

    def size(tier: dict[str, Any]) -> float:
        value = tier.get("size")
        number = value.get("value") if isinstance(value, dict) else None
        return number if isinstance(number, int) else 0

    return sorted(tiers.values(), key=size)


def _validated(path: Path, raw: dict[str, Any], model: type[_Model]) -> _Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, model)}") from None


@lru_cache(maxsize=64)
def _technology(name: str) -> TechnologyFile | None:
    """A shipped link technology by name."""
    path = _SHIPPED / f"_{slug(name)}.yaml"
    return _validated(path, read_mapping(path, "a technology YAML file"), TechnologyFile) if is_there(path) else None


def list_technologies() -> tuple[str, ...]:
    """Names of the shipped link technologies, sorted."""
    return tuple(sorted(path.stem.removeprefix("_") for path in _SHIPPED.glob("_*.yaml")))


def _build(path: Path, file: SystemFile) -> Cluster:
    _check_nesting(path, file)
    figures = dict(figures_of(file))
    tiers = tuple(_tier(path, at, tier, figures) for at, tier in enumerate(file.tiers))
    try:
        accelerator = load_accelerator(file.accelerator)
    except InputError as error:
        raise InputError(f"{path}: accelerator = {file.accelerator!r}: {error}") from None
    if file.accelerator_figures is not None:
        try:
            accelerator = with_figures(accelerator, file.accelerator_figures)
        except InputError as error:
            raise InputError(f"{path}: accelerator_figures: {error}") from None
    cluster = Cluster(
        name=file.name,
        accelerator=accelerator,
        num_gpus=tiers[-1].size,
        tiers=tiers,
        host_memory_bytes_per_gpu=file.host_memory_bytes_per_gpu.value,
        figures=figures,
        source=file.source,
        gpus_per_node=file.gpus_per_node.value,
        aliases=tuple(file.aliases),
        assumptions=tuple(file.assumptions),
        price_usd_per_gpu_hour=None if file.price_usd_per_gpu_hour is None else file.price_usd_per_gpu_hour.value,
        calibration=file.calibration.build() if file.calibration else None,
    )
    if file.num_gpus is None:
        return cluster
    try:
        return cluster.with_num_gpus(file.num_gpus.value)
    except InputError as error:
        raise InputError(f"{path}: num_gpus.value: {error}") from None


def _tier(path: Path, at: int, file: TierFile, figures: dict[str, Figure]) -> Tier:
    """A tier with its technology's constants under its own; their origins join ``figures``."""
    technology = _technology(file.technology)
    if technology is None:
        known = ", ".join(list_technologies())
        raise InputError(f"{path}: tiers.{at}.technology = {file.technology!r}: expected one of {known}")
    key = f"tiers.{at}"
    latency = file.latency_s or technology.latency_s
    figures.setdefault(f"{key}.latency_s", Figure(latency.value, latency.origin, latency.source))
    efficiency = {kind: law.efficiency for kind, law in technology.kinds.items()}
    for kind, ramp in file.ramps.items():
        for field in ("launch_s", "fill_s", "copy_weight"):
            figures[f"{key}.{field}.{kind}"] = Figure(getattr(ramp, field), ramp.origin, ramp.source)
    for kind, law in technology.kinds.items():
        for field in ("efficiency", "launch_s", "fill_s", "copy_weight"):
            figures.setdefault(f"{key}.{field}.{kind}", Figure(getattr(law, field), law.origin, law.source))
    efficiency |= {kind: share.value for kind, share in file.efficiency.items()}
    missing = [kind for kind in (*_KINDS, *(["nvls"] if file.nvls else [])) if kind not in efficiency]
    if missing:
        raise InputError(
            f"{path}: {key}.efficiency.{missing[0]}: missing and technology {file.technology!r} has none;"
            " expected a share of the rate"
        )
    return Tier(
        name=file.name,
        size=file.size.value,
        bytes_per_s=file.bytes_per_s.value,
        latency_s=latency.value,
        oversubscription=file.oversubscription.value,
        efficiency={str(kind): share for kind, share in efficiency.items()},
        nvls=file.nvls,
        technology=file.technology,
        ramps={
            **{str(k): Ramp(law.launch_s, law.fill_s, law.copy_weight) for k, law in technology.kinds.items()},
            **{str(k): Ramp(own.launch_s, own.fill_s, own.copy_weight) for k, own in file.ramps.items()},
        },
        curves=tuple(Curve(c.kind, c.ranks, c.domains, tuple(c.bytes), tuple(c.factors)) for c in file.curves),
    )


def _check_nesting(path: Path, file: SystemFile) -> None:
    """Domains grow outwards, a node is whole inside the innermost domain or made of whole ones, only tier 0 reduces."""
    for at, (inner, outer) in enumerate(zip(file.tiers, file.tiers[1:], strict=False), start=1):
        if outer.size.value <= inner.size.value:
            raise InputError(
                f"{path}: tiers.{at}.size.value = {outer.size.value}: expected more than {inner.size.value}, the size"
                f" of tier {inner.name!r} inside it (tiers are listed innermost first)"
            )
        if outer.size.value % inner.size.value:
            raise InputError(
                f"{path}: tiers.{at}.size.value = {outer.size.value}: expected a multiple of {inner.size.value}, the"
                f" size of tier {inner.name!r} inside it"
            )
        if outer.nvls:
            raise InputError(f"{path}: tiers.{at}.nvls = True: expected only in the innermost tier")
    names = [tier.name for tier in file.tiers]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: tiers: names {', '.join(names)}: expected each name once")
    node, inner_size = file.gpus_per_node.value, file.tiers[0].size.value
    if inner_size % node:
        raise InputError(
            f"{path}: gpus_per_node.value = {node}: expected a divisor of {inner_size}, the size of tier {names[0]!r}"
        )

"""Reading accelerator files: by the name of a shipped profile, one of its aliases, or the path of a file."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from .accelerator import Accelerator, AttentionLaw, GemmLaw, ScaleUp
from .accelerator_schema import AcceleratorFile, AttentionLawFile, GemmLawFile
from .calibration_schema import AcceleratorFiguresFile
from .errors import InputError, UnknownNameError
from .text_files import is_there
from .yaml_files import figures, first_problem, read_head, read_mapping, slug

_SHIPPED = Path(__file__).parent / "accelerators"
_HEAD_ENDS = re.compile(r"^peak_flops:", re.MULTILINE)
_YAML_SUFFIXES = (".yaml", ".yml", ".json")


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
    return text.lower().endswith(_YAML_SUFFIXES) or (("/" in text or "\\" in text) and slug(text) not in _index())


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, Path]]:
    """Slug of every name and alias → (name, file). Reads only the head of each file."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(_SHIPPED.glob("*.yaml")):
        head = read_head(path, _HEAD_ENDS)
        for alias in (head["name"], *head["aliases"]):
            found[slug(alias)] = (head["name"], path)
    return found


def _find(name: str) -> Path:
    direct = _SHIPPED / f"{slug(name)}.yaml"
    if is_there(direct):
        return direct
    index = _index()
    if slug(name) in index:
        return index[slug(name)][1]
    near = difflib.get_close_matches(slug(name), index, n=1, cutoff=0.0)
    hint = f"; did you mean {index[near[0]][0]!r}?" if near else ""
    raise UnknownNameError(f"no accelerator {name!r}{hint} (known: {', '.join(list_accelerators())})")


@lru_cache(maxsize=64)
def _load_shipped(path: Path) -> Accelerator:
    return _read(path)


def _read(path: Path) -> Accelerator:
    try:
        checked = AcceleratorFile.model_validate(read_mapping(path, "an accelerator YAML file"))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error, AcceleratorFile)}") from None
    return _build(checked)


def with_figures(accelerator: Accelerator, file: AcceleratorFiguresFile) -> Accelerator:
    """The accelerator with the figures that a system file gives in place of the profile's. Raises InputError."""
    for dtype in (*file.gemm, *file.sustained):
        if dtype not in accelerator.peak_flops:
            have = ", ".join(sorted(accelerator.peak_flops))
            raise InputError(f"{dtype}: {accelerator.name} has no peak for it; expected one of {have}")
    share = file.memory_efficiency
    return replace(
        accelerator,
        gemm={**accelerator.gemm, **{str(d): _gemm(law) for d, law in file.gemm.items()}},
        attention={**accelerator.attention, **{str(k): _attention(law) for k, law in file.attention.items()}},
        sustained={**accelerator.sustained, **{str(d): f.value for d, f in file.sustained.items()}},
        memory_efficiency=share.value if share else accelerator.memory_efficiency,
        figures={**accelerator.figures, **dict(figures(file))},
    )


def _gemm(law: GemmLawFile) -> GemmLaw:
    return GemmLaw(law.efficiency.value, law.m0.value, law.n0.value, law.k0.value, law.overhead_s.value)


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
    up = file.scale_up
    return Accelerator(
        name=file.name,
        vendor=file.vendor,
        peak_flops={dtype: figure.value for dtype, figure in file.peak_flops.items()},
        memory_bytes=file.memory_bytes.value,
        memory_bytes_per_s=file.memory_bytes_per_s.value,
        memory_efficiency=file.memory_efficiency.value,
        host_bytes_per_s=file.host_bytes_per_s.value,
        gemm={str(dtype): _gemm(law) for dtype, law in file.gemm.items()},
        attention={kernel: _attention(law) for kernel, law in file.attention.items()},
        figures=dict(figures(file)),
        aliases=tuple(file.aliases),
        host_time=file.host_time.value if file.host_time else 1.0,
        price_per_hour=file.price_per_hour.value if file.price_per_hour else None,
        sustained={dtype: figure.value for dtype, figure in file.sustained.items()},
        scale_up=ScaleUp(up.name, up.topology, up.domain.value, up.bytes_per_s.value),
        notes=file.notes,
    )

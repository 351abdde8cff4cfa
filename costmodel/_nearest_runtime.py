"""The nearest runtime profile for software without one: by family and release, else by device, precision and sharding.

Profiles of a family share code and most figures. A release without a profile takes the latest earlier one of its
family, or the earliest; software of an unknown family takes what trained such models on such devices in its day.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from shardwise.hardware_profiles.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class Family:
    """Profiles of one code base. ``words``: how its name is worded; ``heirs``: families that come closest to it."""

    name: str
    words: str
    profiles: tuple[str, ...]
    heirs: tuple[str, ...] = ()


FAMILIES: tuple[Family, ...] = (
    Family("zero-bubble", r"zero.?bubble", ("zero-bubble-megatron",), ("megatron",)),
    Family(
        "megatron-deepspeed",
        r"megatron.*deepspeed|bigscience|gpt.?neox",
        ("megatron-deepspeed-v100", "megatron-deepspeed", "megatron-deepspeed-2022", "megatron-deepspeed-bf16"),
        ("megatron",),
    ),
    Family("hagemann", r"hagemann|aleph.?alpha", ("hagemann-fa2", "hagemann"), ("megatron-deepspeed", "megatron")),
    Family(
        "megatron-bridge",
        r"bridge",
        (
            "megatron-bridge-25.09", "megatron-bridge-25.11", "megatron-bridge-26.02", "megatron-bridge-26.02.01",
            "megatron-bridge-26.04", "megatron-bridge-26.04.01", "megatron-bridge-26.06", "megatron-bridge-26.06.01",
            "megatron-bridge-26.08",
        ),
        ("nemo", "megatron-core"),
    ),
    Family(
        "nemo",
        r"nemo|dgxc|dgx.?cloud|mlperf",
        (
            "mlperf-nemo", "nemo-launcher", "nemo-24.07", "nemo-dgxc-24.11.1", "nemo-dgxc-25.02.02",
            "nemo-dgxc-25.04.02", "nemo-dgxc-25.05.05",
        ),
        ("megatron-bridge", "megatron-core"),
    ),
    Family("llm-foundry", r"foundry|composer|mosaic", ("llm-foundry-fsdp", "llm-foundry-fsdp-pure"), ("fsdp",)),
    Family("fsdp", r"torchtitan|fsdp|fairscale|accelerate", ("pytorch-fsdp", "torchtitan", "torchtitan-2025")),
    Family("jax", r"jax|maxtext|paxml|praxis|t5x|levanter|xla|tpu", ("jax",), ("fsdp",)),
    Family("oneflow", r"oneflow|libai", ("oneflow",), ("megatron",)),
    Family("megatron", r"megatron.?(lm.?)?20(19|2[0-2])", ("megatron-2020", "megatron-2021", "megatron-2022")),
    Family("deepspeed", r"deepspeed|zero|colossal|trainer", ("deepspeed-zero-v100", "deepspeed-zero"), ("fsdp",)),
    Family(
        "megatron-core",
        r"megatron|mcore|core|primus|swift|xtuner|llama.?factory|veomni",
        ("megatron-core", "megatron-core-moe"),
        ("nemo", "megatron-bridge"),
    ),
)  # fmt: skip
"""Families of a name's first match come first. Newest release last."""

BEFORE_HOPPER = frozenset({"megatron-2020", "megatron-2021", "megatron-2022"})
"""Releases that no device later than A100 ran."""

NOT_ON_HOPPER = frozenset({"megatron-bridge-26.06", "megatron-bridge-26.06.01", "megatron-bridge-26.08"})
"""Their recipes for Hopper stay with the dispatcher of 26.04."""

_EARLY = re.compile(r"^(V100|A100|A800)")


def runs_on(profile: str, accelerator: Accelerator) -> bool:
    """Whether a profile describes a release on the device: software of 2020 to 2022 knows nothing later than A100."""
    if profile in BEFORE_HOPPER:
        return _EARLY.match(accelerator.name) is not None
    return not (profile in NOT_ON_HOPPER and accelerator.name.startswith("H"))


def family_of(profile: str) -> str:
    """The family that a profile belongs to; one without a family stands alone."""
    return next((f.name for f in FAMILIES if profile in f.profiles), profile)


def nearest_runtime(
    software: str | None,
    accelerator: Accelerator,
    dtype: str | None,
    *,
    sharded: bool = False,
    struck: Collection[str] = (),
) -> str:
    """Name of the profile that comes nearest. ``struck`` ones are not considered.

    ``sharded``: parameters are sharded (FSDP, ZeRO 3).
    """
    named = [f for f in FAMILIES if software and re.search(f.words, software, re.IGNORECASE)]
    related = [family for f in named for family in (f, *map(_family, f.heirs))]
    for family in (*related, *_by_device(accelerator, dtype, sharded)):
        profiles = [p for p in family.profiles if p not in struck and runs_on(p, accelerator)]
        if profiles:
            release = _version(software or "") if family in related else ()
            return _release(profiles, release, accelerator, dtype)
    return "megatron-core"


def _family(name: str) -> Family:
    return next(f for f in FAMILIES if f.name == name)


def _by_device(accelerator: Accelerator, dtype: str | None, sharded: bool) -> list[Family]:
    """Families by what trained on such devices in their day, likeliest first."""
    if accelerator.name.startswith("TPU"):
        names = ["jax", "fsdp"]
    elif sharded:
        names = ["fsdp", "deepspeed", "llm-foundry"]
    elif _EARLY.match(accelerator.name) and (dtype == "fp16" or accelerator.name.startswith("V100")):
        names = ["megatron", "megatron-deepspeed", "oneflow"]
    else:
        names = ["megatron-core", "nemo", "megatron-bridge"]
    return [_family(name) for name in (*names, "megatron-core")]


def _release(profiles: list[str], wanted: tuple[int, ...], accelerator: Accelerator, dtype: str | None) -> str:
    """The profile of a family: the latest release that is not later than the stated one, or what fits the device."""
    if wanted:
        dated = [p for p in profiles if len(_version(p)) > 0 and (_version(p)[0] > 1000) == (wanted[0] > 1000)]
        earlier = [p for p in dated if _version(p) <= wanted]
        if dated:
            return earlier[-1] if earlier else dated[0]
    if accelerator.name.startswith("V100"):
        return profiles[0]
    for name, fits in (
        ("megatron-core", True),
        ("megatron-2021", True),
        ("megatron-deepspeed-bf16", dtype == "bf16"),
        ("megatron-deepspeed", True),
        ("torchtitan", accelerator.name.startswith("H")),
        ("torchtitan-2025", accelerator.name.startswith(("B", "GB"))),
        ("pytorch-fsdp", True),
        ("torchtitan", True),
        ("deepspeed-zero", True),
    ):
        if fits and name in profiles:
            return name
    return profiles[-1]


def _version(text: str) -> tuple[int, ...]:
    """The release number in a name: (25, 2, 2) of ``nemo-dgxc-25.02.02``, (2021,) of ``megatron-2021``."""
    match = re.search(r"(?<!\d)(\d{4}|\d+(?:\.\d+)+)(?!\d)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()

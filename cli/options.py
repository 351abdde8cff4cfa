"""The options that ``plan`` and ``estimate`` share, and the reading of constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.costmodel.workload import DTYPES, OPTIMIZERS
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there
from shardwise.search.objective import OBJECTIVES

F = TypeVar("F", bound=Callable[..., Any])

LARGEST_COUNT = (1 << 40) - 1
"""Above any count that a person means; keeps arithmetic in range."""


def integer(text: str) -> int:
    """A whole number from 1 up; a refusal stays one short line however long the text. The name shows in help."""
    digits = text.replace(",", "").replace("_", "")
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 24 else 0
    if not 1 <= number <= LARGEST_COUNT:
        shown = text if len(text) <= 24 else f"{text[:20]}… ({len(text)} characters)"
        raise click.BadParameter(f"{shown!r} is not a whole number from 1 to {LARGEST_COUNT}")
    return number


def seconds(text: str) -> float:
    """A duration above 0, finite. The name shows in help."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise click.BadParameter(f"{text[:24]!r} is not a number of seconds above 0")
    return number


class _FilePath(click.Path):
    """A path as ``pathlib.Path``. An empty one is an unset variable of a shell, not the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; refuses an empty text."""
        if value == "":
            self.fail("expected a path, this is empty (an unset variable?)", param, ctx)
        return super().convert(value, param, ctx)


PATH = _FilePath()

_DTYPE = click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="GEMM precision.")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|h|d|w)")
_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def duration(text: str) -> float:
    """Seconds of a duration with its unit, above 0: ``12s``, ``1.5h``, ``30d``. The name shows in help."""
    match = _DURATION.fullmatch(text) if len(text) <= 24 else None
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not value:
        raise click.BadParameter(f"{text[:24]!r} is not a duration such as 12s or 30d (units: {', '.join(_UNITS)})")
    return value


def number(text: str) -> float:
    """A number above 0, finite: ``2.5``, ``15e12``. The name shows in help."""
    try:
        value = float(text) if len(text) <= 24 else 0.0
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise click.BadParameter(f"{text[:24]!r} is not a number above 0")
    return value


def share(text: str) -> float:
    """A share from 0 to below 1. The name shows in help."""
    try:
        value = float(text) if len(text) <= 24 else -1.0
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise click.BadParameter(f"{text[:24]!r} is not a share from 0 to below 1")
    return value


def counts(text: str) -> int | tuple[int, ...] | range:
    """``512``, ``256,512,1024`` or ``256..2048``. The name shows in help.

    Commas part counts, so a number with commas for thousands is refused where it can be told from a list.
    """
    low, dots, high = text.partition("..")
    if dots:
        first, last = integer(low), integer(high)
        if last < first:
            raise click.BadParameter(f"{text[:24]!r} runs downwards: expected LOW..HIGH")
        return range(first, last + 1)
    parts = text.split(",") if len(text) <= 4096 else [text]
    if any(part[:1] == "0" and len(part) > 1 for part in parts[1:]):
        raise click.BadParameter(
            f"{text[:24]!r}: commas part counts: write {text.replace(',', '')[:24]} for one number"
        )
    several = tuple(integer(part) for part in parts)
    return several[0] if len(several) == 1 else several


def dtypes(text: str) -> str | tuple[str, ...]:
    """``bf16``, or several to choose from: ``bf16,fp8``. The name shows in help."""
    several = tuple(text.split(","))
    for name in several:
        if name not in DTYPES:
            raise click.BadParameter(f"{name[:24]!r} is not one of {', '.join(DTYPES)}")
    return several[0] if len(several) == 1 else several


def problem_options(command: F) -> F:
    """The options that state a problem: model, cluster, workload, runtime. A launch file states most."""
    gpus = click.option("--gpus", type=integer, help="Accelerators in the job.")
    return _problem_options(command, gpus, _DTYPE, required=False)


def cases_options(command: F) -> F:
    """The same, where the job may have several numbers of accelerators and precisions to choose from."""
    gpus = click.option("--gpus", required=True, type=counts, help="Accelerators: 512, 256,512,1024 or 256..2048.")
    several = click.option(
        "--dtype",
        type=dtypes,
        default="bf16",
        show_default=True,
        help=f"GEMM precision, or several to choose from: {', '.join(DTYPES)}.",
    )
    return _problem_options(command, gpus, several)


def objective_options(command: F) -> F:
    """What to be best at, and the limits to keep to."""
    decorators = (
        click.option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            default="step-time",
            show_default=True,
            help="What to be best at, over all GPU counts given.",
        ),
        click.option("--max-step-time", type=duration, help="Longest step that will do: 12s."),
        click.option("--tokens", type=number, help="Tokens of the whole run: 15e12."),
        click.option("--deadline", type=duration, help="Longest that the run of --tokens may take: 30d."),
        click.option("--price-per-gpu-hour", type=number, help="US dollars.  [default: the cluster profile's]"),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def _problem_options(command: F, gpus: Callable[[F], F], dtype: Callable[[F], F], required: bool = True) -> F:
    decorators = (
        click.option(
            "--model",
            required=required,
            metavar="FILE|PRESET",
            help="config.json, file of Megatron-LM arguments, or preset.",
        ),
        click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster profile, by name or YAML file."),
        gpus,
        click.option("--global-batch", required=required, type=integer, help="Sequences per optimizer step."),
        click.option("--seq-len", required=required, type=integer, help="Tokens per sequence."),
        click.option(
            "--launcher",
            metavar="NAME",
            help="Framework to write for; plan: any compares them all.  [default: one that has the model]",
        ),
        click.option("--runtime", metavar="NAME|FILE", help="Framework release.  [default: the launcher's]"),
        dtype,
        click.option(
            "--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True, help="Optimizer."
        ),
        click.option(
            "--expert-imbalance",
            type=float,
            default=1.0,
            show_default=True,
            help="Tokens of the busiest expert rank over the mean.",
        ),
        click.option(
            "--mtp/--no-mtp", default=True, show_default=True, help="Train the multi-token-prediction layers."
        ),
        click.option("--memory-margin", type=share, help="Share of the memory to leave free.  [default: 0.05]"),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def json_option(command: F) -> F:
    """``--json``: the whole answer on standard output and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON and nothing else.")(
        command
    )


def check_out(_: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse an output folder that is a file before anything long runs."""
    if value is not None and is_there(value) and not value.is_dir():
        raise InputError(f"--{param.name} {value}: expected a folder, this is a file")
    return value


def read_wishes(option: str, texts: Iterable[str]) -> dict[str, str]:
    """``("tp=4|8", "sp=on,pp=8")`` as ``{"tp": "4|8", "sp": "on", "pp": "8"}``; a key given again adds a choice.

    The search reads the values. Raises InputError where there is no ``key=value``.
    """
    wishes: dict[str, str] = {}
    for text in texts:
        for part in text.split(","):
            key, _, value = (x.strip() for x in part.partition("="))
            if not key or not value:
                raise InputError(f"{option} {text}: expected key=value, such as tp=8 or tp=4|8")
            wishes[key] = f"{wishes[key]}|{value}" if key in wishes else value
    return wishes

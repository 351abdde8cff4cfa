"""The options that ``plan`` and ``estimate`` share, and the reading of constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.costmodel.workload import DTYPES, OPTIMIZERS
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there

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


def problem_options(command: F) -> F:
    """The options that state a problem: model, cluster, workload, runtime."""
    decorators = (
        click.option(
            "--model",
            required=True,
            metavar="FILE|PRESET",
            help="config.json, file of Megatron-LM arguments, or preset.",
        ),
        click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster profile, by name or YAML file."),
        click.option("--gpus", required=True, type=integer, help="Accelerators in the job."),
        click.option("--global-batch", required=True, type=integer, help="Sequences per optimizer step."),
        click.option("--seq-len", required=True, type=integer, help="Tokens per sequence."),
        click.option("--launcher", metavar="NAME", help="Framework to write for.  [default: one that has the model]"),
        click.option("--runtime", metavar="NAME|FILE", help="Framework release.  [default: the launcher's]"),
        click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="GEMM precision."),
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

"""``--trace FILE``: the simulated step as a timeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import PATH
from .output import prepare_file, write_file

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.costmodel.estimate import Estimate
    from shardwise.costmodel.simulation import Simulation

OPTION = "--trace"

_F = TypeVar("_F", bound=Callable[..., Any])


def trace_option(command: _F) -> _F:
    """Adds ``--trace``."""
    return click.option(OPTION, type=PATH, metavar="FILE", help="Write the simulated step, for ui.perfetto.dev.")(
        command
    )


def prepare_trace(path: Path | None) -> None:
    """Check before long work that the file can be written. Raises InputError if not."""
    if path is not None:
        prepare_file(path, OPTION)


def write_trace(path: Path, answer: Estimate) -> Simulation:
    """Simulate one step of a prediction's layout and write its timeline, whole or not at all.

    Raises InputError where it cannot be written, and where the layout's schedule does not exist.
    """
    from shardwise.costmodel.simulation import simulate

    simulation = simulate(answer.problem, answer.strategy)
    write_file(path, json.dumps(simulation.trace(), allow_nan=False, separators=(",", ":")) + "\n", OPTION)
    return simulation


def print_trace(out: Console, path: Path, simulation: Simulation) -> None:
    """Where the timeline is, and what it shows."""
    from .report import text_line
    from .units import percent, seconds

    step, bubbles = simulation.step_time_s, simulation.bubble_by_rank_s
    low, high = (percent(b / step) for b in (min(bubbles), max(bubbles)))
    text_line(out, f"Simulated step {seconds(step)}, ranks idle {low} to {high} of it: written to {path}")

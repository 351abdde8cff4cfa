"""``shardwise estimate``: what one given layout costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .inputs import Request
from .options import json_option, problem_options
from .output import console, print_json
from .trace import prepare_trace, print_trace, trace_option, write_trace

if TYPE_CHECKING:
    from shardwise.costmodel.estimate import Estimate


@click.command()
@problem_options
@click.option(
    "--strategy",
    required=True,
    metavar="KEY=VALUE,…",
    help='The layout, such as "tp=8,pp=8,vpp=3,mbs=1,sp=on,recompute=selective,zero=1".',
)
@trace_option
@json_option
def estimate(strategy: str, trace: Path | None, as_json: bool, **options: Any) -> None:
    """Predict step time, memory and traffic of one layout, and say whether it fits and launches.

    What the layout leaves out follows the runtime's habits; dp and the number of micro-batches follow from the batch.
    """
    from shardwise.launchers.base import get_launcher
    from shardwise.search.planner import estimate as predict

    request = Request.read(**options)
    prepare_trace(trace)
    answer = predict(
        request.model,
        request.cluster,
        request.workload,
        strategy,
        runtime=request.runtime,
        memory_margin=request.memory_margin,
    )
    broken = [str(v) for v in get_launcher(request.launcher).violations(answer.problem, answer.strategy)]
    simulation = None if trace is None else write_trace(trace, answer)
    if as_json:
        print_json(_document(answer, request.launcher, broken))
        return
    _print(answer, request.launcher, broken)
    if trace is not None and simulation is not None:
        print_trace(console(), trace, simulation)


def _document(answer: Estimate, launcher: str, broken: list[str]) -> dict[str, Any]:
    from shardwise.search.plan import SCHEMA_VERSION

    proof = {"searched": False}
    rules = {"launcher": launcher, "violations": broken}
    return {"schema_version": SCHEMA_VERSION, **answer.as_dict(), **rules, "proof": proof}


def _print(answer: Estimate, launcher: str, broken: list[str]) -> None:
    from .report import (
        line,
        print_assumptions,
        print_headline,
        print_memory,
        print_problem,
        print_time,
        print_traffic,
        text_line,
    )

    out = console()
    print_problem(out, answer.problem)
    print_headline(out, answer, "layout")
    for text in broken:
        text_line(out, f"  {launcher} refuses it: {text}")
    line(out, "")
    for part in (print_time, print_memory, print_traffic):
        part(out, answer)
    print_assumptions(out, answer.assumptions, answer.mfu_convention)

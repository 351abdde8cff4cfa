"""``shardwise estimate``: what one given layout costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError

from .inputs import Request
from .launch_review import review_launch
from .options import json_option, problem_options
from .output import console, print_json
from .trace import prepare_trace, print_trace, trace_option, write_trace

if TYPE_CHECKING:
    from shardwise.costmodel.estimate import Estimate


@click.command()
@problem_options
@click.option(
    "--strategy",
    metavar="KEY=VALUE,…",
    help='The layout, such as "tp=8,pp=8,vpp=3,mbs=1,sp=on,recompute=selective,zero=1".',
)
@click.option(
    "--from-launch",
    metavar="FILE|FOLDER",
    help="Launch file(s) of a framework instead of --strategy: also says what to change.",
)
@click.option(
    "--var", multiple=True, metavar="NAME=VALUE", help="Variable of the shell that runs the launch file. Repeatable."
)
@trace_option
@json_option
@click.pass_context
def estimate(
    context: click.Context,
    /,
    strategy: str | None,
    from_launch: str | None,
    var: tuple[str, ...],
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict step time, memory and traffic of one layout, and say whether it fits and launches.

    What the layout leaves out follows the runtime's habits; dp and the number of micro-batches follow from the batch.
    With --from-launch the layout, the model and the job come from a launch file, and what the other options say wins.
    """
    if (strategy is None) == (from_launch is None):
        raise InputError("estimate: expected one of --strategy and --from-launch")
    if from_launch is not None:
        said = {name: value for name, value in options.items() if _given(context, name)}
        review_launch(from_launch, var, said, trace, as_json)
        return
    for name in ("model", "gpus", "global_batch", "seq_len"):
        if options[name] is None:
            raise click.MissingParameter(ctx=context, param=_parameter(context, name))
    if var:
        raise InputError(f"--var {var[0]}: goes with --from-launch only")
    _estimate_strategy(str(strategy), trace, as_json, options)


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(p for p in context.command.params if p.name == name)


def _estimate_strategy(strategy: str, trace: Path | None, as_json: bool, options: dict[str, Any]) -> None:
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
    broken = [str(r) for r in get_launcher(request.launcher).refusals(answer.problem, answer.strategy)]
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

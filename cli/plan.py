"""``shardwise plan``: the best layout, proven and explained, with its launch files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError
from shardwise.search.objective import Objective

from .failures import say_warning
from .inputs import Request
from .launcher_report import ANY, show_comparison
from .options import PATH, cases_options, integer, json_option, objective_options, read_wishes, seconds
from .output import console, prepare_folder, print_json, refuse_written, to_json, write_files
from .place import allocation_options, placement_documents, read_where
from .progress import progress_on_terminal
from .reports.options import Wanted, report_options
from .trace import prepare_trace, print_trace, trace_option, write_trace

if TYPE_CHECKING:
    from shardwise.search.infeasible import NothingFitsError
    from shardwise.search.launcher_comparison import LauncherComparison
    from shardwise.search.placement import Placement
    from shardwise.search.plan import Plan

    from .reports.content import Page


@click.command()
@cases_options
@objective_options
@click.option(
    "--pin", multiple=True, metavar="KEY=VALUE", help="Fix a dimension: tp=8, or a choice: tp=4|8. Repeatable."
)
@click.option("--ban", multiple=True, metavar="KEY=VALUE", help="Rule a value out: schedule=zb-v. Repeatable.")
@click.option("--min", "least", multiple=True, metavar="KEY=N", help="Lower limit: dp=4. Repeatable.")
@click.option("--max", "most", multiple=True, metavar="KEY=N", help="Upper limit: cp=1. Repeatable.")
@click.option("--top", type=integer, default="5", show_default=True, help="Layouts to show, the best included.")
@click.option("--pareto", type=integer, metavar="POINTS", help="Prove a front of step time against memory headroom: 8.")
@click.option("--time-limit", type=seconds, help="Stop searching after this many seconds; the gap is stated.")
@click.option("--refine/--no-refine", default=True, show_default=True, help="Refine the best layouts with Optuna.")
@click.option(
    "--prefer",
    type=click.Choice(("closed-form", "simulation")),
    default="closed-form",
    show_default=True,
    help="Whose word counts where a refined layout is quicker in simulation and slower in the closed form.",
)
@click.option("--trials", type=integer, help="Variations that the refinement tries.  [default: 12]")
@click.option(
    "--storage",
    metavar="FILE|URL",
    help="Where trials are kept, to continue or share: journal:FILE, FILE.log, sqlite:///FILE or another URL.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the refinement.")
@click.option("--out", type=PATH, metavar="DIR", help="Write launch files and plan.json into DIR.")
@trace_option
@report_options
@allocation_options
@json_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    pin: tuple[str, ...],
    ban: tuple[str, ...],
    least: tuple[str, ...],
    most: tuple[str, ...],
    out: Path | None,
    trace: Path | None,
    wanted: Wanted,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the parallel layout that fits in memory and has the shortest step, or is best by another objective.

    Exit code 2: an input cannot be used. Exit code 3: nothing fits; the message says what binds and what would help.
    """
    from shardwise.search.infeasible import NothingFitsError

    wishes = {
        "pins": read_wishes("--pin", pin),
        "bans": read_wishes("--ban", ban),
        "least": read_wishes("--min", least),
        "most": read_wishes("--max", most),
    }
    where = {name: options.pop(name) for name in ("topology", "topology_name", "nodes", "exclude", "degraded")}
    chosen = context.get_parameter_source("objective") is not click.core.ParameterSource.DEFAULT
    _check_where(where)
    objective = _objective(chosen, options)
    names = ("top", "pareto", "time_limit", "refine", "trials", "storage", "prefer", "seed")
    search = {name: options.pop(name) for name in names}
    every = options["launcher"] == ANY
    request = Request.read(**{**options, "launcher": None} if every else options)
    if out is not None:
        prepare_folder(out)
    prepare_trace(trace)
    if every:
        if where["topology"] is not None or where["nodes"] is not None:
            raise InputError("--topology and --nodes place one plan: name its launcher instead of --launcher any")
        if trace is not None:
            raise InputError(f"--trace {trace}: shows one plan: name its launcher instead of --launcher any")
        if wanted:
            raise InputError("--report and --figures show one plan: name its launcher instead of --launcher any")
        show_comparison(_search_every(request, wishes, objective, search), out, as_json)
        return
    try:
        answer, placement = _search(request, wishes, objective, where, **search)
    except NothingFitsError as error:
        _refuse_contradictions(request, wishes["pins"], error)
        if as_json:
            print_json(error.as_dict())
        raise
    _show(answer, placement, out, trace, wanted, as_json)


def _check_where(where: dict[str, Any]) -> None:
    """Refuse before the search what only an allocation gives a meaning to."""
    given = next((name for name, value in where.items() if value), None)
    if given is not None and where["topology"] is None and where["nodes"] is None:
        raise InputError(f"--{given.replace('_', '-')} goes with --topology FILE or --nodes LIST")


def _objective(chosen: bool, options: dict[str, Any]) -> Objective:
    """The objective and its limits, taken out of the options. Raises InputError in the options' words."""
    name, gpus = options.pop("objective"), options["gpus"]
    if isinstance(gpus, tuple) and not chosen:
        listed = ",".join(map(str, gpus))
        raise InputError(f"--gpus {listed[:40]} names {len(gpus)} counts: say by which --objective to choose")
    limits = {key: options.pop(key) for key in ("max_step_time", "tokens", "deadline", "price_per_gpu_hour")}
    if limits["deadline"] is not None and limits["tokens"] is None:
        raise InputError("--deadline says when a run must end: give its --tokens too")
    if name == "fewest-gpus" and limits["max_step_time"] is None and limits["deadline"] is None:
        raise InputError("--objective fewest-gpus needs a limit: --max-step-time, or --tokens with --deadline")
    return Objective(
        name,
        max_step_time_s=limits["max_step_time"],
        tokens=limits["tokens"],
        deadline_s=limits["deadline"],
        price_usd_per_gpu_hour=limits["price_per_gpu_hour"],
    )


def _search(
    request: Request,
    wishes: dict[str, dict[str, str]],
    objective: Objective,
    where: dict[str, Any],
    **search: Any,
) -> tuple[Plan, Placement | None]:
    """The plan, and its placement where the options say which hosts there are. Raises InputError."""
    from shardwise.search.plan_and_place import plan_and_place
    from shardwise.search.planner import plan as find

    asked = _asked(request, wishes, objective, **search)
    with progress_on_terminal() as progress:
        asked = {**asked, "launcher": request.named_launcher, "progress": progress}
        if where["topology"] is None and where["nodes"] is None:
            return find(request.model, request.cluster, request.workload, **asked), None
        return plan_and_place(request.model, request.cluster, request.workload, **read_where(where), **asked)


def _search_every(
    request: Request, wishes: dict[str, dict[str, str]], objective: Objective, search: dict[str, Any]
) -> LauncherComparison:
    from shardwise.search.launcher_comparison import compare_launchers

    asked = _asked(request, wishes, objective, **search)
    return compare_launchers(request.model, request.cluster, request.workload, **asked)


def _asked(
    request: Request,
    wishes: dict[str, dict[str, str]],
    objective: Objective,
    *,
    top: int,
    pareto: int | None,
    time_limit: float | None,
    refine: bool,
    trials: int | None,
    storage: str | None,
    prefer: str,
    seed: int,
) -> dict[str, Any]:
    """The options of ``shardwise.plan`` that the command line's mean."""
    from shardwise.search.refine import DEFAULT_TRIALS
    from shardwise.search.storage import check_storage

    if storage is not None and not refine:
        raise InputError("--storage keeps the trials of the refinement: leave out --no-refine")
    check_storage(storage)
    return {
        "num_gpus": request.gpus,
        "dtypes": request.dtypes,
        "objective": objective,
        "memory_margin": request.memory_margin,
        "runtime": request.named_runtime,
        "pins": wishes["pins"],
        "bans": wishes["bans"],
        "least": wishes["least"],
        "most": wishes["most"],
        "top": top,
        "pareto_points": pareto or 0,
        "time_limit_s": time_limit,
        "refine_trials": (trials or DEFAULT_TRIALS) if refine else 0,
        "storage": storage,
        "prefer": prefer,
        "seed": seed,
    }


def _refuse_contradictions(request: Request, pins: dict[str, str], error: NothingFitsError) -> None:
    """A request that no memory would satisfy is bad input, not an infeasible plan. Raises InputError for it."""
    if error.closest is not None or not isinstance(request.gpus, int):
        return
    if pins and "dp" not in pins and not any("|" in value for value in pins.values()):
        from shardwise.search.planner import estimate

        # The pins alone as a layout: this names the rule they break.
        estimate(request.model, request.cluster, request.workload, ",".join(f"{k}={v}" for k, v in pins.items()))
    raise InputError(str(error))


def _show(
    answer: Plan, placement: Placement | None, out: Path | None, trace: Path | None, wanted: Wanted, as_json: bool
) -> None:
    """Write the files, then print: what is printed has been written."""
    from .placement_report import print_placement
    from .plan_report import SCRIPT, print_command, print_no_files, print_plan, print_written
    from .report import text_line

    document = answer.as_dict()
    files = _launch_files(answer, placement, wanted=out is not None)
    if out is not None and SCRIPT in files and len(answer.short_list) > 1:
        files |= _benchmark_files(answer)
    placed = {} if placement is None or out is None else placement_documents(placement)
    everything = {**placed, **files, "plan.json": to_json(document) + "\n"}
    refuse_written("--report", wanted.report, out, everything, "--out")
    refuse_written("--trace", trace, out, everything, "--out")
    written = [] if out is None else write_files(out, everything)
    simulation = None if trace is None else write_trace(trace, answer.estimate)
    reported = _report(answer, files, wanted)
    if as_json:
        print_json(document if placement is None else {**document, "placement": placement.as_dict()})
        return
    terminal = console()
    print_plan(terminal, answer)
    if placement is not None:
        print_placement(terminal, placement)
    if out is not None:
        print_written(terminal, out, written)
    elif SCRIPT in files:
        print_command(terminal, files, answer.launcher)
    print_no_files(terminal, answer)
    if trace is not None and simulation is not None:
        print_trace(terminal, trace, simulation)
    for text in reported:
        text_line(terminal, text)


def _report(answer: Plan, files: dict[str, str], wanted: Wanted) -> list[str]:
    """Write the report that is wanted of a plan, and say where it is."""

    def page() -> Page:
        from .reports.plan_page import plan_page

        return plan_page(answer, files)

    return wanted.write(page)


def _launch_files(answer: Plan, placement: Placement | None, wanted: bool) -> dict[str, str]:
    """The launcher's files, for the hosts of a placement in their order.

    None, with a word on standard error where they are wanted, if the launcher cannot write any.
    """
    from shardwise.launchers.base import LaunchSettings

    try:
        return answer.launch(settings=None if placement is None else LaunchSettings(hosts=placement.hosts))
    except InputError as error:
        if wanted:
            say_warning(f"no launch files: {error}")
        return {}


def _benchmark_files(answer: Plan) -> dict[str, str]:
    """The script that tries the short list; none, with a word on standard error, if the launcher cannot write it."""
    try:
        return answer.benchmark()
    except InputError as error:
        say_warning(f"no benchmark of the short list: {error}")
        return {}

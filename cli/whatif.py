"""``shardwise whatif``: scaling, sensitivity, break-even, cost and comparison, each a few searches and one answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.costmodel.workload import DTYPES, OPTIMIZERS
from shardwise.hardware_profiles.errors import InputError

from .options import counts as several
from .options import duration, integer, json_option, number, read_wishes
from .output import console, print_json
from .reports.options import Wanted, report_options
from .study import counted
from .whatif_compare import compare

if TYPE_CHECKING:
    from shardwise.search.studies.whatif import Runs

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def whatif() -> None:
    """Ask how the best layout and its step change with the cluster, its size and its price.

    Every point is a whole search. Larger grids, resuming and tables: ``shardwise study``.
    """


def base_options(*, cluster: bool = True, gpus: bool = True) -> Callable[[F], F]:
    """The options that state the job all questions start from, handed on as one mapping ``base``."""
    options = [click.option("--model", required=True, metavar="FILE|PRESET", help="config.json, arguments or preset.")]
    if cluster:
        options.append(click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster profile."))
    if gpus:
        options.append(click.option("--gpus", required=True, type=integer, help="Accelerators in the job."))
    options += [
        click.option("--global-batch", required=True, type=integer, help="Sequences per optimizer step."),
        click.option("--seq-len", required=True, type=integer, help="Tokens per sequence."),
        click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="GEMM precision."),
        click.option(
            "--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True, help="Optimizer."
        ),
        click.option("--launcher", metavar="NAME", help="Framework to plan for."),
        click.option("--runtime", metavar="NAME|FILE", help="Framework release."),
        click.option("--pin", multiple=True, metavar="KEY=VALUE", help="Hold a dimension: tp=8. Repeatable."),
        click.option("--workers", type=integer, default="1", show_default=True, help="Processes of this machine."),
    ]

    def decorate(command: F) -> F:
        @wraps(command)
        def gathered(*args: Any, workers: int, pin: tuple[str, ...], **kwargs: Any) -> Any:
            names = ("model", "cluster", "gpus", "global_batch", "seq_len", "dtype", "optimizer", "launcher", "runtime")
            base = {name: kwargs.pop(name) for name in names if name in kwargs}
            base = {name: value for name, value in base.items() if value is not None}
            base["pin"] = read_wishes("--pin", pin)
            with counted() as progress:
                from shardwise.search.studies.whatif import Runs

                return command(*args, base=base, runs=Runs(workers, progress=progress.tell), **kwargs)

        made: Any = gathered
        for option in reversed(options):
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


@whatif.command()
@base_options(gpus=False)
@click.option(
    "--gpus", "counts", required=True, metavar="N,N,…|LOW..HIGH", help="Counts, or a range that is doubled through."
)
@click.option("--weak", is_flag=True, help="Let the batch grow with the accelerators.")
@click.option("--bound", type=float, default=0.8, show_default=True, help="Efficiency to look for the end of.")
@report_options
@json_option
def scale(
    base: dict[str, Any], runs: Runs, counts: str, weak: bool, bound: float, wanted: Wanted, as_json: bool
) -> None:
    """Follow the best step over more and more accelerators, and find where efficiency falls under a bound."""
    from shardwise.search.studies.whatif import scale as ask

    answer = ask(base, doubled(counts), weak=weak, bound=bound, runs=runs)
    written = wanted.write(lambda: _pages().scaling_page(base, answer))
    if as_json:
        print_json({
            "weak": answer.weak, "bound": answer.bound, "drops_between": answer.drops,
            "points": [{"efficiency": e, **row} for e, row in zip(answer.efficiency, answer.rows, strict=True)],
        })  # fmt: skip
        return
    from .whatif_report import print_scaling

    print_scaling(console(), answer)
    _say(written)


def _pages() -> ModuleType:
    """The pages of questions, loaded where one is wanted."""
    from .reports import question_page

    return question_page


def _say(written: list[str]) -> None:
    """Where the report of an answer is."""
    from .report import text_line

    terminal = console()
    for text in written:
        text_line(terminal, text)


def doubled(text: str) -> list[int]:
    """``64,128`` or ``64..1024``, a range that is doubled through. Raises InputError."""
    low, dots, high = text.partition("..")
    try:
        if not dots:
            return [integer(part) for part in text.split(",")]
        first, last = integer(low), integer(high)
    except click.BadParameter as error:
        raise InputError(f"--gpus {text[:40]}: {error.message}") from None
    if last < first:
        raise InputError(f"--gpus {text}: runs downwards; expected LOW..HIGH")
    counts = [first]
    while counts[-1] * 2 <= last:
        counts.append(counts[-1] * 2)
    return counts


@whatif.command()
@base_options()
@click.option("--change", type=float, default=0.1, show_default=True, help="Share by which each resource is varied.")
@report_options
@json_option
def sensitivity(base: dict[str, Any], runs: Runs, change: float, wanted: Wanted, as_json: bool) -> None:
    """What a little more of each resource would buy, the strongest first: the figures of a tornado chart."""
    from dataclasses import asdict

    from shardwise.search.studies.whatif import sensitivity as ask

    answer = ask(base, change=change, runs=runs)
    written = wanted.write(lambda: _pages().sensitivity_page(base, answer))
    if as_json:
        print_json({
            "step_time_s": answer.step_time_s, "change": answer.change,
            "influences": [asdict(i) for i in answer.influences],
        })  # fmt: skip
        return
    from .whatif_report import print_sensitivity

    print_sensitivity(console(), answer)
    _say(written)


@whatif.command()
@base_options()
@click.option("--vary", required=True, metavar="PATH", help="What varies: cluster.tiers.scale-out.bytes_per_s …")
@click.option("--from", "low", required=True, type=number, help="The least value.")
@click.option("--to", "high", required=True, type=number, help="The greatest value.")
@click.option("--against", metavar="CLUSTER", help="Another cluster that is to be equalled.")
@click.option("--against-gpus", type=integer, help="Its accelerators.  [default: as many]")
@click.option("--price", type=number, help="US dollars per GPU-hour; with a price, clusters are compared by cost.")
@click.option("--against-price", type=number, help="US dollars per GPU-hour of the other cluster.")
@report_options
@json_option
def breakeven(
    base: dict[str, Any],
    runs: Runs,
    vary: str,
    low: float,
    high: float,
    against: str | None,
    against_gpus: int | None,
    price: float | None,
    against_price: float | None,
    wanted: Wanted,
    as_json: bool,
) -> None:
    """The value at which another layout becomes the best, or at which another cluster is equalled."""
    from shardwise.search.studies.breakeven import changes, even

    looked: dict[float, Any] = {}
    alone = next((n for n, v in (("gpus", against_gpus), ("price", against_price)) if v is not None), None)
    if against is None and alone is not None:
        raise InputError(f"--against-{alone} is of the other cluster: name it with --against")
    if against is None:
        found = changes(base, vary, low, high, progress=runs.progress, looked=looked)
        written = wanted.write(lambda: _pages().changes_page(base, vary, (low, high), found, looked))
        if as_json:
            print_json([c.as_dict() for c in found])
            return
        from .whatif_report import print_changes

        print_changes(console(), vary, (low, high), found)
        _say(written)
        return
    priced = price is not None or against_price is not None or vary == "price_per_gpu_hour"
    metric = "usd_per_million_tokens" if priced else "step_time_s"
    other = {**base, "cluster": against, "gpus": against_gpus or base["gpus"], "price_per_gpu_hour": against_price}
    priced_base = {**base, "price_per_gpu_hour": price}
    value = even(priced_base, other, vary, low, high, metric, looked=looked)
    written = wanted.write(lambda: _pages().even_page(priced_base, vary, (low, high), against, metric, value, looked))
    if as_json:
        print_json({"path": vary, "metric": metric, "value": value})
        return
    from .whatif_report import print_even

    print_even(console(), vary, (low, high), against, metric, value)
    _say(written)


@whatif.command("fewest-gpus")
@base_options(gpus=False)
@click.option("--gpus", "counts", type=several, help="Counts to look at: 64,96,128 or 8..1024.  [default: 1..4096]")
@click.option("--max-step-time", type=duration, help="Longest step that will do: 12s.")
@click.option("--tokens", type=number, help="Tokens of the whole run: 15e12.")
@click.option("--deadline", type=duration, help="Longest that the run of --tokens may take: 30d.")
@click.option("--tokens-per-s", type=number, help="Least throughput of the whole job.")
@click.option("--price-per-gpu-hour", type=number, help="US dollars.  [default: the cluster profile's]")
@json_option
def fewest_gpus(
    base: dict[str, Any],
    runs: Runs,
    counts: int | tuple[int, ...] | range | None,
    max_step_time: float | None,
    tokens: float | None,
    deadline: float | None,
    tokens_per_s: float | None,
    price_per_gpu_hour: float | None,
    as_json: bool,
) -> None:
    """The fewest GPUs on which the job fits at all, or keeps to a limit, and what the counts around that do."""
    from shardwise.search.studies.fewest import DEFAULT_COUNTS, Limits
    from shardwise.search.studies.fewest import fewest_gpus as ask

    if deadline is not None and tokens is None:
        raise InputError("--deadline says when a run must end: give its --tokens too")
    limits = Limits(max_step_time, tokens, deadline, tokens_per_s)
    priced = {**base, "price_per_gpu_hour": price_per_gpu_hour}
    answer = ask(priced, DEFAULT_COUNTS if counts is None else counts, limits, runs=runs)
    if as_json:
        print_json(answer.as_dict())
        return
    from .whatif_report import print_fewest

    print_fewest(console(), answer)


@whatif.command()
@base_options(cluster=False, gpus=False)
@click.option(
    "--on", "offers", required=True, multiple=True, metavar="CLUSTER:GPUS[:PRICE]",
    help="A cluster, its accelerators, US dollars per GPU-hour. Repeatable.",
)  # fmt: skip
@click.option("--tokens", required=True, type=number, help="Tokens to train on.")
@report_options
@json_option
def cost(
    base: dict[str, Any], runs: Runs, offers: tuple[str, ...], tokens: float, wanted: Wanted, as_json: bool
) -> None:
    """GPU-hours, days and dollars for some tokens on several clusters."""
    from shardwise.search.studies.whatif import Bill
    from shardwise.search.studies.whatif import cost as ask

    answer = ask(base, [_offer(f"--on {text}", text) for text in offers], tokens, runs=runs)
    written = wanted.write(lambda: _pages().cost_page(base, tokens, answer))
    if as_json:
        print_json([
            {"gpu_hours": b.gpu_hours, "days": b.days, "usd": b.usd, **b.row} if isinstance(b, Bill) else b
            for b in answer
        ])  # fmt: skip
        return
    from .whatif_report import print_bills

    print_bills(console(), tokens, answer)
    _say(written)


def _offer(named: str, text: str) -> tuple[str, int, float | None]:
    """``dgx-h100:1024:2.5``. Raises InputError that begins with ``named`` and says what was expected."""
    name, _, rest = text.partition(":")
    gpus, colon, price = rest.partition(":")
    try:
        if name and gpus:
            return name, integer(gpus), number(price) if colon else None
    except click.BadParameter as error:
        raise InputError(f"{named[:80]}: {error.message}") from None
    raise InputError(f"{named[:80]}: expected CLUSTER:GPUS or CLUSTER:GPUS:PRICE")


whatif.add_command(compare)

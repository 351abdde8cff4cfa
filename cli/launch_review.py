"""``shardwise estimate --from-launch``: an existing launch file, what it costs and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.hardware_profiles.errors import InputError

from . import words
from .inputs import read_model
from .output import console, print_json
from .report import (
    line,
    new_table,
    print_assumptions,
    print_headline,
    print_memory,
    print_problem,
    print_time,
    print_traffic,
    text_line,
)
from .trace import prepare_trace, print_trace, write_trace
from .units import change as price
from .units import gib, seconds

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.launchers.parsed import Option, Parsed
    from shardwise.search.review import Change, Review

_MOST_LISTED = 12
"""Options of one list that are printed; JSON has them all."""


def read_variables(texts: Iterable[str]) -> dict[str, str]:
    """``("TP=8", "NODES=16")`` as a mapping. Raises InputError where there is no ``NAME=VALUE``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--var {text}: expected NAME=VALUE, such as TP=8")
        found[name] = value
    return found


def review_launch(path: str, variables: Iterable[str], said: dict[str, Any], trace: Path | None, as_json: bool) -> None:
    """Review a launch file and print it; ``said`` are the options of the problem that were given."""
    from shardwise.costmodel.problem import MEMORY_MARGIN
    from shardwise.search.review import review

    prepare_trace(trace)
    names = {"dtype": "dtype", "optimizer": "optimizer", "expert_imbalance": "expert_imbalance", "mtp": "train_mtp"}
    answer = review(
        path,
        said["cluster"],
        launcher=said.get("launcher"),
        model=read_model(said["model"]) if said.get("model") else None,
        num_gpus=said.get("gpus"),
        global_batch_size=said.get("global_batch"),
        sequence_length=said.get("seq_len"),
        variables=read_variables(variables),
        workload_changes={field: said[option] for option, field in names.items() if option in said},
        runtime=said.get("runtime"),
        memory_margin=said.get("memory_margin") or MEMORY_MARGIN,
    )
    simulation = None if trace is None else write_trace(trace, answer.estimate)
    if as_json:
        print_json(document(answer))
        return
    print_review(answer)
    if trace is not None and simulation is not None:
        print_trace(console(), trace, simulation)


def document(answer: Review) -> dict[str, Any]:
    """The JSON answer: that of ``estimate`` with options and changes."""
    from shardwise.search.plan import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, **answer.as_dict(), "proof": {"searched": False}}


def print_review(answer: Review) -> None:
    """What the file costs, what is refused, what to change, and what was not understood."""
    out, present = console(), answer.estimate
    print_problem(out, present.problem)
    print_headline(out, present, "layout")
    for refusal in answer.refusals:
        text_line(out, f"  {answer.parsed.launcher} refuses it: {refusal}")
    line(out, "")
    _print_changes(out, answer)
    for part in (print_time, print_memory, print_traffic):
        part(out, present)
    print_options(out, answer.parsed)
    print_assumptions(out, answer.assumptions, present.mfu_convention)


def _print_changes(out: Console, answer: Review) -> None:
    if not any((answer.best_one, answer.best_two, answer.optimum)):
        why = f": {answer.optimum_note}" if answer.optimum_note else " is known under the cost model"
        text_line(out, f"What to change: nothing better{why}")
        line(out, "")
        return
    table = new_table("What to change", "change", "step", "gain", "GiB", "layout")
    rows = (("best single change", answer.best_one), ("best two changes", answer.best_two), ("optimum", answer.optimum))
    for label, found in rows:
        if found is not None:
            table.add_row(label, *_cells(answer, found))
    out.print(table)
    for label, found in rows:
        if found is not None:
            text_line(out, f"  {label}: {_items(found)}")
    if answer.optimum_note:
        text_line(out, f"  no optimum: {answer.optimum_note}")
    line(out, "")


def _cells(answer: Review, found: Change) -> tuple[str, ...]:
    present = answer.estimate
    ratio = price(found.estimate.step_time_s / present.step_time_s)
    layout = words.short_layout(found.estimate.strategy, present.problem.model.is_moe)
    return seconds(found.estimate.step_time_s), ratio, gib(found.estimate.peak_memory_bytes), layout


def _items(found: Change) -> str:
    from shardwise.launchers.refusal import show

    derived = ("dp", "num_microbatches")
    return ", ".join(
        f"{d} {show(a)} -> {show(b)}" + (f" ({o})" if o.startswith("-") else "")
        for d, o, a, b in found.items
        if d not in derived
    )


def print_options(out: Console, parsed: Parsed, whose: str = "") -> None:
    """What was not understood or not counted; how many options were."""
    _print_list(out, f"Options{whose} that were not understood", parsed.unknown)
    _print_list(out, f"Options{whose} that the prediction does not count", parsed.unmodelled)
    counted = f"{len(parsed.read)} read, {len(parsed.neutral)} without effect on time or memory"
    line(out, f"[bold]Options{whose}[/bold]: {counted} (--json lists all)")


def _print_list(out: Console, title: str, options: tuple[Option, ...]) -> None:
    if not options:
        return
    line(out, f"[bold]{title}[/bold]")
    for option in options[:_MOST_LISTED]:
        text_line(out, f"  - {option}")
    if len(options) > _MOST_LISTED:
        line(out, f"  - and {len(options) - _MOST_LISTED} more (--json lists all)")

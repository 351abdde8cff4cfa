"""The report of a plan: what to run, what it will take, why, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.hardware_profiles.errors import InputError

from .. import words
from ..goal_report import goal_rows
from ..plan_report import SCRIPT, paste, refinement_lines, search_words, verdict
from ..report import conventions, headline, problem_words
from ..units import gib, percent, seconds, significant
from . import timeline
from .content import Block, Bullets, Chart, Column, Command, Facts, Files, Page, Section, Table, Text
from .plan_figures import (
    alternatives_chart,
    memory_chart,
    pareto_chart,
    present,
    time_chart,
    traffic_chart,
    why_chart,
)

if TYPE_CHECKING:
    from shardwise.search.plan import Plan


def plan_page(plan: Plan, files: dict[str, str]) -> Page:
    """The page of a plan; ``files`` are its launch files, by name, as they are to be copied."""
    e, problem = plan.estimate, plan.problem
    low, high = e.interval_s
    free = gib(e.capacity_bytes - e.peak_memory_bytes)
    return Page(
        title=f"{problem.model.name} on {problem.cluster.num_gpus:,} × {problem.cluster.accelerator.name}",
        subtitle=problem_words(problem),
        headline=(
            ("Step time", seconds(e.step_time_s), f"{seconds(low)} to {seconds(high)}"),
            ("Throughput", significant(e.tokens_per_s_per_gpu), "tokens/s/GPU"),
            ("MFU", percent(e.mfu), f"of the dense {problem.gemm_dtype} peak"),
            (
                "Peak memory",
                f"{gib(e.peak_memory_bytes)} GiB",
                f"{free} GiB of the usable {gib(e.capacity_bytes)} free",
            ),
        ),
        sections=tuple(section for section in _sections(plan, files) if section.blocks),
    )


def _sections(plan: Plan, files: dict[str, str]) -> tuple[Section, ...]:
    e = plan.estimate
    facts = [*headline(e, "recommended"), ("limit", plan.binding.message), *goal_rows(plan)]
    return (
        Section("recommendation", "Recommendation", (Facts(facts),)),
        Section("launch", "Launch", _launch(plan, files)),
        Section("time", "Where the time goes", (time_chart(e), *_timeline(plan))),
        Section("memory", "Memory", (memory_chart(e),)),
        Section("traffic", "Traffic", (traffic_chart(e),) if e.traffic else (Text(("No traffic: one accelerator.",)),)),
        Section("why", "Why this layout", _why(plan)),
        Section("alternatives", "Alternatives", _alternatives(plan)),
        Section("certainty", "How sure", _certainty(plan)),
        Section(
            "assumptions",
            "Conventions and assumptions",
            (Bullets(conventions(plan.assumptions, e.mfu_convention)),),
        ),
    )


def _launch(plan: Plan, files: dict[str, str]) -> tuple[Block, ...]:
    if not files:
        return (Text(("No launch files could be written for this layout: see the assumptions.",)),)
    blocks: list[Block] = []
    if SCRIPT in files:
        blocks.append(Command(f"Paste on every host, for {plan.launcher}", paste(files)))
    return (*blocks, Text(("The launch files, as shardwise plan --out DIR writes them:",)), Files(files))


def _timeline(plan: Plan) -> tuple[Block, ...]:
    """The simulated step, where the schedule can be simulated."""
    from shardwise.costmodel.simulation import simulate

    tuned = plan.refinement.tuned if plan.refinement is not None else {}
    try:
        return (timeline.chart(simulate(plan.problem, plan.strategy, **tuned)),)
    except InputError as error:
        return (Text((f"No timeline: {error}",)),)


def _why(plan: Plan) -> tuple[Block, ...]:
    found = why_chart(plan)
    intro = Text(
        ("What a step would take with another value of one dimension, everything else chosen anew. A price marked ≤ is "
         "that of the best layout found, not proven.",)
    )  # fmt: skip
    return (intro, found) if found is not None else ()


def _alternatives(plan: Plan) -> tuple[Block, ...]:
    from shardwise.costmodel.estimate import tell_apart

    within, many = percent(tell_apart(plan.problem)), len(plan.short_list)
    charts: tuple[Chart, ...] = present((alternatives_chart(plan), pareto_chart(plan)))
    if many == 1:
        said = f"No other layout is predicted within {within} of this one, the error of such differences."
        return (*charts, Text((said,)))
    said = (
        f"These {many} layouts are within the error of each other ({within}): benchmark them (--out DIR writes a "
        "script)."
    )
    columns = (Column("layout", "layout"), Column("step time", "step_time_s", seconds))
    moe = plan.problem.model.is_moe
    rows = tuple((words.short_layout(x.strategy, moe), x.step_time_s) for x in plan.short_list)
    return (*charts, Text((said,)), Table("Short list", columns, rows))


def _certainty(plan: Plan) -> tuple[Block, ...]:
    low, high = plan.estimate.interval_s
    lines = [
        _sentence(verdict(plan.proof)),
        f"{search_words(plan.proof)}.",
        *map(_sentence, refinement_lines(plan)),
        f"The interval of the step time, {seconds(low)} to {seconds(high)}, comes from the errors of such predictions "
        "on published runs.",
    ]
    return (Bullets(lines),)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."

"""The terminal summary of a plan: the recommendation, why it is one, what came next, and what to paste."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import words
from .goal_report import print_goal
from .report import (
    line,
    new_table,
    plain,
    print_assumptions,
    print_headline,
    print_memory,
    print_problem,
    print_time,
    text_line,
)
from .report import print_traffic as print_traffic_table
from .units import change, gib, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.plan import Notch, Plan
    from shardwise.search.proof import Proof

SCRIPT = "launch.sh"
"""The launch file that starts the job on one host; the command to paste is its text."""

BENCHMARK, CANDIDATES = "benchmark.sh", "candidates"
"""The script that tries the short list, and the folder of its layouts."""

_NOT_PASTED = ("sbatch.sh", "hostfile")
"""Launch files that the script does not read."""


def print_plan(out: Console, plan: Plan) -> None:
    """Everything but the command."""
    print_problem(out, plan.problem)
    print_headline(out, plan.estimate, "recommended")
    text_line(out, f"  {'limit':<14}  {plan.binding.message}")
    print_goal(out, plan)
    out.print()
    for part in (print_time, print_memory, print_traffic_table):
        part(out, plan.estimate)
    _print_why(out, plan)
    _print_alternatives(out, plan)
    _print_short_list(out, plan)
    _print_pareto(out, plan)
    _print_proof(out, plan)
    print_assumptions(out, plan.assumptions, plan.estimate.mfu_convention)


def print_command(out: Console, files: dict[str, str], launcher: str) -> None:
    """The command to paste on every host, comments left out."""
    line(out, f"[bold]To launch[/bold] with {launcher} (add --out DIR for the files, with a Slurm script and comments)")
    out.print(paste(files), markup=False, soft_wrap=True)


def paste(files: dict[str, str]) -> str:
    """What to paste on every host: the files that the script reads, then the script without its comments."""
    texts = [f"cat >{name} <<'END'\n{files[name]}END" for name in sorted(set(files) - {SCRIPT, *_NOT_PASTED})]
    body = [text for text in files[SCRIPT].splitlines() if text.strip() and not text.lstrip().startswith("#")]
    return "\n".join([*texts, "bash <<'LAUNCH'", *body, "LAUNCH"])


def print_no_files(out: Console, plan: Plan) -> None:
    """One line where a plan has no launch files because no launcher could be chosen for it."""
    from shardwise.launchers.choice import NO_FILES

    for note in plan.assumptions:
        if note.startswith(NO_FILES):
            text_line(out, f"No launch files: {plain(note.removeprefix(NO_FILES))}")


def print_written(out: Console, folder: Path, written: list[Path]) -> None:
    """Which files were written, and the command that submits them."""
    names = [str(p.relative_to(folder)) for p in written]
    top = ", ".join(name for name in names if not name.startswith(f"{CANDIDATES}/"))
    text_line(out, f"Written to {folder}: {top}" + (f", {CANDIDATES}/" if any("/" in name for name in names) else ""))
    if any(p.name == "sbatch.sh" for p in written):
        text_line(out, f"  cd {shlex.quote(str(folder))} && sbatch sbatch.sh")
    elif any(p.name == SCRIPT for p in written):
        text_line(out, f"  cd {shlex.quote(str(folder))} && bash {SCRIPT}")
    if any(name == BENCHMARK for name in names):
        text_line(out, f"To try the short list: bash {shlex.quote(str(folder / BENCHMARK))}")


def _print_why(out: Console, plan: Plan) -> None:
    table = new_table(
        "Why not otherwise (everything else chosen anew; ≤ at most, not proven)", "change", "step", "price", "why"
    )
    for notch in plan.why:
        name = plain(notch.dimension)
        table.add_row(f"{name} {notch_value(notch.value)} → {notch_value(notch.other)}", *_price(plan, notch))
    out.print(table)


def _price(plan: Plan, notch: Notch) -> tuple[str, str, str]:
    if notch.step_time_s is None:
        return "", "", notch.reason
    price = f"{'' if notch.exact else '≤ '}{change(notch.step_time_s / plan.step_time_s)}"
    layout = "" if notch.strategy is None else words.short_layout(notch.strategy, plan.problem.model.is_moe)
    return seconds(notch.step_time_s), price, layout


def notch_value(value: Any) -> str:
    """A value of a dimension in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else plain(str(value))


def _print_alternatives(out: Console, plan: Plan) -> None:
    if not plan.alternatives:
        return
    table = new_table("Runners-up", "layout", "step", "price", "tokens/s/GPU", "MFU", "GiB")
    for other in (plan.estimate, *plan.alternatives):
        table.add_row(
            words.short_layout(other.strategy, plan.problem.model.is_moe),
            seconds(other.step_time_s),
            change(other.step_time_s / plan.step_time_s) if other is not plan.estimate else "best",
            significant(other.tokens_per_s_per_gpu),
            percent(other.mfu),
            gib(other.peak_memory_bytes),
        )
    out.print(table)


def _print_short_list(out: Console, plan: Plan) -> None:
    """Which layouts the predictions cannot tell apart, and what to do about it."""
    from shardwise.costmodel.estimate import tell_apart

    within, many = percent(tell_apart(plan.problem)), len(plan.short_list)
    line(out, "[bold]Short list[/bold]")
    if many == 1:
        line(out, f"  no other layout is predicted within {within} of this one, the error of such differences")
        return
    said = f"these {many} layouts are within the error of each other ({within}): benchmark them"
    line(out, f"  {said} (--out DIR writes a script)")
    for e in plan.short_list:
        layout = words.short_layout(e.strategy, plan.problem.model.is_moe)
        text_line(out, f"  {seconds(e.step_time_s)}  {layout}")


def _print_pareto(out: Console, plan: Plan) -> None:
    """The front, where one was proven: what memory headroom costs."""
    if any(p.bound_s is None for p in plan.pareto):
        return
    table = new_table("Step time against memory headroom (proven)", "layout", "step", "price", "GiB", "free")
    for point in plan.pareto:
        assert point.bound_s is not None
        gap = 1.0 - point.bound_s / point.step_time_s
        unsure = f" (gap {gap:.1%})" if gap > plan.proof.tolerance else ""
        table.add_row(
            words.short_layout(point.strategy, plan.problem.model.is_moe),
            f"{seconds(point.step_time_s)}{unsure}",
            change(point.step_time_s / plan.step_time_s) if point is not plan.pareto[0] else "plan",
            gib(point.peak_memory_bytes),
            gib(point.headroom_bytes),
        )
    out.print(table)


def _print_proof(out: Console, plan: Plan) -> None:
    """How sure the answer is, and what the search did for it."""
    proof = plan.proof
    line(out, "[bold]Proof[/bold]")
    line(out, f"  {verdict(proof)}")
    line(out, f"  {search_words(proof)}; {seconds(proof.time_s)}")
    for text in refinement_lines(plan):
        text_line(out, f"  {text}")


def search_words(proof: Proof) -> str:
    """What became of the layouts that were considered."""
    removed = sum(proof.removed_by_rule.values())
    return (
        f"{proof.considered:,} layouts: {removed:,} removed by rules, {proof.bounded_out:,} ruled out by a bound, "
        f"{proof.evaluated:,} evaluated; {proof.solved:,} layer splits solved"
    )


def refinement_lines(plan: Plan) -> list[str]:
    """What the simulation of a step says of the plan and of layouts near it; nothing where nobody asked it."""
    told = plan.refinement
    if told is None:
        return []
    stopped = f" (stopped by {told.stopped_by})" if told.stopped_by else ""
    said = [f"refinement: {told.message}{stopped}"]
    if told.simulated_before_s is None or told.simulated_s is None or told.quickest_s is None:
        return said
    said.append(
        f"simulated step: {seconds(told.simulated_s)}, the proven optimum's {seconds(told.simulated_before_s)}; "
        f"{told.trials:,} variations tried, {told.feasible:,} fit"
    )
    if told.quickest is not None:
        layout = words.short_layout(told.quickest.strategy, plan.problem.model.is_moe)
        said.append(
            f"quickest in simulation: {seconds(told.quickest_s)} {layout}; the closed form has it "
            f"{change(told.quickest.step_time_s / plan.step_time_s)} at {seconds(told.quickest.step_time_s)}"
        )
    return said


def verdict(proof: Proof) -> str:
    """How sure the answer is."""
    if not proof.gap:
        return f"no layout of the space is faster under the cost model (to within {proof.tolerance:.2%})"
    stopped = f" (stopped by {proof.stopped_by})" if proof.stopped_by else ""
    bound = seconds(proof.best_bound_s)
    return f"not proven best: nothing is faster than {bound}, a gap of {proof.gap:.2%}{stopped}"

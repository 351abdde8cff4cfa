"""What the objective makes of a plan, and what became of the other GPU counts and precisions asked about."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .report import LABEL_WIDTH, new_table, text_line
from .units import count, percent, seconds, significant

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.cases import CaseResult
    from shardwise.search.goal import Goal
    from shardwise.search.plan import Plan

_MOST_ROWS = 12
"""Cases shown one by one; beyond, those that a bound or a rule took out are counted."""

_DAY_S = 86400.0


def print_goal(out: Console, plan: Plan) -> None:
    """Nothing for the plain question: the shortest step on one number of GPUs."""
    for label, text in goal_rows(plan):
        text_line(out, f"  {label:<{LABEL_WIDTH}}  {text}")
    if len(plan.goal.cases) > 1:
        out.print()
        _print_cases(out, plan)


def goal_rows(plan: Plan) -> list[tuple[str, str]]:
    """The objective, its limit and what it comes to, by name."""
    goal = plan.goal
    rows = [("objective", _objective_words(plan))] if goal.objective != "step-time" or len(goal.cases) > 1 else []
    if goal.limit_s is not None:
        rows.append(("longest step", f"{seconds(goal.limit_s)} allowed"))
    if goal.usd_per_token is not None:
        rows.append(("cost", f"{_usd(goal.usd_per_token * 1e6)} per million tokens"))
    if goal.run_s is not None:
        price = "" if goal.run_usd is None else f", {_usd(goal.run_usd)}"
        rows.append(("whole run", f"{significant(goal.run_s / _DAY_S)} days{price}"))
    return rows


def _objective_words(plan: Plan) -> str:
    goal = plan.goal
    sure = "proven" if not goal.gap else f"not proven: another might be {percent(goal.gap)} better"
    cases = f" of {len(goal.cases)} cases ({sure})" if len(goal.cases) > 1 else ""
    best = {
        "step-time": "shortest step",
        "tokens-per-gpu": "most tokens per second and GPU",
        "cost": "fewest dollars per token",
        "fewest-gpus": "fewest GPUs within the longest step",
    }
    return f"{best[goal.objective]}{cases}"


def _usd(value: float) -> str:
    return f"${count(value) if value >= 1e6 else significant(value)}"


def _print_cases(out: Console, plan: Plan) -> None:
    goal = plan.goal
    shown = _shown(goal)
    several = len({c.dtype for c in goal.cases}) > 1
    table = new_table("GPU counts", "GPUs", *(["dtype"] if several else []), "step", "tokens/s/GPU", "outcome", "why")
    for case in shown:
        step = case.step_time_s or case.bound_s
        words = "" if step is None else seconds(step) if case.step_time_s else f"≥ {seconds(step)}"
        rate = plan.problem.workload.tokens_per_step / (step * case.num_gpus) if step else 0.0
        speed = "" if not rate else significant(rate) if case.step_time_s else f"≤ {significant(rate)}"
        table.add_row(f"{case.num_gpus:,}", *([case.dtype] if several else []), words, speed, case.outcome, case.reason)
    out.print(table)
    rest = Counter(c.outcome for c in goal.cases if c not in shown)
    if rest:
        text_line(out, f"  and {', '.join(f'{n} {outcome}' for outcome, n in sorted(rest.items()))}")
        out.print()


def _shown(goal: Goal) -> list[CaseResult]:
    """All cases, or the searched ones and those next to the best."""
    if len(goal.cases) <= _MOST_ROWS:
        return list(goal.cases)
    best = next(i for i, c in enumerate(goal.cases) if c.outcome == "best")
    possible = [i for i, c in enumerate(goal.cases) if c.outcome != "impossible"]
    at = possible.index(best)
    near = set(possible[max(0, at - 2) : at + 3])
    chosen = [c for i, c in enumerate(goal.cases) if i in near or c.step_time_s is not None]
    return chosen[:_MOST_ROWS] if len(chosen) > _MOST_ROWS else chosen

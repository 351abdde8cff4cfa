"""Why a launcher refuses a layout, for the person who wrote it: the option, its value, the rule and a way out."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy

from .neighbours import nearest_legal
from .rule import Rule

if TYPE_CHECKING:
    from .base import Launcher

_DIMENSIONS = frozenset(f.name for f in fields(Strategy))
_NO_WAY = "no legal layout is within two changes of it"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One broken rule. ``settings`` are the values it judged, each under the framework's own option."""

    rule: str
    message: str
    settings: tuple[tuple[str, str], ...]
    fix: str

    @property
    def reason(self) -> str:
        """The rule, why, and the framework's own options with their values."""
        shown = ", ".join(f"{option} {value}" for option, value in self.settings if option not in _DIMENSIONS)
        return f"{self.rule}: {self.message}{f' [{shown}]' if shown else ''}"

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"rule": self.rule, "message": self.message, "settings": dict(self.settings), "fix": self.fix}


def in_one_line(found: Sequence[Refusal]) -> str:
    """Several refusals, with what they have in common said once."""
    fixes = tuple(dict.fromkeys(r.fix for r in found))
    return "; ".join((*(r.reason for r in found), *fixes))


def refusals(launcher: Launcher, problem: Problem, strategy: Strategy) -> list[Refusal]:
    """Every rule that the strategy breaks, explained; empty when it may be launched."""
    broken = {v.rule: v.message for v in launcher.violations(problem, strategy)}
    if not broken:
        return []
    rules = [rule for rule in launcher.rules if rule.name in broken]
    wide = {rule.name: rule.explain_fix(problem, strategy) for rule in rules if rule.scope != "strategy"}
    legal = None if wide else nearest_legal(problem, launcher, strategy)
    near = f"nearest legal choice: {difference(strategy, legal)}" if legal else _NO_WAY
    return [
        Refusal(
            rule.name,
            broken[rule.name],
            settings(launcher.options, rule, problem, strategy),
            wide.get(rule.name, f"{next(iter(wide))} comes first: no layout passes it" if wide else near),
        )
        for rule in rules
    ]


def settings(
    options: Mapping[str, str], rule: Rule, problem: Problem, strategy: Strategy
) -> tuple[tuple[str, str], ...]:
    """The framework's options that a rule judges, with the values it was given."""
    return tuple((options.get(d, d), show(getattr(strategy, d))) for d in judged(rule, problem, strategy))


def judged(rule: Rule, problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """The dimensions that a rule judges: those that its message names, else those that its check reads."""
    known = strategy.as_dict()
    named = [field for _, field, _, _ in string.Formatter().parse(rule.message) if field in known]
    if named:
        return tuple(dict.fromkeys(str(f) for f in named))
    seen = _Seen(Strategies.of([strategy]))
    with np.errstate(divide="ignore"):
        rule.check(problem, seen)  # type: ignore[arg-type]
    splits = ["layers_per_stage", "recompute_per_stage"] if rule.check_one else []
    given = [d for d in splits if known[d] is not None]
    return tuple(dict.fromkeys([*seen.names, *(given or splits)]))


class _Seen:
    """One strategy as arrays; keeps the names of the dimensions that are read."""

    def __init__(self, one: Strategies) -> None:
        self._one = one
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self._one)

    def __getattr__(self, name: str) -> NDArray[Any]:
        self.names += {"world_size": ["tp", "cp", "dp", "pp"], "edp": ["tp", "cp", "dp", "ep", "etp"]}.get(name, [name])
        value: NDArray[Any] = getattr(self._one, name)
        return value


def difference(one: Strategy, other: Strategy) -> str:
    """``tp 3 -> 4, dp 21 -> 16``: every setting that differs."""
    before, after = one.as_dict(), other.as_dict()
    return ", ".join(f"{k} {show(before[k])} -> {show(after[k])}" for k in before if before[k] != after[k])


def show(value: Any) -> str:
    """A setting as a person writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "even"
    return "/".join(map(str, value)) if isinstance(value, (list, tuple)) else f"{value}"

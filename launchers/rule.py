"""Rules: what a strategy must satisfy, checked over arrays of strategies, and explained for one of them."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy

Allowed = NDArray[np.bool_]
Check = Callable[[Problem, Strategies], Allowed]
CheckOne = Callable[[Problem, Strategy], bool]
Values = Callable[[Problem, Strategy], Mapping[str, Any]]
Scope = Literal["strategy", "workload", "machine"]


def _no_values(problem: Problem, strategy: Strategy) -> Mapping[str, Any]:
    return {}


def everything(problem: Problem, strategies: Strategies) -> Allowed:
    """Allow every strategy: for rules that only look at explicit layer splits."""
    return np.ones(len(strategies), dtype=np.bool_)


def as_allowed(where: ArrayLike) -> Allowed:
    """A condition over arrays as the boolean array that checks return."""
    return np.asarray(where, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Rule:
    """One named condition on a strategy.

    ``check`` returns a boolean array ``[n]``, True where the strategy is allowed. ``check_one`` judges what
    ``Strategies`` does not carry (explicit layer splits). ``message`` is a format string over the fields of the
    strategy, the sizes of the problem and what ``values`` adds. A rule whose ``scope`` is ``workload`` or
    ``machine`` refuses every strategy of a problem or none; ``machine``: another launcher may run on that accelerator.
    """

    name: str
    message: str
    check: Check
    check_one: CheckOne | None = None
    values: Values = _no_values
    scope: Scope = "strategy"
    by_split: bool = False
    """Whether a strategy with an explicit layer split is judged by ``check_one`` alone; ``check`` judges even ones."""
    fix: str = ""
    """What to do instead, in the same form: asked of rules on the whole problem, which no other strategy satisfies."""

    def explain_fix(self, problem: Problem, strategy: Strategy) -> str:
        """The fix filled in for one strategy."""
        return replace(self, message=self.fix).explain(problem, strategy)

    def explain(self, problem: Problem, strategy: Strategy) -> str:
        """The message filled in for one strategy."""
        known = {**_common_values(problem, strategy), **self.values(problem, strategy)}
        return string.Formatter().vformat(self.message, (), known)


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that one strategy breaks, and why in one sentence."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def allowed(problem: Problem, strategies: Strategies, rules: Iterable[Rule]) -> Allowed:
    """Which strategies satisfy every rule, ``[n]``."""
    keep = np.ones(len(strategies), dtype=np.bool_)
    with np.errstate(divide="ignore"):
        for rule in rules:
            keep &= rule.check(problem, strategies)
    return keep


def violations(problem: Problem, strategy: Strategy, rules: Iterable[Rule]) -> list[Violation]:
    """The rules that one strategy breaks, in rule order; empty when it may be launched."""
    one = Strategies.of([strategy])
    found = []
    for rule in rules:
        with np.errstate(divide="ignore"):
            given = rule.by_split and strategy.layers_per_stage is not None
            fine = given or bool(rule.check(problem, one)[0])
        if fine and rule.check_one is not None:
            fine = rule.check_one(problem, strategy)
        if not fine:
            found.append(Violation(rule.name, rule.explain(problem, strategy)))
    return found


def _common_values(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    model, work = problem.model, problem.workload
    return {
        **strategy.as_dict(),
        "world_size": strategy.world_size,
        "gpus": problem.cluster.num_gpus,
        "global_batch": work.global_batch_size,
        "sequence": work.sequence_length,
        "layers": model.num_layers,
        "model": model.name,
        "vocab": model.vocab_size,
        "mesh": strategy.tp * strategy.cp * strategy.dp,
        "optimizer": work.optimizer,
        "dtype": work.dtype,
    }


def nearest(value: int, choices: Iterable[int]) -> int | str:
    """The choice closest to ``value`` (the smaller of two equally close), or ``none`` when there is none."""
    options = sorted(set(choices))
    return min(options, key=lambda c: (abs(c - value), c)) if options else "none"


def divisors(number: int) -> list[int]:
    """All divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})

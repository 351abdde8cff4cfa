"""What a launcher is: a training framework's limits, its rules, its rank order, and how a plan is written for it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError, UnknownNameError

from . import rule as _rule
from .capability import Range, Values, capability_rules
from .rule import Allowed, Rule, Violation
from .settings import LaunchSettings
from .universal import universal_rules

__all__ = [
    "LaunchSettings",
    "Launcher",
    "Range",
    "Rule",
    "Values",
    "Violation",
    "get_launcher",
    "list_launchers",
    "universal_rules",
    "violations",
]

Writer = Callable[[Problem, Strategy, LaunchSettings], dict[str, str]]
ModelCheck = Callable[[Problem], None]

_NAMES = ("generic", "megatron", "megatron-deepspeed")
"""Launchers: each is the ``LAUNCHER`` of the module of this folder with its name."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """One training framework.

    ``capabilities`` lists for every dimension of a strategy the values the framework can express; ``own_rules`` are
    its rules beyond those and the universal ones. ``rank_order`` names the mesh axes from the fastest varying.
    ``dtype_runtimes`` names the default runtime of precisions that the framework executes in another way.
    """

    name: str
    title: str
    default_runtime: str
    capabilities: Mapping[str, Values]
    own_rules: tuple[Rule, ...]
    rank_order: str
    writer: Writer
    model_check: ModelCheck
    dtype_runtimes: Mapping[str, str] = field(default_factory=dict)

    def runtime_for(self, dtype: str) -> str:
        """Name of the runtime profile that the framework has by default for a precision."""
        return self.dtype_runtimes.get(dtype, self.default_runtime)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules: universal, of the capability table, and the framework's own."""
        return (*universal_rules(), *capability_rules(self.name, self.capabilities), *self.own_rules)

    def allowed(self, problem: Problem, strategies: Strategies) -> Allowed:
        """Which strategies the framework accepts, ``[n]``."""
        return _rule.allowed(problem, strategies, self.rules)

    def violations(self, problem: Problem, strategy: Strategy) -> list[Violation]:
        """The rules one strategy breaks, explicit layer splits included; empty when it may be launched."""
        return _rule.violations(problem, strategy, self.rules)

    def refusal(self, problem: Problem, *scopes: _rule.Scope) -> Violation | None:
        """The first rule of those scopes that refuses every strategy of the problem, or None."""
        wide = [rule for rule in self.rules if rule.scope in scopes]
        return next(iter(_rule.violations(problem, Strategy(), wide)), None)

    def check_model(self, problem: Problem) -> None:
        """Raises InputError naming the layer kind if the framework's training script cannot build the model."""
        self.model_check(problem)

    def render(self, problem: Problem, strategy: Strategy, settings: LaunchSettings | None = None) -> dict[str, str]:
        """The launch files, by name; the same inputs give the same text.

        Raises:
            InputError: the strategy breaks a rule, or the framework cannot express the model.
        """
        self.model_check(problem)
        broken = self.violations(problem, strategy)
        if broken:
            raise InputError(f"{self.name} cannot launch this strategy: {'; '.join(map(str, broken))}")
        return self.writer(problem, strategy, settings or LaunchSettings())


def list_launchers() -> list[str]:
    """Names of all launchers, sorted."""
    return sorted(_NAMES)


def get_launcher(name: str) -> Launcher:
    """A launcher by name. Raises UnknownNameError offering the nearest name."""
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"launcher {name!r} is not known: expected one of {', '.join(list_launchers())}{hint}")
    launcher = importlib.import_module(f"{__package__}.{name.replace('-', '_')}").LAUNCHER
    assert isinstance(launcher, Launcher)
    return launcher


def violations(problem: Problem, strategy: Strategy, rules: tuple[Rule, ...] | None = None) -> list[Violation]:
    """The rules that a strategy breaks: the universal ones unless ``rules`` are given."""
    return _rule.violations(problem, strategy, universal_rules() if rules is None else rules)

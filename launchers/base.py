"""What a launcher is: a training framework's limits, its rules, its rank order, and how a plan is written for it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError, UnknownNameError

from . import rule as _rule
from .capability import Range, Values, capability_rules
from .own_splits import OwnSplits, own_split_rule
from .parsed import Files, Given, Parsed, as_files
from .refusal import Refusal, in_one_line, refusals
from .rule import Allowed, Rule, Violation
from .settings import LaunchSettings
from .short_run import ShortRun
from .universal import universal_rules

__all__ = [
    "Files",
    "Given",
    "LaunchSettings",
    "Launcher",
    "Parsed",
    "Range",
    "Refusal",
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
Parser = Callable[[Files, Given], Parsed]
Claim = Callable[[Files], bool]

_NAMES = (
    "accelerate",
    "deepspeed",
    "generic",
    "megatron",
    "megatron-bridge",
    "megatron-deepspeed",
    "nanotron",
    "torchtitan",
)
"""Launchers: each is the ``LAUNCHER`` of the module of this folder with its name."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """One training framework.

    ``capabilities`` lists for every dimension of a strategy the values the framework can express; ``own_rules`` are
    its rules beyond those and the universal ones.
    ``dtype_runtimes`` names the default runtime of precisions that the framework executes in another way, and
    ``vendor_runtimes`` that of accelerators, by vendor, which another framework runs on. ``options``
    are the framework's own words for the dimensions of a strategy, for messages. ``parser`` reads launch files back,
    and ``claim`` says whether files are this framework's.
    """

    name: str
    title: str
    default_runtime: str
    capabilities: Mapping[str, Values]
    own_rules: tuple[Rule, ...]
    writer: Writer
    model_check: ModelCheck
    options: Mapping[str, str]
    parser: Parser
    claim: Claim
    dtype_runtimes: Mapping[str, str] = field(default_factory=dict)
    vendor_runtimes: Mapping[str, str] = field(default_factory=dict)
    tunable: tuple[str, ...] = ()
    """Which fields of ``LaunchSettings`` that a refinement sets the framework has options for."""
    own_splits: OwnSplits | None = None
    """The layer splits that the framework makes by itself; None where it may be told any."""
    short_run: ShortRun | None = None
    """How to benchmark a layout by a few steps; None where that is not known."""

    def runtime_for(self, dtype: str, vendor: str = "") -> str:
        """Name of the runtime profile that is the default for a precision, on accelerators of a vendor."""
        return self.vendor_runtimes.get(vendor) or self.dtype_runtimes.get(dtype, self.default_runtime)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules: universal, of the capability table, the framework's own, and those of its own splits."""
        return self._rules(searched=False)

    @property
    def search_rules(self) -> tuple[Rule, ...]:
        """The rules of a search: a pipeline without an explicit split stands for every split the framework makes."""
        return self._rules(searched=True)

    def _rules(self, searched: bool) -> tuple[Rule, ...]:
        own = self.own_splits
        stages = () if own is None else (own_split_rule(self.name, own, searched=searched),)
        return (*universal_rules(), *capability_rules(self.name, self.capabilities), *self.own_rules, *stages)

    def allowed(self, problem: Problem, strategies: Strategies) -> Allowed:
        """Which strategies the framework accepts, ``[n]``."""
        return _rule.allowed(problem, strategies, self.rules)

    def violations(self, problem: Problem, strategy: Strategy) -> list[Violation]:
        """The rules one strategy breaks, explicit layer splits included; empty when it may be launched."""
        return _rule.violations(problem, strategy, self.rules)

    def refusals(self, problem: Problem, strategy: Strategy) -> list[Refusal]:
        """The same, each with the options it judged and the nearest layout that may be launched."""
        return refusals(self, problem, strategy)

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
        broken = self.refusals(problem, strategy)
        if broken:
            raise InputError(f"{self.name} cannot launch this strategy: {in_one_line(broken)}")
        return self.writer(problem, strategy, settings or LaunchSettings())

    def parse(self, source: Files | str | Sequence[str], given: Given | None = None) -> Parsed:
        """What launch files say: texts by file name, one text, or an argument list.

        The strategy may break rules: ask ``refusals``. Raises InputError naming file, option and value where something
        that the answer needs is missing or cannot be understood.
        """
        return self.parser(as_files(source), given or Given())


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

"""The answer: one recommended strategy, explained, with what came next and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.costmodel.estimate import Estimate, tell_apart
from shardwise.costmodel.planned_row import planned_row
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import LaunchSettings, get_launcher
from shardwise.launchers.benchmark import Candidate, benchmark_files

from .proof import Proof

if TYPE_CHECKING:
    from .goal import Goal

SCHEMA_VERSION = 1
"""Of ``Plan.as_dict``: raised when a key changes its meaning or goes away."""


@dataclass(frozen=True, slots=True)
class Notch:
    """The price of another value of one dimension, everything else chosen anew.

    ``step_time_s`` and ``price_s`` (over the plan's step) are None where no strategy with that value was found;
    ``reason`` then says which rule removes it or by how much it does not fit, and ``exact`` whether none is possible.
    """

    dimension: str
    value: Any
    """What the plan uses."""
    other: Any
    """What it would be instead."""
    step_time_s: float | None
    price_s: float | None
    reason: str
    strategy: Strategy | None = None
    exact: bool = False
    """Whether the price, or that there is no layout, is proven; otherwise the price is at most that, by the best layout
    found with the other value."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dimension": self.dimension, "value": self.value, "other": self.other, "step_time_s": self.step_time_s,
            "price_s": self.price_s, "reason": self.reason, "exact": self.exact,
            "strategy": None if self.strategy is None else self.strategy.as_dict(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A strategy that none beats in both step time and memory headroom, of those it was compared with."""

    strategy: Strategy
    step_time_s: float
    peak_memory_bytes: float
    headroom_bytes: float
    bound_s: float | None = None
    """No layout of the space with the headroom asked for is faster; None where only evaluated layouts were compared."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "strategy": self.strategy.as_dict(), "step_time_s": self.step_time_s,
            "peak_memory_bytes": self.peak_memory_bytes, "headroom_bytes": self.headroom_bytes,
            "bound_s": self.bound_s,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Binding:
    """What keeps the plan from being faster: ``memory`` or ``nothing`` in the space, and what it costs."""

    kind: str
    message: str
    gain_s: float = 0.0
    """Seconds that a step would be shorter without it."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": self.kind, "message": self.message, "gain_s": self.gain_s}


@dataclass(frozen=True, slots=True)
class Refinement:
    """What Optuna tried beyond the proven space, in seconds of the simulated step.

    ``gain_s`` is ``simulated_before_s - simulated_s``, 0 where nothing better was found; ``step_time_s`` of the plan is
    the closed form's and no part of it.
    """

    trials: int
    """Finished trials of the study, those of other workers and earlier runs included."""
    feasible: int
    gain_s: float
    seed: int
    dimensions: tuple[str, ...]
    """What it varied: dimensions and values that the space does not enumerate, or that the closed form cannot see."""
    message: str
    simulated_before_s: float | None = None
    """The proven optimum's step in simulation; None where nothing could be simulated or varied."""
    simulated_s: float | None = None
    """The plan's."""
    microbatch_group: int = 0
    """Micro-batches that an interleaved rank of the plan runs through one chunk in turn; 0 for pp, the default."""
    buckets: int = 0
    """Gradient buckets of each rank of the plan; 0 for the framework's own number."""
    quickest: Estimate | None = None
    """A layout quicker in simulation than the plan, which the closed form has slower than the proven optimum."""
    quickest_s: float | None = None
    """The simulated step of that layout."""
    stopped_by: str | None = None
    """What ended the refinement early: ``interrupt`` or ``time limit``."""

    @property
    def tuned(self) -> dict[str, int]:
        """The fields of ``LaunchSettings`` that belong to the plan."""
        return {"microbatch_group": self.microbatch_group, "buckets": self.buckets}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "trials": self.trials, "feasible": self.feasible, "gain_s": self.gain_s, "seed": self.seed,
            "dimensions": list(self.dimensions), "message": self.message,
            "simulated_before_s": self.simulated_before_s, "simulated_s": self.simulated_s,
            "microbatch_group": self.microbatch_group, "buckets": self.buckets,
            "quickest": None if self.quickest is None else _brief(self.quickest), "quickest_s": self.quickest_s,
            "stopped_by": self.stopped_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """The recommended strategy of one problem with everything that explains it."""

    estimate: Estimate
    launcher: str
    goal: Goal
    """What the objective makes of the plan, and of the other GPU counts and precisions asked about."""
    alternatives: tuple[Estimate, ...]
    """Runners-up with another mesh or micro-batch, best first; the plan itself is not among them."""
    short_list: tuple[Estimate, ...]
    """The plan and the layouts too close to it to be told apart by predictions; one entry where none is so close."""
    pareto: tuple[ParetoPoint, ...]
    """Step time against memory headroom, fastest first: proven points where they were asked for, else the best of the
    strategies that the search happened to evaluate."""
    proof: Proof
    why: tuple[Notch, ...]
    binding: Binding
    refinement: Refinement | None
    assumptions: tuple[str, ...]

    @property
    def problem(self) -> Problem:
        """Model, cluster, workload and runtime."""
        return self.estimate.problem

    @property
    def strategy(self) -> Strategy:
        """The recommendation, its layer split written out."""
        return self.estimate.strategy

    @property
    def step_time_s(self) -> float:
        """Predicted seconds of one optimizer step."""
        return self.estimate.step_time_s

    def launch(self, name: str | None = None, settings: LaunchSettings | None = None) -> dict[str, str]:
        """Launch files by name, for the plan's launcher or another one.

        Raises InputError where that launcher cannot express the strategy, UnknownNameError where there is none.
        """
        launcher, found = get_launcher(name or self.launcher), self.refinement.tuned if self.refinement else {}
        own = (settings or LaunchSettings()).tuned(launcher.tunable, found)
        return launcher.render(self.problem, self.strategy, own)

    def benchmark(self, name: str | None = None, settings: LaunchSettings | None = None) -> dict[str, str]:
        """``benchmark.sh`` and the launch files of every layout of the short list, by path.

        The script runs each for a few steps, prints measured beside predicted, and writes a file of measured runs.
        Raises InputError where that launcher cannot express one of the layouts or run a few steps only.
        """
        launcher = get_launcher(name or self.launcher)
        candidates = [self._candidate(i, e) for i, e in enumerate(self.short_list, start=1)]
        return benchmark_files(launcher, self.problem, candidates, settings)

    def _candidate(self, index: int, e: Estimate) -> Candidate:
        group = f"{self.problem.model.name} on {self.problem.cluster.num_gpus} {self.problem.cluster.name}"
        row = planned_row(self.problem, e.strategy, f"benchmark-{index}", group, "shardwise benchmark")
        tuned = self.refinement.tuned if self.refinement is not None and index == 1 else {}
        return Candidate(e.strategy, e.step_time_s, row, tuned)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values: the document that ``schemas/plan.schema.json`` describes."""
        return {
            "schema_version": SCHEMA_VERSION,
            **self.estimate.as_dict(),
            "launcher": self.launcher,
            "goal": self.goal.as_dict(),
            "proof": self.proof.as_dict(),
            "binding": self.binding.as_dict(),
            "why": [n.as_dict() for n in self.why],
            "alternatives": [_brief(e) for e in self.alternatives],
            "short_list": {
                "within": tell_apart(self.problem),
                "layouts": [_brief(e) for e in self.short_list],
            },
            "pareto": [p.as_dict() for p in self.pareto],
            "refinement": None if self.refinement is None else self.refinement.as_dict(),
            "assumptions": list(self.assumptions),
        }


def _brief(e: Estimate) -> dict[str, Any]:
    keys = ("strategy", "step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes", "memory_by_rank_bytes")
    whole = e.as_dict()
    return {key: whole[key] for key in keys}

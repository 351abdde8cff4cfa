"""Optuna on top of the proof: values that the space does not enumerate, around the proven optimum and its runners-up.

By ask-and-tell with a seeded TPE sampler, in memory or in any Optuna storage. The answer is never slower than what was
given: the cost model judges every trial, and only a strategy that the launcher accepts, that fits and that is faster
replaces the incumbent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.rule import divisors, violations

from .axes import offers
from .exact import with_split
from .plan import Refinement
from .space import Space

if TYPE_CHECKING:
    import optuna

DEFAULT_TRIALS = 8
_OFFLOAD_STEPS = 16
"""Shares of the optimizer on the host are tried in sixteenths: between none and all, which the space holds."""
_MISFIT = 1e6
"""Added (times the share by which memory is exceeded, plus one) to the step of what does not fit or is refused."""


@dataclass(slots=True)
class Knobs:
    """What may be varied around one base strategy; empty lists are not varied."""

    base: Strategy
    zero_groups: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    offload: bool = False
    chunks: int = 0
    """Virtual stages between which one layer may be moved; 0 for none."""

    @property
    def names(self) -> list[str]:
        """The dimensions varied."""
        pairs = (
            ("zero_group", bool(self.zero_groups)), ("recompute_layers", bool(self.layers)),
            ("offload_optimizer", self.offload), ("layers_per_stage", self.chunks > 0),
        )  # fmt: skip
        return [name for name, on in pairs if on]


def refine(
    space: Space,
    best: Estimate,
    runners_up: Sequence[Estimate],
    trials: int,
    seed: int,
    storage: str | None = None,
) -> tuple[Estimate, Refinement]:
    """The best of ``best`` and ``trials`` variations of it and its runners-up, and what was tried.

    The same inputs and seed give the same answer; with a ``storage`` URL a study is continued where it stopped.
    """
    bases = [knobs(space, e.strategy) for e in (best, *runners_up)]
    bases = [k for k in bases if k.names]
    names = tuple(sorted({name for k in bases for name in k.names}))
    if not bases or trials <= 0:
        said = "no trials were asked for" if bases else "nothing is left to vary beyond the proven space"
        return best, Refinement(0, 0, 0.0, seed, names, said)
    study = _study(space.problem, seed, storage)
    if not study.trials:
        for i in range(len(bases)):
            study.enqueue_trial(_neutral(i, bases[i]))
    winner, feasible, seen = best, 0, {best.strategy: best}
    while len(study.trials) < trials + len(bases) or _waiting(study):
        trial = study.ask()
        strategy = _suggest(trial, bases)
        answer = seen.get(strategy) or _judged(space, strategy)
        if answer is None:
            study.tell(trial, _MISFIT)
            continue
        seen[strategy] = answer
        over = answer.peak_memory_bytes / answer.capacity_bytes - 1.0
        study.tell(trial, answer.step_time_s if over <= 0 else answer.step_time_s + _MISFIT * over)
        feasible += over <= 0
        if over <= 0 and answer.step_time_s < winner.step_time_s * (1.0 - 1e-9):
            winner = answer
    return winner, _account(best, winner, len(study.trials), feasible, seed, names)


def _account(
    best: Estimate, winner: Estimate, trials: int, feasible: int, seed: int, names: tuple[str, ...]
) -> Refinement:
    gain = best.step_time_s - winner.step_time_s
    said = (
        f"{gain / best.step_time_s:.2%} faster than the best of the enumerated space"
        if gain > 0
        else f"no variation of {', '.join(names)} was faster than the proven optimum"
    )
    return Refinement(trials, feasible, gain, seed, names, said)


# ---- what to vary


def knobs(space: Space, base: Strategy) -> Knobs:
    """What may be varied around a strategy, within the launcher's abilities and the request."""
    out = Knobs(base)
    whole = base.dp * base.cp
    if base.zero > 0 and _free(space, "zero_group"):
        out.zero_groups = [0, *(d for d in divisors(whole) if 1 < d < whole)]
        out.zero_groups = out.zero_groups if len(out.zero_groups) > 1 else []
    most = -(-space.problem.model.num_layers // base.pp)
    if base.recompute == "full" and _free(space, "recompute_layers") and most > 1:
        out.layers = list(range(1, most + 1))
    pressed = base.recompute != "none" or base.offload_optimizer > 0
    out.offload = pressed and _free(space, "offload_optimizer")
    if base.pp > 1 and base.schedule != "dualpipe":
        out.chunks = base.pp * base.vpp
    return out


def _free(space: Space, name: str) -> bool:
    """Whether the launcher offers more than one value of a dimension and the request has no word about it."""
    return offers(space.launcher.capabilities, name) and all(c.dimension != name for c in space.constraints.items)


def _neutral(index: int, k: Knobs) -> dict[str, Any]:
    """The parameters that leave a base as it is."""
    params: dict[str, Any] = {"base": index}
    if k.zero_groups:
        params[f"zero_group_{index}"] = k.base.zero_group if k.base.zero_group in k.zero_groups else 0
    if k.offload:
        params[f"offload_{index}"] = round(k.base.offload_optimizer * _OFFLOAD_STEPS)
    if k.layers:
        params[f"layers_{index}"] = k.layers[-1] if k.base.recompute_layers < 0 else k.base.recompute_layers
        params[f"keep_layers_{index}"] = True
    if k.chunks:
        params[f"from_{index}"] = params[f"to_{index}"] = 0
    return params


def _suggest(trial: optuna.Trial, bases: list[Knobs]) -> Strategy:
    """A variation; what a base has nothing of is not asked."""
    index = trial.suggest_categorical("base", list(range(len(bases))))
    k = bases[index]
    changed: dict[str, Any] = {}
    if k.zero_groups:
        changed["zero_group"] = trial.suggest_categorical(f"zero_group_{index}", k.zero_groups)
    if k.offload:
        changed["offload_optimizer"] = trial.suggest_int(f"offload_{index}", 0, _OFFLOAD_STEPS) / _OFFLOAD_STEPS
    if k.layers:
        layers = trial.suggest_int(f"layers_{index}", k.layers[0], k.layers[-1])
        if not trial.suggest_categorical(f"keep_layers_{index}", [True, False]):
            changed |= {"recompute_layers": -1 if layers == k.layers[-1] else layers, "recompute_per_stage": None}
    if k.chunks:
        source = trial.suggest_int(f"from_{index}", 0, k.chunks - 1)
        target = trial.suggest_int(f"to_{index}", 0, k.chunks - 1)
        changed |= _moved(k.base, source, target)
    return replace(k.base, **changed)


def _moved(base: Strategy, source: int, target: int) -> dict[str, Any]:
    """One layer moved from one virtual stage to another; nothing where there is none to move."""
    layers = list(base.layers_per_stage or ())
    if source == target or not layers or layers[source] < 1:
        return {}
    layers[source] -= 1
    layers[target] += 1
    changed: dict[str, Any] = {"layers_per_stage": tuple(layers)}
    if base.recompute_per_stage is not None:
        changed |= {"recompute_per_stage": None}
    return changed


def _judged(space: Space, strategy: Strategy) -> Estimate | None:
    """The cost model's word on a variation; None where a rule refuses it."""
    if violations(space.problem, strategy, space.rules):
        return None
    return estimate(space.problem, with_split(space.problem, strategy))


# ---- the study


def _study(problem: Problem, seed: int, storage: str | None) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
    return optuna.create_study(
        study_name=f"shardwise-{fingerprint(problem, seed)}", storage=storage, sampler=sampler, load_if_exists=True
    )


def fingerprint(problem: Problem, seed: int) -> str:
    """A short name of a problem and seed, the same in every process."""
    text = repr((problem.model, problem.cluster, problem.workload, problem.runtime, seed))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _waiting(study: optuna.Study) -> bool:
    from optuna.trial import TrialState

    return any(t.state == TrialState.WAITING for t in study.trials)

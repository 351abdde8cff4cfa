"""``plan`` and ``estimate``: the library's two questions, from whatever names the inputs to the whole answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.estimate import estimate as predict
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.model_source import read_model_source
from shardwise.costmodel.problem import MEMORY_MARGIN, Problem
from shardwise.costmodel.runtime import Runtime
from shardwise.costmodel.strategy import Strategy, parse_settings
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import get_launcher
from shardwise.launchers.choice import Choice, choose_launcher
from shardwise.launchers.refusal import in_one_line

from .cases import Case, NumGpus, Selection, gpu_counts
from .constraints import Constraints, Wish
from .exact import Found, Progress, with_split
from .goal import Goal, decide
from .objective import Objective
from .pareto import check_points, proven_front
from .plan import Plan
from .pool import Pool, frontier, runners_up
from .proof import Clock
from .refine import DEFAULT_TRIALS, Refining, refine
from .short_list import refined, short_list
from .why import binding, reasons

Wishes = Mapping[str, Wish]


def plan(
    model: ModelSpec | str | Path,
    cluster: Cluster | str | Path,
    workload: Workload,
    *,
    num_gpus: NumGpus | None = None,
    runtime: Runtime | str | Path | None = None,
    launcher: str | None = None,
    objective: Objective | str = "step-time",
    dtypes: Sequence[str] = (),
    memory_margin: float = MEMORY_MARGIN,
    pins: Wishes | None = None,
    bans: Wishes | None = None,
    least: Wishes | None = None,
    most: Wishes | None = None,
    top: int = 5,
    pareto_points: int = 0,
    time_limit_s: float | None = None,
    refine_trials: int = DEFAULT_TRIALS,
    storage: str | None = None,
    prefer: str = "closed-form",
    seed: int = 0,
    progress: Progress | None = None,
) -> Plan:
    """The strategy that is best by an objective and fits in memory, with proof and explanation.

    ``model`` is a ``ModelSpec``, a Hugging Face ``config.json`` or a preset's name; ``cluster`` a ``Cluster`` or a
    profile, for ``num_gpus`` accelerators: a number, several, or a ``range``, of which whole nodes count. ``launcher``
    defaults to the first that can express the model, ``runtime`` to the launcher's (JAX's on TPU). ``objective``: one
    of ``OBJECTIVES`` or an ``Objective`` with its limits and price. ``dtypes`` may replace the workload's dtype by
    several to choose from. ``memory_margin`` is the share of the device's memory to leave free. ``pins`` fix dimensions
    (``{"tp": 8}``, ``{"tp": "4|8"}``), ``bans`` rule values out, ``least`` and ``most`` are limits. ``top`` counts the
    plan and its runners-up; ``pareto_points`` asks for a proven front of step time against memory headroom, of so many
    points at most. Without ``time_limit_s`` the answer is the same on any machine. ``refine_trials`` variations are
    tried by Optuna beyond the proven space (0: none), in memory or in ``storage``, an Optuna storage (``open_storage``
    says which). ``prefer="simulation"`` makes what is quickest in simulation the plan even where the closed form has it
    slower than the optimum it proved.

    Raises:
        InputError: an input that cannot be used.
        NothingFitsError: an ``InfeasibleError`` that says what binds and which changes help.
    """
    wanted = Objective.of(objective)
    cases = read_cases(model, cluster, workload, num_gpus, dtypes, memory_margin, runtime=runtime, launcher=launcher)
    for case in cases:
        case.choice.launcher.check_model(case.problem)
    if top < 1:
        raise InputError(f"top = {top}: expected 1 or more")
    check_points(pareto_points)
    wishes = Constraints.of(pins, bans, least, most)
    clock = Clock(time_limit_s)
    chosen, found = decide(cases, wanted, wishes, clock, progress)
    if "interrupt" in (chosen.stopped_by, found.stopped_by):
        clock.expire()
    answer = _explained(chosen, found, clock, top, Refining(refine_trials, seed, storage, prefer))
    if pareto_points:
        answer = replace(answer, pareto=proven_front(found, answer.estimate, pareto_points, clock, progress))
    reason = chosen.case.choice.reason
    return replace(answer, assumptions=(reason, *answer.assumptions)) if reason else answer


def read_cases(
    model: ModelSpec | str | Path,
    cluster: Cluster | str | Path,
    workload: Workload,
    num_gpus: NumGpus | None,
    dtypes: Sequence[str],
    memory_margin: float,
    *,
    runtime: Runtime | str | Path | None,
    launcher: str | None,
) -> list[Case]:
    """Every GPU count with every precision, as problems, ascending. Raises InputError."""
    cluster = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    counts = gpu_counts(num_gpus, cluster)
    named = (dtypes,) if isinstance(dtypes, str) else tuple(dict.fromkeys(dtypes)) or (workload.dtype,)
    works = [replace(workload, dtype=dtype) for dtype in named]
    sizes = [cluster if count == cluster.num_gpus else cluster.with_num_gpus(count) for count in counts]
    read = [read_problem(model, sizes[0], work, num_gpus=None, runtime=runtime, launcher=launcher) for work in works]
    kept = [(replace(problem, memory_margin=memory_margin), choice) for problem, choice in read]
    return [Case(replace(problem, cluster=size), choice) for size in sizes for problem, choice in kept]


def _explained(chosen: Selection, found: Found, clock: Clock, top: int, how: Refining) -> Plan:
    """Everything about a finished search that a person wants to know."""
    problem, best = found.problem, found.best
    assert best is not None
    proof = found.proof(clock.elapsed_s)
    answer = predict(problem, with_split(problem, best))
    why = reasons(found, answer, clock)
    pool = Pool.of(found)
    others = runners_up(found, pool, top - 1)
    bound = binding(found, answer)
    refinement, close = None, short_list(found, pool, answer)
    if how.trials > 0 and not clock.expired:
        near = close[1:] or others
        answer, refinement = refine(found.space, answer, near, how, lambda: clock.expired)
    return Plan(
        estimate=answer,
        launcher=found.space.launcher.name,
        goal=Goal.of(chosen, answer),
        alternatives=tuple(others),
        short_list=refined(close, answer, refinement.quickest if refinement else None),
        pareto=frontier(found, pool, answer),
        proof=proof,
        why=why,
        binding=bound,
        refinement=refinement,
        assumptions=(*answer.assumptions, *found.space.assumptions()),
    )


def estimate(
    model: ModelSpec | str | Path,
    cluster: Cluster | str | Path,
    workload: Workload,
    strategy: Strategy | str | Mapping[str, Any],
    *,
    num_gpus: int | None = None,
    runtime: Runtime | str | Path | None = None,
    memory_margin: float = MEMORY_MARGIN,
) -> Estimate:
    """The prediction for one strategy: a ``Strategy``, or settings such as ``"tp=8,pp=4,mbs=1,sp=on"``.

    Settings left out follow the runtime's habits (sequence parallelism, ZeRO stage, recomputation, overlaps), dp and
    the number of micro-batches follow from the cluster and the batch. Raises InputError naming what a strategy breaks.
    """
    problem, _ = read_problem(model, cluster, workload, num_gpus=num_gpus, runtime=runtime)
    problem = replace(problem, memory_margin=memory_margin)
    whole = strategy if isinstance(strategy, Strategy) else complete(problem, strategy)
    broken = get_launcher("generic").refusals(problem, whole)
    if broken:
        raise InputError(f"strategy: {in_one_line(broken)}")
    return predict(problem, whole)


def complete(problem: Problem, settings: str | Mapping[str, Any]) -> Strategy:
    """A whole strategy from the settings that someone wrote down; raises InputError where they do not go together."""
    given = parse_settings(settings) if isinstance(settings, str) else dict(settings)
    unknown = set(given) - set(Strategy().as_dict())
    if unknown:
        raise InputError(f"strategy: unknown key {sorted(unknown)[0]!r}")
    runtime = problem.runtime
    tp, pp, vpp, ep, cp = (given.get(name, 1) for name in ("tp", "pp", "vpp", "ep", "cp"))
    default_schedule = "interleaved" if vpp > 1 else runtime.default_schedule
    habits: dict[str, Any] = {
        "sp": runtime.default_sp and tp > 1,
        "zero": runtime.default_zero,
        "recompute": runtime.default_recompute,
        "tp_overlap": runtime.default_tp_overlap
        and tp > 1
        and given.get("sp", runtime.default_sp)
        and problem.cluster.tiers[0].nvls,
        "dp_overlap": runtime.default_dp_overlap,
        "ep_overlap": runtime.default_ep_overlap and ep > 1,
        "schedule": default_schedule if pp > 1 and (vpp > 1) == (default_schedule == "interleaved") else "1f1b",
        "ulysses": cp if given.get("cp_comm") == "a2a" else 1,
    }
    whole = Strategy(**{**habits, **given})
    if "dp" in given and "num_microbatches" in given:
        return whole
    filled = whole.with_batch(problem.cluster.num_gpus, problem.workload.global_batch_size)
    return replace(filled, **{name: given[name] for name in ("dp", "num_microbatches") if name in given})


def read_problem(
    model: ModelSpec | str | Path,
    cluster: Cluster | str | Path,
    workload: Workload,
    *,
    num_gpus: int | None,
    runtime: Runtime | str | Path | None,
    launcher: str | None = None,
) -> tuple[Problem, Choice]:
    """The four inputs from whatever names them, and who writes for them.

    Raises InputError (UnknownNameError with the nearest name).
    """
    spec = model if isinstance(model, ModelSpec) else read_model_source(str(model)).build({})
    if not isinstance(cluster, Cluster):
        cluster = load_cluster(cluster, num_gpus)
    elif num_gpus is not None:
        cluster = cluster.with_num_gpus(num_gpus)
    choice = choose_launcher(spec, cluster, workload, launcher, runtime)
    return Problem(spec, cluster, workload, choice.runtime), choice

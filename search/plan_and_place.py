"""``plan_and_place``: a plan for nodes that are known, in the rank order that is best on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InfeasibleError
from shardwise.hardware_profiles.load_topology import load_topology
from shardwise.hardware_profiles.topology import Topology

from .constraints import Constraints
from .placement import Placement, place
from .plan import Plan
from .planner import plan

_WORTH = 1e-6
"""Share of the step below which another rank order is no better."""


def plan_and_place(
    model: ModelSpec | str | Path,
    cluster: Cluster | str | Path,
    workload: Workload,
    *,
    topology: Topology | str | Path | None = None,
    nodes: str | Sequence[str] | None = None,
    topology_name: str | None = None,
    exclude: str | Sequence[str] = (),
    degraded: Mapping[str, float] | None = None,
    **asked: Any,
) -> tuple[Plan, Placement]:
    """The plan whose step is shortest once it is placed, in any rank order that its launcher has, and its placement.

    ``topology``, ``nodes``, ``topology_name``, ``exclude`` and ``degraded`` say where the job runs, as ``place`` takes
    them; all else is asked as of ``plan``. Where ranks may stand in another order than the plan has them, and neither
    pins nor bans speak of ``rank_order``, a plan in that order is made and placed too, for the same number of GPUs and
    in the same precision, and the one with the shorter placed step (``placed_step_s``) is returned.

    Raises InputError and NothingFitsError as ``plan`` and ``place`` do.
    """
    shape = topology if isinstance(topology, Topology) or topology is None else load_topology(topology, topology_name)

    def placed(found: Plan) -> Placement:
        return place(found, shape, nodes, exclude=exclude, degraded=degraded)

    first = plan(model, cluster, workload, **asked)
    answers = [(first, placed(first))]
    wishes = {name: asked.get(name) or {} for name in ("pins", "bans", "least", "most")}
    free = all(wish.dimension != "rank_order" for wish in Constraints.of(**wishes).items)
    for order in answers[0][1].other_orders if free else ():
        other = _reordered(first, order, asked)
        if other is not None:
            answers.append((other, placed(other)))
    best, where = min(answers, key=lambda answer: placed_step_s(*answer) * (1.0 + _WORTH * (answer[0] is not first)))
    told = [_told(best, answers)] if len(answers) > 1 else []
    return replace(best, assumptions=(*best.assumptions, *told)), where


def placed_step_s(found: Plan, placement: Placement) -> float:
    """Seconds of a plan's step with the waiting of its placement instead of the ideal cluster's."""
    return found.step_time_s - _ideal_s(placement) + placement.exposed_s


def _ideal_s(placement: Placement) -> float:
    """Exposed seconds of the placed traffic on the ideal cluster."""
    cluster, total = placement.job.cluster, 0.0
    for pool in placement.job.pools:
        seconds = sum(
            c.count * float(np.sum(cluster.collective_time_s(c.collective, c.tensor_bytes, c.group_size, c.stride)))
            for c in pool.collectives
        )
        total += float(pool.exposed_s(seconds))
    return total


def _reordered(first: Plan, order: str, asked: Mapping[str, Any]) -> Plan | None:
    """The plan in another rank order; None where none fits."""
    problem = first.problem
    again = {
        **asked, "pins": {**(asked.get("pins") or {}), "rank_order": order}, "dtypes": (), "num_gpus": None,
        "launcher": first.launcher, "runtime": problem.runtime, "storage": None,
    }  # fmt: skip
    try:
        found = plan(problem.model, problem.cluster, problem.workload, **again)
    except InfeasibleError:
        return None
    return replace(found, goal=replace(found.goal, cases=first.goal.cases))


def _told(best: Plan, answers: Sequence[tuple[Plan, Placement]]) -> str:
    steps = {found.strategy.rank_order: placed_step_s(found, placement) for found, placement in answers}
    mine = best.strategy.rank_order
    rest = ", ".join(f"{step:.4g} s in {order}" for order, step in steps.items() if order != mine)
    return f"rank_order = {mine} is best on these nodes: a step takes {steps[mine]:.4g} s as placed, {rest}"

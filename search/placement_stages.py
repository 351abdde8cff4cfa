"""How many nodes of each domain a pipeline stage takes: what is left to choose of a placement on large clusters.

The data-parallel rings of a stage run through all of its nodes. Whatever their order, a ring leaves every domain that
holds some and not all of its stage at least once, and in the right order exactly once. So which domains each stage
touches bounds the runs and loads of those rings from below, and a placement built from the counts reaches that. CP-SAT
chooses the counts; everything else counts with its lower bound, so that what it proves is a bound on any placement.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .placement_bound import least_seconds
from .placement_cost import Groups, Instance
from .placement_exact import Option, options_for

IntArray = NDArray[np.int64]

MOST_CELLS = 1 << 14
"""Stages times innermost domains, beyond which the model takes too long."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Nodes of each innermost domain that each stage takes, ``[stage, domain]`` (None: nothing found), and a bound."""

    nodes: IntArray | None
    bound_s: float


def stage_rings(instance: Instance, stages: int) -> list[int]:
    """Entries of ``groups`` whose rings run through whole stages."""
    columns = instance.num_slots // stages
    return [i for i, g in enumerate(instance.groups) if g.family == "ring" and _is_stage(g, columns)]


def _is_stage(g: Groups, columns: int) -> bool:
    slots = np.unique(g.rows // columns, axis=1) if columns > 1 else g.rows
    return g.slots_each == columns > 1 and slots.shape[1] == 1


def solve_counts(
    instance: Instance, stages: int, most_s: float, work_limit: float, seconds_limit: float | None = None
) -> Counts | None:
    """The best counts against placements of ``most_s`` exposed seconds; None where the model does not apply."""
    from ortools.sat.python import cp_model

    if instance.num_slots % stages:
        return None
    rings = stage_rings(instance, stages)
    domains = len(instance.capacity[0])
    if not rings or domains < 2 or stages * domains > MOST_CELLS:
        return None
    options = options_for(instance, rings, most_s * (1.0 + 1e-12))
    if options is None:
        return None
    cp = cp_model.CpModel()
    counts, touched = _stage_variables(cp, instance, stages)
    picks = {index: [cp.new_bool_var("") for _ in choice] for index, choice in options.items()}
    for index, choice in options.items():
        cp.add_exactly_one(picks[index])
        _hold(cp, instance, index, touched, choice, picks[index])
    unit = most_s / 1e9
    cp.minimize(_objective(instance, options, picks, unit))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    if seconds_limit is not None:
        solver.parameters.max_time_in_seconds = seconds_limit
    status = solver.solve(cp)
    if status == cp_model.INFEASIBLE:
        return Counts(None, most_s)
    bound = min(most_s, solver.best_objective_bound * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Counts(None, bound)
    found = np.array([[solver.value(n) for n in row] for row in counts], dtype=np.int64)
    return Counts(found, bound)


Touched = list[list[list[Any]]]
"""``[level][stage][domain]``: whether the stage has nodes in the domain and others outside it."""


def _stage_variables(cp: Any, instance: Instance, stages: int) -> tuple[list[list[Any]], Touched]:
    fabric = instance.fabric
    sizes = np.bincount(fabric.domains[0])
    columns = instance.num_slots // stages
    counts = [[cp.new_int_var(0, int(min(size, columns)), "") for size in sizes] for _ in range(stages)]
    for row in counts:
        cp.add(sum(row) == columns)
    for d, size in enumerate(sizes):
        cp.add(sum(row[d] for row in counts) <= int(size))
    for one, other in itertools.pairwise(counts):  # stages are alike: the first domain tells them apart
        cp.add(one[0] >= other[0])
    touched: Touched = []
    first = np.unique(fabric.domains[0], return_index=True)[1]
    for level in range(len(fabric.domains) - 1):
        of_leaf = fabric.domains[level][first]
        rows = []
        for row in counts:
            cells = []
            for d in range(len(fabric.uplink[level])):
                inside = sum(row[leaf] for leaf in np.flatnonzero(of_leaf == d))
                part, whole = cp.new_bool_var(""), cp.new_bool_var("")
                cp.add(inside >= columns * whole)
                cp.add(inside <= columns * part + columns * whole)
                cells.append(part)
            rows.append(cells)
        touched.append(rows)
    return counts, touched


def _hold(cp: Any, instance: Instance, index: int, touched: Touched, choice: list[Option], picks: list[Any]) -> None:
    """Runs of every stage and load of every domain within the chosen option."""
    lanes = int(instance.groups[index].lanes.min())
    for level, rows in enumerate(touched):
        most = [0 if o.spans[level] == 1.0 else int(o.spans[level]) for o in choice]
        for cells in rows:
            cp.add(sum(cells) <= sum(m * p for m, p in zip(most, picks, strict=True)))
        for d, capacity in enumerate(instance.capacity[level]):
            room = [math.floor(o.load[level] * capacity / lanes + 1e-6) for o in choice]
            cp.add(sum(cells[d] for cells in rows) <= sum(r * p for r, p in zip(room, picks, strict=True)))


def _objective(instance: Instance, options: dict[int, list[Option]], picks: dict[int, list[Any]], unit: float) -> Any:
    """Exposed seconds, at least, in units: every option's own addition to what everything else takes at least."""
    least = [least_seconds(instance, index) for index in range(len(instance.groups))]
    base = _exposed(instance, least)
    total: Any = math.floor(base / unit)
    for index, choice in options.items():
        for option, pick in zip(choice, picks[index], strict=True):
            seconds = [option.seconds if other == index else value for other, value in enumerate(least)]
            total = total + math.floor((_exposed(instance, seconds) - base) / unit) * pick
    return total


def _exposed(instance: Instance, seconds: list[tuple[float, ...]]) -> float:
    totals = [0.0] * len(instance.pools)
    for users, values in zip(instance.users, seconds, strict=True):
        for (p, _), value in zip(users, values, strict=True):
            totals[p] += value
    return float(sum(pool.exposed_s(total) for pool, total in zip(instance.pools, totals, strict=True)))


def arrange(instance: Instance, counts: IntArray, width: int) -> IntArray:
    """A placement with those counts: domain after domain in each stage, whole runs of ``width`` slots first.

    Stages that share domains stand next to each other where a greedy chain finds them.
    """
    fabric = instance.fabric
    stages, columns = len(counts), instance.num_slots // len(counts)
    speed = np.argsort(-fabric.nic, kind="stable")
    waiting = [list(speed[fabric.domains[0][speed] == d]) for d in range(counts.shape[1])]
    first = np.unique(fabric.domains[0], return_index=True)[1]
    order = np.lexsort([level[first] for level in fabric.domains])
    out = np.empty(stages * columns, dtype=np.int64)
    for place, stage in enumerate(_chain(counts)):
        whole: list[int] = []
        rest: list[int] = []
        for d in order:
            taken = [waiting[d].pop(0) for _ in range(counts[stage, d])]
            cut = len(taken) // width * width
            whole += taken[:cut]
            rest += taken[cut:]
        out[place * columns : (place + 1) * columns] = whole + rest
    return out


def _chain(counts: IntArray) -> list[int]:
    """Stages in an order in which neighbours share domains."""
    left = list(range(len(counts)))
    chain = [left.pop(0)]
    while left:
        shared = [int(np.minimum(counts[chain[-1]], counts[s]).sum()) for s in left]
        chain.append(left.pop(int(np.argmax(shared))))
    return chain

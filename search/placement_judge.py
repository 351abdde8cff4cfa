"""Whether any placement keeps within limits of spans and loads: asked of CP-SAT, by counts and slot by slot.

Nothing is weighed, so the models are small questions of yes or no. Counts of nodes by block come first: where none keep
within the limits, no placement does. Where some do, an order within the blocks is often found at once; else slots and
counts are asked together. Several ways of searching get a little work each, then more. What is known is kept: no limit
within a refuted one is asked again, nor one that a placement in hand keeps within.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Ints

from .placement_blocks import CountsModel, Limit, Limits, arrangements, chains, fills, has_cells
from .placement_cost import Instance
from .placement_orders import allows_all, order_blocks
from .placement_pieces import Pieces, SharesModel, pieces_of, tighten
from .placement_slots import Classes, SlotsModel
from .proof import Clock

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Array = NDArray[np.float64]

MOST_SLOT_CELLS = 1 << 11
"""Slots times classes of nodes, beyond which slots are not asked."""

_TRIES = ((False, 0, 0.05), (False, 1, 0.4), (True, 0, 0.3), (False, 1, 1.0), (True, 0, 1.0), (True, 1, 1.0))
"""Whether by slots, how much of the model is linear, and CP-SAT's deterministic time of each try."""

_TRIES_ALONE = ((False, 0, 0.01),)
"""The same for one kind of groups alone."""

_SHARING = 0.1
"""Deterministic time for how many pieces each domain gives."""

_ARRANGING = 0.05
"""Deterministic time for an order within blocks whose counts are known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether placements may keep within limits (True where it is not known), and those that were found."""

    possible: bool
    placements: tuple[Ints, ...] = ()


@dataclass(slots=True)
class Judge:
    """Verdicts on limits for placements by blocks of ``size`` slots; ``work_left`` is CP-SAT's deterministic time."""

    instance: Instance
    size: int
    work_left: float
    clock: Clock
    classes: Classes = field(init=False)
    by_counts: bool = field(init=False)
    by_slots: bool = field(init=False)
    countable: tuple[int, ...] = field(init=False)
    """Entries of ``groups`` that counts by block tell something about."""
    _kept: list[Array] = field(default_factory=list)
    """What placements in hand and limits that could not be refuted keep within, as vectors."""
    _refuted: list[Array] = field(default_factory=list)
    _alone: dict[int, list[Array]] = field(default_factory=dict)
    """By kind of groups the limits that it alone may keep."""
    _pieces: dict[tuple[int, ...], Pieces | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = Classes.of(self.instance)
        self.by_slots = self.instance.num_slots * len(self.classes.size) <= MOST_SLOT_CELLS
        self.by_counts = self.size > 1 and has_cells(self.instance, self.size)
        moving = [i for i, g in enumerate(self.instance.groups) if g.slots_each > 1]
        chained = chains(self.instance, self.size)
        self.countable = tuple(i for i in moving if fills(self.instance.groups[i], self.size) or i in chained)

    @property
    def spent(self) -> bool:
        """Whether there is nothing left to ask with."""
        return self.work_left <= 0.0 or self.clock.expired or not (self.by_counts or self.by_slots)

    def within(self, limits: Limits, *, hard: bool = True) -> Verdict:
        """Whether placements keep within the limits of every moving kind of groups. Not ``hard``: the first tries."""
        vector = _vector(limits)
        if any(np.all(known <= vector + 1e-9) for known in self._kept):
            return Verdict(True)
        if any(np.all(vector <= known + 1e-12) for known in self._refuted):
            return Verdict(False)
        alone = next((i for i in limits if self._refuted_alone(i, limits[i])), None)
        if alone is not None:
            self._refuted.append(_vector({i: _part(limits[i], i == alone) for i in limits}))
            return Verdict(False)
        verdict = self._asked(limits, _TRIES if hard else _TRIES[:3])
        if not verdict.possible:
            self._refuted.append(vector)
        elif not verdict.placements and hard:
            self._kept.append(vector)
        for nodes in verdict.placements:
            self._kept.append(_vector({i: self._shape(i, nodes) for i in limits}))
        return verdict

    def _shape(self, index: int, nodes: Ints) -> Limit:
        """What a placement needs of a kind of groups, as a limit."""
        spans, crossing = self.instance.shape(index, nodes)
        inside = self.instance.fabric.inside
        return Limit(spans[inside:-1], crossing[inside + 1 :], crossing[inside])

    def _refuted_alone(self, index: int, limit: Limit) -> bool:
        """Whether one kind of groups cannot keep to its limit even with nothing asked of the others."""
        if not self.by_counts or index not in self.countable or allows_all(self.instance, index, limit):
            return False
        vector, known = _vector({index: limit}), self._alone.setdefault(index, [])
        if any(np.all(kept <= vector + 1e-9) for kept in known):
            return False
        if not self._asked({index: limit}, _TRIES_ALONE, alone=True).possible:
            return True
        known.append(vector)
        return False

    def _asked(self, limits: Limits, tries: tuple[tuple[bool, int, float], ...], alone: bool = False) -> Verdict:
        possible, shares = self._shared(limits)
        if not possible:
            return Verdict(False)
        models: dict[bool, _Model] = {}
        counts: Ints | None = None
        if shares:
            counts = self._solved(self._model(limits, False, shares=shares), 0, _ARRANGING)[1]
            placements = () if alone or counts is None else self._arranged(limits, counts)
            if (alone and counts is not None) or placements:
                return Verdict(True, placements)
            counts = None
        for by_slots, linear, work in tries:
            asked = self.by_slots if by_slots else self.by_counts and counts is None
            if not asked or self.work_left <= 0.0 or self.clock.expired:
                continue
            if by_slots not in models:
                models[by_slots] = self._model(limits, by_slots)
            status, found = self._solved(models[by_slots], linear, work)
            if status is False:
                return Verdict(False)
            if found is not None and by_slots:
                return Verdict(True, (found,))
            if found is not None:
                counts = found
                placements = () if alone else self._arranged(limits, counts)
                if alone or placements or not self.by_slots:
                    return Verdict(True, placements)
        return Verdict(True)

    def _shared(self, limits: Limits) -> tuple[bool, dict[tuple[int, int], int]]:
        """Whether the pieces that domains may give make up all units, and how many of which kind each could give."""
        from ortools.sat.python import cp_model

        held = {i: limits[i] for i in self.countable if i in limits and not allows_all(self.instance, i, limits[i])}
        pieces = self._pieces_for(held)
        if pieces is None or not pieces.loads:
            return True, {}
        model = SharesModel(cp_model.CpModel())
        if not model.hold(self.instance, held, pieces):
            return True, {}
        solver = _solver(min(_SHARING, max(self.work_left, 1e-3)), self.clock.left_s, 1)
        status = solver.solve(model.cp)
        self.work_left -= max(float(solver.response_proto.deterministic_time), 1e-4)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return status != cp_model.INFEASIBLE, {}
        return True, {key: solver.value(var) for key, var in model.number.items()}

    def _arranged(self, limits: Limits, counts: Ints) -> tuple[Ints, ...]:
        """Placements with those counts: within the limits where slots can be asked, else in some likely orders."""
        if not self.by_slots:
            return tuple(arrangements(self.instance, counts))
        model = self._model(limits, True, counts)
        found = self._solved(model, 0, _ARRANGING)[1]
        return () if found is None else (found,)

    def _model(
        self,
        limits: Limits,
        by_slots: bool,
        counts: Ints | None = None,
        shares: dict[tuple[int, int], int] | None = None,
    ) -> _Model:
        from ortools.sat.python import cp_model

        model = _Model(cp_model.CpModel())
        if self.by_counts:
            model.counts = CountsModel(model.cp, self.instance, self.size)
            held = {i: limits[i] for i in self.countable if i in limits}
            for i, limit in held.items():
                model.counts.hold(self.instance.groups[i], limit)
            if counts is not None:
                model.counts.fix(counts)
            else:
                order_blocks(model.counts, limits if by_slots else held, exact=by_slots)
                if not by_slots:
                    self._tighten(model.counts, held, shares or {})
        if by_slots:
            model.slots = SlotsModel(model.cp, self.instance, self.classes)
            for i, limit in limits.items():
                model.slots.hold(self.instance.groups[i], limit)
            if model.counts is not None:
                model.slots.link(model.counts)
        return model

    def _tighten(self, counts: CountsModel, held: Limits, shares: dict[tuple[int, int], int]) -> None:
        """With what each domain may give to a unit of blocks, where there are few ways."""
        bound = {i: limit for i, limit in held.items() if not allows_all(self.instance, i, limit)}
        pieces = self._pieces_for(bound)
        if pieces is not None and pieces.loads:
            tighten(counts, bound, pieces, shares)

    def _pieces_for(self, held: Limits) -> Pieces | None:
        """Pieces for the kinds of groups that a model holds; None where there are too many, or slots to place."""
        if not self.by_slots or not self.by_counts:
            return None
        key = tuple(held)
        if key not in self._pieces:
            self._pieces[key] = pieces_of(self.instance, self.size, held)
        return self._pieces[key]

    def _solved(self, model: _Model, linear: int, work: float) -> tuple[bool | None, Ints | None]:
        """Whether something keeps within the limits (None: not known), and the counts or nodes by slot that do."""
        from ortools.sat.python import cp_model

        solver = _solver(min(work, max(self.work_left, 1e-3)), self.clock.left_s, linear)
        status = solver.solve(model.cp)
        self.work_left -= max(float(solver.response_proto.deterministic_time), 1e-4)
        if status == cp_model.INFEASIBLE:
            return False, None
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, None
        if model.slots is not None:
            return True, model.slots.placement(solver)
        assert model.counts is not None
        return True, np.array([[solver.value(n) for n in row] for row in model.counts.counts], dtype=np.int64)


@dataclass(slots=True)
class _Model:
    """A question: counts by block, slots, or both."""

    cp: Any
    counts: CountsModel | None = None
    slots: SlotsModel | None = None


def _solver(work_limit: float, seconds_limit: float | None, linear: int) -> cp_model.CpSolver:
    """A solver that answers the same on any machine, but for a limit in seconds."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = linear
    solver.parameters.cut_level = int(linear > 1)
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    if seconds_limit is not None:
        solver.parameters.max_time_in_seconds = seconds_limit
    return solver


def _part(limit: Limit, kept: bool) -> Limit:
    """The limit, or one that allows everything."""
    return limit if kept else Limit((math.inf,) * len(limit.spans), (math.inf,) * len(limit.load))


def _vector(limits: Limits) -> Array:
    return np.array([value for i in sorted(limits) for value in (*limits[i].spans, *limits[i].load, limits[i].nic)])

"""Proof of the counts by block, one combination of options after another.

The model of ``placement_blocks`` leaves it to the solver which option each kind of groups takes, and its bound is weak
while several are open. With one option for each kind all limits are numbers, and that no counts keep within them is
often told at once. So combinations are taken the cheapest first; whatever stays within limits that were refuted is
refuted, too, alone or with others. The cheapest combination left is a bound on every placement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .placement_blocks import Counts, CountsModel, chains, fills, has_cells
from .placement_bound import least_seconds
from .placement_cost import Instance
from .placement_exact import solver_of
from .placement_options import Option, options_for
from .proof import Clock

IntArray = NDArray[np.int64]
Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Limits = tuple[tuple[int, int], ...]
"""Kinds of groups and the option that each is held to."""

_MOST_COMBINATIONS = 2_000_000
"""Combinations of options held at once."""

_MOST_TESTS = 160
"""Models built, at most."""

_WORK_OF_ONE = 1.5
"""CP-SAT's deterministic time for one model, at most."""

_KEY_BITS = 40
"""Blocks are ordered by a number of so many bits."""


def prove_counts(instance: Instance, size: int, most_s: float, work_limit: float, clock: Clock) -> Counts | None:
    """A bound from counts of blocks of ``size`` slots, against placements of ``most_s``; None: it does not apply.

    Counts come with it where the cheapest combination left was found possible.
    """
    if not has_cells(instance, size):
        return None
    filling = [i for i, g in enumerate(instance.groups) if g.slots_each > 1 and fills(g, size)]
    options = options_for(instance, [*filling, *chains(instance, size)], most_s * (1.0 + 1e-12))
    if not options:
        return None
    return _Proof.of(instance, size, most_s, options, filling, work_limit, clock).run()


@dataclass(slots=True)
class _Proof:
    """The open combinations, and what is known of each set of limits."""

    instance: Instance
    size: int
    most_s: float
    kinds: list[int]
    options: list[list[Option]]
    within: list[Bools]
    """Of each kind, whether limits of option ``a`` are within those of ``b``: ``[a, b]``."""
    filling: list[int]
    open_s: Array
    """Exposed seconds of every combination that is not refuted and better than what is known; else infinite."""
    work_left: float
    clock: Clock
    tests_left: int = _MOST_TESTS
    possible: dict[Limits, IntArray] = field(default_factory=dict)

    @classmethod
    def of(
        cls, instance: Instance, size: int, most_s: float, options: dict[int, list[Option]], filling: list[int],
        work: float, clock: Clock,
    ) -> _Proof:  # fmt: skip
        """Kinds that matter least are left at their least seconds where there are too many combinations."""
        spread = {i: max(sum(o.seconds) for o in c) - min(sum(o.seconds) for o in c) for i, c in options.items()}
        kinds = sorted(options, key=lambda i: -spread[i])
        while math.prod(len(options[i]) for i in kinds) > _MOST_COMBINATIONS:
            kinds.pop()
        chosen = [options[i] for i in kinds]
        limits = [np.array([(*o.spans, *o.load, o.nic) for o in choice]) for choice in chosen]
        within = [np.all(x[:, None] <= x[None] + 1e-12, axis=2) for x in limits]
        seconds = _exposed(instance, options, kinds)
        open_s = np.where(seconds < most_s * (1.0 - 1e-9), seconds, np.inf)
        return cls(instance, size, most_s, kinds, chosen, within, filling, open_s, work, clock)

    def run(self) -> Counts:
        """Refute combinations until none is left, one is possible, or the work is done."""
        while True:
            at = int(np.argmin(self.open_s))
            bound = float(self.open_s.flat[at])
            if not math.isfinite(bound):
                return Counts(None, self.most_s)
            pick = tuple(int(k) for k in np.unravel_index(at, self.open_s.shape))
            found = self._judge(pick)
            if found is None:
                return Counts(None, bound)
            if len(found):
                return Counts(found, bound)

    def _judge(self, pick: tuple[int, ...]) -> IntArray | None:
        """Counts within the limits of a combination; none in the array: refuted; None: not known."""
        found = None
        for some in range(1, len(pick) + 1):
            for kinds in itertools.combinations(range(len(pick)), some):
                limits = tuple((k, pick[k]) for k in kinds)
                found = self._test(limits, _WORK_OF_ONE)
                if found is None:
                    return None
                if not len(found):
                    self._refute(limits)
                    self._widen(limits)
                    return found
        return found

    def _test(self, limits: Limits, work: float) -> IntArray | None:
        """The same for the limits of some kinds."""
        for known, counts in self.possible.items():
            if len(known) == len(limits) and all(
                k == j and self.within[k][a, b] for (k, a), (j, b) in zip(known, limits, strict=True)
            ):
                return counts
        if self.tests_left <= 0 or self.work_left <= 0 or self.clock.expired:
            return None
        found, spent = _counts_within(
            self.instance, self.size, {self.kinds[k]: self.options[k][a] for k, a in limits}, self.filling,
            min(work, self.work_left), self.clock.left_s,
        )  # fmt: skip
        self.tests_left -= 1
        self.work_left -= spent
        if found is not None and len(found):
            self.possible[limits] = found
        return found

    def _refute(self, limits: Limits) -> None:
        gone = np.ones(self.open_s.shape, dtype=np.bool_)
        for k, a in limits:
            gone &= _along(self.within[k][:, a], k, gone.ndim)
        self.open_s[gone] = np.inf

    def _widen(self, limits: Limits) -> None:
        """Refute more at once: the widest options of one kind that still cannot be, by halving."""
        for at, (k, a) in enumerate(limits):
            wider = self._chain(limits, k, a)
            low, high = 0, len(wider)
            while low < high:
                middle = (low + high) // 2
                tried = (*limits[:at], (k, wider[middle]), *limits[at + 1 :])
                found = self._test(tried, _WORK_OF_ONE / 4.0)
                if found is not None and not len(found):
                    self._refute(tried)
                    low = middle + 1
                else:
                    high = middle

    def _chain(self, limits: Limits, kind: int, option: int) -> list[int]:
        """Options of a kind each within the next, from one on, that are open with the others' limits or more."""
        there = np.isfinite(self.open_s)
        for k, a in limits:
            if k != kind:
                there &= _along(self.within[k][:, a], k, there.ndim)
        axes = tuple(k for k in range(there.ndim) if k != kind)
        choice = self.options[kind]
        candidates = np.flatnonzero(there.any(axis=axes) & self.within[kind][option])
        chain: list[int] = []
        for b in sorted(candidates.tolist(), key=lambda b: (sum(choice[b].seconds), b)):
            if self.within[kind][chain[-1] if chain else option, b]:
                chain.append(b)
        return chain


def _along(values: Bools, axis: int, ndim: int) -> Bools:
    return values.reshape([-1 if k == axis else 1 for k in range(ndim)])


def _exposed(instance: Instance, options: dict[int, list[Option]], kinds: list[int]) -> Array:
    """Exposed seconds of every combination, one axis a kind; other kinds of groups at their least."""
    shape = tuple(len(options[i]) for i in kinds)
    totals: list[Array] = [np.zeros(shape) for _ in instance.pools]
    for index, users in enumerate(instance.users):
        least = least_seconds(instance, index)
        for at, (p, _) in enumerate(users):
            if index in kinds:
                seconds = np.array([option.seconds[at] for option in options[index]])
                axis = kinds.index(index)
                totals[p] = totals[p] + seconds.reshape([-1 if k == axis else 1 for k in range(len(shape))])
            else:
                totals[p] = totals[p] + least[at]
    return np.asarray(sum(pool.exposed_s(total) for pool, total in zip(instance.pools, totals, strict=True)))


def _counts_within(
    instance: Instance, size: int, chosen: dict[int, Option], filling: list[int], work: float, left_s: float | None
) -> tuple[IntArray | None, float]:
    """Counts that keep within the limits of options (none in the array: there are no such; None: not known); work."""
    from ortools.sat.python import cp_model

    model = CountsModel(cp_model.CpModel(), instance, size)
    for index, option in chosen.items():
        model.hold(instance.groups[index], [option], [1], fills=index in filling)
    _order_blocks(model, chosen, filling)
    solver = solver_of(work, left_s, turns=False)
    status = solver.solve(model.cp)
    spent = max(float(solver.response_proto.deterministic_time), 1e-4)
    if status == cp_model.INFEASIBLE:
        return np.empty((0, 0), dtype=np.int64), spent
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return np.array([[solver.value(n) for n in row] for row in model.counts], dtype=np.int64), spent
    return None, spent


def _order_blocks(model: CountsModel, chosen: dict[int, Option], filling: list[int]) -> None:
    """One order for what is alike: runs of blocks, blocks of a ring, and innermost domains.

    Of all counts that differ only in the order of those, the ones whose table is largest read row by row are kept.
    """
    blocks, groups = len(model.counts), model.instance.groups
    reach = {index: _reach(model, index, option, filling) for index, option in chosen.items()}
    run = math.lcm(1, *reach.values())
    rows = _keys(model.counts, model.size + 1)
    if blocks % run == 0:
        for block in range(0, blocks - run, run):
            model.cp.add(rows[block] >= rows[block + run])
    whole = all(groups[i].slots_each // model.size in (1, run) for i in chosen if i in filling)
    rings = all(reach[i] == 1 or (groups[i].family == "ring" and reach[i] == run) for i in chosen if i not in filling)
    if 1 < run <= 3 and whole and blocks % run == 0:  # a ring of up to three has no order
        for block in range(blocks):
            if block % run:
                model.cp.add(rows[block - 1] >= rows[block])
    elif run == blocks and whole and rings:  # a ring may start anywhere
        for row in rows[1:]:
            model.cp.add(rows[0] >= row)
    columns = _keys(list(zip(*model.counts, strict=True)), model.size + 1)
    for one, other in _alike_domains(model.instance):
        model.cp.add(columns[one] >= columns[other])


def _keys(vectors: Sequence[Sequence[Any]], base: int) -> list[Any]:
    """A number for each vector of counts below ``base`` that orders them by their first entries."""
    first = range(min(len(vectors[0]), int(_KEY_BITS / math.log2(base))))
    return [sum(base ** (len(first) - 1 - d) * vector[d] for d in first) for vector in vectors]


def _alike_domains(instance: Instance) -> Iterator[tuple[int, int]]:
    """Innermost domains that differ in nothing but their names, each with the one like it before."""
    fabric = instance.fabric
    first = np.unique(fabric.domains[0], return_index=True)[1]
    last: dict[tuple[float, ...], int] = {}
    for d, count in enumerate(np.bincount(fabric.domains[0]).tolist()):
        outer = (int(level[first[d]]) for level in fabric.domains[1:])
        key = (count, float(instance.capacity[0][d]), float(fabric.uplink[0][d]), *outer)
        if key in last:
            yield last[key], d
        last[key] = d


def _reach(model: CountsModel, index: int, option: Option, filling: list[int]) -> int:
    """Blocks in the aligned runs that a kind of groups keeps within; all blocks where it keeps within none."""
    g, blocks = model.instance.groups[index], len(model.counts)
    if index in filling:
        return g.slots_each // model.size
    if g.family == "p2p" and _allows_all(model.instance, option):
        return 1
    for run in _divisors(blocks):
        at = g.rows // model.size // run
        if np.all(at == at[:, :1]):
            return run
    return blocks


def _allows_all(instance: Instance, option: Option) -> bool:
    """Whether neighbours may be anywhere."""
    slowest = [float((1.0 / factor).max()) for factor in instance.fabric.uplink[:-1]]
    return all(s > 1.0 for s in option.spans) and all(
        load >= most - 1e-12 for load, most in zip(option.load, slowest, strict=True)
    )


def _divisors(number: int) -> Iterator[int]:
    return (d for d in range(1, number + 1) if number % d == 0)

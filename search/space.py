"""The space of strategies: levels of options over a mesh, with every rule applied as soon as its dimensions exist.

A *candidate* fixes every dimension but the knobs (``axes.KNOBS``: overlap switches, recomputation, offload). It stands
for all settings of the knobs at once, because those are ordered: the fastest setting is known before any is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies
from shardwise.launchers.base import Launcher
from shardwise.launchers.own_splits import own_split_rule
from shardwise.launchers.rule import Allowed, Rule, allowed

from .axes import BREADTHS, KNOBS, SWITCHES, Axes, Breadth, Columns, Options, offers
from .constraints import Constraints

BLOCK = 1 << 17
"""Rows built at once, at most: bounds memory, not the answer."""

BUDGET = 300_000
"""Candidates, at most, before the breadth of the axes is reduced (the result then says so)."""

_HOPELESS = 8
"""A breadth is not walked at all when its count before the last rules is this many budgets."""


_TRUNK = 3
"""Levels that are walked whole before the rest is walked in blocks."""


class _Missing(Exception):
    """A rule asked for a dimension that its rows do not have yet."""


class _Rows:
    """Rows that hold only some dimensions, to be read by a rule as if they were ``Strategies``."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._n = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return self._n

    def __getattr__(self, name: str) -> NDArray[Any]:
        have = self._columns
        if name in have:
            return have[name]
        if name == "world_size":
            return np.asarray(self.tp * self.cp * self.dp * self.pp)
        if name == "edp":
            return np.asarray(self.tp * self.cp * self.dp // (self.ep * self.etp))
        raise _Missing(name)


_Branch = tuple[Columns, NDArray[np.int64], tuple[Rule, ...]]


@dataclass(slots=True)
class Tally:
    """How many strategies were considered, and what became of them. ``removed`` keeps the order of application."""

    considered: int
    removed: dict[str, int]
    candidates: int = 0
    """Candidates left by the rules that do not read knobs."""


class Space:
    """All strategies of one problem under a launcher's rules and the user's wishes.

    ``tally`` counts strategies, knobs included: a rule that removes a row removes everything below it. Rules that
    read knobs are in ``late_rules`` and apply when candidates are opened.
    """

    def __init__(
        self, problem: Problem, launcher: Launcher, constraints: Constraints, breadth: Breadth | None = None
    ) -> None:
        self.problem = problem
        self.launcher = launcher
        self.constraints = constraints
        self.rules: tuple[Rule, ...] = (*constraints.rules(), *launcher.search_rules)
        self.late_rules: tuple[Rule, ...] = ()
        self.tally = Tally(0, {})
        self._walked: list[_Branch] = []
        self.breadth = breadth or self._affordable()
        self.axes = Axes(problem, launcher.capabilities, constraints, self.breadth)

    # ---- walking it

    def blocks(self) -> Iterator[Columns]:
        """Candidates in blocks of columns (knobs left out), rules applied; fills ``tally`` and ``late_rules``."""
        free: set[str] | None = None
        for rows, below, pending in self._walked or self._branches():
            if free is None:
                free = self._free_switches(rows, pending)
            block, _, self.late_rules = self._descend(partial(self.axes.switches, free=free), rows, below, pending)
            keep = fastest_switches(block)
            if keep.any():
                self.tally.candidates += int(keep.sum())
                yield {name: values[keep] for name, values in block.items()}

    def _branches(self) -> Iterator[_Branch]:
        """Rows with every dimension but switches and knobs, the strategies below each, and the rules to come."""
        rows, below, pending = self._trunk()
        for part in self._parts(rows):
            block, weight, late = {k: v[part] for k, v in rows.items()}, below[part], pending
            for level in self._levels()[_TRUNK:-1]:
                block, weight, late = self._descend(level, block, weight, late)
            if len(weight):
                yield block, weight, late

    def _free_switches(self, rows: Columns, pending: tuple[Rule, ...]) -> set[str]:
        """Switches that no rule reads: they take their fastest setting without further thought."""
        one = {name: values[:1] for name, values in rows.items()}
        one |= {name: np.zeros(1, dtype=np.bool_) for name in SWITCHES}
        one |= {name: np.zeros(1, dtype=np.int64) for name in KNOBS}
        free = set()
        for switch in SWITCHES:
            less = as_strategies({name: v for name, v in one.items() if name != switch})
            if not any(_reads_missing(rule, self.problem, less) for rule in pending):
                free.add(switch)
        return free

    def _trunk(self) -> tuple[Columns, NDArray[np.int64], tuple[Rule, ...]]:
        """The first levels, whole: few rows, most rules."""
        rows = dict(self.axes.mesh)
        below = self.below(rows)
        self.tally = Tally(int(below.sum()), {})
        rows, below, pending = self._filter(rows, below, self.rules)
        for level in self._levels()[:_TRUNK]:
            rows, below, pending = self._descend(level, rows, below, pending)
        return rows, below, pending

    def _parts(self, rows: Columns) -> Iterator[slice]:
        """Consecutive rows whose descendants at the last level number about ``BLOCK``."""
        if not len(rows["tp"]):
            return
        each = np.ones(len(rows["tp"]), dtype=np.int64)
        for level in self._levels()[_TRUNK:-1]:
            each *= level(rows).mask.sum(axis=1)
        part = np.cumsum(each) // BLOCK
        edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        yield from (slice(a, b) for a, b in pairwise(edges))

    def below(self, mesh: Columns) -> NDArray[np.int64]:
        """Strategies below each row of a mesh, knobs included."""
        count = self.axes.knob_count(mesh)
        for level in self._levels():
            count = count * level(mesh).mask.sum(axis=1)
        return count

    def allows(self, rows: Strategies) -> Allowed:
        """Which strategies every rule accepts, ``[n]``."""
        return allowed(self.problem, rows, self.rules)

    def even_allowed(self, rows: Strategies) -> Allowed:
        """Which strategies the launcher runs with the even split of their layers, ``[n]``."""
        own = self.launcher.own_splits
        if own is None:
            return np.ones(len(rows), dtype=np.bool_)
        return own_split_rule(self.launcher.name, own).check(self.problem, rows)

    def assumptions(self) -> tuple[str, ...]:
        """The limits of the axes that are not rules: what was never considered."""
        axes, wishes, breadth = self.axes, self.constraints, self.breadth
        gpus = self.problem.cluster.num_gpus
        out = []
        for name, why in (("tp", "the scale-up domain"), ("cp", f"{breadth.cp_tokens} tokens of a sequence per rank")):
            if not wishes.touches(name) and axes.degree_limit(name) < gpus:
                out.append(f"{name} is searched up to {axes.degree_limit(name)} ({why}); pin {name} to go beyond")
        if offers(self.launcher.capabilities, "offload_activations") and not wishes.touches("offload_activations"):
            out.append(
                "activations stay on the device; pin offload_activations=off|on to look at the host's memory too"
            )
        if not wishes.touches("vpp"):
            out.append("2 to 4 virtual stages, those that divide a stage's layers and some between are searched; pin "
                       "vpp for others")  # fmt: skip
        if offers(self.launcher.capabilities, "rank_order") and not wishes.touches("rank_order"):
            out.append("another rank order is searched where it shortens messages between stages by a tenth; pin "
                       "rank_order for it")  # fmt: skip
        if breadth.hsdp and offers(self.launcher.capabilities, "zero_group") and not wishes.touches("zero_group"):
            out.append("ZeRO shards over all of dp·cp or over one network tier's domain; pin zero_group for others")
        if breadth.micro_batch_size < self.problem.workload.global_batch_size and not wishes.touches(
            "micro_batch_size"
        ):
            out.append(f"micro-batch sizes are searched up to {breadth.micro_batch_size}")
        if breadth.name != BREADTHS[0].name:
            out.append(f"the {breadth.name!r} breadth of axes was searched: the widest has over {BUDGET} candidates")
        return tuple(out)

    def _levels(self) -> tuple[Callable[[Columns], Options], ...]:
        axes = self.axes
        return (axes.experts, axes.batches, axes.pipelines, axes.states, axes.orders, axes.sequences, axes.switches)

    def _descend(
        self, level: Callable[[Columns], Options], rows: Columns, below: NDArray[np.int64], pending: tuple[Rule, ...]
    ) -> tuple[Columns, NDArray[np.int64], tuple[Rule, ...]]:
        options = level(rows)
        each = below // np.maximum(options.mask.sum(axis=1), 1)
        children, parent = options.expand(rows)
        return self._filter(children, each[parent], pending)

    def _filter(
        self, rows: Columns, below: NDArray[np.int64], rules: tuple[Rule, ...]
    ) -> tuple[Columns, NDArray[np.int64], tuple[Rule, ...]]:
        """Apply every rule whose dimensions the rows have; returns the rows left and the rules still to come."""
        pending = []
        for rule in rules:
            try:
                with np.errstate(divide="ignore"):
                    keep = np.broadcast_to(rule.check(self.problem, as_strategies(rows)), below.shape)
            except _Missing:
                pending.append(rule)
                continue
            count = int(below[~keep].sum())
            self.tally.removed[rule.name] = self.tally.removed.get(rule.name, 0) + count
            if count:
                rows = {name: values[keep] for name, values in rows.items()}
                below = below[keep]
        return rows, below, tuple(pending)

    # ---- size

    def _affordable(self) -> Breadth:
        """The widest breadth whose candidates stay within the budget; wishes do not count, so they cannot widen it."""
        for breadth in BREADTHS[:-1]:
            probe = Space(self.problem, self.launcher, Constraints(), breadth)
            if probe._fits_budget():
                if not self.constraints.items:
                    self._walked, self.tally = probe._walked, probe.tally
                return breadth
        return BREADTHS[-1]

    def _fits_budget(self) -> bool:
        rows, below, _ = self._trunk()
        knobs = self.axes.knob_count(rows) * self.axes.switches(rows).mask.sum(axis=1)
        if int((below // knobs).sum()) > _HOPELESS * BUDGET:
            return False
        count = 0
        for branch in self._branches():
            count += int(np.sum(branch[0]["rank_order"] == 0))  # another order is no reason to search less
            self._walked.append(branch)
            if count > BUDGET:
                self._walked = []
                return False
        return True


def _reads_missing(rule: Rule, problem: Problem, rows: Strategies) -> bool:
    try:
        rule.check(problem, rows)
    except _Missing:
        return True
    return False


def fastest_switches(rows: Columns) -> NDArray[np.bool_]:
    """Which rows no sibling dominates: the same candidate with the same switches on and more besides."""
    if not len(rows["tp"]):
        return np.zeros(0, dtype=np.bool_)
    on = np.stack([rows[name] for name in SWITCHES]).astype(np.int64)
    code = on[0] + 2 * on[1] + 4 * on[2]
    new = np.zeros(len(code), dtype=np.bool_)
    for name, values in rows.items():
        if name not in SWITCHES:
            new[1:] |= values[1:] != values[:-1]
    family = np.cumsum(new)
    have = np.zeros((int(family[-1]) + 1, 8), dtype=np.bool_)
    have[family, code] = True
    beaten = np.zeros_like(have)
    for low in range(8):
        for high in range(8):
            if low != high and low & high == low:
                beaten[:, low] |= have[:, high]
    return np.asarray(~beaten[family, code])


def as_strategies(rows: Columns) -> Strategies:
    """Rows that may lack dimensions, to be read by rules."""
    return cast(Strategies, _Rows(rows))


def with_knobs(rows: Columns, **knobs: Any) -> Strategies:
    """Candidates as strategies with the given knobs (arrays or scalars); the rest of the knobs at their defaults."""
    return Strategies(**rows, **knobs)


__all__ = ["BLOCK", "BUDGET", "KNOBS", "Space", "Tally", "as_strategies", "with_knobs"]

"""The placement that waits least, proven by halving boxes of what a placement may be like.

What a placement costs follows from a few numbers (``placement_axes``). A box is a range of each. No placement in it
costs less than its lower corner, and whether any keeps within its upper corner is a question of yes or no
(``placement_judge``). The cheapest box is taken first. Without placements it is closed, else it is cut in two along the
number that matters most, half the cost on each side. What is found on the way lowers the upper corners of all boxes: no
number may be so large that it alone, all else at its least, costs as much as the best placement in hand. When no box is
cheaper than that placement, none is better; until then the cheapest box is a bound.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from shardwise.costmodel.problem import Ints

from .placement_axes import Axes, Corner
from .placement_cost import Instance
from .placement_judge import Judge
from .proof import Clock

_MOST_BOXES = 1000
"""Boxes opened, at most."""

_SAME = 1e-9
"""Share of the seconds below which a saving is none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The best placement found (None: none better than what was known) and what no placement is below."""

    nodes: Ints | None
    bound_s: float


def prove(instance: Instance, size: int, most_s: float, work_limit: float, clock: Clock) -> Answer:
    """The best placement of less than ``most_s`` exposed seconds, and a bound on all placements.

    ``size`` is that of the blocks of slots that nodes are counted by, ``work_limit`` CP-SAT's deterministic time, the
    same on any machine.
    """
    return _Search(instance, most_s, Axes(instance, most_s), Judge(instance, size, work_limit, clock)).run()


@dataclass(order=True, frozen=True, slots=True)
class _Box:
    """Boxes compare by their bound, the older one first. ``cut``: the axis whose upper half was cut off last."""

    bound_s: float
    number: int
    low: Corner = field(compare=False)
    high: Corner = field(compare=False)
    cut: int | None = field(compare=False)


@dataclass(slots=True)
class _Search:
    """Open boxes, and the best placement so far."""

    instance: Instance
    most_s: float
    axes: Axes
    judge: Judge
    nodes: Ints | None = None
    boxes: list[_Box] = field(default_factory=list)
    made: int = 0

    def run(self) -> Answer:
        """Open boxes, the cheapest first, until none is cheaper than the best placement or the work is done."""
        self._add(self.axes.lowest, self.axes.highest, None)
        for _ in range(_MOST_BOXES):
            if not self.boxes or self.boxes[0].bound_s >= self._below or self.judge.spent:
                break
            box = heapq.heappop(self.boxes)
            high = self._inhabited(box)
            if high is not None and box.low == high:  # seconds that do not rise with every number leave a gap here
                return Answer(self.nodes, min(self.most_s, box.bound_s))
            if high is not None:
                self._halve(box.low, high)
        if not self.boxes or self.boxes[0].bound_s >= self._below:
            return Answer(self.nodes, self.most_s)
        return Answer(self.nodes, self.boxes[0].bound_s)

    @property
    def _below(self) -> float:
        """What a placement must cost less than to be better."""
        return self.most_s * (1.0 - _SAME)

    def _add(self, low: Corner, high: Corner, cut: int | None) -> None:
        self.made += 1
        heapq.heappush(self.boxes, _Box(self.axes.cost(low), self.made, low, high, cut))

    def _inhabited(self, box: _Box) -> Corner | None:
        """The upper corner of what a box still holds; None where it holds no better placement."""
        high = self._lowered(box.low, box.high)
        while high is not None:
            if not self._possible(high):
                self._refute_more(box, high)
                return None
            lower = self._lowered(box.low, high)
            if lower == high:
                return high
            high = lower
        return None

    def _possible(self, high: Corner, hard: bool = True) -> bool:
        """False where no placement keeps within a corner; one that is found and better is kept."""
        verdict = self.judge.within(self.axes.limits(high), hard=hard)
        for nodes in verdict.placements:
            cost = self.instance.cost(nodes)
            if cost < self._below:
                self.most_s, self.nodes = cost, nodes
        return verdict.possible

    def _refute_more(self, box: _Box, high: Corner) -> None:
        """Where the last cut alone is why a box is empty, all boxes that share it are."""
        root = self._lowered(self.axes.lowest, self.axes.highest)
        if box.cut is None or root is None:
            return
        wide = (*root[: box.cut], min(root[box.cut], high[box.cut]), *root[box.cut + 1 :])
        if wide != high:
            self._possible(wide, hard=False)

    def _halve(self, low: Corner, high: Corner) -> None:
        axis = max((a for a in range(len(low)) if low[a] < high[a]), key=lambda a: self._rise(low, high, a))
        middle = self._middle(low, high, axis)
        self._add(low, (*high[:axis], middle, *high[axis + 1 :]), axis)
        self._add((*low[:axis], middle + 1, *low[axis + 1 :]), high, None)

    def _rise(self, low: Corner, high: Corner, axis: int) -> float:
        """Seconds that an axis adds over a box, seen from both of its corners."""
        return self._both(low, high, axis, high[axis]) - self._both(low, high, axis, low[axis])

    def _both(self, low: Corner, high: Corner, axis: int, value: int) -> float:
        return self._cost(low, axis, value) + self._cost(high, axis, value)

    def _cost(self, corner: Corner, axis: int, value: int) -> float:
        return self.axes.cost((*corner[:axis], value, *corner[axis + 1 :]))

    def _middle(self, low: Corner, high: Corner, axis: int) -> int:
        """The last value of an axis, but its highest, in the cheaper half of what it adds."""
        half = (self._both(low, high, axis, low[axis]) + self._both(low, high, axis, high[axis])) / 2.0
        first, last = low[axis], high[axis] - 1
        while first < last:
            middle = (first + last + 1) // 2
            if self._both(low, high, axis, middle) <= half:
                first = middle
            else:
                last = middle - 1
        return first

    def _lowered(self, low: Corner, high: Corner) -> Corner | None:
        """An upper corner without values that alone cost as much as the best placement; None: nothing is left."""
        out = []
        for axis, top in enumerate(high):
            first, last = low[axis] - 1, top
            while first < last:
                middle = (first + last + 1) // 2
                if self._cost(low, axis, middle) < self._below:
                    first = middle
                else:
                    last = middle - 1
            if first < low[axis]:
                return None
            out.append(first)
        return tuple(out)

"""How sure an answer is: what was considered, what became of it, and the bound that nothing undercuts."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

TOLERANCE = 1e-4
"""Relative difference under which the integer solver's rounding does not tell two step times apart."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The search's account. ``considered`` strategies are those of the declared axes, all settings counted."""

    incumbent_s: float
    """Step time of the best strategy of the space."""
    best_bound_s: float
    """No strategy of the space is faster than this under the cost model."""
    gap: float
    """(incumbent - bound) / incumbent: 0 when proven best, to within ``tolerance``."""
    tolerance: float
    considered: int
    removed_by_rule: dict[str, int]
    """Strategies that each rule removed, in the order the rules were applied."""
    evaluated: int
    """Strategies whose step time and memory were computed."""
    bounded_out: int
    """Strategies that a bound on a relative of theirs ruled out, or a rule on recomputation or offload after that."""
    candidates: int
    """Groups of strategies that differ in knobs only, as bounded one by one."""
    solved: int
    """Layer splits that CP-SAT solved."""
    time_s: float
    finished: bool
    """Whether the answer is proven best; not so when a limit or Ctrl-C ended the search, or where splits stay that no
    bound rules out and nothing solves: the gap then says what remains."""
    stopped_by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Clock:
    """Wall-clock time since the start of a search, and whether its limit has passed."""

    def __init__(self, limit_s: float | None) -> None:
        self._start = time.monotonic()
        self._limit = limit_s

    @property
    def unlimited(self) -> bool:
        """Whether no limit was given."""
        return self._limit is None

    def expire(self) -> None:
        """Let the limit be now: who pressed Ctrl-C wants what there is."""
        self._limit = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float | None:
        """Seconds left of the limit, at least 0; None without one."""
        return None if self._limit is None else max(0.0, self._limit - self.elapsed_s)

    @property
    def expired(self) -> bool:
        """Whether the limit has passed; never without one."""
        return self._limit is not None and self.elapsed_s >= self._limit

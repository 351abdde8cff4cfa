"""What a plan is best at: the objective, the deadline it must meet, and how GPU counts compare under it.

For a given number of accelerators every objective is best where the step is shortest, so one search answers all of
them; objectives differ in how answers for different numbers of accelerators, or precisions, compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.hardware_profiles.errors import InputError

if TYPE_CHECKING:
    from shardwise.costmodel.workload import Workload
    from shardwise.hardware_profiles.cluster import Cluster

OBJECTIVES = ("step-time", "tokens-per-gpu", "cost", "fewest-gpus")
"""Shortest step; most tokens per second and accelerator; fewest dollars per token; fewest accelerators in time."""

_HOUR_S = 3600.0

MOST = {"max_step_time_s": 1e12, "tokens": 1e21, "deadline_s": 1e12, "price_usd_per_gpu_hour": 1e6}
"""Largest value of each field: far above what anybody means, far below where sums lose their sense."""

Score = tuple[float, float]
"""Less is better: what the objective counts, then what breaks its ties."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What to be best at, and what to keep to. Raises InputError naming the field, the value and what was expected."""

    name: str = "step-time"
    """One of ``OBJECTIVES``."""
    max_step_time_s: float | None = None
    """Longest step that will do."""
    tokens: float | None = None
    """Tokens of the whole run: its length and cost are then told."""
    deadline_s: float | None = None
    """Seconds that the whole run may take; needs ``tokens``."""
    price_usd_per_gpu_hour: float | None = None
    """Default: the cluster profile's."""

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise InputError(f"objective = {self.name!r}: expected one of {', '.join(OBJECTIVES)}")
        for field in MOST:
            try:
                check_amount(field, getattr(self, field))
            except InputError as error:
                raise InputError(f"objective: {error}") from None
        if self.deadline_s is not None and self.tokens is None:
            raise InputError("objective: deadline_s says when a run must end: give its tokens too")
        if self.name == "fewest-gpus" and not self.is_limited:
            raise InputError(
                "objective fewest-gpus needs a limit: a longest step, or the run's tokens and its deadline"
            )

    @classmethod
    def of(cls, objective: Objective | str) -> Objective:
        """From its name, or as it is."""
        return objective if isinstance(objective, Objective) else cls(objective)

    @property
    def is_limited(self) -> bool:
        """Whether a step must not take longer than something."""
        return self.max_step_time_s is not None or self.deadline_s is not None

    def limit_s(self, workload: Workload) -> float:
        """The longest step that meets every limit; infinite without one. A run is a whole number of steps."""
        limit = self.max_step_time_s or math.inf
        if self.deadline_s is not None and self.tokens is not None:
            limit = min(limit, self.deadline_s / math.ceil(self.tokens / workload.tokens_per_step))
        return limit

    def price_usd(self, cluster: Cluster) -> float | None:
        """Dollars per accelerator and hour: the request's, else the profile's.

        Raises InputError where the objective is cost and nobody states one.
        """
        price = self.price_usd_per_gpu_hour or cluster.price_usd_per_gpu_hour
        if price is None and self.name == "cost":
            raise InputError(
                f"objective cost needs a price and {cluster.name} states none: give --price-per-gpu-hour, or "
                "price_usd_per_gpu_hour with its source in a profile of your own"
            )
        return price

    def score(self, num_gpus: int, step_s: float) -> Score:
        """How good a step is on so many accelerators: grows with the step."""
        if self.name == "step-time":
            return step_s, float(num_gpus)
        if self.name == "fewest-gpus":
            return float(num_gpus), step_s
        return num_gpus * step_s, step_s  # tokens and price are the same for all

    def beaten_from_s(self, num_gpus: int, best: Score | None, limit_s: float) -> float:
        """The step time from which on so many accelerators are no better than the best so far, or too slow."""
        if best is None:
            return limit_s
        if self.name == "step-time":
            return min(limit_s, best[0])
        if self.name == "fewest-gpus":
            return limit_s if num_gpus < best[0] else min(limit_s, best[1]) if num_gpus == best[0] else 0.0
        return min(limit_s, best[0] / num_gpus)

    def value(self, num_gpus: int, step_s: float, workload: Workload, price_usd: float | None) -> float:
        """What the objective counts, in ``unit``: more is better for ``tokens-per-gpu`` only."""
        if self.name == "step-time":
            return step_s
        if self.name == "fewest-gpus":
            return float(num_gpus)
        if self.name == "tokens-per-gpu":
            return workload.tokens_per_step / (step_s * num_gpus)
        assert price_usd is not None
        return usd_per_token(num_gpus, step_s, workload, price_usd)

    @property
    def unit(self) -> str:
        """Of ``value``."""
        units = {"step-time": "s", "tokens-per-gpu": "tokens/s/GPU", "cost": "USD/token", "fewest-gpus": "GPUs"}
        return units[self.name]

    def run_s(self, step_s: float, workload: Workload) -> float | None:
        """Seconds of the whole run, where its tokens are given."""
        return None if self.tokens is None else math.ceil(self.tokens / workload.tokens_per_step) * step_s


def check_amount(field: str, value: object) -> None:
    """Refuse an amount of ``MOST``'s that is out of range; None is none. Raises InputError naming field and value."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 < value <= MOST[field]
    if value is not None and not number:
        raise InputError(f"{field} = {value!r}: expected a number above 0, at most {MOST[field]:g}")


def usd_per_token(num_gpus: int, step_s: float, workload: Workload, price_usd: float) -> float:
    """Dollars per token trained: accelerator hours of a step times their price, over its tokens."""
    return price_usd * num_gpus * step_s / _HOUR_S / workload.tokens_per_step


def run_usd(num_gpus: int, run_s: float, price_usd: float) -> float:
    """Dollars of a whole run."""
    return price_usd * num_gpus * run_s / _HOUR_S

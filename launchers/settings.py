"""What the person who launches decides and the planner does not: names, paths, the schedule of the learning rate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from shardwise.hardware_profiles.errors import InputError


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """Settings of the launch files outside the plan. The defaults run as they are, on mock data."""

    job_name: str = "shardwise"
    gpus_per_node: int | None = None
    """Accelerators per host; None takes the cluster's own."""
    train_iters: int = 100
    hosts: tuple[str, ...] = ()
    """Host names in rank order (a placement): rank 0's host first. Empty leaves the order to the scheduler."""
    time_limit: str = "04:00:00"
    """Of the Slurm job."""

    microbatch_group: int = 0
    """What a refinement found: micro-batches that an interleaved rank runs through one chunk in turn; 0 for pp."""
    buckets: int = 0
    """What a refinement found: gradient buckets of each rank; 0 for the framework's own number."""

    def tuned(self, launcher_has: Collection[str], found: Mapping[str, int]) -> LaunchSettings:
        """The same with what a refinement found, as far as the launcher has options for it."""
        have = {name: value for name, value in found.items() if name in launcher_has}
        return replace(
            self,
            microbatch_group=have.get("microbatch_group", self.microbatch_group),
            buckets=have.get("buckets", self.buckets),
        )

    def __post_init__(self) -> None:
        if self.train_iters < 1:
            raise InputError(f"launch settings: train_iters = {self.train_iters}: expected 1 or more")
        if self.microbatch_group < 0 or self.buckets < 0:
            raise InputError("launch settings: microbatch_group, buckets: expected 0 or more")
        if self.gpus_per_node is not None and self.gpus_per_node < 1:
            raise InputError(f"launch settings: gpus_per_node = {self.gpus_per_node}: expected 1 or more")
        for text in (self.job_name, self.time_limit, *self.hosts):
            if not text or any(c.isspace() or not c.isprintable() for c in text):
                raise InputError(f"launch settings: {text!r}: expected a name without spaces")

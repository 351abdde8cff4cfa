"""What the person who launches decides and the planner does not: names, paths, the schedule of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        if self.train_iters < 1:
            raise InputError(f"launch settings: train_iters = {self.train_iters}: expected 1 or more")
        if self.gpus_per_node is not None and self.gpus_per_node < 1:
            raise InputError(f"launch settings: gpus_per_node = {self.gpus_per_node}: expected 1 or more")
        for text in (self.job_name, self.time_limit, *self.hosts):
            if not text or any(c.isspace() or not c.isprintable() for c in text):
                raise InputError(f"launch settings: {text!r}: expected a name without spaces")

"""What the person who launches decides and the planner does not: names, paths, the schedule of the learning rate."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from shardwise.hardware_profiles.errors import InputError

# What Slurm takes as it is: quotes and # break its directives, a backslash is dropped, a slash is a folder of the log.
_NAME = re.compile(r"\w[\w.+=-]*")
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED", re.IGNORECASE)
_HOST = re.compile(r"\w[\w.-]*")


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
        if not _NAME.fullmatch(self.job_name):
            raise InputError(
                f"launch settings: job_name = {self.job_name!r}: expected letters, digits and any of . _ + = -"
            )
        if not _TIME.fullmatch(self.time_limit):
            raise InputError(
                f"launch settings: time_limit = {self.time_limit!r}: expected MINUTES, HOURS:MINUTES:SECONDS, "
                "DAYS-HOURS:MINUTES:SECONDS or UNLIMITED"
            )
        seen: set[str] = set()
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise InputError(f"launch settings: hosts: {host!r}: expected the name of one host")
            if host in seen:
                raise InputError(f"launch settings: hosts: {host!r} stands twice; expected each host once")
            seen.add(host)

"""One question to every launcher: the best plan that each can express, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.choice import PREFERENCE

from .plan import SCHEMA_VERSION, Plan
from .planner import plan


@dataclass(frozen=True, slots=True)
class LauncherEntry:
    """One launcher's answer: its best plan, or why it has none."""

    launcher: str
    plan: Plan | None
    reason: str = ""
    """Why there is no plan; empty otherwise."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "launcher": self.launcher,
            "plan": None if self.plan is None else self.plan.as_dict(),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class LauncherComparison:
    """The best plan of every launcher, the quickest first; launchers without one come last."""

    entries: tuple[LauncherEntry, ...]

    @property
    def best(self) -> Plan:
        """The quickest plan of all."""
        found = self.entries[0].plan
        assert found is not None, "a comparison has at least one plan"
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the document that ``schemas/launchers.schema.json`` describes."""
        return {"schema_version": SCHEMA_VERSION, "launchers": [e.as_dict() for e in self.entries]}


def compare_launchers(
    model: ModelSpec | str | Path, cluster: Cluster | str | Path, workload: Workload, **options: Any
) -> LauncherComparison:
    """The best plan that each launcher can express, each priced with its own runtime profile unless one is named.

    ``options`` are those of ``plan`` but ``launcher``.

    Raises:
        InputError: an input that cannot be used, or no launcher that can express the job; each one's reason is said.
        InfeasibleError: launchers can express the job, but nothing fits under any of them.
    """
    entries: list[LauncherEntry] = []
    lacking: InfeasibleError | None = None
    for name in PREFERENCE:
        try:
            entries.append(LauncherEntry(name, plan(model, cluster, workload, launcher=name, **options)))
        except InfeasibleError as error:
            lacking = lacking or error
            entries.append(LauncherEntry(name, None, str(error)))
        except InputError as error:
            entries.append(LauncherEntry(name, None, str(error)))
    if not any(e.plan for e in entries):
        if lacking is not None:
            raise lacking
        raise InputError(_none(entries))
    return LauncherComparison(tuple(sorted(entries, key=_order)))


def _none(entries: list[LauncherEntry]) -> str:
    reasons = tuple(dict.fromkeys(e.reason for e in entries))
    if len(reasons) == 1:
        return reasons[0]
    return "no launcher takes this job: " + "; ".join(f"{e.launcher}: {e.reason}" for e in entries)


def _order(entry: LauncherEntry) -> float:
    return entry.plan.estimate.step_time_s if entry.plan else float("inf")

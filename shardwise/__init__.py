"""shardwise: plans the parallel layout of a large training job.

    import shardwise
    plan = shardwise.plan("llama-3.1-70b", "dgx-h100", shardwise.Workload(1024, 8192), num_gpus=512)
    plan.step_time_s, plan.strategy, plan.launch("megatron")

Names are imported when first used, so that ``import shardwise`` is quick and loads nothing heavy.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # what ``typing`` would say, without its import: a Ctrl-C that strikes here shows a traceback
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Calibrated": "costmodel.calibrate",
    "Cluster": "hardware_profiles.cluster",
    "Estimate": "costmodel.estimate",
    "InfeasibleError": "hardware_profiles.errors",
    "InputError": "hardware_profiles.errors",
    "LauncherComparison": "search.launcher_comparison",
    "ModelSpec": "costmodel.model",
    "NothingFitsError": "search.infeasible",
    "Objective": "search.objective",
    "Placement": "search.placement",
    "Plan": "search.plan",
    "Problem": "costmodel.problem",
    "Proof": "search.proof",
    "Review": "search.review",
    "Runtime": "costmodel.runtime",
    "ShardwiseError": "hardware_profiles.errors",
    "Simulation": "costmodel.simulation",
    "Strategy": "costmodel.strategy",
    "StudyResult": "search.studies.runner",
    "UnknownNameError": "hardware_profiles.errors",
    "Workload": "costmodel.workload",
    "calibrate": "costmodel.calibrate",
    "compare_launchers": "search.launcher_comparison",
    "estimate": "search.planner",
    "load_cluster": "hardware_profiles.load_cluster",
    "load_runtime": "costmodel.runtime",
    "load_topology": "hardware_profiles.load_topology",
    "place": "search.placement",
    "plan": "search.planner",
    "plan_and_place": "search.plan_and_place",
    "read_launch": "launchers.reading",
    "review": "search.review",
    "simulate": "costmodel.simulation",
    "study": "search.studies.runner",
}

if TYPE_CHECKING:
    from shardwise.costmodel.calibrate import Calibrated, calibrate
    from shardwise.costmodel.estimate import Estimate
    from shardwise.costmodel.model import ModelSpec
    from shardwise.costmodel.problem import Problem
    from shardwise.costmodel.runtime import Runtime, load_runtime
    from shardwise.costmodel.simulation import Simulation, simulate
    from shardwise.costmodel.strategy import Strategy
    from shardwise.costmodel.workload import Workload
    from shardwise.hardware_profiles.cluster import Cluster
    from shardwise.hardware_profiles.errors import InfeasibleError, InputError, ShardwiseError, UnknownNameError
    from shardwise.hardware_profiles.load_cluster import load_cluster
    from shardwise.hardware_profiles.load_topology import load_topology
    from shardwise.launchers.reading import read_launch
    from shardwise.search.infeasible import NothingFitsError
    from shardwise.search.launcher_comparison import LauncherComparison, compare_launchers
    from shardwise.search.objective import Objective
    from shardwise.search.placement import Placement, place
    from shardwise.search.plan import Plan
    from shardwise.search.plan_and_place import plan_and_place
    from shardwise.search.planner import estimate, plan
    from shardwise.search.proof import Proof
    from shardwise.search.review import Review, review
    from shardwise.search.studies.runner import StudyResult, study

__all__ = [
    "Calibrated",
    "Cluster",
    "Estimate",
    "InfeasibleError",
    "InputError",
    "LauncherComparison",
    "ModelSpec",
    "NothingFitsError",
    "Objective",
    "Placement",
    "Plan",
    "Problem",
    "Proof",
    "Review",
    "Runtime",
    "ShardwiseError",
    "Simulation",
    "Strategy",
    "StudyResult",
    "UnknownNameError",
    "Workload",
    "calibrate",
    "compare_launchers",
    "estimate",
    "load_cluster",
    "load_runtime",
    "load_topology",
    "place",
    "plan",
    "plan_and_place",
    "read_launch",
    "review",
    "simulate",
    "study",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

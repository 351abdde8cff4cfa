"""Which launcher writes a plan when nobody names one: the runtime's own, else the first that can express the model
and runs on the accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import Runtime, load_runtime
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError

from .base import Launcher, get_launcher

PREFERENCE = (
    "megatron",
    "megatron-deepspeed",
    "torchtitan",
    "accelerate",
    "nanotron",
    "deepspeed",
    # Runs what megatron runs, so it is taken where its runtime is asked for.
    "megatron-bridge",
)
"""Launchers that write files, in the order in which they are tried, and ties are broken.

First those whose runtime profile published runs stand behind, the widest first; then those that start without code of
the person's own (accelerate's train.py, nanotron's run_train.py); DeepSpeed needs a training script."""

NO_FILES = "launcher generic, which writes no files: "
"""How the reason for a plan without launch files begins."""

_CANNOT = "cannot express "
"""In every refusal of a model, followed by what is missing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A launcher and the runtime profile that its plans are priced with."""

    launcher: Launcher
    runtime: Runtime
    reason: str | None = None
    """Why it is not the first in question, in one sentence; None where it is, or where it was named."""


def choose_launcher(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    launcher: str | None = None,
    runtime: Runtime | str | Path | None = None,
) -> Choice:
    """The launcher and runtime that were named; without a launcher, one that can express the model.

    A runtime profile belongs to a framework, so naming one leaves only that framework's launcher. Where no launcher can
    write for the runtime or express the model, the generic one still plans. Raises InputError (UnknownNameError).
    """
    given = runtime if runtime is None or isinstance(runtime, Runtime) else load_runtime(runtime)
    if launcher is not None:
        named = get_launcher(launcher)
        return Choice(named, given or _default_runtime(named, cluster, workload))
    names = PREFERENCE if given is None else _writers(given)
    lacking: list[str] = []
    for name in names:
        writer = get_launcher(name)
        profile = given or _default_runtime(writer, cluster, workload)
        problem = Problem(model, cluster, workload, profile)
        try:
            writer.check_model(problem)
        except InputError as error:
            lacking.append(f"{name} {_CANNOT}{str(error).rpartition(_CANNOT)[2]}")
            continue
        refused = writer.refusal(problem, "machine")
        if refused is not None:
            lacking.append(f"{name}: {refused.message}")
            continue
        return Choice(writer, profile, f"launcher {name}: {', '.join(lacking)}" if lacking else None)
    generic = get_launcher("generic")
    if given is None or lacking:
        why = f"no launcher takes this job ({', '.join(lacking)})"
    else:
        why = f"no launcher writes for the framework of runtime {given.name}"
    return Choice(generic, given or _default_runtime(generic, cluster, workload), NO_FILES + why)


def _default_runtime(launcher: Launcher, cluster: Cluster, workload: Workload) -> Runtime:
    return load_runtime(launcher.runtime_for(workload.dtype, cluster.accelerator.vendor))


def _writers(runtime: Runtime) -> tuple[str, ...]:
    """Launchers that write for the framework of a runtime: those it names, or that have it among their defaults."""
    return tuple(
        name for name in PREFERENCE if name == runtime.launcher or runtime.name in _default_runtimes(get_launcher(name))
    )


def _default_runtimes(launcher: Launcher) -> set[str]:
    return {launcher.default_runtime, *launcher.dtype_runtimes.values()}

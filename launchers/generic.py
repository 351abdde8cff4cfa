"""No framework in particular: the universal rules only, to estimate layouts of frameworks without a launcher."""

from __future__ import annotations

from typing import NoReturn

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .base import Launcher
from .capability import FULL_CAPABILITIES
from .parsed import Files, Given
from .settings import LaunchSettings


def _write(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> NoReturn:
    raise InputError("launcher 'generic' knows no framework, so it cannot write launch files: choose another launcher")


def _read(files: Files, given: Given) -> NoReturn:
    raise InputError("launcher 'generic' knows no framework, so it cannot read launch files: name the framework")


def _no_files(files: Files) -> bool:
    return False


def _any_model(problem: Problem) -> None:
    """Every model is fine: nothing has to build it."""


LAUNCHER = Launcher(
    name="generic",
    title="Any framework (universal rules only; writes no files)",
    default_runtime="megatron-core",
    vendor_runtimes={"Google": "jax"},
    capabilities=FULL_CAPABILITIES,
    own_rules=(),
    writer=_write,
    model_check=_any_model,
    options={},
    parser=_read,
    claim=_no_files,
)

"""What each launcher that writes files is tested on: a module of its name, with ``SAMPLE``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.base import list_launchers

Given = dict[str, Any]
"""Arguments of ``problems.problem``."""


@dataclass(frozen=True)
class Sample:
    """A launcher's problems and plans.

    ``problems`` are those that plans are drawn for: models, clusters, precisions and sizes that the launcher can
    express, at least six. ``plans`` are settings worth a test of their own (dp and the number of micro-batches are
    filled in). ``refused`` are strategies, each with the name of a rule that must refuse it.
    """

    problems: tuple[Given, ...]
    refused: tuple[tuple[Given, Strategy, str], ...]
    plans: tuple[tuple[Given, dict[str, Any]], ...] = field(default=())


def sample(launcher: str) -> Sample:
    """The sample of a launcher."""
    module = importlib.import_module(f".{launcher.replace('-', '_')}", __name__)
    found = module.SAMPLE
    assert isinstance(found, Sample)
    return found


WRITERS = [name for name in list_launchers() if name != "generic"]
"""The launchers that write and read files."""

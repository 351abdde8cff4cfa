"""Asks a framework in its own environment: a runner answers all cases of a file in one process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

Case = dict[str, Any]


def ask(runner: str, variable: str, cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The answers of a runner here; ``variable`` names the interpreter, without which the test is skipped."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} is not set: run .ci/validators.sh to make an environment for it")
    questions, answers = folder / "cases.json", folder / "answers.json"
    questions.write_text(json.dumps(cases))
    command = [python, str(Path(__file__).with_name(runner)), str(questions), str(answers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert answers.exists(), done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(answers.read_text())
    return found

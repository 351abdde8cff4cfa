"""Running the command line inside the test process, and as a process of its own."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shardwise.cli.main import cli

INPUTS = {
    "--model": "llama-3.1-8b",
    "--cluster": "dgx-h100",
    "--gpus": "16",
    "--global-batch": "64",
    "--seq-len": "4096",
}


@pytest.fixture
def request_args():
    """``request_args({"--gpus": "8"})``: options of a small problem, some changed or (None) left out."""

    def options(changes=None):
        merged = {**INPUTS, **(changes or {})}
        return [word for name, value in merged.items() if value is not None for word in (name, value)]

    return options


@pytest.fixture
def run():
    """``run("models", "list")`` in this process; the result has exit_code, stdout and stderr."""

    def call(*args):
        return CliRunner().invoke(cli, [str(a) for a in args])

    return call


@pytest.fixture
def run_process(tmp_path):
    """The same as a process, from a folder of its own."""

    def call(*args, env=None, **kwargs):
        code = "import sys; from shardwise.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, args)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            check=False,
            **kwargs,
        )

    return call

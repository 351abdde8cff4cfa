"""Runs launch scripts with a torchrun that only records its arguments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

RECORDER = """#!{python}
import json, os, sys
names = ("NODE_RANK", "MASTER_ADDR", "CUDA_DEVICE_MAX_CONNECTIONS")
json.dump({{"argv": sys.argv[1:], "env": {{k: os.environ.get(k) for k in names}}}}, open({out!r}, "w"))
"""


def make_bench(folder: Path) -> Path:
    """The folder with a ``bin/torchrun`` that records how it was called."""
    (folder / "bin").mkdir()
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(RECORDER.format(python=sys.executable, out=str(folder / "called.json")))
    torchrun.chmod(0o755)
    return folder


def run(folder: Path, script: str, *extra: str, **env: str) -> dict[str, object]:
    """Run a launch script; what torchrun was called with."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, *extra], cwd=folder, env={"PATH": path, "CUDA_DEVICE_MAX_CONNECTIONS": "7", **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads((folder / "called.json").read_text())
    return found

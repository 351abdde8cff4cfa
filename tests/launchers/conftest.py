"""Fixtures of the launcher tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .bench import make_bench


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A folder with a torchrun that records how it was called."""
    return make_bench(tmp_path)

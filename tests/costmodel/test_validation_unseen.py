"""Sources predicted as if they had never been seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwise.costmodel._nearest_runtime import family_of
from shardwise.costmodel._validation_unseen import struck_profiles
from shardwise.costmodel.validation import Validation, validate_rows

SUBSET = Path(__file__).parents[1] / "data" / "runs" / "published_subset.jsonl"

GATE = {"median": 0.10, "p90": 0.25}
"""What the dense rows of the subset may be off as unseen sources."""


@pytest.fixture(scope="module")
def subset() -> Validation:
    return validate_rows(SUBSET)


def test_a_profile_is_struck_for_the_source_that_gave_most_of_its_rows():
    uses = [("ours", "oneflow")] * 2 + [("theirs", "oneflow")] + [("theirs", "jax")]
    struck = struck_profiles(uses)
    assert struck["ours"] == {"oneflow"}
    assert struck["theirs"] == {"jax"}


def test_half_of_the_rows_is_not_most_of_them():
    assert not struck_profiles([("ours", "jax"), ("theirs", "jax")])


def test_a_family_is_struck_with_its_main_source():
    uses = [("ours", "nemo-24.07")] * 3 + [("theirs", "nemo-dgxc-25.05.05")]
    struck = struck_profiles(uses)
    assert {"nemo-24.07", "nemo-dgxc-25.05.05", "mlperf-nemo"} <= struck["ours"]
    assert struck["theirs"] == {"nemo-dgxc-25.05.05"}
    assert {family_of(p) for p in struck["ours"]} == {"nemo"}


def test_gate_of_unseen_sources(subset: Validation):
    cells = [c for name, c in subset.summary["unseen"]["by_source"].items() if name.endswith("dense")]
    assert sum(c["n"] for c in cells) > 30
    by_kind = subset.summary["unseen"]["by_kind"]
    dense = [by_kind[name] for name in ("dense, fully stated", "dense, partly stated") if name in by_kind]
    assert np.average([c["median"] for c in dense], weights=[c["n"] for c in dense]) <= GATE["median"]
    assert max(c["p90"] for c in dense) <= GATE["p90"]


def test_unseen_rows_carry_wider_ranges_than_seen_ones(subset: Validation):
    seen, unseen = subset.summary["interval_coverage"]["all"], subset.summary["unseen"]["interval_coverage"]["all"]
    assert unseen["half_width"] > seen["half_width"]

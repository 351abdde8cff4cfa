"""Jobs on a part of a system, and where groups lie in it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster


def test_with_num_gpus_wants_whole_nodes():
    c = load_cluster("dgx-a100")
    assert c.with_num_gpus(4).num_gpus == 4 and c.with_num_gpus(160).num_gpus == 160
    for wrong in (0, -8, 10**9):
        with pytest.raises(InputError, match=r"DGX A100 SuperPOD \(HDR\): num_gpus = .*: expected 1 to 1048576"):
            c.with_num_gpus(wrong)
    with pytest.raises(InputError, match="num_gpus = 12: expected whole nodes of 8"):
        c.with_num_gpus(12)


def test_a_job_beyond_the_profile_extends_its_outermost_tier_and_says_so():
    c = load_cluster("dgx-h100")
    large = c.with_num_gpus(131072)
    assert large.tiers[-1].size == 131072 and large.tiers[:-1] == c.tiers[:-1]
    assert "described up to 16384 accelerators" in large.assumptions[-1]
    assert c.with_num_gpus(16384).assumptions == c.assumptions


def test_a_rack_takes_nodes_of_four_and_jobs_spread_evenly_over_racks():
    c = load_cluster("gb200-nvl72")
    assert c.with_num_gpus(12).domains == (12,)
    assert c.with_num_gpus(128).domains == (64, 128)
    assert c.with_num_gpus(1024).domains == (64, 512, 1024)
    assert c.with_num_gpus(576).domains == (72, 576)
    # 64-way groups therefore stay inside the racks of a 256-GPU job.
    assert c.with_num_gpus(256).outermost_tier(64, 1) == 0


def test_an_uneven_job_keeps_full_domains():
    assert load_cluster("dgx-h100", 1016).domains == (8, 256, 1016)


def test_outermost_tier():
    c = load_cluster("dgx-h100")
    tiers = c.outermost_tier([1, 8, 2, 32, 64, 2, 2, 4096], [1, 1, 8, 8, 8, 256, 4096, 4])
    assert tiers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_message_waits_for_the_farthest_neighbour():
    c = load_cluster("dgx-h100")
    near, far = c.collective_time_s("p2p", 1e6, [4, 8], 64)
    assert far > near


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "p2p"])
def test_many_groups_are_quick(kind):
    c = load_cluster("dgx-h100", 1024)
    rng = np.random.default_rng(0)
    nbytes, size, stride = (
        rng.uniform(1e3, 1e9, 20_000),
        2 ** rng.integers(0, 7, 20_000),
        2 ** rng.integers(0, 4, 20_000),
    )
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        c.collective_time_s(kind, nbytes, size, stride)
        best = min(best, time.perf_counter() - start)
    assert best < 0.05

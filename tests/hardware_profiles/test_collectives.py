"""Closed forms of the collective laws on clusters simple enough to work out by hand, and what-ifs that must hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.cluster import Cluster, Ramp, Tier
from shardwise.hardware_profiles.collectives import KINDS, Group
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import list_clusters, load_cluster

IDEAL = dict.fromkeys((*KINDS, "nvls"), 1.0)
GB = 1e9


def ideal(nvls: bool = False, oversubscription: float = 1.0, nic: float = 50 * GB) -> Cluster:
    """Nodes of 8 at 400 GB/s, leaves of 32, no latency and no ramps: pure bandwidth."""
    tiers = (
        Tier("node", 8, 400 * GB, 1e-30, 1.0, IDEAL, nvls),
        Tier("leaf", 32, nic, 1e-30, 1.0, IDEAL),
        Tier("spine", 1024, nic, 1e-30, oversubscription, IDEAL),
    )
    return Cluster("ideal", load_cluster("dgx-h100").accelerator, 1024, tiers, 1e11, gpus_per_node=8)


def seconds(cluster: Cluster, kind: str, nbytes: float, size: int, stride: int) -> float:
    return float(cluster.collective_time_s(kind, nbytes, size, stride))


def test_in_node_rings_move_the_textbook_bytes():
    c = ideal()
    assert seconds(c, "all_gather", GB, 8, 1) == pytest.approx(7 / 8 * GB / (400 * GB))
    assert seconds(c, "reduce_scatter", GB, 4, 2) == pytest.approx(3 / 4 * GB / (400 * GB))
    assert seconds(c, "all_reduce", GB, 8, 1) == pytest.approx(2 * 7 / 8 * GB / (400 * GB))
    assert seconds(c, "all_to_all", GB, 8, 1) == pytest.approx(7 / 8 * GB / (400 * GB))
    assert seconds(c, "p2p", GB, 2, 1) == pytest.approx(GB / (400 * GB))


def test_members_of_a_node_drive_their_nics_together():
    c = ideal()
    alone = seconds(c, "all_gather", GB, 4, 8)
    assert alone == pytest.approx(3 / 4 * GB / (50 * GB))
    # 32 ranks on 4 nodes: 8 NICs for the group, so the wires carry 31/32 of S in an eighth of the time.
    together = seconds(c, "all_gather", GB, 32, 1)
    assert together == pytest.approx(31 / 32 * GB / (8 * 50 * GB))


def test_two_nodes_let_a_tree_halve_the_wire_bytes():
    c = ideal(nvls=True, nic=5 * GB)
    two = seconds(c, "all_reduce", GB, 16, 1)
    assert two == pytest.approx(GB / (8 * 5 * GB) / 0.92)
    four = seconds(c, "all_reduce", GB, 32, 1)
    assert four == pytest.approx(2 * 31 / 32 * GB / (8 * 5 * GB))


def test_in_switch_reduction_beats_the_ring_only_for_enough_ranks():
    c, plain = ideal(nvls=True), ideal()
    assert seconds(c, "all_reduce", GB, 8, 1) == pytest.approx((1 + 1 / 8) * GB / (400 * GB))
    assert seconds(c, "all_reduce", GB, 2, 1) == seconds(plain, "all_reduce", GB, 2, 1)


def test_all_to_all_is_bound_by_the_slowest_tier_not_by_the_sum():
    c = ideal()
    assert seconds(c, "all_to_all", GB, 32, 1) == pytest.approx(GB * (32 - 8) / 32 / (50 * GB))
    narrow = ideal(oversubscription=4.0)
    assert seconds(narrow, "all_to_all", GB, 64, 1) == pytest.approx(GB * (64 - 32) / 64 * 4 / (50 * GB))


def test_oversubscription_hurts_only_groups_that_leave_the_leaf():
    c, narrow = ideal(), ideal(oversubscription=7.0)
    assert seconds(narrow, "all_gather", GB, 4, 8) == seconds(c, "all_gather", GB, 4, 8)
    assert seconds(narrow, "p2p", GB, 2, 32) == pytest.approx(7 * seconds(c, "p2p", GB, 2, 32))


def test_tier_bytes_follow_the_ring():
    sent = ideal().collective_tier_bytes("all_reduce", 64.0, [8, 32, 4, 1], [1, 1, 8, 1])
    ring = 2 * 31 / 32 * 64.0
    expected = [[2 * 7 / 8 * 64, 0, 0], [ring, ring / 8, 0], [0, 2 * 3 / 4 * 64, 0], [0, 0, 0]]
    np.testing.assert_allclose(sent, expected)


def test_tier_bytes_of_all_to_all_and_p2p():
    c = ideal()
    sent = c.collective_tier_bytes("all_to_all", 64.0, 64, 1)
    np.testing.assert_allclose(sent, [64 * 7 / 8, 64 * 56 / 64, 64 * 32 / 64])
    np.testing.assert_allclose(
        c.collective_tier_bytes("p2p", 64.0, 2, [1, 8, 32]), [[64, 0, 0], [0, 64, 0], [0, 64, 64]]
    )


def test_a_group_that_does_not_divide_a_node_crosses_it():
    assert ideal().outermost_tier([6, 8, 2, 3], [1, 1, 4, 2]).tolist() == [2, 0, 0, 2]


def test_unknown_kind_and_missing_efficiency_are_named():
    with pytest.raises(InputError, match="'gather': expected one of all_reduce"):
        ideal().collective_time_s("gather", 1.0, 2, 1)
    bare = replace(ideal(), tiers=(Tier("node", 8, GB, 1e-6, 1.0, {"p2p": 1.0}),), num_gpus=8)
    with pytest.raises(InputError, match=r"tier node: efficiency\.all_reduce: missing"):
        bare.collective_time_s("all_reduce", 1.0, 2, 1)


SYSTEMS = st.sampled_from(list_clusters())
KIND = st.sampled_from(KINDS)
BYTES = st.floats(1.0, 1e12)
POWERS = st.integers(0, 7).map(lambda p: 2**p)


@settings(max_examples=150, deadline=None)
@given(SYSTEMS, KIND, BYTES, POWERS, POWERS, st.integers(0, 4), st.floats(1.0, 100.0))
def test_a_better_network_is_never_slower(system, kind, nbytes, size, stride, at, factor):
    c = load_cluster(system)
    at = min(at, len(c.tiers) - 1)
    now = seconds(c, kind, nbytes, size, stride)
    tier = c.tiers[at]
    for better in (
        replace(tier, bytes_per_s=tier.bytes_per_s * factor),
        replace(tier, latency_s=tier.latency_s / factor),
        replace(tier, oversubscription=max(1.0, tier.oversubscription / factor)),
    ):
        changed = replace(c, tiers=(*c.tiers[:at], better, *c.tiers[at + 1 :]))
        assert seconds(changed, kind, nbytes, size, stride) <= now * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(SYSTEMS, KIND, BYTES, st.floats(1.0, 1e3), POWERS, POWERS)
def test_a_larger_message_is_never_faster(system, kind, nbytes, factor, size, stride):
    c = load_cluster(system)
    assert seconds(c, kind, nbytes, size, stride) <= seconds(c, kind, nbytes * factor, size, stride) * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(SYSTEMS, KIND, BYTES, st.sampled_from([2, 4, 8, 16, 32, 64]), POWERS)
def test_a_group_inside_a_domain_is_never_slower_than_spread_out(system, kind, nbytes, size, stride):
    c = load_cluster(system)
    if size <= c.domains[0] and c.domains[0] % size == 0:
        assert seconds(c, kind, nbytes, size, 1) <= seconds(c, kind, nbytes, size, stride) * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(SYSTEMS, KIND, st.lists(st.tuples(BYTES, POWERS, POWERS), min_size=1, max_size=8))
def test_arrays_equal_scalars(system, kind, groups):
    c = load_cluster(system)
    nbytes, size, stride = (np.array(column) for column in zip(*groups, strict=True))
    together = c.collective_time_s(kind, nbytes, size, stride)
    alone = [seconds(c, kind, *group) for group in groups]
    np.testing.assert_allclose(together, alone, rtol=1e-14)
    sent = c.collective_tier_bytes(kind, nbytes, size, stride)
    assert sent.shape == (len(groups), len(c.tiers))
    np.testing.assert_allclose(sent, [c.collective_tier_bytes(kind, *group) for group in groups], rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_and_no_bytes_cost_nothing_and_shapes_broadcast(kind):
    c = load_cluster("dgx-h100")
    assert (c.collective_time_s(kind, [1e9, 0.0], [1, 8], 1) == 0).all()
    assert c.collective_time_s(kind, np.ones((3, 1)), np.array([2, 4]), 1).shape == (3, 2)
    assert c.collective_tier_bytes(kind, np.ones((3, 1)), np.array([2, 4]), 1).shape == (3, 2, 4)


def test_gather_plus_scatter_is_about_a_ring_all_reduce():
    c = load_cluster("dgx-a100")
    both = c.collective_time_s("all_gather", 2e9, [4, 8, 32], 1) + c.collective_time_s(
        "reduce_scatter", 2e9, [4, 8, 32], 1
    )
    np.testing.assert_allclose(both, c.collective_time_s("all_reduce", 2e9, [4, 8, 32], 1), rtol=0.15)


@settings(max_examples=100, deadline=None)
@given(SYSTEMS, KIND, BYTES, POWERS, POWERS)
def test_no_link_carries_more_than_its_rate(system, kind, nbytes, size, stride):
    c = load_cluster(system)
    sent = c.collective_tier_bytes(kind, nbytes, size, stride)
    if kind == "all_reduce":
        return  # counts ring bytes, while a tree or the switches may move fewer
    rates = np.array([t.bytes_per_s / t.oversubscription for t in c.tiers])
    assert (sent <= rates * seconds(c, kind, nbytes, size, stride) * (1 + 1e-9)).all()


def test_a_ramp_is_capped():
    tier = Tier("node", 8, GB, 1e-30, 1.0, IDEAL, ramps={"p2p": Ramp(0.0, 1e-6)})
    c = replace(ideal(), tiers=(tier,), num_gpus=8)
    assert seconds(c, "p2p", 1e12, 2, 1) == pytest.approx(1000 + 25e-6, rel=1e-12)
    assert seconds(c, "p2p", 1e3, 2, 1) == pytest.approx(1e-6 + 2e-6)


def placed(cluster: Cluster, kind: str, spans: tuple[float, ...], crossing: tuple[float, ...]) -> float:
    """Seconds for 1 GB of a group of 16 whose places are known, tiers outside the node taken as one path."""
    spans_of, crossing_of = (tuple(np.array([x]) for x in part) for part in (spans, crossing))
    group = Group(np.array([16.0]), spans_of, crossing_of, outside=1)
    return float(cluster.group_time_s(kind, np.array([GB]), group, cluster.tiers)[0])


def test_known_places_tell_what_crosses() -> None:
    c = ideal(oversubscription=4.0)
    # Two members a node; a quarter of what goes round leaves the leaf per accelerator: 4 to 1 makes it the slowest.
    assert placed(c, "all_gather", (8, 2, 1), (1.0, 0.5, 0.25)) == pytest.approx(15 / 16 * 0.25 * GB / (12.5 * GB))
    assert placed(c, "all_gather", (8, 1, 1), (1.0, 0.5, 0.0)) == pytest.approx(15 / 16 * 0.5 * GB / (50 * GB))
    assert placed(c, "all_to_all", (8, 2, 1), (1.0, 0.8, 0.5)) == pytest.approx(0.5 * GB / (12.5 * GB))
    assert placed(c, "p2p", (2, 2, 1), (1.0, 1.0, 2.0)) == pytest.approx(2.0 * GB / (12.5 * GB))


@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
def test_where_more_leaves_a_switch_nothing_is_quicker(kind: str, leaf: int, pod: int, more: int, further: int) -> None:
    """Eight nodes of a group, more of its runs in leaves or pods of their own."""
    cluster = load_cluster("dgx-h100", 16384)
    few = (8.0, float(leaf), float(min(leaf, pod)), 1.0)
    many = (8.0, float(min(8, leaf + more)), float(min(leaf + more, 8, few[2] + further)), 1.0)
    part = (1.0, 0.5, 0.25, 0.1)
    assert placed(cluster, kind, few, part) <= placed(cluster, kind, many, part) * (1 + 1e-12)

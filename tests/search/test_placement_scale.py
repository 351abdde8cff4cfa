"""Placement at scale: gaps that must be reached, and processor seconds with room for slow machines."""

import random
import time

import pytest

import shardwise
from shardwise.hardware_profiles.hostlist import compress
from shardwise.hardware_profiles.load_topology import parse_topology

pytestmark = pytest.mark.slow

DENSE = ("llama-3.1-405b", "tp=8,pp=16,mbs=1")
EXPERTS = ("deepseek-v3", "pp=16,ep=64,mbs=1")


def ragged(count, leaf, seed=0):
    """Leaves under four spines with about every seventh node missing, and the first ``count`` nodes left."""
    rng = random.Random(seed)
    leaves = -(-count * 5 // (4 * leaf))
    groups = [[f"gpu{n:05}" for n in range(i * leaf, (i + 1) * leaf)] for i in range(leaves)]
    lines = [f"SwitchName=leaf{i} Nodes={compress(group)}" for i, group in enumerate(groups)]
    for spine in range(4):
        under = ",".join(f"leaf{i}" for i in range(leaves) if i * 4 // leaves == spine)
        lines.append(f"SwitchName=spine{spine} Switches={under}")
    left = [node for group in groups for node in group if rng.random() > 0.14]
    assert len(left) >= count
    return parse_topology("\n".join(lines), "ragged.conf"), left[:count]


def placed(model, settings, nodes, batch, leaf):
    """The placement and the processor seconds it took."""
    workload = shardwise.Workload(batch, 4096)
    estimate = shardwise.estimate(model, "dgx-h100", workload, settings, num_gpus=8 * nodes)
    topology, names = ragged(nodes, leaf)
    start = time.process_time()
    found = shardwise.place(estimate, topology, names)
    assert found.bound_s <= found.exposed_s <= found.sorted_exposed_s
    assert sorted(found.hosts) == sorted(names)
    return found, time.process_time() - start


@pytest.mark.parametrize("seed", range(3))
def test_sixty_four_nodes_of_a_dense_model_are_proven(seed):
    workload = shardwise.Workload(1024, 8192)
    estimate = shardwise.estimate("llama-3.1-70b", "dgx-h100", workload, "tp=8,pp=4,mbs=1", num_gpus=512)
    start = time.process_time()
    assert shardwise.place(estimate, *ragged(64, 8, seed)).proven
    assert time.process_time() - start < 60


@pytest.mark.parametrize(("plan", "batch"), [(DENSE, 4096), (EXPERTS, 16384)])
def test_two_thousand_nodes_are_within_two_per_cent(plan, batch):
    found, seconds = placed(*plan, 2048, batch, 32)
    assert found.gap <= 0.02
    assert seconds < 120


def test_sixteen_thousand_nodes_are_handled():
    found, seconds = placed(*DENSE, 16384, 16384, 32)
    assert found.gap <= 0.02
    assert seconds < 120

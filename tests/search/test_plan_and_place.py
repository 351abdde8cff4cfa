"""A plan for known nodes: the rank order that is best on them, and answers that belong together."""

from dataclasses import replace

import pytest

import shardwise
from shardwise.hardware_profiles.load_topology import parse_topology
from shardwise.launchers.ranks import rank_coordinates
from shardwise.search.plan_and_place import placed_step_s

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
LEAVES = "\n".join(f"SwitchName=l{i} Nodes=n[{2 * i + 1}-{2 * i + 2}]" for i in range(4))
TOPOLOGY = parse_topology(f"{LEAVES}\nSwitchName=s Switches=l[0-3]", "pairs.conf")
WORKLOAD = shardwise.Workload(256, 4096)


def cluster(oversubscription):
    """H100 nodes, the leaves of which send a share of what they could."""
    system = shardwise.load_cluster("dgx-h100")
    outer = [replace(tier, oversubscription=oversubscription) for tier in system.tiers[2:]]
    return replace(system, tiers=(*system.tiers[:2], *outer))


def ask(system, **pins):
    return {
        "model": "llama-3.1-8b", "cluster": system, "workload": WORKLOAD, "num_gpus": 64, "launcher": "megatron",
        "refine_trials": 0, "pins": {"tp": 2, "pp": 4, **pins},
    }  # fmt: skip


@pytest.fixture(scope="module")
def on_narrow_spines():
    """Leaves of two nodes behind a sixteenth of their rate: gradients must stay low, whatever messages cost."""
    return shardwise.plan_and_place(**ask(cluster(16.0)), topology=TOPOLOGY)


def test_the_order_is_the_one_with_the_shorter_placed_step(on_narrow_spines):
    """Against plans made and placed in each order by themselves."""
    found, where = on_narrow_spines
    steps = {}
    for order in ORDERS:
        pinned = shardwise.plan(**ask(cluster(16.0), rank_order=order))
        steps[order] = placed_step_s(pinned, shardwise.place(pinned, TOPOLOGY))
    assert found.strategy.rank_order == min(ORDERS, key=steps.get)
    assert placed_step_s(found, where) == pytest.approx(min(steps.values()))
    alone = shardwise.plan(**ask(cluster(16.0)))
    assert alone.strategy.rank_order != found.strategy.rank_order, "the nodes turn the plan's own choice here"
    assert any("rank_order = tp-cp-ep-dp-pp is best on these nodes" in told for told in found.assumptions)


def test_plan_placement_and_files_have_one_order(on_narrow_spines):
    found, where = on_narrow_spines
    assert where.strategy == found.strategy == found.estimate.strategy
    assert where.as_dict()["rank_order"] == found.as_dict()["strategy"]["rank_order"]
    assert found.goal.value == found.step_time_s == found.proof.incumbent_s
    flag = "--use-tp-pp-dp-mapping"
    assert (flag in "\n".join(found.launch().values())) == (found.strategy.rank_order == ORDERS[1])
    rows = [line.split(",") for line in where.files()["ranks.csv"].splitlines()[1:]]
    places = rank_coordinates(found.strategy)
    assert [int(row[3]) for row in rows] == places["pp"].tolist()
    assert [int(row[4]) for row in rows] == places["dp"].tolist()
    assert [row[1] for row in rows] == [host for host in where.hosts for _ in range(8)]
    again = shardwise.place(found.as_dict(), TOPOLOGY, cluster=cluster(16.0))
    assert again.hosts == where.hosts
    assert again.exposed_s == pytest.approx(where.exposed_s)


@pytest.mark.parametrize("order", ORDERS)
def test_a_pinned_order_is_kept(order):
    found, where = shardwise.plan_and_place(**ask(cluster(16.0), rank_order=order), topology=TOPOLOGY)
    assert found.strategy.rank_order == where.strategy.rank_order == order


def test_without_anything_ragged_a_placed_step_is_the_step():
    found = shardwise.plan(**ask(shardwise.load_cluster("dgx-h100")))
    where = shardwise.place(found, None, "n[1-8]")
    assert placed_step_s(found, where) == pytest.approx(found.step_time_s, rel=1e-6)

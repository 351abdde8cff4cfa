"""Placement: the cost by its definitions, the optimum by trying every order, and what must hold for any problem."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise
from shardwise.costmodel.exposed import Collective, Pool
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.cluster import Curve
from shardwise.hardware_profiles.collectives import KINDS
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.fabric import fabric_of
from shardwise.launchers.ranks import rank_groups
from shardwise.search import placement, placement_judge
from shardwise.search.placement import place
from shardwise.search.placement_blocks import block_sizes
from shardwise.search.placement_bound import least_shape, lower_bound_s
from shardwise.search.placement_boxes import prove
from shardwise.search.placement_cost import Instance
from shardwise.search.placement_fill import starts
from shardwise.search.placement_job import read_job, reordered
from shardwise.search.proof import Clock

from .placements import (
    cluster,
    document,
    leaves,
    naive_shape,
    permutations_of,
    pools_of,
    renamed,
    sizes,
    strategies,
    tree,
)

FEW = settings(max_examples=12, deadline=None)
SAME = 1 + 1e-9


@pytest.fixture(autouse=True, scope="module")
def little_work():
    """Where a proof takes long, its gap does as well for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "_WORK", 0.3)
        yield


def names(count):
    return [f"n{i:03}" for i in range(count)]


@st.composite
def problems(draw, nodes=5, rack=0):
    """A plan on up to ``nodes`` nodes under leaves of any sizes."""
    count = draw(st.integers(2, nodes))
    strategy = draw(strategies(2 * count))
    return count, strategy, pools_of(strategy, draw(sizes())), draw(leaves(count)), cluster(count, rack=rack)


# ---- cost


FAMILY = {"dp": ("dp_cp", "ring"), "pp": ("pp", "p2p"), "ep": ("ep", "all-to-all"), "cp": ("cp", "ring")}


@FEW
@given(problems(nodes=6), st.sampled_from([0, 2]), st.randoms(use_true_random=False))
def test_shapes_follow_from_the_definitions(problem, rack, random):
    count, strategy, pools, sizes_, _ = problem
    fabric = fabric_of(cluster(count, rack=rack), tree(sizes_), names(count))
    instance = Instance(fabric, pools, count, wrap=False)
    order = list(range(count))
    random.shuffle(order)
    ranks = rank_groups(strategy)
    for index, users in enumerate(instance.users):
        for p, _ in users:
            if pools[p].parallelism not in FAMILY:
                continue
            name, family = FAMILY[pools[p].parallelism]
            pairs = [pair for group in ranks[name] for pair in itertools.pairwise(group)]
            spans, crossing = naive_shape(fabric, family, ranks[name], pairs, order)
            found = instance.shape(index, np.array(order))
            assert found[0] == pytest.approx(spans), pools[p].parallelism
            assert found[1][1:] == pytest.approx(crossing[1:]), pools[p].parallelism


@pytest.mark.parametrize(
    ("model", "system", "gpus", "settings"),
    [
        ("llama-3.1-70b", "dgx-h100", 256, "tp=8,pp=4,mbs=1"),
        ("llama-3.1-8b", "dgx-a100", 64, "tp=4,mbs=1,zero=3"),
        ("mixtral-8x7b", "dgx-h100", 128, "tp=2,pp=4,ep=8,mbs=1"),
        ("llama-3.1-70b", "gb200-nvl72", 64, "tp=4,pp=4,mbs=1"),
        ("llama-3.1-70b", "dgx-h100", 256, "tp=2,pp=4,mbs=1,rank_order=tp-cp-ep-pp-dp"),
    ],
)
def test_the_ideal_cluster_costs_what_the_cost_model_says(model, system, gpus, settings):
    """Groups spread evenly over at most one tier outside their nodes."""
    estimate = shardwise.estimate(
        model, system, shardwise.Workload(1024, 4096), f"{settings},recompute=none", num_gpus=gpus
    )
    ideal = estimate.problem.cluster
    count = gpus // ideal.node_size
    instance = Instance(fabric_of(ideal, None, names(count)), estimate.pools, count, wrap=False)
    found = instance.exposed_by_parallelism(np.arange(count))
    parts = estimate.time_parts_s
    assert found.get("tp", 0.0) == pytest.approx(parts["tp_comm"])
    assert found.get("ep", 0.0) == pytest.approx(parts["ep_comm"])
    assert found.get("dp", 0.0) == pytest.approx(parts["dp_comm"], rel=1e-6)
    if "rank_order" in settings:  # no pipeline leaves its node
        assert found["pp"] == pytest.approx(parts["pp_comm"])


@pytest.mark.parametrize(
    ("model", "gpus", "settings"),
    [
        ("llama-3.1-70b", 256, "tp=8,pp=4,mbs=1"),
        ("llama-3.1-8b", 64, "tp=1,pp=4,mbs=1,zero_group=4"),
        ("gpt-3-175b", 128, "tp=2,pp=8,mbs=1"),
        ("mixtral-8x7b", 128, "tp=8,pp=4,ep=8,mbs=1"),
        ("llama-3.2-1b", 64, "tp=2,sp=off,pp=2,mbs=1"),
    ],
)
def test_other_rank_orders_move_the_same_traffic(model, gpus, settings):
    """Ranks renumbered by the document of a plan, against the cost model's own plan in the other order."""
    orders = ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
    workload = shardwise.Workload(1024, 4096)
    jobs = []
    for order in orders:
        found = shardwise.estimate(model, "dgx-h100", workload, f"{settings},rank_order={order}", num_gpus=gpus)
        jobs.append(replace(read_job(found), launcher="megatron"))
    for job, other in (jobs, jobs[::-1]):
        (again,) = reordered(job)
        assert again.strategy == other.strategy
        for ours, theirs in zip(again.pools, other.pools, strict=True):
            assert ours.parallelism == theirs.parallelism
            for one, two in zip(ours.collectives, theirs.collectives, strict=True):
                assert replace(one, count=0.0) == replace(two, count=0.0)
                assert one.count == pytest.approx(two.count)


def test_a_launcher_with_one_order_has_no_other():
    found = shardwise.estimate("llama-3.1-8b", "dgx-h100", shardwise.Workload(64, 4096), "tp=2,pp=2", num_gpus=16)
    assert reordered(replace(read_job(found), launcher="nanotron")) == []
    assert len(reordered(replace(read_job(found), launcher="megatron"))) == 1


def test_bytes_over_uplinks_by_hand():
    """Four nodes of two, two leaves, dp 8: one ring, which leaves each leaf once with 7/8 of the tensor."""
    strategy = Strategy(dp=8)
    instance = Instance(fabric_of(cluster(4), tree([2, 2]), names(4)), pools_of(strategy, [8e9, 1, 1, 1]), 4, False)
    (leaf,) = instance.uplink_bytes(np.array([0, 1, 2, 3]))
    assert leaf["dp"].tolist() == [7e9, 7e9]
    (mixed,) = instance.uplink_bytes(np.array([0, 2, 1, 3]))
    assert mixed["dp"].tolist() == [14e9, 14e9]


# ---- the optimum


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([0, 2]))
def test_small_problems_equal_trying_every_order(problem, rack):
    count, strategy, pools, sizes_, _ = problem
    system = cluster(count, rack=rack)
    instance = Instance(fabric_of(system, tree(sizes_), names(count)), pools, count, wrap=False)
    best = min(map(instance.cost, permutations_of(count)))
    found = place(document(strategy, pools), tree(sizes_), names(count), cluster=system)
    assert found.exposed_s == pytest.approx(best, rel=1e-6)
    assert found.bound_s <= best * SAME
    assert found.proven


def test_loads_of_levels_that_differ_in_latency_are_told_apart():
    """Groups that cross racks and leaves: five nodes that are racks by themselves, little beside a lot on one group."""
    strategy = Strategy(tp=5, cp=2, ep=2, num_microbatches=4)
    pools = pools_of(strategy, [10.0, 1e7, 1e6, 1e6])
    system, topology = cluster(5, rack=2), tree([2, 3])
    instance = Instance(fabric_of(system, topology, names(5)), pools, 5, wrap=False)
    best = min(map(instance.cost, permutations_of(5)))
    found = place(document(strategy, pools), topology, names(5), cluster=system)
    assert found.sorted_exposed_s > 1.5 * best
    assert found.exposed_s == pytest.approx(best, rel=1e-9)


@FEW
@given(problems(), st.integers(1, 2), st.sampled_from([0.25, 0.5, 1.0]))
def test_spares_and_slow_nodes_equal_trying_every_choice(problem, spares, share):
    """More nodes than needed, the first one slow: the best choice and order of all."""
    count, strategy, pools, sizes_, system = problem
    given_ = [*sizes_, spares]
    topology, slow = tree(given_), {"n000": share}
    fabric = fabric_of(system, topology, names(count + spares), slow)
    instance = Instance(fabric, pools, count, wrap=False)
    best = min(instance.cost(order[:count]) for order in permutations_of(count + spares))
    found = place(document(strategy, pools), topology, names(count + spares), cluster=system, degraded=slow)
    assert found.exposed_s == pytest.approx(best, rel=1e-6)
    assert found.bound_s <= best * SAME
    assert len(found.unused) == spares
    assert sorted((*found.hosts, *found.unused)) == names(count + spares)


@FEW
@given(problems(nodes=6), st.data())
def test_the_bound_is_below_any_placement(problem, data):
    count, _, pools, sizes_, system = problem
    instance = Instance(fabric_of(system, tree(sizes_), names(count)), pools, count, wrap=False)
    order = data.draw(st.permutations(range(count)))
    assert lower_bound_s(instance) <= instance.cost(np.array(order)) * SAME


@settings(max_examples=25, deadline=None)
@given(problems(nodes=6), st.sampled_from([1, 2]), st.sampled_from([0, 2]), st.booleans())
def test_boxes_from_the_worst_order_on_find_the_best(problem, pods, rack, by_slots):
    """Blocks of every size and of one slot, so that many boxes are open; alike leaves and pods too."""
    count, _, pools, sizes_, _ = problem
    half = len(sizes_) // 2
    topology = tree(sizes_, [half, len(sizes_) - half] if pods == 2 and half else None)
    instance = Instance(fabric_of(cluster(count, rack=rack), topology, names(count)), pools, count, wrap=False)
    costs = [instance.cost(order) for order in permutations_of(count)]
    with pytest.MonkeyPatch.context() as patch:
        if not by_slots:
            patch.setattr(placement_judge, "MOST_SLOT_CELLS", 0)
        for size in {1, *block_sizes(instance)}:
            found = prove(instance, size, max(costs), 2.0, Clock(None))
            best = max(costs) if found.nodes is None else instance.cost(found.nodes)
            assert found.bound_s <= min(costs) * SAME
            if by_slots:
                assert best == pytest.approx(min(costs), rel=1e-6)
                assert found.bound_s == pytest.approx(best, rel=1e-6)


@st.composite
def curves(draw, tiers=3):
    """For each tier measured curves of a few kinds of collectives, rising, falling or neither with the size."""
    curve = st.builds(
        lambda kind, ranks, nbytes, factors: Curve(
            kind, ranks, 1, tuple(sorted(nbytes)), tuple(factors[: len(nbytes)])
        ),
        st.sampled_from(KINDS),
        st.sampled_from([2, 4, 6, 8, 12]),
        st.lists(st.floats(1e2, 1e9), min_size=1, max_size=3, unique=True),
        st.lists(st.floats(0.2, 4.0), min_size=3, max_size=3),
    )
    return [tuple(draw(st.lists(curve, max_size=3))) for _ in range(tiers)]


@pytest.mark.parametrize(("pp", "sizes_"), [(4, [2, 2, 1, 1]), (3, [3, 2, 1]), (3, [2, 2, 2]), (6, [4, 2])])
def test_ends_of_a_pipeline_that_talk_make_no_bound_too_high(pp, sizes_):
    """Tied embeddings join the first stage and the last one: groups that share nodes, and leave those between out."""
    strategy = Strategy(pp=pp, dp=12 // pp, num_microbatches=4)
    apart = strategy.dp * (pp - 1)
    ends = Pool("embedding", (Collective("all_reduce", 1e7, 2, apart, 1.0),), 1.0, 0.0, 0.0, 0.0)
    pools = (*pools_of(strategy, [1e5, 1e6, 1, 1]), ends)
    instance = Instance(fabric_of(cluster(6), tree(sizes_), names(6)), pools, 6, wrap=False)
    orders = list(permutations_of(6))
    for index in range(len(instance.groups)):
        least = least_shape(instance, index)
        for order in orders:
            spans, crossing = instance.shape(index, order)
            assert np.all(np.array(spans) >= np.array(least.spans) - 1e-9)
            assert np.all(np.array(crossing) >= np.array(least.crossing) - 1e-9)
    costs = [instance.cost(order) for order in orders]
    assert lower_bound_s(instance) <= min(costs) * SAME
    for size in {1, *block_sizes(instance)}:
        found = prove(instance, size, max(costs), 2.0, Clock(None))
        assert found.bound_s <= min(costs) * SAME
        assert instance.cost(found.nodes) == pytest.approx(min(costs), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(problems(nodes=6), curves(), st.sampled_from([0, 2]))
def test_measured_curves_make_no_proof_wrong(problem, drawn, rack):
    """A curve may make what crosses more quicker: every bound is still below the best order."""
    count, _, pools, sizes_, _ = problem
    system = cluster(count, rack=rack)
    tiers = [replace(tier, curves=found) for tier, found in zip(system.tiers, drawn, strict=False)]
    fabric = fabric_of(replace(system, tiers=tuple(tiers)), tree(sizes_), names(count))
    instance = Instance(fabric, pools, count, wrap=False)
    costs = [instance.cost(order) for order in permutations_of(count)]
    assert lower_bound_s(instance) <= min(costs) * SAME
    for size in {1, *block_sizes(instance)}:
        assert prove(instance, size, max(costs), 0.5, Clock(None)).bound_s <= min(costs) * SAME


def test_without_the_least_over_curves_a_bound_is_wrong():
    """What the test above would miss otherwise: a measured spine that halves all times makes crossing it quicker."""
    strategy = Strategy(tp=2, dp=4)
    system = cluster(4)
    quick = Curve("reduce_scatter", 4, 2, (1e2, 1e9), (0.25, 0.25))
    system = replace(system, tiers=(*system.tiers[:2], replace(system.tiers[2], curves=(quick,)), *system.tiers[3:]))
    instance = Instance(fabric_of(system, tree([4, 4]), names(8)), pools_of(strategy, [1e3, 1, 1, 1]), 4, wrap=False)
    near, far = (instance.cost(np.array(order)) for order in ([0, 1, 2, 3], [0, 1, 4, 5]))
    assert far < near
    assert lower_bound_s(instance) <= far
    assert prove(instance, 4, near, 1.0, Clock(None)).bound_s <= far


@FEW
@given(problems(nodes=6), st.integers(0, 2))
def test_fillings_use_nodes_once(problem, spares):
    count, strategy, pools, sizes_, system = problem
    topology = tree([*sizes_, *([spares] if spares else [])])
    instance = Instance(fabric_of(system, topology, names(count + spares)), pools, count, wrap=False)
    for nodes in starts(instance, strategy.pp):
        assert len(set(nodes.tolist())) == count == len(nodes)


# ---- what must hold


@st.composite
def larger(draw):
    """8 to 16 nodes under two levels of switches."""
    count = draw(st.sampled_from([8, 12, 16]))
    strategy = draw(strategies(2 * count))
    sizes_ = draw(leaves(count))
    pods = [len(sizes_) // 2, len(sizes_) - len(sizes_) // 2] if len(sizes_) > 3 else None
    return count, strategy, document(strategy, pools_of(strategy, draw(sizes()))), tree(sizes_, pods), cluster(count)


def scattered(topology, count, seed):
    """Names given to nodes at random, so that the sorted order is no good one."""
    order = np.random.default_rng(seed).permutation(count)
    return renamed(topology, {name: f"n{i:03}" for name, i in zip(topology.nodes, order, strict=True)})


@FEW
@given(larger(), st.integers(0, 9))
def test_never_worse_than_the_sorted_order_and_never_below_the_bound(problem, seed):
    count, _, plan, topology, system = problem
    found = place(plan, scattered(topology, count, seed), names(count), cluster=system)
    assert found.bound_s <= found.exposed_s <= found.sorted_exposed_s
    assert sum(found.parts_s.values()) == pytest.approx(found.exposed_s)
    assert sorted(found.hosts) == names(count)


@FEW
@given(larger(), st.integers(0, 9))
def test_other_names_change_nothing(problem, seed):
    count, _, plan, topology, system = problem
    topology = scattered(topology, count, seed)
    found = place(plan, topology, names(count), cluster=system)
    other = {name: f"rack{i // 3}-x{i:04}" for i, name in enumerate(names(count))}
    again = place(plan, renamed(topology, other), list(other.values()), cluster=system)
    assert again.hosts == tuple(other[host] for host in found.hosts)
    assert again.exposed_s == found.exposed_s
    mixed = dict(zip(names(count), np.random.default_rng(seed + 1).permutation(names(count)), strict=True))
    shuffled = place(plan, renamed(topology, mixed), names(count), cluster=system)
    assert max(found.bound_s, shuffled.bound_s) <= min(found.exposed_s, shuffled.exposed_s) * SAME
    if found.proven and shuffled.proven:
        assert shuffled.exposed_s == pytest.approx(found.exposed_s, rel=1e-5)


@FEW
@given(larger(), st.integers(0, 9))
def test_an_optimal_order_is_returned_unchanged(problem, seed):
    count, _, plan, topology, system = problem
    topology = scattered(topology, count, seed)
    found = place(plan, topology, names(count), cluster=system)
    into = {host: f"n{i:03}" for i, host in enumerate(found.hosts)}
    again = place(plan, renamed(topology, into), names(count), cluster=system)
    assert again.sorted_exposed_s == pytest.approx(found.exposed_s)
    if found.proven:
        assert again.hosts == again.sorted_hosts


@FEW
@given(larger(), st.integers(0, 9), st.sampled_from([0.25, 0.5, 0.9]))
def test_a_better_link_never_makes_it_worse(problem, seed, share):
    count, _, plan, topology, system = problem
    topology = scattered(topology, count, seed)
    slow = place(plan, topology, names(count), cluster=system, degraded={"l0": share, "n003": share})
    better = place(plan, topology, names(count), cluster=system, degraded={"l0": share, "n003": 1.0})
    whole = place(plan, topology, names(count), cluster=system)
    assert better.bound_s <= slow.exposed_s * SAME
    assert whole.bound_s <= better.exposed_s * SAME
    if better.proven and whole.proven:
        assert whole.exposed_s <= better.exposed_s * (1 + 1e-6) <= slow.exposed_s * (1 + 3e-6)
    spine = replace(system.tiers[2], bytes_per_s=2 * system.tiers[2].bytes_per_s)
    quicker = replace(system, tiers=(*system.tiers[:2], spine, *system.tiers[3:]))
    faster = place(plan, topology, names(count), cluster=quicker)
    if faster.proven:
        assert faster.exposed_s <= whole.exposed_s * (1 + 1e-6)


def test_the_same_question_has_the_same_answer():
    strategy = Strategy(tp=2, dp=4, pp=4, ep=4)
    plan, topology = document(strategy, pools_of(strategy, [1e9, 1e7, 1e8, 1])), tree([3, 5, 2, 6])
    topology = scattered(topology, 16, 1)
    answers = [place(plan, topology, names(16), cluster=cluster(16)) for _ in range(2)]
    assert answers[0].hosts == answers[1].hosts
    assert answers[0].as_dict() == answers[1].as_dict()


def test_a_scattered_allocation_gains():
    """Stages of four nodes on leaves of four, the names dealt out in turn: every sorted stage is on four leaves."""
    strategy = Strategy(tp=2, dp=4, pp=4)
    dealt = renamed(tree([4] * 4), {f"n{i:03}": f"n{i % 4 * 4 + i // 4:03}" for i in range(16)})
    plan = document(strategy, pools_of(strategy, [1e10, 1e6, 1, 1]))
    found = place(plan, dealt, names(16), cluster=cluster(16))
    assert found.proven
    assert found.exposed_s < 0.5 * found.sorted_exposed_s
    (leaf,) = found.levels[:1]
    assert leaf.placed_bytes < leaf.sorted_bytes


# ---- inputs


def small_plan():
    strategy = Strategy(tp=2, dp=4)
    return document(strategy, pools_of(strategy, [1e9, 1, 1, 1]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": "n[000-002]"}, "3 given; the plan needs 4 of 2 GPUs each"),
        ({"exclude": "n000"}, "3 given after leaving out 1; the plan needs 4"),
        ({"exclude": "m9"}, "exclude m9: not among the nodes"),
        ({"nodes": ["n000", "n000", "n001", "n002", "n003"]}, "n000 given twice"),
        ({"degraded": {"n000": 0.0}}, "degraded n000 = 0: expected a share"),
        ({"degraded": {"nobody": 0.5}}, "degraded nobody: neither one of the nodes nor a switch"),
        ({"plan": {"model": "x"}}, "plan: cluster: field required; expected a plan.json"),
        ({"plan": "nothing.json"}, "nothing.json: cannot be read"),
        ({"nodes": None, "topology": None}, "none given and no topology names any"),
    ],
)
def test_what_cannot_be_used_is_said(changes, said):
    options = {"plan": small_plan(), "topology": tree([2, 2]), "nodes": "n[000-003]", "cluster": cluster(4), **changes}
    plan, topology, nodes = (options.pop(key) for key in ("plan", "topology", "nodes"))
    with pytest.raises(InputError) as error:
        place(plan, topology, nodes, **options)
    assert said in str(error.value)


def pool(plan, parallelism="dp", **changes):
    """The first pool of a document with its one collective changed."""
    first = plan["pools"][0]
    return {**first, "parallelism": parallelism, "collectives": [{**first["collectives"][0], **changes}]}


def test_the_rank_order_of_a_plan_is_that_of_its_traffic():
    found = shardwise.plan("llama-3.2-1b", "dgx-h100", shardwise.Workload(16, 2048), num_gpus=16, launcher="megatron",
                           pins={"pp": "2", "rank_order": "tp-cp-ep-pp-dp"}, refine_trials=0)  # fmt: skip
    document = found.as_dict()
    assert place(document, None, "n[1-2]").as_dict()["rank_order"] == "tp-cp-ep-pp-dp"
    del document["strategy"]["rank_order"]
    with pytest.raises(InputError, match=r"expected \d+, as strategy\.rank_order = tp-cp-ep-dp-pp has it"):
        place(document, None, "n[1-2]")


def test_documents_that_are_no_plan_are_refused():
    plan = small_plan()
    for change, said in (
        ({"strategy": {"tp": 0}}, "strategy.tp = 0: expected a whole number"),
        ({"num_gpus": 16}, "tp·cp·dp·pp = 8: expected the 16 GPUs"),
        ({"pools": [{"parallelism": "dp"}]}, "pools.0."),
        ({"strategy": {**plan["strategy"], "tp": True}}, "strategy.tp = True: expected a whole number"),
        ({"strategy": {**plan["strategy"], "rank_order": "dp-pp"}}, "rank_order = 'dp-pp': expected one of tp-cp-ep"),
        ({"strategy": {**plan["strategy"], "layers_per_stage": "x"}}, "layers_per_stage = 'x': expected a number"),
        ({"pools": [pool(plan, collective="all_to_some")]}, "pools.0.collectives.0.collective: input should be"),
        ({"pools": [pool(plan, stride=4, group_size=4)]}, "group_size = 4, stride = 4: expected ranks below 8"),
        ({"pools": [pool(plan, stride=10**30)]}, "expected ranks below 8"),
        ({"pools": [pool(plan, "pp", collective="p2p", stride=1)]}, "stride = 1: expected 8, as strategy.rank_order"),
    ):
        with pytest.raises(InputError) as error:
            place({**plan, **change}, tree([4, 4]), None, cluster=cluster(8))
        assert said in str(error.value)


def test_a_file_that_is_no_plan_is_named(tmp_path):
    file = tmp_path / "p.json"
    for text, said in (('{"num_gpus": ' + "9" * 9000 + "}", "a number too long"), ("[" * 9000, "nested too deeply")):
        file.write_text(text)
        with pytest.raises(InputError, match=said) as error:
            place(file, None, "n[1-2]")
        assert str(error.value).startswith(str(file))


def test_a_plan_without_traffic_kept_says_plan_again():
    plan = {key: value for key, value in small_plan().items() if key != "pools"}
    with pytest.raises(InputError, match="plan again"):
        place(plan, tree([4]), None, cluster=cluster(4))


def test_without_a_topology_the_profile_counts():
    found = place(small_plan(), None, "n[000-003]", cluster=cluster(4))
    assert found.hosts == found.sorted_hosts
    assert found.proven

"""The traffic table against a published analysis and the textbook counts."""

from __future__ import annotations

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategy

from . import cases

# UB-Mesh (arXiv 2503.20377), table 1, "MoE-2T": megabytes are 2^20 bytes. docs/traffic.md derives the layout.
MIB = 2.0**20
PUBLISHED = {"tp": (360.0, 4992), "ep": (10.5, 4992), "dp": (711.75, 64), "pp": (192.0, 26)}
PUBLISHED_SHARE = {"tp": 0.529, "sp": 0.441, "ep": 0.0154, "dp": 0.0134, "pp": 0.0014}


def moe_2t(sp: bool, recompute: str):
    """hidden 12288, 8,192 tokens, TP 16, EP 8, 64 layers on the rank, 13 micro-batches of one sequence."""
    model = cases.moe(hidden=12288, layers=128, experts=64, top_k=1, width=12288, heads=96)
    strategy = Strategy(
        tp=16, sp=sp, pp=2, dp=512, ep=8, etp=16, zero=0, num_microbatches=13, recompute=recompute, micro_batch_size=1
    )
    problem = cases.problem(
        model, "dgx-h100", strategy.world_size, 13 * 512, 8192, moe_dispatcher="alltoall",
        grad_comm_bytes=2.0, dispatch_bytes=2.0, combine_bytes=2.0,
    )  # fmt: skip
    return [t for t in estimate(problem, strategy).traffic if t.tensor_bytes > 1e6]


def total(rows, parallelisms, collectives):
    """Count and mebibytes of all matching rows."""
    some = [t for t in rows if t.parallelism in parallelisms and t.collective in collectives]
    return sum(t.count_per_step for t in some), sum(t.bytes_per_step for t in some) / MIB


@pytest.fixture(scope="module")
def published_layout():
    """The volumes of the published rows, each read off the table of the run that its accounting implies."""
    recomputed, kept, unsharded = moe_2t(True, "full"), moe_2t(True, "none"), moe_2t(False, "full")
    reductions, scattered = total(recomputed, ("tp", "etp"), ("reduce_scatter",))
    return {
        "tp": (reductions, 2 * scattered),  # a reduce-scatter and its all-gather make one all-reduce
        "sp": total(kept, ("tp", "etp"), ("reduce_scatter", "all_gather")),
        "ep": total(recomputed, ("ep",), ("all_to_all",)),
        "dp": total(recomputed, ("dp", "edp"), ("all_reduce",)),
        "pp": tuple(2 * x for x in total(unsharded, ("pp",), ("p2p",))),  # sent and received at the one boundary
    }


def test_counts_and_sizes_of_the_published_moe_2t(published_layout):
    """64 layers x 13 micro-batches x 2 blocks x 3 passes; 13 each way at the stage boundary; one gradient per layer."""
    embedding = 13  # the vocabulary-split embedding reduces once per micro-batch, which the published table leaves out
    for name in ("tp", "ep", "pp"):
        count, volume = published_layout[name]
        size, times = PUBLISHED[name]
        assert count - (embedding if name == "tp" else 0) == times
        assert volume / count == pytest.approx(size)
    size, times = PUBLISHED["dp"]
    assert published_layout["dp"][0] == 2 * times  # dense and expert parameters have groups of their own
    assert published_layout["dp"][1] == pytest.approx(size * times, rel=0.01)


def test_order_and_shares_of_the_published_moe_2t(published_layout):
    """TP, then SP, EP, DP, PP. SP falls 2.6 points short: 9 collectives a layer where the published volume needs 10."""
    volumes = {name: volume for name, (_, volume) in published_layout.items()}
    assert sorted(volumes, key=volumes.get, reverse=True) == ["tp", "sp", "ep", "dp", "pp"]
    for name, volume in volumes.items():
        assert volume / sum(volumes.values()) == pytest.approx(PUBLISHED_SHARE[name], abs=0.03)


def test_tensor_parallel_counts_per_layer():
    """Megatron-LM (arXiv 1909.08053, section 3): two all-reduces in forward and two in backward of each layer."""
    problem = cases.problem(num_gpus=8, batch=4)
    rows = estimate(problem, Strategy(tp=8, num_microbatches=4)).traffic
    layers = [t for t in rows if t.parallelism == "tp" and t.tensor_bytes == 2048 * 1024 * 2]
    # 4 per layer, one for the embedding's output and one for the gradient that enters the head.
    assert sum(t.count_per_step for t in layers) == 4 * (8 * 4 + 2)


def test_ring_attention_sends_every_block_around():
    """Ring attention (arXiv 2310.01889): cp-1 hops of k, v forward; with dk, dv backward: 3(cp-1) blocks."""
    problem = cases.problem(num_gpus=8, batch=4, sequence=8192)
    rows = estimate(problem, Strategy(cp=8, num_microbatches=4)).traffic
    block = 2 * (8192 / 8) * 1024 * 2
    sent = sum(t.bytes_per_step for t in rows if t.parallelism == "cp")
    assert sent == pytest.approx(3 * 7 * block * 8 * 4)


def test_ulysses_exchanges_four_tensors_each_way():
    """DeepSpeed-Ulysses (arXiv 2309.14509, section 3.2): q, k, v and the output, each of b s h / cp elements."""
    problem = cases.problem(num_gpus=8, batch=4, sequence=8192)
    rows = list(estimate(problem, Strategy(cp=8, cp_comm="a2a", ulysses=8, num_microbatches=4)).traffic)
    exchanged = [t for t in rows if t.parallelism == "cp"]
    assert sum(t.count_per_step for t in exchanged) == 8 * 8 * 4
    assert {t.tensor_bytes for t in exchanged} == {8192 / 8 * 1024 * 2}


def test_zero_volumes():
    """ZeRO (arXiv 1910.02054, section 7): 2 psi for stages 0 to 2 and 3 psi for 3, in one micro-batch."""
    problem = cases.problem(num_gpus=64, batch=64, grad_comm_bytes=2.0, param_comm_bytes=2.0)
    psi = 2.0 * problem.model.total_parameters * 63 / 64
    for stage, factor in enumerate((2, 2, 2, 3)):
        rows = estimate(problem, Strategy(dp=64, zero=stage)).traffic
        moved = sum(t.bytes_per_step for t in rows if t.parallelism == "dp")
        assert moved == pytest.approx(factor * psi, rel=0.01)


def test_a_ring_over_two_nodes_is_paced_by_the_hop_between_them():
    """TP 2 × CP 8 is 16 accelerators on nodes of 8: two of a ring's eight hops leave the node."""
    problem = cases.problem(cases.gpt(heads=16), cluster="dgx-h100", num_gpus=64, batch=64, sequence=8192)
    inside, across = (
        [t for t in estimate(problem, Strategy(tp=2, sp=True, cp=cp, dp=32 // cp, num_microbatches=2 * cp)).traffic
         if t.parallelism == "cp"]
        for cp in (4, 8)
    )  # fmt: skip
    assert {t.tier for t in inside} == {"nvlink"}
    assert {t.tier for t in across} == {"su-leaf"}
    nic = problem.cluster.tiers[1].bytes_per_s
    assert all(t.time_s >= t.count_per_step * t.tensor_bytes / nic for t in across)

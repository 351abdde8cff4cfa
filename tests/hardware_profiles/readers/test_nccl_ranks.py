"""Ranks, nodes and collective come from the log or its numbers, or become one clear question."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.readers.nccl_log import read_nccl_log
from shardwise.hardware_profiles.readers.nccl_ranks import Said, factor_range, ranks_by_rates, settle

from . import printed

SIZES = tuple(1 << p for p in range(10, 35, 2))


def settled(tmp_path, lines, said=Said(), node=8, domain=8, name="log.txt"):  # noqa: B008
    path = tmp_path / name
    path.write_text("\n".join(lines))
    (table,) = read_nccl_log(path)
    return settle(table, said, node, domain)


def question(tmp_path, lines, *words, **options):
    with pytest.raises(InputError) as caught:
        settled(tmp_path, lines, **options)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_the_device_list_decides(tmp_path):
    found = settled(tmp_path, printed.log(ranks=16, sizes=SIZES))
    assert (found.kind, found.ranks, found.nodes, found.domains, found.notes) == ("all_reduce", 16, 2, 2, ())


def test_one_device_a_node(tmp_path):
    found = settled(tmp_path, printed.log(ranks=4, per_node=1, sizes=SIZES))
    assert (found.ranks, found.nodes) == (4, 4)


@settings(deadline=None)
@given(ranks=st.integers(2, 64), op=st.sampled_from(["all_gather", "reduce_scatter", "alltoall"]))
def test_size_over_count_gives_the_ranks_of_gathers(tmp_path_factory, ranks, op):
    sizes = tuple(ranks * 4 * (1 << p) for p in range(4, 24, 4))
    lines = printed.log(op, ranks=ranks, listed=False, sizes=sizes)
    found = settled(tmp_path_factory.mktemp("r"), lines, Said(nodes=1))
    assert found.ranks == ranks


@settings(deadline=None)
@given(ranks=st.integers(3, 48))
def test_rates_give_the_ranks_of_an_all_reduce(tmp_path_factory, ranks):
    lines = printed.log(ranks=ranks, listed=False, sizes=SIZES, seconds=lambda n: 3e-5 + n / 4e11)
    assert settled(tmp_path_factory.mktemp("r"), lines, Said(nodes=1)).ranks == ranks


def test_too_many_ranks_to_tell_is_a_question_with_the_range(tmp_path):
    lines = printed.log(ranks=1600, listed=False, sizes=SIZES)
    question(tmp_path, lines, "number of ranks unknown", "--ranks", "allows")
    path = tmp_path / "log.txt"
    low, high = ranks_by_rates(read_nccl_log(path)[0], "all_reduce")
    assert low <= 1600 <= high
    assert settled(tmp_path, lines, Said(ranks=1600)).nodes == 200


def test_small_messages_alone_say_nothing_of_ranks(tmp_path):
    lines = printed.log(listed=False, sizes=(256, 512, 1024))
    question(tmp_path, lines, "number of ranks unknown", "--ranks")


def test_a_list_cut_in_the_middle_is_read_by_its_highest_rank(tmp_path):
    lines = printed.log(ranks=16, sizes=SIZES)
    kept = [line for line in lines if "Rank" not in line or " 0 Group" in line or "15 Group" in line]
    found = settled(tmp_path, kept)
    assert (found.ranks, found.nodes) == (16, 2)
    assert any("not whole" in note for note in found.notes)


def test_a_list_cut_at_its_end_is_caught_by_the_rates(tmp_path):
    kept = [line for line in printed.log(ranks=16, sizes=SIZES) if not any(f"Rank {r}" in line for r in (14, 15))]
    question(tmp_path, kept, "14 ranks by the device list", "says 16")


def test_said_ranks_that_the_rates_refute(tmp_path):
    question(tmp_path, printed.log(ranks=16, listed=False, sizes=SIZES), "--ranks 8", "16", said=Said(ranks=8))


def test_the_library_says_ranks_and_nodes(tmp_path):
    lines = printed.log(ranks=4, listed=False, sizes=(256, 512))
    lines.insert(
        1, "node0:1:2 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0"
    )
    found = settled(tmp_path, lines)
    assert (found.ranks, found.nodes) == (4, 2)


def test_whole_nodes_are_assumed_and_said(tmp_path):
    found = settled(tmp_path, printed.log(ranks=16, listed=False, sizes=SIZES))
    assert found.nodes == 2 and any("2 whole nodes of 8" in note for note in found.notes)


def test_part_of_a_node_or_several_is_a_question(tmp_path):
    question(tmp_path, printed.log(ranks=4, listed=False, sizes=SIZES), "--nodes")


def test_processes_that_never_met(tmp_path):
    lines = printed.log(ranks=2, sizes=SIZES)
    lines = [line.replace("Rank  1", "Rank  0") for line in lines]
    question(tmp_path, lines, "listed twice", "MPI=1")


def test_one_rank_alone(tmp_path):
    lines = [line for line in printed.log(ranks=2, sizes=(256,)) if "Rank  1" not in line]
    question(tmp_path, lines, "one rank alone")


def test_the_collective_by_its_numbers(tmp_path):
    for op, kind in (("all_reduce", "all_reduce"), ("reduce_scatter", "reduce_scatter"), ("broadcast", "broadcast")):
        found = settled(tmp_path, printed.log(op, named=False, sizes=SIZES))
        assert found.kind == kind and "names no collective" in found.notes[0]


def test_the_collective_by_the_name_of_the_file(tmp_path):
    found = settled(tmp_path, printed.log("all_gather", named=False, sizes=SIZES), name="allgather_8.log")
    assert found.kind == "all_gather"
    question(tmp_path, printed.log("all_gather", named=False, sizes=SIZES), "--kind")
    said = Said(kind="all_to_all")
    assert settled(tmp_path, printed.log("all_gather", named=False, sizes=SIZES), said).kind == "all_to_all"


def test_racks_that_join_nodes(tmp_path):
    found = settled(tmp_path, printed.log(ranks=64, per_node=4, sizes=SIZES), node=4, domain=72)
    assert (found.nodes, found.domains) == (16, 1)
    found = settled(tmp_path, printed.log(ranks=64, per_node=4, sizes=SIZES), Said(domains=2), node=4, domain=72)
    assert found.domains == 2


def test_the_factor_is_inside_its_range(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("\n".join(printed.log(ranks=24, sizes=SIZES)))
    low, high = factor_range(read_nccl_log(path)[0])
    assert low <= 2 * 23 / 24 <= high and high - low < 0.01


def test_one_process_drives_one_node(tmp_path):
    lines = [line.replace("nGpus 1", "nGpus 4") for line in printed.log(ranks=4, listed=False, sizes=SIZES)]
    found = settled(tmp_path, lines)
    assert (found.ranks, found.nodes) == (4, 1)


def test_a_scatter_is_told_by_its_root(tmp_path):
    lines = [
        line.replace("none      -1", "none       0") for line in printed.log("all_gather", named=False, sizes=SIZES)
    ]
    assert settled(tmp_path, lines).kind == "scatter"

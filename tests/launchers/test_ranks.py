"""Rank groups: Megatron's own example, and what any order must satisfy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.strategy import RANK_ORDERS, Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.ranks import rank_groups

FOLDED = Strategy(tp=2, cp=2, pp=4, dp=4, ep=8, etp=1)
"""64 ranks with experts folded over tp·cp·dp; Megatron-Core 0.19.2 was run on it."""


def group_of(rank: int, name: str, strategy: Strategy = FOLDED) -> list[int]:
    (found,) = (g for g in rank_groups(strategy)[name] if rank in g)
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tp", [4, 5]),
        ("cp", [5, 7]),
        ("dp", [1, 5, 9, 13]),
        ("pp", [5, 21, 37, 53]),
        ("ep", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("edp", [5, 13]),
        ("etp", [5]),
        ("dp_cp", [1, 3, 5, 7, 9, 11, 13, 15]),
    ],
)
def test_rank_5_of_the_run_example(name: str, expected: list[int]) -> None:
    assert group_of(5, name) == expected


def test_shards_are_runs_of_the_data_parallel_group() -> None:
    hsdp = replace(FOLDED, zero_group=4)
    assert group_of(5, "shard", hsdp) == [1, 3, 5, 7]
    assert group_of(9, "shard", hsdp) == [9, 11, 13, 15]


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=4, max_size=4))
def test_every_kind_of_group_covers_every_rank_once(degrees: list[int]) -> None:
    tp, cp, dp, pp = degrees
    s = Strategy(tp=tp, cp=cp, dp=dp, pp=pp, ep=dp)
    for name, groups in rank_groups(s).items():
        assert sorted(itertools.chain(*groups)) == list(range(s.world_size)), name
        assert groups == sorted(map(sorted, groups))


def test_pipeline_before_data_is_another_order() -> None:
    s = Strategy(tp=2, dp=2, pp=2, etp=2)
    assert rank_groups(s, "tp-cp-ep-pp-dp")["pp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert rank_groups(s)["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@given(st.sampled_from(RANK_ORDERS), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=5, max_size=5))
def test_the_cost_model_counts_the_ranks_between_neighbours(order: str, degrees: list[int]) -> None:
    """Strides of the arrays that prices are made of, against the groups themselves."""
    etp, ep, dp, pp, cp = degrees
    tp, cp = (etp * ep, 1) if order == RANK_ORDERS[1] else (etp, cp)
    if tp * cp * dp % (ep * etp):
        return
    s = Strategy(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, rank_order=order)
    many, groups = Strategies.of([s]), rank_groups(s)
    dense, expert = (int(stride[0]) for stride in many.replica_strides)
    for name, stride in (("pp", int(many.stage_stride[0])), ("dp_cp", dense), ("edp", expert)):
        apart = {b - a for group in groups[name] for a, b in itertools.pairwise(group)}
        assert apart <= {stride}, name


def test_meshes_with_different_pipelines_are_refused() -> None:
    with pytest.raises(InputError, match="different pipeline groups"):
        rank_groups(Strategy(tp=2, dp=2, pp=2, ep=4), "tp-cp-pp-ep-dp")


@pytest.mark.parametrize("order", ["tp-cp-ep-dp", "tp-cp-ep-dp-pp-pp", "tp-cp-ep-dp-xx", ""])
def test_an_order_names_each_axis_once(order: str) -> None:
    with pytest.raises(InputError, match="each once"):
        rank_groups(FOLDED, order)


def test_experts_must_fit_the_mesh() -> None:
    with pytest.raises(InputError, match="does not divide"):
        rank_groups(Strategy(tp=2, ep=4))

"""What is costed once for many strategies is what each would cost alone."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.evaluate import evaluate
from shardwise.costmodel.layers import LayerColumns, LayerTable, distinct, layer_table
from shardwise.costmodel.memo import Last
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.load_cluster import load_cluster

GPUS, BATCH = 64, 256
PROBLEM = Problem(
    ModelSpec.from_preset("deepseek-v3"),
    load_cluster("h800-mpft", GPUS),
    Workload(global_batch_size=BATCH, sequence_length=4096),
    load_runtime("megatron-core"),
)


@st.composite
def some(draw: st.DrawFn) -> Strategy:
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 8]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    bare = Strategy(
        tp=tp, sp=tp > 1, pp=pp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b",
        ep=draw(st.sampled_from([1, 2, 8])), micro_batch_size=draw(st.sampled_from([1, 2])),
        zero=draw(st.sampled_from([0, 1, 2, 3])), recompute=draw(st.sampled_from(["none", "selective", "full"])),
        offload_activations=draw(st.booleans()), ep_overlap=draw(st.booleans()),
    )  # fmt: skip
    return bare.with_batch(GPUS, BATCH)


MANY = st.lists(some(), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(MANY)
def test_many_at_once_cost_what_each_costs_alone(strategies):
    together = evaluate(PROBLEM, Strategies.of(strategies))
    for i, strategy in enumerate(strategies):
        alone = evaluate(PROBLEM, Strategies.of([strategy]))
        for field in fields(together):
            assert np.allclose(getattr(together, field.name)[i], getattr(alone, field.name)[0], rtol=1e-12, atol=0.0)


@settings(max_examples=25, deadline=None)
@given(st.lists(MANY, min_size=1, max_size=4))
def test_remembered_layer_tables_are_those_made_anew(asked):
    columns = LayerColumns(PROBLEM)
    for strategies in asked:
        keys, _ = distinct(Strategies.of(strategies))
        _same(columns.of(keys), layer_table(PROBLEM, keys))


@settings(max_examples=25, deadline=None)
@given(MANY, MANY)
def test_what_is_remembered_changes_no_answer(before, strategies):
    fresh = replace(PROBLEM)
    many = Strategies.of(strategies)
    expected = evaluate(fresh, many)
    other = replace(PROBLEM)
    evaluate(other, Strategies.of([*before, *strategies]))
    got = evaluate(other, many)
    for field in fields(got):
        assert same(getattr(got, field.name), getattr(expected, field.name)), field.name


def same(a, b) -> bool:
    """But for the last bits: how many rows an array has decides how its sums are vectorised."""
    return bool(np.allclose(a, b, rtol=1e-12, atol=0.0))


def _same(one: LayerTable, other: LayerTable) -> None:
    for field in fields(LayerTable):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert same(a, b), field.name
    assert np.array_equal(one.geometry.tokens, other.geometry.tokens)
    for mine, theirs in zip(sum(one.comms, ()), sum(other.comms, ()), strict=True):
        assert (mine.parallelism, mine.collective, mine.phase, mine.hide) == (
            theirs.parallelism, theirs.collective, theirs.phase, theirs.hide,
        )  # fmt: skip
        for name in ("nbytes", "size", "stride", "count", "hidden_share", "room_s"):
            assert same(getattr(mine, name), getattr(theirs, name)), name


NAMES = ("tp", "sp", "micro_batch_size", "num_microbatches", "recompute_layers", "offload_optimizer")


@given(
    st.lists(
        st.tuples(
            st.integers(1, 8), st.booleans(), st.integers(1, 2000), st.integers(1, 1 << 40), st.integers(-1, 3),
            st.sampled_from([0.0, 0.25, 1.0]),
        ),
        max_size=40,
    ),
    st.booleans(),
)  # fmt: skip
def test_distinct_rows_are_those_of_numpy(rows, numbered):
    columns = {name: np.array([row[i] for row in rows]) for i, name in enumerate(NAMES)}
    number = np.arange(len(rows)) % 3
    first, inverse = Strategies(**columns).distinct(NAMES, number if numbered else None) if rows else ([], [])
    table = np.array([(*row, n if numbered else 0) for row, n in zip(rows, number, strict=True)], dtype=float)
    if rows:
        _, expected_first, expected = np.unique(table, axis=0, return_index=True, return_inverse=True)
        assert np.array_equal(first, expected_first)
        assert np.array_equal(inverse, expected.ravel())


def test_the_last_result_is_kept_for_the_same_objects_only():
    calls: list[list[int]] = []

    def length(values: list[int]) -> int:
        calls.append(values)
        return len(values)

    one, other = [1], [1]
    last = Last(length)
    assert [last(one), last(one), last(other), last(one)] == [1, 1, 1, 1]
    assert [id(c) for c in calls] == [id(one), id(other), id(one)]

"""Figures per layer kind against the cost model, which prices a pipeline rank as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.splits import rank_counts
from shardwise.costmodel.strategy import Strategies
from shardwise.search.rows import kind_rows

from .small import group_of, pipelined


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_ranks_seconds_are_the_sum_of_its_layers(data):
    p, s = data.draw(pipelined(("none", "selective", "full")))
    rows = kind_rows(group_of(p, Strategies.of([s])))
    counts = rank_counts(p, s.pp, s.vpp, s.schedule, s.layers_per_stage)
    expected = [forward + backward for forward, backward in estimate(p, s).stage_times_s]
    assert counts @ (rows.time + rows.again)[:, 0] == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_ranks_memory_is_the_sum_of_its_layers(data):
    """Nothing recomputed in full; the gather buffers of ZeRO-3 are no sum over layers and left out."""
    p, s = data.draw(pipelined(("none", "selective")))
    rows = kind_rows(group_of(p, Strategies.of([s])))
    counts = rank_counts(p, s.pp, s.vpp, s.schedule, s.layers_per_stage)
    head = rows.num_kinds + 1
    kept = rows.saved[:, 0].copy()
    kept[head] = 0.0  # the loss runs backward at once
    for rank, parts in enumerate(estimate(p, s).memory_parts_by_rank):
        held = counts[rank]
        layers = (held[: rows.num_kinds] > 0) * rows.workspace[: rows.num_kinds, 0]
        transient = layers.max() + (held[head] > 0) * rows.workspace[head, 0]
        dynamic = rows.flight[rank, 0] * (held @ kept) + transient
        total = rows.fixed[0] + held @ rows.state[:, 0] + (1.0 + rows.fragmentation) * dynamic
        assert total == pytest.approx(sum(parts.values()) - parts["gathered_parameters"])

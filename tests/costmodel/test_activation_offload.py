"""Activations kept on the host: which bytes leave the device, and what the host link makes of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.strategy import Strategy

from . import cases

HIDDEN, HEADS, LAYERS, SEQUENCE = 1024, 16, 8, 2048


def pair(p, s):
    return estimate(p, s), estimate(p, replace(s, offload_activations=True))


@pytest.mark.parametrize("tp", [1, 4])
def test_queries_keys_values_and_the_output_of_attention_leave(tp):
    p = cases.problem(cases.gpt(HIDDEN, LAYERS, HEADS), num_gpus=4, batch=8, sequence=SEQUENCE, activation_scale=1.0)
    kept, away = pair(
        p, Strategy(tp=tp, sp=tp > 1, dp=4 // tp, micro_batch_size=2, num_microbatches=8 // (8 // tp) or 1)
    )
    # Four matrices of [tokens, hidden] in BF16 per layer, split over heads.
    moved = 4 * 2 * HIDDEN * SEQUENCE * 2 * LAYERS / tp
    fewer = kept.memory_parts_bytes["activations"] - away.memory_parts_bytes["activations"]
    assert fewer == pytest.approx(moved)
    # Two layers' copies are on their way at a time.
    assert away.memory_parts_bytes["workspace"] - kept.memory_parts_bytes["workspace"] == pytest.approx(
        moved / LAYERS * 2
    )


def test_inputs_of_experts_leave_too():
    top_k, width = 2, 2048
    model = cases.moe(HIDDEN, LAYERS, 8, top_k, width, HEADS)
    p = cases.problem(model, num_gpus=8, batch=8, sequence=SEQUENCE, activation_scale=1.0)
    kept, away = pair(p, Strategy(dp=8, ep=8))
    tokens = SEQUENCE * top_k
    moved = LAYERS * 2 * (4 * HIDDEN * SEQUENCE + (HIDDEN + width) * tokens)
    fewer = kept.memory_parts_bytes["activations"] - away.memory_parts_bytes["activations"]
    assert fewer == pytest.approx(moved)


def test_what_the_host_link_cannot_take_adds_time():
    p = cases.problem(cases.gpt(HIDDEN, LAYERS, HEADS), num_gpus=1, batch=4, sequence=SEQUENCE, activation_scale=1.0)
    s = Strategy(num_microbatches=4)
    kept, hidden = pair(cases.faster(p, host_bytes_per_s=1e15), s)
    assert hidden.step_time_s == pytest.approx(kept.step_time_s)
    rate = 1e6
    _, exposed = pair(cases.faster(p, host_bytes_per_s=rate), s)
    # There and back, for four micro-batches; the layers' own passes hide next to nothing of it.
    link = 2 * 4 * LAYERS * 4 * 2 * HIDDEN * SEQUENCE / rate
    assert exposed.time_parts_s["activation_offload"] == pytest.approx(link, rel=0.01)
    assert exposed.time_parts_s["activation_offload"] <= link


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.sampled_from((cases.gpt(), cases.moe())),
    st.sampled_from(("dgx-a100", "dgx-h100")),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("none", "selective")),
    st.sampled_from(("bf16", "fp32")),
)
def test_never_faster_and_less_memory_for_saved_activations(model, cluster, pp, recompute, dtype):
    p = cases.problem(model, cluster, num_gpus=8 * pp, batch=64, dtype=dtype)
    kept, away = pair(p, Strategy(tp=2, sp=True, pp=pp, dp=4, num_microbatches=16, recompute=recompute))
    assert away.step_time_s >= kept.step_time_s
    assert away.memory_parts_bytes["activations"] <= kept.memory_parts_bytes["activations"]
    assert sum(away.time_parts_s.values()) == pytest.approx(away.step_time_s)

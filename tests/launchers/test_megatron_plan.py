"""A strategy as Megatron's arguments: layer placement, recomputation, states, precision."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.strategy import Strategy
from shardwise.launchers import megatron_plan as plan

from .problems import DEEPSEEK, LLAMA, MIXTRAL, problem

TP8: dict[str, Any] = {"tp": 8, "sp": True, "dp": 16, "pp": 4}


def read_layout(text: str) -> list[str]:
    """Stages of a layout string, with both kinds of repetition written out."""
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    return re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text).split("|")


@given(st.lists(st.integers(0, 9), min_size=2, max_size=24), st.integers(0, 2))
def test_a_layout_says_the_split(split: list[int], mtp: int) -> None:
    stages = read_layout(plan.layout_string(split, mtp))
    assert [stage.count("t") for stage in stages] == split
    joined = "".join(stages)
    assert joined.startswith("E") and joined.endswith("m" * mtp + "L")
    assert joined.count("E") == joined.count("L") == 1


def test_layout_of_one_repeated_stage() -> None:
    assert plan.layout_string([3, 4, 4, 4, 3], 1) == "Et*3|(t*4|)*3t*3mL"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pp": 4}, []),
        ({"pp": 1}, []),
        ({"pp": 4, "vpp": 5}, ["--num-layers-per-virtual-pipeline-stage", "4"]),
        (
            {"pp": 4, "layers_per_stage": (19, 21, 21, 19)},
            ["--decoder-first-pipeline-num-layers", "19", "--decoder-last-pipeline-num-layers", "19"],
        ),
        (
            {"pp": 2, "layers_per_stage": (41, 39)},
            ["--decoder-first-pipeline-num-layers", "41", "--decoder-last-pipeline-num-layers", "39"],
        ),
        (
            {"pp": 4, "layers_per_stage": (18, 22, 21, 19)},
            ["--pipeline-model-parallel-layout", "Et*18|t*22|t*21|t*19L"],
        ),
        ({"pp": 4, "layers_per_stage": (0, 27, 27, 26)}, ["--pipeline-model-parallel-layout", "E|(t*27|)*2t*26L"]),
    ],
)
def test_the_simplest_spelling_of_a_split(settings: dict[str, Any], expected: list[str]) -> None:
    assert plan.placement_arguments(problem(LLAMA), Strategy(tp=8, **settings)) == expected


def test_prediction_layers_stand_before_the_loss() -> None:
    s = Strategy(pp=8, vpp=2, schedule="interleaved")
    assert plan.placement_arguments(problem(DEEPSEEK), s)[1].endswith("mL")
    assert "m" not in plan.placement_arguments(problem(DEEPSEEK, train_mtp=False), s)[1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"recompute": "selective"}, ["selective", "layernorm", "mlp"]),
        ({"recompute": "full"}, ["full", "uniform", "1"]),
        ({"recompute": "full", "recompute_layers": 20}, ["full", "uniform", "1"]),
        ({"recompute": "full", "recompute_layers": 7}, ["full", "block", "7"]),
        ({"recompute": "full", "recompute_layers": 10, "vpp": 5}, ["full", "block", "2"]),
        ({"recompute": "full", "recompute_per_stage": (3, 3, 3, 3)}, ["full", "block", "3"]),
        ({"recompute": "full", "recompute_per_stage": (20, 20, 20, 20)}, ["full", "uniform", "1"]),
        (
            {"recompute": "full", "layers_per_stage": (2, 26, 26, 26), "recompute_per_stage": (2, 5, 5, 5)},
            ["full", "block", "5"],
        ),
    ],
)
def test_recomputation(settings: dict[str, Any], expected: list[str]) -> None:
    words = plan.recompute_arguments(problem(LLAMA), Strategy(**TP8, **settings))
    assert [w for w in words if not w.startswith("--")] == expected


def test_selective_recomputation_of_norms_and_activations() -> None:
    p = problem(DEEPSEEK, changes={"selective_recompute": "norms_and_activations"})
    assert plan.recompute_arguments(p, Strategy(recompute="selective"))[3:] == ["layernorm", "moe_act", "mla_up_proj"]


@pytest.mark.parametrize(
    ("settings", "present", "absent"),
    [
        ({"zero": 0}, ["--overlap-grad-reduce"], ["--use-distributed-optimizer", "--overlap-param-gather"]),
        ({"zero": 1}, ["--use-distributed-optimizer", "--overlap-param-gather"], ["--use-megatron-fsdp"]),
        ({"zero": 2}, ["--use-megatron-fsdp", "optim_grads", "fsdp_dtensor"], ["optim_grads_params"]),
        ({"zero": 3}, ["--use-megatron-fsdp", "optim_grads_params"], []),
        ({"dp_overlap": False}, [], ["--overlap-grad-reduce", "--overlap-param-gather"]),
        ({"zero_group": 4}, ["--num-distributed-optimizer-instances", "4"], []),
        ({"zero_group": 16}, [], ["--num-distributed-optimizer-instances"]),
        ({"tp_overlap": True}, ["--tp-comm-overlap"], []),
        ({"ep_overlap": True}, ["--overlap-moe-expert-parallel-comm"], []),
        (
            {"offload_activations": True},
            ["--fine-grained-activation-offloading", "core_attn", "attn_proj"],
            ["expert_fc1"],
        ),
        ({"offload_optimizer": 0.25}, ["--optimizer-cpu-offload", "0.25", "--use-precision-aware-optimizer"], []),
    ],
)
def test_states_and_overlap(settings: dict[str, Any], present: list[str], absent: list[str]) -> None:
    words = plan.state_arguments(problem(LLAMA), Strategy(**TP8, **settings))
    assert set(present) <= set(words) and not set(absent) & set(words)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("adam", ["adam"]),
        ("sgd", ["sgd"]),
        ("muon", ["muon"]),
        ("adam_bf16_moments", ["adam", "bf16", "bf16"]),
        ("adam_8bit", ["adam", "fp8", "fp8"]),
    ],
)
def test_optimizers(optimizer: str, words: list[str]) -> None:
    found = plan.state_arguments(problem(LLAMA, optimizer=optimizer), Strategy(**TP8, dp_overlap=False))
    assert [w for w in found if not w.startswith("--")] == words


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("bf16", ["--bf16"]),
        ("fp16", ["--fp16"]),
        ("fp32", []),
        ("fp8", ["--bf16", "--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"]),
        ("fp8_block", ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "blockwise"]),
        ("mxfp8", ["--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"]),
        ("nvfp4", ["--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"]),
    ],
)
def test_precision(dtype: str, words: list[str]) -> None:
    assert plan.precision_arguments(problem(LLAMA, dtype=dtype)) == [*words, "--make-vocab-size-divisible-by", "128"]


def test_routed_tokens_are_padded_for_low_precision() -> None:
    assert "--moe-router-padding-for-quantization" in plan.precision_arguments(problem(MIXTRAL, dtype="fp8"))
    assert "--moe-router-padding-for-quantization" not in plan.precision_arguments(problem(MIXTRAL))
    gathered = problem(MIXTRAL, dtype="fp8", changes={"moe_dispatcher": "allgather"})
    assert "--moe-router-padding-for-quantization" not in plan.precision_arguments(gathered)


@pytest.mark.parametrize(
    ("dispatcher", "words"),
    [
        ("allgather", ["allgather"]),
        ("alltoall", ["alltoall"]),
        ("deepep", ["flex", "deepep"]),
        ("hybridep", ["flex", "hybridep"]),
    ],
)
def test_dispatchers(dispatcher: str, words: list[str]) -> None:
    p = problem(MIXTRAL, changes={"moe_dispatcher": dispatcher})
    found = plan.parallel_arguments(p, Strategy(ep=8))
    at = found.index("--moe-token-dispatcher-type")
    assert [w for w in found[at : at + 4] if not w.startswith("--")][: len(words)] == words


def test_ulysses_inside_a_ring() -> None:
    found = plan.parallel_arguments(problem(LLAMA), Strategy(tp=2, cp=8, cp_comm="a2a+p2p", ulysses=4))
    at = found.index("--hierarchical-context-parallel-sizes")
    assert found[at + 1 : at + 3] == ["4", "2"]


@pytest.mark.parametrize(
    ("settings", "value"),
    [({}, "1"), ({"zero": 3}, None), ({"ep_overlap": True}, "32")],
)
def test_device_connections(settings: dict[str, Any], value: str | None) -> None:
    assert plan.environment(problem(LLAMA), Strategy(**settings))["CUDA_DEVICE_MAX_CONNECTIONS"] == value


def test_nccl_chooses_its_algorithms_as_the_cost_model_does() -> None:
    """Switching one off, such as NVLS, would leave the prediction behind."""
    names = set(plan.environment(problem(LLAMA), Strategy()))
    assert [name for name in names if name.startswith("NCCL_")] == []


def test_blackwell_needs_no_single_connection() -> None:
    p = problem(LLAMA, gpus=64, cluster="dgx-b200")
    assert plan.environment(p, Strategy())["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_cuda_graphs_follow_the_runtime_and_stop_at_full_recomputation() -> None:
    p = problem(LLAMA, changes={"cuda_graphs": True})
    assert "--cuda-graph-impl" in plan.graph_arguments(p, Strategy())
    assert plan.graph_arguments(p, Strategy(recompute="full")) == []
    assert plan.graph_arguments(problem(LLAMA), Strategy()) == []


def test_offloaded_activations_name_the_experts_and_keep_weights_on_the_device() -> None:
    p, s = problem(MIXTRAL), Strategy(offload_activations=True)
    assert plan.offload_modules(p) == ["core_attn", "attn_proj", "expert_fc1", "moe_act"]
    assert plan.environment(p, s)["NVTE_CPU_OFFLOAD_V1"] == "1"
    assert "NVTE_CPU_OFFLOAD_V1" not in plan.environment(p, Strategy())

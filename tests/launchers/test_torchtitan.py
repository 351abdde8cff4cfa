"""torchtitan: its division of layers, what its options mean, and what is left out of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, Parsed, get_launcher
from shardwise.launchers.torchtitan_stages import split_of, stages_of, weights_for

from .problems import fitted, problem

TITAN = get_launcher("torchtitan")
RUN = "torchrun --nnodes 8 --nproc-per-node 8 -m torchtitan.train --module llama3 --config llama3_8b "


def read(text: str, **given: object) -> Parsed:
    return TITAN.parse(RUN + text, Given(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "stages", "first", "last", "split"),
    [
        # The examples of torchtitan's own documentation of weights: what is left over goes to the first stages.
        (32, 4, 1, 1, (8, 9, 8, 7)),
        (32, 4, 0, 0, (8, 8, 8, 8)),
        (3, 2, 2, 2, (2, 1)),  # 7 slots, 4 and 3, less 2 each
        (3, 2, 1, 1, (2, 1)),
        (32, 1, 1, 1, (32,)),
    ],
)
def test_layers_are_divided_by_weights(
    layers: int, stages: int, first: int, last: int, split: tuple[int, ...] | None
) -> None:
    assert split_of(layers, stages, first, last) == split


@given(st.integers(1, 126), st.integers(1, 32), st.integers(0, 4), st.integers(0, 4))
def test_a_split_holds_every_layer_and_its_weights_are_found(layers: int, stages: int, first: int, last: int) -> None:
    split = split_of(layers, stages, first, last)
    if split is None:
        return
    assert len(split) == stages and sum(split) == layers
    found = weights_for(layers, stages, stages, split)
    assert found is not None and split_of(layers, stages, found.first, found.last) == split


@given(st.integers(8, 126), st.integers(2, 8), st.integers(2, 4))
def test_layers_per_stage_gives_the_number_of_stages(layers: int, pp: int, vpp: int) -> None:
    found = weights_for(layers, pp * vpp, 2 * pp, even_split(layers, pp * vpp))
    if found is not None and found.layers_per_stage is not None:
        assert stages_of(layers, found.first, found.last, found.layers_per_stage) == pp * vpp


def test_the_shipped_configuration_is_the_model_and_its_policy_the_recomputation() -> None:
    found = read("--training.local_batch_size 2")
    assert found.model is not None and found.model.total_parameters == 8_030_261_248
    assert found.strategy == Strategy(dp=64, zero=3, micro_batch_size=2, recompute="selective")
    assert found.workload.global_batch_size == 128 and found.workload.sequence_length == 2048
    assert read("--training.local_batch_size 2 activation-checkpoint:none").strategy.recompute == "none"
    big = TITAN.parse(RUN.replace("8b", "70b") + "--training.local_batch_size 1")
    assert big.strategy.recompute == "full"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--parallelism.tensor_parallel_degree 4", {"tp": 4, "sp": True, "dp": 16}),
        ("--parallelism.tensor_parallel_degree 4 --parallelism.no-enable-sequence-parallel", {"sp": False}),
        ("--parallelism.tensor-parallel-degree=4 --compile.enable --compile.enable_async_tensor_parallel",
         {"tp_overlap": True}),
        ("--parallelism.data_parallel_replicate_degree 8", {"dp": 64, "zero_group": 8}),
        ("--parallelism.context_parallel_degree 2", {"cp": 2, "cp_comm": "all_gather", "dp": 32}),
        ("--parallelism.fsdp_reshard_after_forward never", {"zero": 2}),
        ("--parallelism.pipeline_parallel_degree 4", {"zero": 2, "pp": 4, "layers_per_stage": [8, 9, 8, 7],
                                                       "micro_batch_size": 1, "num_microbatches": 8}),
        ("--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B",
         {"vpp": 2, "schedule": "interleaved"}),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule ZBVZeroBubble",
         {"vpp": 2, "schedule": "zb-v"}),
    ],
)  # fmt: skip
def test_options_mean_their_dimension(flags: str, expected: dict[str, object]) -> None:
    found = read(flags).strategy.as_dict()
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--parallelism.data_parallel_shard_degree 3", "1·3·1·1·1 is not the 64 GPUs"),
        ("--training.local_batch_size 3 --training.global_batch_size 100", "a multiple of the local batch times dp"),
        ("--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule DualPipeV", "one of GPipe"),
        ("--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B "
         "--parallelism.pipeline_parallel_layers_per_stage 5", "a multiple of 4 stages, not 7"),
        ("activation-checkpoint:sometimes", "expected one of none, selective, full"),
        ("--parallelism.tensor_parallel_degree $TP", "expected a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(flags: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read(flags)
    assert text in str(caught.value) and "the launch file" in str(caught.value)


def test_a_misspelled_option_is_listed_with_a_near_one() -> None:
    (odd,) = read("--parallelism.tensor_parallel_degre 4").unknown
    assert "--parallelism.tensor-parallel-degree" in odd.note


def test_a_configuration_of_ones_own_needs_the_model_named() -> None:
    p = problem("llama-3.1-8b")
    with pytest.raises(InputError, match="does not say which model it trains: give it with --model"):
        TITAN.parse(RUN.replace("llama3_8b", "ours"))
    assert TITAN.parse(RUN.replace("llama3_8b", "ours"), Given(model=p.model)).model is p.model


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("llama-3.1-405b", {}, "no configuration"),
        ("deepseek-v3", {}, "multi-token prediction"),
        ("llama-3.1-8b", {"dtype": "fp8"}, "training in fp8"),
        ("llama-3.1-8b", {"optimizer": "muon"}, "optimizer muon"),
    ],
)
def test_what_it_cannot_train_is_said(name: str, changes: dict[str, str], text: str) -> None:
    p = problem(name, gpus=64, batch=64, runtime="torchtitan", **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=text):
        TITAN.render(p, fitted(p, zero=3))


def test_cuda_graphs_are_off_where_they_cannot_be_had() -> None:
    graphs = {"cuda_graphs": True}
    p = problem("llama-3.1-8b", gpus=64, batch=64, runtime="torchtitan", changes=graphs)
    assert "disable_cuda_graphs" not in TITAN.render(p, fitted(p, zero=3))["launch.sh"]
    assert "--training.disable_cuda_graphs" in TITAN.render(p, fitted(p, zero=2, pp=4))["launch.sh"]

"""Measured runs as inputs: what is stated is taken, what is not becomes an assumption or a reason to skip."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel._validation_cluster import PREFERRED, stated_rate
from shardwise.costmodel._validation_model import RowSkippedError
from shardwise.costmodel.rows import RowInputs, RowReader
from shardwise.hardware_profiles.load_cluster import list_clusters, load_cluster

DATA = Path(__file__).parents[1] / "data"
LLAMA: dict[str, Any] = {
    "id": "a-run",
    "group": "g",
    "source": {"title": "a test"},
    "software": "nemo-24.07",
    "model": {
        "name": "Llama-3-8B",
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "num_attention_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "seq_len": 8192,
        "gated_mlp": True,
        "tied_embeddings": False,
        "attention": "gqa",
        "moe": None,
        "hf_config": None,
    },
    "hardware": {
        "gpu": "H100-80GB-SXM",
        "num_gpus": 64,
        "gpus_per_node": 8,
        "intra_node": "NVLink4",
        "inter_node": "InfiniBand NDR 400Gb/s per GPU",
    },
    "parallel": {
        "tp": 4,
        "sequence_parallel": None,
        "cp": 1,
        "pp": 4,
        "vpp": None,
        "dp": 4,
        "ep": None,
        "etp": None,
        "zero_stage": 1,
        "micro_batch_size": 1,
        "global_batch_size_seqs": 128,
        "recompute": None,
        "dtype": "bf16",
        "schedule": None,
        "notes": None,
    },
}


def row(**changes: Any) -> dict[str, Any]:
    """The Llama row with ``section__key`` changed."""
    out = copy.deepcopy(LLAMA)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            out[section][key] = value
        else:
            out[section] = value
    return out


def read(**changes: Any) -> RowInputs:
    return RowReader(DATA).read(row(**changes))


def reason(**changes: Any) -> str:
    with pytest.raises(RowSkippedError) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_stated_row_is_taken_as_it_is():
    inputs = read()
    s = inputs.strategy
    assert (s.tp, s.pp, s.dp, s.zero, s.micro_batch_size, s.num_microbatches) == (4, 4, 4, 1, 1, 32)
    assert inputs.problem.runtime.name == "nemo-24.07"
    assert inputs.problem.cluster.num_gpus == 64
    assert inputs.problem.workload.sequence_length == 8192
    assert inputs.problem.model.total_parameters == 8_030_261_248


def test_what_is_not_stated_is_an_assumption():
    notes = " ".join(read().assumptions)
    for key in ("vpp", "sequence_parallel", "recompute"):
        assert f"parallel.{key} is not stated" in notes


def test_nvidia_recipes_interleave_and_others_do_not():
    assert read().strategy.vpp == 8
    assert read().strategy.schedule == "interleaved"
    assert read(software="megatron-deepspeed").strategy.vpp == 1


def test_degrees_that_do_not_multiply_are_skipped():
    assert "num_gpus" in reason(parallel__dp=8)
    assert "does not divide" in reason(parallel__tp=3)
    assert "does not divide the batch" in reason(parallel__global_batch_size_seqs=130)


@pytest.mark.parametrize("key", ["global_batch_size_seqs", "dtype", "tp"])
def test_what_has_no_default_is_skipped(key: str):
    assert f"parallel.{key} is not stated" in reason(**{f"parallel__{key}": None})


def test_without_a_micro_batch_it_is_one_sequence_as_in_examples():
    inputs = read(parallel__micro_batch_size=None)
    assert (inputs.strategy.micro_batch_size, inputs.strategy.num_microbatches) == (1, 32)
    assert any("micro_batch_size is not stated: 1" in note for note in inputs.assumptions)
    why = reason(software="torchtitan", parallel__micro_batch_size=None, parallel__zero_stage=3)
    assert "micro_batch_size is not stated" in why


def test_fsdp_without_a_micro_batch_does_not_accumulate():
    inputs = read(
        software="torchtitan", parallel__micro_batch_size=None, parallel__pp=1, parallel__dp=16, parallel__zero_stage=3
    )
    assert (inputs.strategy.micro_batch_size, inputs.strategy.num_microbatches) == (8, 1)
    assert any("micro_batch_size is not stated" in note for note in inputs.assumptions)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hardware__gpu": "Abacus"}, "hardware.gpu"),
        ({"hardware__num_gpus": 0}, "num_gpus"),
        ({"hardware__num_gpus": True}, "num_gpus"),
        ({"parallel__dtype": "int3"}, "dtype"),
        ({"parallel__schedule": "sideways"}, "schedule"),
        ({"parallel__recompute": "some"}, "recompute"),
        ({"parallel__cp_kind": "spiral"}, "cp_kind"),
        ({"parallel__zero_stage": 7}, "zero_stage"),
        ({"parallel__pp": -4}, "parallel.pp"),
        ({"model__num_layers": None}, "num_layers"),
        ({"model__hidden_size": "big"}, "hidden_size"),
        ({"model__attention": "mla"}, "hf_config"),
        ({"model__hf_config": "model_configs/none.json", "model__attention": "mla"}, "hf_config"),
        ({"model__moe": {"num_experts": 8, "top_k": None, "moe_ffn_hidden_size": 1024}}, "top_k"),
        ({"model__gated_mlp": None}, "gated_mlp"),
    ],
)
def test_what_cannot_be_expressed_is_skipped_with_the_key(changes: dict[str, Any], word: str):
    assert word in reason(**changes)


def test_software_without_a_profile_is_an_assumption():
    inputs = read(software=None)
    assert inputs.problem.runtime.name == "megatron-core"
    assert any("software is not stated" in note for note in inputs.assumptions)
    assert any("no-such-thing" in note for note in read(software="no-such-thing").assumptions)


def test_notes_refine_the_runtime():
    plain = read().problem.runtime
    refined = read(parallel__notes="DeepEP; CUDA graphs").problem.runtime
    assert refined.moe_dispatcher == "deepep"
    assert refined.cuda_graphs
    assert not plain.cuda_graphs


def test_a_kernel_that_a_device_lacks_falls_back_with_a_note():
    inputs = read(hardware__gpu="V100-32GB-SXM2", parallel__dtype="fp16")
    kernel = inputs.problem.runtime.attention_kernel
    assert kernel in inputs.problem.cluster.accelerator.attention
    assert any("attention kernel" in note for note in inputs.assumptions)


def test_hugging_face_files_are_read_from_the_folder_above():
    inputs = read(model__hf_config="model_configs/Llama-3.1-8B.json")
    assert inputs.problem.model.total_parameters == 8_030_261_248
    assert "num_layers" in reason(model__hf_config="model_configs/Llama-3.1-8B.json", model__num_layers=4)


def test_moe_by_flat_keys():
    moe = {"num_experts": 8, "top_k": 2, "moe_ffn_hidden_size": 14336, "num_shared_experts": 0, "first_dense_layers": 2}
    inputs = read(model__moe=moe, parallel__ep=4)
    model = inputs.problem.model
    assert model.is_moe
    assert [bool(model.kinds[k].moe) for k in model.layers[:3]] == [False, False, True]
    assert inputs.strategy.ep == 4


def test_rows_that_differ_in_strategy_share_a_problem():
    reader = RowReader(DATA)
    one, two = reader.read(row()), reader.read(row(parallel__tp=2, parallel__dp=8))
    assert one.problem is two.problem


@pytest.mark.parametrize(
    ("words", "gigabits"),
    [
        ("InfiniBand NDR 400Gb/s per GPU", 400),
        ("8x200Gb/s HDR IB, 3-level fat tree (Selene)", 200),
        ("4x200Gb/s IB per node (800 Gb/s)", 100),
        ("RoCE 1600Gb/s per node", 200),
        ("4x Omni-Path 100Gb/s (Jean Zay; recalled)", 50),
        ("Omni-Path 100Gb/s x4 per node (Jean Zay)", 50),
        ("InfiniBand 100Gb/s per node", 12.5),
        ("8x400Gb/s IB (50GB/s per NIC)", 400),
        ("8x HDR InfiniBand 200Gb/s per node (Selene)", 200),
    ],
)
def test_networks_are_read_as_rows_word_them(words: str, gigabits: float):
    rate = stated_rate(words, 8)
    assert rate is not None
    assert rate * 8 / 1e9 == pytest.approx(gigabits)


def test_a_network_without_a_rate_is_an_assumption():
    assert stated_rate("RDMA", 8) is None
    assert any("inter_node is not stated" in n for n in read(hardware__inter_node=None).assumptions)
    one_node = read(hardware__inter_node=None, hardware__num_gpus=8, parallel__tp=4, parallel__pp=1, parallel__dp=2)
    assert not any("inter_node" in n for n in one_node.assumptions)


def test_recipe_layout_of_a_model_with_mtp():
    config = "model_configs/DeepSeek-V3.json"
    flat = {"model__num_layers": 61, "model__hidden_size": 7168, "model__hf_config": config, "model__seq_len": 4096}
    inputs = read(
        software="megatron-bridge-26.06",
        **flat,
        parallel__tp=1,
        parallel__pp=4,
        parallel__vpp=4,
        parallel__dp=16,
        parallel__ep=16,
    )
    assert inputs.strategy.layers_per_stage == (4,) * 15 + (1,)


def test_every_row_of_the_shipped_subset_is_read():
    path = DATA / "runs" / "published_subset.jsonl"
    reader = RowReader(DATA)
    for line in path.read_text(encoding="utf-8").splitlines():
        inputs = reader.read(json.loads(line))
        assert inputs.strategy.world_size == inputs.problem.cluster.num_gpus


@pytest.mark.parametrize(("accelerator", "system"), PREFERRED.items())
def test_preferred_systems_have_their_accelerator(accelerator: str, system: str):
    assert load_cluster(system).accelerator.name == accelerator
    assert system in list_clusters()

"""Step times from the logs of frameworks, in lines written here from their grammar."""

from __future__ import annotations

import json

import pytest

from shardwise.costmodel.training_logs import is_training_log, read_log, read_training_log
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster

CLUSTER = load_cluster("dgx-h100")
ROW = {
    "id": "ours",
    "model": {
        "name": "8b", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
        "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256, "seq_len": 8192, "gated_mlp": True,
        "tied_embeddings": False, "attention": "gqa", "moe": None,
    },
    "hardware": {"gpu": "H100-SXM5-80GB", "num_gpus": 16, "gpus_per_node": 8},
    "parallel": {
        "tp": 2, "sequence_parallel": True, "cp": 1, "pp": 1, "vpp": 1, "dp": 8, "zero_stage": 1, "micro_batch_size": 1,
        "global_batch_size_seqs": 64, "recompute": "none", "dtype": "bf16", "schedule": None,
    },
}  # fmt: skip

ARGUMENTS = {
    "world_size": 16, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "virtual_pipeline_model_parallel_size": None, "sequence_parallel": True, "num_layers": 32, "hidden_size": 4096,
    "ffn_hidden_size": 14336, "num_attention_heads": 32, "group_query_attention": True, "num_query_groups": 8,
    "kv_channels": 128, "padded_vocab_size": 128256, "seq_length": 8192, "swiglu": True, "num_experts": None,
    "untie_embeddings_and_output_weights": True, "micro_batch_size": 1, "global_batch_size": 64, "bf16": True,
    "use_distributed_optimizer": True, "recompute_granularity": None, "fp8": None, "lr": 0.0003,
}  # fmt: skip


def megatron_steps(times_ms, batch=64, prefix=""):
    return [
        f"{prefix} [2026-03-01 10:00:{i:02d}] iteration {i:8d}/     100 | consumed samples: {i * batch:12d} |"
        f" elapsed time per iteration (ms): {t:.1f} | throughput per GPU (TFLOP/s/GPU): 400.1 |"
        f" learning rate: 1.0E-04 | global batch size: {batch:5d} | lm loss: 9.0E+00 |"
        for i, t in enumerate(times_ms, start=1)
    ]


def dump(changes=None):
    values = {**ARGUMENTS, **(changes or {})}
    return ["------------------------ arguments ------------------------"] + [
        f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()
    ]


def write(tmp_path, lines, name="train.log"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def run(tmp_path, lines, row=None):
    notes = []
    ((inputs, seconds),) = read_training_log(write(tmp_path, lines), row, CLUSTER, notes)
    return inputs, seconds, notes


def row_file(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows or (ROW,))))
    return str(path)


TIMES = [9000.0, 4000.0, 3100.0, 3000.0, 3010.0, 2990.0, 3000.0, 3000.0]


@pytest.mark.parametrize("prefix", ["", "0: ", "[1,0]<stdout>:", "worker-0 | "])
def test_megatron_says_all_of_it(tmp_path, prefix):
    lines = [prefix + line for line in (*dump(), *megatron_steps(TIMES))]
    lines.insert(
        30, "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 40960.5 | reserved: 1.0"
    )
    inputs, seconds, notes = run(tmp_path, lines)
    assert seconds == pytest.approx(3.0)
    strategy, problem = inputs.strategy, inputs.problem
    assert (strategy.tp, strategy.sp, strategy.dp, strategy.zero, strategy.recompute) == (2, True, 8, 1, "none")
    assert (problem.workload.global_batch_size, problem.workload.sequence_length) == (64, 8192)
    assert problem.model.num_layers == 32 and problem.cluster.num_gpus == 16
    assert problem.model.total_parameters == 8_030_261_248  # Llama 3.1 8B, as published
    assert "8 steps of megatron" in notes[-1]
    assert read_log(tmp_path / "train.log").peak_memory_bytes == pytest.approx(40960.5 * 2**20)


def test_a_ramp_up_of_the_batch_is_left_out(tmp_path):
    lines = [*dump(), *megatron_steps([500.0] * 6, batch=8), *megatron_steps(TIMES)]
    assert run(tmp_path, lines)[1] == pytest.approx(3.0)
    with pytest.raises(InputError, match="global batch 8"):
        run(tmp_path, [*dump(), *megatron_steps(TIMES, batch=8)])


NEMO = [
    f"Training epoch 0, iteration {i}/99 | lr: 1.0e-06 | global_batch_size: 64 | global_step: {i} |"
    f" reduced_train_loss: 1.3 | train_step_timing in s: {t / 1e3:.3f}"
    for i, t in enumerate(TIMES)
]
BAR = [
    f"Epoch 0: :  10%|█| {i}/100 [00:10<00:00, reduced_train_loss=1.0, global_step={i}.0, consumed_samples=64.0,"
    f" train_step_timing in s={t / 1e3:.3f}]"
    for i, t in enumerate(TIMES)
]
TITAN = [
    f"[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - step: {i:2d}  loss:  7.8  grad_norm:  1.5"
    f"  memory: 45.05GiB(47.42%)  tps: {64 * 8192 / (t / 1e3) / 16:,.0f}  tflops: 346.20  mfu: 35.01%"
    for i, t in enumerate(TIMES, start=1)
]
PIPE = [f"steps: {i} loss: 5.5 iter time (s): {t / 1e3:.3f} samples/sec: 20.0" for i, t in enumerate(TIMES, start=1)]
ENGINE = [
    f"[2026-03-01 10:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step={i}/global_step={i},"
    f" RunningAvgSamplesPerSec=20.1, CurrSamplesPerSec={64 / (t / 1e3)}, MemAllocated=4.3GB, MaxMemAllocated=38.49GB"
    for i, t in enumerate(TIMES, start=1)
]


@pytest.mark.parametrize(
    ("lines", "framework"),
    [(NEMO, "nemo"), (BAR, "nemo"), (TITAN, "torchtitan"), (PIPE, "deepspeed"), (ENGINE, "deepspeed")],
)
def test_frameworks_that_do_not_say_what_ran(tmp_path, lines, framework):
    inputs, seconds, _ = run(tmp_path, lines, row_file(tmp_path))
    assert seconds == pytest.approx(3.0, rel=2e-3)
    assert read_log(tmp_path / "train.log").framework == framework
    assert inputs.strategy.tp == 2
    with pytest.raises(InputError, match=r"does not say what ran.*:row="):
        run(tmp_path, lines)


def test_one_row_of_several_by_its_id(tmp_path):
    rows = row_file(tmp_path, ROW, {**ROW, "id": "other", "parallel": {**ROW["parallel"], "tp": 4, "dp": 4}})
    assert run(tmp_path, NEMO, f"{rows}#other")[0].strategy.tp == 4
    with pytest.raises(InputError, match="2 rows"):
        run(tmp_path, NEMO, rows)
    with pytest.raises(InputError, match="0 rows with id 'none'"):
        run(tmp_path, NEMO, f"{rows}#none")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"multi_latent_attention": True}, "multi_latent_attention"),
        ({"use_megatron_fsdp": True}, "FSDP"),
        ({"num_layers": "many"}, "num_layers = many"),
        ({"world_size": None}, "world_size"),
        ({"padded_vocab_size": None}, "vocab_size"),
    ],
)
def test_arguments_that_a_row_cannot_express(tmp_path, changes, words):
    with pytest.raises(InputError, match=words) as caught:
        run(tmp_path, [*dump(changes), *megatron_steps(TIMES)])
    assert "train.log" in str(caught.value) and "\n" not in str(caught.value)


def test_experts_and_precisions_of_a_dump(tmp_path):
    moe = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336, "expert_model_parallel_size": 8,
           "fp8": "hybrid", "fp8_recipe": "mxfp8", "recompute_granularity": "full",
           "expert_tensor_parallel_size": 1}  # fmt: skip
    inputs, _, _ = run(tmp_path, [*dump(moe), *megatron_steps(TIMES)])
    assert inputs.problem.model.is_moe and inputs.strategy.ep == 8 and inputs.strategy.recompute == "full"
    assert inputs.problem.workload.dtype == "mxfp8"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["nothing of use"], "no line with a step time"),
        (["steps: 1 loss: 5.5 iter time (s): 0.000 samples/sec: 20.0"], "line 1"),
    ],
)
def test_logs_that_cannot_be_read(tmp_path, lines, words):
    with pytest.raises(InputError, match=words):
        read_log(write(tmp_path, lines))


def test_logs_are_told_from_rows(tmp_path):
    assert is_training_log(write(tmp_path, NEMO))
    assert not is_training_log(write(tmp_path, [json.dumps(ROW)], "rows.jsonl"))

"""Files of Accelerate as people write them: the ones `accelerate config` makes, with a script of their own."""

from __future__ import annotations

import pytest

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, get_launcher
from shardwise.launchers.parsed import Parsed
from shardwise.launchers.reading import recognise

LAUNCHER = get_launcher("accelerate")

FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
use_cpu: false
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""
SCRIPT = """\
#!/bin/bash
MBS=2
accelerate launch --config_file a.yaml --machine_rank $RANK train.py \\
  --per_device_train_batch_size $MBS --gradient_accumulation_steps 4 --max_length 4096 --optim adamw_torch
"""


def read(config: str = FSDP, script: str = SCRIPT, **given: int) -> Parsed:
    return LAUNCHER.parse({"a.yaml": config, "run.sh": script}, Given(**given))  # type: ignore[arg-type]


def with_mesh(**sizes: object) -> str:
    lines = "".join(f"  parallelism_config_{name}: {value}\n" for name, value in sizes.items())
    return f"{FSDP}parallelism_config:\n{lines}"


def test_plain_fsdp2_divides_over_every_process() -> None:
    parsed = read()
    assert parsed.strategy == Strategy(zero=3, dp=16, micro_batch_size=2, num_microbatches=4, recompute="full")
    assert (parsed.workload.global_batch_size, parsed.workload.sequence_length) == (128, 4096)
    assert (parsed.workload.dtype, parsed.workload.optimizer, parsed.num_gpus) == ("bf16", "adam", 16)
    assert parsed.unknown == () and recognise({"a.yaml": FSDP, "run.sh": SCRIPT}) == "accelerate"


def test_a_mesh_gives_replicas_and_degrees() -> None:
    config = with_mesh(dp_replicate_size=2, dp_shard_size=2, cp_size=2, tp_size=2, cp_comm_strategy="alltoall")
    s = read(config).strategy
    assert (s.dp, s.cp, s.cp_comm, s.tp, s.zero_group) == (4, 2, "p2p", 2, 4)
    assert read(config.replace("alltoall", "allgather")).strategy.cp_comm == "all_gather"


def test_ulysses_is_read_and_refused_by_the_table() -> None:
    s = read(with_mesh(dp_shard_size=8, sp_size=2)).strategy
    assert (s.cp, s.cp_comm, s.ulysses, s.dp) == (2, "a2a", 2, 8)


@pytest.mark.parametrize(
    ("strategy", "zero", "group"),
    [("FULL_SHARD", 3, 0), ("SHARD_GRAD_OP", 2, 0), ("NO_SHARD", 0, 0), ("HYBRID_SHARD", 3, 8), ("2", 2, 0)],
)
def test_strategies_of_fsdp1(strategy: str, zero: int, group: int) -> None:
    config = FSDP.replace("  fsdp_version: 2\n", "").replace(
        "fsdp_reshard_after_forward: true", f"fsdp_sharding_strategy: {strategy}"
    )
    s = read(config).strategy
    assert (s.zero, s.zero_group) == (zero, group)


def test_deepspeed_and_plain_data_parallelism() -> None:
    config = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: fp16\n"
    parsed = read(config + "deepspeed_config:\n  zero_stage: 1\n  offload_optimizer_device: cpu\n")
    assert (parsed.strategy.zero, parsed.strategy.offload_optimizer, parsed.workload.dtype) == (1, 1.0, "fp16")
    assert read("distributed_type: MULTI_GPU\nnum_processes: 8\n").strategy.zero == 0


def test_the_command_line_wins_over_the_file() -> None:
    script = SCRIPT.replace("--machine_rank $RANK", "--num_processes 64 --fsdp_reshard_after_forward false")
    assert (read(script=script).strategy.dp, read(script=script).strategy.zero) == (64, 2)


def test_what_the_person_adds_wins() -> None:
    assert read(num_gpus=32, global_batch_size=256).strategy.num_microbatches == 4
    assert read(sequence_length=1024).workload.sequence_length == 1024


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (with_mesh(dp_shard_size=4), "= 4, but num_processes is 16: expected dp_shard_size 16"),
        (with_mesh(tp_size=3), "num_processes is 16"),
        (with_mesh(cp_size=2, sp_size=2, dp_shard_size=4), "expected 1 beside an sp_size above 1"),
        (with_mesh(cp_backend="ring"), "parallelism_config_cp_backend: ring: expected one of torch"),
        (with_mesh(tp_size="two"), "a.yaml:13 parallelism_config.parallelism_config_tp_size: two: expected a whole"),
        (with_mesh(dp_shard_size=16).replace("fsdp_version: 2", "fsdp_version: 1"), "works with FSDP2 only"),
        (FSDP.replace("bf16", "bf17"), "mixed_precision: bf17: expected one of no, bf16, fp16, fp8"),
        (FSDP.replace("FSDP", "MEGATRON_LM"), "distributed_type: MEGATRON_LM: expected FSDP"),
        (FSDP + "num_processes: 8\n", "num_processes is given twice"),
        ("- a\n- b\n", "expected a YAML mapping"),
        ("a: [\n", "not YAML"),
    ],
)
def test_what_cannot_be_meant_is_refused(config: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        read(config)
    assert words in str(error.value)


@pytest.mark.parametrize(("missing", "words"), [("--max_length 4096", "--seq-len"), ("per_device_train_batch", "--gl")])
def test_what_is_missing_is_asked_for(missing: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(script=SCRIPT.replace(missing, "--other" if missing.startswith("--") else "other"))


def test_keys_that_accelerate_drops_are_listed_with_the_right_one() -> None:
    config = with_mesh(dp_shard_size=16, dp_shard_sise=2) + "num_machine_s: 2\n"
    notes = {o.name: o.note for o in read(config).unknown}
    assert (
        "did you mean parallelism_config.parallelism_config_dp_shard_size?"
        in notes["parallelism_config.parallelism_config_dp_shard_sise"]
    )
    assert "did you mean num_machines?" in notes["num_machine_s"]


def test_what_is_not_counted_is_said_only_where_it_is_on() -> None:
    off, on = (FSDP + f"  fsdp_offload_params: {value}\n" for value in ("false", "true"))
    assert [o.name for o in read(off).unmodelled] == []
    assert [o.name for o in read(on).unmodelled] == ["fsdp_config.fsdp_offload_params"]


def test_experts_follow_tensor_parallelism_where_the_layer_has_them() -> None:
    config = with_mesh(dp_shard_size=8, tp_size=2).replace("LlamaDecoderLayer", "MixtralDecoderLayer")
    assert read(config).strategy.etp == 2

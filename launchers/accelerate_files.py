"""The launch files of Hugging Face Accelerate: ``accelerate.yaml``, ``launch.sh``, ``train.py`` and ``sbatch.sh``."""

from __future__ import annotations

from typing import Any

import yaml

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .accelerate_models import wrapped_class
from .accelerate_script import TRAIN_SCRIPT
from .settings import LaunchSettings
from .shell import array, comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
"""Accelerate's word for each precision."""

OPTIMS = {"adam": "adamw_torch_fused", "sgd": "sgd"}
"""The training script's word for each optimizer."""

ROTATIONS = {"p2p": "alltoall", "all_gather": "allgather"}
"""Accelerate's word for how keys and values go round: its all-to-all hands one block to the next rank, as a ring."""

_YOURS = "Everything between here and the next rule is yours."
_USER_NOTE = "Length of the run, learning rate and regularisation; --from_scratch starts from random weights."

_HERE = """\
HERE="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"
MODEL="${MODEL:?set it to the name or folder of a transformers model}"
TRAIN_SCRIPT="${TRAIN_SCRIPT:-$HERE/train.py}"  # trains on random tokens; it takes the arguments below"""


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """The files by name, and ``hostfile`` when hosts are given."""
    hosts = hosts_of(problem, settings)
    files = {
        "accelerate.yaml": _yaml_text(problem, strategy, hosts),
        "launch.sh": _launch_script(problem, strategy, settings, hosts),
        "train.py": TRAIN_SCRIPT,
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


def accelerate_config(problem: Problem, s: Strategy, hosts: Hosts) -> dict[str, Any]:
    """The settings of ``accelerate launch --config_file``."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISIONS[problem.workload.dtype],
        "num_machines": hosts.nodes,
        "num_processes": problem.cluster.num_gpus,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "fsdp_config": _fsdp(problem, s),
        "parallelism_config": _parallelism(s),
    }


def dp_sizes(s: Strategy) -> tuple[int, int]:
    """``dp_replicate_size`` and ``dp_shard_size``: a sharding group is the shards with their context parallel ranks."""
    shard = s.zero_group // s.cp if s.zero_group else s.dp
    return s.dp // shard, shard


def _fsdp(problem: Problem, s: Strategy) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": s.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": wrapped_class(problem.model).layer,
        "fsdp_activation_checkpointing": s.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _parallelism(s: Strategy) -> dict[str, Any]:
    replicate, shard = dp_sizes(s)
    sizes: dict[str, Any] = {"dp_replicate_size": replicate, "dp_shard_size": shard, "cp_size": s.cp, "tp_size": s.tp}
    if s.cp > 1:
        sizes |= {"cp_backend": "torch", "cp_comm_strategy": ROTATIONS[s.cp_comm]}
    return {f"parallelism_config_{name}": value for name, value in sizes.items()}


def train_arguments(problem: Problem, s: Strategy) -> list[str]:
    """The arguments of the training script that belong to the plan."""
    args = ["--sequence_length", str(problem.workload.sequence_length)]
    args += ["--per_device_train_batch_size", str(s.micro_batch_size)]
    args += ["--gradient_accumulation_steps", str(s.num_microbatches)]
    return [*args, "--optim", OPTIMS[problem.workload.optimizer]]


def _yaml_text(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    note = "Keys below fsdp_config and parallelism_config that are misspelled are dropped in silence: check twice."
    text = yaml.safe_dump(accelerate_config(problem, s, hosts), sort_keys=False)
    return f"{comment(note)}\n{text.rstrip()}\n"


def _launch_script(problem: Problem, s: Strategy, settings: LaunchSettings, hosts: Hosts) -> str:
    user = ["--max_steps", str(settings.train_iters), "--learning_rate", "1e-4"]
    user += ["--warmup_steps", str(settings.train_iters // 100), "--weight_decay", "0.1", "--max_grad_norm", "1.0"]
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            f"{heading('Yours to fill in')}\n{comment(_YOURS)}",
            _HERE,
            f"{comment(_USER_NOTE)}\n{array('USER_ARGS', user)}",
            heading("The plan"),
            array("TRAIN_ARGS", train_arguments(problem, s)),
            f"export PLANNED_GPUS={problem.cluster.num_gpus}",
            f"{heading('Start')}\n{_start()}",
        ]
    )


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    cluster, work = problem.cluster, problem.workload
    replicate, shard = dp_sizes(s)
    lines = [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, cp {s.cp}, dp {s.dp} ({replicate} replicas of {shard} shards), zero {s.zero}; "
        f"{s.num_microbatches} micro-batches of {s.micro_batch_size}.",
        "Written by shardwise for Hugging Face Accelerate 1.15. Run it on every host with NODE_RANK set, or submit "
        "sbatch.sh.",
    ]
    if s.tp > 1:
        lines.append("FSDP2 with tensor parallelism needs transformers 4.57: newer ones lack what Accelerate 1.15 asks "
                     "of them, and train.py stops there.")  # fmt: skip
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines)])


def _start() -> str:
    return (
        "exec accelerate launch \\\n"
        '  --config_file "$HERE/accelerate.yaml" \\\n'
        '  --machine_rank "${NODE_RANK:-0}" \\\n'
        '  --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port "${MASTER_PORT:-29500}" \\\n'
        '  "$TRAIN_SCRIPT" --model "$MODEL" \\\n'
        '  "${USER_ARGS[@]}" \\\n'
        '  "${TRAIN_ARGS[@]}" \\\n'
        '  "$@"'
    )

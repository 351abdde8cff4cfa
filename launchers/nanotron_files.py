"""The launch files of nanotron: ``nanotron.yaml``, ``launch.sh`` (torchrun) and ``sbatch.sh`` (Slurm)."""

from __future__ import annotations

from typing import Any

import yaml

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .nanotron_model import DTYPES, model_config
from .settings import LaunchSettings
from .shell import comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script

ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
"""nanotron's word for each schedule."""

_START = """\
exec torchrun \\
  --nnodes {nodes} --nproc-per-node {per_node} \\
  --node-rank "${{NODE_RANK:-0}}" \\
  --master-addr "${{MASTER_ADDR:-localhost}}" --master-port "${{MASTER_PORT:-29500}}" \\
  "$NANOTRON_PATH/run_train.py" --config-file "$HERE/nanotron.yaml" \\
  "$@\""""

_HERE = """\
HERE="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"
NANOTRON_PATH="${NANOTRON_PATH:-.}"  # a checkout of huggingface/nanotron, with run_train.py
export CUDA_DEVICE_MAX_CONNECTIONS=1  # asynchronous tensor parallel gathers need it"""


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """The files by name, and ``hostfile`` when hosts are given."""
    files = {
        "nanotron.yaml": _yaml_text(problem, strategy, settings),
        "launch.sh": _launch_script(problem, strategy, settings),
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


def nanotron_config(problem: Problem, s: Strategy, settings: LaunchSettings) -> dict[str, Any]:
    """The whole configuration: nanotron has no defaults for most of it, and refuses keys that it does not know."""
    return {
        "checkpoints": {"checkpoint_interval": 1000, "checkpoints_path": "checkpoints", "resume_checkpoint_path": None},
        "data_stages": [
            {
                "name": "dummy data",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "shardwise", "run": settings.job_name, "seed": 42, "ignore_sanity_checks": True},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
        "model": {
            "ddp_bucket_cap_mb": 25,
            "dtype": DTYPES[problem.workload.dtype],
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": problem.runtime.vocab_multiple,
            "model_config": model_config(problem),
        },
        "optimizer": _optimizer(problem, s, settings),
        "parallelism": _parallelism(problem, s),
        "tokens": {
            "batch_accumulation_per_replica": s.num_microbatches,
            "micro_batch_size": s.micro_batch_size,
            "sequence_length": problem.workload.sequence_length,
            "train_steps": settings.train_iters,
        },
    }


def _parallelism(problem: Problem, s: Strategy) -> dict[str, Any]:
    return {
        "dp": s.dp,
        "pp": s.pp,
        "tp": s.tp,
        "expert_parallel_size": 1,
        "context_parallel_size": 1,
        "pp_engine": ENGINES[s.schedule],
        "tp_mode": "REDUCE_SCATTER" if s.sp else "ALL_REDUCE",
        "tp_linear_async_communication": s.tp_overlap,
        "tp_recompute_allgather": problem.runtime.sp_regather,
        "recompute_layer": s.recompute == "full",
    }


def _optimizer(problem: Problem, s: Strategy, settings: LaunchSettings) -> dict[str, Any]:
    adam = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-8, "name": "adamW", "torch_adam_is_fused": True}
    steps, warmup = settings.train_iters, settings.train_iters // 100
    return {
        "accumulate_grad_in_fp32": problem.runtime.grad_memory_bytes >= 4.0,
        "clip_grad": 1.0,
        "learning_rate_scheduler": {
            "learning_rate": 1.0e-4,
            "lr_decay_starting_step": None,
            "lr_decay_steps": max(steps - warmup, 1),
            "lr_decay_style": "cosine",
            "lr_warmup_steps": warmup,
            "lr_warmup_style": "linear",
            "min_decay_lr": 1.0e-5,
        },
        "optimizer_factory": adam if problem.workload.optimizer == "adam" else {"name": "sgd"},
        "weight_decay": 0.1,
        "zero_stage": s.zero,
    }


def _yaml_text(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    stages = s.layers_per_stage or (problem.model.num_layers,)
    notes = [
        "Trains on dummy data: name a data set under data_stages, and a tokenizer, for a real run.",
        f"nanotron divides the layers itself: {'/'.join(map(str, stages))} over {s.pp} stages."
        if s.pp > 1
        else "The rotary positions have no scaling: check rope_scaling before a real checkpoint is continued.",
    ]
    text = yaml.safe_dump(nanotron_config(problem, s, settings), sort_keys=False)
    return "\n".join(map(comment, notes)) + f"\n{text.rstrip()}\n"


def _launch_script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            _HERE,
            f"{heading('Start')}\n{_START.format(nodes=hosts.nodes, per_node=hosts.per_node)}",
        ]
    )


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    cluster, work = problem.cluster, problem.workload
    lines = [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, dp {s.dp}, pp {s.pp} ({s.schedule}), zero {s.zero}; {s.num_microbatches} micro-batches of "
        f"{s.micro_batch_size}.",
        "Written by shardwise for nanotron. Run it on every host with NODE_RANK set, or submit sbatch.sh.",
    ]
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines)])

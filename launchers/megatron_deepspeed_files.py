"""The launch files of Megatron-DeepSpeed: ``launch.sh`` (torchrun), ``ds_config.json`` and ``sbatch.sh`` (Slurm).

The arguments and the DeepSpeed settings are those of BLOOM's own job (bigscience ``train/tr11-176B-ml``). The training
script has no mock data, so the data set and the tokenizer are asked for.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .megatron_deepspeed_model import model_arguments
from .megatron_deepspeed_rules import can_fuse_softmax, partition_method
from .settings import LaunchSettings
from .shell import array, comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script

_CLIP = 1.0
"""Largest norm of the gradients: a setting of DeepSpeed, which clips, and of Megatron, which reports."""

_FP16: dict[str, Any] = {
    "enabled": True,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 12,
}
"""Dynamic loss scaling, as BigScience's fp16 jobs have it."""

Groups = list[tuple[str, list[str]]]


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """``launch.sh``, ``ds_config.json``, ``sbatch.sh`` and, when hosts are given, ``hostfile``."""
    files = {
        "launch.sh": _launch_script(problem, strategy, settings),
        "ds_config.json": json.dumps(deepspeed_config(problem, strategy), indent=2) + "\n",
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


def deepspeed_config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """DeepSpeed's settings; it derives the number of micro-batches from the two batch sizes."""
    half = {"bf16": {"enabled": True}} if problem.workload.dtype == "bf16" else {"fp16": _FP16}
    return {
        "train_micro_batch_size_per_gpu": s.micro_batch_size,
        "train_batch_size": problem.workload.global_batch_size,
        "gradient_clipping": _CLIP,
        "zero_optimization": {"stage": zero_stage(problem, s)},
        **half,
        "steps_per_print": 2000,
        "wall_clock_breakdown": False,
    }


def zero_stage(problem: Problem, s: Strategy) -> int:
    """DeepSpeed's number of the ZeRO stage: its bf16 optimizer divides its states by itself, under stage 0."""
    return 0 if problem.workload.dtype == "bf16" else s.zero


def megatron_deepspeed_arguments(
    problem: Problem, strategy: Strategy, settings: LaunchSettings | None = None
) -> list[str]:
    """The arguments of ``pretrain_gpt.py`` but data, tokenizer and the path of ``ds_config.json``."""
    groups = _argument_groups(problem, strategy, settings or LaunchSettings())
    return [argument for _, arguments in groups for argument in arguments]


def _argument_groups(problem: Problem, s: Strategy, settings: LaunchSettings) -> Groups:
    model = model_arguments(problem)
    return [
        ("SCHEDULE_ARGS", _schedule_arguments(problem, settings)),
        ("CHECK_ARGS", list(model.facts)),
        ("OUTPUT_ARGS", ["--log-interval", "1", "--eval-interval", "1000", "--eval-iters", "1"]),
        ("MODEL_ARGS", list(model.shape)),
        ("PARALLEL_ARGS", _parallel_arguments(problem, s)),
        ("RECOMPUTE_ARGS", _recompute_arguments(s)),
        ("STATE_ARGS", [f"--{problem.workload.dtype}", "--optimizer", problem.workload.optimizer]),
        ("DEEPSPEED_ARGS", ["--deepspeed", "--zero-stage", str(zero_stage(problem, s))]),
    ]


def _schedule_arguments(problem: Problem, settings: LaunchSettings) -> list[str]:
    iters = settings.train_iters
    args = ["--train-iters", str(iters), "--lr", "1e-4", "--min-lr", "1e-5", "--lr-decay-style", "cosine"]
    args += ["--lr-warmup-iters", str(iters // 100), "--weight-decay", "0.1", "--clip-grad", str(_CLIP)]
    args += ["--adam-beta1", "0.9", "--adam-beta2", "0.95", "--adam-eps", "1e-8"]
    # sqrt(1 / 3h), which BLOOM's job took from the 530B model: Megatron's own 0.02 is too large for wide models.
    args += ["--init-method-std", f"{(3 * problem.model.hidden_size) ** -0.5:.4f}", "--seed", "42"]
    # The cost model keeps the masks of dropout where the runtime profile says that there is dropout.
    rate = "0.1" if problem.runtime.dropout else "0.0"
    return [*args, "--attention-dropout", rate, "--hidden-dropout", rate]


def _parallel_arguments(problem: Problem, s: Strategy) -> list[str]:
    vocabulary = int(problem.padded_vocabulary(np.array([s.tp]))[0])
    args = ["--tensor-model-parallel-size", str(s.tp), "--pipeline-model-parallel-size", str(s.pp)]
    args += ["--pp-partition-method", partition_method(problem, s)]
    args += ["--micro-batch-size", str(s.micro_batch_size)]
    args += ["--global-batch-size", str(problem.workload.global_batch_size), "--distributed-backend", "nccl"]
    args += ["--make-vocab-size-divisible-by", str(problem.runtime.vocab_multiple)]
    args += ["--pad-vocab-size-to", str(vocabulary)]
    return [*args, "--abort-on-unmet-fused-kernel-constraints"] if can_fuse_softmax(problem) else args


def _recompute_arguments(s: Strategy) -> list[str]:
    if s.recompute == "none":
        return []
    return ["--checkpoint-activations", "--checkpoint-num-layers", "1", "--deepspeed-activation-checkpointing"]


# ---- the script

_YOURS = """\
Everything between here and the next rule is yours. There is no mock data: set DATA_PATH to the prefix of a data set
that tools/preprocess_data.py made, and TOKENIZER to the name or folder of its Hugging Face tokenizer."""

_USER_NOTES = {
    "SCHEDULE_ARGS": "Length of the run, learning rate and regularisation; --clip-grad is gradient_clipping of "
    "ds_config.json too.",
    "CHECK_ARGS": "Facts that the model description does not carry: check them before you continue a real checkpoint.",
    "OUTPUT_ARGS": "Logging; --save DIR --save-interval N keeps checkpoints, --kill-switch-path FILE stops early.",
}

_DATA = """\
DATA_PATH="${DATA_PATH:?set it to the prefix of a preprocessed data set}"
TOKENIZER="${TOKENIZER:?set it to the name or folder of a Hugging Face tokenizer}"
DATA_ARGS=(--data-path "$DATA_PATH" --data-impl mmap --tokenizer-type PretrainedFromHF)
DATA_ARGS+=(--tokenizer-name-or-path "$TOKENIZER")"""

_HERE = """\
HERE="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"
MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of bigscience-workshop/Megatron-DeepSpeed, with pretrain_gpt.py"""

_HANGS = """\
BLOOM's job on 48 hosts (PyTorch 1.11) hung unless CUDA_LAUNCH_BLOCKING=1 was exported, which cost it little."""

_UNFUSED = """\
scaling, mask and softmax run one after the other, slower than predicted: their fused kernel takes up to 2048 tokens"""


def _launch_script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    groups = _argument_groups(problem, s, settings)
    user = [f"{comment(_USER_NOTES[name])}\n{array(name, args)}" for name, args in groups if name in _USER_NOTES]
    planned = [array(name, args) for name, args in groups if name not in _USER_NOTES]
    config = 'DEEPSPEED_ARGS+=(--deepspeed_config "$HERE/ds_config.json")'
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            f"{heading('Yours to fill in')}\n{comment(_YOURS)}",
            _HERE,
            _DATA,
            *user,
            heading("The plan"),
            *planned,
            config,
            f"{heading('Start')}\n{comment(_HANGS)}\n{_start(hosts, ['DATA_ARGS', *(name for name, _ in groups)])}",
        ]
    )


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    cluster, work = problem.cluster, problem.workload
    lines = [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, dp {s.dp}, pp {s.pp} ({s.schedule}), zero {s.zero}; {s.num_microbatches} micro-batches of "
        f"{s.micro_batch_size}.",
        "Written by shardwise for BigScience's Megatron-DeepSpeed. Run it on every host with NODE_RANK set, or submit "
        "sbatch.sh.",
    ]
    notes = list(model_arguments(problem).assumptions)
    if not can_fuse_softmax(problem):
        notes.append(_UNFUSED)
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines), *(comment(f"Assumed: {note}.") for note in notes)])


def _start(hosts: Hosts, names: list[str]) -> str:
    arrays = " \\\n  ".join(f'${{{name}[@]+"${{{name}[@]}}"}}' for name in names)
    # PyTorch of that time knows these options with underscores only; newer releases take both.
    return (
        "exec torchrun \\\n"
        f"  --nnodes {hosts.nodes} --nproc_per_node {hosts.per_node} \\\n"
        '  --node_rank "${NODE_RANK:-0}" \\\n'
        '  --master_addr "${MASTER_ADDR:-localhost}" --master_port "${MASTER_PORT:-29500}" \\\n'
        '  "$MEGATRON_PATH/pretrain_gpt.py" \\\n'
        f"  {arrays} \\\n"
        '  "$@"'
    )

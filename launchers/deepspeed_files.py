"""The launch files of DeepSpeed: ``ds_config.json``, ``launch.sh`` (torchrun), ``sbatch.sh`` (Slurm), host files."""

from __future__ import annotations

import json
from typing import Any

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .deepspeed_pipeline import pipeline_settings
from .settings import LaunchSettings
from .shell import array, comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script

_YOURS = """\
Everything between here and the next rule is yours: TRAIN_SCRIPT is a script on the Trainer of Hugging Face
transformers, such as its run_clm.py, and MODEL what it trains: a folder or name with its config.json."""

_YOUR_PIPELINE = """\
Everything between here and the next rule is yours: TRAIN_SCRIPT is a script of your own that builds a
deepspeed.PipelineModule with what pipeline_settings.py gives it (a pipeline is code, not a setting), and takes the
arguments below; MODEL is what it trains."""

_LAUNCHER = """\
With DeepSpeed's own launcher: deepspeed --hostfile hostfile.deepspeed --num_gpus N SCRIPT and the same arguments."""


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """``launch.sh``, ``ds_config.json``, ``sbatch.sh``; for a pipeline ``pipeline_settings.py``; host files.

    The host files are Slurm's and DeepSpeed's, written when hosts are given.
    """
    files = {
        "launch.sh": _script(problem, strategy, settings),
        "ds_config.json": json.dumps(deepspeed_config(problem, strategy), indent=2) + "\n",
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if strategy.pp > 1:
        files["pipeline_settings.py"] = pipeline_settings(problem, strategy)
    if settings.hosts:
        slots = hosts_of(problem, settings).per_node
        files["hostfile"] = hostfile(settings)
        files["hostfile.deepspeed"] = "".join(f"{host} slots={slots}\n" for host in settings.hosts)
    return files


def deepspeed_config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """DeepSpeed's settings of a plan."""
    zero: dict[str, Any] = {"stage": s.zero, "overlap_comm": s.dp_overlap, "contiguous_gradients": True}
    if s.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    dtype = problem.workload.dtype
    config: dict[str, Any] = {
        "train_batch_size": problem.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": s.micro_batch_size,
        "gradient_accumulation_steps": s.num_microbatches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": dtype == "bf16"},
        "fp16": {"enabled": dtype == "fp16"},
        "zero_optimization": zero,
        "steps_per_print": 10,
    }
    if s.pp > 1:
        # Reentrant checkpoints would leave the embedding, whose input has no gradient, without one of its own.
        config["pipeline"] = {"activation_checkpoint_interval": int(s.recompute == "full"), "use_reentrant": False}
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}}
    if s.tp > 1:
        config["tensor_parallel"] = {"autotp_size": s.tp}
    if s.cp > 1:
        config["sequence_parallel_size"] = s.cp
    return config


def _groups(problem: Problem, s: Strategy) -> list[tuple[str, list[str]]]:
    if s.pp > 1:
        return [("MODEL_ARGS", ["--block_size", str(problem.workload.sequence_length)])]
    dtype = problem.workload.dtype
    batch = ["--per_device_train_batch_size", str(s.micro_batch_size)]
    batch += ["--gradient_accumulation_steps", str(s.num_microbatches)]
    batch += ["--block_size", str(problem.workload.sequence_length)]
    memory = ["--gradient_checkpointing", str(s.recompute == "full")]
    memory += [f"--{dtype}", "True"] if dtype != "fp32" else []
    return [("BATCH_ARGS", batch), ("MEMORY_ARGS", memory)]


def _script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    groups = _groups(problem, s)
    user = ["--max_steps", str(settings.train_iters)]
    if s.pp == 1:
        user += ["--do_train", "True", "--logging_steps", "1", "--save_strategy", "no", "--output_dir", "out"]
    here = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]:-.}")" && pwd)"'
    yours = 'TRAIN_SCRIPT="${TRAIN_SCRIPT:?set it to the training script}"\nMODEL="${MODEL:?set it to the model}"'
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            f"{heading('Yours to fill in')}\n{comment(_YOUR_PIPELINE if s.pp > 1 else _YOURS)}",
            f"{here}\n{yours}",
            array("USER_ARGS", user) + '\nUSER_ARGS+=(--model_name_or_path "$MODEL")',
            heading("The plan"),
            *(array(name, args) for name, args in groups),
            _settings_argument(s),
            f"{heading('Start')}\n{comment(_LAUNCHER)}\n{_start(hosts, [n for n, _ in groups])}",
        ]
    )


def _settings_argument(s: Strategy) -> str:
    if s.pp == 1:
        return 'DEEPSPEED_ARGS=(--deepspeed "$HERE/ds_config.json")'
    where = 'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"  # for pipeline_settings.py'
    return f'DEEPSPEED_ARGS=(--deepspeed_config "$HERE/ds_config.json")\n{where}'


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    cluster, work = problem.cluster, problem.workload
    frame = "under Hugging Face transformers" if s.pp == 1 else "and its PipelineModule"
    lines = [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, Ulysses {s.cp}, dp {s.dp}, pp {s.pp}, zero {s.zero}; {s.num_microbatches} micro-batches of "
        f"{s.micro_batch_size}, {s.recompute} recomputation.",
        f"Written by shardwise for DeepSpeed 0.19 {frame}. Run it on every host with NODE_RANK set, or submit "
        "sbatch.sh.",
    ]
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines)])


def _start(hosts: Hosts, names: list[str]) -> str:
    arrays = " \\\n  ".join(f'"${{{name}[@]}}"' for name in ("USER_ARGS", *names, "DEEPSPEED_ARGS"))
    return (
        "exec torchrun \\\n"
        f"  --nnodes {hosts.nodes} --nproc-per-node {hosts.per_node} \\\n"
        '  --node-rank "${NODE_RANK:-0}" \\\n'
        '  --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\\n'
        '  "$TRAIN_SCRIPT" \\\n'
        f"  {arrays} \\\n"
        '  "$@"'
    )

"""The launch files of torchtitan: ``launch.sh`` (torchrun), ``sbatch.sh`` (Slurm) and for a placement ``hostfile``."""

from __future__ import annotations

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from .settings import LaunchSettings
from .shell import array, comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script
from .torchtitan_rules import stage_weights
from .torchtitan_tables import RESHARD, SCHEDULES, shipped_for

Args = list[str]

_YOURS = """\
Everything between here and the next rule is yours: the defaults train on the test data that torchtitan brings, which
needs the tokenizer of the model in HF_ASSETS (scripts/download_hf_assets.py of torchtitan gets it)."""

_NO_GRAPHS = """\
torchtitan captures CUDA graphs unless told otherwise, which pipelines and the standard exchange of experts forbid."""


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """``launch.sh``, ``sbatch.sh`` and, when hosts are given, ``hostfile``."""
    files = {"launch.sh": _script(problem, strategy, settings), "sbatch.sh": sbatch_script(problem, settings)}
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


def torchtitan_arguments(problem: Problem, s: Strategy) -> Args:
    """The planned arguments of ``torchtitan.train``, the recomputation's subcommand last."""
    return [argument for _, arguments in _groups(problem, s) for argument in arguments]


def _groups(problem: Problem, s: Strategy) -> list[tuple[str, Args]]:
    shipped = shipped_for(problem.model)
    return [
        ("MODEL_ARGS", ["--module", shipped.module, "--config", shipped.config]),
        ("PARALLEL_ARGS", _parallel(problem, s)),
        ("TRAINING_ARGS", _training(problem, s)),
        # A subcommand, so it comes last; selective is the policy of torchtitan's own default.
        ("RECOMPUTE_ARGS", [f"activation-checkpoint:{s.recompute}"]),
    ]


def _parallel(problem: Problem, s: Strategy) -> Args:
    shards = (s.zero_group or s.dp * s.cp) // s.cp
    values: dict[str, object] = {
        "tensor_parallel_degree": s.tp,
        "context_parallel_degree": s.cp,
        "pipeline_parallel_degree": s.pp,
        "data_parallel_replicate_degree": s.dp // shards,
        "data_parallel_shard_degree": shards,
        "expert_parallel_degree": s.ep,
        "fsdp_reshard_after_forward": RESHARD[s.zero],
    }
    args = [word for name, value in values.items() for word in (f"--parallelism.{name}", str(value))]
    if s.tp > 1 and not s.sp:
        args.append("--parallelism.no-enable-sequence-parallel")
    return args + (_pipeline(problem, s) if s.pp > 1 else [])


def _pipeline(problem: Problem, s: Strategy) -> Args:
    weights = stage_weights(problem, s)
    assert weights is not None, "rule stage-weights"
    values: dict[str, object] = {
        "schedule": SCHEDULES[s.schedule],
        "microbatch_size": s.micro_batch_size,
        "first_stage_less_layers": weights.first,
        "last_stage_less_layers": weights.last,
    }
    if weights.layers_per_stage is not None:
        values["layers_per_stage"] = weights.layers_per_stage
    return [word for name, v in values.items() for word in (f"--parallelism.pipeline_parallel_{name}", str(v))]


def _training(problem: Problem, s: Strategy) -> Args:
    # A pipeline splits its local batch into micro-batches; without one they are steps of gradient accumulation.
    local = s.micro_batch_size * (s.num_microbatches if s.pp > 1 else 1)
    args = ["--training.local_batch_size", str(local)]
    args += ["--training.global_batch_size", str(problem.workload.global_batch_size)]
    args += ["--training.seq_len", str(problem.workload.sequence_length), "--compile.enable"]
    args += ["--compile.enable_async_tensor_parallel"] if s.tp_overlap else []
    graphs = problem.runtime.cuda_graphs and s.pp == 1 and s.ep == 1
    return args if graphs else [*args, "--training.disable_cuda_graphs"]


def _script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    user = ["--training.steps", str(settings.train_iters), "--metrics.log_freq", "1"]
    groups = [(name, array(name, args)) for name, args in _groups(problem, s)]
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            f"{heading('Yours to fill in')}\n{comment(_YOURS)}",
            'HF_ASSETS="${HF_ASSETS:?set it to the folder with the tokenizer of the model}"',
            array("USER_ARGS", user) + '\nUSER_ARGS+=(--hf_assets_path "$HF_ASSETS")',
            f"{heading('The plan')}\n{comment(_NO_GRAPHS)}",
            *(text for _, text in groups),
            f"{heading('Start')}\n{_start(hosts, [name for name, _ in groups])}",
        ]
    )


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    cluster, work = problem.cluster, problem.workload
    lines = [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, cp {s.cp}, dp {s.dp}, pp {s.pp} x {s.vpp} ({s.schedule}), ep {s.ep}, zero {s.zero}; "
        f"{s.num_microbatches} micro-batches of {s.micro_batch_size}.",
        "Written by shardwise for torchtitan 0.3. Run it on every host with NODE_RANK set, or submit sbatch.sh.",
    ]
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines)])


def _start(hosts: Hosts, names: list[str]) -> str:
    first, last = names[:-1], names[-1]
    arrays = " \\\n  ".join(f'"${{{name}[@]}}"' for name in (first[0], "USER_ARGS", *first[1:]))
    return (
        "exec torchrun \\\n"
        f"  --nnodes {hosts.nodes} --nproc-per-node {hosts.per_node} \\\n"
        '  --node-rank "${NODE_RANK:-0}" \\\n'
        '  --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\\n'
        "  -m torchtitan.train \\\n"
        f"  {arrays} \\\n"
        f'  "$@" "${{{last}[@]}}"'
    )

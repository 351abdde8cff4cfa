"""The launch files of Megatron-LM: ``launch.sh`` (torchrun), ``sbatch.sh`` (Slurm), for a placement ``hostfile``."""

from __future__ import annotations

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy

from . import megatron_plan as plan
from .megatron_model import ModelArguments, model_arguments
from .settings import LaunchSettings
from .shell import array, comment, file_of, heading
from .slurm import Hosts, hostfile, hosts_of, sbatch_script

_YOURS = """\
Everything between here and the next rule is yours: the defaults run as they are, on mock data and without saving a
checkpoint."""


def write_files(problem: Problem, strategy: Strategy, settings: LaunchSettings) -> dict[str, str]:
    """``launch.sh``, ``sbatch.sh`` and, when hosts are given, ``hostfile``."""
    files = {
        "launch.sh": _launch_script(problem, strategy, settings),
        "sbatch.sh": sbatch_script(problem, settings),
    }
    if settings.hosts:
        files["hostfile"] = hostfile(settings)
    return files


def megatron_arguments(problem: Problem, strategy: Strategy, settings: LaunchSettings | None = None) -> list[str]:
    """The argument list that ``launch.sh`` passes to ``pretrain_gpt.py``."""
    groups = argument_groups(problem, strategy, settings or LaunchSettings())
    return [argument for _, arguments in groups for argument in arguments]


Groups = list[tuple[str, list[str]]]


def argument_groups(problem: Problem, s: Strategy, settings: LaunchSettings) -> Groups:
    """The same in groups by what they are about, each with the name of its array in the script."""
    model = model_arguments(problem)
    return [
        *_user_groups(problem, settings, model),
        ("MODEL_ARGS", list(model.shape)),
        ("PARALLEL_ARGS", [*plan.parallel_arguments(problem, s), *_tuned(settings)]),
        ("RECOMPUTE_ARGS", plan.recompute_arguments(problem, s)),
        ("STATE_ARGS", plan.state_arguments(problem, s)),
        ("PRECISION_ARGS", plan.precision_arguments(problem) + plan.graph_arguments(problem, s)),
    ]


def _tuned(settings: LaunchSettings) -> list[str]:
    """What a refinement found beyond the layout."""
    group, buckets = settings.microbatch_group, settings.buckets
    args = ["--microbatch-group-size-per-virtual-pipeline-stage", str(group)] if group else []
    return [*args, *(["--ddp-num-buckets", str(buckets)] if buckets else [])]


def _user_groups(problem: Problem, settings: LaunchSettings, model: ModelArguments) -> Groups:
    iters = settings.train_iters
    schedule = ["--train-iters", str(iters), "--lr", "1e-4", "--min-lr", "1e-5", "--lr-decay-style", "cosine"]
    schedule += ["--lr-warmup-iters", str(iters // 100), "--weight-decay", "0.1", "--clip-grad", "1.0"]
    schedule += ["--adam-beta1", "0.9", "--adam-beta2", "0.95", "--init-method-std", "0.02"]
    schedule += ["--attention-dropout", "0.0", "--hidden-dropout", "0.0"]
    return [
        ("DATA_ARGS", ["--mock-data"]),
        ("TOKENIZER_ARGS", ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(problem.model.vocab_size)]),
        ("SCHEDULE_ARGS", schedule),
        ("CHECK_ARGS", list(model.facts)),
        ("OUTPUT_ARGS", ["--log-interval", "1", "--eval-iters", "0", "--log-throughput"]),
    ]


_USER_NOTES = {
    "DATA_ARGS": "Data: for example --data-path PREFIX --split 99,1,0 instead of --mock-data.",
    "TOKENIZER_ARGS": "Tokenizer: for example --tokenizer-type HuggingFaceTokenizer --tokenizer-model DIR.",
    "SCHEDULE_ARGS": "Length of the run, learning rate and regularisation.",
    "CHECK_ARGS": "Facts that the model description does not carry: check them before you continue a real checkpoint.",
    "OUTPUT_ARGS": "Logging; add --save DIR --save-interval N to keep checkpoints.",
}


def _launch_script(problem: Problem, s: Strategy, settings: LaunchSettings) -> str:
    hosts = hosts_of(problem, settings)
    groups = argument_groups(problem, s, settings)
    user = [f"{comment(_USER_NOTES[name])}\n{array(name, args)}" for name, args in groups if name in _USER_NOTES]
    planned = [array(name, args) for name, args in groups if name not in _USER_NOTES]
    return file_of(
        [
            _head(problem, s, hosts),
            "set -euo pipefail",
            f"{heading('Yours to fill in')}\n{comment(_YOURS)}",
            'MEGATRON_PATH="${MEGATRON_PATH:-.}"  # a checkout of Megatron-LM core 0.19, with pretrain_gpt.py',
            *user,
            f"{heading('The plan')}\n{exports(problem, s)}",
            *planned,
            f"{heading('Start')}\n{_start(hosts, [name for name, _ in groups])}",
        ]
    )


def summary(problem: Problem, s: Strategy, hosts: Hosts) -> list[str]:
    """The job and its layout in two sentences, for the head of a file."""
    cluster, work = problem.cluster, problem.workload
    return [
        f"{problem.model.name} on {cluster.num_gpus} x {cluster.accelerator.name} ({hosts.nodes} hosts of "
        f"{hosts.per_node}): {work.global_batch_size} sequences of {work.sequence_length} tokens a step.",
        f"tp {s.tp}, cp {s.cp}, dp {s.dp}, pp {s.pp} x {s.vpp} ({s.schedule}), ep {s.ep}, etp {s.etp}, edp {s.edp}, "
        f"zero {s.zero}; {s.num_microbatches} micro-batches of {s.micro_batch_size}.",
    ]


def _head(problem: Problem, s: Strategy, hosts: Hosts) -> str:
    lines = [
        *summary(problem, s, hosts),
        "Written by shardwise for Megatron-LM (Megatron-Core 0.19). Run it on every host with NODE_RANK set, or submit "
        "sbatch.sh.",
    ]
    notes = [comment(f"Assumed: {note}.") for note in model_arguments(problem).assumptions]
    return "\n".join(["#!/usr/bin/env bash", *map(comment, lines), *notes])


def exports(problem: Problem, s: Strategy) -> str:
    """Shell lines that set the environment, or make sure that a variable is not set."""
    variables = plan.environment(problem, s)
    return "\n".join(f"unset {k}" if v is None else f"export {k}={v}" for k, v in sorted(variables.items()))


def _start(hosts: Hosts, names: list[str]) -> str:
    arrays = " \\\n  ".join(f'${{{name}[@]+"${{{name}[@]}}"}}' for name in names)
    return torchrun(hosts, f'"$MEGATRON_PATH/pretrain_gpt.py" \\\n  {arrays}')


def torchrun(hosts: Hosts, script: str) -> str:
    """The command that starts a script on this host, with a static rendezvous, and hands it what it was given."""
    return (
        "exec torchrun \\\n"
        f"  --nnodes {hosts.nodes} --nproc-per-node {hosts.per_node} \\\n"
        '  --node-rank "${NODE_RANK:-0}" \\\n'
        '  --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \\\n'
        f"  {script} \\\n"
        '  "$@"'
    )

"""A Slurm batch script that starts one torchrun per host."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.hostlist import compress, natural

from .settings import LaunchSettings
from .shell import comment, file_of


@dataclass(frozen=True, slots=True)
class Hosts:
    """How many hosts there are and how many accelerators each has."""

    nodes: int
    per_node: int


def hosts_of(problem: Problem, settings: LaunchSettings) -> Hosts:
    """Hosts of the job. Raises InputError when the cluster is no whole number of hosts."""
    gpus = problem.cluster.num_gpus
    per_node = min(settings.gpus_per_node or problem.cluster.node_size, gpus)
    if gpus % per_node:
        raise InputError(f"{problem.cluster.name}: {gpus} GPUs are no whole number of hosts with {per_node}")
    nodes = gpus // per_node
    if settings.hosts and len(settings.hosts) != nodes:
        raise InputError(f"launch settings: {len(settings.hosts)} hosts: expected {nodes} with {per_node} GPUs each")
    return Hosts(nodes, per_node)


def sbatch_script(problem: Problem, settings: LaunchSettings, script: str = "launch.sh") -> str:
    """``sbatch.sh``: allocates the hosts and runs ``script`` once on each with its rank and the master's address."""
    return sbatch_of(hosts_of(problem, settings), settings, script)


def sbatch_of(hosts: Hosts, settings: LaunchSettings, script: str = "launch.sh") -> str:
    """The same for hosts that are known; named hosts are asked for by name."""
    named = [f"#SBATCH --nodelist={compress(sorted(settings.hosts, key=natural))}"] if settings.hosts else []
    directives = [
        f"#SBATCH --job-name={settings.job_name}",
        f"#SBATCH --nodes={hosts.nodes}",
        *named,
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={hosts.per_node}",
        "#SBATCH --exclusive",
        f"#SBATCH --time={settings.time_limit}",
        "#SBATCH --output=%x-%j.log",
    ]
    head = "#!/usr/bin/env bash\n" + "\n".join(directives)
    return file_of([head, "set -euo pipefail", *_start(hosts, settings, script)])


def _start(hosts: Hosts, settings: LaunchSettings, script: str) -> list[str]:
    folder = comment("Submit it from the folder that holds the files: Slurm runs a copy of it from elsewhere.")
    here = folder + '\nHERE="${SLURM_SUBMIT_DIR:-$(cd "$(dirname "$0")" && pwd)}"'
    # Ranks follow the host file, not the allocation's own order, so the rank of a host is that of its task.
    order = ['export SLURM_HOSTFILE="$HERE/hostfile"', 'read -r MASTER_ADDR <"$SLURM_HOSTFILE"']
    plain = ['read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")']
    port = 'export MASTER_PORT="${MASTER_PORT:-29500}"'
    lines = [here, *(order if settings.hosts else plain), "export MASTER_ADDR", port]
    distribution = "arbitrary" if settings.hosts else "block"
    run = f"exec bash {shlex.quote(script)}"
    note = comment(
        "One torchrun per host, with all of its cores. A static rendezvous keeps the order of the hosts (c10d would "
        "sort them)."
    )
    command = (
        # One task a host in an allocation of any shape: an interactive one may have asked for more.
        f"srun --nodes={hosts.nodes} --ntasks={hosts.nodes} --ntasks-per-node=1 --distribution={distribution} \\\n"
        "  --cpu-bind=none --kill-on-bad-exit=1 bash -c \\\n"
        f'  \'cd "$1" && NODE_RANK=$SLURM_PROCID {run} "${{@:2}}"\' _ "$HERE" "$@"'
    )
    return ["\n".join(lines), f"{note}\n{command}"]


def hostfile(settings: LaunchSettings) -> str:
    """One host per line in rank order."""
    return "\n".join(settings.hosts) + "\n"

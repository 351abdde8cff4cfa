"""The files that make a placement happen: host files by launcher, node ranks, and who each rank is."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .ranks import rank_coordinates
from .settings import LaunchSettings
from .shell import comment, file_of
from .slurm import Hosts, sbatch_of

_COLUMNS = ("pp", "dp", "cp", "ep", "tp", "etp", "edp")


def placement_files(hosts: Sequence[str], gpus_per_node: int, strategy: Strategy) -> dict[str, str]:
    """Files by name for hosts in rank order, each with ``gpus_per_node`` ranks.

    ``hostfile``: one host a line, in the order of node ranks: Slurm's ``SLURM_HOSTFILE`` for one task a node.
    ``hostfile.tasks``: one host a line for each rank: the same for one task a GPU.
    ``hostfile.mpi``: ``HOST slots=N`` lines. ``rankfile``: Open MPI's, one ``rank N=HOST slot=S`` line a rank.
    ``node_rank.sh``: runs a command with NODE_RANK, NNODES and MASTER_ADDR for this host, as static torchrun needs.
    ``sbatch.sh``: asks Slurm for these very hosts and starts ``launch.sh`` on them in this order.
    ``ranks.csv``: host and local rank of every rank, and its place in every parallel dimension.

    Raises InputError where the hosts do not hold the strategy's ranks.
    """
    if len(hosts) * gpus_per_node != strategy.world_size:
        raise InputError(
            f"{len(hosts)} hosts of {gpus_per_node}: expected {strategy.world_size} ranks, tp·cp·dp·pp of the strategy"
        )
    settings = LaunchSettings(hosts=tuple(hosts))
    return {
        "hostfile": "".join(f"{host}\n" for host in hosts),
        "hostfile.tasks": "".join(f"{host}\n" * gpus_per_node for host in hosts),
        "hostfile.mpi": "".join(f"{host} slots={gpus_per_node}\n" for host in hosts),
        "rankfile": _rankfile(hosts, gpus_per_node),
        "node_rank.sh": _node_rank_script(),
        "sbatch.sh": sbatch_of(Hosts(len(hosts), gpus_per_node), settings),
        "ranks.csv": rank_table(hosts, gpus_per_node, strategy),
    }


def _rankfile(hosts: Sequence[str], each: int) -> str:
    note = "# slot is the core that a rank is bound to: write a range, such as 0-11, where ranks have more cores.\n"
    lines = (f"rank {i * each + slot}={host} slot={slot}\n" for i, host in enumerate(hosts) for slot in range(each))
    return note + "".join(lines)


def rank_table(hosts: Sequence[str], each: int, strategy: Strategy) -> str:
    """CSV of every rank: host, local rank, and its index in each dimension of the dense and the expert mesh."""
    places = rank_coordinates(strategy)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("rank", "host", "local_rank", *_COLUMNS))
    columns = [places[name].tolist() for name in _COLUMNS]
    for rank, row in enumerate(zip(*columns, strict=True)):
        writer.writerow((rank, hosts[rank // each], rank % each, *row))
    return out.getvalue()


def _node_rank_script() -> str:
    notes = [
        "Runs a command on this host with its place in the order of hostfile: bash node_rank.sh bash launch.sh",
        "HOST_NAME names the host where hostname -s does not. A static rendezvous keeps this order; c10d would sort.",
    ]
    body = """\
HERE="$(cd "$(dirname "$0")" && pwd)"
HOST="${HOST_NAME:-$(hostname -s)}"
LINE="$(grep -nxF -- "$HOST" "$HERE/hostfile" | head -n 1 | cut -d: -f1 || true)"
if [[ -z "$LINE" ]]; then
  echo "node_rank.sh: $HOST is not in $HERE/hostfile" >&2
  exit 2
fi
export NODE_RANK=$((LINE - 1))
NNODES="$(grep -c . "$HERE/hostfile")"
MASTER_ADDR="$(head -n 1 "$HERE/hostfile")"
export NNODES MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"
exec "$@\""""
    return file_of(["\n".join(["#!/usr/bin/env bash", *map(comment, notes)]), "set -euo pipefail", body])

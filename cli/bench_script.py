"""The script that measures a cluster: nccl-tests for each group size, and a sweep of kernels."""

from __future__ import annotations

from pathlib import Path

KERNELS = Path(__file__).with_name("bench_kernels.py")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv")

_HEAD = """\
#!/usr/bin/env bash
# Measures a cluster for `shardwise calibrate`{about}.
# Start it inside a Slurm allocation of whole nodes, or set RUN to your own launcher. It needs nccl-tests or rccl-tests
# built with MPI=1, in NCCL_TESTS, and a Python with PyTorch.
set -euo pipefail
NCCL_TESTS=${{NCCL_TESTS:-./nccl-tests/build}}
OUT=${{OUT:-measured}}
PYTHON=${{PYTHON:-python3}}
# How N ranks on M nodes are started; mpirun: RUN='mpirun -np $ranks -N $((ranks / nodes))'
RUN=${{RUN:-'srun --nodes=$nodes --ntasks=$ranks --ntasks-per-node=$((ranks / nodes)) --gpus-per-task=1'}}
mkdir -p "$OUT"

measure() {{ # operation, nodes, ranks, largest message
  local nodes=$2 ranks=$3
  echo "$1: $ranks ranks on $nodes nodes" >&2
  eval "$RUN" "$NCCL_TESTS/$1_perf" -b 1K -e "$4" -f 2 -g 1 -n 20 -w 5 > "$OUT/$1_${{ranks}}_on_$nodes.txt"
}}
"""


def bench_script(cluster: str | None) -> str:
    """A shell script, the kernel sweep inside it. ``cluster``: a profile whose node size and tiers decide the groups.

    Raises InputError where that cannot be read.
    """
    node, domain, nodes, about, name = 8, 8, [2, 4, 8], "", "dgx-h100"
    if cluster is not None:
        from shardwise.hardware_profiles.load_cluster import load_cluster

        found = load_cluster(cluster)
        node, domain, name = found.node_size, found.tiers[0].size, cluster
        about = f" from the profile {cluster}"
        most = max(1, found.tiers[-1].size // node)
        nodes = [n for n in (2, 4, 8, 16, 32) if n <= most]
    lines = [_HEAD.format(about=about), "# Inside a node: every group that tensor or expert parallelism may take."]
    lines += [f"measure {op} 1 {ranks} 4G" for ranks in _powers(node) for op in OPERATIONS]
    lines.append("\n# Between nodes: whole nodes, then one rank a node, as data parallelism across nodes sends.")
    lines.append("available=${SLURM_JOB_NUM_NODES:-1}")
    lines.append(f"for nodes in {' '.join(map(str, nodes))}; do")
    lines.append('  [ "$nodes" -le "$available" ] || break')
    for op in OPERATIONS:
        lines.append(f"  measure {op} $nodes $((nodes * {node})) 8G")
    lines.append("  measure all_reduce $nodes $nodes 2G")
    lines.append("done")
    if domain > node:
        lines.append(
            f"# A scale-up domain joins {domain} accelerators here: name the racks, LOG:domains=N, to calibrate."
        )
    lines.append("\n# One accelerator: GEMMs and attention.")
    lines.append("cat > \"$OUT/bench_kernels.py\" <<'PYTHON_SOURCE'")
    lines.append(KERNELS.read_text(encoding="utf-8").rstrip("\n"))
    lines.append("PYTHON_SOURCE")
    lines.append('"$PYTHON" "$OUT/bench_kernels.py" ${TINY:+--tiny} > "$OUT/kernels.jsonl"\n')
    lines.append('echo "now run:" >&2')
    lines.append(
        f'echo "  shardwise calibrate --cluster {name} --nccl $OUT/*.txt --gemm $OUT/kernels.jsonl'
        ' --attention $OUT/kernels.jsonl --out my-cluster.yaml" >&2'
    )
    return "\n".join(lines) + "\n"


def _powers(node: int) -> list[int]:
    """Group sizes inside a node: powers of two, and the node itself."""
    sizes = [1 << p for p in range(1, 10) if 1 << p <= node]
    return sizes if node in sizes or node < 2 else [*sizes, node]

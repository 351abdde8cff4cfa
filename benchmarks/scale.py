"""Planning from 8 to 131,072 GPUs: time, memory, strategies and gap: ``python benchmarks/scale.py [--write FILE]``.

Processor seconds on one core. Each size runs in a process of its own: the first plan is cold (imports included), the
second warm. ``--write`` puts the tables into a page, with the machine and the date.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SIZES = (8, 32, 128, 512, 2048, 8192, 16384, 32768, 131072)
WARM_S, WARM_LARGEST_S, RSS_MIB = 1.0, 3.0, 1024.0
"""Bounds: a warm plan up to 16,384 GPUs and at 131,072, and the peak resident memory."""


@dataclass(frozen=True)
class Case:
    """A model on a cluster; ``batch`` sequences of ``sequence`` tokens, more where the GPUs need more."""

    model: str
    cluster: str
    batch: int
    sequence: int
    dtype: str

    def batch_for(self, gpus: int) -> int:
        return max(self.batch, gpus // 8)


CASES = (
    Case("llama-3.1-405b", "dgx-h100", 2048, 8192, "bf16"),
    Case("deepseek-v3", "h800-mpft", 15360, 4096, "fp8_block"),
)

_CHILD = """
import json, resource, sys, time
model, cluster, gpus, batch, sequence, dtype = json.loads(sys.argv[1])
import shardwise
times = []
for turn in range(3):
    start = time.process_time() if turn else 0.0
    try:
        plan = shardwise.plan(model, cluster, shardwise.Workload(batch, sequence, dtype=dtype), num_gpus=gpus,
                              refine_trials=0)
        proof = plan.proof.as_dict()
    except shardwise.InfeasibleError as error:
        proof = None
    times.append(time.process_time() - start)
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"cold": times[0], "warm": min(times[1:]), "rss": rss, "proof": proof}))
"""


def measure(case: Case, gpus: int) -> dict[str, object]:
    """One size in a process of its own."""
    given = [case.model, case.cluster, gpus, case.batch_for(gpus), case.sequence, case.dtype]
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(given)], env={**os.environ, **single}, capture_output=True, check=True
    )
    return dict(json.loads(done.stdout))


HEAD = (
    "| GPUs | batch | strategies | evaluated | cold s | warm s | growth | peak MiB | gap |",
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def row(case: Case, gpus: int, got: dict[str, object], before: float | None) -> str:
    """One line of the table; growth is the warm time over that of the size before."""
    proof, warm = got["proof"], float(str(got["warm"]))
    growth = "" if before is None else f"{warm / before:.2f}×"
    if not isinstance(proof, dict):
        counts = ("", "", "nothing fits")
    else:
        counts = (f"{proof['considered']:,}", f"{proof['evaluated']:,}", f"{proof['gap']:.2%}")
    cells = (f"{gpus:,}", f"{case.batch_for(gpus):,}", *counts[:2], f"{float(str(got['cold'])):.2f}", f"{warm:.2f}")
    return "| " + " | ".join((*cells, growth, f"{float(str(got['rss'])):.0f}", counts[2])) + " |"


def table(case: Case, sizes: tuple[int, ...]) -> tuple[list[str], bool]:
    """The lines of one case and whether the bounds hold."""
    lines, before, fine = [*HEAD], None, True
    for gpus in sizes:
        got = measure(case, gpus)
        lines.append(row(case, gpus, got, before))
        print(lines[-1], flush=True)
        before = float(str(got["warm"]))
        limit = WARM_S if gpus <= 16384 else WARM_LARGEST_S
        fine &= before <= limit and float(str(got["rss"])) <= RSS_MIB
    return lines, fine


def machine() -> str:
    """The processor, as the kernel names it."""
    info = Path("/proc/cpuinfo")
    names = (
        [x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if x.startswith("model name")]
        if (info.exists())
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def main() -> int:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    parser.add_argument("--sizes", type=lambda x: tuple(map(int, x.split(","))), default=SIZES, help="GPU counts")
    given = parser.parse_args()
    out, fine = [], True
    for case in CASES:
        print(f"{case.model} on {case.cluster}")
        lines, holds = table(case, given.sizes)
        out += ["", f"## {case.model} on {case.cluster}, {case.dtype}, sequences of {case.sequence:,}", "", *lines]
        fine &= holds
    if given.write:
        load = f"{os.getloadavg()[1]:.0f} processes at a time on {os.cpu_count()} cores"
        when = time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
        head = ["# How planning scales", "", INTRODUCTION.format(machine=machine(), when=when, load=load)]
        given.write.write_text("\n".join([*head, *out, ""]))
    return int(given.check and not fine)


INTRODUCTION = """Written by `python benchmarks/scale.py --write docs/scale.md` on one core of {machine}, {when}.
The machine ran {load} meanwhile:
with more processes than cores, processor time reads up to twice that of an idle machine.

Seconds are processor time for a whole `plan()` with its proof and explanations and without refinement. *Cold* is the
first plan of a process, with interpreter and imports; *warm* is the quicker of two more. *Strategies* are those of the
declared axes; *evaluated* those whose step and memory were computed; a rule or a bound on a relative removed the rest.
*Growth* is the warm time over that of the row above. Without a time limit a plan ends once its gap is small
([how it decides](how-it-decides.md#search)), so a gap may remain."""


if __name__ == "__main__":
    sys.exit(main())

"""Speed and memory against the bounds that shardwise holds itself to: ``python benchmarks/speed.py [--check]``.

Processor seconds, not wall seconds, so that a busy machine disturbs little. ``--check`` exits 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PLAN_S, IMPORT_S, STRATEGIES_PER_S, RSS_BYTES = 3.0, 0.3, 500_000.0, 1024.0**3
PLAN = ["plan", "--model", "deepseek-v3", "--cluster", "h800-mpft", "--gpus", "16384", "--json"]
PLAN += ["--global-batch", "16384", "--seq-len", "4096", "--dtype", "fp8_block"]


@dataclass(frozen=True)
class Line:
    """One measured figure, its bound, and whether more is better."""

    name: str
    value: float
    unit: str
    bound: float
    more_is_better: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.more_is_better else self.value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.more_is_better else "≤"
        verdict = "" if self.holds else "  MISSED"
        figure = f"{self.value:>14,.2f} {self.unit:<14}"
        return f"{self.name:<44}{figure}{sign} {self.bound:,.4g}   {self.value / self.bound:6.2f} of the bound{verdict}"


def run(argv: list[str]) -> tuple[float, float, float]:
    """Processor seconds, wall seconds and peak resident bytes of one process and its children."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code:
        raise SystemExit(f"{' '.join(argv)}: exit code {code}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss * 1024.0


def import_s() -> float:
    """Processor seconds that ``import shardwise`` adds to a bare interpreter, median of five."""
    bare = [run([sys.executable, "-c", "pass"])[0] for _ in range(5)]
    full = [run([sys.executable, "-c", "import shardwise"])[0] for _ in range(5)]
    return statistics.median(full) - statistics.median(bare)


def strategies_per_s() -> float:
    """Strategies per processor second of ``evaluate`` on arrays of about 100,000, best of three."""
    from shardwise.costmodel.evaluate import evaluate
    from shardwise.costmodel.model import ModelSpec
    from shardwise.costmodel.problem import Problem
    from shardwise.costmodel.runtime import load_runtime
    from shardwise.costmodel.strategy import Strategies, Strategy
    from shardwise.costmodel.workload import Workload
    from shardwise.hardware_profiles.load_cluster import load_cluster

    problem = Problem(
        ModelSpec.from_preset("deepseek-v3"),
        load_cluster("h800-mpft", 2048),
        Workload(global_batch_size=15360, sequence_length=4096),
        load_runtime("megatron-core"),
    )
    shapes = [
        (tp, pp, ep, mbs) for tp in (1, 2, 4, 8) for pp in (4, 8, 16) for ep in (8, 16, 32, 64) for mbs in (1, 2, 4)
    ]
    base = [
        Strategy(tp=tp, sp=tp > 1, pp=pp, ep=ep, micro_batch_size=mbs, zero=zero, recompute=recompute).with_batch(
            2048, 61440
        )
        for tp, pp, ep, mbs in shapes
        for zero in (1, 2)
        for recompute in ("none", "selective", "full")
    ]
    many = Strategies.concatenate([Strategies.of(base)] * max(1, 100_000 // len(base)))
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        evaluate(problem, many)
        best = min(best, time.process_time() - start)
    return len(many) / best


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    check = parser.parse_args().check
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    command = shutil.which("shardwise", path=str(Path(sys.executable).parent)) or "shardwise"
    cpu_s, wall_s, rss = run([command, *PLAN])
    lines = [
        Line("import shardwise", import_s(), "s", IMPORT_S),
        Line("cold plan, DeepSeek-V3 on 16,384 GPUs, CPU", cpu_s, "s", PLAN_S),
        Line("cold plan, peak resident memory", rss / 2**20, "MiB", RSS_BYTES / 2**20),
        Line("evaluate on one core", strategies_per_s(), "strategies/s", STRATEGIES_PER_S, more_is_better=True),
    ]
    for line in lines:
        print(line)
    print(f"(cold plan took {wall_s:.2f} s of wall time)")
    return int(check and not all(line.holds for line in lines))


if __name__ == "__main__":
    sys.exit(main())

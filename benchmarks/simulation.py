"""How quickly steps are simulated: ``python benchmarks/simulation.py [--check]``.

Processor seconds, not wall seconds. ``--check`` exits 1 when fewer than ``TRIALS_PER_S`` steps are simulated a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.simulation import Simulator
from shardwise.costmodel.simulation.graph import graph
from shardwise.costmodel.workload import Workload
from shardwise.search.planner import estimate

TRIALS_PER_S = 200.0
BATCH = 100
LAYOUTS = (
    ("1f1b", "schedule=1f1b"),
    ("gpipe", "schedule=gpipe,recompute=full"),
    ("interleaved 4", "schedule=interleaved,vpp=4"),
    ("zb-h1", "schedule=zb-h1"),
    ("zb-v", "schedule=zb-v,vpp=2"),
    ("dualpipe", "schedule=dualpipe"),
)


def cpu_s(what: Callable[[], object], times: int) -> float:
    """Processor seconds of one call, the first (which builds the graph) left out."""
    what()
    start = time.process_time()
    for _ in range(times):
        what()
    return (time.process_time() - start) / times


def measured(layout: str) -> tuple[Estimate, float, float, float]:
    """The closed form, steps simulated a second one by one and by the hundred, and the simulated step."""
    workload = Workload(1024, 8192)
    closed = estimate("llama-3.1-405b", "dgx-h100", workload, f"tp=8,sp=on,pp=16,mbs=1,{layout}", num_gpus=2048)
    strategy = closed.strategy
    simulator = Simulator(closed.problem)
    one = cpu_s(lambda: simulator.step_s(strategy), 50)
    known = graph(strategy.schedule, strategy.pp, strategy.vpp, strategy.num_microbatches)
    trials = np.random.default_rng(0).uniform(0.9, 1.1, (len(known), BATCH))
    many = cpu_s(lambda: known.ends_s(trials), 3) / BATCH
    return closed, 1.0 / one, 1.0 / many, simulator.step_s(strategy)


def main() -> None:
    """Print one line per schedule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    check = parser.parse_args().check
    print("Llama-3.1-405B, 2,048 H100, pp 16, 64 micro-batches; steps a second on one core")
    slowest = np.inf
    for name, layout in LAYOUTS:
        closed, one, many, step = measured(layout)
        slowest = min(slowest, one)
        print(
            f"{name:<14}{one:>8,.0f} one by one {many:>9,.0f} by the hundred   {step:.3f} s simulated, "
            f"{closed.step_time_s:.3f} s closed form ({step / closed.step_time_s - 1.0:+.2%})"
        )
    print(f"slowest: {slowest / TRIALS_PER_S:.1f} times the bound of {TRIALS_PER_S:,.0f}")
    if check and slowest < TRIALS_PER_S:
        sys.exit(1)


if __name__ == "__main__":
    main()

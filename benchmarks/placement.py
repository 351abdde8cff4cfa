"""What placement gains on ragged allocations, and how long proofs take: the tables of docs/placement.md.

Run ``python benchmarks/placement.py`` for the tables, with ``--write`` to put them into the page. Allocations are drawn
with fixed seeds; node names follow the switches, as a site numbers its racks, so the sorted order is a good one.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import shardwise
from shardwise.hardware_profiles.hostlist import compress
from shardwise.hardware_profiles.load_topology import parse_topology
from shardwise.search.placement import Placement

Groups = list[list[str]]

PAGE = Path(__file__).parent.parent / "docs" / "placement.md"


@dataclass(frozen=True)
class Plan:
    """A plan to place: model, profile, nodes, batch and settings."""

    model: str
    cluster: str
    nodes: int
    workload: shardwise.Workload
    settings: str
    spine: float = 1.0
    """Oversubscription of the tiers above the leaves, where it is not the profile's own."""

    def estimate(self) -> shardwise.Estimate:
        system = shardwise.load_cluster(self.cluster)
        if self.spine > 1.0:
            outer = [replace(t, oversubscription=self.spine) for t in system.tiers[2:]]
            system = replace(system, name=f"{system.name}, spine {self.spine:g} : 1", tiers=(*system.tiers[:2], *outer))
        gpus = self.nodes * system.node_size
        return shardwise.estimate(self.model, system, self.workload, self.settings, num_gpus=gpus)


W = shardwise.Workload
DENSE = Plan("llama-3.1-70b", "dgx-h100", 64, W(1024, 8192), "tp=8,pp=4,mbs=1", spine=4.0)
FLAT = Plan("llama-3.1-70b", "dgx-h100", 64, W(1024, 8192), "tp=8,pp=4,mbs=1")
SHARDED = Plan("llama-3.1-8b", "dgx-h100", 48, W(768, 8192), "tp=1,mbs=1,zero=3,zero_group=64", spine=4.0)
EXPERTS = Plan("mixtral-8x22b", "dgx-h100", 48, W(768, 4096), "tp=4,pp=4,ep=8,etp=4,mbs=1", spine=4.0)
WIDE = Plan("deepseek-v3", "dgx-h100", 64, W(2048, 4096), "pp=8,ep=32,mbs=1", spine=2.0)
LONG = Plan("llama-3.1-70b", "dgx-h100", 32, W(64, 65536), "tp=8,cp=4,pp=2,mbs=1", spine=4.0)
RACKS = Plan("llama-3.1-70b", "gb200-nvl72", 64, W(1024, 8192), "tp=4,pp=4,mbs=1")
RACK_EXPERTS = Plan("deepseek-v3", "gb200-nvl72", 64, W(2048, 4096), "pp=4,ep=32,mbs=1")


def tree(leaves: Sequence[int], roots: int = 1) -> tuple[str, Groups]:
    """Leaves of the given sizes under one spine each ``roots``: topology lines and the nodes of each leaf."""
    lines, groups, at = [], [], 1
    for i, size in enumerate(leaves):
        groups.append([f"gpu{n:05}" for n in range(at, at + size)])
        lines.append(f"SwitchName=leaf{i} Nodes={compress(groups[-1])}")
        at += size
    for root in range(roots):
        under = [f"leaf{i}" for i in range(len(leaves)) if i * roots // len(leaves) == root]
        lines.append(f"SwitchName=spine{root} Switches={','.join(under)}")
    return "\n".join(lines), groups


def blocks(count: int, size: int = 18) -> tuple[str, Groups]:
    """NVL72 racks of 18 nodes."""
    groups = [[f"rack{b:03}-n{i:02}" for i in range(1, size + 1)] for b in range(count)]
    return "\n".join(f"BlockName=b{b} Nodes={compress(g)}" for b, g in enumerate(groups)), groups


def thinned(groups: Groups, rng: random.Random, wanted: int, share: float) -> list[str]:
    """The first ``wanted`` nodes left when each is busy or down with probability ``share``."""
    return [node for group in groups for node in group if rng.random() > share][:wanted]


def missing(plan: Plan, seed: int) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    text, groups = tree([8] * (plan.nodes // 8 + 8))
    return text, thinned(groups, rng, plan.nodes, 0.15)


def unequal(plan: Plan, seed: int) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    text, groups = tree([rng.choice((4, 6, 8, 10, 12, 16)) for _ in range(plan.nodes // 4)])
    return text, thinned(groups, rng, plan.nodes, 0.05)


def two_roots(plan: Plan, seed: int) -> tuple[str, list[str]]:
    rng = random.Random(seed)
    text, groups = tree([8] * (plan.nodes // 8 + 2), roots=2)
    nodes = [node for group in groups for node in group]
    return text, sorted(rng.sample(nodes, plan.nodes))


def racks(plan: Plan, seed: int) -> tuple[str, list[str]]:
    """Of 18 nodes a rack, 16 are used: the plan's nodes over as many racks, two of each idle at random."""
    rng = random.Random(seed)
    text, groups = blocks(plan.nodes // 16 + 1)
    used = [sorted(rng.sample(group, 16)) for group in groups]
    last = [node for group in used for node in group]
    start = rng.randrange(1, 16)  # another job holds the first ones
    return text, last[start : start + plan.nodes]


KINDS: tuple[tuple[str, Callable[[Plan, int], tuple[str, list[str]]], tuple[Plan, ...]], ...] = (
    ("nodes missing", missing, (DENSE, FLAT, SHARDED, EXPERTS, WIDE, LONG, DENSE, EXPERTS)),
    ("leaves of unequal size", unequal, (DENSE, FLAT, SHARDED, EXPERTS, WIDE, LONG, DENSE, EXPERTS)),
    ("two roots", two_roots, (DENSE, FLAT, SHARDED, EXPERTS, WIDE, LONG, DENSE)),
    ("NVL72 racks of 18, 16 used", racks, (RACKS, RACK_EXPERTS, RACKS, RACK_EXPERTS, RACKS, RACK_EXPERTS, RACKS)),
)


def allocations() -> Iterator[tuple[str, Plan, str, list[str]]]:
    """Every allocation: kind, plan, topology text and nodes. 30 in all."""
    for kind, draw, plans in KINDS:
        for seed, plan in enumerate(plans):
            yield kind, plan, *draw(plan, seed)


def gains() -> Iterator[str]:
    """Markdown rows of the 30 allocations by kind."""
    found: dict[str, list[tuple[Placement, float]]] = {}
    estimates: dict[Plan, shardwise.Estimate] = {}
    for kind, plan, text, nodes in allocations():
        if plan not in estimates:
            estimates[plan] = plan.estimate()
        estimate = estimates[plan]
        start = time.process_time()
        placed = shardwise.place(estimate, parse_topology(text, kind), nodes)
        seconds = time.process_time() - start
        found.setdefault(kind, []).append((placed, seconds))
        print(f"{kind}: {plan.model} on {plan.cluster}: {placed.sorted_exposed_s:.4f} -> {placed.exposed_s:.4f} s, "
              f"gap {placed.gap:.1e}, {seconds:.1f} s, {placed.method}", flush=True)  # fmt: skip
    yield "| allocations | number | worse | better | mean gain | largest | between nodes, mean | proven | CPU s, most |"
    yield "|---|---|---|---|---|---|---|---|---|"
    everything = [row for rows in found.values() for row in rows]
    for kind, rows in (*found.items(), ("all", everything)):
        shares = [placed.gain_s / placed.sorted_exposed_s for placed, _ in rows]
        between = [placed.gain_s / between_nodes(placed) for placed, _ in rows]
        yield (
            f"| {kind} | {len(rows)} | {sum(s < -1e-12 for s in shares)} | {sum(s > 1e-9 for s in shares)} | "
            f"{100 * sum(shares) / len(rows):.2f} % | {100 * max(shares):.2f} % | "
            f"{100 * sum(between) / len(rows):.2f} % | "
            f"{sum(placed.proven for placed, _ in rows)} | {max(seconds for _, seconds in rows):.1f} |"
        )


def between_nodes(placed: Placement) -> float:
    """Exposed seconds in sorted order of all but tensor parallelism, which these plans keep inside nodes."""
    return sum(seconds for name, seconds in placed.sorted_parts_s.items() if name not in ("tp", "etp"))


SCALES = (
    (Plan("llama-3.1-70b", "dgx-h100", 64, W(1024, 8192), "tp=8,pp=4,mbs=1", spine=4.0), 8),
    (Plan("deepseek-v3", "dgx-h100", 64, W(2048, 4096), "pp=8,ep=32,mbs=1", spine=2.0), 8),
    (Plan("llama-3.1-405b", "dgx-h100", 512, W(2048, 8192), "tp=8,pp=16,mbs=1", spine=4.0), 16),
    (Plan("llama-3.1-405b", "dgx-h100", 2048, W(4096, 8192), "tp=8,pp=16,mbs=1", spine=4.0), 32),
    (Plan("deepseek-v3", "dgx-h100", 2048, W(16384, 4096), "pp=16,ep=64,mbs=1", spine=2.0), 32),
    (Plan("llama-3.1-405b", "dgx-h100", 16384, W(16384, 8192), "tp=8,pp=16,mbs=1", spine=4.0), 32),
)


def scales() -> Iterator[str]:
    """Markdown rows of gap and time by size."""
    yield "| nodes | plan | leaves | gain | gap | CPU s |"
    yield "|---|---|---|---|---|---|"
    for plan, leaf in SCALES:
        rng = random.Random(plan.nodes)
        text, groups = tree([leaf] * (plan.nodes * 5 // (4 * leaf)), roots=4)
        nodes = thinned(groups, rng, plan.nodes, 0.15)
        estimate = plan.estimate()
        start = time.process_time()
        placed = shardwise.place(estimate, parse_topology(text, "scale"), nodes)
        seconds = time.process_time() - start
        count = int(placed.fabric.domains[0].max()) + 1
        gain = 100 * placed.gain_s / placed.sorted_exposed_s
        row = f"{plan.model}, {plan.settings} on {plan.cluster}"
        yield f"| {plan.nodes:,} | {row} | {count} | {gain:.2f} % | {100 * placed.gap:.2g} % | {seconds:.1f} |"


def main() -> None:
    """Print the tables, and put them into the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/placement.md")
    wanted = parser.parse_args()
    for name, rows in (("gains", gains()), ("scales", scales())):
        table = "\n".join(rows) + "\n"
        print(table)
        if wanted.write:
            text = PAGE.read_text(encoding="utf-8")
            mark = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
            PAGE.write_text(mark.sub(lambda m, t=table: m[1] + t + m[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The cluster of a measured run: its accelerator by name or alias, its network from the words of the row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from shardwise.hardware_profiles.cluster import Cluster, Tier
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_accelerator import load_accelerator
from shardwise.hardware_profiles.load_cluster import list_clusters, load_cluster

from ._validation_model import RowSkippedError

GIGABIT = 1e9 / 8.0

STATED_ELSEWHERE = {
    "V100-SXM2 (125 TFLOP/s; 4x8)": ("InfiniBand 100Gb/s per node", "as in DLPerf's report of the same nodes")
}
"""Networks of devices as rows word them, where the row states no rate and another report of the same nodes does."""

NODE_RATES: tuple[tuple[str, str], ...] = (
    (r"(?P<rate>\d+)\s*Gb/s\s*per\s*GPU", "gpu"),
    (r"(?P<count>\d+)x\s*(?:[A-Za-z-]+ )*(?P<rate>\d+)\s*Gb/s", "node"),
    (r"(?P<rate>\d+)\s*Gb/s\s*per\s*node", "node"),
    (r"(?P<rate>\d+)\s*Gb/s\s*x(?P<count>\d+)\s*per\s*node", "node"),
    (r"(?P<rate>\d+)\s*Gb/s", "node"),
)
"""How rows word the network between nodes; the first match wins. A rate without a count or unit is one NIC per node."""


@dataclass(frozen=True, slots=True)
class Site:
    """A network that reaches another share of its rate than its technology does: collectives, and p2p messages."""

    words: str
    technology: str
    collectives: float
    p2p: float
    why: str


SITES = (
    Site(
        "Omni-Path", "omni-path", 0.138, 0.24, "Omni-Path of Jean Zay: shares fitted to the BLOOM and BigScience rows"
    ),
    Site(
        r"IB \(8x200Gb/s HDR, recalled\)",
        "ib-hdr-recalled",
        0.0682,
        0.115,
        "recalled rate: its rows fit one 200 Gb/s link per node, an eighth of it, in collectives and p2p",
    ),
)
"""Networks by how rows word them; the shares are of the site, not of a row."""

SHARED_PORT = 0.65
"""Share of an HDR network's rate in training where GPUs share ports: fitted to 74 runs of vTrain on nodes with four
ports, as in the system dgx-a100-4xhdr; IBM's five runs agree."""

PREFERRED = {
    "A100-SXM4-80GB": "dgx-a100",
    "A100-SXM4-40GB": "oci-a100-40gb-roce",
    "H100-SXM5-80GB": "dgx-h100",
    "H200-SXM": "dgx-h200",
    "B200-SXM": "dgx-b200",
    "B300-SXM": "dgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "V100-SXM2-32GB": "dgx-v100",
    "V100-SXM2-16GB": "v100-16gb-1x100g",
}
"""The system whose tiers a row starts from, where several have its accelerator."""

ANCESTORS = {
    "A100-SXM4-40GB": "A100-SXM4-80GB",
    "A800-SXM4-80GB": "A100-SXM4-80GB",
    "H800-SXM": "H100-SXM5-80GB",
    "H20-96GB": "H100-SXM5-80GB",
    "H200-SXM": "H100-SXM5-80GB",
    "H100-SXM5-96GB-500W": "H100-SXM5-80GB",
    "B200-SXM-power-limited": "B200-SXM",
    "B300-SXM": "B200-SXM",
    "GB300": "GB200",
    "MI355X": "MI300X",
    "MI325X": "MI300X",
    "V100-SXM2-16GB": "V100-SXM2-32GB",
}
"""The accelerator whose system lends its tiers where no shipped system has this one."""


def row_cluster(row: Mapping[str, Any], notes: list[str]) -> Cluster:
    """The cluster of a row's ``hardware``; assumptions are appended to ``notes``. Raises RowSkippedError."""
    hardware = row["hardware"]
    words = str(hardware.get("inter_node") or "")
    count = hardware.get("num_gpus")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise RowSkippedError(f"hardware.num_gpus = {count!r}: expected a whole number of 1 or more")
    system = hardware.get("system")
    if system:
        return _system(str(system), count)
    cluster, assumed = _cluster(str(hardware.get("gpu")), count, hardware.get("gpus_per_node"), words)
    notes += assumed
    return cluster


@lru_cache(maxsize=64)
def _system(name: str, count: int) -> Cluster:
    try:
        return load_cluster(name, count)
    except InputError as error:
        raise RowSkippedError(f"hardware.system: {error}") from None


@lru_cache(maxsize=1024)
def _cluster(gpu: str, count: int, per_node: int | None, words: str) -> tuple[Cluster, tuple[str, ...]]:
    try:
        accelerator = load_accelerator(gpu)
    except InputError as error:
        raise RowSkippedError(f"hardware.gpu = {gpu!r}: {error}") from None
    base = _base_system(accelerator.name)
    tiers = list(base.tiers)
    notes: list[str] = []
    node = per_node or base.node_size
    if per_node and per_node != base.node_size and tiers[0].size == base.node_size:
        tiers[0] = replace(tiers[0], size=per_node)
    if count > tiers[0].size and len(tiers) > 1:
        tiers[1:] = [_outer_tier(tiers[1], gpu, node, count, words, notes)]
    elif count > tiers[0].size:
        tiers[0] = replace(tiers[0], size=count)
    cluster = replace(
        base,
        name=f"{base.name} as in the row",
        accelerator=accelerator,
        num_gpus=count,
        tiers=tuple(tiers),
        gpus_per_node=node,
    )
    return cluster, tuple(notes)


def _outer_tier(base: Tier, gpu: str, node: int, count: int, words: str, notes: list[str]) -> Tier:
    """The tier between nodes with the stated rate, or the base system's (an assumption)."""
    tier = replace(base, size=max(base.size, count), oversubscription=1.0)
    rate = stated_rate(words, node)
    if rate is None and gpu in STATED_ELSEWHERE:
        words, why = STATED_ELSEWHERE[gpu]
        rate = stated_rate(words, node)
        notes.append(f"hardware.inter_node states no rate: {words}, {why}")
    if rate is None:
        said = f"hardware.inter_node = {words!r} states no rate" if words else "hardware.inter_node is not stated"
        notes.append(f"{said}: {base.bytes_per_s * 8 / 1e9:.0f} Gb/s per GPU, as {base.name}")
        return tier
    for site in SITES:
        if re.search(site.words, words):
            shares = {kind: site.p2p if kind == "p2p" else site.collectives for kind in tier.efficiency}
            notes.append(f"hardware.inter_node: {site.why}")
            tier = replace(tier, efficiency=shares, technology=site.technology)
    if tier.technology == "ib-hdr" and rate < 0.75 * base.bytes_per_s:
        tier = replace(tier, efficiency={kind: min(share, SHARED_PORT) for kind, share in tier.efficiency.items()})
        notes.append(f"hardware.inter_node: GPUs share ports, {SHARED_PORT:.0%} of the rate in training")
    return replace(tier, bytes_per_s=rate)


def stated_rate(words: str, node: int) -> float | None:
    """Bytes per second per accelerator and direction that the words state, or None."""
    for pattern, per in NODE_RATES:
        match = re.search(pattern, words)
        if match:
            found = match.groupdict()
            total = float(found["rate"]) * float(found.get("count") or 1) * GIGABIT
            return total if per == "gpu" else total / node
    return None


@lru_cache(maxsize=64)
def _base_system(accelerator: str) -> Cluster:
    """A shipped system with this accelerator, or with the one it descends from."""
    known = list_clusters()
    name = PREFERRED.get(accelerator)
    if name in known:
        return load_cluster(str(name))
    for system in known:
        cluster = load_cluster(system)
        if cluster.accelerator.name == accelerator:
            return cluster
    if accelerator in ANCESTORS:
        return _base_system(ANCESTORS[accelerator])
    raise RowSkippedError(f"hardware.gpu: no shipped system has {accelerator}")

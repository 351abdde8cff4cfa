"""Small placement problems: a two-level fabric of small nodes, traffic drawn at will, topologies written out."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from shardwise.costmodel.exposed import Collective, Pool
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.cluster import Cluster, Ramp, Tier
from shardwise.hardware_profiles.collectives import KINDS
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.hardware_profiles.load_topology import parse_topology

SHARE = dict.fromkeys((*KINDS, "nvls"), 0.8)
RAMPS = dict.fromkeys(KINDS, Ramp(5e-6, 2e-6, 0.1))
GB = 1e9


def cluster(nodes, per_node=2, oversubscription=4.0, rack=0):
    """Nodes of ``per_node`` at 300 GB/s, 50 GB/s into leaves, an oversubscribed spine; ``rack`` nodes share NVLink."""
    inner = per_node * (rack or 1)
    tiers = [Tier("nvlink", inner, 300 * GB, 2e-6, 1.0, SHARE, ramps=RAMPS)]
    if not rack:
        tiers.append(Tier("leaf", 4 * per_node, 50 * GB, 5e-6, 1.0, SHARE, ramps=RAMPS))
    tiers.append(Tier("spine", 64 * per_node * max(1, rack), 50 * GB, 8e-6, oversubscription, SHARE, ramps=RAMPS))
    tiers.append(Tier("core", 1 << 20, 50 * GB, 1e-5, 2 * oversubscription, SHARE, ramps=RAMPS))
    device = load_cluster("dgx-h100").accelerator
    return Cluster("small", device, nodes * per_node, tuple(tiers), 1e11, gpus_per_node=per_node)


def tree(leaves, pods=None):
    """Leaves of the given sizes under one spine, or under one spine for each entry of ``pods`` (leaves in it)."""
    lines, at = [], 0
    for i, size in enumerate(leaves):
        lines.append(f"SwitchName=l{i} Nodes=n[{at:03}-{at + size - 1:03}]")
        at += size
    first = 0
    for i, count in enumerate(pods or [len(leaves)]):
        lines.append(f"SwitchName=s{i} Switches=l[{first}-{first + count - 1}]")
        first += count
    return parse_topology("\n".join(lines), "small.conf")


def pools_of(strategy, sizes):
    """One pool of each parallelism in use; ``sizes`` bytes for dp, pp, ep, cp."""
    s = strategy
    comms = [
        ("dp", Collective("reduce_scatter", sizes[0], s.dp * s.cp, s.tp, 1.0), 0.5, 0.01),
        ("pp", Collective("p2p", sizes[1], s.pp, s.tp * s.cp * s.dp, 4.0), 0.0, 0.0),
        ("ep", Collective("all_to_all", sizes[2], s.ep, s.etp, 8.0), 0.0, 0.0),
        ("cp", Collective("all_gather", sizes[3], s.cp, s.tp, 8.0), 0.0, 0.0),
        ("edp", Collective("all_reduce", sizes[0], s.edp, s.ep * s.etp, 1.0), 0.5, 0.002),
    ]
    return tuple(
        Pool(name, (comm,), 1.0, share, room, 0.1)
        for name, comm, share, room in comms
        if comm.group_size > 1 and (name != "edp" or s.ep > 1)
    )


def document(strategy, pools):
    """A plan of that strategy and traffic, as ``plan.json`` has it."""
    return {
        "model": "drawn",
        "cluster": "small",
        "num_gpus": strategy.world_size,
        "strategy": strategy.as_dict(),
        "pools": [pool.as_dict() for pool in pools],
    }


@st.composite
def strategies(draw, ranks):
    """Degrees that multiply to ``ranks``, experts folded over what they can be."""
    degrees, left = [], ranks
    for _ in range(3):
        degree = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        degrees.append(degree)
        left //= degree
    tp, cp, pp = degrees
    inner = tp * cp * left
    ep = draw(st.sampled_from([d for d in range(1, inner + 1) if inner % d == 0]))
    return Strategy(tp=tp, cp=cp, pp=pp, dp=left, ep=ep, num_microbatches=4)


@st.composite
def sizes(draw):
    """Bytes of dp, pp, ep and cp traffic, from next to none, where a collective is all start-up, to a lot."""
    return [10.0 ** draw(st.integers(1, 9)) for _ in range(4)]


@st.composite
def leaves(draw, nodes):
    """Sizes of leaves that hold all ``nodes``."""
    out, left = [], nodes
    while left:
        out.append(draw(st.integers(1, left)))
        left -= out[-1]
    return out


def naive_shape(fabric, family, groups, pairs, place):
    """Spans and crossing of every tier by the definitions, one group at a time.

    ``groups`` of global ranks, ``place[s]`` the node of slot ``s``.
    """
    node = fabric.node_size
    inside = [[rank // tier.size for rank in range(len(place) * node)] for tier in fabric.tiers[: fabric.inside]]
    outside = [[int(level[place[rank // node]]) for rank in range(len(place) * node)] for level in fabric.domains]
    spans, crossing = [], [1.0]
    for tier, domain in enumerate([*inside, *outside]):
        spans.append(_naive_span(family, groups, pairs, domain))
        if tier == len(fabric.tiers) - 1:
            break
        room = {}
        for rank in range(len(place) * node):
            room[domain[rank]] = room.get(domain[rank], 0.0) + 1.0
        crossing.append(max(_naive_load(family, groups, domain, d) / room[d] for d in room) if family != "p2p" else 1.0)
    return tuple(spans), tuple(crossing)


def _naive_span(family, groups, pairs, domain):
    if family == "p2p":
        return 2.0 if any(domain[a] != domain[b] for a, b in pairs) else 1.0
    worst = 1.0
    for group in groups:
        where = [domain[rank] for rank in group]
        if family == "all-to-all":
            worst = max(worst, len(group) / min(where.count(d) for d in where))
        else:
            worst = max(worst, sum(a != b for a, b in zip(where, where[1:] + where[:1], strict=True)))
    return float(worst)


def _naive_load(family, groups, domain, d):
    sent = 0.0
    for group in groups:
        where = [domain[rank] for rank in group]
        if family == "all-to-all":
            sent += where.count(d) * (len(group) - where.count(d)) / len(group)
        else:
            sent += sum(a == d != b for a, b in zip(where, where[1:] + where[:1], strict=True))
    return sent


def renamed(topology, names):
    """The same topology with other names of nodes."""
    switches = tuple(replace(s, nodes=tuple(names[n] for n in s.nodes)) for s in topology.switches)
    return replace(topology, switches=switches)


def permutations_of(nodes):
    """Every order of ``nodes`` numbers, as arrays."""
    import itertools

    return (np.array(p, dtype=np.int64) for p in itertools.permutations(range(nodes)))

"""What a collective costs on nested network tiers: wire bytes, steps and seconds, over arrays of groups.

One law for every algorithm. With ``X`` the seconds that the busiest tier needs for its wire bytes at full rate::

    time = launch + sum_k steps_k · latency_k + X + min(2 · sqrt(F · X), FILL_CAP · F)
    X = max_k bytes_k / rate_k,   F = sum_k sqrt(steps_k) · fill_k

The root is what a pipeline of chunks costs: passing ``X`` seconds of data through ``p`` hops in ``c`` chunks, each
with an overhead ``o``, takes ``(c + p)(X/c + o)``; the best ``c`` gives ``X + p·o + 2·sqrt(p·o·X)``. So bandwidth
ramps with the message. Chunks stop growing at the size of the buffers, hence the cap. Measured fills grow with about
the root of the steps on 2 to 8 ranks (chunks follow each other round a ring). Tiers work at the same time: max, not
sum.

Words: ``n`` ranks in a group, ``d_k`` tier-k domains that the group spans (``d_-1 = n``), ``g_k = n / d_k`` members
inside one of them, ``S`` the tensor's bytes. A tier-k link of one accelerator carries ``1/g_{k-1}`` of what leaves a
lower domain, because every member drives its own NIC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")

PEER_STEP_SHARE = 0.25
"""Share of a step that one more peer adds to an all-to-all: sends to different peers are posted together. Chosen by
refits on 2, 4 and 8 GPUs: 0.1 to 0.5 do about equally well on small messages, a whole step per peer does not."""

TREE_RATE_SHARE = 0.92
"""A tree reaches this share of a ring's rate: the factor in NCCL's own tuning table, from memory."""

FILL_CAP = 25.0
"""Chunks are as large as they get when the overhead is this many fills. Assumed: refits with 5, 10, 40, 80 and no cap
leave the same errors (median 4 to 5 % in a node), so the rows do not tell it; it keeps long rings from being charged
for a ramp that only short ones were measured on."""

NVLS_FAN_OUT_LOSS = 0.055
"""In-switch reduction slows by this share per doubling of the ranks beyond 8: between what NVLink5 shows at 64 ranks
(GB300, 0.04) and at 72 (GB200, 0.07) against 8."""


@dataclass(frozen=True, slots=True)
class TierLaw:
    """One tier's constants for one kind, what-if changes already applied.

    ``rate``: bytes/s per accelerator that a large collective reaches, oversubscription divided out. ``latency_s`` and
    ``fill_s``: seconds per step. ``copy``: wire bytes that copying one rank's own part costs as much as (tier 0 only).
    """

    rate: float
    latency_s: float
    fill_s: float
    launch_s: float
    copy: float


@dataclass(frozen=True, slots=True)
class NvlsLaw:
    """In-switch reduction of the innermost tier: bytes/s, launch and fill in seconds."""

    rate: float
    launch_s: float
    fill_s: float


@dataclass(frozen=True, slots=True)
class Path:
    """What the steps of an algorithm cost whatever the bytes: latency and fill, seconds."""

    latency: Array
    fill: Array


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of ranks on the tiers: ``n`` ranks, ``spans[k]`` tier-k domains spanned (the last one is always 1).

    ``crossing[k]``, where given, is what the groups that share a domain's uplink send over tier ``k`` together, per
    accelerator of the domain: of a ring's bytes once round, of an all-to-all's send buffer; for a p2p how many times
    slower than the tier its link is. Without it members are spread evenly and every group crosses.
    """

    n: Array
    spans: tuple[Array, ...]
    crossing: tuple[Array, ...] | None = None
    outside: int | None = None
    """First of the tiers whose fills add as one path's do, by the root of the sum of squares; None: each by itself.

    By tier, the sum is largest where steps are split evenly, so a group that crosses more could seem quicker. Among
    groups of one size that are compared for where they stand, more steps over a farther tier must never be.
    """

    def carried(self, tier: int, through: Array) -> Array:
        """Bytes of a ring or a tree, ``through`` once round, that one accelerator sends over the tier."""
        return through * self.below(tier) / self.n if self.crossing is None else through * self.crossing[tier]

    def below(self, tier: int) -> Array:
        """Domains spanned one tier further in: the parties that tier ``tier`` connects."""
        return self.n if tier == 0 else self.spans[tier - 1]


def group_on(domains: tuple[int, ...], size: IntArray, stride: IntArray) -> Group:
    """How many domains of each tier the slowest group of ``size`` ranks ``stride`` apart spans.

    Groups tile the ranks in blocks of ``size · stride``. A block spans ``ceil(block / D)`` domains of ``D``; one that
    fits but does not divide ``D`` puts some group across a border, and the step waits for that one. Members are
    taken as spread evenly.
    """
    block = size * stride
    spans: list[Array] = []
    inner: IntArray = size
    for domain in domains[:-1]:
        count = np.minimum(-(-block // domain), inner)
        straddles = (block < domain) & (domain % np.maximum(block, 1) != 0)
        inner = np.where(straddles, np.minimum(inner, 2), count)
        spans.append(inner.astype(np.float64))
    spans.append(np.ones_like(block, dtype=np.float64))
    return Group(size.astype(np.float64), tuple(spans))


def pipeline_s(launch: Array | float, path: Path, seconds: Array) -> Array:
    """The law of this module: launch + latency + X + min(2·sqrt(F·X), cap·F), elementwise, in seconds."""
    ramp = np.minimum(2.0 * np.sqrt(path.fill * seconds), FILL_CAP * path.fill)
    return np.asarray(launch + path.latency + seconds + ramp)


def launch_s(group: Group, laws: tuple[TierLaw, ...]) -> Array | float:
    """The launch constant of the outermost tier that the group crosses (constants never fall outwards)."""
    launch: Array | float = laws[0].launch_s
    for tier in range(1, len(laws)):
        launch = np.where(group.below(tier) > 1, laws[tier].launch_s, launch)
    return launch


def _path(steps_by_tier: list[Array], laws: tuple[TierLaw, ...], outside: int | None = None) -> Path:
    """Latency ``sum steps·latency_s`` and fill ``sum sqrt(steps)·fill_s`` of a path over the tiers.

    From tier ``outside`` on the fills add as ``sqrt(sum steps·fill_s²)`` (``Group.outside``).
    """
    latency: Array | float = 0.0
    fill: Array | float = 0.0
    squares: Array | float = 0.0
    for tier, (steps, law) in enumerate(zip(steps_by_tier, laws, strict=True)):
        latency = latency + steps * law.latency_s
        if outside is None or tier < outside:
            fill = fill + np.sqrt(steps) * law.fill_s
        else:
            squares = squares + steps * law.fill_s**2
    if outside is not None:
        fill = fill + np.sqrt(squares)
    return Path(np.asarray(latency), np.asarray(fill))


def ring_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array, passes: float) -> Array:
    """A ring through all ranks, ``passes`` times round (1 gather or scatter, 2 all-reduce).

    Tier-k bytes per accelerator: ``passes · S · (n-1)/n / g_{k-1}``, tier 0 plus ``copy · S/n``; steps at tier k:
    ``passes · (d_{k-1} - d_k)``, n-1 in all.
    """
    share = nbytes / group.n
    through = passes * (group.n - 1.0) * share
    seconds = (through + laws[0].copy * share) / laws[0].rate
    for tier in range(1, len(laws)):
        crossing = np.where(group.below(tier) > 1, group.carried(tier, through), 0.0)
        seconds = np.maximum(seconds, crossing / laws[tier].rate)
    steps = [passes * (group.below(tier) - group.spans[tier]) for tier in range(len(laws))]
    return pipeline_s(launch_s(group, laws), _path(steps, laws, group.outside), seconds)


def _tree_path(group: Group, laws: tuple[TierLaw, ...], node: int, ways: float) -> Path:
    """A tree there and back (``ways`` 2) or down only (1): a chain inside each node, log2 of the parties above it."""

    def in_domain(members: Array) -> Array:
        return ways * (np.minimum(members, node) - 1.0 + np.log2(np.maximum(members / node, 1.0)))

    steps = [in_domain(group.n / group.spans[0]), *_steps_above(group, laws, ways)]
    path = _path(steps, laws, group.outside)
    # The same ranks in one innermost domain can only be quicker.
    floor = _path([np.minimum(ways * (group.n - 1.0), in_domain(group.n))], laws[:1])
    return Path(np.maximum(path.latency, floor.latency), np.maximum(path.fill, floor.fill))


def _steps_above(group: Group, laws: tuple[TierLaw, ...], ways: float) -> list[Array]:
    """Steps of a tree at each tier above the innermost: log2 of the parties that the tier joins."""
    return [ways * np.log2(group.below(tier) / group.spans[tier]) for tier in range(1, len(laws))]


def _tree_uplinks_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array) -> Array | float:
    """Seconds of the busiest tier above the innermost under a double binary tree.

    A domain sends S up and S down in all; with only two domains each is leaf in one half-tree and root in the other,
    and sends S. Bytes per accelerator: ``S / g_{k-1} · min(2, d_{k-1} - 1)``.
    """
    seconds: Array | float = 0.0
    for tier in range(1, len(laws)):
        below = group.below(tier)
        crossing = group.carried(tier, nbytes) * np.minimum(2.0, below - 1.0)
        seconds = np.maximum(seconds, crossing / (laws[tier].rate * TREE_RATE_SHARE))
    return seconds


def all_reduce_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array, node: int, nvls: NvlsLaw | None) -> Array:
    """The quickest of ring, double binary tree and, where the innermost switches can reduce, NVLS with a tree above.

    Inside a domain a tree sends 2·S per accelerator (a chain up and down), NVLS ``S · (1 + 1/g)`` (its part up once,
    every result down once), which is why its busbw exceeds the link's.
    """
    best = ring_s(group, laws, nbytes, 2.0)
    launch, uplinks = launch_s(group, laws), _tree_uplinks_s(group, laws, nbytes)
    chain = 2.0 * nbytes / (laws[0].rate * TREE_RATE_SHARE)
    best = np.minimum(best, pipeline_s(launch, _tree_path(group, laws, node, 2.0), np.maximum(chain, uplinks)))
    if nvls is None:
        return best
    loss = 1.0 + NVLS_FAN_OUT_LOSS * np.log2(np.maximum(group.n / 8.0, 1.0))
    switch = nbytes * (1.0 + group.spans[0] / group.n) * loss / nvls.rate
    above = _path([np.zeros_like(group.n), *_steps_above(group, laws, 2.0)], laws, group.outside)
    path = Path(above.latency, above.fill + nvls.fill_s)
    return np.minimum(best, pipeline_s(np.maximum(launch, nvls.launch_s), path, np.maximum(switch, uplinks)))


def all_to_all_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array) -> Array:
    """Every rank sends S/n to every other; each tier carries what leaves the domains below it, all tiers at once.

    Tier-k bytes per accelerator: ``S · (n - g_{k-1}) / n`` (tier 0 plus ``copy · S/n``). Each peer adds a part of a
    step of the tier it is reached over.
    """
    share = nbytes / group.n
    seconds = (group.n - 1.0 + laws[0].copy) * share / laws[0].rate
    members = group.n / group.spans[0]
    steps = [PEER_STEP_SHARE * (members - 1.0)]
    for tier in range(1, len(laws)):
        inner, members = members, group.n / group.spans[tier]
        leaving = (group.n - inner) * share if group.crossing is None else nbytes * group.crossing[tier]
        seconds = np.maximum(seconds, leaving / laws[tier].rate)
        steps.append(PEER_STEP_SHARE * (members - inner))
    return pipeline_s(launch_s(group, laws), _path(steps, laws, group.outside), seconds)


def p2p_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array) -> Array:
    """One message between neighbours of the group, over the outermost tier that any two neighbours cross."""
    latency: Array | float = laws[0].latency_s
    fill: Array | float = laws[0].fill_s
    seconds = nbytes / laws[0].rate
    for tier in range(1, len(laws)):
        crosses, law = group.below(tier) > 1, laws[tier]
        latency = np.where(crosses, law.latency_s, latency)
        fill = np.where(crosses, law.fill_s, fill)
        slower = 1.0 if group.crossing is None else group.crossing[tier]
        seconds = np.where(crosses, np.maximum(seconds, nbytes * slower / law.rate), seconds)
    return pipeline_s(launch_s(group, laws), Path(np.asarray(latency), np.asarray(fill)), seconds)


def broadcast_s(group: Group, laws: tuple[TierLaw, ...], nbytes: Array) -> Array:
    """S from one rank down a pipelined tree: every link carries S, shared by the members below it."""
    seconds = nbytes / laws[0].rate
    for tier in range(1, len(laws)):
        crossing = np.where(group.below(tier) > 1, group.carried(tier, nbytes), 0.0)
        seconds = np.maximum(seconds, crossing / laws[tier].rate)
    return pipeline_s(launch_s(group, laws), _tree_path(group, laws, 1, 1.0), seconds)


def wire_bytes(kind: str, group: Group, nbytes: Array) -> Array:
    """Bytes that one accelerator sends over each tier, shape ``[..., tiers]``; zero where the group does not go.

    Rings for reduce, gather and scatter (the bandwidth-optimal choice, also of a hierarchical scheme's order); an
    all-to-all sends what leaves each domain over the tier above, and inside a domain ``S · (g-1)/g``: what stays, plus
    what moves to the GPU on the right rail first.
    """
    per_tier = []
    for tier, spans in enumerate(group.spans):
        below = group.below(tier)
        crosses = below > (spans if tier == 0 else 1.0)
        if kind == "p2p":
            sent = np.where((group.n > 1) & (below > 1 if tier else spans == 1), nbytes, 0.0)
        elif kind == "all_to_all":
            sent = nbytes * (1.0 - (spans / group.n if tier == 0 else 1.0 / below))
        else:
            passes = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}[kind]
            part = 1.0 if kind == "broadcast" else (group.n - 1.0) / group.n
            sent = np.where(crosses, passes * part * nbytes * below / group.n, 0.0)
        per_tier.append(sent)
    return np.stack(np.broadcast_arrays(*per_tier), axis=-1)

"""The options of each group of dimensions, as masks over (row, option): what the space is the product of.

A *level* adds a few dimensions to rows that already hold a mesh (tp, cp, pp, dp). Which options a row has depends on
its mesh only, so the number of strategies below a row is a product of counts, known before any of them is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.boundary import neighbour_s
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import ENUMS, Strategy, enum_code
from shardwise.launchers.facts import model_facts
from shardwise.launchers.rule import divisors

from .constraints import Constraints

Columns = dict[str, NDArray[Any]]

SWITCHES = ("tp_overlap", "dp_overlap", "ep_overlap")
"""Overlap switches: on is never slower, and costs no memory."""

KNOBS = ("recompute", "recompute_layers", "offload_optimizer", "offload_activations")
"""Dimensions that trade time for memory: bounded at their fastest, opened only where that does not fit."""

SHARES = tuple(k / 100.0 for k in range(101))
"""Shares of the optimizer on the host that are searched: less is faster, so the least that fits is the one."""


_SHORTER = 0.1
"""Share of a message between stages that another rank order must save to be searched: gradients travel farther then."""

_ALWAYS = 4
"""Numbers of virtual stages up to this are searched whatever the layers: each is a large step in the bubble."""


@dataclass(frozen=True, slots=True)
class Breadth:
    """How widely the large axes are searched. Each field is a limit that a pin on its dimension lifts."""

    name: str
    micro_batch_size: int
    """Largest micro-batch size."""
    cp_tokens: int
    """Fewest tokens of a sequence on one context parallel rank."""
    any_etp: bool
    """Every divisor of tp inside an expert, or only 1 and tp."""
    hsdp: bool
    """ZeRO groups the size of each network tier's domain, or only the whole group."""
    ulysses: int
    """Most inner degrees tried for ``a2a+p2p``."""
    zero: tuple[int, ...]


BREADTHS = (
    Breadth("wide", 1 << 30, 128, True, True, 64, (0, 1, 2, 3)),
    Breadth("broad", 64, 256, False, True, 3, (0, 1, 2, 3)),
    Breadth("usual", 16, 1024, False, True, 2, (0, 1, 2, 3)),
    Breadth("narrow", 8, 2048, False, False, 1, (0, 1, 2, 3)),
    Breadth("slim", 8, 2048, False, False, 1, (1, 3)),
    Breadth("narrowest", 4, 4096, False, False, 1, (1, 3)),
)
"""From the widest to the narrowest; the space takes the first that its budget of strategies allows."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one level for ``r`` rows: ``mask[r, k]`` says which exist, ``columns`` hold values ``[r, k]``."""

    mask: NDArray[np.bool_]
    columns: Columns

    def expand(self, rows: Columns) -> tuple[Columns, NDArray[np.int64]]:
        """Every row times every option it has, and for each child the index of its parent row."""
        parent, option = np.nonzero(self.mask)
        out = {name: values[parent] for name, values in rows.items()}
        for name, values in self.columns.items():
            out[name] = np.broadcast_to(values, self.mask.shape)[parent, option]
        return out, parent


class Axes:
    """Candidate values of every dimension for one problem, launcher and request."""

    def __init__(
        self, problem: Problem, capabilities: Mapping[str, Any], constraints: Constraints, breadth: Breadth
    ) -> None:
        self.problem = problem
        self.capabilities = capabilities
        self.constraints = constraints
        self.breadth = breadth
        self.mesh = self._mesh()
        """All (tp, cp, pp, dp) with tp·cp·pp·dp = GPUs and dp dividing the batch, in ascending order."""
        self._inner_tp = _all_divisors(self.mesh["tp"])
        self._inner_cp = [d for d in _all_divisors(self.mesh["cp"]) if d > 1]
        self._pairs = self._schedule_pairs()

    # ---- the mesh

    def _mesh(self) -> Columns:
        gpus = self.problem.cluster.num_gpus
        tp, cp, pp = (self._degree(name) for name in ("tp", "cp", "pp"))
        grid = tp[:, None, None] * cp[None, :, None] * pp[None, None, :]
        dp = gpus // grid
        fits = (gpus % grid == 0) & (dp >= 1)
        fits &= self.problem.workload.global_batch_size % np.maximum(dp, 1) == 0
        i, j, k = np.nonzero(fits)
        return {"tp": tp[i], "cp": cp[j], "pp": pp[k], "dp": dp[i, j, k]}

    def degree_limit(self, name: str) -> int:
        """The largest degree of the mesh that is searched unless a pin or a minimum asks for more."""
        if name == "tp":
            return self.problem.cluster.tiers[0].size
        if name == "pp":
            return self.problem.model.num_layers
        return max(1, self.problem.workload.sequence_length // self.breadth.cp_tokens)

    def _degree(self, name: str) -> NDArray[np.int64]:
        allowed = np.array(divisors(self.problem.cluster.num_gpus), dtype=np.int64)
        if not self.constraints.touches(name):
            allowed = allowed[allowed <= self.degree_limit(name)]
        return offered(self.capabilities, name, allowed)

    # ---- levels over a mesh

    def experts(self, rows: Columns) -> Options:
        """ep divides the experts; etp is 1 or tp (every divisor of tp when the breadth says so)."""
        facts = model_facts(self.problem)
        shape = (len(rows["tp"]), 1)
        if not facts.is_moe:
            one = np.ones(shape, dtype=np.int64)
            return Options(np.ones(shape, dtype=np.bool_), {"ep": one, "etp": one})
        ep = offered(self.capabilities, "ep", np.array(divisors(int(np.gcd.reduce(facts.experts)))))
        inner = np.array(self._inner_tp if self.breadth.any_etp or self.constraints.touches("etp") else [1, 0])
        tp = rows["tp"][:, None]
        etp = np.where(inner == 0, tp, inner)
        exists = np.where(inner == 0, tp > 1, tp % np.maximum(inner, 1) == 0)
        exists &= np.isin(etp, offered(self.capabilities, "etp", np.unique(etp)))
        mesh = tp * rows["cp"][:, None] * rows["dp"][:, None]
        cell = mesh[:, :, None] % (ep[None, :, None] * np.maximum(etp, 1)[:, None, :]) == 0
        mask = exists[:, None, :] & cell
        flat = (shape[0], mask.shape[1] * mask.shape[2])
        columns = {
            "ep": np.broadcast_to(ep[None, :, None], mask.shape).reshape(flat),
            "etp": np.broadcast_to(etp[:, None, :], mask.shape).reshape(flat),
        }
        return Options(mask.reshape(flat), columns)

    def batches(self, rows: Columns) -> Options:
        """Micro-batch sizes that divide the sequences of one data parallel rank."""
        batch = self.problem.workload.global_batch_size
        sizes = np.array(divisors(batch), dtype=np.int64)
        if not self.constraints.touches("micro_batch_size"):
            sizes = sizes[sizes <= self.breadth.micro_batch_size]
        sizes = offered(self.capabilities, "micro_batch_size", sizes)
        share = (batch // rows["dp"])[:, None]
        return Options(
            share % sizes == 0, {"micro_batch_size": sizes[None, :], "num_microbatches": share // np.maximum(sizes, 1)}
        )

    def pipelines(self, rows: Columns) -> Options:
        """(schedule, vpp): one chunk, two for zb-v, and for interleaving ``chunk_numbers`` and what is wished for."""
        pairs = self._pairs
        schedule = np.array([enum_code("schedule", s) for s, _ in pairs], dtype=np.int64)
        vpp = np.array([v for _, v in pairs], dtype=np.int64)
        pp = rows["pp"][:, None]
        layers = self.problem.model.num_layers
        chunked = np.broadcast_to(np.isin(vpp, self.constraints.values("vpp")), (len(pp), len(vpp))).copy()
        for stages in np.unique(pp):
            chunked[pp[:, 0] == stages] |= np.isin(vpp, chunk_numbers(layers, int(stages)))
        interleaved = schedule == enum_code("schedule", "interleaved")
        plain = schedule == enum_code("schedule", "1f1b")
        mask = np.where(interleaved, chunked & (pp * vpp <= layers) & (pp > 1), np.where(plain, True, pp > 1))
        return Options(mask, {"schedule": schedule[None, :], "vpp": vpp[None, :]})

    def _schedule_pairs(self) -> list[tuple[str, int]]:
        names = [ENUMS["schedule"][int(code)] for code in self._codes("schedule")]
        stages = [int(p) for p in np.unique(self.mesh["pp"]) if p > 1]
        layers = self.problem.model.num_layers
        even = {v for p in stages for v in chunk_numbers(layers, p)}
        wished = {int(v) for v in self.constraints.values("vpp") if int(v) > 1}
        chunks = offered(self.capabilities, "vpp", np.array(sorted(even | wished), dtype=np.int64))
        pairs = []
        for name in names:
            if name == "interleaved":
                pairs += [(name, int(v)) for v in chunks]
            else:
                pairs.append((name, 2 if name == "zb-v" else 1))
        return pairs

    def states(self, rows: Columns) -> Options:
        """(zero, zero_group): the whole group, and one network tier's domain for HSDP."""
        stages = np.array(self.breadth.zero if not self.constraints.touches("zero") else (0, 1, 2, 3))
        stages = offered(self.capabilities, "zero", stages)
        if not len(stages):  # the breadth names none of the launcher's
            stages = offered(self.capabilities, "zero", np.arange(4))
        mesh = (rows["dp"] * rows["cp"])[:, None]
        groups = [np.zeros_like(mesh)]
        if self.breadth.hsdp and offers(self.capabilities, "zero_group"):
            sizes = sorted({tier.size for tier in self.problem.cluster.tiers[:-1]})
            groups += [size // rows["tp"][:, None] for size in sizes if size > 1]
        groups += [np.full_like(mesh, int(g)) for g in self.constraints.values("zero_group") if g]
        group = np.concatenate(groups, axis=1)
        exists = (group == 0) | ((group > 1) & (group < mesh) & (mesh % np.maximum(group, 1) == 0))
        for k in range(1, group.shape[1]):  # the same group twice is one option
            exists[:, k] &= ~np.any(group[:, :k] == group[:, k : k + 1], axis=1)
        mask = exists[:, None, :] & ((stages[:, None] > 0) | (group[:, None, :] == 0))
        flat = (mask.shape[0], mask.shape[1] * mask.shape[2])
        columns = {
            "zero": np.broadcast_to(stages[None, :, None], mask.shape).reshape(flat),
            "zero_group": np.broadcast_to(group[:, None, :], mask.shape).reshape(flat),
        }
        return Options(mask.reshape(flat), columns)

    def sequences(self, rows: Columns) -> Options:
        """(sp, cp_comm, ulysses): sequence parallelism on or off, and the kinds of context parallelism."""
        kinds, inner = self._context_pairs()
        cp = rows["cp"][:, None]
        whole = kinds == enum_code("cp_comm", "a2a")
        mixed = kinds == enum_code("cp_comm", "a2a+p2p")
        ring = kinds == enum_code("cp_comm", "p2p")
        exists = np.where(mixed, (inner < cp) & (cp % inner == 0), np.where(ring, True, cp > 1))
        ulysses = np.where(whole, cp, np.broadcast_to(inner, exists.shape))
        sp = self._codes("sp")
        mask = exists[:, None, :] & (~sp[None, :, None] | (rows["tp"] > 1)[:, None, None])
        flat = (mask.shape[0], mask.shape[1] * mask.shape[2])
        columns = {
            "sp": np.broadcast_to(sp[None, :, None], mask.shape).reshape(flat),
            "cp_comm": np.broadcast_to(kinds[None, None, :], mask.shape).reshape(flat),
            "ulysses": np.broadcast_to(ulysses[:, None, :], mask.shape).reshape(flat),
        }
        return Options(mask.reshape(flat), columns)

    def _context_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        kinds: list[int] = []
        inner: list[int] = []
        degrees = self._inner_cp
        if not self.constraints.touches("ulysses"):
            domain = self.problem.cluster.tiers[0].size
            degrees = sorted(degrees, key=lambda d: (abs(np.log2(d / domain)), d))[: self.breadth.ulysses]
        for code in self._codes("cp_comm"):
            many = sorted(degrees) if ENUMS["cp_comm"][int(code)] == "a2a+p2p" else [1]
            kinds += [int(code)] * len(many)
            inner += many
        if not kinds:
            kinds, inner = [enum_code("cp_comm", "p2p")], [1]
        return np.array(kinds, dtype=np.int64), np.array(inner, dtype=np.int64)

    def orders(self, rows: Columns) -> Options:
        """Rank orders: the first, and one that brings neighbouring stages closer where it shortens their messages.

        By ``_SHORTER`` and for one sequence, unless the order is asked for.
        """
        codes = self._codes("rank_order")
        tp, pp = rows["tp"], rows["pp"]
        closer = (pp > 1) & (rows["dp"] > 1) & (rows["cp"] == 1)
        if len(codes) > 1 and not self.constraints.touches("rank_order"):
            nbytes = self.problem.workload.sequence_length * self.problem.model.hidden_size
            sent, cluster = nbytes * self.problem.activation_bytes / tp, self.problem.cluster
            now = neighbour_s(cluster, sent, pp, tp * rows["cp"] * rows["dp"])
            closer &= neighbour_s(cluster, sent, pp, tp) < (1.0 - _SHORTER) * now
        return Options((codes == 0) | closer[:, None], {"rank_order": codes[None, :]})

    def switches(self, rows: Columns, free: Collection[str] = ()) -> Options:
        """Settings of the overlap switches that the launcher offers and that have traffic to hide.

        A switch in ``free`` (one that no rule reads) only takes its fastest setting.
        """
        sides = []
        for name in SWITCHES:
            codes = self._codes(name)
            sides.append(codes[-1:] if name in free else codes)
        tp, dp, ep = (v.reshape(1, -1) for v in np.meshgrid(*sides, indexing="ij"))
        mask = (~tp | (rows["tp"] > 1)[:, None]) & (~ep | model_facts(self.problem).is_moe)
        if "tp_overlap" in free or "ep_overlap" in free:
            mask |= np.ones_like(mask)
        return Options(
            np.broadcast_to(mask, (len(rows["tp"]), tp.size)), dict(zip(SWITCHES, (tp, dp, ep), strict=True))
        )

    # ---- knobs: dimensions opened late

    def knob_values(self, name: str) -> NDArray[Any]:
        """The values that the launcher offers and the request allows of a knob, ``recompute_layers`` aside."""
        values = self._knob_axis(name)
        return values[self.constraints.allows(name, values)]

    @property
    def counts_layers(self) -> bool:
        """Whether the launcher can recompute some of a rank's layers only."""
        return offers(self.capabilities, "recompute_layers")

    def knob_count(self, rows: Columns) -> NDArray[np.int64]:
        """How many settings of the knobs the launcher offers under each row, wishes not applied.

        Of the optimizer's shares only none, all and pinned ones are counted: the least that fits is not a hundred more.
        """
        modes = [ENUMS["recompute"][int(c)] for c in self._codes("recompute")]
        layers = -(-self.problem.model.num_layers // rows["pp"]) if self.counts_layers else np.ones_like(rows["pp"])
        settings = sum(m != "full" for m in modes) + layers * ("full" in modes)
        named = [0.0, 1.0, *map(float, self.constraints.values("offload_optimizer"))]
        shares = np.isin(self._knob_axis("offload_optimizer"), named)
        offloads = int(shares.sum()) * len(self._knob_axis("offload_activations"))
        return np.asarray(offloads * settings, dtype=np.int64)

    def _knob_axis(self, name: str) -> NDArray[Any]:
        if name == "offload_optimizer":
            pinned = [float(v) for v in self.constraints.values(name)]
            return offered(self.capabilities, name, np.unique(np.array([*SHARES, *pinned])))
        if name == "offload_activations":
            return offered(
                self.capabilities, name, np.unique(np.array([False, *self.constraints.values(name)], dtype=np.bool_))
            )
        return self._codes(name)

    def _codes(self, name: str) -> NDArray[Any]:
        if name in ENUMS:
            every = np.arange(len(ENUMS[name]))
            names = [ENUMS[name][i] for i in every]
            kept = set(offered_names(self.capabilities, name, names))
            return np.array([i for i in every if ENUMS[name][i] in kept], dtype=np.int64)
        return offered(self.capabilities, name, np.array([False, True]))


def chunk_numbers(num_layers: int, pp: int) -> list[int]:
    """Virtual stages that are searched, ascending.

    Those that divide the layers of a stage, up to 4 any, and 6, 8, 12, 16, 24 … where none is within a third.
    """
    low, high = num_layers // pp, -(-num_layers // pp)
    out = {v for n in (low, high) for v in divisors(max(n, 1)) if v > 1}
    for power in range(1, max(low, 1).bit_length()):
        for v in (2**power, 3 * 2 ** (power - 1)):
            near = any(3 * v <= 4 * other and 3 * other <= 4 * v for other in out)
            if v <= low and (v <= _ALWAYS or not near):
                out.add(v)
    return sorted(out)


def offers(capabilities: Mapping[str, Any], name: str) -> bool:
    """Whether a launcher offers more than the default of a dimension."""
    if name not in capabilities:
        return False
    value = capabilities[name]
    default = getattr(Strategy(), name)
    return not isinstance(value, (tuple, list, set, frozenset)) or any(v != default for v in value)


def offered(capabilities: Mapping[str, Any], name: str, candidates: NDArray[Any]) -> NDArray[Any]:
    """The candidates that a launcher accepts: all where it names no limit, only the default where it lacks the knob."""
    kept = set(offered_names(capabilities, name, candidates.tolist()))
    return candidates[[value in kept for value in candidates.tolist()]]


def offered_names(capabilities: Mapping[str, Any], name: str, candidates: Sequence[Any]) -> list[Any]:
    """The same for plain values."""
    if name not in capabilities:
        return [c for c in candidates if c == getattr(Strategy(), name)]
    value = capabilities[name]
    return [c for c in candidates if c in value]


def _all_divisors(degrees: NDArray[Any]) -> list[int]:
    return sorted({1, *(d for n in np.unique(degrees) for d in divisors(int(n)))})

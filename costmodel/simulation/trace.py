"""A simulated step as a Chrome trace: the Trace Event Format's JSON object form, which Perfetto opens.

One process per pipeline rank, one thread per stream. Slices of one thread never overlap. What the cost model knows of
the traffic inside a pass is how long it takes, not when: it is drawn at the pass's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boundary import boundary_messages
from ..evaluate import single_group
from ..group import Group
from ..layers import comm_times
from ..problem import Array
from ..splits import stage_counts
from ..step import gradient_comms, parameters
from .graph import KINDS
from .orders import BACKWARD, FORWARD, WEIGHT, WHOLE, positions

if TYPE_CHECKING:
    from .simulate import Simulation

Event = dict[str, Any]

STREAMS = ("compute", "p2p receive", "tp traffic", "cp traffic", "ep all-to-all", "dp traffic", "optimizer")
"""Threads of every process, in this order."""

_COMPUTE, _P2P, _TP, _CP, _EP, _DP, _OPTIMIZER = range(len(STREAMS))
_STREAM = {"tp": _TP, "cp": _CP, "ep": _EP, "etp": _EP}
_NAMES = {FORWARD: "forward", BACKWARD: "data gradient", WEIGHT: "weight gradient", WHOLE: "backward"}


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """The whole document: events by time, and what was simulated."""
    s = simulation
    slices = [*_passes(s), *_messages(s), *_layer_traffic(s), *_gradients(s), *_ends(s)]
    slices.sort(key=lambda e: (e["ts"], e["pid"], e["tid"]))
    used = {(e["pid"], e["tid"]) for e in slices}
    return {
        "traceEvents": [*_names(s.graph.pp, used), *slices],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": s.problem.model.name,
            "cluster": s.problem.cluster.name,
            "num_gpus": s.problem.cluster.num_gpus,
            "runtime": s.problem.runtime.name,
            "strategy": s.strategy.as_dict(),
            "step_time_s": s.step_time_s,
        },
    }


def _names(pp: int, used: set[tuple[int, int]]) -> Iterator[Event]:
    for rank in range(pp):
        whose = {"ph": "M", "ts": 0, "pid": rank, "tid": 0}
        yield {**whose, "name": "process_name", "args": {"name": f"pipeline rank {rank}"}}
        yield {**whose, "name": "process_sort_index", "args": {"sort_index": rank}}
        for tid, stream in enumerate(STREAMS):
            if (rank, tid) in used:
                yield {**whose, "tid": tid, "name": "thread_name", "args": {"name": stream}}
                yield {**whose, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _slice(name: str, rank: int, stream: int, begin_s: float, end_s: float, **args: Any) -> Event:
    """A complete event. Both ends are rounded to the nanosecond, so that neighbours meet and do not overlap."""
    begin, end = round(begin_s * 1e6, 3), round(end_s * 1e6, 3)
    return {
        "name": name, "cat": STREAMS[stream], "ph": "X", "ts": begin, "dur": round(max(0.0, end - begin), 3),
        "pid": rank, "tid": stream, "args": args,
    }  # fmt: skip


def _passes(s: Simulation) -> Iterator[Event]:
    g = s.graph
    for i in range(len(g)):
        kind, rank, microbatch = KINDS[g.kind[i]], int(g.rank[i]), int(g.microbatch[i])
        args = {"op": kind, "microbatch": microbatch, "chunk": int(g.chunk[i]), "stage": int(g.stage[i])}
        name = f"{_NAMES[kind]} {microbatch}"
        yield _slice(name, rank, _COMPUTE, float(s.begin_s[i]), float(s.end_s[i]), **args)


def _messages(s: Simulation) -> Iterator[Event]:
    """What a pass receives from another rank, and an arrow from the pass that made it."""
    g, message = s.graph, s.durations.message
    if not message:
        return
    group = single_group(s.problem, s.strategy)
    forward, backward = (float(sent[0]) for sent, _ in boundary_messages(s.problem, group.strategies))
    free: dict[int, float] = {}
    order = sorted(range(len(g)), key=lambda i: float(s.begin_s[i]))
    for i in order:
        source = int(g.awaited[i])
        if source == len(g) or KINDS[g.kind[i]] == WEIGHT or g.rank[source] == g.rank[i]:
            continue
        rank, sender, end = int(g.rank[i]), int(g.rank[source]), float(s.begin_s[i])
        begin = max(free.get(rank, 0.0), end - message)
        free[rank] = end
        what, nbytes = ("activations", forward) if g.kind[i] == 0 else ("gradients", backward)
        args = {"microbatch": int(g.microbatch[i]), "chunk": int(g.chunk[i]), "bytes": nbytes, "from_rank": sender}
        yield _slice(f"{what} {args['microbatch']}", rank, _P2P, begin, end, op="p2p", **args)
        yield from _arrow(i, (sender, float(s.begin_s[source]), float(s.end_s[source])), (rank, end))


def _arrow(number: int, source: tuple[int, float, float], target: tuple[int, float]) -> Iterator[Event]:
    """A flow from inside one pass to the beginning of another."""
    rank, begin, end = source
    both = {"name": "message", "cat": "message", "id": number}
    yield {**both, "ph": "s", "ts": round((begin + end) / 2.0 * 1e6, 3), "pid": rank, "tid": _COMPUTE}
    yield {**both, "ph": "f", "bp": "e", "ts": round(target[1] * 1e6, 3), "pid": target[0], "tid": _COMPUTE}


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Seconds and bytes of one parallelism in one pass of each chunk, ``[pp, chunk]``."""

    stream: int
    kinds: tuple[str, ...]
    seconds: Array
    nbytes: Array


def _layer_traffic(s: Simulation) -> Iterator[Event]:
    """Tensor, context and expert parallel traffic of each pass, before any overlap."""
    g = s.graph
    for traffic in _chunk_traffic(s):
        codes = [KINDS.index(kind) for kind in traffic.kinds]
        for i in np.flatnonzero(np.isin(g.kind, codes)):
            at = (int(g.rank[i]), int(g.chunk[i]))
            end, whole = float(s.end_s[i]), float(traffic.seconds[at])
            begin = max(float(s.begin_s[i]), end - whole)
            args = {"op": KINDS[g.kind[i]], "microbatch": int(g.microbatch[i]), "chunk": at[1]}
            if whole > 0.0:
                name = f"{STREAMS[traffic.stream]} of {_NAMES[KINDS[g.kind[i]]]} {args['microbatch']}"
                yield _slice(name, at[0], traffic.stream, begin, end, bytes=float(traffic.nbytes[at]), **args)


def _chunk_traffic(s: Simulation) -> Iterator[_Traffic]:
    group = single_group(s.problem, s.strategy)
    where = np.array(positions(s.strategy.schedule, group.pp, group.vpp))
    counts = stage_counts(s.problem, group.pp, group.vpp, s.strategy.layers_per_stage)[where]
    for phase, kinds in (("forward", (FORWARD,)), ("backward", (BACKWARD, WHOLE))):
        for stream in (_TP, _CP, _EP):
            seconds, nbytes = _kind_traffic(group, phase, stream)
            yield _Traffic(stream, kinds, counts @ seconds, counts @ nbytes)


def _kind_traffic(group: Group, phase: str, stream: int) -> tuple[Array, Array]:
    """Seconds and bytes of a stream's collectives in one layer of each kind, ``[kind]`` each."""
    seconds, nbytes = np.zeros(len(group.table.comms)), np.zeros(len(group.table.comms))
    for kind, comms in enumerate(group.table.comms):
        for comm in comms:
            if comm.phase == phase and _STREAM[comm.parallelism] == stream:
                count = np.broadcast_to(comm.count, (1,))
                seconds[kind] += float(comm_times(group.problem, comm)[0])
                nbytes[kind] += float(count[0]) * float(np.broadcast_to(comm.nbytes, (1,))[0])
    return seconds, nbytes


def _gradients(s: Simulation) -> Iterator[Event]:
    """Data parallel traffic: gathers before the first forward, one slice per bucket after the last backward."""
    d, g = s.durations, s.graph
    group = single_group(s.problem, s.strategy)
    dense, expert = parameters(group)
    for rank in range(g.pp):
        comms = gradient_comms(group, dense[rank], expert[rank])
        nbytes = {
            phase: sum(float(np.broadcast_to(c.nbytes * (c.count > 0), (1,))[0]) for c in comms if c.phase == phase)
            for phase in ("forward", "backward")
        }
        if d.gathers[rank] > 0.0:
            yield _slice("gather parameters", rank, _DP, 0.0, float(d.gathers[rank]), op="dp", bytes=nbytes["forward"])
        yield from _buckets(s, rank, nbytes["backward"])
    if d.tied > 0.0:
        begin = s.meet_s if g.pp == 1 else max(float(s.rank_end_s[0]), float(s.rank_end_s[-1]))
        for rank in {0, g.pp - 1}:
            yield _slice("tied embedding gradients", rank, _DP, begin, begin + d.tied, op="embedding")


def _buckets(s: Simulation, rank: int, nbytes: float) -> Iterator[Event]:
    """What the last backward did not hide of the reduction, and before it as much as hid under that pass."""
    d, end = s.durations, float(s.rank_end_s[rank])
    whole, count = float(d.reduction_whole[rank]), max(1, round(float(d.buckets[rank])))
    if not d.reductions[rank] > 0.0:
        return
    first = max(float(s.begin_s[s.graph.last[rank]]), end - max(whole, float(d.reductions[rank])))
    edges = np.linspace(first, end, count + 1)
    for i in range(count):
        args = {"bucket": i, "bytes": nbytes / count}
        yield _slice(f"gradient bucket {i}", rank, _DP, float(edges[i]), float(edges[i + 1]), op="dp", **args)


def _ends(s: Simulation) -> Iterator[Event]:
    """The optimizer step, and what a step takes whatever the layout."""
    d = s.durations
    last = s.step_time_s - d.fixed
    for rank in range(s.graph.pp):
        end = s.meet_s + float(d.optimizer[rank] + d.offload[rank])
        yield _slice("optimizer", rank, _OPTIMIZER, s.meet_s, end, op="optimizer")
        if d.fixed > 0.0:
            yield _slice("fixed", rank, _OPTIMIZER, last, s.step_time_s, op="fixed")

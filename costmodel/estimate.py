"""One strategy explained in full: seconds by part, bytes by rank and part, traffic by parallelism and tier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .boundary import boundary_messages
from .calibrated import beyond_calibration, calibrated_steps, model_family
from .evaluate import capacity_bytes, single_group
from .exposed import Pool, pools
from .flops import MFU_CONVENTION, model_flops_per_token
from .outside import totals
from .problem import Array, Problem
from .splits import check_split
from .step import (
    SELECTIVE,
    Group,
    compute_parts,
    gradient_comms,
    load,
    memory_parts,
    parameters,
    recompute_share,
    step_s,
    tied_embedding_bytes,
)
from .strategy import Strategy
from .traffic import selective_comms


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of collective in one step, as the busiest pipeline rank issues it.

    ``tensor_bytes`` is the tensor as ``Cluster.collective_time_s`` counts it, ``bytes_each`` what a rank sends for it
    (a ring's 2(n-1)/n of the tensor for an all-reduce, (n-1)/n for gathers, scatters and all-to-all, all of a p2p),
    ``bytes_per_step`` all of them, ``share`` their part of everything sent. ``time_s`` is before any overlap.
    """

    parallelism: str
    collective: str
    tier: str
    group_size: int
    tensor_bytes: float
    bytes_each: float
    count_per_step: float
    bytes_per_step: float
    share: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The prediction for one strategy. ``time_parts_s`` sums to the step, ``memory_parts_bytes`` to the peak."""

    problem: Problem
    strategy: Strategy
    step_time_s: float
    interval_s: tuple[float, float]
    time_parts_s: dict[str, float]
    peak_memory_bytes: float
    capacity_bytes: float
    memory_by_rank_bytes: tuple[float, ...]
    memory_parts_bytes: dict[str, float]
    memory_parts_by_rank: tuple[dict[str, float], ...]
    stage_times_s: tuple[tuple[float, float], ...]
    traffic: tuple[Traffic, ...]
    pools: tuple[Pool, ...]
    """The same traffic as what the step waits for: see ``exposed``."""
    model_flops_per_step: float
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every rank stays within the accelerator's memory."""
        return self.peak_memory_bytes <= self.capacity_bytes

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the whole job."""
        return self.problem.workload.tokens_per_step / self.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and accelerator."""
        return self.tokens_per_s / self.problem.cluster.num_gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation by ``mfu_convention``."""
        peak = self.problem.cluster.accelerator.peak_flops[self.problem.gemm_dtype]
        return self.model_flops_per_step / (self.step_time_s * peak * self.problem.cluster.num_gpus)

    @property
    def mfu_convention(self) -> str:
        """How the FLOPs of ``mfu`` are counted."""
        return MFU_CONVENTION

    @property
    def calibration(self) -> dict[str, Any] | None:
        """What the cluster's own runs made of the interval (half-widths as shares); None for a profile without any."""
        steps = calibrated_steps(self.problem)
        if steps is None:
            return None
        before = published_half_width(self.problem)
        return {"runs": steps.runs, "half_width_before": before, "half_width": steps.half_width}

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the names of the published JSON schema."""
        return {
            "model": self.problem.model.name,
            "cluster": self.problem.cluster.name,
            "num_gpus": self.problem.cluster.num_gpus,
            "runtime": self.problem.runtime.name,
            "strategy": self.strategy.as_dict(),
            "fits": self.fits,
            "step_time_s": self.step_time_s,
            "step_time_interval_s": list(self.interval_s),
            "calibration": self.calibration,
            "time_parts_s": dict(self.time_parts_s),
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "mfu_convention": self.mfu_convention,
            "model_flops_per_step": self.model_flops_per_step,
            "peak_memory_bytes": self.peak_memory_bytes,
            "capacity_bytes": self.capacity_bytes,
            "memory_parts_bytes": dict(self.memory_parts_bytes),
            "memory_by_rank_bytes": list(self.memory_by_rank_bytes),
            "stage_times_s": [{"forward_s": f, "backward_s": b} for f, b in self.stage_times_s],
            "traffic": [{name: getattr(t, name) for name in Traffic.__slots__} for t in self.traffic],
            "pools": [pool.as_dict() for pool in self.pools],
            "assumptions": list(self.assumptions),
        }


def estimate(problem: Problem, strategy: Strategy) -> Estimate:
    """Predict one strategy, its explicit layer split and per-rank recomputation included.

    Raises InputError when the split does not cover the model or an accelerator lacks a figure the workload needs. The
    launch rules are the launcher's to check.
    """
    if strategy.layers_per_stage is not None:
        check_split(strategy.layers_per_stage, problem.model, strategy.pp, strategy.vpp)
    group = single_group(problem, strategy)
    explicit = strategy.recompute_per_stage
    share = recompute_share(group, None if explicit is None else np.array(explicit))
    work = load(group, share)
    dense, expert = parameters(group)
    rest = totals(group, dense, expert)
    parts, slow = step_s(group, work, rest)
    messages = float(parts["pp_comm"][0] / rest.p2p[0]) if rest.p2p[0] > 0 else 0.0
    compute = parts.pop("compute")
    detail = compute_parts(group, slow)
    assert np.isclose(sum(v[0] for v in detail.values()), compute[0]), "parts of a pass must sum to the pass"
    times = {name: float(value[0]) for name, value in {**detail, **parts}.items()}
    memory = memory_parts(group, share)
    by_rank = tuple({name: float(v[r, 0]) for name, v in memory.items()} for r in range(group.pp))
    per_rank = tuple(sum(parts.values()) for parts in by_rank)
    fullest = int(np.argmax(per_rank))
    step = sum(times.values())
    flops = problem.workload.tokens_per_step * model_flops_per_token(
        problem.model, problem.workload.sequence_length, problem.workload.train_mtp
    )
    backward = work.total - work.forward
    traffic = traffic_table(group, share, int(slow[0]))
    return Estimate(
        problem=problem,
        strategy=strategy,
        step_time_s=step,
        interval_s=interval(problem, step),
        time_parts_s=times,
        peak_memory_bytes=per_rank[fullest],
        capacity_bytes=capacity_bytes(problem),
        memory_by_rank_bytes=per_rank,
        memory_parts_bytes=by_rank[fullest],
        memory_parts_by_rank=by_rank,
        stage_times_s=tuple((float(f), float(b)) for f, b in zip(work.forward[:, 0], backward[:, 0], strict=True)),
        traffic=traffic,
        pools=pools(group, work, share, slow, (dense, expert), messages),
        model_flops_per_step=flops,
        assumptions=(*assumptions(problem, strategy), *beyond_calibration(problem, strategy, traffic)),
    )


INTERVALS = {"dense": (0.10, 0.15), "moe": (0.18, 0.36), "hybrid": (0.23, 0.23)}
"""Half-width of the interval by kind of model, under a measured runtime profile and under one that is only the nearest.

They hold about 80 % of the published runs: the first of runs as predicted, the second of the same runs predicted as if
their source had never been seen (docs/accuracy.md). ``hybrid`` models have linear attention or state-space layers."""

TELL_APART = 0.6
"""Share of that half-width by which the predictions of two layouts of one problem have to differ to be told apart.

Layouts of one model on one cluster share part of their error. Measured on the groups of five and more timed layouts of
one dense model, cluster, batch and precision among the published runs and vTrain's sweep (106 groups, 1,469 runs): the
quickest layout, or one within 1 % of it, is among those predicted within 6 % of the best predicted one in 81 % of the
groups (in 51 % it is the best predicted one), and trying those takes the mean regret from 6.0 to 1.2 %. Mixtures were
measured in two such groups only: the same share of their wider interval is assumed. ``shardwise validate`` reports
these figures for any file of runs, under ``ranking``."""


def interval(problem: Problem, step: float) -> tuple[float, float]:
    """A range for the step time in seconds, from the errors seen on published runs of such models."""
    half = half_width(problem)
    return step * (1.0 - half), step * (1.0 + half)


def half_width(problem: Problem) -> float:
    """Half of the interval's width as a share of the step time: what the cluster's own runs left, where it has some."""
    steps = calibrated_steps(problem)
    return published_half_width(problem) if steps is None else steps.half_width


def published_half_width(problem: Problem) -> float:
    """The half-width without calibration."""
    measured, nearest = INTERVALS[model_family(problem.model)]
    return measured if problem.runtime.measured else nearest


def tell_apart(problem: Problem) -> float:
    """Share of a step time within which two layouts of the problem cannot be told apart by their predictions."""
    return TELL_APART * half_width(problem)


def assumptions(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """What the prediction takes for granted, in sentences."""
    model, runtime, workload = problem.model, problem.runtime, problem.workload
    out = [*model.assumptions, *problem.cluster.assumptions]
    if not runtime.measured:
        out.append(f"runtime {runtime.name}: no published run stands behind its figures")
    if problem.attention_kernel != runtime.attention_kernel:
        device = problem.cluster.accelerator.name
        out.append(
            f"attention kernel {problem.attention_kernel}: {device} has no figures for {runtime.attention_kernel}"
        )
    if model.is_moe and workload.expert_imbalance == 1.0:
        out.append("tokens are spread evenly over the experts (expert_imbalance 1)")
    padded = int(problem.padded_vocabulary(np.array([strategy.tp]))[0])
    if padded != model.vocab_size:
        out.append(f"vocabulary padded from {model.vocab_size} to {padded}")
    if model.mtp and workload.train_mtp:
        out.append(f"{len(model.mtp)} multi-token-prediction layer(s) trained on the last stage")
    if strategy.offload_activations:
        out.append("offloaded activations move while their layer computes; what the host link cannot take adds time")
    if strategy.offload_optimizer > 0:
        out.append("the offloaded optimizer runs at the rate of the host link")
    return tuple(out)


def traffic_table(group: Group, share: Array, rank: int) -> tuple[Traffic, ...]:
    """Every collective of one step on a pipeline rank, most bytes first."""
    rows = [row for row in (*_layer_traffic(group, share, rank), *_step_traffic(group, rank)) if row[5] > 0]
    total = sum(sent_bytes(row[1], row[4], row[2]) * row[5] for row in rows) or 1.0
    cluster = group.problem.cluster
    out = []
    for parallelism, collective, size, stride, nbytes, count in rows:
        seconds = float(cluster.collective_time_s(collective, nbytes, size, stride)) * count
        tier = cluster.tiers[int(cluster.outermost_tier(size, stride))].name
        each = sent_bytes(collective, nbytes, size)
        moved = each * count
        out.append(Traffic(parallelism, collective, tier, size, nbytes, each, count, moved, moved / total, seconds))
    return tuple(sorted(out, key=lambda t: -t.bytes_per_step))


def sent_bytes(collective: str, nbytes: float, size: int) -> float:
    """Bytes one rank sends: Thakur et al., IJHPCA 2005, section 4 (ring and pairwise algorithms)."""
    if collective == "p2p":
        return nbytes
    return (2.0 if collective == "all_reduce" else 1.0) * (size - 1) / size * nbytes


_RowT = tuple[str, str, int, int, float, float]


def _layer_traffic(group: Group, share: Array, rank: int) -> Iterator[_RowT]:
    """Collectives inside layers; full recomputation repeats the forward ones of the recomputed share."""
    m = float(group.strategies.num_microbatches[0]) * group.share
    merged: dict[tuple[str, str, int, int, float], float] = {}
    geometry, kinds = group.table.geometry, group.problem.model.kinds
    for kind, comms in enumerate(group.table.comms):
        held = float(group.counts[rank, kind])
        if kind < len(kinds) and group.strategies.recompute[0] == SELECTIVE:
            comms = (*comms, *selective_comms(group.problem, kinds[kind], geometry))
        inside = kind < group.table.embedding or kind == group.table.mtp
        for comm in comms if held else ():
            again = float(share[rank, 0]) if inside and comm.phase == "forward" else 0.0
            count = float(np.broadcast_to(comm.count, (1,))[0]) * held * m * (1.0 + again)
            size, stride, nbytes = int(comm.size[0]), int(comm.stride[0]), float(comm.nbytes[0])
            key = (comm.parallelism, comm.collective, size, stride, nbytes)
            merged[key] = merged.get(key, 0.0) + count
    for (parallelism, collective, size, stride, nbytes), count in merged.items():
        yield parallelism, collective, size, stride, nbytes, count


def _step_traffic(group: Group, rank: int) -> Iterator[_RowT]:
    """Data-parallel collectives, stage boundaries and tied embeddings."""
    s, problem = group.strategies, group.problem
    dense, expert = parameters(group)
    buckets = max(1.0, float(group.layers[rank, 0]))  # one per layer, so that it can overlap with the next layer's pass
    for comm in gradient_comms(group, dense[rank], expert[rank]):
        size, stride = round(float(comm.size[0])), round(float(comm.stride[0]))
        yield (
            comm.parallelism,
            comm.collective,
            size,
            stride,
            float(comm.nbytes[0]) / buckets,
            float(comm.count[0]) * buckets,
        )
    if group.pp == 1:
        return
    stride = int(s.stage_stride[0])
    m, v, p = float(s.num_microbatches[0]), group.vpp, group.pp
    # A rank sends each chunk's output forward and its input's gradient back, but for the two ends of the model.
    passes = ((v - int(rank == p - 1)) * m, (v - int(rank == 0)) * m)
    merged: dict[tuple[str, str, int, int, float], float] = {}
    for (nbytes, gathered), count, received in zip(boundary_messages(problem, s), passes, passes[::-1], strict=True):
        sent = ("pp", "p2p", 2, stride, float(nbytes[0]))
        merged[sent] = merged.get(sent, 0.0) + count
        if gathered[0] > 0:
            whole = ("pp", "all_gather", int(s.tp[0]), 1, float(gathered[0]))
            merged[whole] = merged.get(whole, 0.0) + received
    yield from ((*key, count) for key, count in merged.items() if count)
    if problem.model.tied_embeddings and rank in (0, p - 1):
        yield "embedding", "all_reduce", 2, stride * (p - 1), float(tied_embedding_bytes(group)[0]), 1.0

"""Small problems, and every strategy of them by plain loops: what the search must agree with."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import strategies as st

from shardwise.costmodel.evaluate import evaluate, groups
from shardwise.costmodel.model import AttentionCore, Extra, LayerKind, Linear, Mixer, Mlp, ModelSpec, Moe, Split
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.step import Group
from shardwise.costmodel.strategy import CP_COMMS, ENUMS, RECOMPUTES, SCHEDULES, Strategies, Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.launchers.base import Launcher, get_launcher
from shardwise.launchers.capability import Range

GIB = float(1 << 30)


def mixer(hidden: int, heads: int, kv_heads: int) -> Mixer:
    dim = hidden // heads
    linears = (
        Linear("qkv", hidden, (heads + 2 * kv_heads) * dim, Split.COLUMN),
        Linear("attention_out", heads * dim, hidden, Split.ROW),
    )
    return Mixer("gqa", linears, AttentionCore(heads, kv_heads, dim, dim))


def dense_model(
    layers: int = 4, hidden: int = 512, heads: int = 4, vocabulary: int = 8192, tied: bool = False
) -> ModelSpec:
    norms = (Extra("norm1", hidden, norm=True), Extra("norm2", hidden, norm=True))
    kind = LayerKind("dense", mixer(hidden, heads, heads), Mlp(hidden, 4 * hidden, True), None, norms)
    return ModelSpec("small", hidden, vocabulary, (kind,), (0,) * layers, tied_embeddings=tied)


def moe_model(layers: int = 4, hidden: int = 512, heads: int = 4, experts: int = 4, first_dense: int = 1) -> ModelSpec:
    plain = dense_model(layers, hidden, heads)
    block = Moe(experts, 2, Mlp(hidden, hidden, True), Linear("router", hidden, experts, Split.NONE))
    kind = LayerKind("moe", mixer(hidden, heads, heads), None, block, plain.kinds[0].norms)
    order = tuple(0 if i < first_dense else 1 for i in range(layers))
    return replace(plain, name="small-moe", kinds=(plain.kinds[0], kind), layers=order)


def problem(
    model: ModelSpec | None = None,
    gpus: int = 4,
    batch: int = 8,
    sequence: int = 1024,
    memory_gib: float | None = None,
    cluster: str = "dgx-a100",
    runtime: str = "megatron-core",
    **changes: float,
) -> Problem:
    """A small job; ``memory_gib`` is what an accelerator has beyond the runtime's own contexts."""
    profile = load_runtime(runtime).model_copy(update=changes)
    system = load_cluster(cluster, gpus)
    if memory_gib is not None:
        memory = memory_gib * GIB + profile.context_bytes
        system = replace(system, accelerator=replace(system.accelerator, memory_bytes=memory))
    return Problem(model or dense_model(), system, Workload(batch, sequence), profile)


@cache
def launcher(name: str) -> Launcher:
    return get_launcher(name)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def every_mesh(p: Problem):
    n, batch = p.cluster.num_gpus, p.workload.global_batch_size
    for tp, cp, pp in itertools.product(divisors(n), repeat=3):
        if n % (tp * cp * pp) == 0 and pp <= p.model.num_layers:
            dp = n // (tp * cp * pp)
            if batch % dp == 0:
                for mbs in divisors(batch // dp):
                    yield tp, cp, pp, dp, mbs, batch // dp // mbs


def pipelines(pp: int, layers: int, schedules: tuple[str, ...]):
    for schedule in schedules:
        if schedule == "1f1b" or (pp > 1 and schedule in ("gpipe", "zb-h1", "dualpipe")):
            yield schedule, 1
        elif pp > 1 and schedule == "zb-v":
            yield schedule, 2
        elif pp > 1 and schedule == "interleaved":
            yield from ((schedule, v) for v in range(2, layers // pp + 1) if layers % (pp * v) == 0)


def contexts(cp: int):
    for kind in CP_COMMS if cp > 1 else ("p2p",):
        inner = {"a2a": [cp], "a2a+p2p": [d for d in divisors(cp) if 1 < d < cp]}.get(kind, [1])
        yield from ((kind, u) for u in inner)


def experts(p: Problem, tp: int):
    counts = [k.moe.num_experts for k in p.model.kinds if k.moe]
    if not counts:
        return [(1, 1)]
    return [(ep, etp) for ep in divisors(counts[0]) for etp in divisors(tp)]


def knobs(p: Problem, pp: int):
    most = -(-p.model.num_layers // pp)
    for mode, offload in itertools.product(RECOMPUTES, (0.0, 1.0)):
        for layers in [*range(1, most + 1), -1] if mode == "full" else [-1]:
            yield mode, layers, offload


def every_strategy(p: Problem, who: Launcher, pins: dict | None = None) -> list[Strategy]:
    """All with the pinned values that the launcher accepts, without explicit splits, HSDP groups left out."""
    schedules = tuple(who.capabilities["schedule"])
    out, pins = [], pins or {}
    for tp, cp, pp, dp, mbs, m in every_mesh(p):
        mesh = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "micro_batch_size": mbs}
        if any(mesh.get(name, value) != value for name, value in pins.items()):
            continue
        for (schedule, vpp), (kind, u), (ep, etp), zero, sp, switches, (mode, layers, offload) in itertools.product(
            list(pipelines(pp, p.model.num_layers, schedules)), list(contexts(cp)), experts(p, tp), range(4),
            (False, True) if tp > 1 else (False,), itertools.product((False, True), repeat=3), list(knobs(p, pp)),
        ):  # fmt: skip
            if (switches[0] and tp == 1) or (switches[2] and ep == 1):
                continue
            out.append(
                Strategy(
                    tp=tp,
                    sp=sp,
                    cp=cp,
                    cp_comm=kind,
                    ulysses=u,
                    pp=pp,
                    vpp=vpp,
                    schedule=schedule,
                    dp=dp,
                    ep=ep,
                    etp=etp,
                    zero=zero,
                    micro_batch_size=mbs,
                    num_microbatches=m,
                    recompute=mode,
                    recompute_layers=layers,
                    offload_optimizer=offload,
                    tp_overlap=switches[0],
                    dp_overlap=switches[1],
                    ep_overlap=switches[2],
                )
            )
    rows = Strategies.of(out)
    keep = who.allowed(p, rows)
    for name, value in pins.items():
        keep &= getattr(rows, name) == (ENUMS[name].index(value) if name in ENUMS else value)
    return [s for s, k in zip(out, keep, strict=True) if k]


def brute_force(p: Problem, who: Launcher, pins: dict | None = None) -> tuple[float, Strategy | None]:
    """The least step among all strategies that fit, layers split evenly."""
    strategies = every_strategy(p, who, pins)
    if not strategies:
        return np.inf, None
    strategies += least_shares(p, strategies, who, pins)
    e = evaluate(p, Strategies.of(strategies))
    step = np.where(e.fits, e.step_time_s, np.inf)
    i = int(np.argmin(step))
    return float(step[i]), strategies[i] if np.isfinite(step[i]) else None


def least_shares(p: Problem, strategies: list[Strategy], who: Launcher, pins: dict | None = None) -> list[Strategy]:
    """Those with everything offloaded, each with the fewest hundredths that still fit."""
    some = [s for s in strategies if s.offload_optimizer == 1.0 and "offload_optimizer" not in (pins or {})]
    if not some or not isinstance(who.capabilities["offload_optimizer"], Range):
        return []
    rows = Strategies.of(some)
    low, high = np.zeros(len(some), dtype=int), np.full(len(some), 100)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        fits = evaluate(p, rows.replace(offload_optimizer=middle / 100)).fits
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return [replace(s, offload_optimizer=int(k) / 100) for s, k in zip(some, high, strict=True)]


def compositions(total: int, parts: int, ends: bool = True):
    """Every way to split layers over stages; only the first and the last stage may be empty."""
    if parts == 1:
        yield (total,)
        return
    for split in itertools.product(range(total + 1), repeat=parts - 1):
        rest = total - sum(split)
        whole = (*split, rest)
        if rest >= 0 and all(n > 0 for n in whole[1:-1]):
            yield whole


def recomputed(held: list[int], uniform: bool):
    """Recomputed layers per rank: any number, or the same for every rank (as many as it has)."""
    if uniform:
        yield from (tuple(min(k, n) for n in held) for k in range(1, max(held) + 1))
        return
    yield from (c for c in itertools.product(*(range(n + 1) for n in held)) if any(c))


def every_split(p: Problem, who: Launcher, base: Strategy, uniform: bool):
    """Every layer split of a strategy with one chunk per rank, with every recomputation and offload."""
    for layers in compositions(p.model.num_layers, base.pp):
        for offload in (0.0, 1.0):
            one = replace(base, layers_per_stage=layers, offload_optimizer=offload)
            variants = [replace(one, recompute=mode) for mode in ("none", "selective")]
            variants += [
                replace(one, recompute="full", recompute_per_stage=again) for again in recomputed(list(layers), uniform)
            ]
            yield from (s for s in variants if not who.violations(p, s))


@st.composite
def pipelined(draw, recomputes=RECOMPUTES, schedules=SCHEDULES) -> tuple[Problem, Strategy]:
    """A pipeline of a small dense or mixed model with a random layer split, on a device it may or may not fit."""
    pp, layers = draw(st.sampled_from([2, 4])), 16
    schedule = draw(st.sampled_from(schedules))
    vpp = {"interleaved": draw(st.sampled_from([2, 4])), "zb-v": 2}.get(schedule, 1)
    chunks = pp * vpp
    cuts = sorted(draw(st.lists(st.integers(0, layers - chunks), min_size=chunks - 1, max_size=chunks - 1)))
    split = tuple(int(n) + 1 for n in np.diff([0, *cuts, layers - chunks]))
    few = {"dualpipe": [2 * pp, 8 * pp], "1f1b": [1, pp, 2 * pp, 8 * pp], "gpipe": [1, pp, 2 * pp, 8 * pp]}
    moe, tp, dp = draw(st.booleans()), draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 8]))
    s = Strategy(
        tp=tp, sp=tp > 1, pp=pp, vpp=vpp, schedule=schedule, dp=dp, ep=min(dp, 4) if moe else 1,
        zero=draw(st.integers(0, 3)),
        num_microbatches=draw(st.sampled_from(few.get(schedule, [pp, 2 * pp, 8 * pp]))),
        recompute=draw(st.sampled_from(recomputes)), dp_overlap=draw(st.booleans()), layers_per_stage=split,
    )  # fmt: skip
    model = moe_model(layers, first_dense=3) if moe else dense_model(layers, tied=draw(st.booleans()))
    memory = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 64.0]))
    return problem(model, s.world_size, s.dp * s.num_microbatches, memory_gib=memory), s


def group_of(p: Problem, strategies: Strategies) -> Group:
    """The one group of strategies that share a pipeline."""
    (_, group), *_ = groups(p, strategies)
    return group

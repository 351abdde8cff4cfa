"""Plans drawn at random from what a launcher can express, over the problems of its sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import ENUMS, Strategies, Strategy
from shardwise.launchers.base import Launcher, Range
from shardwise.launchers.own_splits import splits_of
from shardwise.launchers.rule import allowed, divisors

from .problems import problem
from .samples import Sample


def drawn_plans(launcher: Launcher, sample: Sample, count: int, seed: int) -> list[tuple[Problem, Strategy]]:
    """``count`` plans that the launcher allows, spread over the sample's problems."""
    rng = np.random.default_rng(seed)
    problems = [problem(**given) for given in sample.problems]
    found: list[tuple[Problem, Strategy]] = []
    for turn in range(100):
        p = problems[turn % len(problems)]
        many = draw(rng, launcher, p, 4000)
        rows = rng.permutation(np.flatnonzero(allowed(p, many, launcher.search_rules)))
        plans = [many[int(row)] for row in rows[:40]]
        # Of the splits that a framework makes itself, each in its turn.
        plans = [own[i % len(own)] if (own := splits_of(launcher, p, s)) else s for i, s in enumerate(plans)]
        found += [(p, s) for s in dict.fromkeys(plans) if not launcher.violations(p, s)][: -(-count // len(problems))]
        if len(found) >= count and turn + 1 >= len(problems):
            return found
    raise AssertionError(f"{launcher.name}: only {len(found)} plans of {count} in the space of its sample")


def draw(rng: np.random.Generator, launcher: Launcher, p: Problem, n: int) -> Strategies:
    """Strategies over every dimension the launcher has, dp and micro-batches filling the GPUs and the batch."""
    gpus, layers = p.cluster.num_gpus, p.model.num_layers

    def some(name: str, *values: Any) -> Any:
        capable = launcher.capabilities[name]
        kept = [v for v in values if v in capable]
        if not isinstance(capable, Range):
            kept = kept or list(capable)
        codes = [ENUMS[name].index(v) for v in kept] if name in ENUMS else kept
        return rng.choice(codes, n)

    small = [d for d in divisors(gpus) if d <= 16]
    tp, cp = some("tp", *small), some("cp", 1, 1, *small)
    pp = some("pp", *(d for d in divisors(gpus) if d <= min(layers, 24)))
    vpp = np.where(pp > 1, some("vpp", 1, 1, 2, 3, 4), 1)
    comm, recompute = some("cp_comm", *ENUMS["cp_comm"]), some("recompute", *ENUMS["recompute"])
    inner = some("ulysses", 1, 2, 4)
    ulysses = np.where(comm < 2, 1, np.where(comm == 2, cp, inner))
    dp = np.maximum(gpus // (tp * cp * pp), 1)
    mbs = some("micro_batch_size", 1, 1, 2, 3, 4)
    moe = p.model.is_moe
    plain = some("schedule", *(s for s in ENUMS["schedule"] if s != "interleaved"))
    zero = some("zero", 0, 1, 1, 2, 3)
    layers_again = some("recompute_layers", -1, 1, 2, 4)
    return Strategies(
        tp=tp, cp=cp, pp=pp, dp=dp, micro_batch_size=mbs, cp_comm=comm, ulysses=ulysses, recompute=recompute, vpp=vpp,
        num_microbatches=np.maximum(p.workload.global_batch_size // (dp * mbs), 1),
        schedule=np.where(pp == 1, 1, np.where(vpp > 1, 2, plain)), ep=some("ep", 1, 2, 4, 8, 16) if moe else 1,
        etp=some("etp", 1, 1, 2) if moe else 1, sp=some("sp", True, True, False) & (tp > 1), zero=zero,
        zero_group=np.where(zero > 0, some("zero_group", 0, 0, 2, 4, 8), 0),
        offload_optimizer=some("offload_optimizer", 0.0, 0.0, 0.5),
        offload_activations=some("offload_activations", False, False, True),
        recompute_layers=np.where(recompute == 2, layers_again, -1),
        tp_overlap=some("tp_overlap", False, False, True) & (tp > 1),
        ep_overlap=some("ep_overlap", False, True) & moe, dp_overlap=some("dp_overlap", False, True, True),
    )  # fmt: skip

"""Plans that Megatron must accept, over models, clusters and degrees."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.base import get_launcher

from ..problems import DEEPSEEK, GPT, LLAMA, MIXTRAL, QWEN, fitted, problem

_TP8 = {"tp": 8, "sp": True}
_WEAVE: dict[str, Any] = {"schedule": "interleaved"}

_DENSE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": LLAMA}, {**_TP8, "pp": 4}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "tp_overlap": True}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "vpp": 5, **_WEAVE}),
    ({"name": LLAMA}, {"tp": 4, "sp": True, "pp": 4, "vpp": 5, "cp": 2, **_WEAVE}),
    ({"name": LLAMA, "sequence": 32768, "batch": 256}, {**_TP8, "pp": 4, "cp": 4}),
    ({"name": LLAMA, "sequence": 131072, "batch": 64}, {**_TP8, "cp": 16, "recompute": "full"}),
    ({"name": LLAMA}, {"tp": 4, "sp": True, "cp": 2, "cp_comm": "a2a", "ulysses": 2, "pp": 2}),
    ({"name": LLAMA}, {"tp": 2, "sp": True, "cp": 8, "cp_comm": "a2a+p2p", "ulysses": 4, "pp": 4}),
    ({"name": LLAMA}, {"tp": 4, "cp": 4, "cp_comm": "all_gather", "pp": 2}),
    ({"name": LLAMA}, {"tp": 16, "sp": True, "pp": 2}),
    ({"name": LLAMA}, {"tp": 8, "pp": 2, "zero": 0}),
    ({"name": LLAMA}, {"tp": 8, "pp": 2, "zero": 0, "dp_overlap": False}),
    ({"name": LLAMA}, {**_TP8, "pp": 2, "zero_group": 8}),
    ({"name": LLAMA}, {**_TP8, "cp": 2, "pp": 4, "zero_group": 4}),
    ({"name": LLAMA}, {"zero": 3}),
    ({"name": LLAMA}, {"zero": 2, "tp": 2, "sp": True}),
    ({"name": LLAMA}, {"zero": 3, "zero_group": 64, "recompute": "full"}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "recompute": "selective"}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "recompute": "full", "recompute_layers": 7}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "vpp": 5, "recompute": "full", "recompute_layers": 10, **_WEAVE}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "recompute": "full", "recompute_per_stage": (3, 3, 3, 3)}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "layers_per_stage": (19, 21, 21, 19)}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "layers_per_stage": (18, 22, 21, 19)}),
    ({"name": LLAMA}, {**_TP8, "pp": 2, "layers_per_stage": (41, 39)}),
    ({"name": LLAMA}, {"tp": 2, "sp": True, "pp": 4, "rank_order": "tp-cp-ep-pp-dp"}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "vpp": 5, "rank_order": "tp-cp-ep-pp-dp", **_WEAVE}),
    ({"name": LLAMA}, {"tp": 4, "sp": True, "pp": 2, "zero_group": 8, "rank_order": "tp-cp-ep-pp-dp"}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "layers_per_stage": (0, 27, 27, 26)}),
    ({"name": LLAMA}, {**_TP8, "pp": 4, "vpp": 2, "layers_per_stage": (9, 10, 10, 10, 11, 10, 10, 10), **_WEAVE}),
    ({"name": LLAMA}, {**_TP8, "pp": 8, "vpp": 3, **_WEAVE}),
    ({"name": LLAMA, "gpus": 504, "batch": 1008}, {**_TP8, "pp": 3}),
    ({"name": LLAMA, "dtype": "fp8"}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "dtype": "mxfp8", "cluster": "dgx-b200", "gpus": 256}, {"tp": 4, "sp": True, "pp": 2}),
    ({"name": LLAMA, "dtype": "nvfp4", "cluster": "dgx-b200", "gpus": 256}, {"tp": 4, "sp": True, "pp": 2}),
    ({"name": LLAMA, "optimizer": "adam_bf16_moments"}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "optimizer": "adam_8bit"}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "optimizer": "muon"}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "optimizer": "sgd"}, {**_TP8, "pp": 4, "zero": 0}),
    ({"name": LLAMA, "gpus": 64, "batch": 128}, {**_TP8, "offload_optimizer": 0.5}),
    ({"name": LLAMA, "gpus": 8, "batch": 16}, {**_TP8, "recompute": "full"}),
    ({"name": LLAMA, "runtime": "nemo-24.07"}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "changes": {"cuda_graphs": True}}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "changes": {"vocab_multiple": 1}}, {**_TP8, "pp": 4}),
    ({"name": LLAMA, "changes": {"grad_comm_bytes": 2.0}}, {**_TP8, "pp": 4}),
    ({"name": GPT, "sequence": 2048, "batch": 1536, "gpus": 768}, {**_TP8, "pp": 8, "vpp": 6, **_WEAVE}),
    ({"name": GPT, "sequence": 2048, "batch": 1536, "gpus": 1024, "dtype": "fp16"}, {"tp": 8, "pp": 16}),
    ({"name": GPT, "sequence": 2048, "dtype": "fp32"}, {**_TP8, "pp": 32}),
]

_EXPERTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": MIXTRAL}, {"tp": 2, "sp": True, "pp": 8, "ep": 8}),
    ({"name": MIXTRAL}, {"tp": 4, "sp": True, "pp": 4, "ep": 4, "etp": 4}),
    ({"name": MIXTRAL}, {"tp": 2, "sp": True, "pp": 4, "vpp": 14, "ep": 8, **_WEAVE}),
    ({"name": MIXTRAL}, {"tp": 2, "sp": True, "pp": 4, "vpp": 7, "ep": 8, "ep_overlap": True, **_WEAVE}),
    ({"name": MIXTRAL}, {"ep": 8, "ep_overlap": True, "recompute": "selective"}),
    ({"name": MIXTRAL}, {"ep": 8, "zero": 3}),
    ({"name": MIXTRAL, "sequence": 16384}, {"cp": 4, "pp": 8, "ep": 8}),
    ({"name": MIXTRAL, "runtime": "megatron-core-moe"}, {"pp": 8, "ep": 8}),
    ({"name": MIXTRAL, "changes": {"moe_dispatcher": "hybridep"}}, {"pp": 8, "ep": 8}),
    ({"name": MIXTRAL, "changes": {"moe_dispatcher": "allgather"}}, {"pp": 8, "ep": 2}),
    ({"name": DEEPSEEK, "gpus": 1024, "batch": 8192}, {"pp": 16, "ep": 64}),
    ({"name": DEEPSEEK, "gpus": 1024, "batch": 8192, "dtype": "fp8_block"}, {"pp": 8, "vpp": 4, "ep": 32, **_WEAVE}),
    ({"name": DEEPSEEK, "gpus": 256, "batch": 2048}, {"tp": 2, "sp": True, "pp": 8, "ep": 32, "recompute": "full"}),
    ({"name": DEEPSEEK, "sequence": 32768}, {"tp": 2, "sp": True, "cp": 4, "pp": 8, "ep": 64}),
    ({"name": DEEPSEEK, "batch": 2048}, {"pp": 8, "vpp": 2, "ep": 32, "ep_overlap": True, **_WEAVE}),
    (
        {"name": DEEPSEEK, "changes": {"selective_recompute": "norms_and_activations"}},
        {"pp": 8, "ep": 64, "recompute": "selective"},
    ),
    ({"name": DEEPSEEK, "train_mtp": False}, {"pp": 8, "ep": 64, "layers_per_stage": (7, 8, 8, 8, 8, 8, 8, 6)}),
    ({"name": QWEN}, {"tp": 4, "sp": True, "pp": 8, "ep": 8}),
    ({"name": QWEN}, {"tp": 4, "sp": True, "pp": 8, "ep": 4, "rank_order": "tp-cp-ep-pp-dp"}),
    ({"name": MIXTRAL}, {"tp": 8, "sp": True, "pp": 4, "ep": 4, "etp": 2, "rank_order": "tp-cp-ep-pp-dp"}),
    ({"name": "gpt-oss-120b", "gpus": 64, "batch": 512}, {"ep": 32, "pp": 2}),
    (
        {"name": "gpt-oss-20b", "gpus": 64, "batch": 512, "sequence": 16384},
        {"cp": 4, "cp_comm": "a2a", "ulysses": 4, "ep": 8},
    ),
    ({"name": QWEN}, {"tp": 2, "sp": True, "pp": 8, "vpp": 3, "ep": 32, **_WEAVE}),
    ({"name": QWEN}, {"tp": 4, "sp": True, "pp": 8, "ep": 8, "zero_group": 8}),
    ({"name": QWEN, "sequence": 32768}, {"tp": 2, "sp": True, "cp": 4, "pp": 4, "ep": 32}),
]


def random_plans(count: int, seed: int) -> list[tuple[Problem, Strategy]]:
    """Plans that our rules allow, drawn over models, precisions, optimizers, dispatchers and every dimension."""
    rng = np.random.default_rng(seed)
    made: list[tuple[Problem, Strategy]] = []
    while len(made) < count:
        p = _random_problem(rng)
        many = _random_strategies(rng, p, 400)
        rows = np.flatnonzero(get_launcher("megatron").allowed(p, many))
        made += [(p, many[int(row)]) for row in rng.permutation(rows)[:4]]
    return made[:count]


def _random_problem(rng: np.random.Generator) -> Problem:
    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    dtype = one("bf16", "bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4")
    return problem(
        one(LLAMA, MIXTRAL, DEEPSEEK, QWEN, "qwen2.5-7b", "gpt-oss-20b", "glm-4.5-air", "nemotron-4-340b"),
        gpus=one(8, 64, 96, 256),
        batch=one(64, 96, 384),
        sequence=one(1024, 4096, 10240),
        dtype=dtype,
        cluster="dgx-b200" if dtype in ("mxfp8", "nvfp4") else "dgx-h100",
        optimizer=one("adam", "adam", "adam_8bit", "adam_bf16_moments", "muon"),
        changes={
            "moe_dispatcher": one("allgather", "alltoall", "deepep", "hybridep"),
            "cuda_graphs": one(False, True),
            "selective_recompute": one("attention_core", "norms_and_activations"),
        },
    )


def _random_strategies(rng: np.random.Generator, p: Problem, n: int) -> Strategies:
    def some(*values: int) -> Any:
        return rng.choice(values, n)

    tp, pp, vpp, cp, mbs = some(1, 2, 4, 8, 3), some(1, 2, 3, 4, 8), some(1, 1, 2, 4), some(1, 2, 4, 3), some(1, 2, 3)
    comm, recompute = rng.integers(0, 4, n), rng.integers(0, 3, n)
    ulysses = np.where(comm < 2, 1, np.where(comm == 2, cp, 2))
    dp = np.maximum(p.cluster.num_gpus // (tp * cp * pp), 1)
    moe = p.model.is_moe
    return Strategies(
        tp=tp, pp=pp, vpp=vpp, cp=cp, micro_batch_size=mbs, dp=dp, cp_comm=comm, ulysses=ulysses, recompute=recompute,
        num_microbatches=np.maximum(p.workload.global_batch_size // (dp * mbs), 1), schedule=np.where(vpp > 1, 2, 1),
        ep=some(1, 2, 4, 8, 16) if moe else 1, etp=some(1, 1, 2) if moe else 1, sp=(rng.random(n) < 0.8) & (tp > 1),
        zero=some(0, 1, 1, 2, 3), zero_group=some(0, 0, 2, 4), offload_optimizer=rng.choice([0.0, 0.0, 0.5], n),
        recompute_layers=np.where(recompute == 2, some(-1, 1, 2, 4), -1), tp_overlap=rng.random(n) < 0.2,
        ep_overlap=(rng.random(n) < 0.3) & moe, dp_overlap=rng.random(n) < 0.7, rank_order=some(0, 0, 1),
    )  # fmt: skip


def plans() -> list[tuple[Problem, Strategy]]:
    """Every plan with its problem."""
    return [(p, fitted(p, **settings)) for given, settings in _DENSE + _EXPERTS for p in [problem(**given)]]

"""torchtitan 0.3."""

from __future__ import annotations

from typing import Any

from shardwise.costmodel.strategy import Strategy

from . import Sample

_TITAN: dict[str, Any] = {"runtime": "torchtitan"}
_8B = {**_TITAN, "name": "llama-3.1-8b", "gpus": 64, "batch": 256, "sequence": 8192}
_70B = {**_TITAN, "name": "llama-3.1-70b", "gpus": 256, "batch": 512, "sequence": 8192}
_MOE = {**_TITAN, "name": "qwen3-30b-a3b", "gpus": 64, "batch": 128}
_GATHER = {"cp_comm": "all_gather", "zero": 3}

SAMPLE = Sample(
    problems=(
        _8B,
        _70B,
        _MOE,
        {**_TITAN, "name": "qwen3-0.6b", "gpus": 8, "batch": 64},
        {**_TITAN, "name": "qwen3-32b", "gpus": 96, "batch": 192, "cluster": "dgx-a100"},
        {**_TITAN, "name": "deepseek-v2-lite", "gpus": 48, "batch": 96},
        {**_TITAN, "name": "deepseek-v3", "gpus": 512, "batch": 2048, "train_mtp": False},
        {**_TITAN, "name": "gpt-oss-20b", "gpus": 32, "batch": 64, "cluster": "dgx-b200"},
        {**_TITAN, "name": "gpt-oss-120b", "gpus": 128, "batch": 256, "changes": {"cuda_graphs": True}},
    ),
    plans=(
        (_8B, {"zero": 3}),
        (_8B, {"zero": 2, "zero_group": 8, "recompute": "selective"}),
        (_8B, {"zero": 3, "tp": 8, "sp": True, "tp_overlap": True, "recompute": "full"}),
        (_8B, {"tp": 2, "sp": False, "cp": 4, **_GATHER}),
        (_8B, {"tp": 4, "sp": True, "pp": 4, "zero": 2}),
        (_8B, {"pp": 4, "vpp": 2, "schedule": "interleaved", "zero": 2}),
        (_8B, {"pp": 4, "vpp": 4, "schedule": "interleaved", "zero": 2}),
        (_8B, {"pp": 2, "vpp": 2, "schedule": "interleaved", "zero": 2, "layers_per_stage": (7, 9, 9, 7)}),
        (_8B, {"pp": 2, "vpp": 2, "schedule": "zb-v", "zero": 2}),
        (_8B, {"pp": 8, "schedule": "gpipe", "zero": 3, "layers_per_stage": (3, 5, 4, 4, 4, 4, 4, 4)}),
        (_70B, {"tp": 8, "sp": True, "pp": 4, "vpp": 5, "schedule": "interleaved", "zero": 2}),
        (_70B, {"tp": 8, "sp": True, "cp": 2, "zero_group": 16, **_GATHER}),
        (_MOE, {"ep": 8, "zero": 3}),
        (_MOE, {"tp": 4, "sp": True, "ep": 16, "zero": 3}),
        (_MOE, {"tp": 2, "sp": True, "etp": 2, "zero": 3}),
        (_MOE, {"ep": 8, "zero": 3, "zero_group": 16}),
    ),
    refused=(
        (_8B, Strategy(tp=3, sp=True, dp=21, zero=3, num_microbatches=12), "world-size"),
        (_8B, Strategy(dp=64, zero=3, num_microbatches=5), "global-batch"),
        (_8B, Strategy(tp=16, sp=True, dp=4, zero=3, num_microbatches=64), "tp-kv-heads"),
        (_8B, Strategy(tp=64, sp=True, dp=1, zero=3, num_microbatches=256), "heads"),
        (_8B, Strategy(cp=4, dp=16, zero=3, num_microbatches=16), "context-gather"),
        (_8B, Strategy(cp=4, cp_comm="a2a", ulysses=4, dp=16, zero=3, num_microbatches=16), "torchtitan-cp-comm"),
        ({**_8B, "sequence": 8200}, Strategy(cp=8, cp_comm="all_gather", dp=8, zero=3, num_microbatches=32),
         "sequence-cp"),
        ({**_8B, "sequence": 8208}, Strategy(tp=4, sp=True, cp=4, cp_comm="all_gather", dp=4, zero=3,
                                             num_microbatches=64), "sequence-2cp-tp"),
        (_8B, Strategy(dp=64, zero=1, num_microbatches=4), "torchtitan-zero"),
        (_8B, Strategy(dp=64, zero=3, num_microbatches=4, dp_overlap=False), "torchtitan-dp-overlap"),
        (_8B, Strategy(dp=64, zero=3, num_microbatches=4, offload_optimizer=1.0), "torchtitan-offload-optimizer"),
        (_8B, Strategy(pp=4, dp=16, zero=3, num_microbatches=16, schedule="zb-h1"), "torchtitan-schedule"),
        (_8B, Strategy(pp=4, dp=16, zero=3, num_microbatches=16, schedule="dualpipe"), "torchtitan-schedule"),
        (_8B, Strategy(pp=4, dp=16, zero=3, num_microbatches=16, layers_per_stage=(8, 7, 9, 8)), "stage-weights"),
        (_8B, Strategy(pp=4, dp=16, zero=3, num_microbatches=16, recompute="full", recompute_layers=3),
         "torchtitan-recompute-layers"),
        (_8B, Strategy(pp=4, dp=16, zero=3, num_microbatches=16, recompute="full", recompute_per_stage=(3, 8, 8, 8)),
         "recompute-all"),
        (_8B, Strategy(tp=2, dp=32, zero=3, num_microbatches=8, tp_overlap=True), "tp-overlap-needs-sp"),
        ({**_TITAN, "name": "qwen3-0.6b", "gpus": 8, "batch": 64}, Strategy(pp=2, dp=4, zero=3, num_microbatches=16),
         "tied-pipeline"),
        (_MOE, Strategy(ep=3, dp=64, zero=3, num_microbatches=2), "experts"),
        (_MOE, Strategy(ep=32, dp=64, zero=3, zero_group=16, num_microbatches=2), "ep-in-shards"),
        (_MOE, Strategy(tp=2, sp=True, ep=8, etp=2, dp=32, zero=3, num_microbatches=4), "etp"),
        (_MOE, Strategy(tp=2, sp=True, dp=32, zero=3, num_microbatches=4), "etp"),
        (_8B, Strategy(cp=4, cp_comm="all_gather", dp=16, zero=3, zero_group=2, num_microbatches=16), "zero-group-cp"),
        (_8B, Strategy(pp=4, dp=16, zero=3, vpp=2, num_microbatches=16), "vpp-schedule"),
        ({**_8B, "cluster": "tpu-v5p"}, Strategy(dp=64, zero=3, num_microbatches=4), "accelerator"),
    ),
)  # fmt: skip

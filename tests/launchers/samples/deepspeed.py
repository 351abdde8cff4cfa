"""DeepSpeed 0.19 under Hugging Face transformers."""

from __future__ import annotations

from typing import Any

from shardwise.costmodel.strategy import Strategy

from ..problems import MIXTRAL
from . import Sample

_RUN: dict[str, Any] = {"runtime": "deepspeed-zero"}
_8B = {**_RUN, "name": "llama-3.1-8b", "gpus": 16, "batch": 128}
_70B = {**_RUN, "name": "llama-3.1-70b", "gpus": 64, "batch": 128, "cluster": "dgx-a100"}
_ULYSSES = {"cp": 8, "cp_comm": "a2a", "ulysses": 8}


def _piped(**settings: Any) -> Strategy:
    base = {"pp": 2, "dp": 8, "num_microbatches": 16, "dp_overlap": False}
    more = {"num_microbatches": 128 // int(settings["dp"])} if "dp" in settings else {}
    return Strategy(**{**base, **more, **settings})


SAMPLE = Sample(
    problems=(
        _8B,
        _70B,
        {**_RUN, "name": MIXTRAL, "gpus": 64, "batch": 128},
        {**_RUN, "name": "qwen2.5-7b", "gpus": 8, "batch": 64, "sequence": 16384},
        {**_RUN, "name": "gemma-2-9b", "gpus": 32, "batch": 96, "dtype": "fp16"},
        {**_RUN, "name": "bloom-176b", "gpus": 384, "batch": 384, "sequence": 2048},
        {**_RUN, "name": "gpt-2-xl", "gpus": 8, "batch": 256, "sequence": 1024, "dtype": "fp32"},
    ),
    plans=(
        (_8B, {"zero": 3}),
        (_8B, {"zero": 2, "micro_batch_size": 2, "recompute": "full"}),
        (_8B, {"zero": 1, "dp_overlap": False}),
        (_8B, {"zero": 3, "offload_optimizer": 1.0}),
        (_8B, {"zero": 3, **_ULYSSES}),
        (_70B, {"zero": 1, "tp": 8}),
        (_70B, {"zero": 3, "recompute": "full"}),
        (_8B, {"pp": 4, "dp_overlap": False}),
        (_8B, {"pp": 8, "dp_overlap": False, "layers_per_stage": (2, 5, 5, 5, 5, 4, 4, 2), "recompute": "full"}),
        (_70B, {"pp": 8, "dp_overlap": False, "layers_per_stage": (10, 11, 11, 10, 10, 10, 10, 8)}),
        ({**_8B, "dtype": "fp16"}, {"pp": 2, "zero": 0, "dp_overlap": False, "micro_batch_size": 4}),
    ),
    refused=(
        (_8B, Strategy(dp=8, zero=3, num_microbatches=16), "world-size"),
        (_8B, Strategy(dp=16, zero=3, num_microbatches=9), "global-batch"),
        (_8B, Strategy(cp=2, dp=8, zero=3, num_microbatches=16), "cp-is-ulysses"),
        (_8B, Strategy(cp=2, cp_comm="all_gather", dp=8, zero=3, num_microbatches=16), "deepspeed-cp-comm"),
        (_8B, Strategy(cp=4, cp_comm="a2a", ulysses=2, dp=4, zero=3, num_microbatches=32), "ulysses-degree"),
        ({**_8B, "gpus": 48, "batch": 96}, Strategy(cp=3, cp_comm="a2a", ulysses=3, dp=16, num_microbatches=6),
         "ulysses-heads"),
        ({**_RUN, "name": "qwen2.5-7b", "gpus": 56, "batch": 56},
         Strategy(cp=7, cp_comm="a2a", ulysses=7, dp=8, num_microbatches=7), "ulysses-kv-heads"),
        ({**_8B, "sequence": 4100}, Strategy(cp=8, cp_comm="a2a", ulysses=8, dp=2, num_microbatches=64),
         "sequence-cp"),
        (_8B, Strategy(tp=2, cp=2, cp_comm="a2a", ulysses=2, dp=4, num_microbatches=32), "tp-or-ulysses"),
        (_8B, Strategy(tp=16, dp=1, num_microbatches=128), "autotp-kv-heads"),
        ({**_RUN, "name": MIXTRAL, "gpus": 64, "batch": 128}, Strategy(tp=2, dp=32, num_microbatches=4),
         "autotp-experts"),
        ({**_RUN, "name": MIXTRAL, "gpus": 64, "batch": 128}, Strategy(ep=8, dp=64, num_microbatches=2),
         "deepspeed-ep"),
        (_8B, Strategy(pp=2, dp=8, num_microbatches=16), "pipeline-dp-overlap"),
        (_8B, _piped(zero=2), "pipeline-zero"),
        (_8B, _piped(zero=3), "pipeline-zero"),
        (_8B, _piped(zero=0), "pipeline-bf16-zero"),
        (_8B, _piped(dp=4, tp=2), "pipeline-alone"),
        (_8B, _piped(dp=4, cp=2, cp_comm="a2a", ulysses=2), "pipeline-alone"),
        (_8B, _piped(offload_optimizer=1.0), "pipeline-offload"),
        (_8B, _piped(layers_per_stage=(18, 14)), "deepspeed-stages"),
        (_8B, _piped(vpp=2, schedule="interleaved"), "deepspeed-vpp"),
        (_8B, _piped(schedule="gpipe"), "deepspeed-schedule"),
        (_8B, _piped(num_microbatches=15), "global-batch"),
        ({**_8B, "name": "gemma-2-9b"}, _piped(pp=4, dp=4, num_microbatches=32), "deepspeed-stages"),
        (_8B, Strategy(tp=2, sp=True, dp=8, num_microbatches=16), "deepspeed-sp"),
        (_8B, Strategy(tp=2, tp_overlap=True, dp=8, num_microbatches=16), "deepspeed-tp-overlap"),
        (_8B, Strategy(dp=16, zero=3, zero_group=8, num_microbatches=8), "deepspeed-zero-group"),
        (_8B, Strategy(dp=16, zero=3, recompute="selective", num_microbatches=8), "deepspeed-recompute"),
        (_8B, Strategy(dp=16, recompute="full", recompute_layers=4, num_microbatches=8), "deepspeed-recompute-layers"),
        (_8B, Strategy(dp=16, recompute="full", recompute_per_stage=(4,), num_microbatches=8), "recompute-all"),
        (_8B, Strategy(dp=16, zero=0, offload_optimizer=1.0, num_microbatches=8), "offload-needs-zero"),
        (_8B, Strategy(dp=16, zero=3, offload_optimizer=0.5, num_microbatches=8), "deepspeed-offload-optimizer"),
        ({**_8B, "cluster": "tpu-v5p"}, Strategy(dp=16, zero=3, num_microbatches=8), "accelerator"),
    ),
)  # fmt: skip

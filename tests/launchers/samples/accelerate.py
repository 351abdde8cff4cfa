"""Hugging Face Accelerate."""

from __future__ import annotations

from shardwise.costmodel.strategy import Strategy

from ..problems import DEEPSEEK, GPT, LLAMA, MIXTRAL, QWEN
from . import Sample

_OURS = {"runtime": "accelerate-fsdp2"}
_LLAMA = {"name": LLAMA, "gpus": 64, "batch": 128, **_OURS}
_SMALL = {"name": "llama-3.1-8b", "gpus": 16, "batch": 64, "sequence": 8192, **_OURS}
_MIXTRAL = {"name": MIXTRAL, "gpus": 64, "batch": 128, **_OURS}
_OSS = {"name": "gpt-oss-20b", "gpus": 32, "batch": 64, **_OURS}
_Z = {"zero": 3}


def _zero3(**settings: object) -> Strategy:
    return Strategy(**{"zero": 3, **settings})  # type: ignore[arg-type]


SAMPLE = Sample(
    problems=(
        _LLAMA,
        _SMALL,
        {**_SMALL, "gpus": 96, "batch": 960, "cluster": "dgx-a100", "optimizer": "sgd"},
        {"name": "qwen2.5-7b", "gpus": 8, "batch": 96, "sequence": 10240, "dtype": "fp32", **_OURS},
        _MIXTRAL,
        {"name": QWEN, "gpus": 256, "batch": 512, "cluster": "dgx-b200", **_OURS},
        _OSS,
        {"name": "gpt-2-xl", "gpus": 32, "batch": 256, "sequence": 1024, "dtype": "fp16", **_OURS},
        {"name": "nemotron-4-340b", "gpus": 96, "batch": 192, **_OURS},
        {"name": DEEPSEEK, "gpus": 512, "batch": 1024, "train_mtp": False, **_OURS},
    ),
    plans=(
        (_LLAMA, {"recompute": "full", **_Z}),
        (_LLAMA, {"recompute": "full", "zero": 2, "zero_group": 8}),
        (_LLAMA, {"tp": 8, "recompute": "full", "zero_group": 4, **_Z}),
        ({**_LLAMA, "sequence": 131072}, {"cp": 8, "recompute": "full", **_Z}),
        ({**_LLAMA, "sequence": 131072}, {"cp": 4, "cp_comm": "all_gather", "tp": 2, "zero_group": 16, **_Z}),
        (_SMALL, {"cp": 16, "recompute": "full", **_Z}),
        (_MIXTRAL, {"tp": 4, "etp": 4, "recompute": "full", **_Z}),
    ),
    refused=(
        (_LLAMA, _zero3(dp=63, num_microbatches=2), "world-size"),
        (_LLAMA, _zero3(dp=64, num_microbatches=3), "global-batch"),
        (_LLAMA, _zero3(tp=3, dp=21, num_microbatches=6), "heads"),
        (_LLAMA, _zero3(tp=16, dp=4, num_microbatches=32), "kv-heads-split"),
        ({**_LLAMA, "sequence": 4100}, _zero3(cp=8, dp=8, num_microbatches=16), "sequence-cp"),
        (_LLAMA, _zero3(tp=2, sp=True, dp=32, num_microbatches=4), "accelerate-sp"),
        (_LLAMA, _zero3(tp=2, tp_overlap=True, dp=32, num_microbatches=4), "accelerate-tp-overlap"),
        (_LLAMA, _zero3(cp=4, cp_comm="a2a", ulysses=4, dp=16, num_microbatches=8), "accelerate-cp-comm"),
        (_LLAMA, _zero3(cp=4, cp_comm="a2a+p2p", ulysses=2, dp=16, num_microbatches=8), "accelerate-ulysses"),
        (_LLAMA, _zero3(pp=2, dp=32, num_microbatches=4), "accelerate-pp"),
        (_LLAMA, _zero3(pp=2, vpp=2, schedule="interleaved", dp=32, num_microbatches=4), "accelerate-vpp"),
        (_LLAMA, Strategy(zero=0, dp=64, num_microbatches=2), "accelerate-zero"),
        (_LLAMA, Strategy(zero=1, dp=64, num_microbatches=2), "accelerate-zero"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, dp_overlap=False), "accelerate-dp-overlap"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, offload_optimizer=1.0), "accelerate-offload-optimizer"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, offload_activations=True), "accelerate-offload-activations"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, recompute="selective"), "accelerate-recompute"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, recompute="full", recompute_layers=4),
         "accelerate-recompute-layers"),
        (_MIXTRAL, _zero3(dp=64, num_microbatches=2, ep=8), "accelerate-ep"),
        (_MIXTRAL, _zero3(tp=2, dp=32, num_microbatches=4), "experts-under-tp"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, etp=2), "ep-needs-moe"),
        (_LLAMA, _zero3(cp=4, dp=16, num_microbatches=8, zero_group=2), "hsdp-group"),
        (_LLAMA, _zero3(tp=2, cp=4, dp=8, num_microbatches=16, zero_group=4), "hsdp-group"),
        (_LLAMA, _zero3(dp=64, num_microbatches=2, zero_group=1), "hsdp-group"),
        ({**_LLAMA, "gpus": 8, "batch": 8}, _zero3(tp=8, num_microbatches=8), "fsdp-ranks"),
        (_OSS, _zero3(tp=2, etp=2, dp=16, num_microbatches=4), "tp-plan"),
        (_OSS, _zero3(cp=2, dp=16, num_microbatches=4), "cp-attention"),
        ({"name": GPT, "gpus": 64, "batch": 128, **_OURS}, _zero3(tp=8, dp=8, num_microbatches=16), "tp-plan"),
        ({**_LLAMA, "cluster": "tpu-v5p"}, _zero3(dp=64, num_microbatches=2), "accelerator"),
    ),
)  # fmt: skip

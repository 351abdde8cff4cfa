"""BigScience's Megatron-DeepSpeed."""

from __future__ import annotations

from shardwise.costmodel.strategy import Strategy

from ..problems import GPT
from . import Sample

BLOOM = "bloom-176b"
_BLOOM = {"name": BLOOM, "gpus": 384, "batch": 2016, "sequence": 2048, "cluster": "dgx-a100"}
_PLAIN = {"zero": 1, "dp_overlap": False, "micro_batch_size": 2}

SAMPLE = Sample(
    problems=(
        _BLOOM,
        {**_BLOOM, "gpus": 5040, "batch": 10080, "dtype": "fp16"},
        {"name": GPT, "gpus": 768, "batch": 1536, "sequence": 2048, "dtype": "fp16"},
        {"name": GPT, "gpus": 96, "batch": 384, "sequence": 1024, "optimizer": "sgd"},
        {"name": "gpt-2-medium", "gpus": 16, "batch": 512, "sequence": 1024, "cluster": "dgx-a100"},
        {"name": "gpt-2-xl", "gpus": 64, "batch": 256, "sequence": 1024},
    ),
    plans=(
        (_BLOOM, {"tp": 4, "pp": 12, "recompute": "full", **_PLAIN}),
        (_BLOOM, {"tp": 8, "pp": 6, **_PLAIN}),
    ),
    refused=(
        (_BLOOM, Strategy(tp=8, pp=6, dp=7, micro_batch_size=2, num_microbatches=144, dp_overlap=False), "world-size"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=120, dp_overlap=False),
         "global-batch"),
        (_BLOOM, Strategy(tp=8, pp=16, dp=3, micro_batch_size=2, num_microbatches=336, dp_overlap=False),
         "layer-partition"),
        (_BLOOM, Strategy(tp=4, pp=12, dp=8, num_microbatches=252, dp_overlap=False,
                          layers_per_stage=(6, *[6] * 9, 5, 5)), "layer-partition-given"),
        (_BLOOM, Strategy(tp=8, sp=True, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False),
         "megatron-deepspeed-sp"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126), "megatron-deepspeed-dp-overlap"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False, zero=2),
         "megatron-deepspeed-zero"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False, zero=0),
         "bf16-zero"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, num_microbatches=252, dp_overlap=False), "fused-softmax"),
        (_BLOOM, Strategy(tp=8, pp=2, vpp=3, schedule="interleaved", dp=24, micro_batch_size=2, num_microbatches=42,
                          dp_overlap=False), "megatron-deepspeed-vpp"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          schedule="zb-h1"), "megatron-deepspeed-schedule"),
        (_BLOOM, Strategy(tp=8, cp=2, pp=6, dp=4, micro_batch_size=2, num_microbatches=252, dp_overlap=False),
         "megatron-deepspeed-cp"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          recompute="selective"), "megatron-deepspeed-recompute"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          recompute="full", recompute_layers=3), "megatron-deepspeed-recompute-layers"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          recompute="full", recompute_per_stage=(12, 12, 11, 12, 12, 11)), "recompute-every-layer"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          offload_optimizer=1.0), "megatron-deepspeed-offload-optimizer"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False, zero_group=4),
         "megatron-deepspeed-zero-group"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, ep=2, micro_batch_size=2, num_microbatches=126, dp_overlap=False),
         "ep-needs-moe"),
        (_BLOOM, Strategy(tp=3, pp=4, dp=32, micro_batch_size=1, num_microbatches=63, dp_overlap=False), "heads"),
        (_BLOOM, Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False,
                          tp_overlap=True), "megatron-deepspeed-tp-overlap"),
        ({"name": GPT, "gpus": 96, "batch": 384, "sequence": 4096},
         Strategy(tp=8, pp=12, micro_batch_size=2, num_microbatches=192, dp_overlap=False), "learned-positions"),
        ({**_BLOOM, "cluster": "tpu-v5p"},
         Strategy(tp=8, pp=6, dp=8, micro_batch_size=2, num_microbatches=126, dp_overlap=False), "accelerator"),
    ),
)  # fmt: skip

"""Megatron-LM: see ``validators/cases.py`` for the plans that its own checks have seen."""

from __future__ import annotations

from shardwise.costmodel.strategy import Strategy

from ..problems import DEEPSEEK, GPT, LLAMA, MIXTRAL, QWEN
from ..validators.cases import _DENSE, _EXPERTS
from . import Sample

_B200 = {"cluster": "dgx-b200"}

SAMPLE = Sample(
    problems=(
        {"name": LLAMA, "gpus": 64, "batch": 96},
        {"name": LLAMA, "gpus": 512, "sequence": 32768, "batch": 64, "runtime": "nemo-24.07"},
        {"name": GPT, "gpus": 768, "batch": 1536, "sequence": 2048, "dtype": "fp16", "cluster": "dgx-a100"},
        {"name": MIXTRAL, "gpus": 128, "batch": 256, "optimizer": "adam_8bit"},
        {"name": DEEPSEEK, "gpus": 256, "batch": 512, "dtype": "fp8_block"},
        {"name": QWEN, "gpus": 256, "batch": 512, "dtype": "mxfp8", **_B200},
        {"name": "gpt-oss-20b", "gpus": 96, "batch": 192},
        {"name": "glm-4.5-air", "gpus": 64, "batch": 64, "changes": {"moe_dispatcher": "deepep"}},
        {"name": "qwen2.5-7b", "gpus": 8, "batch": 64, "sequence": 10240, "optimizer": "muon"},
        {"name": "nemotron-4-340b", "gpus": 96, "batch": 96, "changes": {"cuda_graphs": True}},
    ),
    plans=(*_DENSE, *_EXPERTS),
    refused=(
        ({}, Strategy(tp=8, sp=True, pp=3, dp=16, num_microbatches=64), "world-size"),
        ({"batch": 1000}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=62), "global-batch"),
        ({}, Strategy(tp=128, sp=True, dp=4, num_microbatches=256), "heads"),
        ({}, Strategy(tp=3, sp=True, dp=170, num_microbatches=6), "ffn-width"),
        ({"name": "qwen2.5-7b", "gpus": 64}, Strategy(tp=8, sp=True, dp=8, num_microbatches=128), "heads"),
        ({"sequence": 4100}, Strategy(tp=2, cp=4, dp=64, num_microbatches=16), "sequence-cp"),
        ({"sequence": 4100}, Strategy(tp=2, cp=4, cp_comm="a2a", ulysses=4, dp=64, num_microbatches=16),
         "sequence-2cp"),
        ({}, Strategy(tp=8, sp=True, cp=16, cp_comm="a2a", ulysses=16, dp=4, num_microbatches=256), "ulysses-heads"),
        ({}, Strategy(tp=2, sp=True, cp=8, cp_comm="a2a", ulysses=8, dp=32, num_microbatches=32), "ulysses-kv-heads"),
        ({}, Strategy(tp=2, sp=True, cp=8, cp_comm="a2a+p2p", ulysses=3, dp=32, num_microbatches=32), "ulysses-degree"),
        ({"optimizer": "muon"}, Strategy(zero=3, dp=512, num_microbatches=2), "fsdp-optimizer"),
        ({}, Strategy(pp=4, zero=2, dp=128, num_microbatches=8), "fsdp-pipeline"),
        ({"name": MIXTRAL}, Strategy(ep=16, dp=512, num_microbatches=2), "experts"),
        ({"name": MIXTRAL}, Strategy(tp=2, ep=8, dp=256, num_microbatches=4), "moe-tp-needs-sp"),
        ({"name": MIXTRAL, "gpus": 8, "batch": 8}, Strategy(tp=4, sp=True, pp=2, ep=8, num_microbatches=8),
         "expert-mesh"),
        ({"name": MIXTRAL}, Strategy(tp=2, sp=True, pp=8, ep=8, dp=32, num_microbatches=32, ep_overlap=True),
         "ep-overlap-pipeline"),
        ({"name": MIXTRAL}, Strategy(ep=8, dp=512, num_microbatches=2, ep_overlap=True, recompute="full"),
         "ep-overlap-recompute"),
        ({"name": DEEPSEEK, "gpus": 256}, Strategy(cp=2, cp_comm="all_gather", ep=8, dp=128, num_microbatches=8),
         "mla-cp-comm"),
        ({}, Strategy(ep=8, dp=512, num_microbatches=2), "ep-needs-moe"),
        ({}, Strategy(tp=8, pp=4, dp=16, num_microbatches=64, tp_overlap=True), "tp-overlap-needs-sp"),
        ({}, Strategy(tp=8, sp=True, pp=4, vpp=5, schedule="interleaved", dp=16, micro_batch_size=32,
                      num_microbatches=2), "interleave-microbatches"),
        ({}, Strategy(tp=8, sp=True, pp=4, vpp=5, dp=16, num_microbatches=64), "vpp-schedule"),
        ({}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=64, schedule="zb-h1"), "megatron-schedule"),
        ({}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=64, layers_per_stage=(20, 20, 20, 21)),
         "layer-split"),
        ({}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=64, recompute="full",
                      recompute_per_stage=(3, 4, 3, 3)), "recompute-one-number"),
        ({"name": GPT, "sequence": 4096}, Strategy(tp=8, sp=True, pp=8, dp=8, num_microbatches=128),
         "learned-positions"),
        ({"cluster": "tpu-v5p"}, Strategy(tp=8, sp=True, dp=64, num_microbatches=16), "accelerator"),
        ({"dtype": "mxfp8"}, Strategy(tp=8, sp=True, dp=64, num_microbatches=16), "block-scales"),
    ),
)  # fmt: skip

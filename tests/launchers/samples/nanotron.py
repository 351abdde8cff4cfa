"""nanotron."""

from __future__ import annotations

from typing import Any

from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.nanotron_model import stage_layers

from ..problems import LLAMA, MIXTRAL, problem
from . import Sample

_OURS = {"runtime": "nanotron"}
_LLAMA = {"name": LLAMA, "gpus": 64, "batch": 128, **_OURS}
_SMALL = {"name": "llama-3.1-8b", "gpus": 16, "batch": 64, "sequence": 8192, **_OURS}
_TWO = {"name": "llama-2-13b", "gpus": 96, "batch": 192, "cluster": "dgx-a100", **_OURS}
_BIG = {"name": "llama-3.1-405b", "gpus": 512, "batch": 512, **_OURS}


def _piped(given: dict[str, Any], tp: int, pp: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    split = stage_layers(problem(**given), tp, pp)
    assert split is not None
    return given, {"tp": tp, "pp": pp, "layers_per_stage": split, **more}


SAMPLE = Sample(
    problems=(
        _LLAMA,
        _SMALL,
        _TWO,
        {**_BIG, "dtype": "fp32"},
        {"name": "llama-3.2-1b", "gpus": 8, "batch": 96, "optimizer": "sgd", **_OURS},
        {"name": "mistral-7b-v0.3", "gpus": 32, "batch": 256, "dtype": "fp16", **_OURS},
        {**_SMALL, "gpus": 128, "batch": 1024, "changes": {"vocab_multiple": 1, "sp_regather": False}},
    ),
    plans=(
        _piped(_LLAMA, 8, 2, sp=True, recompute="full"),
        _piped(_LLAMA, 8, 4, sp=True, tp_overlap=True),
        _piped(_LLAMA, 4, 8, sp=True, schedule="gpipe", recompute="full"),
        _piped(_SMALL, 2, 8, zero=0),
        _piped(_SMALL, 4, 4),
        _piped(_TWO, 8, 3, sp=True, micro_batch_size=2),
        _piped(_BIG, 8, 16, sp=True, recompute="full"),
        (_LLAMA, {"tp": 8, "sp": True, "tp_overlap": True}),
    ),
    refused=(
        (_LLAMA, Strategy(tp=8, sp=True, dp=7, num_microbatches=16), "world-size"),
        (_LLAMA, Strategy(tp=8, sp=True, dp=8, num_microbatches=15), "global-batch"),
        (_LLAMA, Strategy(tp=16, sp=True, dp=4, num_microbatches=32), "kv-heads-split"),
        (_LLAMA, Strategy(tp=64, sp=True, num_microbatches=128), "kv-heads-split"),
        (_TWO, Strategy(tp=3, dp=32, num_microbatches=6), "heads"),
        (_LLAMA, Strategy(sp=True, dp=64, num_microbatches=2), "sp-needs-tp"),
        (_LLAMA, Strategy(tp=8, tp_overlap=True, dp=8, num_microbatches=16), "tp-overlap-needs-sp"),
        (_LLAMA, Strategy(tp=4, cp=2, dp=8, num_microbatches=16), "nanotron-cp"),
        (_LLAMA, Strategy(tp=4, cp=2, cp_comm="all_gather", dp=8, num_microbatches=16), "nanotron-cp-comm"),
        (_LLAMA, Strategy(tp=4, cp=2, cp_comm="a2a", ulysses=2, dp=8, num_microbatches=16), "nanotron-ulysses"),
        (_LLAMA, Strategy(tp=8, pp=4, dp=2, num_microbatches=64), "nanotron-stages"),
        (_LLAMA, Strategy(tp=8, pp=2, dp=4, num_microbatches=32, layers_per_stage=(40, 40)), "nanotron-stages"),
        ({"name": "llama-3.2-1b", "gpus": 8, "batch": 64, **_OURS}, Strategy(pp=8, num_microbatches=64),
         "nanotron-stages"),
        (_LLAMA, Strategy(tp=8, pp=2, vpp=2, schedule="interleaved", dp=4, num_microbatches=32), "nanotron-vpp"),
        (_LLAMA, Strategy(tp=8, pp=2, schedule="zb-h1", dp=4, num_microbatches=32), "nanotron-schedule"),
        (_LLAMA, Strategy(tp=8, zero=2, dp=8, num_microbatches=16), "nanotron-zero"),
        (_LLAMA, Strategy(tp=8, zero=3, dp=8, num_microbatches=16), "nanotron-zero"),
        (_LLAMA, Strategy(tp=8, zero=1, zero_group=4, dp=8, num_microbatches=16), "nanotron-zero-group"),
        (_LLAMA, Strategy(tp=8, dp=8, num_microbatches=16, dp_overlap=False), "nanotron-dp-overlap"),
        (_LLAMA, Strategy(tp=8, dp=8, num_microbatches=16, offload_optimizer=0.5), "nanotron-offload-optimizer"),
        (_LLAMA, Strategy(tp=8, dp=8, num_microbatches=16, offload_activations=True), "nanotron-offload-activations"),
        (_LLAMA, Strategy(tp=8, dp=8, num_microbatches=16, recompute="selective"), "nanotron-recompute"),
        (_LLAMA, Strategy(tp=8, dp=8, num_microbatches=16, recompute="full", recompute_layers=8),
         "nanotron-recompute-layers"),
        ({"name": MIXTRAL, "gpus": 64, "batch": 128, **_OURS}, Strategy(ep=8, dp=64, num_microbatches=2),
         "nanotron-ep"),
        ({**_LLAMA, "cluster": "tpu-v5p"}, Strategy(tp=8, dp=8, num_microbatches=16), "accelerator"),
    ),
)  # fmt: skip

"""Megatron-Bridge: Megatron-LM's problems and plans, whose rules it shares, and its own."""

from __future__ import annotations

from shardwise.costmodel.strategy import Strategy

from ..problems import GPT
from . import Sample, megatron

_ROWS = {"name": GPT, "sequence": 1024}

SAMPLE = Sample(
    problems=megatron.SAMPLE.problems,
    plans=megatron.SAMPLE.plans,
    refused=(
        *((given, s, rule.replace("megatron-", "megatron-bridge-")) for given, s, rule in megatron.SAMPLE.refused),
        (_ROWS, Strategy(tp=8, sp=True, pp=8, dp=8, num_microbatches=128), "position-rows"),
    ),
)

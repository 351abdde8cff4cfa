"""What BigScience's Megatron-DeepSpeed enforces beyond arithmetic, or silently does otherwise.

Each rule says where it comes from: ``parser`` (refused by argument validation), ``engine`` (DeepSpeed's pipeline engine
or its optimizer) or ``kernel``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategies, Strategy

from .facts import model_facts
from .megatron_shared import shared_rules
from .rule import Allowed, Rule, as_allowed, divisors, everything, nearest

LAYERS, LAYERS_AND_EMBEDDINGS = "type:transformer", "type:transformer|embedding"
"""What DeepSpeed counts when it divides the model: layers, or layers with the embedding and the head."""


def megatron_deepspeed_rules() -> tuple[Rule, ...]:
    """Rules of Megatron-DeepSpeed in addition to the universal ones and the capability table."""
    return (
        *shared_rules("Megatron-DeepSpeed"),
        # run: without it the kernel is not taken, and BLOOM's job asked to be stopped then; the cost model counts it.
        Rule("fused-softmax", "the fused softmax needs heads per tensor rank times mbs = "
             "{heads}/{tp}·{micro_batch_size} to be a multiple of 4; the nearest mbs that makes it one is {hint}",
             _fused, values=_fused_values),
        # engine: an uneven division is left to a search whose result differs between DeepSpeed releases.
        Rule("layer-partition", "DeepSpeed divides {layers} layers, or {blocks} with the embedding and the head, "
             "evenly over the pipeline: pp = {pp} divides neither; the nearest pp that does is {hint}", _divisible,
             values=_partition_values),
        Rule("layer-partition-given", "DeepSpeed divides the layers itself: layers_per_stage = {layers_per_stage} is "
             "not its {even}", everything, _as_divided, lambda p, s: {"even": _even(p, s)}),
        # engine: the interval between checkpoints is one number for all stages.
        Rule("recompute-every-layer", "Megatron-DeepSpeed recomputes every layer or none: recompute_per_stage = "
             "{recompute_per_stage} leaves some out", everything, _every_layer),
        # engine: the bf16 optimizer is its own ZeRO stage 1, and has no unsharded mode.
        Rule("bf16-zero", "bf16 runs DeepSpeed's BF16 optimizer, which always divides its states over dp: use "
             "zero = 1, not {zero}", lambda p, s: (s.zero == 1) | np.bool_(p.workload.dtype != "bf16")),
    )  # fmt: skip


def can_fuse_softmax(problem: Problem) -> bool:
    """Whether the sequence allows the kernel that fuses scaling, mask and softmax."""
    sequence = problem.workload.sequence_length
    return 16 < sequence <= 2048 and sequence % 4 == 0


def partition_method(problem: Problem, strategy: Strategy) -> str:
    """DeepSpeed's ``partition_method`` that gives the strategy's split."""
    return LAYERS if problem.model.num_layers % strategy.pp == 0 else LAYERS_AND_EMBEDDINGS


def _fused(problem: Problem, s: Strategies) -> Allowed:
    fine = np.ones(len(s), dtype=np.bool_)
    for heads in model_facts(problem).heads:
        fine &= heads // s.tp * s.micro_batch_size % 4 == 0
    return fine | np.bool_(not can_fuse_softmax(problem))


def _fused_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    heads = model_facts(problem).heads[0]
    each = 4 // math.gcd(heads // s.tp, 4)
    return {"heads": heads, "hint": nearest(s.micro_batch_size, (each, -(-s.micro_batch_size // each) * each))}


def _divisible(problem: Problem, s: Strategies) -> Allowed:
    layers = problem.model.num_layers
    # The engine fails on a stage without a layer, as the first would be with one block a stage.
    embedded = ((layers + 2) % s.pp == 0) & ((layers + 2) // s.pp >= 2)
    return as_allowed((layers % s.pp == 0) | embedded)


def _partition_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    layers = problem.model.num_layers
    fitting = {*divisors(layers), *(d for d in divisors(layers + 2) if (layers + 2) // d >= 2)}
    return {"blocks": layers + 2, "hint": nearest(s.pp, fitting)}


def _even(problem: Problem, s: Strategy) -> tuple[int, ...]:
    """The layers of each stage when everything that DeepSpeed counts is divided evenly.

    With the embedding and the head counted, the first and the last stage hold a layer less than the others.
    """
    return even_split(problem.model.num_layers, max(s.pp, 1))


def _as_divided(problem: Problem, s: Strategy) -> bool:
    return s.layers_per_stage is None or s.layers_per_stage == _even(problem, s)


def _every_layer(problem: Problem, s: Strategy) -> bool:
    return s.recompute_per_stage is None or s.recompute_per_stage == _even(problem, s)

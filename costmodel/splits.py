"""Which layers each pipeline rank holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwise.hardware_profiles.errors import InputError

from .model import ModelSpec
from .problem import Array, Problem


def even_split(num_layers: int, chunks: int) -> tuple[int, ...]:
    """Layers per virtual stage, as even as possible.

    Left-over layers go to the second stage onwards, so that the first (embedding) and then the last (head and loss)
    stay lightest: 126 layers over 16 stages give 7, 8 x 14, 7, as published for Llama 3 405B (arXiv 2407.21783, 3.3.2).
    """
    base, rest = divmod(num_layers, chunks)
    return tuple(base + (1 <= c <= rest) for c in range(chunks))


def chunk_ranks(pp: int, vpp: int, schedule: str) -> tuple[int, ...]:
    """Pipeline rank of each virtual stage in model order: round robin, or a V for ZB-V."""
    if schedule == "zb-v":
        return tuple(range(pp)) + tuple(reversed(range(pp)))
    return tuple(c % pp for c in range(pp * vpp))


def layers_by_rank(layers: Sequence[int], pp: int, vpp: int, schedule: str) -> tuple[int, ...]:
    """Layers that each pipeline rank holds under a split; with dualpipe those of its mirror image too."""
    held = [0] * pp
    for rank, count in zip(chunk_ranks(pp, vpp, schedule), layers, strict=True):
        held[rank] += count
        if schedule == "dualpipe":
            held[pp - 1 - rank] += count
    return tuple(held)


def check_split(layers: Sequence[int], model: ModelSpec, pp: int, vpp: int) -> None:
    """Raise InputError unless the split has one entry per virtual stage and covers every layer."""
    if len(layers) != pp * vpp:
        raise InputError(
            f"strategy: layers_per_stage has {len(layers)} entries: expected pp·vpp = {pp}·{vpp} = {pp * vpp}"
        )
    if sum(layers) != model.num_layers or min(layers) < 0:
        raise InputError(
            f"strategy: layers_per_stage sums to {sum(layers)}: expected the {model.num_layers} layers of {model.name}"
        )


def stage_counts(problem: Problem, pp: int, vpp: int, layers: Sequence[int] | None = None) -> Array:
    """How many of each kind (layer kinds, embedding, head, MTP) each virtual stage holds: ``[pp·vpp, kinds + 3]``."""
    model = problem.model
    split = even_split(model.num_layers, pp * vpp) if layers is None else tuple(layers)
    kinds = len(model.kinds)
    onehot = np.zeros((model.num_layers + 1, kinds))
    onehot[np.arange(1, model.num_layers + 1), model.layers] = 1.0
    running = np.cumsum(onehot, axis=0)
    edges = np.concatenate([[0], np.cumsum(split)])
    counts = np.zeros((pp * vpp, kinds + 3))
    counts[:, :kinds] = running[edges[1:]] - running[edges[:-1]]
    counts[0, kinds] += 1.0
    counts[-1, kinds + 1] += 1.0
    if problem.workload.train_mtp:
        counts[-1, kinds + 2] += len(model.mtp)
    return counts


def chunk_counts(problem: Problem, pp: int, vpp: int, schedule: str, layers: Sequence[int] | None = None) -> Array:
    """``stage_counts`` by chunk and pipeline rank: ``[vpp, pp, kinds + 3]``.

    The first axis is a rank's chunk in the order a micro-batch visits them, the second the pipeline rank.
    """
    stages = stage_counts(problem, pp, vpp, layers)
    counts = np.zeros((vpp, pp, stages.shape[1]))
    counts[np.arange(pp * vpp) // pp, np.array(chunk_ranks(pp, vpp, schedule))] = stages
    if schedule == "dualpipe":
        # Every rank holds a stage and its mirror image: two directions share the work (DeepSeek-V3, section 3.2.1).
        counts = counts + counts[:, ::-1]
    return counts


def rank_counts(problem: Problem, pp: int, vpp: int, schedule: str, layers: Sequence[int] | None = None) -> Array:
    """How many of each kind each pipeline rank holds, all its chunks together: ``[pp, kinds + 3]``."""
    return np.asarray(chunk_counts(problem, pp, vpp, schedule, layers).sum(axis=0))

"""What every pass, message and collective of a simulated step takes: the closed form's own figures, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..boundary import p2p_s
from ..evaluate import single_group
from ..group import Group, recompute_share
from ..layers import LayerTable
from ..problem import Array, Problem
from ..splits import check_split, stage_counts
from ..step import (
    gradient_times_each,
    gradients_exposed,
    optimizer_s,
    parameters,
    pass_wait_s,
    passes_s,
    repeats_gradients,
    tied_embedding_s,
)
from ..strategy import Strategy
from .orders import positions


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds; arrays ``[pp, chunk]`` of one micro-batch through one chunk, or ``[pp]`` of a step."""

    forward: Array
    backward: Array
    """Data gradient alone."""
    weight: Array
    recompute: Array
    """What recomputation adds to the backward pass."""
    wait: float
    """What each forward and backward takes besides its work: the exposed part of its message, and the host."""
    message: float
    """All of one message between stages."""
    delay: float
    """The part of a message that is hidden in the steady state, but not while the pipeline fills and drains."""
    host: float
    """The host's part of ``wait``."""
    gathers: Array
    """Data parallel traffic that a rank's first forward waits for, once a step."""
    reductions: Array
    """Data parallel traffic left over after a rank's last backward, once a step."""
    forward_traffic: Array
    """The same per micro-batch (ZeRO 2 and 3), ``[pp, chunk]``."""
    backward_traffic: Array
    reduction_whole: Array
    """All data parallel traffic of the backward pass once a step, hidden or not."""
    buckets: Array
    """Gradient buckets of each rank."""
    tied: float
    """All-reduce of tied embedding gradients between the first and the last stage."""
    optimizer: Array
    offload: Array
    fixed: float

    @property
    def table(self) -> Array:
        """Seconds that each kind of pass occupies its rank, ``[kind, pp, chunk]`` in the order of ``graph.KINDS``."""
        forward = self.forward + self.forward_traffic + self.wait
        backward = self.backward + self.recompute + self.backward_traffic + self.wait
        return np.stack([forward, backward, self.weight, backward + self.weight])


def durations(problem: Problem, strategy: Strategy, buckets: int = 0, table: LayerTable | None = None) -> Durations:
    """The durations of one strategy, its explicit layer split and recomputation included.

    ``buckets``: gradient buckets of each rank, 0 for one per layer; ``table``: the strategy's layer table, if it is at
    hand. InputError as ``estimate`` raises it.
    """
    if strategy.layers_per_stage is not None:
        check_split(strategy.layers_per_stage, problem.model, strategy.pp, strategy.vpp)
    group = single_group(problem, strategy, table)
    explicit = strategy.recompute_per_stage
    share = recompute_share(group, None if explicit is None else np.array(explicit))
    forward, backward, weight, again = _chunk_passes(group, strategy, share)
    message = p2p_s(group)
    runtime = problem.runtime
    each = replace(group, strategies=group.strategies.take(np.zeros(group.pp, dtype=np.int64)))
    count = np.full(group.pp, float(buckets)) if buckets else np.maximum(1.0, group.layers[:, 0])
    once, every, whole = _gradients(each, forward, backward + weight + again, count)
    dense, expert = (x[:, 0] for x in parameters(group))
    optimizer, offload = optimizer_s(each, dense, expert)
    return Durations(
        forward=forward,
        backward=backward,
        weight=weight,
        recompute=again,
        wait=float(pass_wait_s(group, message)[0]),
        message=float(message[0]),
        delay=float(message[0]) * runtime.pp_hidden,
        host=runtime.host_s_per_microbatch / 2.0,
        gathers=once["forward"],
        reductions=once["backward"],
        forward_traffic=every["forward"],
        backward_traffic=every["backward"],
        reduction_whole=whole,
        buckets=count,
        tied=float(tied_embedding_s(group)[0]),
        optimizer=optimizer,
        offload=offload,
        fixed=runtime.fixed_s_per_step,
    )


def _chunk_passes(group: Group, strategy: Strategy, share: Array) -> tuple[Array, ...]:
    """Forward, data gradient, weight gradient and recomputation of each rank's chunks, ``[pp, chunk]`` each."""
    where = np.array(positions(strategy.schedule, group.pp, group.vpp))
    stages = stage_counts(group.problem, group.pp, group.vpp, strategy.layers_per_stage)
    rows = replace(group, counts=stages[where.ravel()])
    each = passes_s(rows, np.repeat(share, where.shape[1], axis=0))
    return tuple(seconds[:, 0].reshape(where.shape) for seconds in each)


def _gradients(
    each: Group, forward: Array, backward: Array, buckets: Array
) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """Exposed data parallel traffic: once a step ``[pp]``, and with every micro-batch ``[pp, chunk]``; by phase.

    The last is all traffic of the backward pass that comes once a step. ``each`` holds the strategy once per rank.
    """
    m = each.strategies.num_microbatches[0]
    dense, expert = (x[:, 0] for x in parameters(each))
    times = gradient_times_each(each, dense, expert)
    windows = {"forward": forward, "backward": backward}
    rank = {phase: each.share * seconds.sum(axis=1) for phase, seconds in windows.items()}
    exposed = gradients_exposed(each, rank["forward"], rank["backward"], times, buckets)
    once, every = {}, {}
    for phase, seconds in exposed.items():
        repeated = repeats_gradients(each, phase)
        part = windows[phase] / np.maximum(rank[phase], 1e-300)[:, None]
        once[phase] = np.where(repeated, 0.0, seconds)
        every[phase] = np.where(repeated, seconds / m, 0.0)[:, None] * part
    return once, every, np.where(repeats_gradients(each, "backward"), 0.0, times["backward"])

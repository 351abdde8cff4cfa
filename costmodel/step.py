"""One step of a pipeline: from the layer table to seconds and bytes on each rank, for strategies that share pp.

Everything is an array ``[rank, n]`` or ``[n]``; ``n`` strategies share pipeline degree, virtual stages, schedule and
layer split, so a rank's load is one matrix product with the layer table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .group import FULL as FULL
from .group import SELECTIVE as SELECTIVE
from .group import Group as Group
from .group import at_rank
from .group import recompute_share as recompute_share
from .layers import PARTS
from .operators import stream_rate
from .problem import Array, Ints, Problem
from .schedule import bubble_s, in_flight, others_divisor
from .strategy import Strategies
from .turns import uneven_turns_s

if TYPE_CHECKING:
    from .outside import Totals

_OPTIMIZER_STATE_BYTES = {"adam": 8.0, "adam_bf16_moments": 4.0, "adam_8bit": 2.0, "muon": 4.0, "sgd": 4.0}
"""Moments per parameter: two FP32 for Adam, two BF16, two 8-bit, one FP32 for Muon and SGD with momentum."""


@dataclass(frozen=True, slots=True)
class Load:
    """Seconds per micro-batch on each rank, ``[rank, n]``."""

    forward: Array
    backward: Array
    weight: Array
    recompute: Array
    stagger: Array
    """Seconds per micro-batch, ``[n]``, that the slowest rank waits for others between its virtual stages."""
    fill: Array | float = 0.0
    """Seconds, ``[n]``, that the others of an interleaved pipeline's longest turn take to fill and drain it."""

    @property
    def total(self) -> Array:
        """Everything one micro-batch costs a rank."""
        return self.forward + self.backward + self.weight + self.recompute


def repeated_forward_s(group: Group) -> Array:
    """Seconds that full recomputation of one layer of each kind adds, ``[kind, u]``; no embedding and no head."""
    t, (forward, _, _) = group.table, group.passes
    out = forward.copy()
    out[t.embedding : t.mtp] = 0.0
    if group.problem.model.mtp and group.problem.workload.train_mtp:
        out[t.mtp] -= forward[t.head]  # the head is not inside a checkpointed layer
    return np.asarray(out)


def passes_s(group: Group, share: Array) -> tuple[Array, Array, Array, Array]:
    """Seconds of forward, data gradient, weight gradient and recomputation of each row of ``counts``, ``[rank, n]``.

    Recomputation repeats the forward of ``share`` of the layers. One micro-batch through everything a row holds.
    """
    t = group.table
    selective = group.per_rank(t.selective) * (group.strategies.recompute == SELECTIVE)
    again = group.per_rank(repeated_forward_s(group)) * share + selective
    forward, backward, weight = map(group.per_rank, group.passes)
    return forward, backward, weight, again


def load(group: Group, share: Array) -> Load:
    """Work of one micro-batch on each rank; recomputation repeats the forward of ``share`` of the layers."""
    *parts, again = (group.share * seconds for seconds in passes_s(group, share))
    base = np.sum(parts, axis=0)
    stagger, fill = uneven_turns_s(group, base, again)
    return Load(parts[0], parts[1], parts[2], again, stagger, group.share * fill)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Seconds in the pipeline, ``[n]`` each: the slowest rank's work and idle time, and that rank's row."""

    busy: Array
    idle: Array
    waits: Array
    """Idle time added by what passes take besides their work."""
    delays: Array
    """Idle time added by messages that are hidden only in the steady state."""
    slow: Ints


def pipeline_s(group: Group, work: Load, wait: Array, delay: Array) -> Pipeline:
    """Work and bubble of the slowest rank.

    ``wait[n]``: seconds that each forward and backward pass of a chunk takes besides its work; ``delay[n]``: from one
    stage to the next while the pipeline fills and drains.
    """
    m = group.strategies.num_microbatches
    slow = np.argmax(work.total, axis=0)
    busy = m * at_rank(work.total, slow)
    none = np.zeros_like(busy)
    if group.pp == 1:
        return Pipeline(busy, none, none, none, slow)
    passes = (work.forward, work.backward + work.recompute, work.weight)
    idle = idle_s(group, passes, 0.0, 0.0)
    if others_divisor(group.schedule, group.vpp) is not None:
        waits = 2.0 * (group.pp - 1) * wait
        delays = 2.0 * (group.vpp * group.pp - 1) * delay
        return Pipeline(busy, np.maximum(idle, work.fill) + m * work.stagger, waits, delays, slow)
    waited = idle_s(group, passes, wait, 0.0)
    return Pipeline(busy, idle, waited - idle, idle_s(group, passes, wait, delay) - waited, slow)


def idle_s(
    group: Group,
    passes: tuple[Array, Array, Array],
    wait: Array | float,
    delay: Array | float,
    slow: Ints | None = None,
    less: tuple[Array, Array, Array] | None = None,
) -> Array:
    """``schedule.bubble_s`` as the runtime runs it; ``passes`` are forward, backward and weight, ``[rank, n]`` each."""
    f, b, w = passes
    if less is not None:
        less = (less[0] + group.vpp * wait, less[1] + group.vpp * wait, less[2])
    more = group.vpp * wait
    idle = bubble_s(group.schedule, group.vpp, f + more, b + more, w, group.repeats, delay, slow, less)
    left = max(0.0, 2.0 - group.problem.runtime.zb_pending) if group.schedule == "zb-h1" else 1.0
    return np.asarray(left * idle)


def parameters(group: Group) -> tuple[Array, Array]:
    """Dense and expert parameters on each rank, ``[rank, n]``."""
    return group.per_rank(group.table.dense), group.per_rank(group.table.expert)


@dataclass(frozen=True, slots=True)
class Gradient:
    """One data-parallel collective, arrays ``[n]``: ``count`` times a step, ``phase`` the pass it may hide under."""

    parallelism: str
    collective: str
    nbytes: Array
    size: Array
    stride: Array
    count: Array
    phase: str


def gradient_comms(group: Group, dense: Array, expert: Array) -> list[Gradient]:
    """Collectives of data parallelism on the rank with the given parameters ``[n]``, by ZeRO stage.

    ZeRO 0 all-reduces gradients; 1 reduce-scatters them and gathers parameters once; 2 scatters gradients after every
    micro-batch; 3 gathers parameters in forward and backward of each as well (Rajbhandari et al., arXiv 1910.02054,
    section 7). HSDP scatters inside the shard group and all-reduces shards across replicas (Zhao et al., arXiv
    2304.11277, section 3.2.2).
    """
    s, runtime = group.strategies, group.problem.runtime
    shard_dense, shard_expert = s.zero_shards
    whole_dense, whole_expert = (s.dp * s.cp).astype(np.float64), np.maximum(1.0, s.edp.astype(np.float64))
    m = s.num_microbatches.astype(np.float64)
    each = np.where(s.zero >= 2, m, 1.0)  # a rank that keeps a shard of the gradients cannot add micro-batches up first
    out: list[Gradient] = []
    dense_stride, expert_stride = s.replica_strides
    for name, count, shards, whole, stride in (
        ("dp", dense, shard_dense, whole_dense, dense_stride),
        ("edp", expert, shard_expert, whole_expert, expert_stride),
    ):
        if not np.any(count > 0):
            continue
        grads, params = count * runtime.grad_comm_bytes, count * runtime.param_comm_bytes
        sharded = ((s.zero > 0) & (shards > 1) & (count > 0)).astype(np.float64)
        inner = np.where((s.zero > 0) & (shards > 1), shards, 1.0)
        replicas, once = np.asarray(whole / inner), np.where((whole > inner) & (count > 0), 1.0, 0.0)
        near, far = stride.astype(np.float64), np.asarray(stride * inner, dtype=np.float64)
        # ZeRO 3 gathers before each use; FSDP's ZeRO 2 once per micro-batch, and its replicas meet as often.
        forward, backward = np.where(s.zero >= (2 if runtime.fsdp else 3), m, 1.0), np.where(s.zero == 3, m, 0.0)
        once = once * np.where((s.zero >= 2) & runtime.fsdp, m, 1.0)
        out += [
            Gradient(name, "all_reduce", grads / inner, replicas, far, once, "backward"),
            Gradient(name, "reduce_scatter", grads, shards, near, sharded * each, "backward"),
            Gradient(name, "all_gather", params, shards, near, sharded * forward, "forward"),
            Gradient(name, "all_gather", params, shards, near, sharded * backward, "backward"),
        ]
    return out


GRADIENT_KEY = ("tp", "cp", "dp", "ep", "etp", "zero", "zero_group", "num_microbatches", "rank_order")
"""What the collectives of data parallelism depend on, parameters aside."""


def gradient_times(group: Group, dense: Array, expert: Array, number: Ints | None = None) -> dict[str, Array]:
    """Seconds of all data-parallel collectives by the pass they may hide under, unhidden: ``[n]`` each.

    Strategies with the same degrees (and the same ``number``) must have the same parameters: one of them is timed for
    all.
    """
    s = group.strategies
    first, inverse = s.distinct(GRADIENT_KEY, number)
    few = replace(group, strategies=s.take(first), key=group.key[first])
    times = gradient_times_each(few, dense[first], expert[first])
    return {phase: seconds[inverse] for phase, seconds in times.items()}


def gradient_times_each(group: Group, dense: Array, expert: Array) -> dict[str, Array]:
    """``gradient_times`` where equal strategies may have different parameters."""
    out = {"forward": np.zeros(len(dense)), "backward": np.zeros(len(dense))}
    for comm in gradient_comms(group, dense, expert):
        on = comm.count > 0
        if np.any(on):
            size, stride = np.round(comm.size[on]).astype(np.int64), np.round(comm.stride[on]).astype(np.int64)
            one = group.problem.cluster.collective_time_s(comm.collective, comm.nbytes[on], size, stride)
            out[comm.phase][on] += comm.count[on] * one
    return out


def dp_exposed_s(group: Group, work: Load, slow: Ints, times: dict[str, Array]) -> Array:
    """Seconds of data parallelism that nothing hides, given the slowest rank's row, ``[n]``."""
    buckets = np.maximum(1.0, group.layers.max())
    return np.asarray(sum(gradients_exposed(group, *windows(work, slow), times, buckets).values()))


def windows(work: Load, slow: Ints) -> tuple[Array, Array]:
    """Seconds of the forward pass and of the rest of one micro-batch on the slowest rank, ``[n]`` each."""
    f = at_rank(work.forward, slow)
    return f, at_rank(work.total, slow) - f


def gradients_exposed(
    group: Group, forward: Array, backward: Array, times: dict[str, Array], buckets: Array | float
) -> dict[str, Array]:
    """Seconds of data parallelism by phase that a rank with passes of ``forward`` and ``backward`` s does not hide.

    Buckets hide under the pass that produces or needs them: the last micro-batch's backward and the first one's forward
    (every micro-batch's under ZeRO 3). At least one bucket, a layer's worth, has nothing to hide under.
    """
    out: dict[str, Array] = {}
    for phase, room in gradient_rooms(group, forward, backward).items():
        seconds = times[phase]
        hidden = np.minimum(room, seconds * (1.0 - 1.0 / buckets))
        out[phase] = seconds - hidden + group.problem.runtime.overlap_slowdown * hidden
    return out


def gradient_rooms(group: Group, forward: Array, backward: Array) -> dict[str, Array]:
    """Seconds a step that data-parallel traffic of each phase may hide under, given a rank's passes, ``[n]``."""
    s, out = group.strategies, {}
    for phase, window in (("forward", forward), ("backward", backward)):
        repeat = np.where(repeats_gradients(group, phase), s.num_microbatches, 1)
        out[phase] = np.where(s.dp_overlap, group.problem.runtime.dp_hidden * window * repeat, 0.0)
    return out


def repeats_gradients(group: Group, phase: str) -> NDArray[np.bool_]:
    """Whether the data parallel traffic of a phase comes with every micro-batch rather than once a step, ``[n]``."""
    every = 2 if phase == "backward" or group.problem.runtime.fsdp else 3
    return np.asarray(group.strategies.zero >= every)


def hides_steadily(group: Group, shares: Array | float = 1.0) -> NDArray[np.bool_]:
    """Where a longer slowest rank costs a step more than the traffic that its passes then hide, ``[n]``.

    With the work of all ranks given, a second more on the slowest costs ``m - fill`` seconds in the pipeline. It hides
    ``dp_hidden · shares`` seconds of traffic per pass that hides any; ``shares`` are the parts of its time in question.
    """
    s, runtime = group.strategies, group.problem.runtime
    repeats = np.where(s.zero >= 2, s.num_microbatches, 1)
    gained = runtime.dp_hidden * max(0.0, 1.0 - runtime.overlap_slowdown) * repeats * shares
    return np.asarray(s.num_microbatches - 1.0 / (others_divisor(group.schedule, group.vpp) or 1) >= gained)


def optimizer_state_bytes(problem: Problem) -> float:
    """Bytes of moments and of the FP32 master copy per parameter."""
    return _OPTIMIZER_STATE_BYTES[problem.workload.optimizer] + (4.0 if problem.runtime.master_weights else 0.0)


def state_bytes(group: Group, dense: Array, expert: Array) -> dict[str, Array]:
    """Bytes of weights, gradients, optimizer states and gather buffers for given parameters ``[rank, n]``.

    ZeRO divides optimizer states (1), gradients (2) and parameters (3) over the shard group: arXiv 1910.02054, table 1.
    """
    s, runtime = group.strategies, group.problem.runtime
    a, b = s.zero_shards
    states = optimizer_state_bytes(group.problem) + runtime.optimizer_grad_bytes
    out: dict[str, Array] = {}
    for name, each, stage in (
        ("weights", runtime.param_memory_bytes, 3),
        ("gradients", runtime.grad_memory_bytes, 2),
        ("optimizer", states, 1),
    ):
        on = s.zero >= stage
        out[name] = each * (dense / np.where(on, a, 1.0) + expert / np.where(on, b, 1.0))
    out["optimizer"] = out["optimizer"] * (1.0 - s.offload_optimizer)
    out["gathered_parameters"] = gathered_bytes(group) * (dense + expert) / np.maximum(group.layers, 1.0)
    return out


def gathered_bytes(group: Group) -> Array:
    """Bytes of ZeRO-3's two gather buffers per parameter of a rank's mean layer, ``[n]``."""
    return np.where(group.strategies.zero == 3, 2.0 * group.problem.runtime.param_comm_bytes, 0.0)


def micro_batches_in_flight(group: Group) -> Array:
    """``schedule.in_flight`` on every pipeline rank as the runtime runs the schedule, ``[pp, n]``."""
    m = group.strategies.num_microbatches
    flight = in_flight(group.schedule, group.pp, group.vpp, m)
    if group.schedule == "zb-h1":
        pending = group.problem.runtime.zb_pending
        flight = np.minimum(pending * flight - (pending - 1.0), m[None])
    return np.asarray(flight)


def activation_bytes(group: Group, share: Array) -> dict[str, Array]:
    """Bytes of saved activations in flight, and of the largest transient, on each rank."""
    t, s = group.table, group.strategies
    saved = t.saved.copy()
    saved[t.head] = 0.0
    selective, boundary = t.saved_selective.copy(), t.boundary.copy()
    selective[t.head] = boundary[t.head] = 0.0  # the last stage runs one micro-batch at a time through the head
    plain = np.where(s.recompute == SELECTIVE, group.per_rank(selective), group.per_rank(saved))
    kept = (1.0 - share) * plain + share * group.per_rank(boundary)
    flight = micro_batches_in_flight(group)[group.ranks]
    has = (group.counts > 0).astype(np.float64)
    logits = np.take(has[:, [t.head]] * t.workspace[t.head], group.key, axis=1)
    layers = group.layer_rows
    replay = _largest(has[:, layers], saved[layers], group.key) * (share > 0)
    scratch = _largest(has[:, layers], t.workspace[layers], group.key)
    return {
        "activations": flight * kept,
        "recompute_workspace": replay,
        "logits": logits,
        "workspace": scratch,
    }


def _largest(has: Array, rows: Array, key: Ints) -> Array:
    """The largest row among the kinds each rank holds: ``[rank, n]``."""
    return np.take((has[:, :, None] * rows[None]).max(axis=1), key, axis=1)


def communicators(s: Strategies) -> Array:
    """NCCL communicators a rank belongs to: one per parallelism in use, two for p2p, and the world's."""
    used = [s.tp > 1, s.cp > 1, s.dp * s.cp > 1, s.ep > 1, (s.ep > 1) & (s.edp > 1), s.pp > 1, s.pp > 1]
    return np.asarray(1.0 + np.sum(used, axis=0))


def memory_parts(group: Group, share: Array) -> dict[str, Array]:
    """Every named part of memory on each rank, ``[rank, n]``; the peak is their sum."""
    runtime, s = group.problem.runtime, group.strategies
    dense, expert = parameters(group)
    parts = {**state_bytes(group, dense, expert), **activation_bytes(group, share)}
    dynamic = parts["activations"] + parts["recompute_workspace"] + parts["logits"] + parts["workspace"]
    parts["fragmentation"] = runtime.fragmentation * dynamic
    parts["communicators"] = np.broadcast_to(communicators(s) * runtime.communicator_bytes, dynamic.shape)
    parts["context"] = np.full(dynamic.shape, float(runtime.context_bytes))
    return parts


def optimizer_s(group: Group, dense: Array, expert: Array) -> tuple[Array, Array]:
    """Seconds of the optimizer step on the device, and of what offloading adds, for parameters ``[n]``.

    Streaming: the gradient and each state read, each state and the parameter written. Offloaded states add the gradient
    down and the parameter up over the host link, and the same streaming in host memory at the host link's rate.
    """
    s, problem = group.strategies, group.problem
    a, b = s.zero_shards
    owned = dense / a + expert / b
    touched = 4.0 + 2.0 * optimizer_state_bytes(problem) + 2.0
    device = (1.0 - s.offload_optimizer) * owned * touched / stream_rate(problem)
    moved = problem.runtime.grad_comm_bytes + problem.runtime.param_comm_bytes + touched
    return device, s.offload_optimizer * owned * moved / problem.cluster.accelerator.host_bytes_per_s


def tied_embedding_bytes(group: Group) -> Array:
    """Bytes of one rank's part of the embedding's gradient, ``[n]``."""
    problem, tp = group.problem, group.strategies.tp
    width = problem.model.embedding_dim or problem.model.hidden_size
    return np.asarray(problem.padded_vocabulary(tp) / tp * width * problem.runtime.grad_comm_bytes)


def tied_embedding_s(group: Group) -> Array:
    """Seconds to all-reduce tied embedding gradients between the first and the last stage."""
    s, problem = group.strategies, group.problem
    if group.pp == 1 or not problem.model.tied_embeddings:
        return np.zeros(len(s))
    stride = s.stage_stride * (group.pp - 1)
    return problem.cluster.collective_time_s("all_reduce", tied_embedding_bytes(group), np.full(len(s), 2), stride)


def step_s(group: Group, work: Load, rest: Totals) -> tuple[dict[str, Array], Ints]:
    """Seconds of one step by named part (they sum to the step time), and the slowest rank's row, ``[n]``."""
    s, runtime = group.strategies, group.problem.runtime
    host, hidden = runtime.host_s_per_microbatch / 2.0, rest.p2p * runtime.pp_hidden
    wait = pass_wait_s(group, rest.p2p)
    pipe = pipeline_s(group, work, wait, hidden)
    m = s.num_microbatches.astype(np.float64)
    again = m * at_rank(work.recompute, pipe.slow)
    device, offload = optimizer_s(group, rest.dense, rest.expert)
    passes = 2.0 * m * group.vpp + np.divide(pipe.waits, wait, out=np.zeros_like(wait), where=wait > 0.0)
    parts = {
        "compute": pipe.busy - again,
        "recompute": again,
        "pp_bubble": pipe.idle,
        "pp_comm": passes * (rest.p2p - hidden) + pipe.delays,
        "dp_comm": dp_exposed_s(group, work, pipe.slow, rest.gradients) + rest.tied,
        "optimizer": device,
        "offload": offload,
        "host_per_microbatch": passes * host,
        "fixed": np.full(len(s), runtime.fixed_s_per_step),
    }
    return parts, pipe.slow


def pass_wait_s(group: Group, message: Array) -> Array:
    """Seconds that a forward or backward pass of a chunk takes besides its work: its message and the host, ``[n]``.

    Every pass waits for what its framework does not hide of a message, those at the ends of the model for the batch and
    the loss.
    """
    runtime = group.problem.runtime
    return np.asarray(message * (1.0 - runtime.pp_hidden) + runtime.host_s_per_microbatch / 2.0)


def compute_parts(group: Group, slow: Ints) -> dict[str, Array]:
    """The ``compute`` part of ``step_s`` split by kind of kernel and traffic, on each strategy's slowest rank."""
    t, m = group.table, group.strategies.num_microbatches.astype(np.float64)
    out: dict[str, Array] = {}
    for i, name in enumerate(PARTS):
        per_rank = group.share * group.per_rank(t.forward[i] + t.backward[i] + t.weight[i])
        out[name] = m * at_rank(per_rank, slow)
    return out

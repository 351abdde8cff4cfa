"""Traffic: collectives that DTensor, FSDP2 and context parallelism issue on a fake process group, counts and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from shardwise.costmodel.estimate import Traffic, estimate
from shardwise.costmodel.strategy import Strategy

from . import specs
from .sizes import Sizes

pytestmark = pytest.mark.crosscheck

LAYERS, VOCABULARY = 3, 1024


SHAPE = Sizes(hidden=256, kv_heads=4, width=512, sequence=32)


@pytest.fixture(scope="module")
def comms() -> ModuleType:
    pytest.importorskip("torch.distributed.fsdp")
    from . import comms

    return comms


def predicted(strategy: Strategy, *parallelisms: str, shape: Sizes = SHAPE, **runtime: Any) -> list[Traffic]:
    """Rows of the traffic table for these parallelisms, under torchtitan's runtime unless told otherwise."""
    problem = specs.problem(
        shape, True, LAYERS, strategy.world_size, shape.batch * strategy.dp * strategy.num_microbatches,
        **{"runtime": "torchtitan", **runtime},
    )  # fmt: skip
    return [t for t in estimate(problem, strategy).traffic if t.parallelism in parallelisms]


def counts(rows: Iterable[Traffic]) -> Counter[tuple[str, float]]:
    """Predicted collectives by name and tensor size."""
    out: Counter[tuple[str, float]] = Counter()
    for row in rows:
        out[row.collective, row.tensor_bytes] += round(row.count_per_step)
    return out


def volumes(rows: Iterable[Traffic]) -> dict[str, float]:
    """Predicted bytes by collective, whatever they are cut into."""
    out: Counter[str] = Counter()
    for row in rows:
        out[row.collective] += round(row.tensor_bytes * row.count_per_step)
    return dict(out)


def called(calls: Iterable[Any]) -> Counter[tuple[str, float]]:
    """Issued collectives by name and tensor size."""
    return Counter((call.collective, float(call.nbytes)) for call in calls)


def issued(calls: Iterable[Any]) -> dict[str, float]:
    """Issued bytes by collective."""
    out: Counter[str] = Counter()
    for call in calls:
        out[call.collective] += call.nbytes
    return dict(out)


# Tensor parallelism


def tensor_parallel_calls(comms: ModuleType, tp: int, sp: bool, recompute: str = "none") -> list[Any]:
    """All collectives of one step of the Llama under DTensor, the loss on sharded logits included."""
    import torch
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    from . import parallel
    from .recompute import layer_runner

    with comms.fake_world(tp):
        model = parallel.Llama(SHAPE, LAYERS, VOCABULARY).bfloat16()
        parallel.tensor_parallel(model, init_device_mesh("cpu", (tp,)), sp)
        model.wrap = layer_runner(recompute)
        tokens = torch.randint(0, VOCABULARY, (SHAPE.batch, SHAPE.sequence))
        with comms.CommLog() as log, loss_parallel():
            logits = model(tokens)
            F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
    return log.calls


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallelism(comms, tp):
    """All-reduces of DTensor's colwise and rowwise layers, embedding, head and sharded loss: the same, one by one."""
    rows = predicted(Strategy(tp=tp, micro_batch_size=SHAPE.batch), "tp")
    assert counts(rows) == called(tensor_parallel_calls(comms, tp, sp=False))


def test_tensor_parallelism_with_full_recomputation(comms):
    """A re-entrant checkpoint, as Megatron's, runs the whole forward of a layer again with its collectives."""
    rows = predicted(Strategy(tp=4, micro_batch_size=SHAPE.batch, recompute="full"), "tp")
    assert counts(rows) == called(tensor_parallel_calls(comms, 4, False, "reentrant"))


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism(comms, tp):
    rows = predicted(Strategy(tp=tp, sp=True, micro_batch_size=SHAPE.batch), "tp")
    assert counts(rows) == called(tensor_parallel_calls(comms, tp, sp=True))


def test_sequence_parallelism_apart_from_the_second_gather(comms):
    """Megatron's habit adds a gather for the weight gradient: 2 a layer beyond DTensor's 2 + 2 each way."""
    rows = predicted(Strategy(tp=4, sp=True, micro_batch_size=SHAPE.batch), "tp", sp_regather=True)
    unit = 2.0 * SHAPE.batch * SHAPE.sequence * SHAPE.hidden
    again = Counter({("all_gather", unit): 2 * LAYERS})
    assert counts(rows) - again == called(tensor_parallel_calls(comms, 4, sp=True))


def test_sequence_parallelism_with_selective_recomputation(comms):
    """torchtitan's policy keeps what reduce-scatters return and gathers again: Megatron's counts by another way."""
    rows = predicted(Strategy(tp=4, sp=True, micro_batch_size=SHAPE.batch, recompute="selective"), "tp")
    assert counts(rows) == called(tensor_parallel_calls(comms, 4, True, "every_other_op"))


@pytest.mark.xfail(
    strict=True,
    reason="a non-reentrant checkpoint stops before the layer's last reduce-scatter: one a layer less than the model",
)
def test_sequence_parallelism_with_full_recomputation(comms):
    rows = predicted(Strategy(tp=4, sp=True, micro_batch_size=SHAPE.batch, recompute="full"), "tp")
    assert counts(rows) == called(tensor_parallel_calls(comms, 4, True, "full"))


# Data parallelism


@dataclass(frozen=True)
class Fsdp:
    """How FSDP2 is set up, and what it is told to leave to the last micro-batch (nothing by default)."""

    reshard: bool
    """Parameters are sharded again after forward."""
    replicas: int = 1
    microbatches: int = 1
    gather_once: bool = False
    scatter_once: bool = False
    reduce_once: bool = False
    """All-reduce across replicas."""
    titan: bool = False


def fsdp_calls(comms: ModuleType, how: Fsdp, dp: int = 8) -> list[Any]:
    """All collectives of one step of the Llama under ``fully_shard``."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from . import parallel

    with comms.fake_world(dp):
        shape = (how.replicas, dp // how.replicas) if how.replicas > 1 else (dp,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        model = parallel.fsdp(parallel.Llama(SHAPE, LAYERS, VOCABULARY), mesh, how.reshard, how.titan)
        tokens = torch.randint(0, VOCABULARY, (SHAPE.batch, SHAPE.sequence))
        with comms.CommLog() as log:
            for i in range(how.microbatches):
                last = i == how.microbatches - 1
                model.set_reshard_after_backward(last or not how.gather_once)
                model.set_requires_gradient_sync(last or not how.scatter_once)
                model.set_requires_all_reduce(last or not how.reduce_once)
                model(tokens).float().square().mean().backward()
    return log.calls


def data_parallel(zero: int, microbatches: int = 1, zero_group: int = 0, **runtime: Any) -> dict[str, float]:
    strategy = Strategy(
        dp=8, zero=zero, zero_group=zero_group, micro_batch_size=SHAPE.batch, num_microbatches=microbatches
    )
    return volumes(predicted(strategy, "dp", **runtime))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_fsdp_zero_3(comms, microbatches):
    """Parameters in bf16 each pass, gradients in FP32, in every micro-batch."""
    assert data_parallel(3, microbatches) == issued(fsdp_calls(comms, Fsdp(True, microbatches=microbatches)))


def test_fsdp_zero_3_units(comms):
    """One collective per unit and pass; the model counts one per layer and spreads embedding and head over them."""
    rows = predicted(Strategy(dp=8, zero=3, micro_batch_size=SHAPE.batch), "dp")
    real = Counter(call.collective for call in fsdp_calls(comms, Fsdp(True)))
    model = Counter({name: sum(round(r.count_per_step) for r in rows if r.collective == name) for name in real})
    rest = {"all_gather": 2, "reduce_scatter": 1}
    assert dict(real - model) == rest
    assert model == {"all_gather": 2 * LAYERS, "reduce_scatter": LAYERS}


@pytest.mark.xfail(
    strict=True,
    reason="torchtitan's units keep norm and head gathered after forward (as FSDP2's root by default): ZeRO 3 does "
    "not gather them again in backward; step.gradient_comms gathers every parameter twice",
)
def test_fsdp_zero_3_as_torchtitan_wraps_it(comms):
    assert data_parallel(3) == issued(fsdp_calls(comms, Fsdp(True, titan=True)))


@pytest.mark.parametrize(("zero", "scatter_once"), [(1, True), (2, False)])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_fsdp_that_keeps_its_parameters(comms, microbatches, zero, scatter_once):
    """Stage 1: one gather and one scatter a step. Stage 2: gradients are scattered after every micro-batch."""
    how = Fsdp(False, microbatches=microbatches, gather_once=True, scatter_once=scatter_once)
    assert data_parallel(zero, microbatches, fsdp=False) == issued(fsdp_calls(comms, how))


def test_fsdp_zero_2_as_it_is_by_default(comms):
    assert data_parallel(2, 2) == issued(fsdp_calls(comms, Fsdp(False, microbatches=2)))


def test_hsdp(comms):
    """Scatter within the shard group, all-reduce of the shards across replicas."""
    assert data_parallel(3, zero_group=4) == issued(fsdp_calls(comms, Fsdp(True, replicas=2)))


def test_hsdp_that_reduces_once(comms):
    real = issued(fsdp_calls(comms, Fsdp(True, replicas=2, microbatches=2, reduce_once=True)))
    assert data_parallel(3, 2, zero_group=4, fsdp=False) == real


def test_hsdp_as_it_is_by_default(comms):
    assert data_parallel(3, 2, zero_group=4) == issued(fsdp_calls(comms, Fsdp(True, replicas=2, microbatches=2)))


# Context parallelism


def ring_calls(comms: ModuleType, cp: int, method: str, wide: bool) -> tuple[list[Any], list[Any]]:
    """What torch's ring attention issues, forward and backward, for one layer."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    aten = torch.ops.aten
    q, k, v = (
        torch.randn(SHAPE.batch, n, SHAPE.sequence // cp, SHAPE.hidden // SHAPE.heads, dtype=torch.bfloat16)
        for n in (SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads)
    )
    before = (ring._cp_options.rotate_method, ring._cp_options.convert_to_f32)
    with comms.fake_world(cp), comms.CommLog() as log:
        ring.set_rotate_method(method)
        ring._cp_options.convert_to_f32 = wide
        kernel = aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = ring._templated_ring_attention(dist.group.WORLD, 2, kernel, q, k, v, is_causal=True)
        hops = len(log.calls)
        ring._templated_ring_attention_backward(
            dist.group.WORLD, 2, aten._scaled_dot_product_flash_attention_for_cpu_backward.default, out, "grad_out",
            query=q, key=k, value=v, out=out, logsumexp=lse, is_causal=True, dropout_p=0.0,
        )  # fmt: skip
        ring._cp_options.rotate_method, ring._cp_options.convert_to_f32 = before
    return log.calls[:hops], log.calls[hops:]


def ring_rows(cp: int) -> Counter[tuple[str, float]]:
    """Predicted hops of one layer."""
    rows = counts(predicted(Strategy(cp=cp, micro_batch_size=SHAPE.batch), "cp"))
    return Counter({key: n // LAYERS for key, n in rows.items()})


@pytest.mark.parametrize("cp", [2, 4])
def test_ring_attention_forward(comms, cp):
    """Each hop is one block of keys and values (torch sends it as an all-to-all with one destination)."""
    forward, _ = ring_calls(comms, cp, "alltoall", wide=False)
    block = 2.0 * SHAPE.batch * SHAPE.sequence / cp * 2 * SHAPE.kv_heads * SHAPE.hidden / SHAPE.heads
    assert called(forward) == {("all_to_all", block): cp - 1}
    assert ring_rows(cp)["p2p", block] == cp - 1


@pytest.mark.xfail(
    strict=True,
    reason="torch's ring sends dk and dv cp times (home included), in FP32 by default: cp-1 + 2 cp blocks where "
    "traffic._context_comms, as Transformer Engine, has 2 (cp-1)",
)
@pytest.mark.parametrize("wide", [False, True])
def test_ring_attention_backward(comms, wide):
    _, backward = ring_calls(comms, 4, "alltoall", wide)
    forward_block = min(size for _, size in ring_rows(4))
    model = sum(size * n for (_, size), n in ring_rows(4).items()) - 3 * forward_block
    assert model == sum(call.nbytes for call in backward)


def test_gathered_keys_and_values(comms):
    """Context parallelism by all-gather: forward gathers keys and values, backward scatters their gradients."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.experimental._context_parallel import _cp_custom_ops as ops

    cp = 4
    shape = (SHAPE.batch, SHAPE.kv_heads, SHAPE.sequence // cp, SHAPE.hidden // SHAPE.heads)
    k, v = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(2))
    with comms.fake_world(cp), comms.CommLog() as log:
        whole = ops.flex_cp_allgather._init_fn(k, v, 2, dist.group.WORLD.group_name)
        ops.flex_cp_allgather_backward._init_fn(*whole, 2, dist.group.WORLD.group_name)
    rows = predicted(Strategy(cp=cp, cp_comm="all_gather", micro_batch_size=SHAPE.batch), "cp")
    model, real = volumes(rows), issued(log.calls)
    assert model["reduce_scatter"] == LAYERS * real["reduce_scatter"]
    again = 2  # the model gathers in backward too rather than keep the gathered tensors, as Transformer Engine does
    assert model["all_gather"] == again * LAYERS * real["all_gather"]


def all_to_all(tensor: Any, split: int, join: int) -> Any:
    """Ulysses' exchange: scatter one dimension over the group, gather another."""
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    group = dist.group.WORLD
    parts = torch.cat(tensor.chunk(dist.get_world_size(), split)).contiguous()
    moved = all_to_all_single_autograd(parts, None, None, group)
    return torch.cat(moved.chunk(dist.get_world_size()), join)


def test_ulysses(comms):
    """q, k, v in and the output back, each once more in backward."""
    import torch
    import torch.nn.functional as F

    cp, dim = 4, SHAPE.hidden // SHAPE.heads
    with comms.fake_world(cp), comms.CommLog() as log:
        q, k, v = (
            torch.randn(SHAPE.batch, n, SHAPE.sequence // cp, dim, dtype=torch.bfloat16, requires_grad=True)
            for n in (SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads)
        )
        inside = (all_to_all(t, split=1, join=2) for t in (q, k, v))
        out = all_to_all(F.scaled_dot_product_attention(*inside, is_causal=True, enable_gqa=True), split=2, join=1)
        assert out.shape == q.shape
        out.float().square().mean().backward()
    rows = predicted(Strategy(cp=cp, cp_comm="a2a", ulysses=cp, micro_batch_size=SHAPE.batch), "cp")
    assert counts(rows) == Counter({key: LAYERS * n for key, n in called(log.calls).items()})


# Experts


def test_expert_dispatch(comms):
    """Two all-to-alls each way of top_k copies of every token."""
    import torch

    ep, shape = 4, replace(SHAPE, experts=8, top_k=2)
    tokens = shape.batch * shape.sequence
    with comms.fake_world(ep), comms.CommLog() as log:
        x = torch.randn(tokens, shape.hidden, dtype=torch.bfloat16, requires_grad=True)
        rows = torch.arange(tokens).repeat_interleave(shape.top_k)
        there = all_to_all(x.index_select(0, rows), split=0, join=0)
        back = all_to_all(there * 2, split=0, join=0)
        torch.zeros_like(x).index_add(0, rows, back).float().square().mean().backward()
    strategy = Strategy(dp=ep, ep=ep, micro_batch_size=shape.batch)
    model = counts(predicted(strategy, "ep", shape=shape, runtime="megatron-core"))
    assert model == Counter({key: LAYERS * n for key, n in called(log.calls).items()})

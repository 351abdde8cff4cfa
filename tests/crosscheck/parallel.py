"""A small Llama under torch's own parallelism, as torchtitan applies it; norms and SwiGLU fused. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .blocks import FusedSwiglu, RmsNorm
from .sizes import Sizes


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.dim = hidden // heads
        self.q, self.k, self.v = (nn.Linear(hidden, n * self.dim, bias=False) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.dim)).transpose(1, 2) for w in (self.q, self.k, self.v))
        core = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(core.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(FusedSwiglu.apply(torch.cat([self.gate(x), self.up(x)], -1)))


class Block(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(s.hidden), RmsNorm(s.hidden)
        self.attention, self.mlp = Attention(s.hidden, s.heads, s.kv_heads), FeedForward(s.hidden, s.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """``vocabulary`` rows, untied; ``wrap`` runs each layer (under a checkpoint, say)."""

    def __init__(self, s: Sizes, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(layers))
        self.norm = RmsNorm(s.hidden)
        self.head = nn.Linear(s.hidden, vocabulary, bias=False)
        self.wrap: Any = lambda layer, x: layer(x)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.wrap(layer, x)
        return self.head(self.norm(x))


def tensor_parallel(model: Llama, mesh: DeviceMesh, sp: bool) -> Llama:
    """Colwise and rowwise shards; with ``sp`` the norms and residuals on sequence shards; logits stay sharded."""
    between = Shard(1) if sp else Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    if sp:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        parallelize_module(layer, mesh, layer_plan(between, sp))
    return model


def layer_plan(between: Any, sp: bool) -> dict[str, Any]:
    plan: dict[str, Any] = {name: SequenceParallel() for name in ("norm1", "norm2")} if sp else {}
    for name in ("attention", "mlp"):
        plan[name] = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
    for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"):
        plan[name] = ColwiseParallel()
    for name in ("attention.out", "mlp.down"):
        plan[name] = RowwiseParallel(output_layouts=between)
    return plan


def fsdp(model: Llama, mesh: DeviceMesh, reshard: bool, titan: bool = False) -> Llama:
    """``fully_shard`` by layer, bf16 parameters and FP32 reduction.

    Plain: one more unit for the rest. ``titan``: torchtitan's units, an embedding and a head that stays gathered.
    """
    model.float()
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    if titan:
        fully_shard(model.embedding, reshard_after_forward=reshard, **options)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **options)
    if titan:
        fully_shard([model.norm, model.head], reshard_after_forward=False, **options)
        return fully_shard(model, **options)
    return fully_shard(model, reshard_after_forward=reshard, **options)

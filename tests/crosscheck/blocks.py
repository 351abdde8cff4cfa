"""Transformer blocks in plain PyTorch that keep for backward what fused training kernels keep. Imports torch.

Where eager PyTorch keeps more than Transformer Engine or Apex kernels, the operator is written as an
``autograd.Function`` with their save list: an FP32 RMSNorm would keep its upcast input and its normalised value, eager
SwiGLU the value of silu besides both halves, and sequence parallelism the gathered input instead of the shard.
Everything else (linear layers, attention, GELU, rotary, softmax, residuals) is torch's own, and so is what it keeps.

``tp`` makes one rank's shard: heads and widths are divided; collectives are stood in for by local repetition (gather)
and slicing (scatter), which keep nothing, as the real ones do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .sizes import Latent, Sizes


class FusedRmsNorm(torch.autograd.Function):
    """Keeps the input, the weight and one FP32 reciprocal per row, as Transformer Engine's RMSNorm does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        unit, g = x.float() * scale, grad.float() * weight.float()
        dx = scale * (g - unit * (g * unit).mean(-1, keepdim=True))
        return dx.to(x.dtype), (grad.float() * unit).flatten(0, -2).sum(0).to(weight.dtype), None


class FusedSwiglu(torch.autograd.Function):
    """Keeps its input (gate and up side by side) and, in experts, the routing weights it applies to the product."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weights: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(gate_up, weights)
        gate, up = gate_up.chunk(2, dim=-1)
        out = F.silu(gate) * up
        return out if weights is None else (out * weights[:, None]).to(out.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        gate_up, weights = ctx.saved_tensors
        gate, up = (t.float() for t in gate_up.chunk(2, dim=-1))
        sigmoid, g = torch.sigmoid(gate), grad.float()
        d_weights = None
        if weights is not None:
            d_weights = (g * gate * sigmoid * up).sum(-1).to(weights.dtype)
            g = g * weights[:, None].float()
        d_gate = g * up * sigmoid * (1 + gate * (1 - sigmoid))
        return torch.cat([d_gate, g * gate * sigmoid], -1).to(gate_up.dtype), d_weights


class GatherLinear(torch.autograd.Function):
    """A column-split layer under Megatron's sequence parallelism: keeps the shard, gathers it again in backward."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, weight: Tensor, dim: int, tp: int) -> Tensor:
        ctx.save_for_backward(shard, weight)
        ctx.dim, ctx.tp = dim, tp
        return F.linear(torch.cat([shard] * tp, dim), weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        shard, weight = ctx.saved_tensors
        whole = torch.cat([shard] * ctx.tp, ctx.dim)
        d_shard = (grad @ weight).chunk(ctx.tp, ctx.dim)[0]
        return d_shard, grad.flatten(0, -2).T @ whole.flatten(0, -2), None, None


class Linear(nn.Module):
    """No bias; ``gather`` above 1 reads a sequence shard, ``scatter`` above 1 returns one."""

    def __init__(self, inputs: int, outputs: int, dim: int = 1, gather: int = 1, scatter: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.bfloat16) * inputs**-0.5)
        self.dim, self.gather, self.scatter = dim, gather, scatter

    def forward(self, x: Tensor) -> Tensor:
        if self.gather > 1:
            return GatherLinear.apply(x, self.weight, self.dim, self.gather)
        return F.linear(x, self.weight).chunk(self.scatter, self.dim)[0]


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return FusedRmsNorm.apply(x, self.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``[batch, sequence, heads, dim]``; keeps the tables only, which layers share."""
    half = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return x * cos + half * sin


class LlamaAttention(nn.Module):
    """Separate projections as in torchtitan and transformers: grouped queries, rotary, SDPA's flash kernel."""

    def __init__(self, sizes: Sizes, recompute_core: bool = False) -> None:
        super().__init__()
        s, g = sizes, sizes.gather
        self.dim, self.recompute_core = s.head_dim, recompute_core
        q, kv = s.hidden // s.tp, s.kv_heads * s.head_dim // s.tp
        self.q, self.k, self.v = (Linear(s.hidden, n, gather=g) for n in (q, kv, kv))
        self.out = Linear(q, s.hidden, scatter=g)
        angle = torch.arange(s.sequence)[:, None, None] / 10000 ** torch.linspace(0, 1, s.head_dim)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.dim)) for proj in (self.q, self.k, self.v))
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        out = checkpoint(self.core, q, k, v, use_reentrant=False) if self.recompute_core else self.core(q, k, v)
        return self.out(out.flatten(2))


class LatentAttention(nn.Module):
    """Multi-head latent attention in its training form: keys and values expanded, as in Megatron-Core."""

    def __init__(self, sizes: Sizes, latent: Latent) -> None:
        super().__init__()
        s, m, g = sizes, latent, sizes.gather
        self.latent, self.gather = latent, g
        self.heads = s.heads // s.tp
        self.q_down, self.kv_down = Linear(s.hidden, m.q_rank), Linear(s.hidden, m.kv_rank + m.rope_dim)
        self.q_norm, self.kv_norm = RmsNorm(m.q_rank), RmsNorm(m.kv_rank)
        self.q_up = Linear(m.q_rank, self.heads * (m.nope_dim + m.rope_dim), gather=g)
        self.kv_up = Linear(m.kv_rank, self.heads * (m.nope_dim + m.v_dim), gather=g)
        self.out = Linear(self.heads * m.v_dim, s.hidden, scatter=g)

    def expand(self, q: Tensor, kv: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m = self.latent
        q = self.q_up(q).unflatten(-1, (self.heads, -1))
        k, v = self.kv_up(kv).unflatten(-1, (self.heads, -1)).split([m.nope_dim, m.v_dim], -1)
        shared = torch.cat([position] * self.gather, 1)[:, :, None].expand(-1, -1, self.heads, -1)
        return q, torch.cat([k, shared], -1), v.contiguous()

    def forward(self, x: Tensor) -> Tensor:
        m = self.latent
        kv, position = self.kv_down(x).split([m.kv_rank, m.rope_dim], -1)
        expanded = self.expand(self.q_norm(self.q_down(x)), self.kv_norm(kv), position)
        q, k, v = (t.transpose(1, 2) for t in expanded)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class GatedMlp(nn.Module):
    """One matrix for gate and up, fused SwiGLU, down."""

    def __init__(self, hidden: int, width: int, gather: int = 1) -> None:
        super().__init__()
        self.up, self.down = Linear(hidden, 2 * width, gather=gather), Linear(width, hidden, scatter=gather)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(FusedSwiglu.apply(self.up(x)))


class LlamaBlock(nn.Module):
    """Pre-norm attention and gated feed-forward on ``[batch, sequence (/ tp), hidden]``."""

    def __init__(self, sizes: Sizes, recompute_core: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(sizes.hidden), RmsNorm(sizes.hidden)
        latent = sizes.latent
        self.attention = LatentAttention(sizes, latent) if latent else LlamaAttention(sizes, recompute_core)
        self.mlp = GatedMlp(sizes.hidden, sizes.width // sizes.tp, sizes.gather)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SplitGateMlp(nn.Module):
    """Gate and up as two matrices, as in torchtitan and transformers; the fused kernel reads them side by side."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.up = (Linear(sizes.hidden, sizes.width) for _ in range(2))
        self.down = Linear(sizes.width, sizes.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(FusedSwiglu.apply(torch.cat([self.gate(x), self.up(x)], -1)))


class TitanBlock(LlamaBlock):
    """A Llama block of seven matrices, what torchtitan's recomputation policy counts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.mlp = SplitGateMlp(sizes)


class ModuleRecomputeLlamaBlock(LlamaBlock):
    """Megatron-Core's ``layernorm`` and ``mlp`` modules recomputed: norm outputs and the network are not kept.

    Megatron drops the norm's output after its reader has run; running norm and reader in one checkpoint keeps the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        a = self.attention
        q, k, v = (checkpoint(lambda y, p=p: p(self.norm1(y)), x, use_reentrant=False) for p in (a.q, a.k, a.v))
        q, k, v = (t.unflatten(-1, (-1, a.dim)) for t in (q, k, v))
        core = a.core(rotate(q, a.cos, a.sin), rotate(k, a.cos, a.sin), v)
        x = x + a.out(core.flatten(2))
        return x + checkpoint(lambda y: self.mlp(self.norm2(y)), x, use_reentrant=False)


class GptBlock(nn.Module):
    """Megatron's GPT: ``[sequence (/ tp), batch, hidden]``, LayerNorm, one QKV matrix, GELU, optional dropout.

    ``kernel`` is ``flash`` (SDPA) or ``unfused``: scores, softmax, dropout and weighted values as separate operators.
    """

    def __init__(self, sizes: Sizes, kernel: str = "flash", dropout: float = 0.0, recompute_core: bool = False) -> None:
        super().__init__()
        s, g = sizes, sizes.gather
        self.dim, self.kernel, self.dropout, self.recompute_core = s.head_dim, kernel, dropout, recompute_core
        self.norm1, self.norm2 = (nn.LayerNorm(s.hidden, dtype=torch.bfloat16) for _ in range(2))
        self.qkv = Linear(s.hidden, 3 * s.hidden // s.tp, dim=0, gather=g)
        self.out = Linear(s.hidden // s.tp, s.hidden, dim=0, scatter=g)
        self.up = Linear(s.hidden, s.width // s.tp, dim=0, gather=g)
        self.down = Linear(s.width // s.tp, s.hidden, dim=0, scatter=g)
        mask = torch.ones(s.sequence, s.sequence, dtype=torch.bool).triu(1)
        self.register_buffer("mask", torch.zeros(mask.shape, dtype=torch.bfloat16).masked_fill(mask, -1e4))

    def drop(self, x: Tensor) -> Tensor:
        """Dropout with a one-byte mask, what CUDA's and every fused kernel keep."""
        return torch.native_dropout(x, self.dropout, True)[0] if self.dropout else x

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sequence, batch, heads, dim = q.shape
        if self.kernel == "flash":
            out = F.scaled_dot_product_attention(*(t.permute(1, 2, 0, 3) for t in (q, k, v)), is_causal=True)
            return out.permute(2, 0, 1, 3).flatten(2)
        q, k, v = (t.reshape(sequence, batch * heads, dim).transpose(0, 1) for t in (q, k, v))
        probabilities = self.drop(torch.softmax(q @ k.transpose(1, 2) * dim**-0.5 + self.mask, -1))
        return (probabilities @ v).transpose(0, 1).reshape(sequence, batch, heads * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3 * self.dim)).chunk(3, -1)
        core = checkpoint(self.core, q, k, v, use_reentrant=False) if self.recompute_core else self.core(q, k, v)
        x = x + self.drop(self.out(core))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class Experts(nn.Module):
    """Softmax router in FP32, permutation, grouped gated experts with the routing weights in the activation.

    ``recompute_activation`` is Megatron-Core's ``moe_act``: the activation's output is not kept.
    """

    def __init__(self, sizes: Sizes, recompute_activation: bool = False) -> None:
        super().__init__()
        s, width = sizes, sizes.width // sizes.etp
        self.sizes, self.recompute_activation = sizes, recompute_activation
        self.router = Linear(s.hidden, s.experts)
        self.up = nn.ModuleList(Linear(s.hidden, 2 * width) for _ in range(s.experts))
        self.down = nn.ModuleList(Linear(width, s.hidden) for _ in range(s.experts))
        self.shared = GatedMlp(s.hidden, s.shared_width // s.tp, s.gather) if s.shared_width else None

    def finish(self, gate_up: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
        parts = FusedSwiglu.apply(gate_up, weights).split(counts)
        return torch.cat([down(part) for down, part in zip(self.down, parts, strict=True)])

    def forward(self, x: Tensor) -> Tensor:
        s, tokens = self.sizes, x.flatten(0, 1)
        scores = torch.softmax(self.router(tokens), -1, dtype=torch.float32)
        weights, chosen = scores.topk(s.top_k)
        # An expert's TP group gathers the tokens of all its ranks.
        order = chosen.flatten().argsort().repeat_interleave(s.etp)
        rows = order // s.top_k
        counts = chosen.flatten().bincount(minlength=s.experts).mul(s.etp).tolist()
        parts = tokens.index_select(0, rows).split(counts)
        gate_up = torch.cat([up(part) for up, part in zip(self.up, parts, strict=True)])
        picked = weights.flatten().index_select(0, order).to(x.dtype)
        if self.recompute_activation:
            done = checkpoint(self.finish, gate_up, picked, counts, use_reentrant=False)
        else:
            done = self.finish(gate_up, picked, counts)
        # scatter_add keeps the row numbers; index_add would keep the experts' outputs too, which no fused kernel does.
        out = torch.zeros_like(tokens).scatter_add(0, rows[:, None].expand_as(done), done).view_as(x)
        return out if self.shared is None else out + self.shared(x)


class MoeBlock(nn.Module):
    """Llama attention with a mixture of experts."""

    def __init__(self, sizes: Sizes, recompute_activation: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(sizes.hidden), RmsNorm(sizes.hidden)
        self.attention = LlamaAttention(sizes)
        self.experts = Experts(sizes, recompute_activation)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))

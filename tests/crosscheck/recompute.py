"""Ways to run a layer under recomputation. Imports torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Runner = Callable[[nn.Module, Tensor], Tensor]

_KEPT = (
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)


def every_other_op() -> tuple[Any, Any]:
    """torchtitan's per-operator policy: attention, reduce-scatters and every other matrix product are kept."""
    seen: Counter[bool] = Counter()

    def policy(ctx: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        product = op == torch.ops.aten.mm.default
        seen[ctx.is_recompute] += product
        keep = op in _KEPT and not (product and seen[ctx.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def layer_runner(kind: str) -> Runner:
    """``none``; ``full`` and ``reentrant`` checkpoints; ``every_other_op``."""
    if kind == "none":
        return lambda layer, x: layer(x)
    if kind == "every_other_op":
        return lambda layer, x: checkpoint(layer, x, use_reentrant=False, context_fn=every_other_op)
    return lambda layer, x: checkpoint(layer, x, use_reentrant=kind == "reentrant")

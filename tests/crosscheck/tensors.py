"""Bytes that autograd really keeps. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def saved_bytes(block: nn.Module, run: Callable[[], Tensor]) -> int:
    """Bytes of the distinct storages kept for backward by ``run``, the block's parameters and buffers left out.

    A view keeps its whole storage alive, so storages count, not shapes. The backward pass runs too: what was kept is
    enough, and every gradient finite.
    """
    own = {t.untyped_storage().data_ptr() for t in (*block.parameters(), *block.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    total = sum(kept.values())
    out.float().square().mean().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in block.parameters())
    return total

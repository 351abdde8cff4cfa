"""Bytes that autograd really keeps. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from . import recompute


class Kept:
    """Distinct storages but parameters and buffers. A view keeps its whole storage, so shapes do not count."""

    def __init__(self, block: nn.Module) -> None:
        self.sizes: dict[int, int] = {}
        self._own = {storage(t).data_ptr() for t in (*block.parameters(), *block.buffers())}

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor; returns it, as a pack hook must."""
        held = storage(tensor)
        if held.data_ptr() not in self._own:
            self.sizes[held.data_ptr()] = held.nbytes()
        return tensor

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


def storage(tensor: Tensor) -> torch.UntypedStorage:
    """A tensor's storage, of a distributed one this rank's."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return getattr(local, "elem", local).untyped_storage()


def saved_bytes(block: nn.Module, run: Callable[[], Tensor], backward: bool = True) -> int:
    """Bytes kept for backward by ``run``. Backward runs too: they were enough, and every gradient is finite."""
    kept = Kept(block)
    with saved_tensors_hooks(kept.add, lambda tensor: tensor):
        out = run()
    total = kept.total
    if backward:
        out.float().square().mean().backward()
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in block.parameters())
    return total


def selectively_saved_bytes(block: nn.Module, x: Tensor) -> int:
    """The same under torchtitan's policy: what the checkpoint saves, and what the policy caches."""
    caches: list[Any] = []

    def contexts() -> tuple[Any, Any]:
        caches.extend(made := recompute.every_other_op())
        return made

    kept = Kept(block)
    with saved_tensors_hooks(kept.add, lambda tensor: tensor):
        out = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    for tensor in cached(caches[0].storage):
        kept.add(tensor)
    out.float().square().mean().backward()
    return kept.total


def cached(entries: Any) -> Iterable[Tensor]:
    """Tensors in a selective checkpoint's store."""
    values = (getattr(leaf, "val", None) for leaf in tree_leaves([dict(d) for d in entries.values()]))
    return (value for value in values if isinstance(value, Tensor))

"""Collectives that torch really issues in one process of a fake process group. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

_NO_TRAFFIC = ("wait_tensor", "_wrap_tensor_autograd")


@dataclass(frozen=True)
class Call:
    """One collective: ``nbytes`` of the whole tensor, as the cost model counts it, and the dtype on the wire."""

    collective: str
    nbytes: int
    dtype: torch.dtype


def _size(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
    return tensor.numel() * tensor.element_size(), tensor.dtype


class CommLog(TorchDispatchMode):
    """What ``CommDebugMode`` counts, with the bytes: functional collectives of DTensor, c10d ones of FSDP."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor turns it into local operators and collectives, which come back here
        out = func(*args, **(kwargs or {}))
        match func._overloadpacket.__name__:
            case "all_gather_into_tensor":
                self._add("all_gather", out)
            case "_allgather_base_":
                self._add("all_gather", args[0])
            case "reduce_scatter_tensor":
                self._add("reduce_scatter", args[0])
            case "_reduce_scatter_base_":
                self._add("reduce_scatter", args[1])
            case "all_reduce":
                self._add("all_reduce", args[0])
            case "allreduce_":
                self._add("all_reduce", *args[0])
            case "all_to_all_single":
                self._add("all_to_all", args[0])
            case name if "c10d" in func.namespace and name not in _NO_TRAFFIC:
                raise AssertionError(f"a collective this log does not know: {func}")
        return out

    def _add(self, collective: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self.calls.append(Call(collective, *_size(tensor)))


@contextmanager
def fake_world(size: int) -> Iterator[None]:
    """Rank 0 of ``size`` processes whose collectives return at once."""
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()

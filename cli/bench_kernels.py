"""Times GEMMs and attention on one accelerator; prints one JSON object a line, for ``--gemm`` and ``--attention``.

Needs PyTorch and nothing else; shardwise ships it and prints it with ``shardwise calibrate --script``.
    python bench_kernels.py [--tiny] [--dtype bf16 ...] > kernels.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

torch: Any = None

GEMM_M = (512, 1024, 2048, 4096, 8192, 16384)
GEMM_NK = ((1024, 4096), (4096, 4096), (4096, 14336), (6144, 2048), (8192, 8192), (14336, 4096), (28672, 8192))
ATTENTION = ((1, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128), (1, 64, 4096, 64), (4, 8, 4096, 128))
TINY_M, TINY_NK, TINY_ATTENTION = (16, 32), ((32, 16), (64, 32)), ((1, 2, 64, 16),)


def main() -> int:
    """Measure and print."""
    global torch
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--tiny", action="store_true", help="a few small shapes, to see that it runs")
    options = parser.parse_args()
    torch = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    for dtype in options.dtype:
        for row in rows(device, dtype, options.tiny):
            sys.stdout.write(json.dumps({"device": name, "dtype": dtype, "torch": torch.__version__, **row}) + "\n")
            sys.stdout.flush()
    return 0


def rows(device: str, dtype: str, tiny: bool) -> Any:
    """Timed shapes, one dict each."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    for n, k in TINY_NK if tiny else GEMM_NK:
        for m in TINY_M if tiny else GEMM_M:
            a, b = (torch.randn(shape, device=device, dtype=kind) for shape in ((m, k), (k, n)))
            seconds = timed(lambda a=a, b=b: torch.mm(a, b), device, tiny)
            yield {"kind": "gemm", "m": m, "n": n, "k": k, "time_us": seconds * 1e6}
    for batch, heads, seq, dim in TINY_ATTENTION if tiny else ATTENTION:
        for causal in (True, False):
            yield from attention(device, kind, (batch, heads, seq, dim), causal, tiny)


def attention(device: str, kind: Any, shape: tuple[int, int, int, int], causal: bool, tiny: bool) -> Any:
    """Forward and backward of PyTorch's own attention, which is FlashAttention-2 on CUDA."""
    q, k, v = (torch.randn(shape, device=device, dtype=kind, requires_grad=True) for _ in range(3))

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    flash = flash_only(device)
    with flash:
        out = forward()
        grad = torch.randn_like(out)
        both = timed(lambda: forward().backward(grad), device, tiny)
        with torch.no_grad():
            ahead = timed(forward, device, tiny)
    batch, heads, seq, dim = shape
    for direction, seconds in (("forward", ahead), ("backward", both - ahead)):
        if seconds > 0.0:
            yield {
                "kind": "attention", "kernel": "fa2", "direction": direction, "batch": batch, "heads": heads,
                "seq": seq, "head_dim": dim, "causal": causal, "time_us": seconds * 1e6,
            }  # fmt: skip


def flash_only(device: str) -> Any:
    """Only the flash kernel, where PyTorch can be told so."""
    import contextlib

    if device != "cuda" or not hasattr(torch.nn, "attention"):
        return contextlib.nullcontext()
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)


def timed(run: Any, device: str, tiny: bool) -> float:
    """Median seconds of one call: calls queued in batches, so that the host's launches are hidden."""
    calls, batches = (2, 3) if tiny else (20, 9)
    for _ in range(2 if tiny else 10):
        run()
    times = []
    for _ in range(batches):
        wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait(device)
        times.append((time.perf_counter() - start) / calls)
    return sorted(times)[len(times) // 2]


def wait(device: str) -> None:
    """Until the device has done all that was queued."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main())

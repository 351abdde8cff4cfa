"""Timings of GEMMs and attention kernels: tables with a header, and what mamf-finder and flash-attention print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..accelerator import DTYPE_BYTES
from ..errors import InputError
from ..measured_kernels import AttentionRow, GemmRow
from .log_lines import read_lines, where
from .tables import Record, read_table

GEMM = "a table of GEMM timings (columns m, n, k, dtype and a time or tflops) or the output of mamf-finder"
ATTENTION = "a table of attention timings (columns batch, heads, seq, head_dim, causal, dtype and a time or tflops)"

_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "tensorfloat32": "tf32",
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8", "fp8_e4m3", "e4m3"), "fp8"),
}  # fmt: skip
_KERNELS = {
    "flash": "fa2", "flash2": "fa2", "flashattention2": "fa2", "flash_attention_2": "fa2", "fav2": "fa2", "fa2": "fa2",
    "flash3": "fa3", "fav3": "fa3", "fa3": "fa3", "flashattention3": "fa3", "flash_attention_3": "fa3", "flash1": "fa1",
    "fa1": "fa1", "cudnn": "cudnn", "math": "unfused", "pytorch": "unfused", "unfused": "unfused", "vendor": "vendor",
    "aotriton": "vendor", "ck": "vendor", "sdpa": "fa2",
}  # fmt: skip
_MAMF_ROW = re.compile(r"^\s*\d+\s+(?P<rates>[^@]*)@\s*(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)")
_MAMF_BEST = re.compile(
    r"^\s*(?P<stat>mean|median|max)\s*:\s*(?P<rate>\d+(?:\.\d+)?)\s*TFLOPS\s*@\s*(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
)
_MAMF_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\((mean|median|max)\)|TFLOPS)")
_MAMF_DTYPE = re.compile(r"(?:dtype\W+(?:torch\.)?|--dtype[= ])(\w+)", re.IGNORECASE)
_FLASH_HEAD = re.compile(r"###\s*(causal=.*?)###|###\s*(batch_size=.*?)###")
_FLASH_ROW = re.compile(r"^\s*(?P<name>[\w-]+)\s+(?P<pass>fwd|bwd):\s*(?P<rate>\d+(?:\.\d+)?)(?:\s*TFLOP)?")
_FLASH_HIDDEN = 2048
"""Heads times head dimension in flash-attention's own benchmark."""


def dtype_of(text: str) -> str | None:
    """A dtype as profiles name it, or None."""
    plain = text.lower().removeprefix("torch.").strip()
    plain = _DTYPES.get(plain, plain)
    return plain if plain in DTYPE_BYTES else None


def read_gemm_table(path: str | Path, device: str) -> list[GemmRow]:
    """GEMM rows of a file. ``device`` is noted where the file names none. Raises InputError with file and line."""
    file = Path(path)
    lines = read_lines(file, GEMM)
    if any(_MAMF_ROW.search(line) or _MAMF_BEST.search(line) for line in lines):
        return _mamf(file, lines, device)
    records = [r for r in read_table(file, GEMM) if r.text("kind", "op", "operation").lower() in ("", "gemm", "matmul")]
    if not records:
        raise InputError(f"{file}: holds no GEMM; expected {GEMM}")
    return [_gemm(record, device) for record in records]


def _gemm(record: Record, device: str) -> GemmRow:
    m, n, k = (record.whole(name) for name in ("m", "n", "k"))
    if m is None or n is None or k is None:
        raise record.fault(f"m, n or k is missing: expected {GEMM}")
    words = record.text("dtype", "precision", "type", "data_type", "datatype")
    dtype = dtype_of(words)
    if dtype is None:
        raise record.fault(f"dtype = {words!r}: expected one of {', '.join(DTYPE_BYTES)}")
    groups = record.whole("groups", "batch", "batch_size", "experts", "b") or 1
    seconds = record.seconds(2.0 * m * n * k * groups)
    layout = record.text("layout", "trans", "transpose").upper()
    return GemmRow(
        record.text("device", "gpu") or device, dtype, m, n, k, groups, layout, seconds, Path(record.path).name
    )


def _mamf(file: Path, lines: list[str], device: str) -> list[GemmRow]:
    """Every shape that was tried, by its median (else mean) rate; the best one alone where the log holds no more."""
    dtype, rows, best = "", [], []
    for number, line in enumerate(lines, start=1):
        if found := _MAMF_DTYPE.search(line):
            dtype = dtype_of(found[1]) or dtype
        row = _MAMF_ROW.search(line)
        match = row or _MAMF_BEST.search(line)
        if match is None:
            continue
        if not dtype:
            raise InputError(f"{where(file, number)}: dtype unknown: the log names none; expected a line 'Dtype: …'")
        m, n, k = (int(match[name]) for name in ("m", "n", "k"))
        rate = _mamf_rate(match["rates"]) if row else float(match["rate"])
        if not rate:
            raise InputError(f"{where(file, number)}: no rate above 0 before the shape: expected TFLOPS")
        made = GemmRow(device, dtype, m, n, k, 1, "", 2.0 * m * n * k / (rate * 1e12), file.name)
        if row:
            rows.append(made)
        elif match["stat"] == "median":
            best.append(made)
    return rows or best


def _mamf_rate(text: str) -> float:
    rates = {stat or "only": float(value) for value, stat in _MAMF_RATE.findall(text)}
    return rates.get("median") or rates.get("mean") or rates.get("only") or rates.get("max") or 0.0


def read_attention_table(path: str | Path, device: str) -> list[AttentionRow]:
    """Attention rows of a file, forward and backward apart. Raises InputError with file and line."""
    file = Path(path)
    lines = read_lines(file, ATTENTION)
    if any(_FLASH_HEAD.search(line) for line in lines):
        rows = list(_flash(file, lines, device))
    else:
        rows = [_attention(r, device) for r in read_table(file, ATTENTION) if _is_attention(r)]
    if not rows:
        raise InputError(f"{file}: holds no attention kernel; expected {ATTENTION}")
    return rows


def _is_attention(record: Record) -> bool:
    kind = record.text("kind", "op", "operation").lower()
    return kind == "" or kind.startswith(("attention", "attn", "sdpa", "fmha"))


def _attention(record: Record, device: str) -> AttentionRow:
    batch = record.whole("batch", "batch_size", "b")
    heads = record.whole("heads", "num_heads", "nheads", "n_heads", "h")
    seq_q = record.whole("seq_q", "seq", "seqlen", "seq_len", "sequence", "seqlen_q", "s")
    dim = record.whole("qk_dim", "head_dim", "headdim", "hdim", "d")
    if batch is None or heads is None or seq_q is None or dim is None:
        raise record.fault(f"batch, heads, seq or head_dim is missing: expected {ATTENTION}")
    seq_k = record.whole("seq_k", "seq_kv", "seqlen_k", "seqlen_kv") or seq_q
    v_dim = record.whole("v_dim", "v_head_dim") or dim
    causal = record.flag("causal", "is_causal", "mask")
    if causal is None:
        raise record.fault("causal is missing: expected true or false (the work differs by two)")
    words = record.text("dtype", "precision", "type") or "bf16"
    dtype = dtype_of(words)
    if dtype is None:
        raise record.fault(f"dtype = {words!r}: expected one of {', '.join(DTYPE_BYTES)}")
    backward = _backward(record)
    kernel = kernel_of(record.text("kernel", "impl", "implementation", "backend", "provider", "method") or "sdpa")
    if kernel is None:
        raise record.fault(f"kernel: expected one of {', '.join(sorted(_KERNELS))}")
    seconds = record.seconds(attention_flops(batch, heads, seq_q, seq_k, dim, v_dim, causal, backward))
    shape = (batch, heads, seq_q, seq_k, dim, v_dim)
    name = record.text("device", "gpu") or device
    return AttentionRow(name, dtype, kernel, backward, *shape, causal, seconds, Path(record.path).name)


def _backward(record: Record) -> bool:
    words = record.text("direction", "pass", "mode", "backward", "kind", "op").lower()
    if words in ("fwd_bwd", "fwd+bwd", "both"):
        raise record.fault(f"{words}: expected forward and backward apart")
    return words in ("bwd", "backward", "true", "1") or words.endswith(("_bwd", "_backward"))


def kernel_of(text: str) -> str | None:
    """The kernel class of an implementation's name, or None."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return _KERNELS.get(plain) or _KERNELS.get(plain.replace("_", ""))


def attention_flops(b: int, h: int, sq: int, sk: int, dq: int, dv: int, causal: bool, backward: bool) -> float:
    """FLOPs as benchmarks count them: half the square when causal; 2(dq + dv) a pair, backward 2(3 dq + 2 dv)."""
    pairs = float(b) * h * sq * sk * (0.5 if causal else 1.0)
    return 2.0 * pairs * (3 * dq + 2 * dv if backward else dq + dv)


def _flash(file: Path, lines: list[str], device: str) -> Iterator[AttentionRow]:
    """flash-attention's benchmark: a heading with the shape, then ``Flash2 fwd: RATE TFLOPs/s, bwd: …``; fp16."""
    shape: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if head := _FLASH_HEAD.search(line):
            shape.update(re.findall(r"(\w+)=(\w+)", head[0]))
            continue
        found = _FLASH_ROW.search(line)
        kernel = kernel_of(found["name"]) if found else None
        if found is None or kernel is None:
            continue
        rates = [(found["pass"] == "bwd", float(found["rate"]))]
        if later := re.search(r",?\s*bwd:\s*(\d+(?:\.\d+)?)", line[found.end() :]):
            rates.append((True, float(later[1])))
        for backward, rate in rates:
            if rate > 0.0:
                yield _flash_row(where(file, number), shape, kernel, backward, rate, device, file.name)


def _flash_row(
    place: str, shape: dict[str, str], kernel: str, backward: bool, rate: float, device: str, source: str
) -> AttentionRow:
    try:
        batch = int(shape.get("batch_size") or shape["batch"])
        seq, dim, causal = int(shape["seqlen"]), int(shape["headdim"]), shape["causal"] == "True"
        heads = int(shape.get("nheads") or _FLASH_HIDDEN // dim)
    except (KeyError, ValueError):
        raise InputError(f"{place}: no heading before it names causal, headdim, batch_size and seqlen") from None
    work = attention_flops(batch, heads, seq, seq, dim, dim, causal, backward)
    dtype = dtype_of(shape.get("dtype", "fp16")) or "fp16"
    time = work / (rate * 1e12)
    return AttentionRow(device, dtype, kernel, backward, batch, heads, seq, seq, dim, dim, causal, time, source)

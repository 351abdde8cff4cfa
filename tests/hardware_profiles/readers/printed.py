"""Tables of nccl-tests as its versions print them, written here from the layout's grammar with numbers of our own."""

from __future__ import annotations

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
}
SPLIT = ("all_gather", "reduce_scatter", "alltoall")


def number(value, width):
    """Two decimals where they fit, then one, then none: as the tools shrink numbers that grow."""
    for digits in (2, 1, 0):
        text = f"{value:.{digits}f}"
        if len(text) <= width - 1 or digits == 0:
            return text.rjust(width)
    raise AssertionError


def seconds_of(nbytes, latency=30e-6, rate=100e9):
    return latency + nbytes / rate


def body(nbytes, seconds, factor, check, unit=1e-6):
    rate = nbytes / seconds / 1e9
    time = number(seconds / unit, 7) if unit == 1e-6 else f"{seconds / unit:.3f}"
    return f"  {time}  {number(rate, 6)}  {number(rate * factor, 6)}  {check:>5}"


def rows(op="all_reduce", ranks=8, sizes=(1 << 10, 1 << 20, 1 << 30), layout="new", seconds=seconds_of, check="0"):
    """Rows in a layout: ``new`` has redop and root, ``old`` redop only, ``bare`` neither."""
    redop = "sum" if op in ("all_reduce", "reduce_scatter", "sendrecv") else "none"
    out = []
    for nbytes in sizes:
        count = nbytes // 4 // (ranks if op in SPLIT else 1)
        lead = f"{nbytes:12d}  {count:12d}  {'float':>8}"
        if layout == "new":
            lead += f"  {redop:>6}  {0 if op == 'broadcast' else -1:6d}"
        elif layout == "old":
            lead += f"  {redop:>6}"
        factor = FACTORS[op](ranks)
        out.append(lead + body(nbytes, seconds(nbytes), factor, check) + body(nbytes, seconds(nbytes), factor, check))
    return out


def header(layout="new", check="#wrong", unit="us"):
    names = {"new": "type   redop    root", "old": "type   redop", "bare": "type"}[layout]
    body_names = f"     time   algbw   busbw  {check}"
    return [
        "#                    out-of-place        in-place",
        f"#       size         count      {names}{body_names}{body_names}",
        f"#        (B)    (elements)       ({unit})  (GB/s)  (GB/s)      ({unit})  (GB/s)  (GB/s)",
    ]


def devices(ranks, per_node=8, name="NVIDIA H100 80GB HBM3"):
    return [
        f"#  Rank {r:2d} Group  0 Pid {1000 + r:6d} on  node{r // per_node} device {r % per_node:2d} [0000:19:00] "
        f"{name}"
        for r in range(ranks)
    ]


def footer(op="all_reduce"):
    return [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 100.0 ",
        "#",
        f"# Collective test concluded: {op}_perf",
    ]


def log(op="all_reduce", ranks=8, per_node=8, named=True, listed=True, layout="new", check="#wrong", **options):
    """A whole log."""
    lines = [f"# Collective test starting: {op}_perf"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20", "#"]
    lines += ["# Using devices", *devices(ranks, per_node), "#"] if listed else []
    return [
        *lines,
        *header(layout, check),
        *rows(op, ranks, layout=layout, **options),
        *footer(op)[: 4 if named else 3],
    ]

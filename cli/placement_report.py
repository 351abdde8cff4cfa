"""A placement on the terminal: what it gains, where the traffic goes, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.hardware_profiles.hostlist import compress

from .report import new_table, plain, text_line
from .units import change, percent, plural, seconds, size
from .words import layout

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.search.placement import Placement

HOSTS_SHOWN = 100
"""Columns of a list of hosts."""


def print_placement(out: Console, found: Placement) -> None:
    """The whole answer."""
    job = found.job
    device = job.cluster.accelerator.name
    text_line(
        out,
        f"{job.model} on {plural(job.num_nodes, 'node')} of {job.cluster.node_size} × {device} ({job.cluster.name})",
    )
    _line(out, "layout", layout(found.strategy, moe=found.strategy.ep > 1))
    _line(out, "exposed traffic", _gain(found))
    _line(out, "proof", _proof(found))
    for order, other in found.other_orders.items():
        _line(out, "other order", f"{order}: {seconds(other)}{_compared(order, other, found)}")
    _line(out, "hosts", _short(compress(found.hosts)))
    if found.unused:
        _line(out, "spare", _short(compress(found.unused)))
    _print_parts(out, found)
    _print_levels(out, found)
    for fault in found.faults:
        text_line(out, f"fault: {fault}")
    for told in found.assumptions:
        text_line(out, f"assumed: {told}")


def _line(out: Console, label: str, text: str) -> None:
    text_line(out, f"  {label:<16}{text}")


def _gain(found: Placement) -> str:
    before, after = found.sorted_exposed_s, found.exposed_s
    if found.hosts == found.sorted_hosts:
        return f"{seconds(after)} a step in sorted order, which is kept"
    ratio = change(after / before) if before > 0 else "no change"
    return f"{seconds(after)} a step, {seconds(before)} in sorted order ({ratio})"


def _proof(found: Placement) -> str:
    if found.proven:
        return f"no order of hosts waits less under the cost model (found by: {found.method})"
    return f"no order of hosts waits more than {found.gap * 100:.2g} % less (found by: {found.method})"


def _compared(order: str, other: float, found: Placement) -> str:
    ratio = f" ({change(other / found.exposed_s)})" if found.exposed_s > 0 else ""
    better = other < found.exposed_s * (1.0 - 1e-6)
    return f"{ratio}; to take it, plan with --pin rank_order={order}" if better else ratio


def _short(text: str) -> str:
    return text if len(text) <= HOSTS_SHOWN else f"{text[: HOSTS_SHOWN - 1]}…"


def _print_parts(out: Console, found: Placement) -> None:
    table = new_table("Exposed traffic a step", "parallelism", "sorted", "placed", "against sorted")
    for name, before in found.sorted_parts_s.items():
        after = found.parts_s.get(name, 0.0)
        ratio = change(after / before) if before > 0 else ""
        table.add_row(plain(name), seconds(before), seconds(after), ratio)
    out.print(table)


def _print_levels(out: Console, found: Placement) -> None:
    if not found.levels:
        return
    table = new_table(
        "Bytes over uplinks a step", "tier", "domains", "sorted", "placed", "busiest sorted", "busiest placed", "mostly"
    )
    for level in found.levels:
        total = level.placed_bytes
        most = max(level.by_parallelism.items(), key=lambda item: item[1], default=None)
        mostly = "" if most is None or not total else f"{plain(most[0])} {percent(most[1] / total)}"
        table.add_row(
            plain(level.tier), f"{level.domains:,}", size(level.sorted_bytes), size(total),
            size(level.sorted_busiest_bytes), size(level.placed_busiest_bytes), mostly,
        )  # fmt: skip
    out.print(table)

"""Which collective a table measured, on how many ranks and nodes: from the log, else from its numbers, else a question.

The ratio busbw / algbw is known for every collective (nccl-tests, doc/PERFORMANCE.md): 2(n-1)/n for an all-reduce,
(n-1)/n for gathers, scatters and all-to-all, 1 for the rest. Gathers and scatters also print one rank's count beside
the whole size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError
from .nccl_log import NCCOM, Device, Table, kind_of_name
from .nccl_rows import TYPE_BYTES

MODELLED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")
_SPLIT = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
_MOST_RANKS = 1 << 20
_RECOMPUTED = 0.01
"""GB/s that a rate may differ where someone typed a log anew and recomputed it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says of a log; None where the log is to tell."""

    kind: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    domains: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """A table with everything known that a fit needs. ``domains``: scale-up domains that the ranks lie in."""

    table: Table
    kind: str
    ranks: int
    nodes: int
    domains: int
    notes: tuple[str, ...]


def settle(table: Table, said: Said, node_size: int, domain_size: int) -> Settled:
    """Kind, ranks, nodes and domains of a table on a system. Raises InputError: a question that names the option."""
    notes: list[str] = list(table.notes)
    place = f"{table.path}: table at line {table.line}"
    if not table.points:
        raise InputError(f"{place}: no row of more than 0 bytes; expected messages of some size")
    kind = said.kind or _kind(table, place, notes)
    ranks = said.ranks or _ranks(table, kind, place, notes)
    _check_ranks(table, kind, ranks, place, said)
    nodes = said.nodes or _nodes(table, ranks, node_size, place, notes)
    domains = said.domains or _domains(nodes, ranks, node_size, domain_size, notes)
    if not 1 <= domains <= ranks:
        raise InputError(f"{place}: {domains} nodes or domains for {ranks} ranks: expected at most one a rank")
    return Settled(table, kind, ranks, nodes, domains, tuple(notes))


def _kind(table: Table, place: str, notes: list[str]) -> str:
    if table.kind is not None:
        return table.kind
    named, split = kind_of_name(Path(table.path).stem), split_of(table)
    derived = _kind_by_numbers(table, split)
    if derived is not None:
        notes.append(f"the log names no collective: {derived}, by its columns and rates")
        return derived
    if named is not None and (split is None or (split > 1) == (named in _SPLIT)):
        notes.append(f"the log names no collective: {named}, as the file's name says")
        return named
    raise InputError(f"{place}: which collective it measured is unknown: give --kind {'|'.join(MODELLED)}")


def _kind_by_numbers(table: Table, split: int | None) -> str | None:
    """What size over count, reduction, root and rates leave as the only collective."""
    point = table.points[-1]
    rooted = point.root is not None and point.root >= 0
    if split is not None and split > 1:
        if rooted:
            return "scatter"  # or gather: neither is modelled
        return "reduce_scatter" if point.redop not in ("", "none") else None
    if factor_range(table)[0] > 1.0 + 1e-6:
        return "all_reduce"
    if rooted:
        return "broadcast" if point.redop in ("", "none") else "reduce"
    return None


def split_of(table: Table) -> int | None:
    """Size over the bytes of ``count``: the ranks of a gather or scatter, 1 for others; None where rows disagree."""
    found = {
        point.nbytes / (point.count * TYPE_BYTES[point.dtype])
        for point in table.points
        if point.count and point.dtype in TYPE_BYTES
    }
    if len(found) != 1:
        return None
    value = found.pop()
    return int(value) if value == int(value) and value >= 1.0 else None


def factor_range(table: Table) -> tuple[float, float]:
    """The range of busbw / algbw that the printed digits leave open; (0, inf) where they tell nothing."""
    low, high = [0.0], [math.inf]
    for point in table.points:
        for timing, seconds in point.rates:
            rate = point.nbytes / seconds / 1e9
            # algbw as printed may count less than size over time; then only the two printed rates compare.
            exact = abs(timing.algbw - rate) <= 0.01 * rate + timing.algbw_step
            share = timing.time_step / timing.time if timing.time else 1.0
            base, slack = (rate, share * rate) if exact else (timing.algbw, timing.algbw_step)
            step = timing.busbw_step + _RECOMPUTED
            if base > 20.0 * slack and timing.busbw > 20.0 * step:
                low.append((timing.busbw - step) / (base + slack))
                high.append((timing.busbw + step) / (base - slack))
    if max(low) <= min(high):
        return max(low), min(high)
    # Rows that were typed anew may disagree a little: the middle of them decides.
    return float(np.quantile(low[1:], 0.5)), float(np.quantile(high[1:], 0.5))


def ranks_by_rates(table: Table, kind: str) -> tuple[int, int] | None:
    """The least and most ranks that the rates allow; None where the collective's rates say nothing of them."""
    top = 2.0 if kind == "all_reduce" else 1.0 if kind in _SPLIT else None
    low, high = factor_range(table)
    if top is None or high == math.inf:
        return None
    least = math.ceil(top / (top - low) - 1e-9) if low < top else _MOST_RANKS
    most = math.floor(top / (top - high) + 1e-9) if high < top else _MOST_RANKS
    return max(2, least), min(most, _MOST_RANKS)


def _ranks(table: Table, kind: str, place: str, notes: list[str]) -> int:
    """From what the library says, the device list, size over count, or the rates, in this order."""
    listed, whole = ranks_listed(table.devices, place)
    if listed is not None and whole:
        return listed
    split, rates = split_of(table), ranks_by_rates(table, kind)
    if kind in _SPLIT and split is not None and split > 1:
        return split
    for candidate in (table.ranks_said, listed):
        if candidate is not None and (rates is None or rates[0] <= candidate <= rates[1]):
            if candidate == listed:
                notes.append(f"the device list is not whole: {listed} ranks by its highest number")
            return candidate
    if rates is not None and rates[0] == rates[1]:
        notes.append(f"no device list: {rates[0]} ranks by busbw over algbw")
        return rates[0]
    bound = "" if rates is None or rates[1] < rates[0] else f" (busbw over algbw allows {_span(*rates)})"
    raise InputError(f"{place}: number of ranks unknown{bound}: give --ranks N")


def _span(low: int, high: int) -> str:
    return f"{low} and more" if high >= _MOST_RANKS else f"{low} to {high}"


def ranks_listed(devices: Iterable[Device], place: str) -> tuple[int | None, bool]:
    """Ranks of one communicator by the device list, and whether the list is whole. Raises InputError for solo runs."""
    listed = list(devices)
    if not listed:
        return None, False
    numbers = [device.rank for device in listed]
    if len(set(numbers)) < len(numbers):
        raise InputError(
            f"{place}: rank {min(numbers)} is listed twice: the processes did not form one communicator (was it built"
            " with MPI=1?)"
        )
    groups = {device.group for device in listed}
    whole = set(numbers) == set(range(len(numbers)))
    return (len(numbers) // len(groups), True) if whole else (max(numbers) + 1, False)


def _check_ranks(table: Table, kind: str, ranks: int, place: str, said: Said) -> None:
    """Whether the rates and counts bear out the number of ranks. Raises InputError."""
    if ranks < 2:
        raise InputError(f"{place}: one rank alone: nothing was sent; expected 2 ranks or more")
    split = split_of(table)
    rates = None if table.library == NCCOM else ranks_by_rates(table, kind)
    who = f"--ranks {ranks}" if said.ranks else f"{ranks} ranks by the device list"
    if kind in _SPLIT and split is not None and split > 1 and split != ranks:
        raise InputError(f"{place}: {who}, but size over count says {split}")
    if kind == "all_reduce" and split is not None and split > 1:
        raise InputError(f"{place}: size over count is {split}, which an all-reduce does not have: give --kind")
    if rates is not None and not rates[0] <= ranks <= rates[1]:
        raise InputError(f"{place}: {who}, but busbw over algbw of an {kind} says {_span(*rates)}")


def _nodes(table: Table, ranks: int, node_size: int, place: str, notes: list[str]) -> int:
    """Hosts of the ranks: by the device list, else by what the library says, else whole nodes of the system."""
    devices = [device for device in table.devices if device.host]
    if devices:
        hosts = len({device.host for device in devices})
        if len(devices) >= ranks:
            return max(1, hosts // len({device.group for device in devices}))
        per_host = max(device.index for device in devices) + 1
        if ranks % per_host == 0 and ranks // per_host >= hosts:
            return ranks // per_host
    if table.nodes_said is not None:
        return table.nodes_said
    if table.per_process is not None and table.per_process >= ranks:
        return 1  # one process drives all of them
    if ranks % node_size == 0:
        nodes = ranks // node_size
        notes.append(f"no device list: {ranks} ranks taken as {nodes} whole node{'s' * (nodes > 1)} of {node_size}")
        return nodes
    raise InputError(f"{place}: on how many nodes its {ranks} ranks lie is unknown: give --nodes N")


def _domains(nodes: int, ranks: int, node_size: int, domain_size: int, notes: list[str]) -> int:
    """Scale-up domains: nodes, or racks where a domain joins several nodes."""
    per_domain = max(1, domain_size // node_size)
    if per_domain == 1 or nodes == 1:
        return nodes
    domains = -(-nodes // per_domain)
    notes.append(f"{nodes} nodes taken to fill {domains} domain{'s' * (domains > 1)} of {domain_size}")
    return domains

"""A topology on the terminal: the tree, its levels, and its faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.hostlist import compress

from .output import console, print_json
from .units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardwise.hardware_profiles.topology import Topology

NODES_SHOWN = 60
"""Columns of a list of nodes in the tree."""


def show_topology(path: Path, name: str | None, nodes: str | None, as_json: bool) -> None:
    """Print what a topology file holds, for all of its nodes or those of an allocation.

    Raises InputError for a file or a list that cannot be used.
    """
    from shardwise.hardware_profiles.load_topology import load_topology

    topology = load_topology(path, name)
    view = topology_as_dict(topology, nodes)
    if as_json:
        print_json(view)
    else:
        _print(topology, view)


def topology_as_dict(topology: Topology, nodes: str | None) -> dict[str, Any]:
    """Levels, switches and faults as plain values; ``nodes`` is the host list of an allocation or None for all."""
    from shardwise.hardware_profiles.hostlist import expand, natural

    given = topology.nodes if nodes is None else tuple(sorted(dict.fromkeys(expand(nodes)), key=natural))
    if not given and topology.kind != "flat":
        raise InputError(f"--nodes {nodes!r}: names no node")
    levels = topology.domains(given) if given else ()
    known = set(topology.nodes)
    nowhere = [node for node in given if node not in known and topology.kind != "flat"]
    faults = [{"line": fault.line, "message": fault.message} for fault in topology.faults]
    if nowhere:
        told = f"{len(nowhere)} of the {len(given)} nodes are not in the file ({compress(nowhere)})"
        faults.append({"line": 0, "message": f"{told}; each is taken to hang on a switch of its own"})
    members = set(given)
    return {
        "file": topology.path,
        "topology": topology.name,
        "kind": topology.kind,
        "other_topologies": list(topology.others),
        "num_nodes": len(given),
        "block_sizes": list(topology.block_sizes),
        "levels": [_level(number, level) for number, level in enumerate(levels)],
        "switches": [
            {
                "name": s.name, "line": s.line, "level": s.level, "num_nodes": len(held), "nodes": compress(held),
                "switches": list(s.children), "link_speed": s.link_speed,
            }
            for s in topology.switches
            for held in ([n for n in s.nodes if n in members],)
        ],
        "faults": faults,
    }  # fmt: skip


def _level(number: int, domains: tuple[int, ...]) -> dict[str, int]:
    sizes = Counter(domains).values()
    return {"level": number, "domains": len(sizes), "fewest_nodes": min(sizes), "most_nodes": max(sizes)}


def _print(topology: Topology, view: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.tree import Tree

    out = console()
    title = f"{topology.kind} {topology.name}".strip()
    nodes = plural(view["num_nodes"], "node")
    out.print(f"[bold]{escape(view['file'])}[/bold]: {escape(title)}, {nodes}", soft_wrap=True)
    if view["other_topologies"]:
        out.print(f"  other topologies in it: {', '.join(view['other_topologies'])}", markup=False, soft_wrap=True)
    for level in view["levels"]:
        out.print(f"  {_level_line(level)}", soft_wrap=True)
    shown = {switch["name"]: switch for switch in view["switches"]}
    drawn: set[str] = set()
    for names in _alike([root.name for root in topology.roots], shown):
        tree = Tree(_label(names, shown))
        _grow(tree, names[0], shown, drawn)
        out.print(tree, soft_wrap=True)
    for fault in view["faults"]:
        where = f"{view['file']}:{fault['line']}" if fault["line"] else view["file"]
        out.print(f"fault: {where}: {fault['message']}", markup=False, soft_wrap=True)


def _level_line(level: dict[str, int]) -> str:
    fewest, most = level["fewest_nodes"], level["most_nodes"]
    sizes = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    domains = f"{level['domains']:,} domain{'' if level['domains'] == 1 else 's'}"
    return f"level {level['level']}: {domains} of {sizes} node{'' if most == 1 else 's'}"


def _label(names: list[str], shown: dict[str, dict[str, Any]]) -> str:
    """One line of the tree; parallel switches over the same children share it."""
    from rich.markup import escape

    switch = shown[names[0]]
    nodes = switch["nodes"] if len(switch["nodes"]) <= NODES_SHOWN else switch["nodes"][: NODES_SHOWN - 1] + "…"
    words = [escape(compress(names))]
    if switch["num_nodes"] or not switch["switches"]:
        words.append(f"{plural(switch['num_nodes'], 'node')} {escape(nodes)}".rstrip())
    if switch["link_speed"] is not None:
        words.append(f"link speed {switch['link_speed']:g}")
    return "  ".join(words)


def _alike(names: Iterable[str], shown: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Switches grouped where they join the same children at the same speed: parallel spines are one place."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        switch = shown[name]
        joined = tuple(switch["switches"])
        groups.setdefault((joined, switch["link_speed"]) if joined else name, []).append(name)
    return list(groups.values())


def _grow(tree: Any, name: str, shown: dict[str, dict[str, Any]], drawn: set[str]) -> None:
    """Add what hangs on a switch; what several switches join is drawn once."""
    for names in _alike(shown[name]["switches"], shown):
        again = names[0] in drawn
        branch = tree.add(_label(names, shown) + ("  (above)" if again else ""))
        drawn.update(names)
        if not again:
            _grow(branch, names[0], shown, drawn)

"""What every kind of topology file is read into: entries with their lines, checked once, made a ``Topology``."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import InputError
from .hostlist import MOST_HOSTS, compress, expand
from .topology import Fault, Switch, Topology, levels_of

MOST_SWITCHES = 1 << 16
"""Switches, blocks or rings of one topology."""

MOST_LEVELS = 32
"""Switches above one another."""


@dataclass(slots=True)
class Entry:
    """One switch, block or ring as its line has it, lists not yet expanded."""

    name: str
    line: int
    nodes: str = ""
    children: str = ""
    link_speed: float | None = None
    level: int = 0
    """As ``scontrol`` prints it."""


@dataclass(slots=True)
class Draft:
    """A topology being read. ``printed``: by a running scheduler, which repeats nodes and may leave lines out."""

    path: str
    kind: str
    name: str = ""
    printed: bool = False
    entries: list[Entry] = field(default_factory=list)
    block_sizes: tuple[int, ...] = ()
    sizes_line: int = 0
    others: tuple[str, ...] = ()
    faults: list[Fault] = field(default_factory=list)

    def fail(self, line: int, message: str) -> InputError:
        """An error to raise that names file and line."""
        return InputError(f"{self.path}:{line}: {message}")

    def fault(self, line: int, message: str) -> None:
        """Remember something odd that the topology can be used without."""
        self.faults.append(Fault(self.path, line, message))

    def hosts(self, line: int, text: str) -> tuple[str, ...]:
        """A host list of this file. Raises InputError with its line."""
        try:
            return expand(text)
        except InputError as error:
            raise self.fail(line, str(error)) from None


_WORDS = {"tree": "switch", "block": "block", "ring": "ring", "flat": "switch"}


def finish(draft: Draft) -> Topology:
    """Check a draft and make it a topology.

    Raises InputError with file and line for what makes it unusable: a name twice, a child that nobody defines, a
    loop, no nodes at all. Everything else odd becomes one of its ``faults``.
    """
    word = _WORDS[draft.kind]
    if draft.kind == "flat":
        return Topology(draft.path, draft.name, "flat", (), tuple(draft.faults), (), draft.others)
    if not draft.entries:
        raise InputError(f"{draft.path}: no {word} in it; expected at least one")
    if len(draft.entries) > MOST_SWITCHES:
        raise InputError(f"{draft.path}: {len(draft.entries)} {word} lines; expected at most {MOST_SWITCHES}")
    lines: dict[str, int] = {}
    for entry in draft.entries:
        if entry.name in lines:
            raise draft.fail(entry.line, f"{word} {entry.name!r} stands on line {lines[entry.name]} already")
        lines[entry.name] = entry.line
    children = _children(draft, lines)
    levels = levels_of(lines, children, draft.path)
    if max(levels.values()) >= MOST_LEVELS:
        raise InputError(f"{draft.path}: {max(levels.values()) + 1} levels; expected at most {MOST_LEVELS}")
    nodes = _nodes(draft, children)
    switches = tuple(
        Switch(e.name, e.line, levels[e.name], nodes[e.name], children[e.name], e.link_speed) for e in draft.entries
    )
    _check_sizes(draft, switches)
    topology = Topology(draft.path, draft.name, draft.kind, switches, (), draft.block_sizes, draft.others)
    _check_shape(draft, topology, word)
    faults = tuple(sorted(draft.faults, key=lambda fault: fault.line))
    return Topology(draft.path, draft.name, draft.kind, switches, faults, draft.block_sizes, draft.others)


def _children(draft: Draft, lines: dict[str, int]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in draft.entries:
        names = draft.hosts(entry.line, entry.children)
        for child in names:
            if child not in lines and not draft.printed:
                raise draft.fail(entry.line, f"switch {entry.name!r} names switch {child!r}, which no line defines")
        missing = [child for child in names if child not in lines]
        if missing:
            draft.fault(entry.line, f"switch {entry.name!r}: no line for its switches {brief(missing)}; left out")
        if len(set(names)) < len(names):
            draft.fault(entry.line, f"switch {entry.name!r} names a switch twice")
        found[entry.name] = tuple(child for child in dict.fromkeys(names) if child in lines)
    return found


def _nodes(draft: Draft, children: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Nodes of each entry, each node in the first place that lists it; upper levels only add what is missing."""
    home: dict[str, Entry] = {}
    found: dict[str, tuple[str, ...]] = {}
    above = {e.name for e in draft.entries if children[e.name] or (draft.printed and e.level > 0)}
    upper = [e for e in draft.entries if e.name in above]
    inner = [e for e in draft.entries if e.name not in above]
    for entry in inner:
        names = draft.hosts(entry.line, entry.nodes)
        twice = [n for n in dict.fromkeys(names) if n in home]
        for node in twice[:8]:
            draft.fault(entry.line, f"node {node!r} is under {home[node].name!r} (line {home[node].line}) already; "
                        f"taken to be there")  # fmt: skip
        if len(twice) > 8:
            draft.fault(entry.line, f"and {len(twice) - 8} more nodes that are under another already")
        if len(set(names)) < len(names):
            draft.fault(entry.line, f"{entry.name!r} lists a node twice")
        fresh = tuple(n for n in dict.fromkeys(names) if n not in home)
        home.update(dict.fromkeys(fresh, entry))
        found[entry.name] = fresh
        if len(home) > MOST_HOSTS:
            raise draft.fail(entry.line, f"more than {MOST_HOSTS} nodes up to here; expected at most that many")
    for entry in sorted(upper, key=lambda e: e.level):
        left = tuple(n for n in dict.fromkeys(draft.hosts(entry.line, entry.nodes)) if n not in home)
        if left and children[entry.name]:
            some, verb = ("1 node", "is") if len(left) == 1 else (f"{len(left)} nodes", "are")
            draft.fault(entry.line, f"{some} of {entry.name!r} {verb} under none of its switches that have a line "
                        f"({brief(left)}); taken to hang on it together")  # fmt: skip
        home.update(dict.fromkeys(left, entry))
        found[entry.name] = left
    return found


def _check_sizes(draft: Draft, switches: tuple[Switch, ...]) -> None:
    """Block sizes: positive, each a power of two times the first; blocks that are smaller than planned are faults."""
    sizes, line = draft.block_sizes, draft.sizes_line
    if draft.kind != "block" or not sizes:
        return
    for size in sizes:
        times = size // sizes[0]
        if sizes[0] < 1 or size % sizes[0] or times & (times - 1):
            raise draft.fail(line, f"block size {size}: expected a power of two times the first, {sizes[0]}")
    if list(sizes) != sorted(set(sizes)):
        raise draft.fail(line, f"block sizes {', '.join(map(str, sizes))}: expected each larger than the one before")
    for block in switches:
        if len(block.nodes) < sizes[0]:
            held = "1 node" if len(block.nodes) == 1 else f"{len(block.nodes)} nodes"
            draft.fault(block.line, f"block {block.name!r} has {held}, its planned size is {sizes[0]}")


def _check_shape(draft: Draft, topology: Topology, word: str) -> None:
    """Places without nodes, nodes that no switch joins with the others."""
    for switch in topology.switches:
        if not switch.nodes and not switch.children:
            draft.fault(switch.line, f"{word} {switch.name!r} has no nodes")
    nodes = topology.nodes
    if not nodes:
        raise InputError(f"{draft.path}: no nodes in it; expected a {word} with some")
    if draft.kind != "tree":
        return
    reach = _tops(topology)
    if len(reach) > 1:
        told = ", ".join(f"{name!r} with {count}" for name, count in list(reach.items())[:6])
        more = f" and {len(reach) - 6} more" if len(reach) > 6 else ""
        taken = "they are taken to be joined by a level that the file does not show"
        draft.fault(0, f"no switch reaches all {len(nodes)} nodes ({told}{more}); {taken}")


def _tops(topology: Topology) -> dict[str, int]:
    """One root of each part that nothing joins with the others, and the nodes of that part."""
    levels = topology.domains(topology.nodes)
    shown = [level for level in levels if any(level)]
    joined = not shown or topology_is_joined(topology)
    if joined:
        return {}
    last = shown[-1]
    leaves = topology.leaf_names(topology.nodes)
    above = {child: s.name for s in topology.switches for child in s.children}
    tops: dict[str, int] = {}
    names: dict[int, str] = {}
    for domain, leaf in zip(last, leaves, strict=True):
        top = leaf
        while top in above:
            top = above[top]
        name = names.setdefault(domain, top)
        tops[name] = tops.get(name, 0) + 1
    return tops


def topology_is_joined(topology: Topology) -> bool:
    """Whether the switches of the file join all of its nodes."""
    if topology.kind == "flat":
        return True
    leaf = {s.name for s in topology.switches if s.nodes}
    if len(leaf) <= 1:
        return True
    above: dict[str, list[str]] = {s.name: list(s.children) for s in topology.switches}
    for switch in topology.switches:
        for child in switch.children:
            above[child].append(switch.name)
    start = next(iter(leaf))
    seen, stack = {start}, [start]
    while stack:
        for other in above[stack.pop()]:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return leaf <= seen


def brief(names: list[str] | tuple[str, ...], most: int = 80) -> str:
    """Names as a host list, cut when long."""
    text = compress(names)
    return text if len(text) <= most else f"{text[: most - 1]}…"

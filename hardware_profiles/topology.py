"""How nodes hang together: switches (or blocks, or rings) and what they join, whatever file said so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import InputError

KINDS = ("tree", "block", "ring", "flat")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in a topology that cannot be as meant. ``line`` counts from 1; 0 where no line is to blame."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Switch:
    """One line of a topology: a switch, a block or a ring. ``level`` 0 has nodes under it and no switch."""

    name: str
    line: int
    level: int
    nodes: tuple[str, ...]
    """Nodes that hang on this very switch."""
    children: tuple[str, ...]
    link_speed: float | None = None
    """As the file has it: the units are the site's own."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Switches in the order of the file, what they are, and everything that was odd about them."""

    path: str
    name: str
    """Of the topology, where a file holds several; else empty."""
    kind: str
    switches: tuple[Switch, ...]
    faults: tuple[Fault, ...] = ()
    block_sizes: tuple[int, ...] = ()
    """Nodes that a block, and each larger union of blocks, is planned to have."""
    others: tuple[str, ...] = ()
    """Names of the other topologies in the file."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node, each once, in the order of the file."""
        return tuple(dict.fromkeys(node for switch in self.switches for node in switch.nodes))

    @property
    def roots(self) -> tuple[Switch, ...]:
        """Switches that no other names as its child."""
        inner = {child for switch in self.switches for child in switch.children}
        return tuple(switch for switch in self.switches if switch.name not in inner)

    def domains(self, nodes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """For each level from the leaves outwards, the number of the domain that each node is in.

        A domain of a level is what switches up to that level join: parallel spines over the same leaves are one
        domain, a node listed twice is in the first place, a node listed nowhere is a domain of its own. The last
        level has one domain; where no switch joins all nodes it is one that the file does not show. Domains are
        numbered in the order of ``nodes``.
        """
        if self.kind == "flat":
            return ((0,) * len(nodes),)
        joined = _Joined()
        leaf: dict[str, str] = {}
        for switch in self.switches:
            for node in switch.nodes:
                leaf.setdefault(node, switch.name)
        places = [leaf.get(node, f"\0{node}") for node in nodes]
        levels: list[tuple[int, ...]] = [_numbered(places)]
        for links in self._links():
            for one, other in links:
                joined.join(one, other)
            level = _numbered([joined.find(place) for place in places])
            if level != levels[-1]:
                levels.append(level)
        if any(levels[-1]):
            levels.append((0,) * len(nodes))
        return tuple(levels)

    def _links(self) -> Iterable[list[tuple[str, str]]]:
        """Pairs of switches that each level above the leaves joins, innermost level first."""
        if self.kind == "block":
            names = [switch.name for switch in self.switches]
            for size in self.block_sizes[1:]:
                several = max(1, size // self.block_sizes[0])
                yield [(names[at], names[at - at % several]) for at in range(len(names))]
            return
        for level in range(1, 1 + max((switch.level for switch in self.switches), default=0)):
            yield [(s.name, child) for s in self.switches if s.level == level for child in s.children]

    def speeds(self) -> dict[str, float]:
        """Uplink speed of every switch with parents: its own LinkSpeed times its parents, where the file has one."""
        parents: dict[str, int] = {}
        for switch in self.switches:
            for child in switch.children:
                parents[child] = parents.get(child, 0) + 1
        return {s.name: s.link_speed * parents[s.name] for s in self.switches if s.link_speed and s.name in parents}

    def leaf_names(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """The switch that each node hangs on, empty for a node listed nowhere."""
        leaf: dict[str, str] = {}
        for switch in self.switches:
            for node in switch.nodes:
                leaf.setdefault(node, switch.name)
        return tuple(leaf.get(node, "") for node in nodes)


def levels_of(lines: dict[str, int], children: dict[str, tuple[str, ...]], path: str) -> dict[str, int]:
    """Level of every switch: 0 without children, else one above its highest child.

    ``lines`` are the lines that the switches stand on. Raises InputError with file and line for switches that are
    below themselves.
    """
    levels: dict[str, int] = {}
    for start in children:
        stack = [(start, iter(children[start]))]
        open_names = {start}
        while stack:
            name, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                levels[name] = 1 + max((levels[c] for c in children[name] if c in levels), default=-1)
                open_names.discard(name)
                stack.pop()
            elif child in open_names:
                raise InputError(f"{path}:{lines[name]}: switch {name!r} names {child!r}, which is above it: a loop")
            elif child in children and child not in levels:
                open_names.add(child)
                stack.append((child, iter(children[child])))
    return levels


class _Joined:
    """Sets of names that grow together (union-find)."""

    def __init__(self) -> None:
        self._up: dict[str, str] = {}

    def find(self, name: str) -> str:
        """The name that stands for the set."""
        path = []
        while self._up.get(name, name) != name:
            path.append(name)
            name = self._up[name]
        for other in path:
            self._up[other] = name
        return name

    def join(self, one: str, other: str) -> None:
        """Make the two sets one."""
        self._up[self.find(one)] = self.find(other)


def _numbered(names: Sequence[str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)

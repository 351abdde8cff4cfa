"""Slurm's ``topology.conf`` (tree, block, ring), and the same lines as ``scontrol show topology`` prints them.

Grammar by the manual page topology.conf(5): one switch, block or ring a line, ``Key=value`` pairs in any order and
case, ``#`` starts a comment, a backslash at the end of a line continues it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator

from .topology_lines import Draft, Entry

_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S*)")
_HEADS = {"switchname": "tree", "blockname": "block", "ringname": "ring"}
_KNOWN = {
    "tree": ("SwitchName", "Switches", "Nodes", "LinkSpeed"),
    "block": ("BlockName", "Nodes", "BlockSizes"),
    "ring": ("RingName", "Nodes"),
}
_PRINTED = {
    "tree": ("Level",),
    "block": ("BlockIndex", "BlockSize", "AggregatedBlock"),
    "ring": ("RingIndex", "RingSize"),
}
"""Keys that only ``scontrol`` writes."""

Pairs = dict[str, str]


def looks_like_conf(text: str) -> bool:
    """Whether the first line that says anything holds a ``Key=value``."""
    first = next(_logical_lines(text), (0, ""))[1]
    return bool(_PAIR.match(first)) or first.lower().startswith("include")


def read_conf(path: str, text: str) -> Draft:
    """The draft of a file of ``Key=value`` lines. Raises InputError with file and line for what is not one."""
    draft = Draft(path, "")
    for line, content in _logical_lines(text):
        pairs = _pairs(draft, line, content)
        kind = _kind(draft, line, pairs)
        if draft.kind and kind != draft.kind:
            raise draft.fail(line, f"a {kind} line in a file of kind {draft.kind}; expected one kind in a file")
        draft.kind = kind
        _check_keys(draft, line, pairs)
        _READERS[kind](draft, line, pairs)
    return draft


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with content and their numbers, comments cut off, continuation lines joined to the first."""
    held, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("#", 1)[0].rstrip()
        start = start or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        whole, first = (held + line).strip(), start
        held, start = "", 0
        if whole:
            yield first, whole
    if held.strip():
        yield start, held.strip()


def _pairs(draft: Draft, line: int, content: str) -> Pairs:
    """Keys in lower case and their values."""
    if content.lower().startswith("include"):
        raise draft.fail(line, "Include is not followed; expected all lines in one file")
    pairs: Pairs = {}
    at = 0
    while at < len(content):
        match = _PAIR.match(content, at)
        if match is None:
            word = content[at:].split(maxsplit=1)[0]
            raise draft.fail(line, f"{word[:60]!r}: expected Key=value, such as SwitchName=leaf1")
        key, value = match[1].lower(), match[2].strip('"')
        if key in pairs:
            raise draft.fail(line, f"key {match[1]!r} twice on the line")
        if "=" in value:
            raise draft.fail(line, f"key {match[1]!r} has no value before {value[:40]!r}")
        pairs[key] = value
        at = match.end()
        at += len(content[at:]) - len(content[at:].lstrip())
    return pairs


def _kind(draft: Draft, line: int, pairs: Pairs) -> str:
    for head, kind in _HEADS.items():
        if head in pairs:
            return kind
    if "blocksizes" in pairs or "aggregatedblock" in pairs:
        return "block"
    known = [key for keys in _KNOWN.values() for key in keys]
    first = next(iter(pairs))
    near = [] if first in map(str.lower, known) else difflib.get_close_matches(first, map(str.lower, known), n=1)
    hint = next((f"; did you mean {key}?" for key in known if near and key.lower() == near[0]), "")
    raise draft.fail(line, f"{first!r}: expected a line with SwitchName, BlockName, RingName or BlockSizes{hint}")


def _check_keys(draft: Draft, line: int, pairs: Pairs) -> None:
    known, printed = _KNOWN[draft.kind], _PRINTED[draft.kind]
    for key in pairs:
        if key in {k.lower() for k in printed}:
            draft.printed = True
        elif key not in {k.lower() for k in known}:
            near = difflib.get_close_matches(key, [k.lower() for k in known], n=1)
            hint = next((k for k in known if near and k.lower() == near[0]), None)
            rest = f"; did you mean {hint}?" if hint else f"; expected {', '.join(known)}"
            raise draft.fail(line, f"unknown key {key!r}{rest}")


def _number(draft: Draft, line: int, key: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) < least:
        raise draft.fail(line, f"{key} = {text[:40]!r}: expected a whole number of {least} or more")
    return int(text)


def _read_switch(draft: Draft, line: int, pairs: Pairs) -> None:
    name = pairs["switchname"]
    if not name:
        raise draft.fail(line, "SwitchName is empty; expected a name")
    nodes, children = pairs.get("nodes", ""), pairs.get("switches", "")
    if "level" not in pairs and bool(nodes) == bool(children):
        told = "both Nodes and Switches" if nodes else "neither Nodes nor Switches"
        raise draft.fail(line, f"switch {name!r} has {told}; expected one of them")
    speed = pairs.get("linkspeed")
    level = _number(draft, line, "Level", pairs["level"], 0) if "level" in pairs else 0
    link = None if speed is None else float(_number(draft, line, "LinkSpeed", speed, 0))
    for each in draft.hosts(line, name):
        draft.entries.append(Entry(each, line, nodes, children, link, level))


def _read_block(draft: Draft, line: int, pairs: Pairs) -> None:
    if "blocksizes" in pairs:
        if draft.sizes_line:
            raise draft.fail(line, f"BlockSizes stands on line {draft.sizes_line} already")
        draft.sizes_line = line
        sizes = filter(None, (part.strip() for part in pairs["blocksizes"].split(",")))
        draft.block_sizes = tuple(_number(draft, line, "BlockSizes", size, 1) for size in sizes)
    if "blocksize" in pairs:
        size = _number(draft, line, "BlockSize", pairs["blocksize"], 1)
        draft.sizes_line = draft.sizes_line or line
        draft.block_sizes = tuple(sorted({*draft.block_sizes, size}))
    if "blockname" in pairs:
        if not pairs["blockname"]:
            raise draft.fail(line, "BlockName is empty; expected a name")
        draft.entries.append(Entry(pairs["blockname"], line, pairs.get("nodes", "")))


def _read_ring(draft: Draft, line: int, pairs: Pairs) -> None:
    if not pairs["ringname"]:
        raise draft.fail(line, "RingName is empty; expected a name")
    draft.entries.append(Entry(pairs["ringname"], line, pairs.get("nodes", "")))


_READERS: dict[str, Callable[[Draft, int, Pairs], None]] = {
    "tree": _read_switch,
    "block": _read_block,
    "ring": _read_ring,
}

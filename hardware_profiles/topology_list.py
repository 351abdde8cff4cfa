"""A plain list of nodes and where they hang: ``node switch [switch above …]``, one line for one or more nodes."""

from __future__ import annotations

import itertools
import re

from .topology_lines import MOST_LEVELS, Draft, Entry

_HEADER = re.compile(r"nodes?\b.*\b(switch|leaf|rack|block)\b", re.IGNORECASE)


def read_list(path: str, text: str) -> Draft:
    """The draft of a list. Raises InputError with file and line for a line that names no switch."""
    draft = Draft(path, "tree")
    nodes: dict[str, list[str]] = {}
    children: dict[str, dict[str, None]] = {}
    lines: dict[str, int] = {}
    told = False
    for number, raw in enumerate(text.splitlines(), start=1):
        content = raw.split("#", 1)[0].strip()
        if not content or (not told and _HEADER.match(content.replace("\t", " "))):
            continue
        told = True
        first, *above = _columns(content) or [""]
        if not above:
            raise draft.fail(number, f"{content[:60]!r}: expected a node and the switch it hangs on")
        if len(above) > MOST_LEVELS:
            raise draft.fail(number, f"{len(above)} switches above one another; expected at most {MOST_LEVELS}")
        for switch in above:
            lines.setdefault(switch, number)
        nodes.setdefault(above[0], []).append(first)
        for child, parent in itertools.pairwise(above):
            children.setdefault(parent, {})[child] = None
    for name, line in lines.items():
        held = ",".join(nodes.get(name, []))
        draft.entries.append(Entry(name, line, held, ",".join(children.get(name, {}))))
    return draft


def _columns(content: str) -> list[str]:
    """Columns split at blanks; a comma between columns (CSV) is one only outside a bracket and before no range."""
    if re.search(r"\s", content):
        return [column for column in re.split(r"[\s;]+|,\s+", content) if column]
    return [column for column in re.split(r",(?![^\[]*\])|;", content) if column]

"""Slurm's ``topology.yaml``: a list of named topologies, of which one is taken.

Keys by the manual page topology.yaml(5): ``tree``, ``block``, ``ring`` and ``flat``. A ``torus3d`` is refused.
"""

from __future__ import annotations

from typing import Any

import yaml

from .errors import InputError
from .topology_lines import Draft, Entry

_KINDS = ("tree", "block", "ring", "flat", "torus3d")


def read_yaml(path: str, text: str, wanted: str | None) -> Draft:
    """The draft of the topology called ``wanted``, else of the cluster's default, else of the only or first one.

    Raises InputError with file and line.
    """
    node = _parsed(path, text)
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise InputError(f"{path}:{_line(node)}: expected a list of topologies, each with a 'topology' name")
    blank = Draft(path, "")
    items = [_mapping(blank, item) for item in node.value]
    names = [_text(blank, item, "topology") for item in items]
    at = _chosen(blank, node, items, names, wanted)
    item, line = items[at], _line(node.value[at])
    for key, (where, _) in item.items():
        if key not in (*_KINDS, "topology", "cluster_default"):
            raise blank.fail(where, f"unknown key {key!r}; expected {', '.join(_KINDS)} or cluster_default")
    kinds = [kind for kind in _KINDS if kind in item]
    if len(kinds) != 1:
        told = " and ".join(kinds) or "none"
        raise blank.fail(line, f"topology {names[at]!r} has {told}; expected one of {', '.join(_KINDS)}")
    if kinds[0] == "torus3d":
        raise blank.fail(item["torus3d"][0], "torus3d: not supported; expected tree, block, ring or flat")
    draft = Draft(path, kinds[0], names[at], others=tuple(n for i, n in enumerate(names) if i != at))
    _READERS[kinds[0]](draft, item[kinds[0]][1])
    return draft


_Item = dict[str, tuple[int, Any]]
"""Key → line and node."""


def _parsed(path: str, text: str) -> Any:
    try:
        return yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise InputError(f"{path}:{line}: broken YAML: {getattr(error, 'problem', None) or 'cannot be read'}") from None
    except RecursionError:
        raise InputError(f"{path}: broken YAML: nested too deeply") from None


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1 if node is not None else 1


def _mapping(draft: Draft, node: Any) -> _Item:
    if not isinstance(node, yaml.MappingNode):
        raise draft.fail(_line(node), "expected keys and values")
    item: _Item = {}
    for key, value in node.value:
        if str(key.value) in item:
            raise draft.fail(_line(key), f"key {key.value!r} twice")
        item[str(key.value)] = (_line(key), value)
    return item


def _text(draft: Draft, item: _Item, key: str) -> str:
    """A scalar value that must be there; a list of scalars counts as a host list."""
    if key not in item:
        first = min((line for line, _ in item.values()), default=1)
        raise draft.fail(first, f"{key!r} is missing")
    line, node = item[key]
    if isinstance(node, yaml.SequenceNode) and all(isinstance(v, yaml.ScalarNode) for v in node.value):
        return ",".join(v.value for v in node.value)
    if not isinstance(node, yaml.ScalarNode):
        raise draft.fail(line, f"{key!r}: expected a text")
    return str(node.value)


def _sequence(draft: Draft, item: _Item, key: str, line: int) -> list[Any]:
    if key not in item:
        raise draft.fail(line, f"{key!r} is missing")
    where, node = item[key]
    if not isinstance(node, yaml.SequenceNode):
        raise draft.fail(where, f"{key!r}: expected a list")
    return list(node.value)


def _chosen(draft: Draft, node: Any, items: list[_Item], names: list[str], wanted: str | None) -> int:
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise draft.fail(_line(node), f"topology {twice!r} twice")
    if wanted is not None:
        if wanted not in names:
            raise InputError(f"{draft.path}: no topology {wanted!r} in it; expected one of {', '.join(names)}")
        return names.index(wanted)
    default = [
        at
        for at, item in enumerate(items)
        if "cluster_default" in item and _text(draft, item, "cluster_default").lower() in ("true", "yes")
    ]
    if len(default) > 1:
        raise draft.fail(items[default[1]]["cluster_default"][0], "a second cluster_default; expected one at most")
    return default[0] if default else 0


def _read_tree(draft: Draft, node: Any) -> None:
    item = _mapping(draft, node)
    for entry in _sequence(draft, item, "switches", _line(node)):
        part = _mapping(draft, entry)
        _only(draft, part, ("switch", "children", "nodes"))
        has = {key: _text(draft, part, key) for key in ("nodes", "children") if key in part}
        if len(has) != 1:
            told = "both children and nodes" if has else "neither children nor nodes"
            raise draft.fail(_line(entry), f"switch {_text(draft, part, 'switch')!r} has {told}; expected one of them")
        name = _text(draft, part, "switch")
        draft.entries.append(Entry(name, _line(entry), has.get("nodes", ""), has.get("children", "")))


def _read_named(draft: Draft, node: Any, many: str, one: str) -> _Item:
    item = _mapping(draft, node)
    for entry in _sequence(draft, item, many, _line(node)):
        part = _mapping(draft, entry)
        _only(draft, part, (one, "nodes"))
        draft.entries.append(Entry(_text(draft, part, one), _line(entry), _text(draft, part, "nodes")))
    return item


def _read_block(draft: Draft, node: Any) -> None:
    item = _read_named(draft, node, "blocks", "block")
    if "block_sizes" not in item:
        return
    draft.sizes_line = item["block_sizes"][0]
    texts = [part.strip() for part in _text(draft, item, "block_sizes").split(",")]
    wrong = next((text for text in texts if not (text.isascii() and text.isdigit() and len(text) < 10)), None)
    if wrong is not None:
        raise draft.fail(draft.sizes_line, f"block_sizes: {wrong[:40]!r}: expected whole numbers")
    draft.block_sizes = tuple(map(int, texts))


def _read_ring(draft: Draft, node: Any) -> None:
    _read_named(draft, node, "rings", "ring")


def _read_flat(draft: Draft, node: Any) -> None:
    """Nothing to read: every node reaches every other alike."""


_READERS = {"tree": _read_tree, "block": _read_block, "ring": _read_ring, "flat": _read_flat}


def _only(draft: Draft, part: _Item, known: tuple[str, ...]) -> None:
    for key, (line, _) in part.items():
        if key not in known:
            raise draft.fail(line, f"unknown key {key!r}; expected {', '.join(known)}")

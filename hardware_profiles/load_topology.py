"""Reading a topology from any of the files that sites have: Slurm's two, what ``scontrol`` prints, a plain list."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import InputError
from .text_files import read_text
from .topology import Topology
from .topology_conf import looks_like_conf, read_conf
from .topology_lines import finish
from .topology_list import read_list

MOST_BYTES = 16 << 20
"""A topology of a hundred thousand nodes, one a line, takes a few megabytes."""

_YAML = re.compile(r"^\s*(---|-\s+\w+\s*:|\w+\s*:\s*$|\w+\s*:\s)")


def load_topology(path: str | Path, name: str | None = None) -> Topology:
    """The topology in a file, told by what is in it: ``topology.conf``, ``topology.yaml``, ``scontrol``, plain list.

    ``name`` chooses one of a YAML file's topologies. What can be lived with is in the answer's ``faults``; the rest
    raises InputError in one line with file and line number.
    """
    text = read_text(Path(path), "a topology: topology.conf, topology.yaml or a list of nodes and switches", MOST_BYTES)
    return parse_topology(text, str(path), name)


def parse_topology(text: str, path: str, name: str | None = None) -> Topology:
    """The same from text; ``path`` stands in messages."""
    first = next((line for line in text.splitlines() if line.split("#", 1)[0].strip()), "")
    if not first:
        raise InputError(f"{path}: is empty; expected a topology")
    if looks_like_conf(text):
        draft = read_conf(path, text)
    elif _YAML.match(first):
        from .topology_yaml import read_yaml

        return finish(read_yaml(path, text, name))
    else:
        draft = read_list(path, text)
    if name is not None:
        raise InputError(f"{path}: topology {name!r}: only a topology.yaml holds several")
    return finish(draft)

"""How many accelerators a launch script starts: from torchrun, deepspeed, srun and Slurm's directives."""

from __future__ import annotations

import re

from shardwise.costmodel.megatron_shell import read_variables
from shardwise.hardware_profiles.text_files import whole_number

from .flag_reader import FlagReader
from .parsed import Files, Given

_DIRECTIVE = re.compile(r"^#SBATCH\s+(?:--)?(-?[A-Za-z][\w-]*)(?:[=\s]\s*([^\s#]+))?", re.MULTILINE)
_NODES = frozenset({"nodes", "-N"})
_PER_NODE = frozenset({"gpus-per-node", "gres", "ntasks-per-node"})
_SIZES = ("WORLD_SIZE", "NUM_GPUS")


def world_size(files: Files, flags: FlagReader, given: Given) -> int | None:
    """Accelerators of the job: the person's number, else that of the files; None where neither says it."""
    if given.num_gpus is not None:
        return given.num_gpus
    slurm = _directives(files)
    nodes = _count(flags.word("nnodes", "")) if _plain(flags, "nnodes") else None
    nodes = nodes or (flags.integer("num-nodes") if _plain(flags, "num-nodes") else None)
    per_node = next((flags.integer(n) for n in ("nproc-per-node", "num-gpus") if _plain(flags, n)), None)
    nodes = nodes or next((_count(v) for k, v in slurm.items() if k in _NODES), None)
    per_node = per_node or next((n for k, v in slurm.items() if k in _PER_NODE and (n := _gpus(v))), None)
    if nodes and per_node:
        return nodes * per_node
    for name in _SIZES:
        text = next((v for f, t in files.items() if (v := read_variables(t, f, given.variables).get(name))), None)
        if text is not None and (number := whole_number(text)):
            return number
    return per_node if per_node and not nodes and not flags.has("nnodes") else None


def _plain(flags: FlagReader, name: str) -> bool:
    """Whether a flag stands there with a value that only needs reading."""
    return flags.has(name) and "$" not in flags.where(name) and any(c.isdigit() for c in flags.where(name))


def _directives(files: Files) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in files.values():
        for match in _DIRECTIVE.finditer(text):
            found.setdefault(match.group(1), match.group(2) or "")
    return found


def _count(text: str) -> int | None:
    """A number of hosts; of an elastic range ``2:4`` the most."""
    last = text.strip("'\" ").rpartition(":")[2]
    return whole_number(last) or None


def _gpus(text: str) -> int | None:
    """``8``, ``gpu:8`` or ``gpu:h100:8``."""
    return _count(text) if re.fullmatch(r"(gpu:)?([\w.-]+:)?\d+", text) else None

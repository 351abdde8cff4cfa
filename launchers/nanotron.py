"""nanotron: what it can express, its rules, and its launch files."""

from __future__ import annotations

from shardwise.costmodel.strategy import RANK_ORDERS

from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .nanotron_files import write_files
from .nanotron_model import check_model
from .nanotron_read import DIMENSION_OPTIONS, is_nanotron, parse_files
from .nanotron_rules import nanotron_rules, nanotron_splits

_CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    # Its Llama has no context parallelism; experts need another model and another order of ranks.
    "cp": (1,),
    "cp_comm": ("p2p",),
    "ulysses": (1,),
    "ep": (1,),
    "etp": (1,),
    "ep_overlap": (False,),
    # One chunk per rank: one forward one backward, or all forward all backward (GPipe).
    "vpp": (1,),
    "schedule": ("1f1b", "gpipe"),
    # Optimizer states are divided at most; buckets of gradients are always reduced behind the backward.
    "zero": (0, 1),
    "zero_group": (0,),
    "dp_overlap": (True,),
    "offload_optimizer": (0.0,),
    "offload_activations": (False,),
    # Every layer is a checkpoint or none is.
    "recompute": ("none", "full"),
    "recompute_layers": (-1,),
    "rank_order": RANK_ORDERS[:1],
}

LAUNCHER = Launcher(
    name="nanotron",
    title="nanotron (git, 2025)",
    default_runtime="nanotron",
    capabilities=_CAPABILITIES,
    own_rules=nanotron_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_nanotron,
    own_splits=nanotron_splits,
)

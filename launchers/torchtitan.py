"""torchtitan 0.3: what it can express, its rules, and its launch files."""

from __future__ import annotations

from shardwise.costmodel.strategy import RANK_ORDERS

from .base import Launcher
from .capability import FULL_CAPABILITIES, Values
from .torchtitan_files import write_files
from .torchtitan_read import is_torchtitan, parse_files
from .torchtitan_rules import check_model, torchtitan_rules
from .torchtitan_tables import DIMENSION_OPTIONS, SCHEDULES

_CAPABILITIES: dict[str, Values] = {
    **FULL_CAPABILITIES,
    # Keys and values are gathered; the kind that a layout of cp = 1 names has no effect.
    "cp_comm": ("p2p", "all_gather"),
    "ulysses": (1,),
    "schedule": tuple(SCHEDULES),
    # FSDP2 shards parameters always: they stay whole between forward and backward (2) or not (3).
    "zero": (2, 3),
    "recompute_layers": (-1,),
    "offload_optimizer": (0.0,),
    "offload_activations": (False,),
    "dp_overlap": (True,),
    "ep_overlap": (False,),
    "rank_order": RANK_ORDERS[:1],
}

LAUNCHER = Launcher(
    name="torchtitan",
    title="torchtitan 0.3 (FSDP2)",
    default_runtime="torchtitan",
    capabilities=_CAPABILITIES,
    own_rules=torchtitan_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_OPTIONS,
    parser=parse_files,
    claim=is_torchtitan,
)

"""Megatron-Bridge 0.6, the recipes of NeMo: what it can express, its rules, and its launch files."""

from __future__ import annotations

from .base import Launcher
from .bridge_fields import DIMENSION_FIELDS
from .bridge_files import write_files
from .bridge_read import is_bridge, parse_files
from .bridge_rules import bridge_rules
from .megatron import CAPABILITIES
from .megatron_model import check_model

LAUNCHER = Launcher(
    name="megatron-bridge",
    title="Megatron-Bridge 0.6 (NeMo recipes)",
    default_runtime="megatron-bridge",
    capabilities=CAPABILITIES,
    own_rules=bridge_rules(),
    writer=write_files,
    model_check=check_model,
    options=DIMENSION_FIELDS,
    parser=parse_files,
    claim=is_bridge,
    tunable=("microbatch_group",),
)

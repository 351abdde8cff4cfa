"""The system file of a calibrated cluster: what differs from its base, each figure with its origin and source.

The file ``extends`` its base and gives every share, ramp, latency, curve and kernel figure that the calibration moved;
it loads with ``--cluster FILE`` like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .accelerator import Accelerator, AttentionLaw, GemmLaw
from .calibration import Calibration
from .cluster import Cluster, Ramp, Tier

MOVED = 1e-6
"""Relative change from which on a figure counts as moved."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a moved figure comes from."""

    origin: str
    source: str


@dataclass(slots=True)
class Sources:
    """Origins by dotted key (``tiers.NAME.FIELD.KIND``, ``gemm.DTYPE``, …); ``rest`` for what has none of its own."""

    rest: Origin
    by_key: dict[str, Origin] = field(default_factory=dict)

    def of(self, key: str) -> dict[str, str]:
        """``origin`` and ``source`` of a figure."""
        found = self.by_key.get(key, self.rest)
        return {"origin": found.origin, "source": found.source}


def profile_text(
    extends: str, name: str, base: Cluster, made: Cluster, sources: Sources, assumptions: Iterable[str]
) -> str:
    """The YAML text of ``made``, given what it differs by from ``base``, which ``extends`` names."""
    document: dict[str, Any] = {"extends": extends, "name": name, "source": sources.rest.source}
    tiers = [t for t in (_tier(b, m, sources) for b, m in zip(base.tiers, made.tiers, strict=True)) if len(t) > 1]
    if tiers:
        document["tiers"] = tiers
    figures = _accelerator(base.accelerator, made.accelerator, sources)
    if figures:
        document["accelerator_figures"] = figures
    document["assumptions"] = [*base.assumptions, *assumptions]
    if made.calibration is not None:
        document["calibration"] = _calibration(made.calibration)
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)


def _tier(base: Tier, made: Tier, sources: Sources) -> dict[str, Any]:
    key = f"tiers.{made.name}"
    out: dict[str, Any] = {"name": made.name}
    if _moved(base.latency_s, made.latency_s):
        out["latency_s"] = {"value": _short(made.latency_s), **sources.of(f"{key}.latency_s")}
    shares = {k: v for k, v in made.efficiency.items() if _moved(base.efficiency.get(k, 0.0), v)}
    if shares:
        out["efficiency"] = {k: {"value": _short(v), **sources.of(f"{key}.efficiency.{k}")} for k, v in shares.items()}
    ramps = {k: r for k, r in made.ramps.items() if _ramp_moved(base.ramps.get(k, Ramp()), r)}
    if ramps:
        out["ramps"] = {k: _ramp(r, sources.of(f"{key}.ramps.{k}")) for k, r in ramps.items()}
    if made.curves and made.curves != base.curves:
        out["curves"] = [
            {
                "kind": c.kind,
                "ranks": c.ranks,
                "domains": c.domains,
                "bytes": [_short(b) for b in c.nbytes],
                "factors": [_short(f, 4) for f in c.factors],
                **sources.of(f"{key}.curves.{c.kind}"),
            }
            for c in made.curves
        ]
    return out


def _ramp(ramp: Ramp, where: Mapping[str, str]) -> dict[str, Any]:
    return {
        "launch_s": _short(ramp.launch_s),
        "fill_s": _short(ramp.fill_s),
        "copy_weight": _short(ramp.copy),
        **where,
    }


def _accelerator(base: Accelerator, made: Accelerator, sources: Sources) -> dict[str, Any]:
    out: dict[str, Any] = {}
    gemm = {d: _gemm(law, sources.of(f"gemm.{d}")) for d, law in made.gemm.items() if law != base.gemm.get(d)}
    attention = {
        k: _attention(law, sources.of(f"attention.{k}"))
        for k, law in made.attention.items()
        if law != base.attention.get(k)
    }
    sustained = {
        d: {"value": _short(v), **sources.of("sustained")}
        for d, v in made.sustained.items()
        if _moved(base.sustained.get(d, 1.0), v)
    }
    for name, part in (("gemm", gemm), ("attention", attention), ("sustained", sustained)):
        if part:
            out[name] = part
    if _moved(base.memory_efficiency, made.memory_efficiency):
        out["memory_efficiency"] = {"value": _short(made.memory_efficiency), **sources.of("sustained")}
    return out


def _gemm(law: GemmLaw, where: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"value": _short(value), **where} for name, value in asdict(law).items()}


def _attention(law: AttentionLaw, where: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {
        name: {"value": _short(getattr(law, name)), **where}
        for name in ("forward", "backward", "ramp", "head_dim_ramp", "fill", "sustained")
    }
    out["causal_skip"] = law.causal_skip
    if law.softmax_passes_forward > 0.0:
        for name in ("softmax_passes_forward", "softmax_passes_backward"):
            out[name] = {"value": _short(getattr(law, name)), **where}
    return out


def _calibration(found: Calibration) -> dict[str, Any]:
    """The measurements as the file keeps them."""
    return {
        "base": found.base,
        "collectives": [
            {
                "kind": c.kind, "tier": c.tier, "ranks": list(c.ranks), "bytes": [float(b) for b in c.nbytes],
                "rows": c.rows, **_errors(c.error_before, c.error_after, c.half_width),
            }
            for c in found.collectives
        ],
        "kernels": [
            {
                "operation": k.operation, "name": k.name, "rows": k.rows,
                "sizes": {name: [float(low), float(high)] for name, (low, high) in k.sizes.items()},
                **_errors(k.error_before, k.error_after, k.half_width),
            }
            for k in found.kernels
        ],
        "step_times": [
            {
                "models": s.models, "launcher": s.launcher, "runs": s.runs,
                "half_width_before": _short(s.half_width_before, 4),
                **_errors(s.error_before, s.error_after, s.half_width),
            }
            for s in found.step_times
        ],
        "not_identified": list(found.not_identified),
    }  # fmt: skip


def _errors(before: float, after: float, half_width: float) -> dict[str, float]:
    return {
        "error_before": _short(before, 4),
        "error_after": _short(after, 4),
        "half_width": _short(half_width, 4),
    }


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > MOVED * max(abs(before), abs(after))


def _ramp_moved(before: Ramp, after: Ramp) -> bool:
    return _moved(before.launch_s, after.launch_s) or _moved(before.fill_s, after.fill_s) or before.copy != after.copy


def _short(value: float, digits: int = 7) -> float:
    """The number to that many digits, as a plain float."""
    return float(f"{value:.{digits}g}")


def extends_text(named: str, base: Path | None, folder: Path) -> str:
    """What ``extends`` says: the shipped name, or the base's path seen from the folder of the new file."""
    if base is None:
        return named
    import os

    return os.path.relpath(base, folder)

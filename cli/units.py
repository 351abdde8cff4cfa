"""Numbers as people read them: stored in bytes and seconds, printed in GiB and ms. Formatting only."""

from __future__ import annotations

import math

GIB = 1024.0**3

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTE_UNITS = ((1024.0**4, "TiB"), (GIB, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
_COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def seconds(value: float) -> str:
    """A duration with three significant digits and the unit that suits it: ``7.31 s``, ``412 ms``, ``18.5 µs``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0 s"
    for scale, unit in _TIME_UNITS:
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{significant(value / 1e-6)} µs"


def milliseconds(value: float) -> str:
    """A duration in ms with one decimal, for columns that must compare: ``1,234.5``."""
    return f"{value * 1e3:,.1f}"


def gib(value: float) -> str:
    """Bytes in GiB with two decimals, for columns that must compare: ``61.25``."""
    return f"{value / GIB:,.2f}"


def size(value: float) -> str:
    """Bytes with the unit that suits them: ``360 MiB``, ``1.15 GiB``, ``12 B``."""
    for scale, unit in _BYTE_UNITS:
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{value:.0f} B"


def count(value: float) -> str:
    """A number of parameters or tokens: ``70.6 B``, ``1.15 M``, ``12,345``."""
    for scale, unit in _COUNT_UNITS:
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal: ``43.2 %``."""
    return f"{share * 100:.1f} %"


def change(ratio: float) -> str:
    """A ratio to a reference as a signed difference: ``+3.1 %``."""
    return f"{round((ratio - 1) * 100, 1) + 0.0:+.1f} %"


def significant(value: float) -> str:
    """Three significant digits, never in exponent form: ``7.31``, ``41.2``, ``412``, ``4,120``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def plural(number: int, noun: str) -> str:
    """A number and what it counts: ``1 point``, ``1,200 points``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""What the user asks of a strategy: pins, bans and ranges, kept as named rules like the launcher's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import DIMENSIONS, ENUMS, Strategies, field_name, parse_value
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.rule import Rule

Scalar = int | float | bool | str
Wish = Scalar | Iterable[Scalar]


@dataclass(frozen=True, slots=True)
class Constraint:
    """One wish about one dimension. ``kind``: ``pin`` (one of ``values``), ``ban`` (none of), ``min`` or ``max``."""

    kind: str
    dimension: str
    values: tuple[Scalar, ...]

    @property
    def name(self) -> str:
        """How it is printed and counted: ``pin tp=4|8``, ``max cp=1``."""
        return f"{self.kind} {self.dimension}={'|'.join(_show(v) for v in self.values)}"

    def allows(self, value: NDArray[Any]) -> NDArray[np.bool_]:
        """Where coded values (as ``Strategies`` holds them) satisfy the wish."""
        codes = [_code(self.dimension, v) for v in self.values]
        if self.kind in ("pin", "ban"):
            inside = np.isin(value, codes)
            return inside if self.kind == "pin" else ~inside
        return np.asarray(value >= codes[0] if self.kind == "min" else value <= codes[0])

    def rule(self) -> Rule:
        """The wish as a rule over arrays of strategies."""

        def check(problem: Problem, strategies: Strategies) -> NDArray[np.bool_]:
            return self.allows(getattr(strategies, self.dimension))

        return Rule(self.name, f"the request says {self.name}, not {self.dimension} = {{{self.dimension}}}", check)


@dataclass(frozen=True, slots=True)
class Constraints:
    """All wishes of one request, in the order given."""

    items: tuple[Constraint, ...] = ()

    @classmethod
    def of(
        cls,
        pins: Mapping[str, Wish] | None = None,
        bans: Mapping[str, Wish] | None = None,
        least: Mapping[str, Wish] | None = None,
        most: Mapping[str, Wish] | None = None,
    ) -> Constraints:
        """From mappings of a dimension to a value, to several, or to text such as ``"4|8"``.

        Raises InputError naming the dimension, the value and what was expected.
        """
        items = []
        for kind, wishes in (("pin", pins), ("ban", bans), ("min", least), ("max", most)):
            for key, wish in (wishes or {}).items():
                items.append(_constraint(kind, key, wish))
        return cls(tuple(items))

    def rules(self) -> tuple[Rule, ...]:
        """One rule per wish."""
        return tuple(c.rule() for c in self.items)

    def touches(self, dimension: str) -> bool:
        """Whether a wish sets this dimension from above or exactly, so that the default limits on it do not apply."""
        return any(c.dimension == dimension and c.kind in ("pin", "min") for c in self.items)

    def values(self, dimension: str) -> tuple[Scalar, ...]:
        """Values that pins name for a dimension: candidates even where the default axis lacks them."""
        return tuple(v for c in self.items if c.dimension == dimension and c.kind == "pin" for v in c.values)

    def allows(self, dimension: str, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Where coded values of one dimension satisfy every wish about it."""
        keep = np.ones(values.shape, dtype=np.bool_)
        for c in self.items:
            if c.dimension == dimension:
                keep &= c.allows(values)
        return keep

    def without(self, dropped: Constraint) -> Constraints:
        """The same request less one wish."""
        return replace(self, items=tuple(c for c in self.items if c is not dropped))


def _constraint(kind: str, key: str, wish: Wish) -> Constraint:
    dimension = field_name(key)
    if dimension not in DIMENSIONS:
        raise InputError(f"{kind}: unknown dimension {key!r}: expected one of {', '.join(DIMENSIONS)}")
    raw: list[Scalar]
    if isinstance(wish, str):
        raw = list(wish.split("|"))
    elif isinstance(wish, Iterable):
        raw = list(wish)
    else:
        raw = [wish]
    values = tuple(dict.fromkeys(parse_value(dimension, _show(v)) for v in raw))
    if not values:
        raise InputError(f"{kind} {dimension}: expected at least one value")
    ordered = dimension not in ENUMS and not isinstance(values[0], bool)
    if kind in ("min", "max") and (len(values) != 1 or not ordered):
        raise InputError(f"{kind} {dimension} = {wish!r}: expected one number")
    return Constraint(kind, dimension, values)


def _show(value: Scalar) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _code(dimension: str, value: Scalar) -> Any:
    return ENUMS[dimension].index(str(value)) if dimension in ENUMS else value

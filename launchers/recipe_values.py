"""Values of a Python recipe without running it: literals, names that stand for them, arithmetic and conditions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwise.hardware_profiles.errors import InputError

_MOST_ENTRIES: Final = 10_000
_LARGEST: Final = 10**15


@dataclass(frozen=True, slots=True)
class Ref:
    """A part of the configuration, by the path of its fields from the top; empty for the whole."""

    path: str


@dataclass(frozen=True, slots=True)
class Word:
    """A dotted name that is no variable, such as ``torch.bfloat16``."""

    name: str

    def __str__(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Unread:
    """An expression that only running the recipe would tell; ``text`` is its source."""

    text: str


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model that a Hugging Face name or a recipe's own name stands for."""

    name: str


Scope = Mapping[str, Any]

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def is_read(value: Any) -> bool:
    """Whether a value is known."""
    if isinstance(value, list | tuple):
        return all(map(is_read, value))
    return not isinstance(value, Unread | Ref | Pretrained)


def is_plain(value: Any) -> bool:
    """Whether a value can be reckoned with: a name of a library is none."""
    return is_read(value) and not isinstance(value, Word)


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` as text; None for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def unread(node: ast.AST) -> Unread:
    """The expression as its own text."""
    try:
        return Unread(" ".join(ast.unparse(node).split())[:80])
    except ValueError:  # of a number with more digits than Python writes
        return Unread("an expression too long to show")


def evaluate(node: ast.expr, scope: Scope, call: Callable[[ast.Call], Any]) -> Any:
    """The value of an expression; ``call`` is asked for calls. What cannot be known is ``Unread``."""
    try:
        return _value(node, scope, call)
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError):
        return unread(node)


def _value(node: ast.expr, scope: Scope, call: Callable[[ast.Call], Any]) -> Any:
    def inner(part: ast.expr) -> Any:
        return _value(part, scope, call)

    if isinstance(node, ast.Constant):
        return _bounded(node.value, node)
    if isinstance(node, ast.Name):
        return scope.get(node.id, Unread(f"${node.id}"))
    if isinstance(node, ast.Call):
        return call(node)
    if isinstance(node, ast.Attribute):
        return _attribute(node, scope, call)
    if isinstance(node, ast.List | ast.Tuple):
        items = [inner(item) for item in node.elts]
        return _bounded(items if isinstance(node, ast.List) else tuple(items), node)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return _bounded({inner(k) if k else None: inner(v) for k, v in pairs}, node)
    if isinstance(node, ast.UnaryOp | ast.BinOp | ast.Compare | ast.BoolOp):
        return _operation(node, inner)
    if isinstance(node, ast.IfExp):
        test = inner(node.test)
        return inner(node.body if test else node.orelse) if is_plain(test) else unread(node)
    return unread(node)


def _attribute(node: ast.Attribute, scope: Scope, call: Callable[[ast.Call], Any]) -> Any:
    name = dotted(node)
    if name is not None and name.partition(".")[0] not in scope:
        return Word(name)
    owner = _value(node.value, scope, call)
    if isinstance(owner, Ref):
        return Ref(f"{owner.path}.{node.attr}".lstrip("."))
    return owner if isinstance(owner, Pretrained) else unread(node)


def _operation(node: ast.UnaryOp | ast.BinOp | ast.Compare | ast.BoolOp, inner: Callable[[ast.expr], Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        values = [inner(v) for v in node.values]
        if not all(map(is_plain, values)):
            return unread(node)
        stops = isinstance(node.op, ast.Or)
        return next((v for v in values if bool(v) is stops), values[-1])
    if isinstance(node, ast.UnaryOp):
        value = inner(node.operand)
        if not is_plain(value) or isinstance(node.op, ast.Invert):
            return unread(node)
        return (not value) if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Compare):
        left, right = inner(node.left), inner(node.comparators[0])
        if len(node.ops) > 1 or not (is_plain(left) and is_plain(right)):
            return unread(node)
        return _COMPARED[type(node.ops[0])](left, right)
    left, right = inner(node.left), inner(node.right)
    apply = _BINARY.get(type(node.op))
    if apply is None or not (is_plain(left) and is_plain(right)) or _too_long(node.op, left, right):
        return unread(node)
    return apply(left, right)


def _too_long(op: ast.operator, left: Any, right: Any) -> bool:
    """Whether a product or sum would be larger than any setting; ``%`` of a text could be of any length."""
    if not any(isinstance(v, list | tuple | str) for v in (left, right)):
        sizes, most = [abs(left), abs(right)], _LARGEST
    elif isinstance(op, ast.Mod):
        return True
    else:
        sizes, most = [abs(v) if isinstance(v, int | float) else _entries(v) for v in (left, right)], _MOST_ENTRIES
    return bool((sizes[0] * sizes[1] if isinstance(op, ast.Mult) else sum(sizes)) > most)


def _bounded(value: Any, node: ast.expr) -> Any:
    """The value, unread where it is larger than any setting: a list of lists of lists takes one line to write."""
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else Unread(f"a whole number of {value.bit_length()} bits")
    return unread(node) if isinstance(value, list | tuple | dict) and _entries(value) > _MOST_ENTRIES else value


def _entries(value: Any) -> int:
    """Values in a list, in the lists in it and so on, or characters of a text. No part is larger than the bound."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_entries(k) + _entries(v) for k, v in value.items())
    return sum(map(_entries, value)) if isinstance(value, list | tuple) else 1

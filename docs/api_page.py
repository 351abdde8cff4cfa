"""Writes docs/api.md: every public name with its signature and what its docstring says. Held by tests/test_docs.py.

Run as ``python docs/api_page.py`` after a change of the public face.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shardwise

PAGE = Path(__file__).with_name("api.md")

_HEAD = """# Every public name

What `import shardwise` offers, as the code states it: this page is written by `docs/api_page.py` from signatures and
docstrings. [Planning from Python](library.md) has examples. Anything else under `shardwise.…` that these pages use may
be relied on too, but may change its place between minor releases.
"""

_GROUPS = {
    "Questions": (
        "plan", "estimate", "compare_launchers", "review", "read_launch", "simulate", "study", "place",
        "plan_and_place",
    ),
    "Inputs": (
        "ModelSpec", "Cluster", "Workload", "Runtime", "Problem", "Strategy", "Objective", "load_cluster",
        "load_runtime", "load_topology",
    ),
    "Answers": (
        "Plan", "Proof", "Estimate", "LauncherComparison", "Review", "Simulation", "StudyResult", "Placement",
    ),
    "Calibration": ("calibrate", "Calibrated"),
    "Errors": ("ShardwiseError", "InputError", "UnknownNameError", "InfeasibleError", "NothingFitsError"),
}  # fmt: skip


def page() -> str:
    """The whole page. Raises ValueError where a public name is in no group."""
    grouped = [name for names in _GROUPS.values() for name in names]
    if sorted(grouped) != sorted(shardwise.__all__):
        raise ValueError(f"in one of the groups only: {set(grouped) ^ set(shardwise.__all__)}")
    parts = [_HEAD]
    for title, names in _GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    thing = getattr(shardwise, name)
    body = _class(name, thing) if inspect.isclass(thing) else _function(name, thing)
    return f"### {name}\n\n{body}"


def _function(name: str, thing: Any) -> str:
    return f"```py\n{_signature(name, inspect.signature(thing))}\n```\n\n{_prose(inspect.getdoc(thing))}\n"


def _class(name: str, thing: type) -> str:
    out = [_prose(inspect.getdoc(thing)) + "\n"]
    if issubclass(thing, Exception):
        bases = [b.__name__ for b in thing.__mro__[1:] if b not in (object, BaseException)]
        out.insert(0, f"An exception, and one of: {', '.join(f'`{b}`' for b in bases)}.\n")
        return "\n".join(out)
    fields = list(_fields(thing))
    if fields:
        out.append("| field | type and default | |\n|---|---|---|")
        out += [f"| `{f}` | `{_cell(kind)}` | {_cell(_prose(doc))} |" for f, kind, doc in fields]
        out.append("")
    members = list(_members(thing))
    if members:
        out.append("| member | |\n|---|---|")
        out += [f"| `{_cell(shown)}` | {_cell(_prose(doc))} |" for shown, doc in members]
        out.append("")
    return "\n".join(out)


def _signature(name: str, signature: inspect.Signature) -> str:
    """One line, or one line a parameter."""
    shown = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        stars = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        shown.append(f"{stars}{parameter.name}: {parameter.annotation}{default}".replace("'", '"'))
    line = f"shardwise.{name}({', '.join(shown)}) -> {signature.return_annotation}"
    if len(line) <= 100:
        return line
    return "\n".join([f"shardwise.{name}(", *(f"    {s}," for s in shown), f") -> {signature.return_annotation}"])


def _fields(thing: type) -> Iterator[tuple[str, str, str]]:
    """Annotated fields of the class's own body: name, type with default, and the string below it."""
    body = _body(thing)
    for at, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_"):
            continue
        default = "" if node.value is None else f" = {ast.unparse(node.value)}"
        below = body[at + 1] if at + 1 < len(body) else None
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        doc = inspect.cleandoc(str(below.value.value)) if is_text else ""  # type: ignore[union-attr]
        yield node.target.id, f"{ast.unparse(node.annotation)}{default}", doc


def _members(thing: type) -> Iterator[tuple[str, str]]:
    """Public properties and methods of the class's own body, with the first sentence of what they say."""
    for node in _body(thing):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        kinds = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
        first = (ast.get_docstring(node) or "").split("\n\n")[0]
        if "property" in kinds:
            yield f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}", first
            continue
        skipped = 0 if "staticmethod" in kinds else 1
        shown = ast.unparse(_without(node.args, skipped))
        yield f"{node.name}({shown}) -> {ast.unparse(node.returns) if node.returns else 'None'}", first


def _without(arguments: ast.arguments, skipped: int) -> ast.arguments:
    """The arguments without ``self`` or ``cls``."""
    kept = ast.parse(f"def f({ast.unparse(arguments)}): pass").body[0]
    assert isinstance(kept, ast.FunctionDef)
    kept.args.args = kept.args.args[skipped:]
    return kept.args


def _body(thing: type) -> list[ast.stmt]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    assert isinstance(tree.body[0], ast.ClassDef)
    return tree.body[0].body


def _prose(text: str | None) -> str:
    """A docstring as Markdown: its ``code`` in single ticks, the entries under a heading such as Raises as a list."""
    lines = []
    for line in (text or "").replace("``", "`").splitlines():
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            lines += [f"{line}", ""]
        elif re.match(r"    \w+: ", line):
            lines.append(f"- {line.strip()}")
        else:
            lines.append(line.strip() if not lines or lines[-1].startswith("- ") is False else f"  {line.strip()}")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

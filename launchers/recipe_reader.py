"""Settings of a Python recipe (Megatron-Bridge, NeMo 2) without running it.

Understood: keyword arguments of configuration classes, also inside ``run.Config`` and ``run.Partial``; assignments to
their fields, nested ones too; functions of the same file, with the arguments they are called with; branches whose
condition is known. What is set inside other branches is handed out as conditional, and what only running would tell
as unread.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwise.hardware_profiles.errors import InputError

from .recipe_values import Pretrained, Ref, Unread, Word, dotted, evaluate, is_plain, is_read, unread

_MOST_STEPS: Final = 50_000
_DEEPEST: Final = 20

CLASSES: Final[tuple[tuple[str, str], ...]] = (
    ("ConfigContainer", ""),
    ("TrainingConfig|TrainConfig", "train"),
    ("ValidationConfig", "validation"),
    ("CommOverlapConfig|MegatronCommOverlapCallback", "comm_overlap"),
    ("MixedPrecisionConfig|MegatronMixedPrecision", "mixed_precision"),
    ("DistributedDataParallelConfig", "ddp"),
    ("DistributedInitConfig", "dist"),
    ("OptimizerConfig", "optimizer"),
    ("SchedulerConfig", "scheduler"),
    ("CheckpointConfig", "checkpoint"),
    ("TokenizerConfig", "tokenizer"),
    ("LoggerConfig", "logger"),
    ("RNGConfig", "rng"),
    ("ProfilingConfig", "profiling"),
    (r"\w*DatasetConfig", "dataset"),
    (r"\w*DataModule", "data"),
    ("MegatronStrategy|FSDPStrategy", "trainer.strategy"),
    ("Trainer", "trainer"),
    ("MegatronOptimizerModule", "optim"),
    (r"\w*(ModelProvider|Provider)\w*|\w*TransformerConfig", "model"),
    (r"(GPT|Llama|Mixtral|Mistral|DeepSeek|Qwen|Gemma|Nemotron|Starcoder|GPTOSS)\w*Config\w*", "model"),
)
"""Configuration classes by a pattern of their names, each with the section that it fills."""

_GENERIC: Final = frozenset({"GPTModelProvider", "MLAModelProvider", "TransformerConfig", "MLATransformerConfig"}) | {
    "GPTConfig"
}
"""Model classes without sizes of their own."""

_WRAPPERS: Final = frozenset({"run.Partial", "run.Config", "Partial", "Config", "partial", "functools.partial"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One field that a recipe sets."""

    path: str
    value: Any
    file: str
    line: int
    shown: str
    conditional: bool = False
    implied: bool = False
    """Whether it follows from another setting rather than standing in the file."""


@dataclass(slots=True)
class Recipe:
    """What a file sets, in the order in which running it would; ``bases`` are shared recipes it starts from."""

    settings: list[Setting] = field(default_factory=list)
    bases: list[str] = field(default_factory=list)


class RecipeReader:
    """Reads one file. Raises InputError for a text that is no Python or that holds several recipes."""

    def __init__(self, file: str, text: str, variables: Mapping[str, str]) -> None:
        self._file = file
        self._given = {name: _literal(value) for name, value in variables.items()}
        self._tree = parse_python(file, text)
        self._functions = {n.name: n for n in self._tree.body if isinstance(n, ast.FunctionDef)}
        self._globals: dict[str, Any] = dict(self._given)
        self._recipe = Recipe()
        self._conditional = self._depth = self._steps = 0

    def read(self) -> Recipe:
        """The settings of the module's own code, else of its one function, or of that of ``--var recipe=NAME``."""
        try:
            self._block(self._tree.body, self._globals)
            chosen = self._given.get("recipe")
            if chosen is not None or not self._recipe.settings:
                self._recipe = Recipe()
                self._run_chosen(chosen)
        except RecursionError:
            raise InputError(f"{self._file}: nested too deeply: expected a recipe") from None
        return self._recipe

    def _run_chosen(self, chosen: Any) -> None:
        inner = {n.func.id for f in self._functions.values() for n in ast.walk(f)
                 if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
        whole = [name for name in self._functions if name not in inner and _sets(self._functions[name])]
        if chosen is not None and chosen not in self._functions:
            raise InputError(f"{self._file}: recipe {chosen!r}: expected one of {', '.join(whole)}")
        if chosen is None and len(whole) > 1:
            raise InputError(f"{self._file}: {len(whole)} recipes: choose one with --var recipe=NAME, of "
                             f"{', '.join(whole[:12])}{' …' if len(whole) > 12 else ''}")  # fmt: skip
        for name in [str(chosen)] if chosen is not None else whole:
            self._call_function(self._functions[name], [], {})

    # ---- statements

    def _block(self, body: list[ast.stmt], scope: dict[str, Any]) -> Any:
        """Runs statements; the value of the first ``return`` outside a branch, else None."""
        for statement in body:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise InputError(f"{self._file}: more than {_MOST_STEPS} statements: expected a recipe")
            returned = self._statement(statement, scope)
            if returned is not None:
                return returned
        return None

    def _statement(self, node: ast.stmt, scope: dict[str, Any]) -> Any:
        if isinstance(node, ast.Return):
            value = self._evaluate(node.value, scope) if node.value else None
            return None if self._conditional else (value if value is not None else Unread("None"))
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = self._evaluate(node.value, scope)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assign(target, value, scope)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, unread(node), scope)
        elif isinstance(node, ast.Expr):
            self._evaluate(node.value, scope)
        elif isinstance(node, ast.If):
            return self._branch(node, scope)
        elif isinstance(node, ast.For | ast.While):
            self._perhaps([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.With):
            return self._block(node.body, scope)
        elif isinstance(node, ast.Try):
            self._perhaps([s for handler in node.handlers for s in handler.body], scope)
            return self._block([*node.body, *node.orelse, *node.finalbody], scope)
        return None

    def _branch(self, node: ast.If, scope: dict[str, Any]) -> Any:
        main = isinstance(node.test, ast.Compare) and dotted(node.test.left) == "__name__"
        test = True if main else self._evaluate(node.test, scope)
        if is_plain(test):
            return self._block(node.body if test else node.orelse, scope)
        self._perhaps([*node.body, *node.orelse], scope)
        return None

    def _perhaps(self, body: list[ast.stmt], scope: dict[str, Any]) -> None:
        self._conditional += 1
        self._block(body, scope)
        self._conditional -= 1

    def _assign(self, target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            if target.id not in self._given:
                # Assigned in a branch, only running would tell.
                scope[target.id] = Unread(f"${target.id}") if self._conditional and is_read(value) else value
        elif isinstance(target, ast.Tuple):
            values = value if isinstance(value, tuple) and len(value) == len(target.elts) else None
            for i, part in enumerate(target.elts):
                self._assign(part, values[i] if values else self._part(value, i), scope)
        elif isinstance(target, ast.Attribute):
            name = dotted(target)
            owner = self._evaluate(target.value, scope)
            # A name that nothing here assigned is a parameter or comes from elsewhere: the configuration itself.
            path = owner.path if isinstance(owner, Ref) else str(name).rpartition(".")[0].partition(".")[2]
            if name is not None and (isinstance(owner, Ref | Unread | Word)):
                self._set(f"{path}.{target.attr}".lstrip("."), value, target.lineno, name)

    @staticmethod
    def _part(value: Any, index: int) -> Any:
        """Optimizer and scheduler come in pairs from the helpers of the shared recipes."""
        pair = isinstance(value, Unread) and ("cosine_annealing" in value.text or "fused_adam" in value.text)
        return Ref(("optimizer", "scheduler")[index]) if pair and index < 2 else Unread("a part of a call")

    def _set(self, path: str, value: Any, line: int, shown: str) -> None:
        if isinstance(value, Ref):  # its own fields were set where it was built
            return
        self._recipe.settings.append(Setting(path, value, self._file, line, shown, self._conditional > 0))

    # ---- expressions

    def _evaluate(self, node: ast.expr, scope: dict[str, Any]) -> Any:
        known = scope if scope is self._globals else {**self._globals, **scope}
        return evaluate(node, known, lambda call: self._call(call, scope))

    def _call(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        name = dotted(node.func)
        if name is None:
            return self._method(node, scope)
        arguments = list(node.args)
        if name in _WRAPPERS and arguments and dotted(arguments[0]):
            name = str(dotted(arguments.pop(0)))
        last = name.rpartition(".")[2]
        if last in self._functions and "." not in name:
            return self._call_own(self._functions[last], arguments, node, scope)
        if last == "setattr" and len(arguments) == 3:
            owner, attribute, value = (self._evaluate(a, scope) for a in arguments)
            if isinstance(owner, Ref) and isinstance(attribute, str):
                self._set(f"{owner.path}.{attribute}".lstrip("."), value, node.lineno, f"{owner.path}.{attribute}")
            return Unread("None")
        return self._build(name, last, arguments, node, scope)

    def _build(self, name: str, last: str, arguments: list[ast.expr], node: ast.Call, scope: dict[str, Any]) -> Any:
        """A configuration class, a shared recipe, a named precision or model; of anything else the arguments."""
        section = section_of(last)
        if last in ("from_hf_pretrained", "from_hf_config", "import_ckpt"):
            values = [self._evaluate(a, scope) for a in (*arguments, *(k.value for k in node.keywords))]
            return Pretrained(next((v for v in values if isinstance(v, str)), name))
        if last in ("pretrain", "finetune") or (section is None and re.search(r"_?pretrain_recipe|_config$", last)):
            section = ""
        if re.fullmatch(r"_\w+_common", last) or last.endswith(("_recipe", "_config")):
            self._recipe.bases.append(name)
        if section is None:
            values = [self._evaluate(a, scope) for a in (*arguments, *(k.value for k in node.keywords))]
            if re.fullmatch(r"(bf16|fp16)_\w+", last) or last == "get_mixed_precision_config":
                return values[0] if values and isinstance(values[0], str) else last
            return unread(node)
        if section == "model" and last not in _GENERIC:
            self._set("model", Pretrained(last), node.lineno, last)
        for argument in arguments:
            value = self._evaluate(argument, scope)
            if isinstance(value, Pretrained):
                self._set("model", value, node.lineno, "model")
        self._keywords(section, last, node, scope)
        return Ref(section)

    def _keywords(self, section: str, shown: str, node: ast.Call, scope: dict[str, Any]) -> None:
        for keyword in node.keywords:
            value = self._evaluate(keyword.value, scope)
            if keyword.arg is None:
                pairs = value.items() if isinstance(value, dict) else [("**", value)]
                for name, item in pairs:
                    self._set(f"{section}.{name}".lstrip("."), item, keyword.value.lineno, f"{shown}({name})")
            else:
                self._set(f"{section}.{keyword.arg}".lstrip("."), value, keyword.value.lineno,
                          f"{section}.{keyword.arg}".lstrip("."))  # fmt: skip

    def _method(self, node: ast.Call, scope: dict[str, Any]) -> Any:
        """A call on what a call gave: ``AutoBridge.from_hf_pretrained(…).to_megatron_provider()`` is the model."""
        owner = self._evaluate(node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
        for argument in (*node.args, *(k.value for k in node.keywords)):
            self._evaluate(argument, scope)
        return owner if isinstance(owner, Pretrained | Ref) else unread(node)

    def _call_own(self, function: ast.FunctionDef, args: list[ast.expr], node: ast.Call, scope: dict[str, Any]) -> Any:
        values = [self._evaluate(a, scope) for a in args]
        named = {k.arg: self._evaluate(k.value, scope) for k in node.keywords if k.arg}
        return self._call_function(function, values, named)

    def _call_function(self, function: ast.FunctionDef, values: list[Any], named: Mapping[str, Any]) -> Any:
        if self._depth >= _DEEPEST:
            return Unread(f"{function.name}()")
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        scope: dict[str, Any] = {}
        defaults = dict(zip(names[len(names) - len(function.args.defaults) :], function.args.defaults, strict=True))
        only = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        defaults |= {a.arg: d for a, d in only if d is not None}
        scope |= {name: self._evaluate(default, self._globals) for name, default in defaults.items()}
        scope |= {**dict(zip(names, values, strict=False)), **named, **self._given}
        self._depth += 1
        try:
            return self._block(function.body, scope)
        finally:
            self._depth -= 1


def section_of(name: str) -> str | None:
    """The section that a configuration class fills, None for another name."""
    return next((section for pattern, section in CLASSES if re.fullmatch(pattern, name)), None)


def _sets(function: ast.FunctionDef) -> bool:
    """Whether a function sets a field or builds a configuration class."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in node.targets):
            return True
        if isinstance(node, ast.Call) and section_of(str(dotted(node.func)).rpartition(".")[2]) is not None:
            return True
    return False


def parse_python(file: str, text: str) -> ast.Module:
    """The tree of a text that Python would take. Raises InputError naming the line where it would not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, file, "exec", dont_inherit=True, optimize=0)  # finds what the grammar alone allows
            return ast.parse(text)
    except SyntaxError as error:
        where = f"{file}:{error.lineno}" if error.lineno else file
        raise InputError(f"{where}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{file}: not Python: {' '.join(str(error).split())}") from None


def _literal(text: str) -> Any:
    """The value of ``--var``; a number larger than any setting stays the text that it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
            str(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
    return value

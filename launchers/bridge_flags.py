"""From the fields that a recipe sets to the options of Megatron-LM that say the same: the last and the stronger win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwise.costmodel.megatron_shell import Flag

from .bridge_fields import is_negated, option_of, path_of
from .megatron_tables import UNMODELLED
from .parsed import Option
from .recipe_reader import Setting
from .recipe_values import Pretrained, Unread, Word

DERIVED: Final = "derived"
"""In place of the file of flags that no line of the recipe spells."""

_EITHER: Final = frozenset(["use-distributed-optimizer", "use-megatron-fsdp", "te-rng-tracker"])
"""Switches that are on where one of their fields is."""

_PRECISION: Final = frozenset(["bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "grad-reduce-in-bf16"])
_OVERLAP: Final = frozenset(["overlap-grad-reduce", "overlap-param-gather"])
_PATTERNS: Final = frozenset(["moe-layer-freq", "window-attn-skip-freq"])
_DTYPES: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "half": "fp16"} | {
    "uint8": "fp8",
    "float8_e4m3fn": "fp8",
}
_STAGES: Final[Mapping[str, str]] = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_OFF: Final = (None, False, 0, "none", "")


@dataclass(slots=True)
class Fields:
    """The settings of a job by path and by option, the last of each path standing."""

    settings: Sequence[Setting]
    notes: list[str] = field(default_factory=list)
    left: list[Option] = field(default_factory=list)
    """Options for the neutral list: set again later, or at their default."""
    named: list[Option] = field(default_factory=list)
    """Options for the list of what was read: the model by its name."""
    _last: dict[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for setting in self.settings:
            if not setting.conditional:
                before = self._last.get(setting.path)
                if before is not None and not before.implied:
                    where = f"line {setting.line} of {setting.file}" if setting.line else setting.file
                    self.left.append(as_option(before, f"set again on {where}"))
                self._last[setting.path] = setting

    def value(self, path: str) -> Any:
        """The value of a field, None where nothing sets it."""
        found = self._last.get(path)
        return None if found is None else found.value

    def in_section(self, section: str) -> bool:
        """Whether anything of a section is set."""
        return any(p.startswith(f"{section}.") for p in self._last)

    def flags(self) -> list[tuple[str, Flag]]:
        """One flag for every option that a field sets, and those that follow from them."""
        groups: dict[str, list[Setting]] = {}
        for path, setting in self._last.items():
            groups.setdefault(option_of(path), []).append(setting)
        found = [
            (s.file, Flag(option_of(s.path), ("…",), True, s.line, s.shown)) for s in self.settings if s.conditional
        ]
        for option, settings in groups.items():
            found += self._effective(option, settings)
        return found + [(DERIVED, Flag(name, words)) for name, words in self._derived()]

    def _effective(self, option: str, settings: list[Setting]) -> list[tuple[str, Flag]]:
        chosen = self._choose(option, settings)
        for other in settings:
            if other is not chosen and not other.implied:
                self.left.append(as_option(other, f"{chosen.shown} counts" if other.value != chosen.value else ""))
        words = _words(option, chosen.value)
        off = chosen.value is True if is_negated(option) else chosen.value in _OFF
        if chosen.value is None or option == "no-pad-vocab-size" or (off and option in UNMODELLED):
            self.left += [] if chosen.implied else [as_option(chosen)]
            return []
        if isinstance(chosen.value, Pretrained):
            self.named.append(as_option(chosen))
            return []
        return [(chosen.file, Flag(option, words, False, chosen.line, chosen.shown))]

    def _choose(self, option: str, settings: list[Setting]) -> Setting:
        """The setting that counts among several fields that say the same."""
        given = [s for s in settings if s.value is not None] or settings
        by_path = {s.path: s for s in given}
        if option in _EITHER:
            return next((s for s in given if s.value is True), given[-1])
        if option in _OVERLAP:
            strong = by_path.get(path_of(option).replace("ddp.", "comm_overlap."))
            if strong is not None and self.distributed:
                return strong
            return next((s for s in given if s.value is True and "comm_overlap" not in s.path), given[0])
        return by_path.get(path_of(option), given[-1])

    @property
    def distributed(self) -> bool:
        """Whether the optimizer is distributed, which lets ``comm_overlap`` set the overlap of data parallelism."""
        names = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer", "ddp.use_megatron_fsdp")
        return any(self.value(name) is True for name in names)

    def _derived(self) -> list[tuple[str, tuple[str, ...]]]:
        found: list[tuple[str, tuple[str, ...]]] = [*self._activation()]
        if self.value("model.num_query_groups") is not None:
            found.append(("group-query-attention", ()))
        experts = self.value("model.expert_model_parallel_size")
        if self.value("model.expert_tensor_parallel_size") is None and isinstance(experts, int) and experts > 1:
            found.append(("expert-tensor-parallel-size", ("1",)))
        if self.value("ddp.data_parallel_sharding_strategy") is None:
            found.append(("data-parallel-sharding-strategy", ("no_shard",)))
        stated = self.value("model.vocab_size") is not None or self.value("model") is not None
        if stated and self.value("tokenizer.use_tokenizer_vocab_size") is not True:
            found.append(("no-pad-vocab-size", ()))
        if self.value("model") is not None:  # a family's own configuration trains without dropout
            unset = [n for n in ("attention-dropout", "hidden-dropout") if self.value(path_of(n)) is None]
            found += [(name, ("0.0",)) for name in unset]
        return found + self._forced()

    def _forced(self) -> list[tuple[str, tuple[str, ...]]]:
        """What ``comm_overlap`` switches on by itself."""
        if not (self.in_section("comm_overlap") and self.distributed):
            return []
        unset = [n for n in sorted(_OVERLAP) if self.value(f"comm_overlap.{n.replace('-', '_')}") is None]
        on = [n for n in unset if self.value(path_of(n)) is not True]
        self.notes += [f"comm_overlap switches {path_of(n)} on where the optimizer is distributed" for n in on]
        return [(n, ("true",)) for n in on]

    def _activation(self) -> list[tuple[str, tuple[str, ...]]]:
        gated, word = self.value("model.gated_linear_unit") is True, str(self.value("model.activation_func") or "gelu")
        if gated and word not in ("silu", "swish", "quick_gelu"):
            self.notes.append(f"a gated {word} is priced as a gated SiLU")
        if gated:
            return [("quick-geglu" if word == "quick_gelu" else "swiglu", ())]
        return [("squared-relu", ())] if word in ("squared_relu", "relu2") else []


def as_option(setting: Setting, note: str = "") -> Option:
    """A setting as an option with its place."""
    return Option(setting.shown, show_value(setting.value), setting.file, setting.line, note)


def _words(option: str, value: Any) -> tuple[str, ...]:
    """A value as the words behind the option."""
    if isinstance(value, bool):
        return (str(value is not is_negated(option)).lower(),)
    if option == "pipeline-model-parallel-layout" and isinstance(value, list | tuple):
        return (_layout(value),)
    if option == "window-size" and isinstance(value, list | tuple):
        return (",".join(map(str, value)),)
    if isinstance(value, list | tuple) and option not in _PATTERNS:
        return tuple(show_value(v) for v in value)
    text = show_value(value)
    return (_DTYPES.get(text, text) if isinstance(value, Word) else text,)


def _layout(stages: Sequence[Any]) -> str:
    """Megatron's string for a list of stages, each a list of ``embedding``, ``decoder``, ``mtp`` and ``loss``."""
    lists = [[stage] if isinstance(stage, str) else list(stage) for stage in stages if isinstance(stage, list | str)]
    return "|".join("".join(_STAGES.get(str(kind), "?") for kind in stage) for stage in lists)


def show_value(value: Any) -> str:
    """A value as a person reads it; what only running would tell as ``$`` and its source."""
    if isinstance(value, Unread):
        return value.text if value.text.startswith("$") else f"$({value.text})"
    return value.name if isinstance(value, Pretrained) else str(value)

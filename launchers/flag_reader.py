"""Flags of a launch script as typed values, each kept with where it stands, so that every refusal can name it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shardwise.costmodel.megatron_shell import Flag, evaluate_integer
from shardwise.hardware_profiles.errors import InputError

from .parsed import Option

LAUNCHER_FLAGS = frozenset(
    """
    nnodes nproc-per-node nproc-per-gpu node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf
    max-restarts monitor-interval start-method role module no-python run-path log-dir redirects tee local-ranks-filter
    local-addr standalone local-rank logs-specs event-log-handler numa-binding signals-to-handle virtual-local-rank
    num-gpus num-nodes hostfile include exclude launcher launcher-args ssh-port no-ssh no-local-rank
    enable-each-rank-log bind-cores-to-rank bind-core-list save-pid
    nodes ntasks ntasks-per-node gpus-per-node gpus-per-task gpus cpus-per-task cpu-bind gres mpi label export time
    partition account job-name output error exclusive mem kill-on-bad-exit wait distribution nodelist open-mode
    container-image container-mounts container-workdir container-name no-container-mount-home
    """.split()  # noqa: SIM905
)
"""Options of torchrun, deepspeed and srun, by their names with dashes."""

_LAUNCHER_SWITCHES = frozenset(
    [
        "standalone",
        "no-python",
        "run-path",
        "no-ssh",
        "no-local-rank",
        "exclusive",
        "label",
        "kill-on-bad-exit",
        "bind-cores-to-rank",
    ]
)


def trimmed(flag: Flag, arity: Mapping[str, str]) -> Flag:
    """A flag with no more words than it takes (``0``, ``1``, ``+`` … by name): those behind are the command's own."""
    own = "0" if flag.name in _LAUNCHER_SWITCHES else "1" if flag.name in LAUNCHER_FLAGS else "+"
    takes, words = arity.get(flag.name, own), flag.words
    if takes == "0":
        words = words[:1] if words[:1] and words[0].lower() in ("true", "false") else ()
    elif takes == "1" and words and not words[0].startswith(("[", "(")):
        words = words[:1]
    return flag if words == flag.words else replace(flag, words=words)


class FlagReader:
    """The flags of some files; what was asked for is ``read``, the rest is judged by the framework's tables."""

    def __init__(self, flags: Iterable[tuple[str, Flag]]) -> None:
        self._all = list(flags)
        self._flags: dict[str, tuple[str, Flag]] = {}
        self._read: set[str] = set()
        self.notes: list[str] = []
        for file, flag in self._all:
            if flag.conditional:
                continue
            before = self._flags.get(flag.name)
            if before is not None and before[1].value != flag.value:
                self.notes.append(f"{option(file, flag)}: given before as {before[1].value!r}; the last one counts")
            self._flags[flag.name] = (file, flag)

    def where(self, name: str) -> str:
        """The flag as the file spells it, for messages."""
        found = self._flags.get(name)
        if found is None:
            return f"{self._all[0][0] if self._all else 'the launch file'}: --{name} is missing"
        return str(option(*found))

    def fail(self, name: str, expected: str) -> InputError:
        """The error of a value that cannot be used."""
        return InputError(f"{self.where(name)}: expected {expected}")

    def has(self, name: str) -> bool:
        """Whether the flag is given outside a branch."""
        self._read.add(name)
        return name in self._flags

    def switch(self, name: str, *others: str) -> bool:
        """Whether one of these switches is given, and not followed by ``false``."""
        return any(self.has(n) and self._flags[n][1].value.lower() not in ("false", "0") for n in (name, *others))

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int | None:
        """A whole number, the default where the flag is absent. Raises InputError naming file, flag and value."""
        if not self.has(name):
            return default
        text = self._flags[name][1].value.strip("'\" ")
        value = int(text) if re.fullmatch(r"-?\d{1,13}", text) else evaluate_integer(text)
        if value is None or value < minimum:
            open_ = _open(text)
            raise self.fail(name, f"a whole number of at least {minimum}{open_}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number. Raises InputError naming file, flag and value."""
        if not self.has(name):
            return default
        try:
            return float(self._flags[name][1].value.strip("'\" "))
        except ValueError:
            raise self.fail(name, "a number") from None

    def word(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """A word, one of ``allowed`` where given. Raises InputError naming file, flag and value."""
        if not self.has(name):
            return default
        value = self._flags[name][1].value.strip("'\" ")
        if "$" in value or (allowed and value not in allowed):
            raise self.fail(name, f"one of {', '.join(allowed)}" if allowed else "a plain value, or give it with --var")
        return value

    def words(self, name: str) -> list[str]:
        """The words behind a flag; empty where it is absent."""
        return [w for word in self._flags[name][1].words for w in word.split()] if self.has(name) else []

    def sort(
        self, known: Mapping[str, str], shaping: frozenset[str], unmodelled: Mapping[str, str], near: Mapping[str, str]
    ) -> dict[str, tuple[Option, ...]]:
        """Every flag as ``read``, ``neutral``, ``unmodelled`` (with the reason) or ``unknown`` (with a near name)."""
        lists: dict[str, list[Option]] = {"read": [], "neutral": [], "unmodelled": [], "unknown": []}
        for file, flag in self._all:
            kind, note = self._judge(flag, known, shaping, unmodelled, near)
            lists[kind].append(option(file, flag, note))
        return {kind: tuple(dict.fromkeys(found)) for kind, found in lists.items()}

    def _judge(
        self,
        flag: Flag,
        known: Mapping[str, str],
        shaping: frozenset[str],
        unmodelled: Mapping[str, str],
        near: Mapping[str, str],
    ) -> tuple[str, str]:
        name = flag.name
        used = name in self._read or name in shaping
        if flag.conditional and (used or name in unmodelled):
            return "unknown", "inside a branch of the script, which was not taken"
        if name in unmodelled:
            return "unmodelled", unmodelled[name]
        if used:
            return "read", ""
        if name in known or name in LAUNCHER_FLAGS:
            return "neutral", ""
        return "unknown", near.get(name, "")


def option(file: str, flag: Flag, note: str = "") -> Option:
    """A flag as an option with its place."""
    return Option(flag.spelled, flag.value, file, flag.line, note)


def _open(text: str) -> str:
    """What to do about a value that the files leave open: a variable can be given, an expression only written out."""
    if re.search(r"\$\{?\w", text):
        return "; the script leaves the variable to the shell: give it with --var"
    return "; only running it would tell: write the number there" if "$" in text else ""

"""From an exception to one line on standard error and an exit code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from shardwise.hardware_profiles.errors import ShardwiseError

EXIT_UNEXPECTED = 1
EXIT_UNUSABLE = 2
"""Of an error without a code of its own: what is named, here the output, cannot be used."""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE, as the shell reports a writer whose reader has gone."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a write to a full or broken disk fails with."""

LONGEST_LINE = 1000
"""Characters of an error: enough for any sentence, short of a pasted file."""


@contextmanager
def remembered_interrupts() -> Iterator[list[int]]:
    """The interrupts so far: a library may turn one that strikes while it is imported into an error of its own."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_code_for(error: BaseException, after_interrupt: bool = False) -> int:
    """Print what the user should read about ``error`` and return the exit code for it."""
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        say_error("interrupted")
        return EXIT_INTERRUPTED
    if os.environ.get("SHARDWISE_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ShardwiseError):
        say_error(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        say_error(_usage_message(error))
        return error.exit_code
    if after_interrupt:
        say_error("interrupted")
        return EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        _silence_stdout()
        say_error(f"the output cannot be written: {error.strerror}")
        return EXIT_UNUSABLE
    kind = type(error).__name__
    say_error(
        f"unexpected {kind}: {one_line(str(error))[:300]} (a fault of shardwise, not of your input: "
        "set SHARDWISE_DEBUG=1 to see where, and report it with the command you ran)"
    )
    return EXIT_UNEXPECTED


def say_error(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    _say("error", message)


def say_warning(message: str) -> None:
    """One line on standard error that does not end the program."""
    _say("warning", message)


def one_line(text: str) -> str:
    """All white space, line ends included, as single blanks; control characters dropped."""
    return "".join(ch for ch in " ".join(text.split()) if ch.isprintable())


def _say(level: str, message: str) -> None:
    line = one_line(message)
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE // 2]} … {line[-LONGEST_LINE // 2 :]}"
    click.echo(f"shardwise: {level}: {line}", err=True)


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        return f"{message.rstrip('.')} (see {context.command_path} --help)"
    return message


def _silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's own flush at exit does not complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = io.StringIO()

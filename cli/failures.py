"""From an exception to one line on standard error and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback

import click

from shardwise.hardware_profiles.errors import ShardwiseError

EXIT_UNEXPECTED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE, as the shell reports a writer whose reader has gone."""

LONGEST_LINE = 1000
"""Characters of an error: enough for any sentence, short of a pasted file."""


def exit_code_for(error: BaseException) -> int:
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

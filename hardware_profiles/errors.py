"""The error root. It lives in the lowest folder so that every folder above may raise it."""

from __future__ import annotations


class ShardwiseError(Exception):
    """Root of every error that shardwise raises on purpose; the command line prints it as one line."""

    exit_code = 2


class InputError(ShardwiseError, ValueError):
    """A file, key or value that cannot be used: the message names file, key, value and what was expected."""


class UnknownNameError(InputError, KeyError):
    """A preset, profile, runtime or launcher that does not exist; the message offers the nearest name."""

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return str(self.args[0]) if self.args else ""


class InfeasibleError(ShardwiseError):
    """No strategy satisfies all constraints. It is an answer: it carries what binds and what would help."""

    exit_code = 3

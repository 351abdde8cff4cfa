"""The console script. Light to import: a Ctrl-C while the command line itself is still loading ends in one line too."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # ``typing`` itself takes long to import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_EXIT_INTERRUPTED = 130
"""``failures.EXIT_INTERRUPTED``, which is not loaded yet."""


def main() -> NoReturn:
    """Load the command line and run it; exits the process."""
    before = signal.signal(signal.SIGINT, _leave)
    from . import main as loaded

    signal.signal(signal.SIGINT, before)
    try:
        loaded.main()
    except KeyboardInterrupt:  # before the command line could see to it
        _leave(signal.SIGINT, None)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to stop but Python's own end


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End at once: modules half loaded turn an exception into errors of their own, and there is nothing to undo."""
    os.write(2, b"shardwise: error: interrupted\n")
    os._exit(_EXIT_INTERRUPTED)

"""Progress of a search: on a terminal only, on standard error, gone when the answer is there."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .units import seconds

Report = Callable[[str, float, float], None]


@contextmanager
def progress_on_terminal() -> Iterator[Report | None]:
    """A callback ``report(phase, incumbent_s, bound_s)`` for the search, or None where nobody is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("searching (Ctrl-C for the best so far)") as status:

        def report(phase: str, incumbent_s: float, bound_s: float) -> None:
            best = f", best step {seconds(incumbent_s)}" if math.isfinite(incumbent_s) else ""
            bound = f", bound {seconds(bound_s)}" if math.isfinite(bound_s) else ""
            status.update(f"{phase}{best}{bound}  (Ctrl-C for the best so far)")

        yield report

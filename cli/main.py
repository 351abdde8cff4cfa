"""The ``shardwise`` command. Commands are light to import: each loads the planner only when it runs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from .calibrate import calibrate
from .estimate import estimate
from .failures import exit_code_for, remembered_interrupts
from .listings import clusters, launchers, models, runtimes
from .place import place
from .plan import plan
from .study import study
from .validate import validate
from .whatif import whatif


class Shardwise(click.Group):
    """The group of all commands; it turns every failure into one line and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line. In standalone mode this exits the process, as click's own does."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _never_fail_to_print()
        with remembered_interrupts() as interrupts:
            try:
                code = super().main(args, prog_name or "shardwise", complete_var, standalone_mode=False, **extra)
                sys.stdout.flush()
            except (Exception, KeyboardInterrupt) as error:
                code = exit_code_for(error, after_interrupt=bool(interrupts))
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of our pipe that has gone is handled here, before click's own way."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            ctx.exit(exit_code_for(error))


@click.group(
    "shardwise", cls=Shardwise, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="shardwise", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan how to train a large model on a cluster.

    Given a model, a cluster and a global batch, shardwise finds the parallel layout with the shortest step that fits in
    memory, proves it under its cost model, explains every number and writes the launch files.
    """


def _never_fail_to_print() -> None:
    """A character that the terminal's encoding lacks becomes ``?``, and a closed stream swallows what it gets."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


for _command in (plan, estimate, place, study, whatif, validate, calibrate, models, clusters, runtimes, launchers):
    cli.add_command(_command)


def main() -> NoReturn:
    """Entry point of the console script."""
    cli.main()
    raise AssertionError("click exits the process")

"""``shardwise validate``: predictions beside measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise.hardware_profiles.errors import InputError

from .options import PATH, json_option
from .output import print_json, write_file

if TYPE_CHECKING:
    from shardwise.costmodel.validation import Validation


@click.command()
@click.argument("runs", type=PATH, metavar="RUNS.jsonl")
@click.option("--out", type=PATH, metavar="FILE", help="Write the report (Markdown) to FILE.")
@json_option
def validate(runs: Path, out: Path | None, as_json: bool) -> None:
    """Predict every measured run in RUNS.jsonl and report the error by hardware, model and source.

    A row that cannot be expressed is skipped, with the reason.
    """
    from shardwise.costmodel.validation import report_markdown, validate_rows

    result = validate_rows(runs)
    _refuse_a_file_without_runs(runs, result)
    if out is not None:
        write_file(out, report_markdown(result))
    if as_json:
        print_json(result.as_dict())
    elif out is None:
        click.echo(report_markdown(result))
    else:
        click.echo(str(out))


def _refuse_a_file_without_runs(runs: Path, result: Validation) -> None:
    """A file none of whose lines is a run is the wrong file. Raises InputError."""
    if not result.rows:
        raise InputError(f"{runs}: holds no rows; expected one measured run a line, as JSON")
    if all(row.row_id.startswith("line ") and row.skipped for row in result.rows):
        raise InputError(f"{runs}: holds no measured run: {result.rows[0].skipped}")

"""``shardwise calibrate``: a profile of your own cluster from what you measured on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there

from .options import PATH, integer, json_option
from .output import print_json, write_file

if TYPE_CHECKING:
    from shardwise.costmodel.training_rows import RunsFile
    from shardwise.hardware_profiles.calibrate import Log
    from shardwise.hardware_profiles.readers.nccl_ranks import Said

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")
_SEVERAL = ("--nccl", "--gemm", "--attention", "--runs")


class _Several(click.Command):
    """A command whose file options take several values, as shells write them: ``--nccl logs/*.txt``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before every value but its first."""
        spread: list[str] = []
        current = ""
        for word in args:
            if word.startswith("-"):
                current = word if word in _SEVERAL else ""
                spread.append(word)
            elif current and spread[-1] != current:
                spread += [current, word]
            else:
                spread.append(word)
        return super().parse_args(ctx, spread)


@click.command(cls=_Several)
@click.option("--cluster", metavar="NAME|FILE", help="The profile to start from.")
@click.option("--nccl", multiple=True, metavar="LOG…", help="Logs of nccl-tests, rccl-tests or nccom-test.")
@click.option("--gemm", multiple=True, metavar="FILE…", help="GEMM timings: CSV, JSON lines, mamf-finder output.")
@click.option(
    "--attention", multiple=True, metavar="FILE…", help="Attention timings: CSV, JSON lines, flash-attention's."
)
@click.option("--runs", multiple=True, metavar="FILE…", help="Step times: JSON lines, or logs of training frameworks.")
@click.option("--ranks", type=integer, help="Ranks of the logs that do not say.")
@click.option("--nodes", type=integer, help="Nodes of the logs that do not say.")
@click.option("--kind", type=click.Choice(KINDS), help="Collective of the logs that do not say.")
@click.option("--out", type=PATH, metavar="FILE", help="Write the new profile (YAML) to FILE.")
@click.option("--figures", type=PATH, metavar="DIR", help="Draw measured against fitted into DIR.")
@click.option(
    "--format", "image", type=click.Choice(["png", "svg"]), default="png", show_default=True, help="Of the figures."
)
@click.option("--script", is_flag=True, help="Print a script that measures a cluster, and stop.")
@json_option
def calibrate(
    cluster: str | None,
    nccl: tuple[str, ...],
    gemm: tuple[str, ...],
    attention: tuple[str, ...],
    runs: tuple[str, ...],
    ranks: int | None,
    nodes: int | None,
    kind: str | None,
    out: Path | None,
    figures: Path | None,
    image: str,
    script: bool,
    as_json: bool,
) -> None:
    """Fit a cluster profile to benchmarks and step times of your own cluster.

    The new profile keeps where each figure comes from and loads with --cluster like any other. What one log does not
    say can follow its name: LOG:ranks=16,nodes=2, LOG:kind=all_gather, LOG:domains=2, TRAINING.log:row=FILE.jsonl#ID.
    """
    if script:
        from .bench_script import bench_script

        click.echo(bench_script(cluster), nl=False)
        return
    if cluster is None:
        raise InputError("--cluster: missing: expected the name or file of the profile to start from")
    from shardwise.costmodel.calibrate import calibrate as fit

    said = _said(kind, ranks, nodes)
    answer = fit(
        cluster,
        logs=[_log(text, said) for text in nccl],
        gemm=[Path(text) for text in gemm],
        attention=[Path(text) for text in attention],
        runs=[_runs(text) for text in runs],
    )
    written: list[str] = []
    if out is not None:
        write_file(out, answer.profile(out.parent, None))
        written.append(str(out))
    if figures is not None:
        from .calibration_figures import draw

        written += [str(path) for path in draw(answer, figures, image)]
    from . import calibrate_report as report

    if as_json:
        print_json(report.document(answer, written))
    else:
        report.print_answer(answer, written)


def _said(kind: str | None, ranks: int | None, nodes: int | None) -> Said:
    from shardwise.hardware_profiles.readers.nccl_ranks import Said

    return Said(kind, ranks, nodes)


def _log(text: str, said: Said) -> Log:
    """A log with what its name is followed by: ``LOG:ranks=16,nodes=2``. Raises InputError."""
    from shardwise.hardware_profiles.calibrate import Log

    name, words = _split(text, ("ranks", "nodes", "domains", "kind"))
    if "kind" in words and words["kind"] not in KINDS:
        raise InputError(f"--nccl {text}: kind = {words['kind']}: expected one of {', '.join(KINDS)}")
    own: dict[str, Any] = {key: value if key == "kind" else _whole(text, key, value) for key, value in words.items()}
    return Log(Path(name), replace(said, **own))


def _runs(text: str) -> RunsFile:
    from shardwise.costmodel.training_rows import RunsFile

    name, words = _split(text, ("row",))
    return RunsFile(Path(name), words.get("row"))


def _split(text: str, keys: Iterable[str]) -> tuple[str, dict[str, str]]:
    """``FILE:key=value,key=value`` in its parts; a file that has the whole name wins. Raises InputError."""
    name, colon, rest = text.rpartition(":")
    if not colon or "=" not in rest or is_there(Path(text)):
        return text, {}
    words: dict[str, str] = {}
    for part in rest.split(","):
        key, _, value = part.partition("=")
        if key not in keys or not value:
            raise InputError(f"{text}: {part!r}: expected {', '.join(f'{k}=…' for k in keys)}")
        words[key] = value
    return name, words


def _whole(text: str, key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 0 < int(value) < 1 << 21:
        raise InputError(f"{text}: {key} = {value}: expected a whole number above 0")
    return int(value)

"""``shardwise whatif compare``: two clusters, two launch files, or one of each, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardwise.costmodel.workload import DTYPES, OPTIMIZERS
from shardwise.hardware_profiles.errors import InputError

from .launch_review import read_variables
from .options import integer, json_option, read_wishes
from .output import console, print_json
from .study import counted

if TYPE_CHECKING:
    from shardwise.search.studies.side_by_side import Place

_EXPECTED = "expected CLUSTER:GPUS, or a launch file (or a folder of them) that is there"


@click.command()
@click.argument("a", metavar="CLUSTER:GPUS|FILE|FOLDER")
@click.argument("b", metavar="CLUSTER:GPUS|FILE|FOLDER")
@click.option("--model", metavar="FILE|PRESET", help="config.json, arguments or preset.  [default: a launch file's]")
@click.option("--global-batch", type=integer, help="Sequences per optimizer step.  [default: a launch file's]")
@click.option("--seq-len", type=integer, help="Tokens per sequence.  [default: a launch file's]")
@click.option("--dtype", type=click.Choice(DTYPES), help="GEMM precision.  [default: a launch file's, or bf16]")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="Optimizer.  [default: a launch file's, or adam]")
@click.option("--cluster", metavar="NAME|FILE", help="Cluster profile on which launch files are priced.")
@click.option("--gpus", type=integer, help="Accelerators of launch files that do not say.")
@click.option("--launcher", metavar="NAME", help="Framework of both sides.  [default: that of each file]")
@click.option("--runtime", metavar="NAME|FILE", help="Framework release of both sides.")
@click.option("--pin", multiple=True, metavar="KEY=VALUE", help="Hold a dimension of a planned side. Repeatable.")
@click.option("--var", multiple=True, metavar="NAME=VALUE", help="Variable of the shell that runs launch files.")
@json_option
def compare(
    a: str,
    b: str,
    model: str | None,
    global_batch: int | None,
    seq_len: int | None,
    dtype: str | None,
    optimizer: str | None,
    cluster: str | None,
    gpus: int | None,
    launcher: str | None,
    runtime: str | None,
    pin: tuple[str, ...],
    var: tuple[str, ...],
    as_json: bool,
) -> None:
    """Two sides part by part, each the best layout on a cluster or a launch file as it stands.

    A launch file is priced on --cluster, as estimate --from-launch does it. A cluster beside a launch file is planned
    for the job of that file.
    """
    from shardwise.search.studies.side_by_side import Job, Place, side_by_side

    sides = [read_side(text) for text in (a, b)]
    launched = [side for side in sides if not isinstance(side, Place)]
    for option, given in {"--cluster": cluster, "--gpus": gpus, "--var": var}.items():
        if given and not launched:
            raise InputError(f"{option} goes with a launch file; {a} and {b} are clusters")
    changed = {key: value for key, value in {"dtype": dtype, "optimizer": optimizer}.items() if value is not None}
    job = Job(
        model, global_batch, seq_len, cluster, gpus, launcher, runtime, changed, read_wishes("--pin", pin),
        read_variables(var),
    )  # fmt: skip
    with counted() as progress:
        answer = side_by_side(sides[0], sides[1], job, progress=progress.tell)
    if as_json:
        print_json(answer.as_dict())
        return
    from .comparison_report import print_side_by_side

    print_side_by_side(console(), answer)


def read_side(text: str) -> Place | str:
    """``dgx-h100:1024``, or the path of a launch file. Raises InputError for neither."""
    from shardwise.search.studies.side_by_side import Place

    if text and Path(text).exists():
        return text
    name, _, gpus = text.rpartition(":")
    try:
        if name and gpus:
            return Place(name, integer(gpus))
    except click.BadParameter as error:
        raise InputError(f"{text[:80]!r}: {error.message}; {_EXPECTED}") from None
    raise InputError(f"{text[:80]!r}: {_EXPECTED}")

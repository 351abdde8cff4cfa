"""``shardwise place``: the order of hosts for a plan on a real allocation, and the files that make it happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardwise.hardware_profiles.errors import InputError

from .failures import say_warning
from .options import PATH, json_option, seconds
from .output import console, prepare_folder, print_json, to_json, write_files

if TYPE_CHECKING:
    from shardwise.search.placement import Placement

F = TypeVar("F", bound=Callable[..., Any])


def allocation_options(command: F) -> F:
    """The options that say where a job runs: topology, nodes, what is left out or slow."""
    decorators = (
        click.option(
            "--topology",
            type=PATH,
            metavar="FILE",
            help="topology.conf, topology.yaml, output of scontrol show topology, or list of nodes and switches.",
        ),
        click.option("--topology-name", metavar="NAME", help="Which topology of a topology.yaml.  [default: its own]"),
        click.option(
            "--nodes", metavar="LIST", help="The allocation: gpu[001-128,130].  [default: all of the topology]"
        ),
        click.option("--exclude", multiple=True, metavar="LIST", help="Nodes to leave out. Repeatable."),
        click.option(
            "--degraded",
            multiple=True,
            metavar="NAME=SHARE",
            help="A node or switch and the share of its rate that is left: node07=0.5. Repeatable.",
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@click.command()
@click.option("--plan", required=True, type=PATH, metavar="FILE", help="A plan.json, as plan --out writes.")
@allocation_options
@click.option("--cluster", metavar="NAME|FILE", help="Cluster profile.  [default: the one that the plan names]")
@click.option("--time-limit", type=seconds, help="Stop searching after this many seconds; the gap is stated.")
@click.option("--out", type=PATH, metavar="DIR", help="Write host files and placement.json to DIR.")
@json_option
def place(plan: Path, out: Path | None, as_json: bool, **options: Any) -> None:
    """Find the order of hosts in which the steps of a plan wait least for their traffic.

    Each host holds the ranks of its place in the order; which hosts that are decides which cables the traffic crosses.
    Exit code 2: an input cannot be used.
    """
    if options["topology"] is None and options["nodes"] is None:
        raise InputError("place: expected --topology FILE, --nodes LIST or both")
    if out is not None:
        prepare_folder(out)
    from shardwise.search.placement import place as search

    found = search(plan, **read_where(options), cluster=options["cluster"], time_limit_s=options["time_limit"])
    written = [] if out is None else write_files(out, placement_documents(found))
    if as_json:
        print_json(found.as_dict())
        return
    from .placement_report import print_placement
    from .plan_report import print_written

    terminal = console()
    print_placement(terminal, found)
    if out is not None:
        print_written(terminal, out, written)


def read_where(options: dict[str, Any]) -> dict[str, Any]:
    """The allocation that the options name, as the library takes it. Raises InputError."""
    where = {name: options[name] for name in ("topology", "topology_name", "nodes")}
    return {**where, "exclude": ",".join(options["exclude"]), "degraded": read_shares(options["degraded"])}


def read_shares(texts: Iterable[str]) -> dict[str, float]:
    """``("node07=0.5",)`` as ``{"node07": 0.5}``; host lists name several. Raises InputError for what is no share."""
    from shardwise.hardware_profiles.hostlist import expand

    shares: dict[str, float] = {}
    for text in texts:
        names, _, share = text.rpartition("=")
        try:
            value = float(share)
        except ValueError:
            value = 0.0
        if not names or not 0.0 < value <= 1.0:
            raise InputError(
                f"--degraded {text[:60]}: expected NAME=SHARE with a share above 0 and up to 1: node07=0.5"
            )
        shares.update(dict.fromkeys(expand(names), value))
    return shares


def placement_documents(found: Placement) -> dict[str, str]:
    """Every file of a placement, the figure where matplotlib is there to draw it."""
    files = {**found.files(), "placement.json": to_json(found.as_dict()) + "\n"}
    try:
        from .placement_figure import figure_svg

        files["placement.svg"] = figure_svg(found)
    except ImportError:
        say_warning("no placement.svg: it takes matplotlib (pip install 'shardwise[report]')")
    return files

"""``models``, ``clusters``, ``runtimes`` and ``launchers``: what is shipped, and what one entry says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.hardware_profiles.errors import InputError

from .inputs import read_model
from .options import PATH, json_option
from .output import console, print_json
from .units import count, gib, percent, plural, seconds, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardwise.hardware_profiles.cluster import Cluster


@click.group()
def models() -> None:
    """Models shipped as presets, and what a model holds."""


@models.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """Names of the presets."""
    from shardwise.costmodel.presets import list_presets

    _print_names(list_presets(), as_json)


@models.command("show")
@click.argument("model")
@json_option
def show_model(model: str, as_json: bool) -> None:
    """Parameters of MODEL, a config.json, a file of Megatron-LM arguments or a preset, by kind of layer."""
    from .model_view import model_as_dict

    view = model_as_dict(read_model(model))
    if as_json:
        print_json(view)
    else:
        _print_model(view)


@click.group()
def clusters() -> None:
    """Cluster profiles shipped, and what a profile holds."""


@clusters.command("list")
@json_option
def list_the_clusters(as_json: bool) -> None:
    """Names of the cluster profiles."""
    from shardwise.hardware_profiles.load_cluster import list_clusters

    _print_names(list_clusters(), as_json)


@clusters.command("show")
@click.argument("cluster", required=False)
@click.option("--topology", type=PATH, metavar="FILE", help="Show this topology file instead.")
@click.option("--topology-name", metavar="NAME", help="Which topology of a topology.yaml.  [default: the cluster's]")
@click.option("--nodes", metavar="LIST", help="Only these nodes of the topology: gpu[001-128,130].")
@json_option
def show_cluster(
    cluster: str | None, topology: Path | None, topology_name: str | None, nodes: str | None, as_json: bool
) -> None:
    """Accelerator, network tiers and sources of CLUSTER, a profile's name or YAML file; or a topology file's tree.

    A topology is Slurm's topology.conf or topology.yaml, what scontrol show topology prints, or lines of a node and the
    switches above it. Everything odd in it is reported with its line.
    """
    if topology is not None and cluster is None:
        from .topology_view import show_topology

        show_topology(topology, topology_name, nodes, as_json)
        return
    if cluster is None or topology is not None:
        raise InputError("clusters show: expected a cluster profile or --topology FILE, one of them")
    if nodes is not None or topology_name is not None:
        raise InputError("clusters show: --nodes and --topology-name go with --topology FILE")
    from shardwise.hardware_profiles.load_cluster import load_cluster

    loaded = load_cluster(cluster)
    if as_json:
        print_json(_finite(dataclasses.asdict(loaded)))
    else:
        _print_cluster(loaded)


@click.group()
def runtimes() -> None:
    """Runtime profiles (framework releases) shipped, and what a profile holds."""


@runtimes.command("list")
@json_option
def list_the_runtimes(as_json: bool) -> None:
    """Names of the runtime profiles."""
    from shardwise.costmodel.runtime import list_runtimes

    _print_names(list_runtimes(), as_json)


@runtimes.command("show")
@click.argument("runtime")
@json_option
def show_runtime(runtime: str, as_json: bool) -> None:
    """Every figure of RUNTIME, a profile's name or YAML file, with its source."""
    from rich.markup import escape

    from shardwise.costmodel.runtime import load_runtime

    values = load_runtime(runtime).model_dump(mode="json")
    if as_json:
        print_json(_finite(values))
        return
    sources = values.pop("sources")
    title = escape(f"{values['name']}: {values['description']}")
    table = _table("figure", "value", "source", title=title)
    for key, value in values.items():
        if key not in ("name", "description"):
            table.add_row(key, str(value), sources.get(key, ""))
    console().print(table)


@click.group()
def launchers() -> None:
    """Training frameworks that shardwise writes launch files for."""


@launchers.command("list")
@json_option
def list_the_launchers(as_json: bool) -> None:
    """Names of the launchers."""
    from shardwise.launchers.base import list_launchers

    _print_names(list_launchers(), as_json)


def _print_names(names: Iterable[str], as_json: bool) -> None:
    if as_json:
        print_json(list(names))
        return
    for name in names:
        click.echo(name)


def _print_model(view: dict[str, Any]) -> None:
    from rich.markup import escape

    params = view["params"]
    out = console()
    origin = escape(f"({view['architecture']}, from {view['source']})")
    out.print(f"[bold]{escape(view['name'])}[/bold]  {origin}", soft_wrap=True)
    tied = "shared with the embedding" if params["tied"] else f"{params['head']:,}"
    rows = [
        ("parameters", f"{params['total']:,}  ({count(params['total'])})"),
        ("active per token", f"{params['active']:,}  ({count(params['active'])})"),
        ("embedding", f"{params['embedding']:,}  ({view['vocab_size']:,} tokens, hidden size {view['hidden_size']:,})"),
        ("output head", tied),
    ]
    if params["mtp"]:
        rows.append(("MTP layers (beside the total)", f"{params['mtp']:,}"))
    for name, value in rows:
        out.print(f"  {name:<30}{value}", soft_wrap=True)
    table = _table("layers", "count", "kind", "attention", "MLP", "experts", "each layer", title="")
    for layer in params["layers"]:
        mlp = layer.get("dense_mlp", 0) + layer.get("shared_experts", 0)
        experts = f"{layer['num_experts']} × {layer['expert_each']:,}" if "experts" in layer else ""
        attention = f"{layer['attention']:,}" if "attention" in layer else ""
        table.add_row(
            layer["layers"], str(layer["count"]), ", ".join(layer["kinds"]), attention, f"{mlp:,}", experts,
            f"{layer['total']:,}",
        )  # fmt: skip
    out.print(table)
    for text in view["assumptions"]:
        out.print(f"  assumed: {text}", markup=False, soft_wrap=True)


def _print_cluster(cluster: Cluster) -> None:
    from rich.markup import escape

    out = console()
    device = cluster.accelerator
    most = f"up to {cluster.num_gpus:,} × {escape(device.name)}"
    out.print(f"[bold]{escape(cluster.name)}[/bold]: {most}", soft_wrap=True)
    out.print(f"  memory {gib(device.memory_bytes)} GiB, nodes of {cluster.node_size}", soft_wrap=True)
    if cluster.source:
        out.print(f"  source: {cluster.source}", markup=False, soft_wrap=True)
    table = _table("tier", "accelerators", "GB/s per accelerator", "latency", "oversubscription", "all-reduce reaches")
    for tier in cluster.tiers:
        table.add_row(
            tier.name, f"{tier.size:,}", significant(tier.bytes_per_s / 1e9), seconds(tier.latency_s),
            f"{tier.oversubscription:g} : 1", percent(tier.efficiency["all_reduce"]),
        )  # fmt: skip
    out.print(table)
    for text in _calibration_words(cluster):
        out.print(f"  calibrated: {text}", markup=False, soft_wrap=True)
    for text in cluster.assumptions:
        out.print(f"  assumed: {text}", markup=False, soft_wrap=True)


def _calibration_words(cluster: Cluster) -> Iterator[str]:
    """What a calibrated profile was measured on, and how near its figures come to that (80 % of the rows)."""
    found = cluster.calibration
    if found is None:
        return
    for c in found.collectives:
        ranks = str(c.ranks[0]) if c.ranks[0] == c.ranks[1] else f"{c.ranks[0]} to {c.ranks[1]}"
        yield f"{c.kind} on {c.tier}, {ranks} ranks: {plural(c.rows, 'row')}, 80 % within {percent(c.half_width)}"
    for k in found.kernels:
        yield f"{k.operation} {k.name}: {plural(k.rows, 'row')}, 80 % within {percent(k.half_width)}"
    for s in found.step_times:
        yield (
            f"{s.runs} step time{'s' * (s.runs != 1)} of {s.models} models under {s.launcher}:"
            f" interval ± {percent(s.half_width_before)} before, ± {percent(s.half_width)} after"
        )


def _table(*columns: str, title: str = "") -> Any:
    from rich.box import SIMPLE

    from .report import plain_table

    table = plain_table()(*columns, title=title or None, title_justify="left", box=SIMPLE, pad_edge=False)
    return table


def _finite(value: Any) -> Any:
    """The same values with infinities as text, since JSON has none."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value

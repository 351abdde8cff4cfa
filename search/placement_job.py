"""What is to be placed: the strategy and traffic of a plan, on the system that it was made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.exposed import Collective, Pool
from shardwise.costmodel.strategy import RANK_ORDERS, Strategy
from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.hardware_profiles.text_files import read_text
from shardwise.launchers.base import get_launcher
from shardwise.launchers.capability import Range

from .plan import SCHEMA_VERSION, Plan

MOST_BYTES = 64 << 20
"""A plan with every runner-up takes a few hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class Job:
    """A strategy with the traffic of its steps, and the system that it was planned for."""

    model: str
    strategy: Strategy
    pools: tuple[Pool, ...]
    cluster: Cluster
    launcher: str

    @property
    def num_nodes(self) -> int:
        """Nodes that the job takes."""
        return self.cluster.num_gpus // self.cluster.node_size


def read_job(
    plan: Plan | Estimate | Mapping[str, Any] | str | Path, cluster: Cluster | str | Path | None = None
) -> Job:
    """The job of a plan: the object, its document (``Plan.as_dict``) or the file ``plan.json``.

    ``cluster`` stands in for the system that the document names. Raises InputError naming file and key.
    """
    if isinstance(plan, (Plan, Estimate)):
        estimate = plan.estimate if isinstance(plan, Plan) else plan
        system, launcher = estimate.problem.cluster, plan.launcher if isinstance(plan, Plan) else ""
        if cluster is not None:
            system = _system("plan", cluster, system.num_gpus)
        job = Job(estimate.problem.model.name, estimate.strategy, estimate.pools, system, launcher)
    else:
        where, raw = _document(plan)
        return _checked(_from_document(where, raw, cluster), where)
    return _checked(job, "plan")


class _File(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class _CollectiveFile(_File):
    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast"]
    tensor_bytes: float = Field(ge=0)
    group_size: int = Field(ge=2)
    stride: int = Field(ge=1)
    count: float = Field(ge=0)


class _PoolFile(_File):
    parallelism: str
    repeat: float = Field(ge=0)
    hidden_share: float = Field(ge=0, le=1)
    room_s: float = Field(ge=0)
    slowdown: float = Field(ge=0)
    collectives: list[_CollectiveFile]


class _PlanFile(_File):
    schema_version: int = Field(SCHEMA_VERSION, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    model: str
    cluster: str
    num_gpus: int = Field(ge=1)
    strategy: dict[str, Any]
    pools: list[_PoolFile]
    launcher: str = ""


def _document(plan: Mapping[str, Any] | str | Path) -> tuple[str, Any]:
    if isinstance(plan, Mapping):
        return "plan", plan
    text = read_text(Path(plan), "a plan.json, as `shardwise plan --json` or --out writes it", MOST_BYTES)
    try:
        return str(plan), json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{plan}:{error.lineno}: broken JSON: {error.msg}; expected a plan.json") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise InputError(f"{plan}: broken JSON: a number too long; expected a plan.json") from None
    except RecursionError:
        raise InputError(f"{plan}: broken JSON: nested too deeply; expected a plan.json") from None


def _from_document(where: str, raw: Any, cluster: Cluster | str | Path | None) -> Job:
    try:
        document = TypeAdapter(_PlanFile).validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "document"
        hint = " (written before plans kept their traffic? plan again)" if key == "pools" else ""
        raise InputError(f"{where}: {key}: {first['msg'].lower()}; expected a plan.json{hint}") from None
    pools = tuple(
        Pool(p.parallelism, tuple(Collective(**c.model_dump()) for c in p.collectives), p.repeat, p.hidden_share,
             p.room_s, p.slowdown)
        for p in document.pools
    )  # fmt: skip
    system = _system(where, document.cluster if cluster is None else cluster, document.num_gpus)
    strategy = _strategy(where, document.strategy)
    return Job(document.model, strategy, pools, system, document.launcher)


def _system(where: str, cluster: Cluster | str | Path, num_gpus: int) -> Cluster:
    if isinstance(cluster, Cluster):
        return cluster if cluster.num_gpus == num_gpus else cluster.with_num_gpus(num_gpus)
    try:
        return load_cluster(cluster, num_gpus)
    except UnknownNameError as error:
        raise InputError(f"{where}: cluster = {str(cluster)!r}: {error}; name its YAML file as the cluster") from None


def _strategy(where: str, raw: dict[str, Any]) -> Strategy:
    known = {f.name for f in fields(Strategy)}
    for key in ("tp", "cp", "pp", "dp", "ep", "etp"):
        if type(raw.get(key)) is not int or raw[key] < 1:
            raise InputError(f"{where}: strategy.{key} = {raw.get(key)!r}: expected a whole number of 1 or more")
    try:
        return Strategy.from_dict({key: value for key, value in raw.items() if key in known})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def reordered(job: Job) -> list[Job]:
    """The job in every other rank order that its launcher can express: the same traffic between other ranks."""
    s = job.strategy
    orders = get_launcher(job.launcher).capabilities["rank_order"] if job.launcher else ()
    apart = [c.stride for pool in job.pools if pool.parallelism == "dp" for c in pool.collectives]
    expressible = min(s.pp, s.dp) > 1 and s.cp == 1 and s.zero < 2 and not any(stride % s.tp for stride in apart)
    if not expressible or isinstance(orders, Range):
        return []
    return [
        replace(job, strategy=replace(s, rank_order=order), pools=tuple(_restrided(pool, s) for pool in job.pools))
        for order in orders
        if order != s.rank_order
    ]


def _restrided(pool: Pool, s: Strategy) -> Pool:
    """A pool in the other of the two orders: stages a replica apart come side by side, replicas move apart, or back."""
    more, less = {"dp": (s.pp, 1), "pp": (1, s.dp), "embedding": (1, s.dp)}.get(pool.parallelism, (1, 1))
    if s.rank_order != RANK_ORDERS[0]:
        more, less = less, more
    moved = [
        c if c.collective == "all_gather" and pool.parallelism == "pp" else replace(c, stride=c.stride * more // less)
        for c in pool.collectives  # received slices are gathered in the tensor group
    ]
    return replace(pool, collectives=tuple(moved))


def _checked(job: Job, where: str) -> Job:
    cluster = job.cluster
    if job.strategy.world_size != cluster.num_gpus:
        raise InputError(f"{where}: tp·cp·dp·pp = {job.strategy.world_size}: expected the {cluster.num_gpus} GPUs that "
                         "the plan is for")  # fmt: skip
    for number, pool in enumerate(job.pools):
        for c in pool.collectives:
            _fits(f"{where}: pools.{number}: {c.collective} of {pool.parallelism}", pool.parallelism, c, job)
    if cluster.num_gpus % cluster.node_size:
        raise InputError(
            f"{where}: {cluster.num_gpus} GPUs are part of one node of {cluster.node_size}: nothing to place"
        )
    return job


def _fits(where: str, parallelism: str, c: Collective, job: Job) -> None:
    """Refuse traffic between ranks that the job does not have, or of another rank order than its own."""
    s, gpus = job.strategy, job.cluster.num_gpus
    if (c.group_size - 1) * c.stride >= gpus:
        raise InputError(f"{where}: group_size = {c.group_size}, stride = {c.stride}: expected ranks below {gpus}")
    apart = s.tp * s.cp * (s.dp if s.rank_order == RANK_ORDERS[0] else 1)
    if parallelism == "pp" and c.collective == "p2p" and c.stride != apart:
        raise InputError(f"{where}: stride = {c.stride}: expected {apart}, as strategy.rank_order = {s.rank_order} has "
                         "it")  # fmt: skip

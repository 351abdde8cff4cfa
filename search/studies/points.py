"""One point of a study: a whole search, and its answer as one flat row."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from shardwise.costmodel.estimate import Estimate
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from ..objective import usd_per_token
from .knobs import Inputs

Row = dict[str, Any]

OK, INFEASIBLE, INVALID = "ok", "infeasible", "invalid"

HELP = "`shardwise plan` for this job says what would help"
"""Of an error without an answer: points are searched without looking for ways out, which takes further searches."""

"""``status`` of a row: solved; nothing fits or no strategy is legal (``message`` says why); inputs that do not go
together (a batch that is no whole number of sequences, GPUs that are no whole nodes)."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point with its inputs read. ``key`` is the same for the same question in any process."""

    index: int
    settings: dict[str, Any]
    inputs: Inputs | None
    """None where the settings do not go together; ``fault`` then says why."""
    key: str
    fault: str = ""


def make_point(index: int, settings: dict[str, Any], inputs: Inputs) -> Point:
    """A point from the inputs that its settings make."""
    p = inputs.problem
    text = repr((p.model, p.cluster, p.workload, p.runtime, inputs.launcher, inputs.wishes, inputs.refine))
    return Point(index, settings, inputs, hashlib.sha256(text.encode()).hexdigest()[:24])


def broken_point(index: int, settings: dict[str, Any], fault: str) -> Point:
    """A point whose settings do not go together."""
    text = repr((sorted(settings.items(), key=str), fault))
    return Point(index, settings, None, hashlib.sha256(text.encode()).hexdigest()[:24], fault)


def solve(point: Point) -> Row:
    """Search one point. Never raises for what the inputs bring about: that is the row's status and message.

    The row holds the answer only, ``search_s`` aside: the inputs are the point's.
    """
    if point.inputs is None:
        return {"key": point.key, "status": INVALID, "message": point.fault, "search_s": 0.0}
    from ..infeasible import NothingFitsError
    from ..planner import plan

    given, start = point.inputs, time.monotonic()
    problem = given.problem
    try:
        answer = plan(
            problem.model, problem.cluster, problem.workload, runtime=problem.runtime,
            launcher=given.launcher, memory_margin=problem.memory_margin,
            pins=given.wishes["pin"], bans=given.wishes["ban"], least=given.wishes["min"], most=given.wishes["max"],
            top=1, refine_trials=given.refine,
        )  # fmt: skip
    except NothingFitsError as error:
        # The reason alone: what would help takes searches of its own, and a study has its neighbours for that.
        row: Row = {"status": INFEASIBLE, "message": error.reason}
    except InputError as error:
        row = {"status": INVALID, "message": str(error)}
    else:
        row = {"status": OK, "message": "", **answer_row(answer.estimate, given.price_per_gpu_hour)}
        row |= {f"proof.{key}": value for key, value in _proof(answer.proof.as_dict()).items()}
    return {"key": point.key, **row, "search_s": time.monotonic() - start}


def answer_row(e: Estimate, price_per_gpu_hour: float | None = None) -> Row:
    """A prediction as flat columns: times in seconds, sizes in bytes, money in US dollars."""
    gpus = e.problem.cluster.num_gpus
    row: Row = {
        "step_time_s": e.step_time_s, "step_time_low_s": e.interval_s[0], "step_time_high_s": e.interval_s[1],
        "tokens_per_s": e.tokens_per_s, "tokens_per_s_per_gpu": e.tokens_per_s_per_gpu, "mfu": e.mfu,
        "peak_memory_bytes": e.peak_memory_bytes, "capacity_bytes": e.capacity_bytes,
        "headroom_bytes": e.capacity_bytes - e.peak_memory_bytes,
    }  # fmt: skip
    if price_per_gpu_hour is not None:
        work = e.problem.workload
        row["usd_per_million_tokens"] = 1e6 * usd_per_token(gpus, e.step_time_s, work, price_per_gpu_hour)
    row |= {f"strategy.{k}": _flat(v) for k, v in e.strategy.as_dict().items()}
    row |= {f"time.{k}_s": v for k, v in e.time_parts_s.items()}
    row |= {f"memory.{k}_bytes": v for k, v in e.memory_parts_bytes.items()}
    for t in e.traffic:
        name = f"traffic.{t.parallelism}_bytes"
        row[name] = row.get(name, 0.0) + t.bytes_per_step
    return row


def _proof(proof: dict[str, Any]) -> Row:
    removed = proof.pop("removed_by_rule")
    proof.pop("time_s")
    return {**proof, "removed": sum(removed.values())}


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def strategy_of(row: Row) -> Strategy:
    """The whole strategy of a row with an answer."""
    values: dict[str, Any] = {name: row[f"strategy.{name}"] for name in Strategy().as_dict()}
    for name in ("layers_per_stage", "recompute_per_stage"):
        text = values[name]
        values[name] = None if text in (None, "") else tuple(int(x) for x in str(text).split())
    return Strategy(**values)

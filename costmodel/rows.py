"""One measured run of a JSON-lines file as the inputs of a prediction, or the reason why it cannot be one.

A setting that the row does not state takes the documented default of its framework and is recorded as an assumption;
where there is no such default the row is skipped. Nothing is guessed silently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.hardware_profiles.cluster import Cluster
from shardwise.hardware_profiles.errors import InputError

from ._validation_cluster import row_cluster
from ._validation_model import RowSkippedError, row_model
from ._validation_software import row_runtime
from ._validation_types import wrong_kind
from .model import ModelSpec
from .problem import Problem
from .runtime import Runtime
from .strategy import Strategy
from .workload import DTYPES, Workload

SCHEDULE_WORDS = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "interleaved-1f1b": "interleaved",
    "1f1b-interleaved": "interleaved",
    "zb": "zb-h1",
    "zb-1p": "zb-h1",
    "zb-2p": "zb-h1",
    "zb-h1": "zb-h1",
    "zero-bubble": "zb-h1",
    "zbv": "zb-v",
    "zb-v": "zb-v",
    "v-half": "zb-v",
    "v-min": "zb-v",
    "dualpipe": "dualpipe",
}
"""Schedules as rows word them."""

NEAREST_SCHEDULES = frozenset({"zb", "zb-2p", "zero-bubble", "v-half", "v-min"})
"""Words whose schedule is only the nearest one the cost model has."""

CP_WORDS = {
    "ring": "p2p",
    "p2p": "p2p",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "ulysses": "a2a",
    "a2a": "a2a",
}

_SECTIONS = ("model", "hardware", "parallel")


@dataclass(frozen=True, slots=True)
class RowInputs:
    """What one row asks to be predicted. Rows that differ only in strategy share the same ``problem`` object."""

    row_id: str
    problem: Problem
    strategy: Strategy
    assumptions: tuple[str, ...]


class RowReader:
    """Reads rows of one file. ``folder`` is the folder above the rows' own: ``model.hf_config`` is relative to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[str, tuple[ModelSpec, tuple[str, ...]]] = {}
        self._problems: dict[tuple[Any, ...], Problem] = {}

    def read(self, row: Mapping[str, Any], struck: Collection[str] = ()) -> RowInputs:
        """The inputs of a row. Raises RowSkippedError with the reason where the row cannot be expressed.

        Runtime profiles in ``struck`` are not considered.
        """
        missing = lacking_section(row)
        if missing:
            raise RowSkippedError(missing)
        notes: list[str] = []
        model = self._model(row, notes)
        cluster = row_cluster(row, notes)
        runtime = row_runtime(row, cluster.accelerator, notes, struck)
        workload = row_workload(row, notes, runtime.launcher)
        strategy = row_strategy(row, model, cluster, runtime, notes)
        _check_batch(strategy, cluster, workload)
        return RowInputs(str(row["id"]), self._problem(model, cluster, workload, runtime), strategy, tuple(notes))

    def _model(self, row: Mapping[str, Any], notes: list[str]) -> ModelSpec:
        key = repr(row["model"])
        if key not in self._models:
            own: list[str] = []
            self._models[key] = (row_model(row, self._folder, own), tuple(own))
        model, own_notes = self._models[key]
        notes += own_notes
        return model

    def _problem(self, model: ModelSpec, cluster: Cluster, workload: Workload, runtime: Runtime) -> Problem:
        key = (id(model), id(cluster), workload, id(runtime))
        if key not in self._problems:
            # A run that was made either fitted or did not: no margin.
            self._problems[key] = Problem(model, cluster, workload, runtime, memory_margin=0.0)
        return self._problems[key]


def lacking_section(row: Mapping[str, Any]) -> str | None:
    """What a mapping lacks to be a measured run at all, the first value of a wrong kind included, or None."""
    if not isinstance(row.get("id"), str):
        return "id: missing, expected a unique name"
    lacking = (f"{s}: missing, expected a mapping" for s in _SECTIONS if not isinstance(row.get(s), Mapping))
    return next(lacking, None) or wrong_kind(row)


BF16_MOMENTS = r"^(DeepSeek-V3|Moonlight)"
"""Models whose recipes in Megatron-Bridge take the precision-aware optimizer with BF16 moments."""


def row_workload(row: Mapping[str, Any], notes: list[str], launcher: str = "") -> Workload:
    """Batch, sequence and precision of a row. Raises RowSkippedError."""
    parallel = row["parallel"]
    batch, sequence = parallel.get("global_batch_size_seqs"), row["model"].get("seq_len")
    if batch is None:
        raise RowSkippedError("parallel.global_batch_size_seqs is not stated")
    if sequence is None:
        raise RowSkippedError("model.seq_len is not stated")
    dtype = parallel.get("dtype")
    if dtype is None:
        raise RowSkippedError("parallel.dtype is not stated")
    if dtype not in DTYPES:
        raise RowSkippedError(f"parallel.dtype = {dtype!r}: expected one of {', '.join(DTYPES)}")
    text = str(parallel.get("notes") or "")
    if re.search(r"rowwise", text):
        notes.append("fp8 with row-wise scaling is predicted as slower tensor-wise GEMMs")
    imbalance = parallel.get("expert_imbalance")
    if row["model"].get("moe") and imbalance is None:
        notes.append("tokens are taken to be spread evenly over the experts")
    try:
        return Workload(
            batch, sequence, dtype=dtype, optimizer=_optimizer(row, launcher, notes),
            train_mtp=_trains_mtp(row, text), expert_imbalance=1.0 if imbalance is None else float(imbalance),
        )  # fmt: skip
    except InputError as error:
        raise RowSkippedError(str(error)) from None


def _optimizer(row: Mapping[str, Any], launcher: str, notes: list[str]) -> str:
    """What the row states, else says in its notes, else what recipes of its framework do."""
    stated, text = row["parallel"].get("optimizer"), str(row["parallel"].get("notes") or "")
    if stated is not None:
        return str(stated)
    if re.search(r"8-bit Adam", text):
        return "adam_8bit"
    if re.search(r"bf16 moments", text):
        return "adam_bf16_moments"
    if launcher == "megatron-bridge" and re.search(BF16_MOMENTS, str(row["model"].get("name"))):
        notes.append("Adam's moments are not stated: BF16, as in NVIDIA's recipes for this model")
        return "adam_bf16_moments"
    return "adam"


def _trains_mtp(row: Mapping[str, Any], text: str) -> bool:
    """Multi-token-prediction layers are trained unless the row says that it went without."""
    stated = row["parallel"].get("train_mtp")
    if stated is not None:
        return bool(stated)
    return not re.search(r"w[-/]?o[- ]mtp|without MTP", f"{row['id']} {text}", re.IGNORECASE)


def row_strategy(
    row: Mapping[str, Any], model: ModelSpec, cluster: Cluster, runtime: Runtime, notes: list[str]
) -> Strategy:
    """The layout of a row, defaults filled in. Raises RowSkippedError."""
    parallel, text = row["parallel"], str(row["parallel"].get("notes") or "")
    if parallel.get("strategy"):
        return _whole_strategy(parallel["strategy"])
    sharded = bool(parallel.get("fsdp")) or parallel.get("zero_stage") == 3
    tp = _degree(parallel, "tp", notes, default=1 if sharded else None)
    pp = _degree(parallel, "pp", notes, default=1)
    cp = _degree(parallel, "cp", notes, default=1, quiet=True)
    dp = _data_parallel(parallel, cluster.num_gpus, tp * pp * cp, notes)
    ep = _degree(parallel, "ep", notes, default=1, quiet=not model.is_moe)
    vpp = _virtual_stages(parallel, model, runtime, pp, notes)
    mbs, count = _microbatches(parallel, runtime, dp, pp, notes)
    return Strategy(
        layers_per_stage=_layout(model, runtime, pp, vpp, notes) if _trains_mtp(row, text) else None,
        tp=tp,
        sp=_sequence_parallel(parallel, runtime, tp, notes),
        cp=cp,
        cp_comm=_cp_comm(parallel, cp, notes),
        ulysses=cp if _cp_word(parallel) == "a2a" else 1,
        pp=pp,
        vpp=vpp,
        schedule=_schedule(parallel, runtime, pp, vpp, notes),
        dp=dp,
        ep=ep,
        etp=_expert_tp(parallel, runtime, tp, ep, pp, cluster.num_gpus, notes) if model.is_moe else 1,
        zero=_zero(parallel, runtime, notes),
        zero_group=_zero_group(text, cluster.node_size, dp * cp),
        micro_batch_size=mbs,
        num_microbatches=count,
        recompute=_recompute(parallel, runtime, notes),
        offload_optimizer=1.0 if re.search(r"CPU offload|Opt Offl", text) else 0.0,
        tp_overlap=_tp_overlap(text, runtime),
        dp_overlap=runtime.default_dp_overlap,
        ep_overlap=runtime.default_ep_overlap or bool(re.search(r"EP overlap(?! off)|A2A overlap", text)),
    )


def _whole_strategy(settings: Mapping[str, Any]) -> Strategy:
    """Every setting under the names of ``Strategy.as_dict``, as ``shardwise`` itself writes rows."""
    try:
        return Strategy.from_dict(settings)
    except InputError as error:
        raise RowSkippedError(f"parallel.{error}") from None


def _degree(parallel: Mapping[str, Any], key: str, notes: list[str], default: int | None, quiet: bool = False) -> int:
    value = parallel.get(key)
    if value is None:
        if default is None:
            raise RowSkippedError(f"parallel.{key} is not stated")
        if not quiet:
            notes.append(f"parallel.{key} is not stated: {default}")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 30:
        raise RowSkippedError(f"parallel.{key} = {value!r}: expected a whole number of 1 or more")
    return value


def _data_parallel(parallel: Mapping[str, Any], gpus: int, model_ranks: int, notes: list[str]) -> int:
    if gpus % model_ranks:
        raise RowSkippedError(f"parallel: tp·cp·pp = {model_ranks} does not divide hardware.num_gpus = {gpus}")
    dp = gpus // model_ranks
    stated = parallel.get("dp")
    if stated is None:
        notes.append(f"parallel.dp is not stated: {dp}, the GPUs over tp·cp·pp")
    elif stated != dp:
        raise RowSkippedError(f"parallel.dp = {stated}: tp·cp·pp·dp is not hardware.num_gpus = {gpus}")
    return dp


def _microbatches(parallel: Mapping[str, Any], runtime: Runtime, dp: int, pp: int, notes: list[str]) -> tuple[int, int]:
    batch, mbs = parallel["global_batch_size_seqs"], parallel.get("micro_batch_size")
    if mbs is None:
        if pp > 1 and runtime.fsdp:  # releases of torchtitan differ in how they cut a batch into micro-batches
            raise RowSkippedError("parallel.micro_batch_size is not stated")
        if batch % dp:
            raise RowSkippedError(
                f"parallel.micro_batch_size is not stated, and dp = {dp} does not divide the batch {batch}"
            )
        whole = pp == 1 and runtime.default_zero == 3
        mbs, why = (batch // dp, "no gradient accumulation") if whole else (1, "as in the framework's examples")
        notes.append(f"parallel.micro_batch_size is not stated: {mbs}, {why} ({runtime.name})")
        return mbs, batch // (dp * mbs)
    mbs = _degree(parallel, "micro_batch_size", notes, None)
    if batch % (dp * mbs):
        raise RowSkippedError(f"parallel: dp·mbs = {dp}·{mbs} does not divide the batch {batch}")
    return mbs, batch // (dp * mbs)


def _virtual_stages(parallel: Mapping[str, Any], model: ModelSpec, runtime: Runtime, pp: int, notes: list[str]) -> int:
    stated = parallel.get("vpp")
    if stated is not None:
        return _degree(parallel, "vpp", notes, None)
    if pp == 1:
        return 1
    word = str(parallel.get("schedule") or "")
    if word in ("zbv", "zb-v", "v-half", "v-min"):
        return 2
    nvidia = runtime.launcher in ("nemo", "megatron-bridge")
    interleaved = SCHEDULE_WORDS.get(word) == "interleaved" or (nvidia and not word)
    vpp = model.num_layers // pp if interleaved and model.num_layers % pp == 0 else 1
    why = "one layer per chunk, as NVIDIA's recipes interleave" if vpp > 1 else "not interleaved"
    notes.append(f"parallel.vpp is not stated: {vpp} ({why})")
    return vpp


def _schedule(parallel: Mapping[str, Any], runtime: Runtime, pp: int, vpp: int, notes: list[str]) -> str:
    word = parallel.get("schedule")
    if word is None:
        plain = runtime.default_schedule
        return "interleaved" if vpp > 1 and plain == "1f1b" else plain if pp > 1 else "1f1b"
    if word not in SCHEDULE_WORDS:
        raise RowSkippedError(f"parallel.schedule = {word!r}: expected one of {', '.join(sorted(SCHEDULE_WORDS))}")
    schedule = SCHEDULE_WORDS[word]
    if word in NEAREST_SCHEDULES:
        notes.append(f"parallel.schedule = {word!r} is predicted as {schedule}, the nearest")
    if schedule == "interleaved" and vpp == 1:
        return "1f1b"
    return "interleaved" if schedule == "1f1b" and vpp > 1 else schedule


def _layout(model: ModelSpec, runtime: Runtime, pp: int, vpp: int, notes: list[str]) -> tuple[int, ...] | None:
    """Layers per virtual stage of NVIDIA's recipes for models with MTP layers; None where layers are split evenly.

    Their layouts fill every stage and leave the last one what remains, beside the MTP layer and the loss: DeepSeek-V3
    over 4 x 4 stages is ``Et*4|(t*4|)*14tmL``.
    """
    chunks = pp * vpp
    if pp == 1 or not model.mtp or runtime.launcher != "megatron-bridge":
        return None
    each = -(-(model.num_layers + len(model.mtp) + 1) // chunks)
    last = model.num_layers - each * (chunks - 1)
    if not 0 <= last < each:
        return None
    notes.append(f"layers per stage are not stated: {each}, {last} beside MTP and loss, as in NVIDIA's layouts")
    return (each,) * (chunks - 1) + (last,)


def _sequence_parallel(parallel: Mapping[str, Any], runtime: Runtime, tp: int, notes: list[str]) -> bool:
    stated = parallel.get("sequence_parallel")
    if stated is not None:
        return bool(stated) and tp > 1
    if tp == 1:
        return False
    word = "on" if runtime.default_sp else "off"
    notes.append(f"parallel.sequence_parallel is not stated: {word}, the default of {runtime.name}")
    return runtime.default_sp


def _cp_word(parallel: Mapping[str, Any]) -> str:
    word = parallel.get("cp_kind")
    if word is None:
        return "p2p"
    if word not in CP_WORDS:
        raise RowSkippedError(f"parallel.cp_kind = {word!r}: expected one of {', '.join(sorted(CP_WORDS))}")
    return CP_WORDS[word]


def _cp_comm(parallel: Mapping[str, Any], cp: int, notes: list[str]) -> str:
    if cp > 1 and parallel.get("cp_kind") is None:
        notes.append("parallel.cp_kind is not stated: p2p, Megatron's default")
    return _cp_word(parallel)


def _expert_tp(
    parallel: Mapping[str, Any], runtime: Runtime, tp: int, ep: int, pp: int, gpus: int, notes: list[str]
) -> int:
    """Megatron gives experts the TP of the dense layers unless told otherwise; NVIDIA's recent recipes tell it 1."""
    if parallel.get("etp") is not None or tp == 1:
        return _degree(parallel, "etp", notes, default=1, quiet=True)
    recipe = runtime.launcher in ("megatron-bridge", "torchtitan") or (gpus // pp) % (ep * tp)
    etp = 1 if recipe else tp
    notes.append(f"parallel.etp is not stated: {etp}")
    return etp


def _zero(parallel: Mapping[str, Any], runtime: Runtime, notes: list[str]) -> int:
    stage = parallel.get("zero_stage")
    if stage is None:
        stage = 3 if parallel.get("fsdp") else runtime.default_zero
        notes.append(f"parallel.zero_stage is not stated: {stage}, the default of {runtime.name}")
    if stage not in (0, 1, 2, 3):
        raise RowSkippedError(f"parallel.zero_stage = {stage!r}: expected 0, 1, 2 or 3")
    return int(stage)


def _zero_group(text: str, node: int, ranks: int) -> int:
    """HSDP: ranks that share one set of shards, 0 for all of them."""
    match = re.search(r"shard group size (\d+)|FSDP shard (\d+) x DP", text)
    group = int(match.group(1) or match.group(2)) if match else node if "HSDP: shard within" in text else 0
    return group if group and group < ranks and ranks % group == 0 else 0


def _recompute(parallel: Mapping[str, Any], runtime: Runtime, notes: list[str]) -> str:
    stated = parallel.get("recompute")
    if stated is None:
        notes.append(f"parallel.recompute is not stated: {runtime.default_recompute}, the default of {runtime.name}")
        return runtime.default_recompute
    if stated not in ("none", "selective", "full"):
        raise RowSkippedError(f"parallel.recompute = {stated!r}: expected none, selective or full")
    return str(stated)


def _tp_overlap(text: str, runtime: Runtime) -> bool:
    if re.search(r"async ?TP", text, re.IGNORECASE):
        return True
    return runtime.default_tp_overlap and "vanilla TP" not in text


def _check_batch(strategy: Strategy, cluster: Cluster, workload: Workload) -> None:
    """The products that must hold whatever the framework."""
    ranks = strategy.tp * strategy.cp * strategy.dp
    if ranks % (strategy.ep * strategy.etp):
        raise RowSkippedError(f"parallel: ep·etp = {strategy.ep * strategy.etp} does not divide tp·cp·dp = {ranks}")
    if strategy.world_size != cluster.num_gpus:
        raise RowSkippedError(f"parallel: tp·cp·pp·dp = {strategy.world_size} is not {cluster.num_gpus} GPUs")
    if strategy.dp * strategy.micro_batch_size * strategy.num_microbatches != workload.global_batch_size:
        raise RowSkippedError("parallel: dp·mbs·micro-batches is not the global batch")

"""Launch scripts of torchtitan 0.3 read back: the inverse of ``torchtitan_files``."""

from __future__ import annotations

import difflib
import re
from typing import Any

from shardwise.costmodel.megatron_shell import Flag, read_flags
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError

from .canonical import canonical
from .flag_reader import FlagReader, trimmed
from .parsed import Files, Given, Option, Parsed, needed
from .torchtitan_stages import split_of, stages_of
from .torchtitan_tables import SCHEDULES, SHIPPED, UNMODELLED, Shipped, known_options
from .world import world_size

_P = "parallelism."
_PIPE = "parallelism.pipeline-parallel-"
_POLICY = re.compile(r"activation-checkpoint:([a-z-]+)")
_ZERO = {"always": 3, "never": 2}
_KINDS = {"none": "none", "selective": "selective", "full": "full"}


def is_torchtitan(files: Files) -> bool:
    """Whether texts are a launch script of torchtitan."""
    return any("torchtitan" in t or "--parallelism." in t for f, t in files.items() if not f.endswith(".json"))


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a launch script. Raises InputError naming file, option and value."""
    scripts = {f: t for f, t in files.items() if not f.endswith((".json", "hostfile"))}
    scripts = {f: t for f, t in scripts.items() if f != "sbatch.sh" or len(scripts) == 1}
    found = [(f, _as_read(flag)) for f, t in scripts.items() for flag in _flags(f, t, given)]
    source = next(iter(scripts), "the launch file")
    if not found:
        raise InputError(f"{source}: no --option found: expected a launch script of torchtitan")
    flags = FlagReader(found)
    shipped = _shipped(flags)
    model, why = _model(shipped, given, flags)
    layers = model.num_layers if model else needed(None, "which model it trains", "--model", source)
    gpus = needed(world_size(files, flags, given), "how many GPUs the job has", "--gpus", source)
    policy, options = _policy(scripts, shipped)
    strategy, batch = _strategy(flags, layers, gpus, bool(model and model.is_moe), policy, given, source)
    sequence = given.sequence_length or flags.integer("training.seq-len", 2048) or 2048
    flags.has("compile.enable")
    graphs = not flags.switch("training.disable-cuda-graphs")
    lists = flags.sort(known_options(), frozenset(), UNMODELLED, {f.name: _near(f.name) for _, f in found})
    lists["read"] += options
    if strategy.pp > 1:
        flags.notes.append("a pipeline's micro-batches are those of one local batch")
    return Parsed(
        launcher="torchtitan",
        strategy=canonical(strategy, layers),
        workload=Workload(batch, sequence, "bf16", "adam", train_mtp=False),
        model=model,
        model_note=why,
        runtime="torchtitan",
        runtime_changes={"cuda_graphs": graphs} if strategy.pp == 1 and strategy.ep == 1 else {},
        assumptions=tuple(flags.notes),
        **lists,
    )


def _flags(file: str, text: str, given: Given) -> list[Flag]:
    found = read_flags(text, file, lambda name: known_options().get(name, "0") != "0", given.variables)[0]
    return [trimmed(flag, known_options()) for flag in found]


def _as_read(flag: Flag) -> Flag:
    """``--parallelism.no-enable-sequence-parallel`` as the switch that is followed by ``false``."""
    head, dot, tail = flag.name.rpartition(".")
    if dot and tail.startswith("no-") and known_options().get(f"{head}.{tail[3:]}") == "0":
        return Flag(f"{head}.{tail[3:]}", ("false",), flag.conditional, flag.line)
    return flag


# ---- the model


def _shipped(flags: FlagReader) -> Shipped | None:
    module, config = flags.word("module", ""), flags.word("config", "")
    return next((e for e in SHIPPED if (e.module, e.config) == (module, config)), None)


def _model(shipped: Shipped | None, given: Given, flags: FlagReader) -> tuple[ModelSpec | None, str]:
    if given.model is not None:
        return given.model, ""
    if shipped is None:
        return None, f"{flags.where('config')}: no configuration of torchtitan 0.3 that is known"
    return ModelSpec.from_preset(shipped.preset), ""


def _policy(scripts: Files, shipped: Shipped | None) -> tuple[str, tuple[Option, ...]]:
    """What is recomputed, by the subcommand or else by the shipped configuration."""
    for file, text in scripts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            match = _POLICY.search(line.partition(" #")[0]) if not line.lstrip().startswith("#") else None
            if match is None:
                continue
            if match.group(1) not in _KINDS:
                raise InputError(f"{file}:{number} {match.group(0)}: expected one of {', '.join(_KINDS)}")
            return _KINDS[match.group(1)], (Option(match.group(0), "", file, number),)
    full = shipped is not None and shipped.config in _FULL_BY_DEFAULT
    return "full" if full else "selective", ()


_FULL_BY_DEFAULT = frozenset({"llama3_70b", "qwen3_14b", "qwen3_30b_a3b", "qwen3_32b", "gpt_oss_20b", "gpt_oss_120b"})
"""Shipped configurations whose own policy is to recompute every layer; that of the others is selective."""


# ---- the layout


def _strategy(
    flags: FlagReader, layers: int, gpus: int, is_moe: bool, policy: str, given: Given, source: str
) -> tuple[Strategy, int]:
    tp, cp = flags.integer(_P + "tensor-parallel-degree", 1) or 1, flags.integer(_P + "context-parallel-degree", 1) or 1
    pp, ep = flags.integer(_PIPE + "degree", 1) or 1, flags.integer(_P + "expert-parallel-degree", 1) or 1
    replicate = flags.integer(_P + "data-parallel-replicate-degree", 1) or 1
    shard = flags.integer(_P + "data-parallel-shard-degree", -1, minimum=-1) or -1
    shard = gpus // (replicate * cp * tp * pp) if shard < 0 else shard
    if replicate * shard * cp * tp * pp != gpus:
        raise InputError(f"{flags.where(_P + 'data-parallel-shard-degree')}: dp_replicate·dp_shard·cp·tp·pp = "
                         f"{replicate}·{shard}·{cp}·{tp}·{pp} is not the {gpus} GPUs: expected a product of {gpus}, or "
                         "give --gpus")  # fmt: skip
    dp = replicate * shard
    local, batch = _batches(flags, dp, given)
    each = flags.integer(_PIPE + "microbatch-size", 1) or 1
    if pp > 1 and local % each:
        raise flags.fail(_PIPE + "microbatch-size", f"a divisor of the local batch {local}")
    micro = each if pp > 1 else local
    if pp > 1 and batch != local * dp:
        flags.notes.append(f"{batch // (local * dp)} pipelined local batches a step are priced as one long pipeline")
    schedule, vpp, split = _stages(flags, layers, pp)
    reshard = flags.word(_P + "fsdp-reshard-after-forward", "default", ("default", "always", "never"))
    async_tp = flags.switch("compile.enable-async-tensor-parallel")
    sp = flags.switch(_P + "enable-sequence-parallel") or not flags.has(_P + "enable-sequence-parallel")
    return Strategy(
        tp=tp, sp=sp and tp > 1, cp=cp, cp_comm="all_gather" if cp > 1 else "p2p", pp=pp, vpp=vpp, schedule=schedule,
        dp=dp, ep=ep, etp=1 if ep > 1 or not is_moe else tp, zero=_ZERO.get(reshard, 2 if pp > 1 else 3),
        zero_group=0 if replicate == 1 else shard * cp, micro_batch_size=micro, num_microbatches=batch // (micro * dp),
        recompute=policy, tp_overlap=async_tp and tp > 1, layers_per_stage=split,
    ), batch  # fmt: skip


def _batches(flags: FlagReader, dp: int, given: Given) -> tuple[int, int]:
    local = flags.integer("training.local-batch-size", 8) or 8
    batch = given.global_batch_size or flags.integer("training.global-batch-size", -1, minimum=-1) or -1
    batch = local * dp if batch < 0 else batch
    if batch % (local * dp):
        raise flags.fail("training.global-batch-size", f"a multiple of the local batch times dp = {local}·{dp}")
    return local, batch


def _stages(flags: FlagReader, layers: int, pp: int) -> tuple[str, int, tuple[int, ...] | None]:
    names: dict[str, str] = {word.lower(): ours for ours, word in SCHEDULES.items()}
    word = flags.word(_PIPE + "schedule", "1F1B")
    if pp == 1:
        return "1f1b", 1, None
    if word.lower() not in names:
        raise flags.fail(_PIPE + "schedule", f"one of {', '.join(SCHEDULES.values())}")
    schedule = names[word.lower()]
    first = flags.integer(_PIPE + "first-stage-less-layers", 1, minimum=0) or 0
    last = flags.integer(_PIPE + "last-stage-less-layers", 1, minimum=0) or 0
    each = flags.integer(_PIPE + "layers-per-stage")
    stages = pp * (1 if schedule in ("gpipe", "1f1b") else 2) if each is None else stages_of(layers, first, last, each)
    if stages % pp:
        raise flags.fail(_PIPE + "layers-per-stage", f"a number that gives a multiple of {pp} stages, not {stages}")
    split: Any = split_of(layers, stages, first, last)
    if split is None:
        raise flags.fail(_PIPE + "first-stage-less-layers", f"weights that leave {stages} stages with layers")
    return schedule, stages // pp, split


def _near(name: str) -> str:
    close = difflib.get_close_matches(name, known_options(), n=1, cutoff=0.75)
    return f"no option of torchtitan 0.3{f': did you mean --{close[0]}?' if close else ''}"

"""Launch scripts and argument lists of Megatron-LM read back: the inverse of ``megatron_plan``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from shardwise.costmodel.megatron_args import model_of_flags
from shardwise.costmodel.megatron_flags import INTEGERS, NUMBERS, SWITCHES, WORDS
from shardwise.costmodel.megatron_shell import Flag, read_flags
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.recompute import NORMS_AND_ACTIVATIONS
from shardwise.costmodel.runtime import RecomputeModule
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import CP_COMMS, RANK_ORDERS, Strategy
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import whole_number

from .canonical import canonical
from .flag_reader import FlagReader, trimmed
from .megatron_layout import read_split
from .megatron_tables import OPTIMIZERS, UNMODELLED
from .parsed import Files, Given, Parsed, needed, with_batch
from .world import world_size

_ZERO = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FP8 = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
_RECIPES = (*_FP8, "custom")
MODULES: tuple[str, ...] = get_args(RecomputeModule)
_GATED_NORM = "gdn_norm_out"
"""The one module of Megatron's whose memory is not counted apart."""
OPTIONS_FILE = Path(__file__).parent / "options" / "megatron-core-0.19.2.txt"


@cache
def known_options() -> Mapping[str, str]:
    """Every option of Megatron-Core 0.19.2 with the number of its values (``0``, ``1``, ``+`` …)."""
    lines = OPTIONS_FILE.read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def takes_value(name: str) -> bool:
    """Whether an option is followed by a value."""
    return known_options().get(name, "0") != "0" or name in INTEGERS or name in WORDS or name in NUMBERS


def is_megatron(files: Files) -> bool:
    """Whether texts are a launch script or arguments of Megatron-LM."""
    text = "\n".join(_scripts(files).values()).replace("_", "-")
    named = any(word in text for word in ("--tensor-model-parallel-size", "--num-layers", "pretrain-gpt.py"))
    return named and "--deepspeed" not in text


def parse_files(files: Files, given: Given) -> Parsed:
    """The job of a launch script. Raises InputError naming file, option and value."""
    found: list[tuple[str, Flag]] = []
    unexpanded: list[str] = []
    for file, text in _scripts(files).items():
        flags, open_ = read_flags(text, file, takes_value, given.variables)
        found += [(file, trimmed(flag, known_options())) for flag in flags]
        unexpanded += open_
    source = next(iter(files), "the launch file")
    if not found:
        raise InputError(f"{source}: no --option found: expected a launch script or arguments of Megatron-LM")
    reader, flags = FlagReader(found), [flag for _, flag in found]
    job = read_job(reader, flags, files, given, source)
    near = {f.name: _near(f.name) for f in flags if f.name not in known_options()}
    return job.with_options(reader.sort(known_options(), SHAPING, UNMODELLED, near))


SHAPING = SWITCHES | INTEGERS | WORDS | NUMBERS
"""Options that the model is made of."""


def read_job(flags: FlagReader, found: list[Flag], files: Files, given: Given, source: str) -> Parsed:
    """The job of flags that were read already; the lists of options are left to the caller."""
    model, why = read_model(found, given, source)
    layers = model.num_layers if model else needed(flags.integer("num-layers"), "how many layers", "--model", source)
    layout = read_layout(flags, layers, bool(model and model.is_moe))
    gpus = needed(world_size(files, flags, given), "how many GPUs the job has", "--gpus", source)
    batch = given.global_batch_size or flags.integer("global-batch-size")
    if batch is None:
        batch = layout.micro_batch_size * max(gpus // (layout.tp * layout.cp * layout.pp), 1)
        flags.notes.append(f"no --global-batch-size: one micro-batch a step, {batch} sequences")
    strategy = with_batch(layout, gpus, batch, source)
    strategy = _instances(flags, strategy)
    sequence = needed(given.sequence_length or flags.integer("seq-length"), "the sequence length", "--seq-len", source)
    workload = Workload(batch, sequence, read_dtype(flags), _optimizer(flags), train_mtp=flags.has("mtp-num-layers"))
    changes = read_runtime(flags, model)
    return Parsed(
        launcher="megatron",
        strategy=canonical(strategy, layers),
        workload=workload,
        model=model,
        model_note=why,
        runtime="megatron-core",
        runtime_changes=changes,
        assumptions=tuple(flags.notes),
    )


# ---- the layout


def read_layout(flags: FlagReader, num_layers: int, is_moe: bool) -> Strategy:
    """Every dimension that needs no number of GPUs: dp, micro-batches and ZeRO groups are left at 1."""
    tp = flags.integer("tensor-model-parallel-size", flags.integer("model-parallel-size", 1)) or 1
    pp, cp = flags.integer("pipeline-model-parallel-size", 1) or 1, flags.integer("context-parallel-size", 1) or 1
    vpp, split = read_split(flags, num_layers, pp)
    kind, ulysses = _context(flags, cp)
    sp = flags.switch("sequence-parallel")
    if sp and tp == 1:
        flags.notes.append("--sequence-parallel has no effect without tensor parallelism")
    ep = flags.integer("expert-model-parallel-size", 1) or 1
    etp = flags.integer("expert-tensor-parallel-size", tp if is_moe else 1) or 1
    strategy = Strategy(
        tp=tp, sp=sp and tp > 1, cp=cp, cp_comm=kind, ulysses=ulysses, pp=pp, vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b", ep=ep, etp=etp, zero=_zero(flags),
        micro_batch_size=flags.integer("micro-batch-size", 1) or 1,
        offload_optimizer=flags.number("optimizer-offload-fraction", 1.0) if flags.switch("optimizer-cpu-offload")
        else 0.0,
        offload_activations=_offloads_activations(flags),
        tp_overlap=flags.switch("tp-comm-overlap") and tp > 1, dp_overlap=flags.switch("overlap-grad-reduce"),
        ep_overlap=flags.switch("overlap-moe-expert-parallel-comm"), layers_per_stage=split,
        rank_order=RANK_ORDERS[int(flags.switch("use-tp-pp-dp-mapping"))],
    )  # fmt: skip
    if strategy.zero and strategy.dp_overlap != flags.switch("overlap-param-gather"):
        flags.notes.append("one of --overlap-grad-reduce and --overlap-param-gather alone: DP traffic is priced as if "
                           f"{'both were' if strategy.dp_overlap else 'neither was'} given")  # fmt: skip
    return _recompute(flags, strategy, num_layers)


_OFFLOADED = frozenset({"core_attn", "attn_proj", "expert_fc1", "moe_act"})
"""Modules that ``offload_activations`` prices."""


def _offloads_activations(flags: FlagReader) -> bool:
    named = set(flags.words("offload-modules"))
    if not flags.switch("fine-grained-activation-offloading"):
        return False
    if "core_attn" not in named or named - _OFFLOADED:
        flags.notes.append("--offload-modules is priced as if it named the inputs of attention and of routed experts")
    return True


def _context(flags: FlagReader, cp: int) -> tuple[str, int]:
    kinds = set(flags.words("cp-comm-type")) or {"p2p"}
    if len(kinds) > 1 or not kinds <= set(CP_COMMS):
        raise flags.fail("cp-comm-type", f"one of {', '.join(CP_COMMS)} for all layers")
    kind = kinds.pop()
    sizes = flags.words("hierarchical-context-parallel-sizes")
    if cp == 1 or kind in ("p2p", "all_gather"):
        return kind, 1
    if kind == "a2a":
        return kind, cp
    numbers = [whole_number(n) or 0 for n in sizes]
    if len(numbers) != 2 or numbers[0] * numbers[1] != cp:
        raise flags.fail("hierarchical-context-parallel-sizes", f"two sizes whose product is {cp}")
    return kind, numbers[0]


def _zero(flags: FlagReader) -> int:
    if flags.switch("use-megatron-fsdp"):
        return _ZERO[flags.word("data-parallel-sharding-strategy", "optim_grads_params", tuple(_ZERO))]
    if flags.switch("use-torch-fsdp2"):
        return 2 if flags.switch("torch-fsdp2-no-reshard-after-forward") else 3
    layer_wise = flags.word("optimizer", "adam") == "dist_muon"
    return 1 if flags.switch("use-distributed-optimizer") or layer_wise else 0


def _instances(flags: FlagReader, s: Strategy) -> Strategy:
    """HSDP: the shards of the optimizer in several instances."""
    count = flags.integer("num-distributed-optimizer-instances", 1) or 1
    if count == 1:
        return s
    if s.dp * s.cp % count:
        raise flags.fail("num-distributed-optimizer-instances", f"a divisor of dp·cp = {s.dp}·{s.cp}")
    return replace(s, zero_group=s.dp * s.cp // count)


def _recompute(flags: FlagReader, s: Strategy, num_layers: int) -> Strategy:
    modules = flags.words("recompute-modules")
    kind = flags.word("recompute-granularity", "selective" if flags.switch("recompute-activations") else "none",
                      ("none", "selective", "full"))  # fmt: skip
    if kind == "selective":
        return replace(s, recompute="selective")
    if modules:
        flags.notes.append("--recompute-modules has no effect without --recompute-granularity selective")
    if kind == "none":
        return s
    method = flags.word("recompute-method", "", ("uniform", "block"))
    count = flags.integer("recompute-num-layers")
    if not method or count is None:
        raise flags.fail("recompute-granularity", "--recompute-method and --recompute-num-layers beside full")
    if method == "uniform":
        if count > 1:
            flags.notes.append(f"--recompute-num-layers {count}: chunks of layers keep less, and are priced as 1")
        return replace(s, recompute="full")
    split = s.layers_per_stage or even_split(num_layers, s.pp * s.vpp)
    each = tuple(sum(min(count, n) for n in split[rank :: s.pp]) for rank in range(s.pp))
    return replace(s, recompute="full", recompute_per_stage=each)


# ---- the job around it


def read_model(found: list[Flag], given: Given, source: str) -> tuple[ModelSpec | None, str]:
    """The model of the arguments, unpadded, or None and why not."""
    if given.model is not None:
        return given.model, ""
    # Padding is the runtime's; 0.19's NullTokenizer adds no token.
    own = ("make-vocab-size-divisible-by", "tensor-model-parallel-size", "tokenizer-type")
    flags = [f for f in found if f.name not in own and f.name not in _NOT_MODEL]
    try:
        return model_of_flags([*flags, Flag(own[0], ("1",))], (), source, "the launch file's model"), ""
    except InputError as error:
        return None, str(error)


_NOT_MODEL = frozenset({"nodes", "ntasks-per-node", "num-gpus", "num-nodes", "gpus-per-node", "node-rank"})


def read_dtype(flags: FlagReader) -> str:
    """The precision of the matrix multiplications."""
    if flags.word("fp4-format", ""):
        return "nvfp4"
    if flags.word("fp8-format", ""):
        recipe = flags.word("fp8-recipe", "delayed", _RECIPES)
        if recipe not in _FP8:
            raise flags.fail("fp8-recipe", f"one of {', '.join(_FP8)}")
        return _FP8[recipe]
    return "bf16" if flags.switch("bf16") else "fp16" if flags.switch("fp16") else "fp32"


def _optimizer(flags: FlagReader) -> str:
    name = flags.word("optimizer", "adam")
    if name not in OPTIMIZERS:
        raise flags.fail("optimizer", f"one of {', '.join(OPTIMIZERS)}")
    moments = flags.word("exp-avg-dtype", "fp32") if flags.switch("use-precision-aware-optimizer") else "fp32"
    small = {"bf16": "adam_bf16_moments", "fp16": "adam_bf16_moments", "fp8": "adam_8bit"}
    return small.get(moments, OPTIMIZERS[name]) if OPTIMIZERS[name] == "adam" else OPTIMIZERS[name]


def read_runtime(flags: FlagReader, model: ModelSpec | None) -> dict[str, Any]:
    """Fields of the runtime profile that the options state."""
    changes: dict[str, Any] = {}
    pads = not flags.switch("no-pad-vocab-size", "disable-pad-vocab-size")
    changes["vocab_multiple"] = flags.integer("make-vocab-size-divisible-by", 128) if pads else 1
    if flags.switch("grad-reduce-in-bf16"):
        changes["grad_comm_bytes"] = 2.0
    graphs = flags.word("cuda-graph-impl", "none") != "none"
    graphs = graphs or flags.switch("enable-cuda-graph", "external-cuda-graph")
    if graphs or flags.word("recompute-granularity", "none") != "full":  # which allows none, whatever the profile has
        changes["cuda_graphs"] = graphs
    changes["dropout"] = max(flags.number("attention-dropout", 0.1), flags.number("hidden-dropout", 0.1)) > 0
    changes |= _modules(flags, model)
    if model and model.is_moe:
        changes |= _dispatcher(flags)
    return changes


def _modules(flags: FlagReader, model: ModelSpec | None) -> dict[str, Any]:
    """What ``selective`` recomputes: one of the two known sets of modules, or the modules one by one."""
    named = flags.words("recompute-modules") or ["core_attn"]
    named += ["moe"] if flags.switch("moe-layer-recompute") else []
    if not set(named) <= {*MODULES, _GATED_NORM}:
        raise flags.fail("recompute-modules", f"some of {', '.join((*MODULES, _GATED_NORM))}")
    if _GATED_NORM in named:
        flags.notes.append(f"{flags.where('recompute-modules')}: {_GATED_NORM} is not priced")
    modules = [m for m in dict.fromkeys(named) if m != _GATED_NORM]
    if set(modules) == {"core_attn"}:
        return {"selective_recompute": "attention_core"}
    # What the model has not recomputes nothing, and is left out when these modules are written.
    usual = set(NORMS_AND_ACTIVATIONS[bool(model and model.is_moe)])
    latent = model is not None and any(k.mixer and k.mixer.kind == "mla" for k in model.kinds)
    absent = {*([] if latent else ["mla_up_proj"]), *([] if model and model.is_moe else ["moe_act"])}
    if set(modules) - absent == usual - absent:
        return {"selective_recompute": "norms_and_activations"}
    return {"recompute_modules": tuple(sorted(modules))}


def _dispatcher(flags: FlagReader) -> dict[str, Any]:
    kind = flags.word("moe-token-dispatcher-type", "allgather", ("allgather", "alltoall", "flex", "alltoall_seq"))
    if flags.switch("moe-enable-deepep"):
        kind = "flex"
    backend = flags.word("moe-flex-dispatcher-backend", "deepep", ("deepep", "hybridep", "ncclep"))
    if kind == "flex":
        kind = "deepep" if backend == "ncclep" else backend
    if not flags.switch("moe-permute-fusion"):
        flags.notes.append("no --moe-permute-fusion: the permutation of tokens is priced as if it were fused")
    return {"moe_dispatcher": kind.removesuffix("_seq")}


def _near(name: str) -> str:
    close = difflib.get_close_matches(name, known_options(), n=1, cutoff=0.75)
    return f"no option of Megatron-Core 0.19{f': did you mean --{close[0]}?' if close else ''}"


def _scripts(files: Files) -> dict[str, str]:
    """The files that hold arguments: not the host file, the batch script or JSON."""
    texts = {f: t for f, t in files.items() if not f.endswith((".json", "hostfile"))}
    return {f: t for f, t in texts.items() if f != "sbatch.sh" or len(texts) == 1}

"""Which Megatron-LM flags shape the model, which do not, and which are refused."""

from __future__ import annotations

import re
from typing import Final

from shardwise.hardware_profiles.errors import InputError

from .megatron_shell import Flag, evaluate_integer

SWITCHES: Final = frozenset(
    """
    group-query-attention swiglu quick-geglu squared-relu openai-gelu untie-embeddings-and-output-weights
    disable-bias-linear add-qkv-bias qk-layernorm multi-latent-attention no-position-embedding
    use-rotary-position-embeddings moe-shared-expert-gate
    """.split()  # noqa: SIM905
)
"""Flags without a value (``true`` or ``false`` behind them is understood)."""

INTEGERS: Final = frozenset(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels max-position-embeddings
    seq-length vocab-size padded-vocab-size make-vocab-size-divisible-by tensor-model-parallel-size
    q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim num-experts moe-ffn-hidden-size
    moe-router-topk moe-shared-expert-intermediate-size moe-router-num-groups moe-router-group-topk mtp-num-layers
    moe-latent-size
    """.split()  # noqa: SIM905
)

WORDS: Final = frozenset({"position-embedding-type", "normalization", "moe-layer-freq", "window-size"}) | {
    "window-attn-skip-freq",
    "tokenizer-type",
    "softmax-type",
}

NUMBERS: Final = frozenset({"norm-epsilon", "rotary-base"})
"""Flags that change no shape, whose number the model description carries."""

REFUSED: Final = {
    "use-checkpoint-args": "the sizes come from a checkpoint",
    "yaml-cfg": "the sizes come from another file",
    "heterogeneous-layers-config-path": "the layers come from another file",
    "heterogeneous-layers-config-encoded-json": "layers of different sizes are not read from Megatron arguments",
    "hybrid-override-pattern": "hybrid models are not read from Megatron arguments",
    "hybrid-layer-pattern": "hybrid models are not read from Megatron arguments",
    "is-hybrid-model": "hybrid models are not read from Megatron arguments",
    "experimental-attention-variant": "this attention is not read from Megatron arguments",
    "linear-attention-type": "linear attention is not read from Megatron arguments",
    "attention-output-gate": "output gates are not read from Megatron arguments",
    "encoder-num-layers": "only decoder models are planned",
    "decoder-num-layers": "only decoder models are planned",
    "encoder-seq-length": "only decoder models are planned",
    "decoder-seq-length": "only decoder models are planned",
    "spec": "a layer specification is code",
    "retro-add-retriever": "retrieval models are not planned",
    "enable-hyper-connections": "hyper-connections are not read from Megatron arguments",
    "mtp-hybrid-override-pattern": "hybrid models are not read from Megatron arguments",
}
"""Flags that change the layers in a way that is not read from arguments, with the reason."""

_IRRELEVANT: Final = re.compile(
    r"^(accumulate|account-for|adam|adlr|align|apply-(query|layernorm-1p|residual|rope)|async|attention-(backend|dropout"
    r"|softmax)|barrier|batch|bf16|bias-(gelu|swiglu|dropout)|bert|calculate|check|ckpt|clip-grad|clone|context-parallel"
    r"|config-logger|cp-comm|create|cross-entropy|cuda-graph|data|ddp|decoder-(first|last)-pipeline|decoupled|deepep"
    r"|deallocate|delay|deterministic|dist|distribute|distributed|dataloader|disable-(symmetric|straggler|jit|tp|mamba)"
    r"|empty|enable-(cuda|ft|msc|gloo|one|full|experimental)|end-weight|epochs|eod|error|eval|ep-|exit|expert-model"
    r"|expert-tensor|exp-|external|ffn-factor|fine-grained|finetune|first-last|fp16|fp32|fp4|fp8|flash|ft-|fim"
    r"|gdr|global-batch|grad|hidden-dropout|high-priority|hierarchical|hysteresis|head-lr|hybrid-context"
    r"|inference|init-method|init-model|initial-loss|inprocess|iter|keep|kitchen|lazy|load|local|log|loss|lr"
    r"|make-replica|main|manual-gc|mask|master|max-tokens|max-seqlen|megatron-fsdp|memory|merge|micro-batch|min-"
    r"|mid-level|mmap|mock|model-parallel|moe-(aux|z-loss|grouped|token|router-(load|pre|score|topk-scaling"
    r"|bias-update|enable-expert-bias|dtype|fusion|force|padding|freeze|balancing|logit|max)|expert-capacity|pad"
    r"|permute|layer-recompute|per-layer|use|extended|enable-deepep|deepep|shared-expert-overlap|flex|hybridep"
    r"|input-jitter|apply-probs|upcycling|log|minloss|act|fuse)|mscale|mtp-(loss|use)|multiprocessing|muon|nccl"
    r"|no-(async|bias-|pad-vocab|check|create|data|distribute|gradient|initialization|load|log|masked|mmap|persist|query|save"
    r"|scatter|ft|one|rope-fusion|align|ckpt|barrier|overlap|use|weight|defer|delay|contiguous|fp8|async)"
    r"|nnodes|node|non-persistent|norm-epsilon|nproc|nsys|nvtx|num-(ckpt|dataset|distributed|layers-per-virtual"
    r"|layers-at|retrievers|stages-per-virtual|virtual|workers|gpus|nodes|microbatches)|onnx|optimizer|original"
    r"|outer|output-bert|overlap|override|override-opt|p2p|patch|per-split|persist|pin-cpu|pipeline|position-embedding-drop"
    r"|pretrained|profile|query|rampup|rank|rdzv|recompute|record|recover|redirects|reproduce|rerun|reset"
    r"|result|rl-|rope|rotary|run|sample|save|scatter|seed|sequence-parallel|sft|sgd|sharp|short|skip|split"
    r"|standalone|start-weight|step-batch|straggler|strategy|suggested|symmetric|tensorboard|tee|test|te-|timing|titles"
    r"|tokenizer-(model|prompt|hf|sentencepiece|kwargs|metadata|special)|tiktoken|tp-comm|train|transformer-impl"
    r"|transformer-pipeline|use-(cpu|dist|distributed|flash|fused|mcore|megatron|nccl|one|persistent|precision|ring|rope"
    r"|sharp|te|torch|tp|mp|checkpoint-opt|transformer|legacy|pytorch|custom|hier)|untie-none|valid|vocab-file"
    r"|wandb|warmup|weight-decay|wgrad|world|dump|master-addr|max-restarts|monitor|role|module|start-method"
    r"|virtual-pipeline|microbatch-group|sync|timer|report|tool|trust|hf-|prompt|temperature|num-rollout|name|job|help"
    r"|verbose|debug|git|log-|delayed|window-lr|glu-linear-offset|activation-func-clamp|qk-clip|qk-l2-norm|softmax-scale"
    r"|rotary-scaling-factor|beta-(fast|slow)|dynamic|cache|object-storage|replication|chunk|offload|cpu|hsdp|fsdp)"
)
"""Beginnings of flags for training, data, parallelism and logging, none of which changes a weight's shape."""

_SUSPICIOUS: Final = re.compile(
    r"size|dim|layer|head|expert|rank|bias|tie|norm|gate|moe|mlp|attention|attn|ffn|hidden|width|group|latent|lora|embed"
    r"|vocab|mtp|share|router|conv|state|mamba|ssm|linear|sparse|index|pattern|channel|kernel|position|sink|compress"
    r"|window|hash|mla|block|glu|relu|gelu|softmax|num-"
)


def needs_value(name: str) -> bool:
    """Whether a flag that shapes the model is followed by a value."""
    return name in INTEGERS or name in WORDS or name in NUMBERS


def is_shaping(flag: Flag) -> bool:
    """Whether the flag is one that the reader understands and uses."""
    return flag.name in SWITCHES or flag.name in INTEGERS or flag.name in WORDS


def check_unused(flag: Flag, source: str) -> None:
    """Raise InputError for a flag that is refused, or unknown with a name that sounds as if it shapes the model."""
    shown = f"{source}: {flag.spelled} = {flag.value[:60]!r}"
    if flag.name in REFUSED and flag.value.lower() != "false":
        raise InputError(f"{shown}: expected it to be absent: {REFUSED[flag.name]}")
    if _IRRELEVANT.match(flag.name) or flag.value.lower() == "false":
        return
    if _SUSPICIOUS.search(flag.name):
        raise InputError(f"{shown}: expected a known flag: what it does to the model is not understood")


def known_number(flags: list[Flag], name: str, default: float, source: str) -> float | None:
    """The positive number of a flag, Megatron's default without the flag, None where the script leaves it open."""
    given = [flag for flag in flags if flag.name == name]
    texts = {re.sub(r"[\s'\"]", "", flag.value) for flag in given}
    if not given:
        return default
    if len(texts) > 1 or "$" in "".join(texts) or any(flag.conditional for flag in given):
        return None
    text = texts.pop()
    value = float(text) if re.fullmatch(r"[0-9.]{1,30}(e[+-]?[0-9]{1,3})?", text, re.I) and _is_number(text) else 0.0
    if not 0 < value < 10**12:
        raise InputError(f"{source}: --{name} = {text[:60]!r}: expected a positive finite number")
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class ModelFlags:
    """The flags that shape the model, as typed values with Megatron's defaults."""

    def __init__(self, flags: list[Flag], source: str) -> None:
        self.source = source
        self._flags: dict[str, Flag] = {}
        for flag in flags:
            before = self._flags.get(flag.name)
            if before is not None and self._text(before) != self._text(flag):
                self.fail(flag.name, f"one value; it is also given as {before.value!r}", flag)
            if flag.conditional:
                self.fail(flag.name, "an unconditional argument: it stands inside a branch or loop of the script", flag)
            self._flags[flag.name] = flag

    def fail(self, name: str, expected: str, flag: Flag | None = None) -> None:
        """Raise InputError naming the source, the flag, its value and what was expected."""
        flag = flag or self._flags.get(name)
        state = "missing" if flag is None else repr(flag.value[:60])
        raise InputError(f"{self.source}: {flag.spelled if flag else f'--{name}'} = {state}: expected {expected}")

    @staticmethod
    def _text(flag: Flag) -> str:
        return re.sub(r"[\s'\"]", "", flag.value)

    def has(self, name: str) -> bool:
        """Whether the flag is given."""
        return name in self._flags

    def switch(self, name: str) -> bool:
        """A switch: given, and not followed by ``false``."""
        flag = self._flags.get(name)
        if flag is None:
            return False
        value = flag.value.lower()
        if value not in ("", "true", "false"):
            self.fail(name, "a switch without a value")
        return value != "false"

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int | None:
        """An integer, the default when the flag is not given."""
        flag = self._flags.get(name)
        if flag is None:
            return default
        text = self._text(flag)
        value = int(text) if re.fullmatch(r"-?\d{1,13}", text) else evaluate_integer(text)
        if value is None or not minimum <= value <= 10**12:
            known = "; the script does not assign the variable in plain sight" if "$" in text else ""
            self.fail(name, f"an integer of at least {minimum} (at most 10^12){known}")
        return value

    def required(self, name: str, minimum: int = 1) -> int:
        """An integer that must be given."""
        value = self.integer(name, minimum=minimum)
        if value is None:
            self.fail(name, f"an integer of at least {minimum}")
        assert value is not None
        return value

    def word(self, name: str, default: str, allowed: tuple[str, ...] = ()) -> str:
        """A string, one of ``allowed`` where given; quotes around it are dropped."""
        flag = self._flags.get(name)
        if flag is None:
            return default
        value = flag.value.strip("'\" ")
        if "$" in value or (allowed and value not in allowed):
            self.fail(name, "one of " + ", ".join(allowed) if allowed else "a plain value")
        return value

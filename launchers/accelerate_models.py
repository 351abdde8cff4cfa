"""Which models transformers builds, and how Hugging Face Accelerate shards them.

Facts are of transformers 5.24: the decoder layer that FSDP2 wraps, and the classes whose ``base_model_tp_plan`` splits
every projection of the layer over the tensor parallel ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.hardware_profiles.errors import InputError

_DTYPES: Final = ("bf16", "fp16", "fp32")
_OPTIMIZERS: Final = ("adam", "sgd")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """One transformers class. ``layer`` is the class of its decoder layers; ``tp`` says whether its plan splits both
    halves of a layer; ``moe`` whether every such layer has routed experts (which that plan splits too)."""

    layer: str
    tp: bool = True
    moe: bool = False


CLASSES: Final[Mapping[str, Wrapped]] = {
    "LlamaForCausalLM": Wrapped("LlamaDecoderLayer"),
    "MistralForCausalLM": Wrapped("MistralDecoderLayer"),
    "Qwen2ForCausalLM": Wrapped("Qwen2DecoderLayer"),
    "Qwen3ForCausalLM": Wrapped("Qwen3DecoderLayer"),
    "Gemma2ForCausalLM": Wrapped("Gemma2DecoderLayer"),
    "NemotronForCausalLM": Wrapped("NemotronDecoderLayer"),
    "Starcoder2ForCausalLM": Wrapped("Starcoder2DecoderLayer"),
    "MixtralForCausalLM": Wrapped("MixtralDecoderLayer", moe=True),
    "Qwen3MoeForCausalLM": Wrapped("Qwen3MoeDecoderLayer", moe=True),
    # Their plans leave the attention whole, gather its heads on every rank, or do not exist.
    "DeepseekV2ForCausalLM": Wrapped("DeepseekV2DecoderLayer", tp=False, moe=True),
    "DeepseekV3ForCausalLM": Wrapped("DeepseekV3DecoderLayer", tp=False, moe=True),
    "GptOssForCausalLM": Wrapped("GptOssDecoderLayer", tp=False, moe=True),
    "Glm4MoeForCausalLM": Wrapped("Glm4MoeDecoderLayer", tp=False, moe=True),
    "Olmo2ForCausalLM": Wrapped("Olmo2DecoderLayer", tp=False),
    "Phi3ForCausalLM": Wrapped("Phi3DecoderLayer", tp=False),
    "GemmaForCausalLM": Wrapped("GemmaDecoderLayer", tp=False),
    "GPT2LMHeadModel": Wrapped("GPT2Block", tp=False),
    "GPTNeoXForCausalLM": Wrapped("GPTNeoXLayer", tp=False),
    "OPTForCausalLM": Wrapped("OPTDecoderLayer", tp=False),
    "BloomForCausalLM": Wrapped("BloomBlock", tp=False),
    "FalconForCausalLM": Wrapped("FalconDecoderLayer", tp=False),
}
"""The causal language models that are known, by their transformers class."""

BY_LAYER: Final[Mapping[str, Wrapped]] = {wrapped.layer: wrapped for wrapped in CLASSES.values()}
"""The same by the class of the decoder layer."""


def check_model(problem: Problem) -> None:
    """Raise InputError naming what a transformers model under Accelerate's FSDP2 cannot be or do."""
    model, work = problem.model, problem.workload
    if work.dtype not in _DTYPES:
        _refuse(model, "the workload", f"training in {work.dtype} (mixed_precision has {', '.join(_DTYPES)})")
    if work.optimizer not in _OPTIMIZERS:
        _refuse(model, "the workload", f"the optimizer {work.optimizer} (the training script has adam and sgd)")
    if work.train_mtp and model.mtp:
        _refuse(model, "the head", "multi-token prediction, which transformers drops")
    if model.architecture not in CLASSES:
        _refuse(model, f"family {model.architecture or 'unknown'}", "a model without a known transformers class")


def wrapped_class(model: ModelSpec) -> Wrapped:
    """The transformers class of a model that ``check_model`` accepts."""
    return CLASSES[model.architecture]


def _refuse(model: ModelSpec, what: str, why: str) -> NoReturn:
    raise InputError(f"{model.name}: {what}: Accelerate cannot express {why}")

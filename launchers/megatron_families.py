"""Facts of model families that change no shape: taken where the model description does not carry them.

They matter when a real checkpoint is continued and not for planning. Rotary base, epsilon and activation come from the
model's own file where it says them. What is taken from here is written into the launch file as an assumption that the
person who launches is asked to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwise.costmodel.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of one family: rotary positions, epsilon of the norms, activation and router."""

    rotary_base: int = 10000
    rotary_percent: float = 1.0
    norm_epsilon: str = "1e-5"
    squared_relu: bool = False
    clamped_gate: bool = False
    """The gate is a sigmoid-approximated GELU whose inputs are clamped at 7 and whose linear half is shifted by 1."""
    norm_plus_one: bool = False
    """The norm's weight is stored less one (``layernorm1p``)."""
    router: str = "softmax"
    """``softmax`` over the chosen experts, ``pre_softmax`` over all of them, or ``sigmoid`` with a balancing bias."""
    router_scale: float | None = None


FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": Family(rotary_base=500000),
    "MistralForCausalLM": Family(rotary_base=1000000),
    "MixtralForCausalLM": Family(rotary_base=1000000),
    "Qwen2ForCausalLM": Family(rotary_base=1000000, norm_epsilon="1e-6"),
    "Qwen3ForCausalLM": Family(rotary_base=1000000, norm_epsilon="1e-6"),
    "Qwen2MoeForCausalLM": Family(rotary_base=1000000, norm_epsilon="1e-6", router="pre_softmax"),
    "Qwen3MoeForCausalLM": Family(rotary_base=1000000, norm_epsilon="1e-6"),
    "Phi3ForCausalLM": Family(),
    "NemotronForCausalLM": Family(rotary_percent=0.5, squared_relu=True, norm_plus_one=True),
    "Starcoder2ForCausalLM": Family(rotary_base=100000),
    "DeepseekV2ForCausalLM": Family(norm_epsilon="1e-6", router="pre_softmax"),
    "DeepseekV3ForCausalLM": Family(norm_epsilon="1e-6", router="sigmoid", router_scale=2.5),
    "Glm4MoeForCausalLM": Family(rotary_base=1000000, rotary_percent=0.5, router="sigmoid"),
    "GPT2LMHeadModel": Family(),
    "GptOssForCausalLM": Family(rotary_base=150000, clamped_gate=True),
}

NOT_EXPRESSIBLE: Final[Mapping[str, str]] = {
    "BloomForCausalLM": "ALiBi positions",
    "MptForCausalLM": "ALiBi positions",
    "FalconForCausalLM": "attention and feed-forward in parallel, or ALiBi positions",
    "OPTForCausalLM": "a ReLU activation and two spare rows in the position table",
    "GemmaForCausalLM": "a gated GELU and scaled embeddings",
    "Gemma2ForCausalLM": "soft-capped logits and four norms a layer",
    "Gemma3ForCausalLM": "two rotary bases and four norms a layer",
    "GraniteForCausalLM": "scaled residuals, embeddings and logits",
    "SmolLM3ForCausalLM": "layers without rotary positions",
    "Llama4ForCausalLM": "chunked attention and layers without rotary positions",
    "Llama4ForConditionalGeneration": "chunked attention and layers without rotary positions",
}
"""Families whose shapes Megatron could build, but whose arithmetic its GPT script does not have."""


GELUS: Final = frozenset({"gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python"}) | {
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
}
SILUS: Final = frozenset({"silu", "swish", "swiglu"})
SQUARED_RELUS: Final = frozenset({"relu2", "relu_squared", "squared_relu"})
"""Words of a ``config.json`` for one activation."""


def base_of(model: ModelSpec, family: Family) -> float:
    """The model's rotary base, the family's where its file does not say it."""
    return family.rotary_base if model.rotary_base is None else model.rotary_base


def epsilon_of(model: ModelSpec, family: Family) -> str:
    """The epsilon of the model's norms, the family's where its file does not say it."""
    return family.norm_epsilon if model.norm_epsilon is None else repr(model.norm_epsilon)


def family_of(model: ModelSpec) -> tuple[Family, bool]:
    """The facts of the model's family, and whether the family is known."""
    found = FAMILIES.get(model.architecture)
    return (found, True) if found else (Family(), False)

"""Which reader understands which ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..model import ModelSpec
from . import deepseek, deepseek_v4, dense, gpt, hybrid, moe, moe_varied, moe_vendor, nemotron
from .config import Config

Reader = Callable[[Config, str], ModelSpec]


@dataclass(frozen=True, slots=True)
class Family:
    """A reader, and the beginnings (lower case letters and digits) of the class names that it stands for."""

    read: Reader
    classes: tuple[str, ...]


def _dense(family: dense.DenseFamily, *classes: str) -> Family:
    return Family(dense.dense_reader(family), classes)


FAMILIES: Final[Mapping[str, Family]] = {
    "llama": _dense(dense.LLAMA, "llama"),
    "mistral": _dense(dense.MISTRAL, "mistral"),
    "ministral3": _dense(dense.MINISTRAL3, "ministral3", "mistral3"),
    "qwen2": _dense(dense.QWEN2, "qwen2"),
    "qwen3": _dense(dense.QWEN3, "qwen3"),
    "qwen3_vl_text": _dense(dense.QWEN3_VL, "qwen3vl"),
    "phi3": Family(dense.read_phi3, ("phi3",)),
    "olmo2": _dense(dense.OLMO2, "olmo2"),
    "olmo3": _dense(dense.OLMO3, "olmo3"),
    "gemma": _dense(dense.GEMMA, "gemma"),
    "gemma2": _dense(dense.GEMMA2, "gemma2"),
    "gemma3_text": _dense(dense.GEMMA3, "gemma3"),
    "glm": _dense(dense.GLM, "glm"),
    "glm4": _dense(dense.GLM4, "glm4"),
    "chatglm": Family(dense.read_chatglm, ("chatglm",)),
    "smollm3": _dense(dense.SMOLLM3, "smollm3"),
    "granite": _dense(dense.GRANITE, "granite"),
    "olmo": _dense(dense.OLMO, "olmoforcausallm"),
    "ernie4_5": _dense(dense.ERNIE4_5, "ernie45forcausallm"),
    "exaone4": _dense(dense.EXAONE4, "exaone4"),
    "arcee": _dense(dense.ARCEE, "arcee"),
    "hunyuan_v1_dense": _dense(dense.HUNYUAN_DENSE, "hunyuandense"),
    "phi": Family(gpt.read_phi, ("phiforcausallm",)),
    "olmoe": Family(moe.read_olmoe, ("olmoe",)),
    "granitemoe": Family(moe.read_granite_moe, ("granitemoe",)),
    "glm4_moe_lite": Family(deepseek.read_glm4_moe_lite, ("glm4moelite",)),
    "seed_oss": Family(dense.read_seed_oss, ("seedoss",)),
    "mimo": Family(dense.read_mimo, ("mimo",)),
    "cohere": Family(dense.read_cohere, ("cohere",)),
    "cohere2": Family(dense.read_cohere2, ("cohere2",)),
    "gpt2": Family(gpt.read_gpt2, ("gpt2",)),
    "gptj": Family(gpt.read_gptj, ("gptj",)),
    "gpt_neox": Family(gpt.read_gpt_neox, ("gptneox",)),
    "gpt_bigcode": Family(gpt.read_gpt_bigcode, ("gptbigcode",)),
    "opt": Family(gpt.read_opt, ("opt",)),
    "bloom": Family(gpt.read_bloom, ("bloom",)),
    "falcon": Family(gpt.read_falcon, ("falcon", "rwforcausallm")),
    "mpt": Family(gpt.read_mpt, ("mpt",)),
    "starcoder2": Family(gpt.read_starcoder2, ("starcoder2",)),
    "nemotron": Family(gpt.read_nemotron, ("nemotron",)),
    "mixtral": Family(moe.read_mixtral, ("mixtral",)),
    "phimoe": Family(moe.read_phimoe, ("phimoe",)),
    "qwen2_moe": Family(moe.read_qwen2_moe, ("qwen2moe",)),
    "qwen3_moe": Family(moe.read_qwen3_moe, ("qwen3moe",)),
    "qwen3_vl_moe_text": Family(moe.read_qwen3_vl_moe, ("qwen3vlmoe",)),
    "gpt_oss": Family(moe.read_gpt_oss, ("gptoss",)),
    "glm4_moe": Family(moe.read_glm4_moe, ("glm4moe",)),
    "dots1": Family(moe.read_dots1, ("dots1",)),
    "minimax_m2": Family(moe.read_minimax_m2, ("minimaxm2",)),
    "deepseek_v2": Family(deepseek.read_deepseek_v2, ("deepseekv2",)),
    "deepseek_v3": Family(deepseek.read_deepseek_v3, ("deepseekv3",)),
    "kimi_k2": Family(deepseek.read_deepseek_v3, ("deepseekv3", "kimik2")),
    "deepseek_v32": Family(deepseek.read_deepseek_v32, ("deepseekv32", "deepseekv3")),
    "glm_moe_dsa": Family(deepseek.read_glm_moe_dsa, ("glmmoedsa",)),
    "deepseek_v4": Family(deepseek_v4.read_deepseek_v4, ("deepseekv4",)),
    "llama4_text": Family(moe_varied.read_llama4, ("llama4",)),
    "mimo_v2_flash": Family(moe_varied.read_mimo_v2, ("mimov2",)),
    "step3p5": Family(moe_varied.read_step3, ("step3",)),
    "step3p7_text": Family(moe_varied.read_step3, ("step3",)),
    "gemma4_text": Family(moe_varied.read_gemma4, ("gemma4",)),
    "minimax_m3_vl_text": Family(moe_varied.read_minimax_m3, ("minimaxm3",)),
    "ernie4_5_moe": Family(moe_vendor.read_ernie, ("ernie45moe",)),
    "hunyuan": Family(moe_vendor.read_hunyuan, ("hunyuan",)),
    "hunyuan_v1_moe": Family(moe_vendor.read_hunyuan, ("hunyuan",)),
    "bailing_moe": Family(moe_vendor.read_bailing, ("bailingmoe",)),
    "bailing_moe_v2": Family(moe_vendor.read_bailing, ("bailingmoe",)),
    "qwen3_next": Family(hybrid.read_qwen3_next, ("qwen3next",)),
    "qwen3_5_text": Family(hybrid.read_qwen3_5, ("qwen35",)),
    "qwen3_5_moe_text": Family(hybrid.read_qwen3_5_moe, ("qwen35moe",)),
    "kimi_linear": Family(hybrid.read_kimi_linear, ("kimilinear",)),
    "minimax": Family(hybrid.read_minimax, ("minimaxforcausallm", "minimaxm1", "minimaxtext01")),
    "minimax_m1": Family(hybrid.read_minimax, ("minimaxm1", "minimaxforcausallm")),
    "minimax_text_01": Family(hybrid.read_minimax, ("minimaxtext01",)),
    "nemotron_h": Family(nemotron.read_nemotron_h, ("nemotronh",)),
    "nemotron-nas": Family(nemotron.read_deci, ("decilm",)),
}

WRAPPERS: Final[Mapping[str, str | None]] = {
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "mistral3": "ministral3",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "step3p7": "step3p5",
}
"""Multimodal wrappers, and the ``model_type`` of their text part where the inner object does not say it."""

UNCLEAR_TIES: Final = frozenset({"mistral3", "qwen3_vl"})
"""Wrappers whose class default for the tie contradicts published weights: the file has to say it."""

"""Facts of a ``config.json`` that change no shape but the arithmetic: rotary base, epsilon of the norms, activation.

Launch files carry them, so a model that is continued from a checkpoint computes what it was trained to compute.
"""

from __future__ import annotations

from typing import Final

from .config import Config

EPSILONS: Final = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
    *("norm_eps", "norm_epsilon"),
)
BASES: Final = ("rope_theta", "rotary_emb_base", "rotary_base")
ACTIVATION_KEYS: Final = ("hidden_activation", "mlp_hidden_act", "hidden_act", "activation_function", "activation")
"""In the order in which the first that is present holds: Gemma and Starcoder2 keep an older key beside the real one."""

ACTIVATIONS: Final = frozenset(
    """
    gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh laplace leaky_relu
    linear mish prelu quick_gelu relu relu2 relu6 relu_squared sigmoid silu squared_relu swiglu swigluoai swish tanh
    xielu
    """.split()  # noqa: SIM905
)
"""The words of transformers' table of activations, and those that models with code of their own add to it."""

CLASS_BASES: Final = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "deepseek_v2", "deepseek_v3"), 10000.0),
    "mixtral": 1000000.0,
}
"""Rotary base of the transformers class where the file has none: files older than the key, such as Llama 2's."""


def rotary_base(cfg: Config, model_type: str) -> float | None:
    """The base of the rotary positions (of full attention where windows have their own), None when not known."""
    found = _named_bases(cfg, model_type)
    for key in ("rope_parameters", "rope_scaling"):
        value = cfg.data.get(key)
        if isinstance(value, dict):
            found += _section_bases(Config(value, cfg.source, f"{cfg.prefix}{key}."))
    for key, base in found:
        if base != found[0][1]:
            view, name = _owner(cfg, key)
            view.fail(name, f"the same value as {found[0][0]} = {found[0][1]:g}")
    if found:
        return found[0][1]
    if any(cfg.has(key) for key in (*BASES, "rope_parameters")) or model_type not in CLASS_BASES:
        return None
    cfg.assume(f"{cfg.prefix}rope_theta is not given: {CLASS_BASES[model_type]:.0f} (class default)")
    return CLASS_BASES[model_type]


def _named_bases(cfg: Config, model_type: str) -> list[tuple[str, float]]:
    found = []
    for key in BASES:
        if model_type.startswith("step3") and isinstance(cfg.data.get(key), list):
            continue  # one base a layer
        if cfg.has(key):
            found.append((key, cfg.number(key, 0.0)))
    return found


def _section_bases(section: Config) -> list[tuple[str, float]]:
    """The base of the object, or of the full attention in an object per kind of layer."""
    if section.has("rope_theta"):
        return [(section.prefix + "rope_theta", section.number("rope_theta", 0.0))]
    found = []
    for key, value in section.data.items():
        if isinstance(value, dict):
            inner = Config(value, section.source, f"{section.prefix}{key}.")
            if inner.has("rope_theta"):
                base = inner.number("rope_theta", 0.0)
                if key == "full_attention":
                    found.append((f"{inner.prefix}rope_theta", base))
    return found


def _owner(cfg: Config, key: str) -> tuple[Config, str]:
    """The object that holds a dotted key, for an error."""
    view = cfg
    *path, name = key.removeprefix(cfg.prefix).split(".")
    for part in path:
        view = Config(view.data[part], view.source, f"{view.prefix}{part}.")
    return view, name


def norm_epsilon(cfg: Config) -> float | None:
    """The epsilon of the layers' norms, None when the file has none or several that differ."""
    values = set()
    for key in EPSILONS:
        if cfg.has(key):
            value = cfg.number(key, 0.0)
            if value >= 1:
                cfg.fail(key, "a positive number below 1")
            values.add(value)
    return values.pop() if len(values) == 1 else None


def activation(cfg: Config, model_type: str) -> str | None:
    """The activation of the feed-forwards in transformers' word, None when the file has none."""
    found = None
    for key in ACTIVATION_KEYS:
        value = cfg.data.get(key)
        if value is None:
            continue
        if not isinstance(value, str) or value not in ACTIVATIONS:
            cfg.fail(key, "a known activation: " + ", ".join(sorted(ACTIVATIONS)))
        found = found or value
    # The first Gemma class does not use hidden_act, which its files fill in all the same.
    return None if model_type == "gemma" and not cfg.has("hidden_activation") else found

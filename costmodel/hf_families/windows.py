"""Which layers of a model attend to everything and which only to a window."""

from __future__ import annotations

from typing import Final

from .config import Config

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
CHUNKED: Final = "chunked_attention"


def layer_types(cfg: Config, layers: int, default: list[str] | None = None, other: tuple[str, ...] = ()) -> list[str]:
    """The ``layer_types`` list, or the class's own rule where the file has none."""
    given = cfg.names("layer_types", (FULL, SLIDING, *other), layers)
    return given if given is not None else (default or [FULL] * layers)


def alternating(layers: int, pattern: int) -> list[str]:
    """Sliding layers with every ``pattern``-th one full."""
    return [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]


def window_of(cfg: Config, default: int | None = None) -> int | None:
    """``sliding_window``: null switches it off, a missing key takes the class default."""
    if "sliding_window" not in cfg.data and default is not None:
        return cfg.integer("sliding_window", default=default)
    return cfg.optional_integer("sliding_window")


def windows_by_type(cfg: Config, types: list[str], window: int | None) -> list[int | None]:
    """One window a layer from its type."""
    if SLIDING in types and window is None:
        cfg.fail("sliding_window", "a window length, because some layers are sliding")
    return [window if kind == SLIDING else None for kind in types]


def qwen_windows(cfg: Config, layers: int, default: int = 4096) -> list[int | None]:
    """The rule of the Qwen classes: off unless ``use_sliding_window``, then from ``max_window_layers`` on."""
    used = cfg.flag("use_sliding_window", False)
    window = window_of(cfg, default if used else None) if used else None
    cfg.ignore("sliding_window", "max_window_layers")
    start = cfg.optional_integer("max_window_layers", minimum=0)
    first = 28 if start is None else start
    rule = [SLIDING if window is not None and i >= first else FULL for i in range(layers)]
    types = layer_types(cfg, layers, rule)
    if window is None:
        return [None] * layers
    return windows_by_type(cfg, types, window)


def same_window(cfg: Config, layers: int, default: int | None = None) -> list[int | None]:
    """Every layer has the window of the file (Mistral, Phi-3)."""
    return [window_of(cfg, default)] * layers

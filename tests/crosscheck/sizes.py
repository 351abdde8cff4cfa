"""What the real blocks and their descriptions are both built from; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """Sizes of multi-head latent attention; equal query and value widths let SDPA's CPU kernel run."""

    q_rank: int = 192
    kv_rank: int = 128
    nope_dim: int = 48
    rope_dim: int = 16
    v_dim: int = 64


@dataclass(frozen=True)
class Sizes:
    """What a block is built from; ``sequence`` and ``batch`` shape its input."""

    hidden: int = 512
    heads: int = 8
    kv_heads: int = 8
    width: int = 1408
    sequence: int = 128
    batch: int = 2
    tp: int = 1
    sp: bool = False
    experts: int = 0
    top_k: int = 0
    etp: int = 1
    shared_width: int = 0

    latent: Latent | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def gather(self) -> int:
        """Repetitions that make a norm region's tokens those of the whole TP group."""
        return self.tp if self.sp else 1

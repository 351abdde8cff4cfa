"""The workload: what one optimizer step is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.hardware_profiles.errors import InputError

DTYPES = ("bf16", "fp16", "fp32", "fp8", "fp8_block", "mxfp8", "nvfp4")
"""GEMM precision recipes: ``fp8`` is tensor-wise scaling, ``fp8_block`` 128x128 blocks, ``mxfp8`` 1x32 blocks."""

OPTIMIZERS = ("adam", "adam_bf16_moments", "adam_8bit", "muon", "sgd")

_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Workload:
    """Global batch (sequences), sequence length (tokens), precision and optimizer of one step."""

    global_batch_size: int
    sequence_length: int
    dtype: str = "bf16"
    """Precision of the matrix multiplications; parameters and activations stay 2 bytes unless it is fp32."""
    optimizer: str = "adam"
    expert_imbalance: float = 1.0
    """Tokens of the busiest expert rank over the mean; 1 is perfect balance (forced balancing in benchmarks)."""
    train_mtp: bool = True
    """Whether multi-token-prediction layers named in the model are trained."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "sequence_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _LIMIT:
                raise InputError(f"workload: {name} = {value!r}: expected a whole number from 1 to {_LIMIT - 1}")
        if self.dtype not in DTYPES:
            raise InputError(f"workload: dtype = {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"workload: optimizer = {self.optimizer!r}: expected one of {', '.join(OPTIMIZERS)}")
        if not 1.0 <= self.expert_imbalance < 1e3:
            raise InputError(f"workload: expert_imbalance = {self.expert_imbalance!r}: expected 1 or more, under 1000")

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
        return self.global_batch_size * self.sequence_length

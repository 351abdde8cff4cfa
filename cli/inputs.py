"""From what a person types to the four inputs. Every refusal is an InputError that names the option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.costmodel.model import ModelSpec
    from shardwise.costmodel.runtime import Runtime
    from shardwise.costmodel.workload import Workload
    from shardwise.hardware_profiles.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Request:
    """The four inputs and the framework to write for, as the options name them."""

    model: ModelSpec
    cluster: Cluster
    """For ``gpus`` accelerators where that is one number."""
    workload: Workload
    runtime: Runtime
    launcher: str
    named_launcher: str | None
    """What ``--launcher`` said."""
    named_runtime: Runtime | None
    """What ``--runtime`` said."""
    gpus: int | Sequence[int]
    dtypes: tuple[str, ...]
    memory_margin: float

    @classmethod
    def read(
        cls,
        *,
        model: str,
        cluster: str,
        gpus: int | Sequence[int],
        global_batch: int,
        seq_len: int,
        launcher: str | None,
        runtime: str | None,
        dtype: str | tuple[str, ...],
        optimizer: str,
        expert_imbalance: float,
        mtp: bool,
        memory_margin: float | None,
    ) -> Request:
        """Read every file that the options name, the cheap checks first."""
        from shardwise.costmodel.problem import MEMORY_MARGIN
        from shardwise.costmodel.runtime import load_runtime
        from shardwise.costmodel.workload import Workload
        from shardwise.hardware_profiles.load_cluster import load_cluster
        from shardwise.launchers.base import get_launcher
        from shardwise.launchers.choice import choose_launcher

        dtypes = (dtype,) if isinstance(dtype, str) else dtype
        workload = Workload(
            global_batch_size=global_batch,
            sequence_length=seq_len,
            dtype=dtypes[0],
            optimizer=optimizer,
            expert_imbalance=expert_imbalance,
            train_mtp=mtp,
        )
        named = load_runtime(runtime) if runtime is not None else None
        if launcher is not None:
            get_launcher(launcher)
        spec, machines = read_model(model), load_cluster(cluster, gpus if isinstance(gpus, int) else None)
        choice = choose_launcher(spec, machines, workload, launcher, named)
        return cls(
            spec,
            machines,
            workload,
            choice.runtime,
            choice.launcher.name,
            launcher,
            named,
            gpus,
            dtypes,
            MEMORY_MARGIN if memory_margin is None else memory_margin,
        )


def read_model(text: str) -> ModelSpec:
    """A model from a Hugging Face ``config.json``, a file of Megatron-LM arguments, or a preset's name.

    Raises InputError naming the file and key, or the nearest preset.
    """
    from shardwise.costmodel.model_source import read_model_source

    return read_model_source(text).build({})

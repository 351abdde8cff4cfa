"""Puts settings through DeepSpeed's own ``DeepSpeedConfig``. Runs in DeepSpeed's environment, not in shardwise's.

Usage: ``python deepspeed_runner.py CASES.json ANSWERS.json``. A case is ``{"config": {...}, "dp": N}``; ``dp`` stands
for the mesh that AutoTP or Ulysses makes. An answer has ``accepted``, ``error`` and what DeepSpeed derived; with
``"keys": true`` the keys of ``zero_optimization`` instead.
"""

import json
import pathlib
import sys

import deepspeed
import deepspeed.comm.torch
import torch.distributed
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.testing._internal.distributed.fake_pg import FakeStore


class Mesh:
    """What DeepSpeed asks about the meshes."""

    def __init__(self, dp):
        self.dp = dp

    def get_data_parallel_world_size(self):
        return self.dp


def answer(case):
    """What DeepSpeed makes of one case."""
    if case.get("keys"):
        fields = DeepSpeedZeroConfig.model_fields
        return {"keys": sorted({*fields, *(field.alias for field in fields.values() if field.alias)})}
    sp = case["config"].get("sequence_parallel_size", 1)
    tp = case["config"].get("tensor_parallel", {}).get("autotp_size", 1)
    # Ulysses' share of the ranks is DeepSpeed's own arithmetic; the mesh of AutoTP exists once a model does.
    deepspeed.comm.get_world_size = lambda group=None: case["dp"] * sp
    config = DeepSpeedConfig(case["config"], mpu=Mesh(case["dp"]) if tp > 1 else None)
    zero = config.zero_config
    return {
        "batch": config.train_batch_size,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
        "num_microbatches": config.gradient_accumulation_steps,
        "zero": config.zero_optimization_stage,
        "overlap": zero.overlap_comm,
        "offload": str(getattr(zero.offload_optimizer.device, "value", zero.offload_optimizer.device))
        if zero.offload_optimizer
        else "none",
        "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled,
        "tp": config.tensor_parallel_config.autotp_size,
        "dp": config.world_size,
    }


def main(questions, answers):
    """Answer every case of a file."""
    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    deepspeed.comm.torch.build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False)
    found = []
    for case in json.loads(pathlib.Path(questions).read_text()):
        try:
            found.append({"accepted": True, "error": "", **answer(case)})
        except Exception as error:
            found.append({"accepted": False, "error": f"{type(error).__name__}: {error}"[:400]})
    pathlib.Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

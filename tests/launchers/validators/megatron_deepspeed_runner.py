"""Puts settings, splits and meshes through DeepSpeed's own code. Runs in DeepSpeed's environment, not in shardwise's.

Usage: ``python megatron_deepspeed_runner.py CASES.json ANSWERS.json``. A case is ``{"config": {...}, "dp": N, "tp": N,
"pp": N, "names": [...], "method": "type:..."}``; an answer has ``accepted``, ``error`` and, when accepted, what
DeepSpeed derived: the number of micro-batches, the ZeRO stage, the first block of each stage and the rank groups. The
kernel for shared memory between processes is not built; checks are not replaced.
"""

import json
import pathlib
import sys
import traceback

import deepspeed
import deepspeed.comm.torch
import torch.distributed
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch.testing._internal.distributed.fake_pg import FakeStore


class Mesh:
    """What DeepSpeed asks about the meshes."""

    def __init__(self, dp):
        self.dp = dp

    def get_data_parallel_world_size(self):
        return self.dp


class Pipeline(PipelineModule):
    """A pipeline of blocks that have names only: all that dividing them by type needs."""

    def __init__(self, names, topology):
        torch.nn.Module.__init__(self)
        self._layer_specs = [type(name, (torch.nn.Module,), {})() for name in names]
        self._topo, self.num_stages = topology, topology.get_dim("pipe")
        self.global_rank, self.loss_fn = 0, None

    def starts(self, method):
        self._partition_layers(method)
        return [int(part) for part in self.parts]


def answer(case):
    """What DeepSpeed makes of one case."""
    config = DeepSpeedConfig(case["config"], mpu=Mesh(case["dp"]))
    topology = PipeModelDataParallelTopology(num_pp=case["pp"], num_mp=case["tp"], num_dp=case["dp"])
    return {
        "num_microbatches": config.gradient_accumulation_steps,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
        "zero": config.zero_optimization_stage,
        "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled,
        "clip": config.gradient_clipping,
        "starts": Pipeline(case["names"], topology).starts(case["method"]),
        "groups": {axis: topology.get_axis_comm_lists(axis) for axis in ("model", "data", "pipe")},
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
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append({"accepted": False, "error": f"{type(error).__name__}: {error} ({where.name})"})
    pathlib.Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Puts settings through DeepSpeed's own ``DeepSpeedConfig``. Runs in DeepSpeed's environment, not in shardwise's.

Usage: ``python deepspeed_runner.py CASES.json ANSWERS.json``. A case is ``{"config": {...}, "dp": N}``; ``dp`` stands
for the mesh that AutoTP or Ulysses makes. An answer has ``accepted``, ``error`` and what DeepSpeed derived; with
``"keys": true`` the keys of ``zero_optimization`` instead.

With ``"engine"`` (settings) a real pipeline engine is made of them. With ``"pipeline"`` (the text of
``pipeline_settings.py``) and ``"entries"`` (class and parameters of each layer) a real ``PipelineModule`` is built: the
answer has its stages and its groups of ranks too. With ``"weights"`` and ``"parts"`` DeepSpeed's own arithmetic of
partitions is asked instead.
"""

import json
import os
import pathlib
import sys

import deepspeed
import deepspeed.comm.torch
import torch.distributed
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.utils import partition_balanced, partition_uniform
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.testing._internal.distributed.fake_pg import FakeStore


class Mesh:
    """What DeepSpeed asks about the meshes."""

    def __init__(self, dp):
        self.dp = dp

    def get_data_parallel_world_size(self):
        return self.dp


class Entry(torch.nn.Module):
    """A layer that has parameters by number, not by bytes."""

    def __init__(self, numel):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1).expand(numel))


def pipeline(case):
    """The PipelineModule of a case, of a rank on its last stage, and what it says of itself."""
    world = case["world"]
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=world - 1, world_size=world, store=FakeStore())
    deepspeed.comm.get_world_size = lambda group=None: torch.distributed.get_world_size(group)
    os.environ |= {"WORLD_SIZE": str(world), "RANK": str(world - 1), "LOCAL_RANK": "0"}
    names = {}
    exec(compile(case["pipeline"], "pipeline_settings.py", "exec"), names)
    layers = [LayerSpec(type(name, (Entry,), {}), numel) for name, numel in case["entries"]]
    module = PipelineModule(layers, loss_fn=None, **names["pipeline_arguments"]())
    names["check"](module)
    topology = module.topology()
    found = {
        "parts": [int(part) for part in module.parts],
        "stage": module.stage_id,
        "groups": {"dp": topology.get_axis_comm_lists("data"), "pp": topology.get_axis_comm_lists("pipe")},
        "checkpointed": module._is_checkpointable([module.forward_funcs[0]]),
    }
    return module, found


def engine(case):
    """A real engine around four small layers in two stages, of the first of four ranks."""
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    deepspeed.comm.get_world_size = lambda group=None: torch.distributed.get_world_size(group)
    os.environ |= {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}
    module = PipelineModule([LayerSpec(torch.nn.Linear, 8, 8) for _ in range(4)], loss_fn=None, num_stages=2)
    config = json.loads(json.dumps(case["engine"]))
    # Its own Adam is a kernel that would be compiled.
    config["optimizer"]["params"]["torch_adam"] = True
    made, optimizer, *_ = deepspeed.initialize(model=module, config=config)
    return {
        "engine": type(made).__name__,
        "optimizer": type(optimizer).__name__,
        "overlap": getattr(optimizer, "overlap_comm", False),
        "divided": hasattr(optimizer, "partition_count"),
        "interval": made.module.activation_checkpoint_interval,
    }


def answer(case):
    """What DeepSpeed makes of one case."""
    if "engine" in case:
        return engine(case)
    if "weights" in case:
        cuts = partition_balanced(case["weights"], case["parts"])
        return {"balanced": [int(c) for c in cuts], "uniform": partition_uniform(len(case["weights"]), case["parts"])}
    module, more = pipeline(case) if "pipeline" in case else (None, {})
    if case.get("keys"):
        fields = DeepSpeedZeroConfig.model_fields
        return {"keys": sorted({*fields, *(field.alias for field in fields.values() if field.alias)})}
    sp = case["config"].get("sequence_parallel_size", 1)
    tp = case["config"].get("tensor_parallel", {}).get("autotp_size", 1)
    # Ulysses' share of the ranks is DeepSpeed's own arithmetic; the mesh of AutoTP exists once a model does.
    if module is None:
        deepspeed.comm.get_world_size = lambda group=None: case["dp"] * sp
    mesh = module.mpu() if module else Mesh(case["dp"]) if tp > 1 else None
    config = DeepSpeedConfig(case["config"], mpu=mesh)
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
        "interval": config.pipeline["activation_checkpoint_interval"],
        "optimizer": config.optimizer_name,
        **more,
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

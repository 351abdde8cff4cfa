"""Answers questions about torchtitan's own checks. Run by an interpreter with torchtitan 0.3 and a CPU build of torch.

Usage: ``python torchtitan_runner.py CASES.json ANSWERS.json``. A case is ``{"args": …, "world": N, "ranks": …}``; an
answer has ``accepted``, ``error`` and, when accepted, the degrees, batch sizes, layers of every stage and, for every
rank asked about, the groups that torchtitan's meshes put it in; with ``"parameters": true`` the weights it builds
instead; with ``"options": true`` the options of its configuration. Triton, which a machine without a GPU lacks, is
replaced; checks are not.
"""

import contextlib
import dataclasses
import importlib.machinery
import io
import json
import math
import os
import pathlib
import sys
import types
import warnings

import torch

warnings.filterwarnings("ignore")


class _Anything:
    """Stands for any object of a kernel language: attributes and calls give another, a decorator gives its function."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        plain = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if plain else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def _attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Anything()


def _stand_in_for_triton():
    torch.compile(lambda x: x)  # torch decides first that there is no Triton
    parts = ("", ".language", ".language.extra", ".language.extra.libdevice", ".language.extra.cuda")
    for part in (*parts, ".runtime", ".experimental", ".tools"):
        module = types.ModuleType("triton" + part)
        module.__path__ = []
        module.__version__ = "3.7.1"
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.__getattr__ = _attribute
        sys.modules[module.__name__] = module


try:
    import triton  # noqa: F401
except ImportError:
    _stand_in_for_triton()

from torch import distributed  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import parallel_dims as meshes  # noqa: E402
from torchtitan.distributed import pipeline_parallel as pipeline  # noqa: E402
from torchtitan.models.llama3 import config_registry  # noqa: E402

meshes.device_type = "cpu"
AXES = {"tp": "tp", "cp": "cp", "pp": "pp", "batch": "dp", "loss": "dp_cp", "ep": "ep"}


def _groups(config, world, ranks):
    """The groups of some ranks by our names, from meshes under a fake process group."""
    found = []
    for rank in ranks:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            dims = meshes.ParallelDims.from_config(config.parallelism, world)
            dims.build_mesh()
            mine = {ours: sorted(dims._single_axis_meshes[a].mesh.flatten().tolist()) for a, ours in AXES.items()}
            found.append(mine)
        finally:
            distributed.destroy_process_group()
    return found


def _stages(config, dims):
    """Layers of every virtual stage in model order."""
    model = config.model_spec.model
    if dims.pp == 1:
        return [len(model.layers)]
    metadata = pipeline._get_pipeline_metadata(dims, config.parallelism, model)
    parts = pipeline._generate_llm_fqn_per_model_part(*metadata)
    return [sum(name.startswith("layers.") for name in part) for part in parts]


def _batches(config, dims):
    """The trainer's own rules of batch and sequence (its constructor needs devices)."""
    training, p = config.training, config.parallelism
    degree = dims.dp_replicate * dims.dp_shard
    batch = training.global_batch_size if training.global_batch_size > 0 else training.local_batch_size * degree
    assert batch % (training.local_batch_size * degree) == 0, "global batch size must be multiple of local batch size"
    assert training.local_batch_size % p.pipeline_parallel_microbatch_size == 0, "Batch size must be divisible"
    unit = (dims.tp if p.enable_sequence_parallel else 1) * (2 * dims.cp if dims.cp > 1 else 1)
    assert training.seq_len % unit == 0, "Training sequence length must be divisible"
    accumulation = batch // (training.local_batch_size * degree)
    micro = training.local_batch_size // p.pipeline_parallel_microbatch_size if dims.pp > 1 else 1
    return {"batch": batch, "num_microbatches": accumulation * micro, "seq_len": training.seq_len}


def _answer(case):
    if case.get("options"):
        return {"options": _options(config_registry.llama3_8b(), "")}
    config = ConfigManager().parse_args(case["args"])
    if case.get("parameters"):
        with torch.device("meta"):
            return {"parameters": sum(p.numel() for p in config.model_spec.model.build().parameters())}
    world = case["world"]
    dims = meshes.ParallelDims.from_config(config.parallelism, world)
    assert math.prod((dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp, dims.pp)) == world
    config.model_spec.model.update_from_config(config=config)
    degrees = {name: getattr(dims, name) for name in ("tp", "cp", "pp", "ep", "dp_replicate", "dp_shard")}
    policy = type(config.activation_checkpoint).__qualname__.removesuffix(".Config")
    return {
        **degrees,
        **_batches(config, dims),
        "sp": config.parallelism.enable_sequence_parallel,
        "schedule": config.parallelism.pipeline_parallel_schedule,
        "reshard": config.parallelism.fsdp_reshard_after_forward,
        "async_tp": config.compile.enable_async_tensor_parallel,
        "policy": policy,
        "stages": _stages(config, dims),
        "groups": _groups(config, world, case.get("ranks", [])),
    }


def _options(config, prefix):
    """Every option by its dotted name with dashes, and whether it takes a value."""
    found = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            found |= _options(value, name + ".")
        else:
            found[name.replace("_", "-")] = "0" if isinstance(value, bool) else "1"
    return found


def run(case):
    """The answer to one case; refusals by exit, exception or assertion are all refusals."""
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            return {"accepted": True, "error": "", **_answer(case)}
    except SystemExit:
        return {"accepted": False, "error": "exit: " + noise.getvalue()[-400:]}
    except Exception as error:
        return {"accepted": False, "error": f"{type(error).__name__}: {error}"[:400]}


def main(cases_file, answers_file):
    cases = json.loads(pathlib.Path(cases_file).read_text(encoding="utf-8"))
    answers = [run(case) for case in cases]
    pathlib.Path(answers_file).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])

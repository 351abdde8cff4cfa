"""Puts launch files through Accelerate's own loader, checks and meshes. Runs in Accelerate's environment.

Usage: ``python accelerate_runner.py CASES.json ANSWERS.json``. A case is ``{"yaml": text, "world": N, "groups": bool,
"arguments": [...]}``; an answer has ``accepted``, ``error`` and, when accepted, the degrees, the environment and the
rank groups that Accelerate derives. ``{"classes": {name: layer}}`` asks transformers which of those classes have a
tensor parallel plan for every projection of a layer, and whether the layer class is one that it wraps.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import types

import torch
import torch.distributed
import transformers
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def environment(changes):
    """The process's environment with some variables changed."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def fake_world(size):
    """A process group of that size whose collectives do nothing."""
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def answer(case):
    """What Accelerate makes of one case."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "accelerate.yaml"
        path.write_text(case["yaml"])
        words = ["--config_file", str(path), *case.get("arguments", []), "train.py"]
        args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    env = prepare_multi_gpu_env(args)
    with environment(env):
        layout = ParallelismConfig()
        plugin = FullyShardedDataParallelPlugin()
    sizes = {n: getattr(layout, f"{n}_size") for n in ("dp_replicate", "dp_shard", "cp", "tp", "sp")}
    layout._validate_accelerator(
        types.SimpleNamespace(
            multi_device=True,
            num_processes=int(args.num_processes),
            is_fsdp2=plugin.fsdp_version == 2,
            is_main_process=True,
            distributed_type=DistributedType.FSDP,
        )
    )
    found = {
        **sizes,
        "world": int(args.num_processes),
        "hosts": int(args.num_machines),
        "per_host": int(args.nproc_per_node),
        "rotation": layout.cp_handler.cp_comm_strategy if layout.cp_handler else None,
        "precision": env["ACCELERATE_MIXED_PRECISION"],
        "fsdp_version": plugin.fsdp_version,
        "reshard": plugin.reshard_after_forward,
        "recompute": plugin.activation_checkpointing,
        "layer": plugin.transformer_cls_names_to_wrap,
        "offload": plugin.cpu_offload is not None and type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy",
    }
    if case.get("groups"):
        with fake_world(int(args.num_processes)):
            found["groups"] = groups_of(layout)
    return found


def groups_of(layout):
    """Ranks of every group, from the mesh that the model is sharded over."""
    mesh = layout.build_device_mesh("cpu")
    names, ranks = mesh.mesh_dim_names, mesh.mesh
    chosen = {"tp": ["tp"], "cp": ["cp"], "dp": ["dp_replicate", "dp_shard"], "shard": ["dp_shard", "cp"],
              "dp_cp": ["dp_replicate", "dp_shard", "cp"]}  # fmt: skip
    found = {}
    for group, axes in chosen.items():
        inner = [i for i, n in enumerate(names) if n in axes]
        outer = [i for i in range(len(names)) if i not in inner]
        size = 1
        for i in inner:
            size *= ranks.shape[i]
        found[group] = ranks.permute(*outer, *inner).reshape(-1, size).tolist()
    return found


def classes(known):
    """Which transformers classes split every projection of a layer, and whether they wrap the named layer."""
    found = {}
    for name, layer in known.items():
        model = getattr(transformers, name)
        plan = getattr(model.config_class, "base_model_tp_plan", None) or {}
        styles = {key.rsplit(".", 1)[-1]: style for key, style in plan.items() if key.startswith("layers.")}
        whole = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
        feed = any(styles.get(n, "").endswith("colwise") for n in ("up_proj", "gate_up_proj", "c_fc"))
        split = feed and all(styles.get(n) == style for n, style in whole.items())
        module = sys.modules[model.__module__]
        wraps = layer in (model._no_split_modules or ())
        found[name] = {"split": split, "layer": wraps, "there": hasattr(module, layer)}
    return found


def main(questions, answers):
    """Answer every case of a file."""
    found = []
    for case in json.loads(pathlib.Path(questions).read_text()):
        if "classes" in case:
            found.append(classes(case["classes"]))
            continue
        try:
            found.append({"accepted": True, "error": "", **answer(case)})
        except (Exception, SystemExit) as error:
            found.append({"accepted": False, "error": f"{type(error).__name__}: {error}"})
    pathlib.Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Puts recipes through Megatron-Bridge's own checks. Runs in its environment, not in shardwise's.

Usage: ``python bridge_runner.py CASES.json ANSWERS.json``. A case is ``{"recipe": text, "world": N, "env": {...}}``
with ``"overrides"`` as on the command line; an answer has ``accepted``, ``error`` and, when accepted, the degrees,
layers per chunk and rank groups that Megatron-Bridge derived, or with ``"fields": true`` the names of all fields.
"""

import dataclasses
import importlib.abc
import importlib.machinery
import logging
import os
import pathlib
import sys
import types
import typing

import megatron_runner as megatron  # first: Megatron-Core then sees no Transformer Engine
import transformers.modeling_utils  # noqa: F401  (before the stand-ins, whose versions it would look up)

_MISSING = frozenset(
    """
    transformer_engine transformer_engine_torch nvidia_resiliency_ext flashinfer wandb mlflow comet_ml tensorboard
    modelopt peft diffusers timm open_clip qwen_vl_utils mistral_common datasets accelerate fla fast_hadamard_transform
    nemo_run megatron.energon torch.utils.tensorboard
    """.split()  # noqa: SIM905
)
"""Kernels, loggers and other models' packages that Megatron-Bridge imports and no check needs."""


def _fused_adam(
    params, master_weight_dtype, exp_avg_dtype, exp_avg_sq_dtype, use_decoupled_grad, store_param_remainders
):
    """What Transformer Engine's optimizer takes: Megatron-Core looks whether it knows low-precision states."""


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        own = any(name == missing or name.startswith(missing + ".") for missing in _MISSING)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if own else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "2.9.0"
        module.__getattr__ = megatron.any_attribute
        module.FusedAdam = _fused_adam
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _StandIns())
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from megatron import bridge  # noqa: E402
from megatron.bridge.models.mla_provider import MLAModelProvider  # noqa: E402
from megatron.bridge.training import comm_overlap, config, initialize  # noqa: E402
from megatron.bridge.training.mixed_precision import MIXED_PRECISION_RECIPES, MixedPrecisionConfig  # noqa: E402
from megatron.bridge.training.setup import _validate_and_set_vocab_size  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides  # noqa: E402
from megatron.bridge.utils.vocab_utils import calculate_padded_vocab_size  # noqa: E402

# What a machine without a GPU and Transformer Engine lacks.
comm_overlap.HAVE_TE = True
torch.cuda.device_count = lambda: 8


def _fields():
    """Every field of a ConfigContainer with its section: of the classes that its annotations name."""
    found = set()
    for part in dataclasses.fields(config.ConfigContainer):
        classes = [MLAModelProvider] if part.name == "model" else _classes(part.type)
        classes += [config.MockGPTDatasetConfig] if part.name == "dataset" else []
        found |= {f"{part.name}.{f.name}" for c in classes for f in dataclasses.fields(c) if f.name[0] != "_"}
    return sorted(found)


def _classes(annotation):
    options = typing.get_args(annotation) or (annotation,)
    return [c for c in options if isinstance(c, type) and dataclasses.is_dataclass(c)]


def _precisions():
    """What each named recipe of mixed precision sets beside its defaults."""
    names = [f.name for f in dataclasses.fields(MixedPrecisionConfig)]
    return {
        recipe: {n: v for n in names if isinstance(v := getattr(make(), n), (bool, str, int))}
        for recipe, make in MIXED_PRECISION_RECIPES.items()
    }


def _common():
    """The plain values that the shared start of the shipped recipes sets, by path."""
    # Their package imports every model's recipe, with packages that are not here.
    package = types.ModuleType("megatron.bridge.recipes")
    package.__path__ = [str(pathlib.Path(bridge.__file__).parent / "recipes")]
    sys.modules[package.__name__] = package
    cfg = importlib.import_module("megatron.bridge.recipes.common")._pretrain_common()
    found = {}
    for part in dataclasses.fields(cfg):
        inner = getattr(cfg, part.name)
        pairs = [(part.name, inner)]
        if dataclasses.is_dataclass(inner):
            pairs = [(f"{part.name}.{f.name}", getattr(inner, f.name, None)) for f in dataclasses.fields(inner)]
        found |= {path: value for path, value in pairs if isinstance(value, (bool, str, int))}
    return found


def _configuration(case):
    megatron.Device.major = case.get("capability", 9)
    megatron.Device.name = "NVIDIA B200" if megatron.Device.major == 10 else "NVIDIA H100"
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({k: v for k, v in case.get("env", {}).items() if v is not None})
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world"]), LOCAL_RANK="0")
    names = {"__name__": "recipe"}
    exec(compile(case["recipe"], "recipe.py", "exec"), names)
    cfg = process_config_with_overrides(names["recipe"](), cli_overrides=case.get("overrides", []))
    cfg.model.apply_rope_fusion = False  # the one field that is changed: its kernels are Transformer Engine's
    config.runtime_config_update(cfg)
    return cfg


def _groups(cfg, world):
    gloo, cfg.dist.use_gloo_process_groups = cfg.dist.use_gloo_process_groups, False
    instances = cfg.ddp.num_distributed_optimizer_instances
    try:
        return megatron.groups_made(
            world, lambda: initialize._initialize_distributed(cfg.model, cfg.dist, instances, None, None)
        )
    finally:
        cfg.dist.use_gloo_process_groups = gloo


def _padded_vocabulary(cfg):
    size, padded = _validate_and_set_vocab_size(
        cfg.model.vocab_size, cfg.tokenizer.vocab_size, bool(cfg.tokenizer.use_tokenizer_vocab_size)
    )
    if not padded:
        return size
    return calculate_padded_vocab_size(
        size, cfg.model.make_vocab_size_divisible_by, cfg.model.tensor_model_parallel_size, logging_enabled=False
    )


def _answer(case):
    if case.get("fields"):
        return {"fields": _fields(), "precisions": _precisions(), "common": _common()}
    cfg = _configuration(case)
    model, train = cfg.model, cfg.train
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "cp_comm_type")
    more = ("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "tp_comm_overlap")
    recompute = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
    values = {name: getattr(model, name) for name in (*names, *more, *recompute, "overlap_moe_expert_parallel_comm")}
    state = ("use_distributed_optimizer", "use_megatron_fsdp", "num_distributed_optimizer_instances")
    overlap = ("data_parallel_sharding_strategy", "overlap_grad_reduce", "overlap_param_gather")
    values |= {name: getattr(cfg.ddp, name) for name in (*state, *overlap)}
    values["optimizer"] = cfg.optimizer.optimizer
    values["data_parallel_size"] = cfg.data_parallel_size
    values["vpp"] = model.virtual_pipeline_model_parallel_size or 1
    batch = types.SimpleNamespace(
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        data_parallel_size=cfg.data_parallel_size,
    )
    values["num_microbatches"] = megatron.microbatches(batch)
    values["layers"] = megatron.layers_held(model, model)
    values["padded_vocabulary"] = _padded_vocabulary(cfg)
    values["groups"] = _groups(cfg, case["world"]) if case.get("groups", True) else {}
    return values


if __name__ == "__main__":
    megatron.main(*sys.argv[1:3], answer=_answer)

"""Puts argument lists through Megatron-Core's own checks. Runs in Megatron's environment, not in shardwise's.

Usage: ``python megatron_runner.py CASES.json ANSWERS.json``. A case is ``{"args": [...], "world": N, "env": {...}}``;
an answer has ``accepted``, ``error`` and, when accepted, the degrees, layers per chunk and rank groups that Megatron
derived; with ``"count": true`` the parameters of the model that it builds instead. Kernels and device probes that a
machine without a GPU lacks are replaced; checks are not.
"""

import argparse
import contextlib
import importlib.machinery
import io
import json
import os
import pathlib
import sys
import types
import typing
import warnings

import torch
import typing_extensions

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

    def __or__(self, other):  # in annotations
        return self

    __ror__ = __or__


def any_attribute(name):
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
        module.__getattr__ = any_attribute
        sys.modules[module.__name__] = module


class Device:
    """The compute capability that Megatron sees: 9.0 (Hopper) unless a case says otherwise."""

    major, minor = 9, 0
    name = "NVIDIA H100"


def _stand_in_for_a_gpu():
    torch.cuda.get_device_properties = lambda *args: Device
    torch.cuda.get_device_capability = lambda *args: (Device.major, Device.minor)


typing.override = getattr(typing, "override", typing_extensions.override)
try:
    import triton  # noqa: F401
except ImportError:
    _stand_in_for_triton()
_stand_in_for_a_gpu()

import megatron.core.utils  # noqa: E402
from megatron.core import num_microbatches_calculator as calculator  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.transformer import dot_product_attention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402
from megatron.training.arguments import (  # noqa: E402
    add_megatron_arguments,
    core_transformer_config_from_args,
    parse_args,
    validate_args,
)
from megatron.training.vocab_utils import calculate_padded_vocab_size  # noqa: E402
from packaging.version import Version  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed import run as elastic  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

GROUPS = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "shard",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}


def stand_in_for_transformer_engine():
    """Fused permutation and a version number, which only Transformer Engine has."""
    for name in dir(moe_utils):
        if name.startswith("fused_") and getattr(moe_utils, name) is None:
            setattr(moe_utils, name, _Anything())
    megatron.core.utils._te_version = Version("2.9.0")
    attention = dot_product_attention.DotProductAttention
    build = attention.__init__

    def build_without_sizes(self, *args, k_channels=None, v_channels=None, **kwargs):
        # Only Transformer Engine's attention takes the sizes of latent attention; it has no weights either way.
        build(self, *args, **kwargs)

    attention.__init__ = build_without_sizes


def _parse(case):
    Device.major = case.get("capability", 9)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({k: v for k, v in case.get("env", {}).items() if v is not None})
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world"]), LOCAL_RANK="0")
    # Fused rotary positions need Transformer Engine: the one flag that is added.
    sys.argv = ["pretrain_gpt.py", *case["args"], "--no-rope-fusion"]
    args = parse_args()
    validate_args(args)
    return args, core_transformer_config_from_args(args)


def groups_made(world, make_all):
    """Every group that a call to Megatron makes in a world of that size, by our names."""
    found = {name: [] for name in GROUPS.values()}
    make = parallel_state.create_group

    def record(ranks=None, **kwargs):
        name = GROUPS.get(kwargs.get("group_desc"))
        if name:
            found[name].append(list(ranks))
        return make(ranks, **kwargs)

    parallel_state.create_group = record
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        make_all()
    finally:
        parallel_state.create_group = make
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()
    return {name: sorted(map(sorted, groups)) for name, groups in found.items()}


def _groups(args, world):
    def make_all():
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=args.expert_model_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            # As training/initialize.py does.
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )

    return groups_made(world, make_all)


def microbatches(args):
    calculator.init_num_microbatches_calculator(
        0, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    try:
        return calculator.get_num_microbatches()
    finally:
        calculator.unset_num_microbatches_calculator()


def layers_held(args, config):
    """Decoder layers per virtual stage in model order."""
    pp, vpp = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is not None:
        layout = config.pipeline_model_parallel_layout.layout
        return [[kind.name for kind in layout[r][c]].count("decoder") for c in range(vpp or 1) for r in range(pp)]
    return [
        get_num_layers_to_build(config, vp_stage=c if vpp else None, pp_rank=r)
        for c in range(vpp or 1)
        for r in range(pp)
    ]


def _count(args, config):
    """Parameters of the GPT model that Megatron builds from the arguments, on the meta device, in one rank."""
    config.perform_initialization = False
    # What a build without CUDA and Transformer Engine lacks, none of which has weights of its own.
    config.gradient_accumulation_fusion = config.persist_layer_norm = config.bias_dropout_fusion = False
    config.moe_grouped_gemm = config.layernorm_zero_centered_gamma = False
    config.moe_token_dispatcher_type = "allgather"
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    current_device = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("meta")
    try:
        parallel_state.initialize_model_parallel(1, 1, create_gloo_process_groups=False)
        with torch.device("meta"):
            return sum(p.numel() for p in _model(args, config).parameters())
    finally:
        torch.cuda.current_device = current_device
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()


def _model(args, config):
    layers = gpt_layer_specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=args.normalization
    )
    prediction = None
    if args.mtp_num_layers:
        prediction = gpt_layer_specs.get_gpt_mtp_block_spec(config, layers, use_transformer_engine=False)
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=args.vocab_size,
        max_sequence_length=args.max_position_embeddings,
        position_embedding_type=args.position_embedding_type,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        mtp_block_spec=prediction,
    )


def _torchrun(words):
    """What torchrun's own parser makes of its command line."""
    config, _, script = elastic.config_from_args(elastic.parse_args(words))
    rank = config.rdzv_configs["rank"]
    return {"nnodes": config.max_nodes, "nproc": config.nproc_per_node, "rank": rank, "script": script}


def _options():
    """Every option of Megatron's parser by its name with dashes, and how many values it takes."""
    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    found = {}
    for action in parser._actions:
        for text in action.option_strings:
            if text.startswith("--"):
                takes = "1" if action.nargs is None else str(action.nargs)
                found[text[2:].replace("_", "-").lower()] = takes
    return found


def _answer(case):
    if "torchrun" in case:
        return _torchrun(case["torchrun"])
    if case.get("options"):
        return {"options": _options()}
    args, config = _parse(case)
    if case.get("count"):
        return {"parameters": _count(args, config)}
    groups = _groups(args, case["world"]) if case.get("groups", True) else {}
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    more = ("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "data_parallel_size")
    state = ("use_distributed_optimizer", "use_megatron_fsdp", "num_distributed_optimizer_instances", "tp_comm_overlap")
    values = {name: getattr(args, name) for name in (*names, *more, *state)}
    values["vpp"] = args.virtual_pipeline_model_parallel_size or 1
    values["num_microbatches"] = microbatches(args)
    values["layers"] = layers_held(args, config)
    values["padded_vocabulary"] = calculate_padded_vocab_size(
        args.vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size, logging_enabled=False
    )
    values["groups"] = groups
    return values


def run(case, answer):
    """The answer to one case; refusals by exit, exception or assertion are all refusals."""
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            return {"accepted": True, "error": "", **answer(case)}
    except SystemExit:
        return {"accepted": False, "error": "exit: " + noise.getvalue()[-400:]}
    except Exception as error:
        return {"accepted": False, "error": f"{type(error).__name__}: {error}"[:400]}


def main(cases_file, answers_file, answer=_answer):
    """Answer every case of a file."""
    stand_in_for_transformer_engine()
    cases = json.loads(pathlib.Path(cases_file).read_text(encoding="utf-8"))
    answers = [run(case, answer) for case in cases]
    pathlib.Path(answers_file).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])

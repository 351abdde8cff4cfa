"""Puts configurations through nanotron's own code. Runs in an environment of its own, not in shardwise's.

Usage: ``python nanotron_runner.py CASES.json ANSWERS.json``. A case is ``{"config": {...}, "world": N}``; an answer has
``accepted``, ``error`` and, when accepted, the degrees, the batch, the rank groups and the layers of each stage.

The one package of nanotron is of March 2024 (0.4): sections and keys that are younger are put into its form or left
out, its logger (which imports its own configuration in a circle) and the kernels of flash_attn are stood in for. The
loading of the configuration, the groups of ranks and the division of the model are its own code.
"""

import json
import logging
import os
import pathlib
import sys
import types

import torch

_YOUNGER = {"parallelism": ("context_parallel_size", "recompute_layer", "tp_recompute_allgather")}


class Stub(types.ModuleType):
    """A module that has every name, each a class that does nothing."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (torch.nn.Module,), {})


def stand_in():
    """Everything that has to be there before nanotron can be imported without a GPU."""
    kernels = ("flash_attn_interface", "layers", "layers.rotary", "bert_padding", "ops", "ops.triton",
               "ops.triton.layer_norm", "ops.triton.rotary")  # fmt: skip
    names = ["datasets", "datasets.download", "datasets.download.streaming_download_manager", "flash_attn"]
    for name in [*names, *(f"flash_attn.{kernel}" for kernel in kernels)]:
        sys.modules[name] = Stub(name)
    import nanotron

    own = Stub("nanotron.logging")
    own.get_logger, own.LoggingArgs = logging.getLogger, None
    own.log_rank = own.warn_once = lambda *a, **k: None
    for level in ("DEBUG", "INFO", "WARNING", "ERROR"):
        setattr(own, level, getattr(logging, level))
    sys.modules["nanotron.logging"] = nanotron.logging = own


def of_march_2024(config):
    """The configuration in the form of release 0.4."""
    out = {name: dict(section) for name, section in config.items() if name not in ("data_stages", "logging")}
    for section, keys in _YOUNGER.items():
        for key in keys:
            out[section].pop(key, None)
    # It has Adam alone, whose numbers it asks for.
    adam = {"adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95, "torch_adam_is_fused": True}
    out["optimizer"] = {**adam, **out["optimizer"], **out["optimizer"]["optimizer_factory"]}
    out["optimizer"].pop("optimizer_factory")
    out["optimizer"].pop("name", None)
    model = dict(out["model"]["model_config"])
    for key in ("rope_theta", "rope_interleaved"):
        model.pop(key, None)
    out["model"]["model_config"] = model
    out["tokenizer"] = {"tokenizer_name_or_path": "none"}
    out["data"] = config["data_stages"][0]["data"]
    return out


class Group(list):
    """The groups of one kind; as nanotron's own they have a size."""

    def size(self):
        return len(self[0])


def context_of(parallelism, world):
    """nanotron's ``ParallelContext`` of a world that is not there."""
    from nanotron import distributed as dist
    from nanotron.parallel import context

    dist.is_initialized, dist.get_backend = lambda: True, lambda *a: "nccl"
    dist.new_group = dist.barrier = lambda *a, **k: None
    dist.get_rank = lambda *a: -1
    context.ParallelContext.set_device = lambda self: None
    context.ParallelContext.create_new_group = lambda self, groups: Group([int(r) for r in g] for g in groups)
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0"}
    p = parallelism
    return context.ParallelContext(p.tp, p.pp, p.dp, p.expert_parallel_size)


def layers_of(config, context):
    """Decoder layers of each stage, and the stage of the head, as ``build_model`` divides the model."""
    from nanotron.helpers import _vocab_size_with_padding
    from nanotron.models import build_model, llama
    from nanotron.parallel.pipeline_parallel.p2p import P2P

    def without_buffers(self, pg, device):
        self.pg, self.device = pg, device

    P2P.__init__ = without_buffers
    shape = config.model.model_config
    shape.vocab_size = _vocab_size_with_padding(
        shape.vocab_size, config.parallelism.tp, config.model.make_vocab_size_divisible_by
    )
    model = build_model(
        lambda: llama.LlamaForTraining(config=shape, parallel_context=context, parallel_config=config.parallelism),
        context, torch.bfloat16, device=torch.device("cpu"),
    )  # fmt: skip
    held = [0] * config.parallelism.pp
    for layer in model.model.decoder:
        held[layer.rank] += 1
    return held, model.model.lm_head.rank


def answer(case):
    """What nanotron makes of one case."""
    from nanotron.config import Config, get_config_from_dict

    config = get_config_from_dict(of_march_2024(case["config"]), config_class=Config)
    context = context_of(config.parallelism, case["world"])
    held, head = layers_of(config, context)
    p = config.parallelism
    return {
        "tp": p.tp,
        "pp": p.pp,
        "dp": p.dp,
        "mode": p.tp_mode.name,
        "engine": type(p.pp_engine).__name__,
        "asynchronous": p.tp_linear_async_communication,
        "zero": config.optimizer.zero_stage,
        "global_batch": config.global_batch_size,
        "micro_batch_size": config.tokens.micro_batch_size,
        "groups": {name: getattr(context, f"{name}_pg") for name in ("tp", "dp", "pp")},
        "layers": held,
        "head": head,
    }


def main(questions, answers):
    """Answer every case of a file."""
    stand_in()
    found = []
    for case in json.loads(pathlib.Path(questions).read_text()):
        try:
            found.append({"accepted": True, "error": "", **answer(case)})
        except (Exception, SystemExit) as error:
            found.append({"accepted": False, "error": f"{type(error).__name__}: {error}"})
    pathlib.Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

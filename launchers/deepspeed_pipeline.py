"""How DeepSpeed's ``PipelineModule`` divides a model, and what a training script must give it.

Facts are of DeepSpeed 0.19 (``runtime/pipe/module.py``, ``runtime/utils.py``). The module is a list of layers; a
``partition_method`` cuts it into stages. The list that is planned for is: the embedding, the decoder layers, the last
norm, the head.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .accelerate_models import CLASSES
from .own_splits import Split
from .recipe_reader import parse_python
from .recipe_values import Unread, evaluate, unread

BEFORE, AFTER = 1, 2
"""Entries of the list before and after the decoder layers."""

_ANY_LAYER: Final = "DecoderLayer"

Cuts = tuple[int, ...]
"""The first entry of every stage, and the number of entries."""


def layer_class(model: ModelSpec) -> str:
    """The class of the decoder layers in transformers."""
    known = CLASSES.get(model.architecture or "")
    return known.layer if known else _ANY_LAYER


def partition_splits(problem: Problem, tp: int, pp: int) -> tuple[Split, ...]:
    """The layers of each stage under every partition method whose stages can be planned, without repetition."""
    return tuple(dict.fromkeys(split for _, split in _methods(problem.model, pp)))


def partition_method(model: ModelSpec, split: Split) -> str:
    """The ``partition_method`` that gives a split of ``partition_splits``."""
    return next(method for method, own in _methods(model, len(split)) if own == split)


def _methods(model: ModelSpec, pp: int) -> Iterator[tuple[str, Split]]:
    layers = model.num_layers
    total = BEFORE + layers + AFTER
    weights = (0,) * BEFORE + (1,) * layers + (0,) * AFTER
    cuts = {
        f"type:{layer_class(model)}": balanced(weights, pp),
        "parameters": balanced(_parameters(model), pp),
        "uniform": uniform(total, pp),
    }
    for method, cut in cuts.items():
        # The head's own cost is the last stage's: its norm has to be there too, and the embedding on the first.
        if cut[1] >= BEFORE and cut[-2] <= total - AFTER:
            split = layers_between(cut, layers)
            if min(split[1:-1], default=1) > 0:
                yield method, split


def layers_between(cuts: Cuts, layers: int) -> Split:
    """Decoder layers of every stage."""
    inside = [min(max(cut - BEFORE, 0), layers) for cut in cuts]
    return tuple(b - a for a, b in pairwise(inside))


def _parameters(model: ModelSpec) -> tuple[int, ...]:
    """Parameters of every entry of the list; a head that is tied to the embedding counts again, as DeepSpeed has it."""
    held = [model.kinds[kind].parameters for kind in model.layers]
    embedding = model.embedding_parameters + sum(extra.parameters for extra in model.embedding_extras)
    norm = sum(extra.parameters for extra in model.head_extras)
    return (embedding, *held, norm, model.embedding_parameters)


# ---- DeepSpeed's arithmetic


def uniform(count: int, parts: int) -> Cuts:
    """Entries divided evenly, one more on the first stages (DeepSpeed's ``partition_uniform``)."""
    if count <= parts:
        return tuple(min(p, count) for p in range(parts + 1))
    each, rest = divmod(count, parts)
    return tuple(p * each + min(p, rest) for p in range(parts + 1))


def balanced(weights: tuple[int, ...], parts: int) -> Cuts:
    """Entries divided so that the heaviest and the lightest stage differ least (``partition_balanced``)."""
    if len(weights) <= parts:
        return uniform(len(weights), parts)
    first = _first_entries(weights)
    cuts = [len(weights)]
    for part in range(parts, 0, -1):
        cuts.append(int(first[cuts[-1], part]))
    return tuple(reversed(cuts))


@lru_cache(maxsize=16)
def _first_entries(weights: tuple[int, ...]) -> NDArray[np.int64]:
    """``[i, j]``: the first entry of stage j where j stages hold the first i entries.

    Dynamic programming over the difference of the heaviest and the lightest stage; of equals the last cut, as there.
    """
    n = len(weights)
    running = np.concatenate([[0.0], np.cumsum(np.array(weights, dtype=np.float64))])
    stage = running[:, None] - running[None, :]
    possible = np.arange(n + 1)[None, :] < np.arange(n + 1)[:, None]
    most, least = np.full(n + 1, np.inf), np.full(n + 1, np.inf)
    most[0] = 0.0
    first = np.zeros((n + 1, n + 1), dtype=np.int64)
    rows = np.arange(n + 1)
    for part in range(1, n + 1):
        high, low = np.maximum(most[None, :], stage), np.minimum(least[None, :], stage)
        gap = np.where(possible, high - low, np.inf)
        first[:, part] = n - np.argmin(gap[:, ::-1], axis=1)
        reached = rows >= part
        most = np.where(reached, high[rows, first[:, part]], np.inf)
        least = np.where(reached, low[rows, first[:, part]], np.inf)
    return first


# ---- what the training script passes

_SETTINGS: Final = '''\
"""What deepspeed.PipelineModule must be given for this plan: DeepSpeed's JSON settings have no words for it.

    from pipeline_settings import check, pipeline_arguments
    module = deepspeed.PipelineModule(layers, loss_fn=loss_fn, **pipeline_arguments())
    check(module)
    engine, *_ = deepspeed.initialize(model=module, config=...)  # then engine.train_batch(iterator), once a step

layers is a list of LayerSpec: the embedding, {layers} of LAYER_CLASS, the last norm, the head{tied}.
Written by shardwise for DeepSpeed 0.19.
"""

import os

NUM_STAGES = {pp}
DATA_PARALLEL = {dp}
PARTITION_METHOD = "{method}"
LAYERS_PER_STAGE = {split!r}
LAYER_CLASS = "{layer}"


def pipeline_arguments():
    """Arguments of PipelineModule beside the layers and the loss."""
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    world = int(os.environ["WORLD_SIZE"])
    if world != NUM_STAGES * DATA_PARALLEL:
        raise ValueError(f"{{world}} processes: the plan is for {{NUM_STAGES}} stages of {{DATA_PARALLEL}}")
    return {{
        "topology": PipeModelDataParallelTopology(num_pp=NUM_STAGES, num_mp=1, num_dp=DATA_PARALLEL),
        "partition_method": PARTITION_METHOD,
        # Only decoder layers are recomputed, if any are: pipeline.activation_checkpoint_interval of ds_config.json.
        "checkpointable_layers": [LAYER_CLASS],
    }}


def check(module):
    """Raise ValueError unless DeepSpeed divided the layers as planned."""
    inside = [min(max(int(part) - {before}, 0), {layers}) for part in module.parts]
    held = tuple(b - a for a, b in zip(inside, inside[1:]))
    if module.parts[-1] != {total} or held != LAYERS_PER_STAGE:
        raise ValueError(f"stages hold {{held}} layers: planned are {{LAYERS_PER_STAGE}}, and {total} entries in all")
    mine = sum(type(layer).__name__ == LAYER_CLASS for layer in module.forward_funcs)
    if mine != held[module.stage_id]:
        raise ValueError(f"{{mine}} layers of this stage are a {{LAYER_CLASS}}: expected {{held[module.stage_id]}}")
'''


def pipeline_settings(problem: Problem, s: Strategy) -> str:
    """``pipeline_settings.py`` of a plan with a pipeline whose split is one of ``partition_splits``."""
    model = problem.model
    split = s.layers_per_stage or even_split(model.num_layers, s.pp)
    return _SETTINGS.format(
        layers=model.num_layers, pp=s.pp, dp=s.dp, method=partition_method(model, split), split=split,
        layer=layer_class(model), before=BEFORE, total=BEFORE + model.num_layers + AFTER,
        tied=" (with the embedding a TiedLayerSpec)" if model.tied_embeddings else "",
    )  # fmt: skip


def is_pipeline_settings(file: str, text: str) -> bool:
    """Whether a file is what ``pipeline_settings`` writes, as a person may have changed it."""
    return file.endswith(".py") and "NUM_STAGES" in text


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What ``pipeline_settings.py`` states: layers of every stage, replicas, and how DeepSpeed is to divide."""

    file: str
    stages: tuple[int, ...]
    replicas: int
    method: str

    def check(self, model: ModelSpec | None, replicas: int) -> None:
        """Hold the file to what it will meet, as its own ``check`` and the topology would: they end the job.

        Raises InputError naming file and constant.
        """
        if self.replicas != replicas:
            raise InputError(f"{self.file}: DATA_PARALLEL = {self.replicas}: expected {replicas}, the GPUs over "
                             f"{len(self.stages)} stages, or give --gpus")  # fmt: skip
        if model is None or sum(self.stages) != model.num_layers:  # the layout's own rule says how many there are
            return
        own = {method.lower(): split for method, split in _methods(model, len(self.stages))}
        made = own.get(self.method.lower())
        if made is not None and made != self.stages and self.stages in own.values():
            raise InputError(f"{self.file}: LAYERS_PER_STAGE = {self.stages}: expected {made}, which "
                             f"PARTITION_METHOD = {self.method!r} gives")  # fmt: skip


def read_pipeline_settings(file: str, text: str) -> PipelineSettings:
    """The constants of ``pipeline_settings.py``. Raises InputError naming file, constant and what was expected."""
    values: dict[str, Any] = {}
    for node in parse_python(file, text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = evaluate(node.value, values, unread)

    def wrong(name: str, expected: str) -> InputError:
        value = values.get(name)
        shown = value.text if isinstance(value, Unread) else repr(value)
        said = f"{name} = {shown[:200]}" if name in values else f"{name} is missing"
        return InputError(f"{file}: {said}: expected {expected}")

    for name in ("NUM_STAGES", "DATA_PARALLEL"):
        if type(values.get(name)) is not int or values[name] < 1:
            raise wrong(name, "a whole number of at least 1")
    count, held, method = values["NUM_STAGES"], values.get("LAYERS_PER_STAGE"), values.get("PARTITION_METHOD")
    if not isinstance(held, tuple) or len(held) != count or not all(type(n) is int and n >= 0 for n in held):
        raise wrong("LAYERS_PER_STAGE", f"{count} whole numbers, one for each stage")
    if not isinstance(method, str) or not re.fullmatch(r"uniform|parameters|type:.+", method, re.IGNORECASE):
        raise wrong("PARTITION_METHOD", "'uniform', 'parameters' or 'type:' and a class of layers")
    return PipelineSettings(file, held, values["DATA_PARALLEL"], method)

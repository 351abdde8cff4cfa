"""What DeepSpeed 0.19 enforces beyond arithmetic, or accepts and does not run as meant.

Each rule says where it comes from: ``config`` (``DeepSpeedConfig``), ``ulysses``, ``autotp`` or ``run``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategies, Strategy, enum_code
from shardwise.hardware_profiles.errors import InputError

from .accelerate_models import CLASSES
from .facts import model_facts
from .megatron_shared import VENDORS, device_values
from .rule import Allowed, Rule, divisors, everything, nearest
from .universal import divides_all

_A2A = enum_code("cp_comm", "a2a")
_DTYPES = ("bf16", "fp16", "fp32")


def deepspeed_rules() -> tuple[Rule, ...]:
    """Rules of DeepSpeed 0.19 in addition to the universal ones and the capability table."""
    return (
        Rule("accelerator", "this launcher writes for CUDA devices, which {device} ({vendor}) is not",
             lambda p, s: np.full(len(s), p.cluster.accelerator.vendor in VENDORS), values=device_values,
             scope="machine", fix="choose another cluster"),
        # ulysses: its sequence parallelism is all-to-all.
        Rule("cp-is-ulysses", "DeepSpeed's sequence parallelism is Ulysses: with cp = {cp} use cp_comm = a2a, not "
             "{cp_comm}", lambda p, s: (s.cp == 1) | (s.cp_comm == _A2A)),
        # ulysses: heads are whole, and key-value heads are divided or repeated whole.
        Rule("ulysses-kv-heads", "Ulysses needs cp = {cp} to divide the key-value heads {kv_heads}, or to be a "
             "multiple of them; the nearest cp that is: {hint}", _ulysses_kv, values=_kv_values),
        # run: the two make meshes of their own, which do not know of each other.
        Rule("tp-or-ulysses", "DeepSpeed has no mesh with both tp = {tp} and cp = {cp}: use one of them",
             lambda p, s: (s.tp == 1) | (s.cp == 1)),
        # autotp: it warns and repeats heads wrongly where there are fewer than ranks.
        Rule("autotp-kv-heads", "AutoTP needs tp = {tp} to divide the key-value heads {kv_heads}; the nearest tp that "
             "does is {hint}", lambda p, s: divides_all(model_facts(p).kv_heads, s.tp), values=_tp_values),
        # autotp: divides the linear layers of known blocks, experts not among them.
        Rule("autotp-experts", "AutoTP does not divide experts: {model} needs tp = 1, not {tp}",
             lambda p, s: (s.tp == 1) | np.bool_(not model_facts(p).is_moe)),
        # pipe/engine: the gradients of a stage live until the last micro-batch.
        Rule("pipeline-zero", "DeepSpeed's pipelines need zero 0 or 1: pp = {pp} with zero = {zero}",
             lambda p, s: (s.pp == 1) | (s.zero <= 1)),
        # engine: its optimizer for bf16 pipelines divides its states even without ZeRO.
        Rule("pipeline-bf16-zero", "DeepSpeed divides the optimizer states of a bf16 pipeline over dp: with pp = {pp} "
             "use zero = 1, not {zero}",
             lambda p, s: (s.pp == 1) | (s.zero != 0) | np.bool_(p.workload.dtype != "bf16")),
        # engine: it turns the overlap off; all gradients are reduced after the last micro-batch.
        Rule("pipeline-dp-overlap", "DeepSpeed's pipelines reduce gradients after the last micro-batch: with pp = {pp} "
             "dp_overlap must be off, not {dp_overlap}", lambda p, s: (s.pp == 1) | ~s.dp_overlap),
        # initialize: the mesh is the pipeline's own; AutoTP and Ulysses bring another.
        Rule("pipeline-alone", "a PipelineModule knows neither AutoTP nor Ulysses: pp = {pp} needs tp = 1 and cp = 1, "
             "not tp = {tp} and cp = {cp}", lambda p, s: (s.pp == 1) | ((s.tp == 1) & (s.cp == 1))),
        # run: not known to work, so not written.
        Rule("pipeline-offload", "this launcher writes no offload for a pipeline: offload_optimizer = "
             "{offload_optimizer} needs pp = 1, not {pp}", lambda p, s: (s.pp == 1) | (s.offload_optimizer == 0.0)),
        # config accepts it; without ZeRO no optimizer state is anywhere but on the device.
        Rule("offload-needs-zero", "offload_optimizer needs zero 1 to 3, not {zero}",
             lambda p, s: (s.offload_optimizer == 0.0) | (s.zero > 0)),
        # run: the training script checkpoints every layer or none.
        Rule("recompute-all", "gradient checkpointing covers every layer: recompute_per_stage = {recompute_per_stage} "
             "leaves some out", everything, lambda p, s: s.recompute_per_stage is None),
    )  # fmt: skip


def check_model(problem: Problem) -> None:
    """Raise InputError naming what a Hugging Face model under DeepSpeed cannot train."""
    model, work = problem.model, problem.workload
    if model.architecture not in CLASSES:
        raise InputError(f"{model.name}: the model: this launcher cannot express a model without a known transformers "
                         "class")  # fmt: skip
    if work.train_mtp and model.mtp:
        raise InputError(f"{model.name}: the head: Hugging Face models cannot express multi-token prediction (leave it "
                         "out: --no-mtp)")  # fmt: skip
    if work.dtype not in _DTYPES:
        raise InputError(f"{model.name}: the workload: DeepSpeed's settings cannot express training in {work.dtype}")
    if work.optimizer != "adam":
        raise InputError(
            f"{model.name}: the workload: this launcher's settings cannot express the optimizer {work.optimizer}"
        )


def _ulysses_kv(problem: Problem, s: Strategies) -> Allowed:
    fine = np.ones(len(s), dtype=np.bool_)
    for heads in model_facts(problem).kv_heads:
        fine &= (heads % s.cp == 0) | (s.cp % heads == 0)
    return fine


def _kv_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    facts = model_facts(problem)
    common = int(np.gcd.reduce(facts.heads)) if facts.heads else 1
    fitting = [d for d in divisors(common) if all(h % d == 0 or d % h == 0 for h in facts.kv_heads)]
    return {"kv_heads": ", ".join(map(str, facts.kv_heads)), "hint": nearest(s.cp, fitting)}


def _tp_values(problem: Problem, s: Strategy) -> Mapping[str, Any]:
    heads = model_facts(problem).kv_heads
    common = int(np.gcd.reduce(heads)) if heads else 1
    return {"kv_heads": ", ".join(map(str, heads)), "hint": nearest(s.tp, divisors(common))}

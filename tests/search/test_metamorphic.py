"""Properties that no optimum may break, on real models and systems: what helps never makes the answer slower."""

from dataclasses import replace

import pytest

from shardwise.costmodel.model import ModelSpec
from shardwise.launchers.base import get_launcher
from shardwise.search.constraints import Constraints
from shardwise.search.exact import Found, search
from shardwise.search.proof import TOLERANCE
from shardwise.search.space import Space

from .small import problem

REAL = (
    ("llama-3.2-1b", "dgx-a100", 8), ("llama-3.2-3b", "dgx-h100", 8), ("qwen3-0.6b", "dgx-h100", 8),
    ("gpt-2-xl", "dgx-a100", 8), ("qwen2.5-1.5b", "dgx-h100", 16), ("llama-3.1-8b", "dgx-h100", 16),
    ("mistral-7b", "dgx-a100", 16), ("qwen3-14b", "azure-nd-a100-v4", 32), ("llama-2-13b", "dgx-a100", 32),
    ("qwen2.5-32b", "dgx-h100", 32), ("llama-3.1-70b", "dgx-h100", 64), ("llama-2-70b", "dgx-a100", 64),
    ("gpt-3-175b", "dgx-a100", 128), ("llama-3.1-405b", "dgx-h100", 512), ("mixtral-8x7b", "dgx-h100", 64),
    ("qwen3-30b-a3b", "dgx-h100", 32), ("deepseek-v2-lite", "dgx-h100", 16), ("gpt-oss-20b", "dgx-h100", 16),
    ("qwen1.5-moe-a2.7b", "dgx-a100", 16), ("phi-4", "aws-p5en", 16), ("llama-2-7b", "dgx-v100", 32),
    ("mistral-nemo-12b", "dgx-b200", 8), ("qwen2.5-72b", "gb200-nvl72", 72), ("llama-3-70b", "mi300x-8x400g", 64),
    ("qwen2.5-7b", "h20-8x400g", 16), ("olmo-2-32b", "dgx-h200", 32), ("gemma-7b", "tpu-v5p", 64),
    ("llama-3.1-8b", "gaudi2-hls2", 16), ("mixtral-8x22b", "dgx-h200", 64), ("glm-4-9b", "aws-p4d", 16),
)  # fmt: skip
PINNED = ("tp", "pp", "zero", "micro_batch_size", "recompute")


def solved(p, pins=None) -> Found:
    return search(Space(p, get_launcher("generic"), Constraints.of(pins)))


def is_no_slower(found: Found, than: Found, name: str) -> None:
    """Beyond the gap that either search states."""
    assert found.best is not None, name
    assert min(found.step_s, found.open_bound_s) <= than.step_s * (1.0 + TOLERANCE), name
    gap = found.proof(0.0).gap
    assert found.step_s * (1.0 - gap) <= than.step_s * (1.0 + TOLERANCE), name


def eased(p):
    """The same problem with more of one thing."""
    cluster, accelerator = p.cluster, p.cluster.accelerator
    roomy = replace(accelerator, memory_bytes=1.2 * accelerator.memory_bytes)
    yield "memory", replace(p, cluster=replace(cluster, accelerator=roomy))
    tiers = tuple(replace(t, bytes_per_s=2.0 * t.bytes_per_s) for t in cluster.tiers)
    yield "bandwidth", replace(p, cluster=replace(cluster, tiers=tiers))
    quick = replace(accelerator, memory_bytes_per_s=2.0 * accelerator.memory_bytes_per_s)
    yield "memory bandwidth", replace(p, cluster=replace(cluster, accelerator=quick))


def keeps_the_properties(model, cluster, gpus):
    p = problem(ModelSpec.from_preset(model), gpus, 2 * gpus, 4096 if model != "gpt-2-xl" else 1024, cluster=cluster)
    base = solved(p)
    assert base.best is not None
    for name, other in eased(p):
        is_no_slower(solved(other), base, name)
    pins = {name: getattr(base.best, name) for name in PINNED}
    held = solved(p, pins)
    is_no_slower(held, base, "pins equal to the optimum")
    is_no_slower(base, held, "fewer constraints")
    turned = solved(p, dict(reversed(pins.items())))
    assert (turned.best, turned.step_s, turned.open_bound_s) == (held.best, held.step_s, held.open_bound_s)
    other = 0 if base.best.zero else 1
    worse = solved(p, {"zero": other})
    if worse.best is not None:
        is_no_slower(base, worse, "without the pin on zero")


@pytest.mark.parametrize(("model", "cluster", "gpus"), REAL[:2], ids=lambda v: str(v))
def test_what_helps_is_never_slower(model, cluster, gpus):
    keeps_the_properties(model, cluster, gpus)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster", "gpus"), REAL[2:], ids=lambda v: str(v))
def test_what_helps_is_never_slower_on_more(model, cluster, gpus):
    keeps_the_properties(model, cluster, gpus)

"""Activation memory: what real blocks keep for backward against the layer table, tensor by tensor at most 2 % apart."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from . import specs
from .sizes import Latent, Sizes

pytestmark = pytest.mark.crosscheck

TOLERANCE = 0.02
"""Row statistics of norms (4 or 8 bytes a token) and routing indices (8 a copy) are real and not in the model."""

DEGREES = [(1, False), (4, False), (4, True)]


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    pytest.importorskip("torch")
    from . import blocks

    return blocks


def measured(block: Any, s: Sizes, sequence_first: bool = False, checkpointed: bool = False) -> int:
    import torch
    from torch.utils.checkpoint import checkpoint

    from .tensors import saved_bytes

    torch.manual_seed(0)
    tokens = s.sequence // (s.tp if s.sp else 1)
    shape = (tokens, s.batch, s.hidden) if sequence_first else (s.batch, tokens, s.hidden)
    x = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    run = (lambda: checkpoint(block, x, use_reentrant=False)) if checkpointed else (lambda: block(x))
    return saved_bytes(block, run)


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
@pytest.mark.parametrize("kv_heads", [8, 4])
def test_llama_block(blocks, kv_heads, tp, sp):
    s = Sizes(kv_heads=kv_heads, tp=tp, sp=sp)
    expected = specs.kept(s, gated=True)
    assert measured(blocks.LlamaBlock(s), s) == pytest.approx(expected.saved, rel=TOLERANCE)
    assert measured(blocks.LlamaBlock(s), s, checkpointed=True) == expected.boundary


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
def test_block_with_latent_attention(blocks, tp, sp):
    """Latents and their norms on each rank whole (or sequence-sharded), expanded queries, keys and values by head."""
    s = Sizes(tp=tp, sp=sp, latent=Latent())
    expected = specs.kept(s, gated=True)
    assert measured(blocks.LlamaBlock(s), s) == pytest.approx(expected.saved, rel=TOLERANCE)


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
def test_llama_block_with_its_attention_core_recomputed(blocks, tp, sp):
    """Flash attention keeps no scores, so recomputing the core gives back its row statistics and no more."""
    s = Sizes(kv_heads=4, tp=tp, sp=sp)
    expected = specs.kept(s, gated=True, selective_recompute="attention_core")
    assert measured(blocks.LlamaBlock(s, recompute_core=True), s) == pytest.approx(expected.selective, rel=TOLERANCE)


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
def test_llama_block_with_norms_and_mlp_recomputed(blocks, tp, sp):
    s = Sizes(kv_heads=4, tp=tp, sp=sp)
    expected = specs.kept(s, gated=True, selective_recompute="norms_and_activations")
    assert measured(blocks.ModuleRecomputeLlamaBlock(s), s) == pytest.approx(expected.selective, rel=TOLERANCE)


@pytest.mark.parametrize("width", [1408, 2048])
def test_llama_block_with_every_other_op_recomputed(blocks, width):
    """torchtitan's policy: a layer's input and the outputs of attention and of every other matrix are kept."""
    import torch

    from .tensors import selectively_saved_bytes

    s = Sizes(kv_heads=4, width=width)
    x = torch.randn(s.batch, s.sequence, s.hidden, dtype=torch.bfloat16, requires_grad=True)
    expected = specs.kept(s, gated=True, selective_recompute="every_other_op")
    assert selectively_saved_bytes(blocks.TitanBlock(s), x) == pytest.approx(expected.selective, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("tp", "sp"),
    [
        (4, False),
        (4, True),
    ],
)  # fmt: skip
def test_llama_block_under_dtensor(blocks, tp, sp):
    """One layer under torch's own tensor parallelism, sharded by torch."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from . import comms, parallel
    from .tensors import saved_bytes

    s = Sizes(kv_heads=4, tp=tp, sp=sp)
    with comms.fake_world(tp):
        mesh = init_device_mesh("cpu", (tp,))
        layer = parallel.tensor_parallel(parallel.Llama(s, 1, 64).bfloat16(), mesh, sp).layers[0]
        tokens = s.sequence // (tp if sp else 1)
        x = torch.randn(s.batch, tokens, s.hidden, dtype=torch.bfloat16, requires_grad=True)
        real = saved_bytes(layer, lambda: layer(x), backward=False)
    assert real == pytest.approx(specs.kept(s, gated=True, runtime="torchtitan").saved, rel=TOLERANCE)


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
@pytest.mark.parametrize(("kernel", "dropout"), [("flash", 0.0), ("flash", 0.1), ("unfused", 0.0), ("unfused", 0.1)])
def test_gpt_block(blocks, kernel, dropout, tp, sp):
    """Korthikanti et al. equations 1 and 2, each term a real tensor."""
    s = Sizes(width=2048, tp=tp, sp=sp)
    runtime = {"attention_kernel": "unfused" if kernel == "unfused" else "fa2", "dropout": dropout > 0}
    expected = specs.kept(s, gated=False, **runtime)
    block = blocks.GptBlock(s, kernel, dropout)
    assert measured(block, s, sequence_first=True) == pytest.approx(expected.saved, rel=TOLERANCE)


@pytest.mark.parametrize(("tp", "sp"), DEGREES)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gpt_block_with_its_attention_core_recomputed(blocks, dropout, tp, sp):
    """Selective recomputation of Korthikanti et al., section 5: all that grows with the square of the sequence goes."""
    s = Sizes(width=2048, tp=tp, sp=sp)
    runtime = {"attention_kernel": "unfused", "dropout": dropout > 0, "selective_recompute": "attention_core"}
    expected = specs.kept(s, gated=False, **runtime)
    block = blocks.GptBlock(s, "unfused", dropout, recompute_core=True)
    assert measured(block, s, sequence_first=True) == pytest.approx(expected.selective, rel=TOLERANCE)
    plain = blocks.GptBlock(s, "unfused", dropout)
    assert measured(plain, s, sequence_first=True, checkpointed=True) == expected.boundary


@pytest.mark.parametrize(("tp", "sp", "etp"), [(1, False, 1), (2, True, 1), (2, True, 2), (4, True, 4)])
@pytest.mark.parametrize("shared", [0, 512])
def test_moe_block(blocks, shared, tp, sp, etp):
    """Router, dispatched inputs, and grouped experts with their weights applied before the down projection."""
    s = Sizes(kv_heads=4, width=512, tp=tp, sp=sp, experts=8, top_k=2, etp=etp, shared_width=shared)
    expected = specs.kept(s, gated=True)
    assert measured(blocks.MoeBlock(s), s) == pytest.approx(expected.saved, rel=TOLERANCE)
    assert measured(blocks.MoeBlock(s), s, checkpointed=True) == expected.boundary


@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, True)])
def test_moe_block_with_its_activation_recomputed(blocks, tp, sp):
    """Megatron-Core's ``moe_act``: the input of the experts' down projection is not kept."""
    s = Sizes(kv_heads=4, width=512, tp=tp, sp=sp, experts=8, top_k=2)
    # The model recomputes the norms' outputs too, this block does not.
    norms = 2 * 2 * s.hidden * s.batch * s.sequence / (tp if sp else 1)
    expected = specs.kept(s, gated=True, selective_recompute="norms_and_activations").selective + norms
    block = blocks.MoeBlock(s, recompute_activation=True)
    assert measured(block, s) == pytest.approx(expected, rel=TOLERANCE)

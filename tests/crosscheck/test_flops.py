"""FLOPs: what torch's counter sees in real blocks against the numerator of MFU."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from shardwise.costmodel.flops import kind_flops_per_token, model_flops_per_token
from shardwise.costmodel.model import AttentionCore, LayerKind, Mixer, ModelSpec

from . import specs
from .sizes import Latent, Sizes

pytestmark = pytest.mark.crosscheck


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    pytest.importorskip("torch")
    from . import blocks

    return blocks


def counted(module: Any, x: Any) -> tuple[int, int]:
    """FLOPs of forward and of backward by ``FlopCounterMode``; attention as two plain matrix products."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            out = module(x)
        with FlopCounterMode(display=False) as backward:
            out.float().square().mean().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def hidden_states(s: Any, sequence_first: bool = False) -> Any:
    import torch

    shape = (s.sequence, s.batch, s.hidden) if sequence_first else (s.batch, s.sequence, s.hidden)
    return torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)


def full_square(model: ModelSpec) -> ModelSpec:
    """The same model attending to every key: torch's counter does not leave out the masked half."""
    return replace(model, kinds=tuple(_uncausal(kind) for kind in model.kinds))


def _uncausal(kind: LayerKind) -> LayerKind:
    mixer = kind.mixer
    assert isinstance(mixer, Mixer)
    assert isinstance(mixer.core, AttentionCore)
    return replace(kind, mixer=replace(mixer, core=replace(mixer.core, causal=False)))


CASES = [
    ("LlamaBlock", {}, True),
    ("LlamaBlock", {"kv_heads": 4, "width": 1024, "sequence": 96}, True),
    ("LlamaBlock", {"latent": True}, True),
    ("GptBlock", {"width": 2048}, False),
    ("MoeBlock", {"width": 256, "experts": 8, "top_k": 2, "kv_heads": 4}, True),
    ("MoeBlock", {"width": 256, "experts": 8, "top_k": 3, "shared_width": 512}, True),
]


@pytest.mark.parametrize(("name", "sizes", "gated"), CASES)
def test_block(blocks, name, sizes, gated):
    """To the last FLOP, forward and backward: every matrix product once forward, twice backward."""
    s = Sizes(**{**sizes, "latent": Latent() if "latent" in sizes else None})
    forward, backward = counted(getattr(blocks, name)(s), hidden_states(s, name == "GptBlock"))
    model = full_square(specs.model(s, gated))
    expected = kind_flops_per_token(model.kinds[0], s.sequence) * s.batch * s.sequence
    assert forward == expected
    assert backward == 2 * expected


def test_model(blocks):
    """Embedding, layers and head; the embedding's look-up costs nothing."""
    from . import parallel

    s, layers, vocabulary = Sizes(hidden=256, width=512, kv_heads=4, sequence=64), 2, 1024
    real = parallel.Llama(s, layers, vocabulary).bfloat16()
    forward, backward = counted(real, torch_tokens(s, vocabulary))
    model = full_square(specs.model(s, True, layers, vocabulary))
    assert forward + backward == model_flops_per_token(model, s.sequence) * s.batch * s.sequence


def torch_tokens(s: Any, vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (s.batch, s.sequence))


@pytest.mark.parametrize(("window", "chunked"), [(None, False), (32, False), (32, True), (200, False)])
def test_visible_pairs(blocks, window, chunked):
    """The causal share of the square, counted on a real mask: within the half diagonal that the model leaves out."""
    import torch

    n = 256
    at = torch.arange(n)
    mask = at[:, None] >= at[None, :]
    if window is not None:
        near = at[:, None] // window == at[None, :] // window if chunked else at[:, None] - at[None, :] < window
        mask &= near
    core = AttentionCore(1, 1, 64, 64, window=window, chunked=chunked)
    flops = kind_flops_per_token(LayerKind("core", Mixer("mha", (), core)), n) * n
    pairs = flops / (2 * (core.qk_head_dim + core.v_head_dim))
    assert pairs == pytest.approx(int(mask.sum()), abs=n / 2 + 1)

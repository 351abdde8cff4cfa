"""Selective recomputation of single Megatron-Core modules, against bytes counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.costmodel.layers import PARTS, layer_table
from shardwise.costmodel.strategy import Strategies, Strategy

from ..launchers.problems import DEEPSEEK, LLAMA, MIXTRAL, problem

SEQUENCE = 4096


def costs(name: str, modules: tuple[str, ...], kind: int = -1, **settings: object) -> tuple[float, float]:
    """Extra seconds and bytes given back of one layer kind, the last unless told otherwise."""
    p = problem(name, gpus=64, batch=64, sequence=SEQUENCE, changes={"recompute_modules": modules})
    table = layer_table(p, Strategies.of([Strategy(dp=64, **settings)]))  # type: ignore[arg-type]
    row = len(p.model.kinds) - 1 if kind < 0 else kind
    return float(table.selective[row, 0]), float(table.saved[row, 0] - table.saved_selective[row, 0])


def test_a_dense_feed_forward_gives_back_gate_up_and_product() -> None:
    seconds, freed = costs(LLAMA, ("mlp",))
    assert freed == pytest.approx(3 * 2 * 28672 * SEQUENCE)
    # Gate, up and down once more: 6·h·f operations a token, which the device cannot do faster than its peak.
    assert seconds > 6 * 8192 * 28672 * SEQUENCE / 989.4e12


def test_an_expert_layer_gives_back_what_its_experts_read_and_the_routers_choice() -> None:
    _, freed = costs(MIXTRAL, ("moe",))
    routed = 2 * SEQUENCE
    assert freed == pytest.approx(3 * 2 * 16384 * routed + 2 * 6144 * routed + 8 * 8 * SEQUENCE)


def test_a_shared_expert_gives_back_gate_up_and_product() -> None:
    _, freed = costs(DEEPSEEK, ("shared_experts",))
    assert freed == pytest.approx(3 * 2 * 2048 * SEQUENCE)


def test_norms_give_back_their_outputs() -> None:
    _, freed = costs(LLAMA, ("layernorm",))
    assert freed == pytest.approx(2 * 2 * 8192 * SEQUENCE)


def test_a_flash_kernel_gives_nothing_back_and_costs_its_forward() -> None:
    seconds, freed = costs(LLAMA, ("core_attn",))
    assert freed == 0.0 and seconds > 0.0


@pytest.mark.parametrize(("name", "modules"), [
    (LLAMA, ("layernorm", "mlp")), (MIXTRAL, ("layernorm", "moe_act")),
    (DEEPSEEK, ("layernorm", "moe_act", "mla_up_proj")), (DEEPSEEK, ("core_attn", "shared_experts", "mlp")),
])  # fmt: skip
def test_modules_add_up(name: str, modules: tuple[str, ...]) -> None:
    whole = np.array(costs(name, modules))
    assert whole == pytest.approx(np.sum([costs(name, (m,)) for m in modules], axis=0))


@pytest.mark.parametrize("name", [LLAMA, MIXTRAL, DEEPSEEK])
def test_a_module_that_the_model_has_not_costs_nothing(name: str) -> None:
    experts = ("moe_act", "moe", "shared_experts")
    absent = {LLAMA: ("mla_up_proj", *experts), MIXTRAL: ("mla_up_proj", "shared_experts", "mlp")}
    for module in absent.get(name, ()):
        assert costs(name, (module,)) == (0.0, 0.0), module


def test_a_whole_expert_layer_holds_the_modules_within_it() -> None:
    alone = costs(DEEPSEEK, ("moe",))
    assert costs(DEEPSEEK, ("moe", "moe_act", "shared_experts")) == pytest.approx(alone)
    assert alone[1] > costs(DEEPSEEK, ("moe_act", "shared_experts"))[1]
    # Its tokens travel once more.
    p = problem(DEEPSEEK, gpus=64, batch=64, sequence=SEQUENCE, changes={"recompute_modules": ("moe",)})
    table = layer_table(p, Strategies.of([Strategy(dp=64, ep=64)]))
    travel = float(table.forward[PARTS.index("ep_comm"), len(p.model.kinds) - 1, 0])
    assert 0 < travel < costs(DEEPSEEK, ("moe",), ep=64)[0]

"""One spelling for every layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.splits import even_split, layers_by_rank
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.canonical import canonical


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Strategy(pp=4, layers_per_stage=(20, 20, 20, 20)), Strategy(pp=4)),
        (Strategy(cp_comm="a2a"), Strategy()),
        (Strategy(dp=8, zero_group=8), Strategy(dp=8)),
        (Strategy(dp=8, zero=0, zero_group=4), Strategy(dp=8, zero=0)),
        (Strategy(pp=4, recompute="full", recompute_per_stage=(3, 3, 3, 3)),
         Strategy(pp=4, recompute="full", recompute_layers=3)),
        (Strategy(pp=4, recompute="full", recompute_layers=20), Strategy(pp=4, recompute="full")),
        (Strategy(pp=4, recompute="full", layers_per_stage=(19, 21, 21, 19), recompute_per_stage=(19, 20, 20, 19)),
         Strategy(pp=4, recompute="full", layers_per_stage=(19, 21, 21, 19), recompute_layers=20)),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_left_out(one: Strategy, other: Strategy) -> None:
    assert canonical(one, 80) == canonical(other, 80) == other


@pytest.mark.parametrize(
    "s",
    [
        Strategy(pp=4, layers_per_stage=(19, 20, 21, 20)),
        Strategy(cp=4, cp_comm="a2a", ulysses=4, zero_group=2),
        Strategy(pp=4, recompute="full", recompute_per_stage=(3, 4, 3, 3)),
        # A V has two chunks per rank: refused by a rule, and no reason to fall over before it.
        Strategy(pp=2, vpp=3, schedule="zb-v", recompute="full", recompute_layers=3),
        Strategy(pp=4, layers_per_stage=(40, 40), recompute="full", recompute_layers=3),
    ],
)
def test_what_has_an_effect_stays(s: Strategy) -> None:
    assert canonical(s, 80) == s


def test_the_second_turn_of_a_v_comes_back() -> None:
    assert layers_by_rank((1, 2, 3, 4), 2, 2, "zb-v") == (5, 5)
    assert layers_by_rank((1, 2, 3, 4), 2, 2, "interleaved") == (4, 6)
    assert layers_by_rank((1, 2, 3, 4), 4, 1, "dualpipe") == (5, 5, 5, 5)


@given(
    st.integers(1, 8), st.integers(1, 4), st.integers(-1, 30), st.sampled_from(["none", "full"]), st.integers(32, 90)
)
def test_it_is_idempotent(pp: int, vpp: int, count: int, recompute: str, layers: int) -> None:
    s = Strategy(pp=pp, vpp=vpp, recompute=recompute, recompute_layers=count if recompute == "full" else -1,
                 layers_per_stage=even_split(layers, pp * vpp))  # fmt: skip
    once = canonical(s, layers)
    assert canonical(once, layers) == once and once.layers_per_stage is None

"""Rules: checked over arrays, explained for one strategy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.launchers.rule import Rule, Violation, allowed, divisors, nearest, violations

from .problems import problem

EVEN_TP = Rule("even-tp", "tp = {tp} of {gpus} GPUs is odd: try {better}", lambda p, s: s.tp % 2 == 0,
               values=lambda p, s: {"better": s.tp + 1})  # fmt: skip
SPLIT = Rule("no-split", "layers_per_stage = {layers_per_stage}", lambda p, s: s.tp > 0,
             lambda p, s: s.layers_per_stage is None)  # fmt: skip


def test_a_message_is_filled_with_strategy_problem_and_own_values() -> None:
    assert EVEN_TP.explain(problem(), Strategy(tp=3)) == "tp = 3 of 512 GPUs is odd: try 4"


def test_violations_come_in_rule_order_and_print_as_one_line() -> None:
    broken = violations(problem(), Strategy(tp=3, layers_per_stage=(80,)), [SPLIT, EVEN_TP])
    assert [v.rule for v in broken] == ["no-split", "even-tp"]
    assert str(broken[0]) == "no-split: layers_per_stage = [80]"


def test_a_strategy_that_breaks_nothing_has_no_violations() -> None:
    assert violations(problem(), Strategy(tp=2), [SPLIT, EVEN_TP]) == []


def test_allowed_is_the_conjunction_over_arrays() -> None:
    big = Rule("big", "", lambda p, s: s.tp >= 3)
    assert allowed(problem(), Strategies(tp=[1, 2, 3, 4]), [EVEN_TP, big]).tolist() == [False, False, False, True]


def test_no_rules_allow_everything() -> None:
    assert allowed(problem(), Strategies(tp=[1, 2]), []).tolist() == [True, True]


def test_violations_are_values() -> None:
    assert Violation("a", "b") == Violation("a", "b")


@pytest.mark.parametrize(
    ("value", "choices", "expected"),
    [(5, [1, 2, 4, 8], 4), (6, [4, 8], 4), (7, [4, 8], 8), (1, [], "none"), (3, [9], 9)],
)
def test_nearest(value: int, choices: list[int], expected: int | str) -> None:
    assert nearest(value, choices) == expected


@given(st.integers(1, 100_000))
def test_divisors_are_all_of_them_in_order(number: int) -> None:
    every = np.arange(1, number + 1)
    assert divisors(number) == every[number % every == 0].tolist()

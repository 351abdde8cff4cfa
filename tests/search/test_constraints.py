"""What the user asks for: reading it, naming it, and holding strategies to it."""

import numpy as np
import pytest

from shardwise.costmodel.strategy import Strategies, Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.search.constraints import DIMENSIONS, Constraints

from .small import problem


def test_every_array_field_of_a_strategy_can_be_pinned():
    fields = set(Strategy().as_dict()) - {"layers_per_stage", "recompute_per_stage"}
    assert set(DIMENSIONS) == fields


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ({"tp": 8}, "pin tp=8"),
        ({"tp": "4|8"}, "pin tp=4|8"),
        ({"tp": (4, 8)}, "pin tp=4|8"),
        ({"mbs": 2}, "pin micro_batch_size=2"),
        ({"sp": True}, "pin sp=on"),
        ({"sp": "off"}, "pin sp=off"),
        ({"cp_comm": "a2a"}, "pin cp_comm=a2a"),
        ({"micro-batch-size": 1}, "pin micro_batch_size=1"),
    ],
)
def test_wishes_are_named_as_one_would_type_them(wish, name):
    assert [c.name for c in Constraints.of(wish).items] == [name]


@pytest.mark.parametrize(
    ("kind", "wish", "said"),
    [
        ("pins", {"tpp": 8}, "unknown dimension 'tpp'"),
        ("pins", {"tp": "eight"}, "tp = 'eight'"),
        ("pins", {"tp": -1}, "tp = -1"),
        ("pins", {"cp_comm": "ring"}, "cp_comm = 'ring'"),
        ("pins", {"tp": ()}, "at least one value"),
        ("least", {"sp": True}, "expected one number"),
        ("most", {"cp": "1|2"}, "expected one number"),
        ("most", {"schedule": "1f1b"}, "expected one number"),
    ],
)
def test_bad_wishes_name_dimension_and_value(kind, wish, said):
    with pytest.raises(InputError, match=said.replace("|", r"\|")):
        Constraints.of(**{kind: wish})


def test_rules_accept_exactly_what_was_asked_for():
    rows = Strategies(tp=[1, 2, 4, 8], recompute=[0, 1, 2, 0])
    asked = {
        "pin": ({"tp": "2|8"}, [False, True, False, True]),
        "ban": ({"recompute": "full"}, [True, True, False, True]),
        "min": ({"tp": 4}, [False, False, True, True]),
        "max": ({"tp": 2}, [True, True, False, False]),
    }
    for kind, (wish, expected) in asked.items():
        key = {"pin": "pins", "ban": "bans", "min": "least", "max": "most"}[kind]
        (rule,) = Constraints.of(**{key: wish}).rules()
        assert rule.check(problem(), rows).tolist() == expected


def test_a_rule_explains_itself():
    (rule,) = Constraints.of({"tp": 8}).rules()
    assert rule.explain(problem(), Strategy(tp=4)) == "the request says pin tp=8, not tp = 4"


def test_wishes_can_be_dropped():
    wishes = Constraints.of({"tp": 8, "pp": 2})
    assert [c.name for c in wishes.without(wishes.items[0]).items] == ["pin pp=2"]
    assert wishes.allows("tp", np.array([4, 8])).tolist() == [False, True]

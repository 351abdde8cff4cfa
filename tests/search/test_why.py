"""Every price of another value of one dimension, against planning anew with that value pinned."""

from itertools import islice

import numpy as np
import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.rule import violations
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search, with_split
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space
from shardwise.search.why import reasons

from .small import dense_model, moe_model, problem

_LIMIT_S = 2.0
"""Of each search with a pin: what it has found and shown by then is true."""

PINS = ({}, {}, {"tp": "1|2"}, {"pp": "2|4"}, {"recompute": "full|none"}, {"zero": "1|3"})
WRITERS = ("megatron", "generic", "torchtitan", "deepspeed", "nanotron", "megatron-bridge", "accelerate")
REAL = (
    ("llama-3.1-8b", "dgx-h100", 16), ("mixtral-8x7b", "dgx-h100", 32), ("qwen3-30b-a3b", "dgx-h100", 32),
    ("llama-2-13b", "dgx-a100", 32), ("llama-3.1-70b", "dgx-h100", 64), ("gpt-oss-20b", "dgx-h100", 16),
    ("deepseek-v2-lite", "dgx-h100", 16), ("llama-3.1-405b", "dgx-h100", 512),
)  # fmt: skip


def drawn(seed, real):
    """Random finished searches that found something, with the wishes they kept to."""
    rng = np.random.default_rng(seed)
    while True:
        if real:
            name, cluster, gpus = REAL[rng.integers(len(REAL))]
            p = problem(ModelSpec.from_preset(name), gpus, 2 * gpus, int(rng.choice((4096, 8192))), cluster=cluster)
        else:
            make, layers = (dense_model, moe_model)[rng.integers(2)], int(rng.integers(3, 9))
            model = make(layers, 1024, 8) if make is dense_model else make(layers, 1024, 8, 8)
            gpus, batch = (int(rng.choice(x)) for x in ((4, 8, 16), (16, 32, 64)))
            memory = (1.5, 2.0, 3.0, None)[rng.integers(4)]
            p = problem(model, gpus, batch, 4096, memory, cluster=str(rng.choice(("dgx-a100", "dgx-h100"))))
        who, pins = get_launcher(str(rng.choice(WRITERS if real else WRITERS[:2]))), PINS[rng.integers(len(PINS))]
        try:
            who.check_model(p)
        except InputError:  # the launcher cannot express the model
            continue
        found = search(Space(p, who, Constraints.of(pins)), Clock(_LIMIT_S) if real else None)
        if found.best is not None:
            yield found, pins


def is_true(notch, p, who, pins):
    """A price is that of a layout with the value, not under the best with it, and that where it says so."""
    space = Space(p, who, Constraints.of({**pins, notch.dimension: notch.other}))
    best = search(space, Clock(_LIMIT_S))
    if notch.step_time_s is None:
        return best.best is None or not notch.exact
    own = with_split(p, notch.strategy)
    answer = estimate(p, own)
    assert answer.fits and answer.step_time_s == pytest.approx(notch.step_time_s)
    assert getattr(own, notch.dimension) == notch.other
    assert not violations(p, own, (*Constraints.of(pins).rules(), *who.rules))
    least = min(best.step_s, best.open_bound_s) * (1.0 - 2.0 * TOLERANCE)
    most = best.step_s * (1.0 + 2.0 * TOLERANCE) if notch.exact else np.inf
    return least <= notch.step_time_s <= most


def checked(found, pins):
    """The notches of a search, and how many of them claim to be proven."""
    p, who = found.problem, found.space.launcher
    notches = reasons(found, estimate(p, with_split(p, found.best)))
    # A wish on the dimension itself is not given up for a price.
    for notch in (n for n in notches if n.dimension not in pins):
        assert is_true(notch, p, who, pins), notch
    return len(notches), sum(n.exact for n in notches), sum(n.step_time_s is None for n in notches)


def test_prices_are_true():
    told, proven, none = np.sum([checked(*question) for question in islice(drawn(1, False), 3)], axis=0)
    assert told > 20 and proven > 3 and none > 0


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "real", "many"), [(2, False, 12), (3, True, 5)])
def test_more_prices_are_true(seed, real, many):
    told, proven, _ = np.sum([checked(*question) for question in islice(drawn(seed, real), many)], axis=0)
    assert told > 5 * many and proven > many


# ---- what was said to be impossible and is not


def notch_of(p, who, dimension, other, **pins):
    found = search(Space(p, get_launcher(who), Constraints.of(pins)))
    assert isinstance(found.best, Strategy)
    notches = reasons(found, estimate(p, with_split(p, found.best)))
    (one,) = [n for n in notches if (n.dimension, n.other) == (dimension, other)]
    return one


def test_what_fits_with_everything_recomputed_only_has_a_price():
    p = problem(ModelSpec.from_preset("llama-3.1-405b"), 512, 1024, 4096, cluster="dgx-h100")
    assert notch_of(p, "nanotron", "schedule", "gpipe").step_time_s is not None


def test_a_switch_that_the_plan_may_not_turn_has_the_price_of_the_layouts_that_may():
    p = problem(moe_model(6, 1024, 8, 8), 4, 32, 4096, 2.0, cluster="dgx-h100")
    one = notch_of(p, "megatron", "ep_overlap", True, ep="2|4", zero="1|3", recompute="full|none")
    assert one.step_time_s is not None and one.strategy.ep_overlap


def test_groups_that_other_meshes_could_have_are_not_said_to_be_impossible():
    p = problem(ModelSpec.from_preset("llama-3.1-70b"), 64, 128, 4096, cluster="dgx-h100")
    assert not notch_of(p, "accelerate", "zero_group", 8, zero="1|3").exact

"""The proven front of step time against memory headroom, against plain enumeration."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.evaluate import capacity_bytes, evaluate
from shardwise.costmodel.strategy import Strategies
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.search import pareto
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search, with_split
from shardwise.search.pareto import proven_front
from shardwise.search.planner import plan
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space

from .small import dense_model, every_strategy, launcher, moe_model, problem

WHOLE = Constraints.of({"pp": 1, "zero_group": 0, "offload": "0|1"})


def front_of(p, points, wishes):
    found = search(Space(p, launcher("megatron"), wishes))
    return proven_front(found, estimate(p, with_split(p, found.best)), points, Clock(None))


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from((dense_model(3), dense_model(2, 1024, 8), moe_model(3))),
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1.5, 2.5, 4.0)),
    st.integers(2, 9),
)
def test_every_point_is_the_best_with_so_much_left_free(model, gpus, memory, points):
    p = problem(model, gpus=gpus, batch=8, sequence=2048, memory_gib=memory, fixed_s_per_step=0.0)
    rows = [s for s in every_strategy(p, launcher("megatron")) if s.pp == 1]
    e = evaluate(p, Strategies.of(rows))
    if not e.fits.any():
        return
    front = front_of(p, points, WHOLE)
    capacity = capacity_bytes(p)
    for share in range(points):
        allowed = capacity * (1.0 - share / points)
        step = e.step_time_s[e.peak_memory_bytes <= allowed].min(initial=np.inf)
        mine = [f.step_time_s for f in front if f.peak_memory_bytes <= allowed]
        assert min(mine, default=np.inf) == pytest.approx(step, rel=2 * TOLERANCE)


@pytest.mark.parametrize("model", [dense_model(6), moe_model(6)])
def test_pipelines_trade_too(model):
    p = problem(model, gpus=8, batch=16, sequence=4096, memory_gib=4.0)
    front = front_of(p, 8, Constraints())
    assert 3 <= len(front) <= 8
    for one, two in pairwise(front):
        assert one.step_time_s <= two.step_time_s and one.peak_memory_bytes > two.peak_memory_bytes
    for point in front:
        assert point.bound_s <= point.step_time_s
        assert point.headroom_bytes == pytest.approx(capacity_bytes(p) - point.peak_memory_bytes)
        assert estimate(p, point.strategy).step_time_s == point.step_time_s
        assert not launcher("megatron").violations(p, point.strategy)


def test_a_front_is_proven_only_where_it_is_asked_for():
    work = Workload(64, 4096)
    plain = plan("llama-3.1-8b", "dgx-h100", work, num_gpus=16, refine_trials=0)
    asked = plan("llama-3.1-8b", "dgx-h100", work, num_gpus=16, refine_trials=0, pareto_points=4)
    assert all(p.bound_s is None for p in plain.pareto)
    assert 1 <= len(asked.pareto) <= 4 and all(p.bound_s is not None for p in asked.pareto)
    assert asked.strategy == plain.strategy == asked.pareto[0].strategy
    for point in asked.pareto:
        # Nothing that was evaluated beats a proven point.
        better = [q for q in plain.pareto if q.headroom_bytes >= point.headroom_bytes and q.step_time_s < point.bound_s]
        assert not better


def test_an_interrupt_keeps_the_points_so_far(monkeypatch):
    p = problem(dense_model(6), gpus=8, batch=16, sequence=4096, memory_gib=4.0)
    whole, rest = front_of(p, 8, Constraints()), iter([search])

    def interrupted(*args, **kwargs):
        try:
            return next(rest)(*args, **kwargs)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(pareto, "search", interrupted)
    assert front_of(p, 8, Constraints()) == whole[:2]


def test_too_many_points_are_refused():
    with pytest.raises(InputError, match="pareto_points = 33: expected 0 to 32"):
        plan("llama-3.1-8b", "dgx-h100", Workload(64, 4096), num_gpus=16, pareto_points=33)

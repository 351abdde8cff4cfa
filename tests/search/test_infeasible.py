"""What is said to help is done literally and planned again: it must help, and what claims to be least must be."""

import re
from dataclasses import replace
from itertools import islice, takewhile

import numpy as np
import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import get_launcher
from shardwise.launchers.choice import Choice
from shardwise.launchers.own_splits import with_own_split
from shardwise.launchers.rule import violations
from shardwise.search.cases import Case
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search, with_split
from shardwise.search.goal import decide
from shardwise.search.infeasible import Change, NothingFitsError, fewest_more
from shardwise.search.objective import Objective
from shardwise.search.proof import TOLERANCE, Clock
from shardwise.search.space import Space

from .small import dense_model, moe_model, problem

PINS = (
    {}, {}, {"tp": 3}, {"tp": 4, "pp": 1}, {"pp": 4}, {"dp": 2}, {"ep": 2}, {"cp": 2}, {"recompute": "none"},
    {"zero": 0}, {"recompute": "none", "offload_optimizer": 0, "zero": 1}, {"micro_batch_size": 4},
)  # fmt: skip
REAL = (
    ("llama-3.1-8b", "dgx-h100", 1, 8), ("llama-3.1-70b", "dgx-h100", 8, 60), ("mixtral-8x7b", "dgx-h100", 8, 32),
    ("llama-3.1-405b", "dgx-h100", 32, 64), ("deepseek-v3", "dgx-h100", 64, 256), ("llama-2-13b", "dgx-a100", 2, 10),
)  # fmt: skip
WRITERS = ("megatron", "generic", "torchtitan", "deepspeed", "nanotron", "megatron-bridge", "accelerate")


def asked(p, who, pins, objective=None):
    """The best layout's search, or the refusal."""
    case = Case(p, Choice(get_launcher(who), p.runtime))
    try:
        case.choice.launcher.check_model(p)
        return decide([case], objective or Objective(), Constraints.of(pins), Clock(None), None)[1]
    except NothingFitsError as error:
        return error
    except InputError:  # the launcher cannot express the model
        return None


def drawn(seed, real):
    """Random requests without an answer."""
    rng = np.random.default_rng(seed)
    while True:
        if real:
            name, cluster, gpus, batch = REAL[rng.integers(len(REAL))]
            p = problem(ModelSpec.from_preset(name), gpus, batch, 4096, cluster=cluster)
        else:
            make, layers = (dense_model, moe_model)[rng.integers(2)], int(rng.integers(3, 9))
            model = make(layers, 1024, 8) if make is dense_model else make(layers, 1024, 8, 8)
            gpus, batch = (int(rng.choice(x)) for x in ((1, 2, 3, 4, 8), (4, 5, 6, 7, 12, 16)))
            memory = float(rng.choice((0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)))
            p = problem(model, gpus, batch, 4096, memory, cluster=str(rng.choice(("dgx-a100", "dgx-h100"))))
        who, pins = str(rng.choice(WRITERS if real else WRITERS[:2])), PINS[rng.integers(len(PINS))]
        if search(Space(p, get_launcher(who), Constraints.of(pins)), splits=False).best is not None:
            continue
        refusal = asked(p, who, pins)
        if isinstance(refusal, NothingFitsError):
            yield p, who, pins, refusal


def changed(p, who, pins, change):
    """The request as a change says it should be."""
    words = change.description
    if found := re.fullmatch(r"(\d+) GPUs", words):
        return replace(p, cluster=p.cluster.with_num_gpus(int(found[1]))), who, pins
    if found := re.fullmatch(r"a global batch of (\d+)", words):
        return replace(p, workload=replace(p.workload, global_batch_size=int(found[1]))), who, pins
    if found := re.fullmatch(r"drop pin (\w+)=\S+", words):
        assert found[1] in pins
        return p, who, {name: value for name, value in pins.items() if name != found[1]}
    assert words == "drop all wishes"
    return p, who, {}


def counts_above(p):
    node, gpus = p.cluster.node_size, p.cluster.num_gpus
    return (n for n in range(gpus + 1, 64 * gpus + 1) if n <= node or n % node == 0)


def helps(p, who, pins, change, anew):
    """Whether the layout that a change names runs and fits once it is made, and planning anew finds one as quick."""
    p, who, pins = changed(p, who, pins, change)
    whole = with_split(p, with_own_split(get_launcher(who), p, change.strategy))
    answer, space = estimate(p, whole), Space(p, get_launcher(who), Constraints.of(pins))
    assert answer.fits and answer.step_time_s == pytest.approx(change.step_time_s), change
    assert not violations(p, whole, space.rules), change
    if anew:
        assert asked(p, who, pins).step_s <= change.step_time_s * (1.0 + TOLERANCE), change


def helps_and_is_least(p, who, pins, refusal):
    for change in refusal.changes:
        helps(p, who, pins, change, anew=p.model.name.startswith("small"))
    said = [int(c.description.split()[0]) for c in refusal.changes if c.description.endswith("GPUs")]
    assert len(said) <= 1
    fewer = list(takewhile(lambda n: not said or n < said[0], islice(counts_above(p), 8)))
    for gpus in {*fewer[:8], *(n for n in counts_above(p) if said and n == said[0] - p.cluster.node_size)}:
        larger = replace(p, cluster=p.cluster.with_num_gpus(gpus))
        assert search(Space(larger, get_launcher(who), Constraints.of(pins)), splits=False).best is None, gpus
    batch = p.workload.global_batch_size
    said = [abs(int(c.description.split()[-1]) - batch) for c in refusal.changes if "a global batch" in c.description]
    for other in range(max(1, batch - said[0] + 1), batch + said[0]) if said and p.cluster.num_gpus <= 8 else ():
        nearer = replace(p, workload=replace(p.workload, global_batch_size=other))
        assert isinstance(asked(nearer, who, pins), NothingFitsError), other
    return len(refusal.changes)


@pytest.mark.parametrize("real", [False, True])
def test_what_would_help_does_and_is_the_least(real):
    assert sum(helps_and_is_least(*request) for request in islice(drawn(1, real), 4 if real else 6)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_what_would_help_does_for_more_requests(real):
    assert sum(helps_and_is_least(*request) for request in islice(drawn(2, real), 12 if real else 30)) >= 10


def test_a_limit_is_met_on_as_few_more_gpus_as_are_named():
    p = problem(dense_model(4), gpus=2, batch=60, sequence=4096)
    alone = asked(p, "megatron", {}).step_s
    for share in (0.8, 0.55, 0.3):
        wanted = Objective(max_step_time_s=share * alone)
        (change,) = asked(p, "megatron", {}, wanted).changes
        gpus = int(change.description.split()[0])
        for n in (n for n in counts_above(p) if n <= gpus):
            larger = replace(p, cluster=p.cluster.with_num_gpus(n))
            best = search(Space(larger, get_launcher("megatron"), Constraints()), splits=False)
            assert (best.step_s <= wanted.max_step_time_s * (1.0 + TOLERANCE)) == (n == gpus)


@pytest.mark.parametrize(("gpus", "enough"), [(1, 3), (3, 4), (8, 72), (8, 200), (24, 32), (64, 1000), (64, 1001)])
def test_the_fewest_more_gpus_of_a_job_that_needs_so_many(gpus, enough):
    cluster = problem().cluster.with_num_gpus(gpus)
    tried = []

    def attempt(count):
        tried.append(count)
        return Change(f"{count} GPUs", None, 1.0) if count >= enough else None

    whole = enough if enough <= 8 else -(-enough // 8) * 8
    assert fewest_more(cluster, attempt).description == f"{whole} GPUs"
    assert len(tried) <= 24 and len(set(tried)) == len(tried)
    assert fewest_more(cluster, lambda count: None) is None

"""Small answers that the tests of reports look at, each searched once."""

import pytest

import shardwise

STUDY = {
    "name": "One network & <another>",
    "model": "llama-3.2-1b",
    "cluster": "dgx-h100",
    "gpus": 8,
    "global_batch": 64,
    "seq_len": 2048,
    "price_per_gpu_hour": 2.0,
    "vary": {"gpus": [8, 16], "cluster.accelerator.memory_bytes": {"times": [0.02, 1.0, 1.5]}},
}
"""Nothing fits in a fiftieth of the memory: two points have no answer."""


@pytest.fixture(scope="session")
def plan():
    """A plan with a pipeline of four ranks, a front and runners-up."""
    pins = {"pp": "4"}
    work = shardwise.Workload(64, 4096)
    return shardwise.plan(
        "llama-3.1-8b", "dgx-h100", work, num_gpus=16, pins=pins, refine_trials=0, pareto_points=3, top=3
    )


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """A study of two knobs with points that have no answer."""
    return shardwise.study(STUDY, tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """A study of one axis at a time."""
    asked = {**STUDY, "mode": "one-at-a-time", "vary": {"cluster.accelerator.peak_flops": {"times": [0.5, 2.0]}}}
    return shardwise.study(asked, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="session")
def plan_html(plan):
    """The page of the plan with its launch files."""
    from shardwise.cli.reports.plan_page import plan_page
    from shardwise.cli.reports.render import html

    return html(plan_page(plan, plan.launch()))


@pytest.fixture(scope="session")
def study_html(study):
    """The page of the study."""
    from shardwise.cli.reports.render import html
    from shardwise.cli.reports.study_page import study_page

    return html(study_page(study))


JOB = {"model": "llama-3.2-1b", "cluster": "dgx-h100", "gpus": 8, "global_batch": 64, "seq_len": 2048}
"""What the questions start from."""


@pytest.fixture(scope="session")
def scaling():
    """A job on one, two and four nodes."""
    from shardwise.search.studies.whatif import scale

    return scale(JOB, [8, 16, 32], bound=0.9)


@pytest.fixture(scope="session")
def question_html(scaling):
    """The page of a question."""
    from shardwise.cli.reports.question_page import scaling_page
    from shardwise.cli.reports.render import html

    return html(scaling_page(JOB, scaling))

"""A long step stays small and readable: what is shown of it, and on which scale."""

import pytest

import shardwise
from shardwise.cli.reports import timeline
from shardwise.cli.reports.content import Page, Section
from shardwise.cli.reports.render import html
from shardwise.cli.reports.sheet import Sheet

from .pages import check


@pytest.fixture(scope="module")
def long_step():
    """16 stages, 64 micro-batches."""
    strategy = "tp=1,pp=16,mbs=1,recompute=full"
    e = shardwise.estimate("llama-3.1-70b", "dgx-h100", shardwise.Workload(64 * 8, 4096), strategy, num_gpus=128)
    assert (e.strategy.pp, e.strategy.num_microbatches) == (16, 64)
    return shardwise.simulate(e.problem, e.strategy)


@pytest.mark.parametrize("most", [40, 100])
def test_a_long_step_shows_start_middle_and_end(long_step, most):
    (a, b), (c, d), (e, f) = timeline.windows(long_step, most)
    assert a == 0.0 and f == long_step.step_time_s
    assert a < b <= c < d <= e < f
    share = (b - a + d - c + f - e) / long_step.step_time_s
    assert share <= 1.2 * most / (2 * 64)


def test_a_short_step_is_shown_whole(long_step):
    assert timeline.windows(long_step, 128) == [(0.0, long_step.step_time_s)]


@pytest.mark.parametrize("wide", [True, False])
def test_stretches_share_one_scale(long_step, wide):
    sheet = Sheet(wide)
    timeline.chart(long_step).draw(sheet)
    sheet.figure.draw_without_rendering()
    scales = [ax.get_window_extent().width / (ax.get_xlim()[1] - ax.get_xlim()[0]) for ax in sheet.figure.axes]
    assert scales == pytest.approx([scales[0]] * len(scales), rel=0.02)


def test_its_page_is_small(long_step):
    chart = timeline.chart(long_step)
    page = html(Page("A long step", "", (), (Section("time", "Time", (chart,)),)))
    check(page)
    assert len(page.encode()) < 400_000
    assert len(chart.csv().splitlines()) == 1 + 16 * (2 * 64 + 2)

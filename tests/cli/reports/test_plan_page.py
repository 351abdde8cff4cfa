"""The page of a plan says what the plan says, and holds together as a page."""

import csv
import io
import re
from itertools import pairwise

import pytest

from shardwise.cli.plan_report import paste
from shardwise.cli.reports.plan_page import plan_page
from shardwise.cli.reports.render import html
from shardwise.cli.reports.sheet import Sheet

from .pages import check, number


@pytest.fixture(scope="module")
def page(plan_html):
    return check(plan_html)


@pytest.fixture(scope="module")
def charts(plan):
    return {chart.name: chart for chart in plan_page(plan, {}).charts()}


def rows_of(chart):
    return list(csv.DictReader(io.StringIO(chart.csv())))


def test_every_figure_of_a_plan_is_there(charts):
    assert set(charts) == {
        "time-by-part", "pipeline-timeline", "memory-by-rank", "traffic-by-parallelism", "price-of-a-notch",
        "runners-up", "pareto-front",
    }  # fmt: skip


def test_the_headline_is_the_plans(page, plan):
    said = {e["text"].strip() for e in page.all("dd")}
    low, high = plan.estimate.interval_s
    step = next(number(text) for text in said if f"{low:.3g}"[:4] in text and f"{high:.3g}"[:4] in text)
    assert step in (pytest.approx(plan.step_time_s, rel=6e-3), pytest.approx(plan.step_time_s * 1e3, rel=6e-3))


def test_times_are_the_plans(page, plan, charts):
    heads, *rows, total = page.tables()["Step time by part"]
    assert heads == ["part", "kind", "ms", "share"]
    parts = {k.replace("_", " "): s for k, s in plan.estimate.time_parts_s.items() if s}
    assert {row[0]: number(row[2]) for row in rows} == pytest.approx({k: 1e3 * s for k, s in parts.items()}, abs=0.051)
    assert number(total[2]) == pytest.approx(plan.step_time_s * 1e3, abs=0.051)
    exact = {row["part"]: float(row["time_s"]) for row in rows_of(charts["time-by-part"])}
    assert exact == {**parts, "step": plan.step_time_s}


def test_bars_are_as_long_as_the_times(plan, charts):
    sheet = Sheet(wide=True)
    charts["time-by-part"].draw(sheet)
    drawn = sorted(bar.get_width() for bar in sheet.figure.axes[0].patches)
    assert drawn == pytest.approx(sorted(1e3 * s for s in plan.estimate.time_parts_s.values() if s))


def test_memory_is_the_plans(page, plan):
    e = plan.estimate
    (caption,) = (c for c in page.tables() if c.startswith("Peak memory of each pipeline rank"))
    _, *rows = page.tables()[caption]
    gib = 2.0**30
    assert [number(row[-2]) for row in rows] == pytest.approx([b / gib for b in e.memory_by_rank_bytes], abs=0.0051)
    assert [sum(map(number, row[1:-2])) for row in rows] == pytest.approx([number(r[-2]) for r in rows], abs=0.06)
    assert number(caption.split(",")[1]) == pytest.approx(e.capacity_bytes / gib, abs=0.0051)


def test_stacks_end_at_the_peak_and_the_line_at_the_capacity(plan, charts):
    sheet = Sheet(wide=False)
    charts["memory-by-rank"].draw(sheet)
    (axes,) = sheet.figure.axes
    ends = {}
    for bar in axes.patches:
        rank = round(bar.get_y() + bar.get_height() / 2)
        ends[rank] = max(ends.get(rank, 0.0), bar.get_x() + bar.get_width())
    peaks = [b / 2.0**30 for b in plan.estimate.memory_by_rank_bytes]
    assert [ends[rank] for rank in sorted(ends)] == pytest.approx(peaks)
    (line,) = axes.lines
    assert line.get_xdata()[0] == pytest.approx(plan.estimate.capacity_bytes / 2.0**30)


def test_traffic_is_the_plans(plan, charts):
    found = sum(float(row["bytes_per_step"]) for row in rows_of(charts["traffic-by-parallelism"]))
    assert found == pytest.approx(sum(t.bytes_per_step for t in plan.estimate.traffic))


def test_the_timeline_has_every_pass_once_and_nothing_overlaps(plan, charts):
    rows = rows_of(charts["pipeline-timeline"])
    passes = [row for row in rows if row["microbatch"]]
    forward = {(r["rank"], r["chunk"], r["microbatch"]) for r in passes if r["what"] == "forward"}
    s = plan.strategy
    assert len(forward) == s.pp * s.vpp * s.num_microbatches == len(passes) / 2
    for rank in range(s.pp):
        mine = sorted((float(r["begin_s"]), float(r["end_s"])) for r in rows if int(r["rank"]) == rank)
        assert all(b <= c + 1e-9 for (_, b), (c, _) in pairwise(mine))
        assert mine[0][0] >= 0.0


def test_front_and_notches_are_the_plans(plan, charts):
    front = [(float(r["step_time_s"]), float(r["headroom_bytes"])) for r in rows_of(charts["pareto-front"])]
    assert front == [(p.step_time_s, p.headroom_bytes) for p in plan.pareto]
    notches = rows_of(charts["price-of-a-notch"])
    assert [r["step_time_s"] for r in notches] == [str(n.step_time_s or "") for n in plan.why]


def test_the_command_and_the_files_are_the_launchers(page, plan):
    files = plan.launch()
    texts = [e["text"] for e in page.all("code")]
    assert paste(files) in texts
    for name, text in files.items():
        assert name in texts and text in texts


def test_every_assumption_stands_on_the_page(page, plan):
    listed = {e["text"].strip() for e in page.all("li")}
    assert {*plan.assumptions} <= listed
    assert any("MFU counts" in text for text in listed)


def test_the_same_plan_gives_the_same_bytes(plan, plan_html):
    from dataclasses import replace

    slower = replace(plan, proof=replace(plan.proof, time_s=99.0))
    assert html(plan_page(slower, plan.launch())) == plan_html


def test_the_page_is_small(plan_html):
    assert len(plan_html.encode()) < 500_000


def test_colours_follow_the_page(plan_html):
    for svg in re.findall(r"<svg.*?</svg>", plan_html, re.DOTALL):
        assert "var(--ink)" in svg and "var(--muted)" in svg
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()

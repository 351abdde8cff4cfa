"""The page of a study says what its rows say."""

import csv
import io

import pytest

from shardwise.cli.reports.render import html
from shardwise.cli.reports.study_page import study_page

from .pages import check, number


@pytest.fixture(scope="module")
def page(study_html):
    return check(study_html)


@pytest.fixture(scope="module")
def charts(study):
    return {chart.name: chart for chart in study_page(study).charts()}


def test_a_name_is_text_not_markup(page):
    (heading,) = page.all("h1")
    assert heading["text"] == "One network & <another>"


def test_every_figure_of_a_study_is_there(charts):
    metrics = ("step-time", "throughput", "mfu", "cost")
    both = {f"{m}-{kind}" for m in metrics for kind in ("curve", "grid")}
    assert set(charts) == {*both, "time-by-point", "memory-by-point"}


def test_every_point_is_listed_with_its_answer(page, study):
    heads, *rows = page.tables()["Best layout of each point"]
    assert len(rows) == len(study.rows) == 6
    at = heads.index("tokens/s/GPU")
    for cells, row in zip(rows, study.rows, strict=True):
        assert number(cells[0]) == row["gpus"] and cells[1] == row["cluster.accelerator.memory_bytes"]
        if row["status"] == "ok":
            assert number(cells[at]) == pytest.approx(row["tokens_per_s_per_gpu"], rel=6e-3)
        else:
            assert cells[at] == "" and row["message"] in cells[-1]


def test_a_grid_has_a_cell_for_each_point(charts, study):
    rows = list(csv.DictReader(io.StringIO(charts["step-time-grid"].csv())))
    cells = [float(v) for row in rows for name, v in row.items() if name.startswith("step_time_s") and v]
    assert sorted(cells) == sorted(row["step_time_s"] for row in study.solved_rows())
    assert sum(v == "" for row in rows for v in row.values()) == 2


def test_a_curve_has_a_value_for_each_point(charts, study):
    rows = list(csv.DictReader(io.StringIO(charts["throughput-curve"].csv())))
    values = [float(v) for row in rows for name, v in row.items() if name.startswith("tokens") and v]
    assert sorted(values) == sorted(row["tokens_per_s_per_gpu"] for row in study.solved_rows())


def test_points_without_an_answer_say_why(page, study):
    refused = {row["message"] for row in study.rows if row["status"] != "ok"}
    listed = " ".join(e["text"] for e in page.all("li"))
    assert len(refused) == 2 and all(message in listed for message in refused)


def test_the_same_study_gives_the_same_bytes_however_it_ran(study, study_html):
    from dataclasses import replace

    again = tuple({**row, "search_s": 9.0} for row in study.rows)
    assert html(study_page(replace(study, solved=0, rows=again))) == study_html


def test_one_axis_at_a_time_is_a_tornado(alone):
    page = study_page(alone)
    (spread,) = (chart for chart in page.charts() if chart.name == "spread")
    start, slow, quick = (row["step_time_s"] for row in alone.rows)
    rows = list(csv.DictReader(io.StringIO(spread.csv())))
    assert [float(r["ratio"]) for r in rows] == pytest.approx([slow / start, quick / start])
    assert slow > start > quick
    check(html(page))


def test_a_study_without_any_answer_still_has_a_page(study):
    from dataclasses import replace

    none = tuple({"status": "invalid", "message": "no", **{k: r[k] for k in study.study.axes}} for r in study.rows)
    page = check(html(study_page(replace(study, rows=none))))
    assert page.all("svg") == []

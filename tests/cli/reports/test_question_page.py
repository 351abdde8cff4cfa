"""The pages of ``shardwise whatif`` say what its answers say."""

import csv
import io

import pytest

from shardwise.cli.reports import question_page
from shardwise.cli.reports.render import html
from shardwise.search.studies.breakeven import changes, even
from shardwise.search.studies.whatif import cost, sensitivity

from .conftest import JOB
from .pages import check, number


def rows_of(page, name):
    (chart,) = (chart for chart in page.charts() if chart.name == name)
    return list(csv.DictReader(io.StringIO(chart.csv())))


def test_scaling(scaling):
    page = question_page.scaling_page(JOB, scaling)
    heads, *rows = check(html(page)).tables()["Best layout at each count"]
    assert [number(row[0]) for row in rows] == [row["gpus"] for row in scaling.rows]
    said = [number(row[heads.index("efficiency")]) for row in rows]
    assert said == pytest.approx([100.0 * e for e in scaling.efficiency], abs=0.051)
    found = rows_of(page, "efficiency")
    assert [float(row["efficiency"]) for row in found] == list(scaling.efficiency)


def test_sensitivity():
    answer = sensitivity(JOB, change=0.5)
    page = question_page.sensitivity_page(JOB, answer)
    check(html(page))
    rows = rows_of(page, "tornado")
    assert [(row["resource"], row["less_s"]) for row in rows] == [
        (i.resource, str(i.less_s or "")) for i in answer.influences
    ]


def test_break_even_between_layouts():
    path = "cluster.accelerator.memory_bytes"
    looked = {}
    found = changes(JOB, path, 2e9, 80e9, looked=looked)
    page = question_page.changes_page(JOB, path, (2e9, 80e9), found, looked)
    check(html(page))
    assert found
    (chart,) = page.charts()
    assert [row[1] for row in chart.table.rows] == [2e9, *(c.value for c in found)]
    assert [float(row[path]) for row in rows_of(page, "break-even")] == sorted(looked)


def test_break_even_between_clusters():
    looked = {}
    base = {**JOB, "price_per_gpu_hour": 2.0}
    other = {**base, "cluster": "dgx-b200", "price_per_gpu_hour": 5.0}
    ends = (0.5, 20.0)
    metric = "usd_per_million_tokens"
    value = even(base, other, "price_per_gpu_hour", *ends, metric, looked=looked)
    page = question_page.even_page(base, "price_per_gpu_hour", ends, "dgx-b200", metric, value, looked)
    read = check(html(page))
    assert ends[0] < value < ends[1] and set(ends) <= set(looked)
    assert any(f"{value:.4g}" in e["text"] for e in read.all("p"))


def test_cost():
    bills = cost(JOB, [("dgx-h100", 8, 2.5), ("dgx-b200", 8, None)], 1e9)
    page = question_page.cost_page(JOB, 1e9, bills)
    heads, *rows = check(html(page)).tables()["1.00 B tokens"]
    assert [number(row[heads.index("GPU-hours")]) for row in rows] == pytest.approx(
        [bill.gpu_hours for bill in bills], abs=0.51
    )
    assert number(rows[0][heads.index("US dollars")]) == pytest.approx(2.5 * bills[0].gpu_hours, abs=0.51)
    assert rows[1][heads.index("US dollars")] == ""


def test_the_command_line_writes_them(run, tmp_path):
    words = [w for k, v in JOB.items() if k != "gpus" for w in (f"--{k.replace('_', '-')}", str(v))]
    page, folder = tmp_path / "scale.html", tmp_path / "figures"
    result = run("whatif", "scale", *words, "--gpus", "8,16", "--report", page, "--figures", folder)
    assert result.exit_code == 0, result.stderr
    check(page.read_text(encoding="utf-8"))
    assert {p.name for p in folder.iterdir()} == {
        f"{n}.{kind}" for n in ("throughput", "efficiency") for kind in ("png", "svg", "csv")
    }
    refused = run("whatif", "sensitivity", *words, "--gpus", "8", "--report", tmp_path)
    assert refused.exit_code == 2 and "--report" in refused.stderr

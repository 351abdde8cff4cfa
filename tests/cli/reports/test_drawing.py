"""What is drawn stays on the sheet, whatever it is called."""

import pytest

from shardwise.cli.reports.drawing import bars, stacks
from shardwise.cli.reports.sheet import Sheet

NAMES = ["tp 1 → 2", "schedule interleaved → 1f1b", "rank order tp-cp-ep-dp-pp → tp-cp-ep-pp-dp"]


def outside(sheet):
    """Texts that do not lie on the sheet, a pixel aside."""
    figure = sheet.figure
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    found = []
    for axes in figure.axes:
        for text in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label):
            box = text.get_window_extent()
            if text.get_text() and (box.x0 < -1 or box.x1 > width + 1 or box.y0 < -1 or box.y1 > height + 1):
                found.append((text.get_text(), box))
    return found


@pytest.mark.parametrize("wide", [True, False])
def test_bars_with_long_names(wide):
    sheet = Sheet(wide)
    bars(sheet, NAMES, [1.0, 117.6, 30.0], ["#0a4d8c"] * 3, ["≤ +1.0 %", "≤ +117.6 %", "≤ +30.0 %"], "% more step time")
    assert outside(sheet) == []


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("count", [1, 16, 128])
def test_stacks_of_many_ranks(wide, count):
    sheet = Sheet(wide)
    names = [f"rank {r}" for r in range(count)]
    stacks(sheet, names, {"weights": [1.0] * count}, {"weights": "#0a4d8c"}, "GiB", (2.0, "usable"))
    assert outside(sheet) == []

"""Text can be read and marks be told apart, on light and dark pages, by everyone."""

import re
from itertools import pairwise

import pytest

from shardwise.cli.reports.palette import CARD, DARK, IDLE, LIGHT, SERIES, contrast, with_roles
from shardwise.cli.reports.timeline import _END_FILLS, _FILLS, SHADE

MODES = pytest.mark.parametrize("mode", [LIGHT, DARK], ids=["light", "dark"])


def test_contrast_is_that_of_wcag():
    # The two ends, and the grey that is known as the lightest to pass AA on white.
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@MODES
@pytest.mark.parametrize("text", ["ink", "muted", "accent", "bad"])
@pytest.mark.parametrize("ground", ["card", "page"])
def test_text_is_readable(mode, text, ground):
    assert contrast(mode[text], mode[ground]) >= 4.5


@MODES
def test_marks_stand_out(mode):
    for at in range(len(SERIES)):
        assert contrast(mode[f"s{at + 1}"], mode["card"]) >= 3.0


def lightness(colour):
    """CIE 1976 L* of an sRGB colour."""
    y = (contrast(colour, "#000000") * 0.05) - 0.05
    return 116.0 * y ** (1 / 3) - 16.0


@MODES
def test_neighbours_differ_in_lightness(mode):
    levels = [lightness(mode[f"s{at + 1}"]) for at in range(len(SERIES))]
    assert min(abs(a - b) for a, b in pairwise(levels)) >= 15.0


def role(colour):
    return next(name for name, value in LIGHT.items() if value == colour)


@MODES
def test_numbers_on_passes_are_readable(mode):
    for colour in {*_FILLS.values(), *_END_FILLS.values()} & {*_FILLS.values()}:
        fill, idle = mode[role(colour)], mode[role(IDLE)]
        shaded = "#" + "".join(
            f"{round(SHADE * int(fill[i : i + 2], 16) + (1 - SHADE) * int(idle[i : i + 2], 16)):02x}" for i in (1, 3, 5)
        )
        assert contrast(fill, mode[role(CARD)]) >= 4.5
        assert contrast(shaded, mode[role(CARD)]) >= 4.5


def test_every_light_colour_has_one_role_and_a_dark_twin():
    assert len(set(LIGHT.values())) == len(LIGHT) and set(LIGHT) == set(DARK)
    found = with_roles(" ".join(LIGHT.values()))
    assert found == " ".join(f"var(--{name})" for name in LIGHT)
    assert all(re.fullmatch(r"#[0-9a-f]{6}", colour) for colour in (*LIGHT.values(), *DARK.values()))

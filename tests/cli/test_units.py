import math

import pytest

from shardwise.cli import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.312, "7.31 s"),
        (0.4123, "412 ms"),
        (1.85e-5, "18.5 µs"),
        (1e-9, "0.00100 µs"),
        (0, "0 s"),
        (12345.6, "12,346 s"),
    ],
)
def test_seconds(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_a_number_is_said(value):
    assert units.seconds(value) == str(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (12, "12 B"), (360 * 2**20, "360 MiB"), (1.15 * 2**30, "1.15 GiB"), (2**40, "1.00 TiB")],
)
def test_size(value, text):
    assert units.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(70.56e9, "70.6 B"), (1.15e6, "1.15 M"), (12345, "12,345"), (1.04e12, "1.04 T")]
)
def test_count(value, text):
    assert units.count(value) == text


def test_columns_that_must_compare():
    assert units.milliseconds(1.2345) == "1,234.5"
    assert units.gib(61.25 * 2**30) == "61.25"
    assert units.percent(0.4321) == "43.2 %"
    assert units.change(1.031) == "+3.1 %"
    assert units.change(0.9) == "-10.0 %"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (9.995, "9.99"), (4120.3, "4,120"), (0.0123, "0.0123"), (-2.5, "-2.50")]
)
def test_significant(value, text):
    assert units.significant(value) == text


def test_one_of_a_thing_is_singular():
    assert [units.plural(n, "point") for n in (0, 1, 2, 1200)] == ["0 points", "1 point", "2 points", "1,200 points"]

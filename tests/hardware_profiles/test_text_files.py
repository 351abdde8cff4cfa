"""Reading a text file: what cannot be one is refused in a line that names it, and never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there, read_text, whole_number


def refused(path: Path, most_bytes: int = 100) -> str:
    with pytest.raises(InputError) as caught:
        read_text(path, "a profile", most_bytes)
    message = str(caught.value)
    assert message.startswith((str(path), repr(str(path)))) and "expected a profile" in message
    return message


def test_the_text_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: \xc3\xa9\n")
    assert read_text(path, "a profile", 100) == "name: é\n"


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a directory" in refused(tmp_path)
    assert "not a regular file" in refused(tmp_path / "pipe")
    assert "not a regular file" in refused(Path("/dev/zero"))
    assert "No such file" in refused(tmp_path / "missing")
    assert "too long" in refused(tmp_path / ("a" * 5000))
    assert "null byte" in refused(Path("a\0b"))


def test_what_is_no_text_of_that_size(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc\xff")
    assert "byte 3 is not UTF-8" in refused(path)
    assert "4 bytes" in refused(path, 3)


def test_names_that_no_file_can_have_are_not_there(tmp_path: Path) -> None:
    assert is_there(tmp_path)
    assert not is_there(tmp_path / "missing")
    assert not is_there(Path("a" * 5000))
    assert not is_there(Path("a\0b"))


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "²", "٣", "1_0", "9" * 19, "9" * 5000])
def test_what_is_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("number", [0, 7, 10**18 - 1])
def test_a_whole_number_is_what_its_digits_spell(number: int) -> None:
    assert whole_number(str(number)) == number == whole_number("0" + str(number)[:17] if number < 9 else str(number))

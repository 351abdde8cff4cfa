"""YAML that people write: what is no number or date is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.yaml_files import read_mapping


@pytest.mark.parametrize("value", ["0x" + "f" * 9000, "9" * 9000, "-" + "9" * 9000, "2020-13-45", "2020-02-30"])
def test_what_is_no_number_or_date_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"name: x\nhow:\n  many: {value}\n")
    with pytest.raises(InputError) as error:
        read_mapping(file, "a profile")
    said = str(error.value)
    assert said.startswith(f"{file}: broken YAML at line 3: {value[:10]}") and len(said) < len(str(file)) + 300


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("-3", -3), ("0x10", 16), ("1_000", 1000), ("0b11", 3)])
def test_whole_numbers_are_read_as_yaml_has_them(tmp_path: Path, text: str, number: int) -> None:
    (tmp_path / "x.yaml").write_text(f"many: {text}\n")
    assert read_mapping(tmp_path / "x.yaml", "a profile") == {"many": number}

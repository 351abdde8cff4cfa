import io
import json
import os

import pytest
from rich.console import Console

from shardwise.cli.output import prepare_folder, to_json, write_file, write_files
from shardwise.cli.report import new_table, plain_table
from shardwise.hardware_profiles.errors import InputError


def test_files_are_written_whole(tmp_path):
    written = write_files(tmp_path / "new" / "folder", {"run.sh": "#!/bin/sh\ntrue\n", "sub/plan.json": "{}"})
    assert [p.name for p in written] == ["run.sh", "plan.json"]
    assert os.access(written[0], os.X_OK)
    assert not os.access(written[1], os.X_OK)
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["run.sh", "sub"]


def test_nothing_is_written_when_one_file_cannot_be(tmp_path):
    (tmp_path / "taken").write_text("a file where a folder is needed")
    with pytest.raises(InputError, match="--out"):
        write_files(tmp_path, {"first.txt": "1", "taken/second.txt": "2"})
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_an_old_file_survives_a_failed_write(tmp_path):
    (tmp_path / "plan.json").write_text("old")
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError):
        write_files(tmp_path, {"plan.json": "new", "taken/x": "2"})
    assert (tmp_path / "plan.json").read_text() == "old"


def test_a_target_that_is_a_folder(tmp_path):
    with pytest.raises(InputError, match="folder"):
        write_file(tmp_path, "text")
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(InputError, match=r"plan\.json"):
        write_files(tmp_path, {"a": "1", "plan.json": "{}"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.json"]


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        prepare_folder(tmp_path / "file" / "out")


def test_json_keeps_order_and_refuses_nan():
    assert list(json.loads(to_json({"b": 1, "a": [1.5, None]}))) == ["b", "a"]
    with pytest.raises(ValueError, match="JSON"):
        to_json({"x": float("nan")})


@pytest.mark.parametrize("columns", ["0", "1", "60", "80", "-5", "wide", "9" * 50, ""])
def test_no_digit_is_lost_in_a_narrow_terminal(monkeypatch, run, columns):
    monkeypatch.setenv("COLUMNS", columns)
    sizes = {"--gpus": "128", "--global-batch": "256", "--seq-len": "4096"}
    inputs = [word for pair in sizes.items() for word in pair]
    pins = "tp=1,cp=2,pp=8,vpp=7,schedule=interleaved,ep=8,mbs=1"
    text = run("estimate", "--model", "mixtral-8x22b", "--cluster", "dgx-h100", *inputs, "--strategy", pins).stdout
    assert "Memory by pipeline rank" in text and "…" not in text


@pytest.mark.parametrize("make", [lambda: new_table("[i]t[/i]", "what", "[b]"), lambda: plain_table()("a", "b")])
def test_cells_of_tables_are_text_and_steer_nothing(make):
    """Names of clusters, models and files come from files, so a cell is never style and moves no cursor."""
    stream = io.StringIO()
    table = make()
    table.add_row("[red]dgx[/red]", "\x1b[2J[/bold]")
    Console(file=stream, width=100, force_terminal=False).print(table)
    assert "[red]dgx[/red]" in stream.getvalue()
    assert "[2J[/bold]" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()

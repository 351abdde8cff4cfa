"""``--trace``: a whole file or none, and one line where it cannot be written."""

import json

import pytest

LAYOUT = ["--strategy", "tp=2,pp=4,mbs=1"]


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_a_trace_is_written(run, request_args, tmp_path, command):
    target = tmp_path / "new" / "step.json"
    pins = LAYOUT if command == "estimate" else ["--pin", "pp=4", "--no-refine"]
    result = run(command, *request_args(), *pins, "--trace", target)
    assert result.exit_code == 0, result.stderr
    document = json.loads(target.read_text())
    ranks = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert ranks == {f"pipeline rank {i}" for i in range(4)}
    assert str(target) in result.stdout.replace("\n", "")
    assert [p.name for p in target.parent.iterdir()] == ["step.json"]


def test_json_stays_one_document(run, request_args, tmp_path):
    result = run("estimate", *request_args(), *LAYOUT, "--json", "--trace", tmp_path / "step.json")
    assert json.loads(result.stdout)["step_time_s"] > 0
    assert (tmp_path / "step.json").exists()


@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_a_bad_path_is_one_line(run, request_args, tmp_path, command):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "step.json"):
        result = run(command, *request_args(), *(LAYOUT if command == "estimate" else []), "--trace", bad)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "--trace" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_schedule_that_does_not_exist_has_no_timeline(run, request_args, tmp_path):
    layout = ["--strategy", "pp=4,schedule=dualpipe,mbs=4"]
    result = run("estimate", *request_args(), *layout, "--trace", tmp_path / "step.json")
    assert result.exit_code == 2
    assert "2·pp" in result.stderr
    assert not (tmp_path / "step.json").exists()

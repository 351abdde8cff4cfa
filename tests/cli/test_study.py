"""``shardwise study`` as a person runs it."""

import csv
import json

from click.testing import CliRunner

from shardwise.cli.main import cli

STUDY = """
model: llama-3.2-1b
cluster: dgx-h100
gpus: 8
global_batch: 64
seq_len: 2048
vary:
  gpus: [8, 16]
"""


def study(*args):
    return CliRunner().invoke(cli, ["study", *map(str, args)])


def test_it_writes_the_tables_and_prints_each_point(tmp_path):
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(STUDY)
    answer = study(file, "--out", out)
    assert answer.exit_code == 0, answer.output
    assert "study: 2 points, 2 with an answer" in answer.output
    with (out / "results.csv").open() as table:
        assert [row["gpus"] for row in csv.DictReader(table)] == ["8", "16"]
    rows = json.loads(study(file, "--out", out, "--json").stdout)
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_a_wrong_key_is_one_line_and_leaves_nothing(tmp_path, run_process):
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.replace("gpus: [8, 16]", "gpu: [8, 16]"))
    done = run_process("study", str(file), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "vary.gpu: unknown key; did you mean 'gpus'?" in done.stderr
    assert not (tmp_path / "out" / "results.csv").exists()


def test_no_scheduler_is_one_line(tmp_path, run_process):
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    done = run_process("study", str(file), "--out", str(tmp_path / "out"), "--dask", "nonsense")
    assert done.returncode == 2
    assert "--dask nonsense" in done.stderr


def test_a_name_cannot_steer_the_terminal(tmp_path, run_process):
    study = tmp_path / "study.yaml"
    name = r'name: "\e[31mred\nsecond \u202eline"'
    study.write_text(
        f"{name}\nmodel: llama-3.2-1b\ncluster: dgx-h100\nglobal_batch: 8\nseq_len: 512\nvary: {{gpus: [8]}}\n"
    )
    done = run_process("study", str(study), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith(" [31mred second  line: 1 point,")
    assert "\x1b" not in done.stdout

"""``--report`` and ``--figures``: written whole or refused in one line, before the search."""

import importlib.util
import json
import subprocess
import sys

import pytest

from .pages import check

STUDY = """
model: llama-3.2-1b
cluster: dgx-h100
gpus: 8
global_batch: 64
seq_len: 2048
vary:
  gpus: [8, 16]
"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}

QUICK = ["--no-refine", "--pin", "tp=1", "--pin", "pp=2", "--pin", "zero=1", "--pin", "mbs=1", "--top", "1"]


def test_a_plan_writes_its_page_and_figures(run, request_args, tmp_path):
    page, folder = tmp_path / "new" / "plan.html", tmp_path / "figures"
    result = run("plan", *request_args(), *QUICK, "--report", page, "--figures", folder)
    assert result.exit_code == 0, result.stderr
    check(page.read_text(encoding="utf-8"))
    assert f"Report: {page}" in result.stdout.replace("\n", "")
    assert [p.name for p in page.parent.iterdir()] == ["plan.html"]
    names = {p.stem for p in folder.iterdir()}
    assert "time-by-part" in names
    assert {p.name for p in folder.iterdir()} == {f"{n}.{kind}" for n in names for kind in ("png", "svg", "csv")}
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_study_writes_its_page(run, tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    first, second = tmp_path / "a.html", tmp_path / "b.html"
    for page in (first, second):  # the second time every point comes out of the journal
        result = run("study", file, "--out", tmp_path / "out", "--report", page)
        assert result.exit_code == 0, result.stderr
    check(first.read_text(encoding="utf-8"))
    assert first.read_bytes() == second.read_bytes()


def test_json_stays_one_document(run, request_args, tmp_path):
    result = run("plan", *request_args(), *QUICK, "--json", "--report", tmp_path / "plan.html")
    assert json.loads(result.stdout)["step_time_s"] > 0
    assert (tmp_path / "plan.html").exists()


@pytest.mark.parametrize("option", ["--report", "--figures"])
@pytest.mark.parametrize("command", ["plan", "study"])
def test_a_bad_path_is_one_line_before_the_search(run, request_args, tmp_path, command, option):
    (tmp_path / "file").write_text("")
    (tmp_path / "study.yaml").write_text(STUDY)
    rest = request_args() if command == "plan" else [tmp_path / "study.yaml", "--out", tmp_path / "out"]
    bad = [tmp_path / "file" / "below"] if option == "--figures" else [tmp_path, tmp_path / "file" / "page.html"]
    for path in bad:
        result = run(command, *rest, option, path)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert option in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "points.jsonl").exists()


@pytest.mark.parametrize("library", ["matplotlib", "jinja2"])
def test_a_missing_library_is_one_line(run, request_args, tmp_path, monkeypatch, library):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == library else real(name, *a))
    result = run("plan", *request_args(), "--report", tmp_path / "plan.html")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert library in result.stderr and "pip install 'shardwise[report]'" in result.stderr


def test_nothing_is_loaded_until_a_report_is_asked_for(request_args):
    code = "from shardwise.cli.main import cli; import sys; cli.main(sys.argv[1:], standalone_mode=False)"
    code += "; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", *request_args(), *QUICK], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_any_launcher_has_no_report(run, request_args, tmp_path):
    result = run("plan", *request_args({"--launcher": "any"}), "--report", tmp_path / "plan.html")
    assert result.exit_code == 2
    assert "--launcher any" in result.stderr


@pytest.mark.parametrize(
    ("report", "others"),
    [
        ("x", ["--out", "x"]),
        ("x", ["--figures", "x"]),
        ("x", ["--trace", "x"]),
        ("a/../x", ["--trace", "x"]),
        ("x/plan.json", ["--out", "x"]),
        ("x/launch.sh", ["--out", "x"]),
        ("x/time-by-part.svg", ["--figures", "x"]),
        ("config.json", []),
    ],
)
def test_no_output_is_written_over_another_or_over_an_input(run, request_args, tmp_path, report, others):
    (tmp_path / "a").mkdir()
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    args = [a if a.startswith("-") else tmp_path / a for a in others]
    result = run(
        "plan",
        *request_args({"--model": config, "--launcher": "megatron"}),
        *QUICK,
        "--report",
        tmp_path / report,
        *args,
    )
    assert result.exit_code == 2, result.stdout
    assert len(result.stderr.splitlines()) == 1 and f"--report {tmp_path / report}" in result.stderr
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["config.json"]
    assert json.loads(config.read_text()) == CONFIG


@pytest.mark.parametrize("report", ["study.yaml", "out/results.csv", "out/points.jsonl", "out"])
def test_a_study_keeps_its_file_and_its_tables(run, tmp_path, report):
    (tmp_path / "study.yaml").write_text(STUDY)
    result = run("study", tmp_path / "study.yaml", "--out", tmp_path / "out", "--report", tmp_path / report)
    assert result.exit_code == 2 and f"--report {tmp_path / report}" in result.stderr
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["study.yaml"]
    assert (tmp_path / "study.yaml").read_text() == STUDY

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import click
import pytest

from shardwise.cli.failures import LONGEST_LINE, exit_code_for, one_line, remembered_interrupts
from shardwise.cli.main import cli
from shardwise.hardware_profiles.errors import InfeasibleError, InputError, UnknownNameError


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("file.json: key = 3: expected 4"), 2, "file.json: key = 3: expected 4"),
        (UnknownNameError("no 'x'; did you mean 'y'?"), 2, "no 'x'; did you mean 'y'?"),
        (InfeasibleError("nothing fits: 90 GiB of 80"), 3, "nothing fits"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.UsageError("Missing option '--model'."), 2, "Missing option '--model'"),
        (RuntimeError("boom"), 1, "unexpected RuntimeError: boom"),
        (MemoryError(), 1, "unexpected MemoryError"),
        (RecursionError("deep"), 1, "SHARDWISE_DEBUG=1"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_one_line_and_a_code(capsys, error, code, text):
    assert exit_code_for(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shardwise: error: ")
    assert text in err
    assert err.count("\n") == 1


def test_a_message_of_many_lines_is_one(capsys):
    exit_code_for(InputError("first\nsecond\r\n\tthird \x1b[31mred\0"))
    assert capsys.readouterr().err == "shardwise: error: first second third [31mred\n"


def test_a_huge_message_is_cut(capsys):
    exit_code_for(InputError("x" * 100_000))
    assert len(capsys.readouterr().err) < LONGEST_LINE + 50


def test_debug_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        assert exit_code_for(error) == 1
    assert "Traceback" in capsys.readouterr().err


def test_one_line():
    assert one_line(" a\n b\t c ") == "a b c"


def test_an_unexpected_fault_inside_a_command(run, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("shardwise.cli.listings.read_model", broken)
    result = run("models", "show", "llama-3.1-8b")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "ZeroDivisionError" in result.stderr


def test_a_broken_pipe_is_silent(tmp_path, run_process):
    code = "import sys; from shardwise.cli.main import main; main()"
    line = f"{sys.executable} -c '{code}' runtimes show megatron-core --json | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.stderr == ""
    assert result.stdout.strip() in ("0", "141")


def test_without_standalone_mode_errors_pass_through():
    with pytest.raises(InputError):
        cli.main(["models", "show", "nonsense"], standalone_mode=False)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_terminal_can_show_the_answer(run_process, encoding):
    result = run_process("models", "show", "deepseek-v3", env={"PYTHONIOENCODING": encoding})
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "671,026,404,352" in result.stdout


def test_an_interrupt_that_a_library_made_an_error_of_its_own(capsys):
    with remembered_interrupts() as interrupts:
        try:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise AttributeError("partially initialized module") from None
        except AttributeError as error:
            assert exit_code_for(error, after_interrupt=bool(interrupts)) == 130
    assert capsys.readouterr().err == "shardwise: error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("command", ["models list", "models show llama-3.1-8b", "models show llama-3.1-8b --json"])
def test_output_that_cannot_be_written(command):
    program = f'"{sys.executable}" -c "from shardwise.cli.main import main; main()" {command}'
    full = subprocess.run(["bash", "-c", f"{program} > /dev/full"], capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr) == (
        2,
        "shardwise: error: the output cannot be written: No space left on device\n",
    )
    closed = subprocess.run(["bash", "-c", f"{program} >&-"], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_table_whose_reader_has_gone():
    program = f'"{sys.executable}" -c "from shardwise.cli.main import main; main()" clusters show dgx-h100'
    script = f"set -o pipefail; {program} | (exec <&-; sleep 1)"
    gone = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stderr) == (141, "")


LOADING = """
import sys, shardwise.cli.console as console

class Teller:
    def find_spec(self, name, path=None, target=None):
        if name == "shardwise.cli.main":
            print(0, file=sys.stderr, flush=True)

sys.meta_path.insert(0, Teller())
console.main()
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2])
def test_ctrl_c_while_the_command_line_loads_ends_in_one_line(tmp_path, delay_s):
    command = [sys.executable, "-c", LOADING, "plan", "--help"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ
    )
    process.stderr.readline()
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) in ((130, "shardwise: error: interrupted\n"), (0, ""))


def test_the_console_script_is_the_one_that_minds_ctrl_c():
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["scripts"] == {"shardwise": "shardwise.cli.console:main"}


def test_the_console_script_runs_the_command_line():
    code = "import sys; sys.argv = ['shardwise', '--version']; from shardwise.cli.console import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("shardwise ") and not done.stderr

"""Python recipes read without running them."""

from __future__ import annotations

import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.recipe_reader import RecipeReader
from shardwise.launchers.recipe_values import Unread, is_read


def read(text: str, **variables: str) -> dict[str, object]:
    """Unconditional settings by path, the last of each."""
    found = RecipeReader("r.py", text, variables).read().settings
    return {s.path: s.value for s in found if not s.conditional}


@pytest.mark.parametrize(
    "text",
    [
        "cfg.model.tensor_model_parallel_size = 4",
        "model = GPTModelProvider(tensor_model_parallel_size=4)",
        "model = GPTModelProvider()\nmodel.tensor_model_parallel_size = 2 * 2",
        "def f(tp=2):\n    cfg.model.tensor_model_parallel_size = tp\nf(tp=4)",
        "def f(cfg, tp):\n    cfg.model.tensor_model_parallel_size = tp\n    return cfg\nx = f(base(), 4)",
        "TP = 4\ndef recipe():\n    return ConfigContainer(model=GPTModelProvider(tensor_model_parallel_size=TP))",
        "cfg = ConfigContainer(model=run.Config(llm.GPTConfig, tensor_model_parallel_size=4))",
        "m = GPTModelProvider()\nsetattr(m, 'tensor_model_parallel_size', 4)",
        "big = True\nif big:\n    cfg.model.tensor_model_parallel_size = 4\nelse:\n"
        "    cfg.model.tensor_model_parallel_size = 1",
        "if __name__ == '__main__':\n    cfg.model.tensor_model_parallel_size = 4",
        "with context():\n    cfg.model.tensor_model_parallel_size = 4 if 1 < 2 else 8",
        "options = dict_of()\nkw = {'tensor_model_parallel_size': 4}\nm = GPTModelProvider(**kw)",
    ],
)
def test_ways_to_say_the_same(text: str) -> None:
    assert read(text) == {"model.tensor_model_parallel_size": 4}


def test_what_is_set_in_an_open_branch_is_conditional() -> None:
    text = "import os\nif os.environ.get('BIG'):\n    cfg.model.tensor_model_parallel_size = 8\n"
    (setting,) = RecipeReader("r.py", text, {}).read().settings
    assert setting.conditional and setting.line == 3


def test_a_name_assigned_in_an_open_branch_is_not_known() -> None:
    text = "tp = 1\nif arguments.big:\n    tp = 8\ncfg.model.tensor_model_parallel_size = tp\n"
    assert read(text) == {"model.tensor_model_parallel_size": Unread("$tp")}
    assert read(text, tp="2") == {"model.tensor_model_parallel_size": 2}


def test_what_only_running_would_tell_is_kept_as_its_source() -> None:
    assert read("cfg.model.num_layers = len(blocks) + 1") == {"model.num_layers": Unread("len(blocks) + 1")}
    assert read("cfg.model.num_layers = [1] * 100000 * 100000") != {}


def test_nothing_of_the_file_is_run() -> None:
    assert read("import os\nos._exit(3)\ncfg.model.num_layers = __import__('os').getpid()") == {
        "model.num_layers": Unread("__import__('os').getpid()")
    }


def test_of_several_recipes_one_is_to_be_chosen() -> None:
    text = "def a():\n    cfg.train.micro_batch_size = 1\ndef b():\n    cfg.train.micro_batch_size = 2\n"
    with pytest.raises(InputError, match=r"r.py: 2 recipes: choose one with --var recipe=NAME, of a, b"):
        read(text)
    assert read(text, recipe="b") == {"train.micro_batch_size": 2}
    with pytest.raises(InputError, match=r"recipe 'c': expected one of a, b"):
        read(text, recipe="c")


@pytest.mark.parametrize("text", ["def f(:", "x = " + "(" * 500 + ")" * 500, "\0", "a = " + "-" * 100_000 + "1"])
def test_no_python_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"^r\.py:(1:)? "):
        read(text)


def test_functions_that_call_each_other_end() -> None:
    text = "def f():\n    cfg.train.micro_batch_size = 1\n    g()\ndef g():\n    f()\nf()\n"
    assert read(text) == {"train.micro_batch_size": 1}
    endless = "def f(n):\n    f(n)\n    f(n)\nf(1)\n"
    with pytest.raises(InputError, match="more than 50000 statements"):
        read(endless)


@pytest.mark.parametrize(
    "value",
    [
        "'%2000000000s' % 'x'",
        "b'%2000000000s' % 'x'",
        "[[[0] * 9999] * 9999] * 9999",
        "'x' * 9999 * 9999",
        "0x" + "f" * 20000,
        "size(0x" + "f" * 20000 + ")",
        "{'a': 0x" + "f" * 20000 + "}['a']",
    ],
    ids=["percent", "bytes", "lists", "text", "hexadecimal", "argument", "in a dictionary"],
)
def test_a_value_larger_than_any_setting_is_not_reckoned(value: str) -> None:
    (found,) = read(f"cfg.model.num_layers = {value}").values()
    assert isinstance(found, Unread) and len(found.text) < 100


def test_lists_of_lists_of_lists_are_not_written_out() -> None:
    lines = ["a0 = [0] * 5000", *(f"a{i + 1} = [{', '.join([f'a{i}'] * 50)}]" for i in range(12))]
    found = read("\n".join([*lines, "cfg.model.num_layers = a12", "if a12 == a11:\n    cfg.model.hidden_size = 1"]))
    assert not is_read(found["model.num_layers"])


@pytest.mark.parametrize(
    "value", ["2048 or 5", "0 or 2048", "7 and 2048", "None or 2048", "'' or 0 or 2048", "1 and (0 or 2048)"]
)
def test_and_and_or_give_what_python_gives(value: str) -> None:
    assert read(f"cfg.model.hidden_size = {value}") == {"model.hidden_size": eval(value)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nx = = 2", "r.py:2: not Python"),
        ("m = GPTModelProvider(\n  num_layers=16, num_layers=17)", "r.py:2: not Python: keyword argument repeated"),
        ("return 3", "r.py:1: not Python"),
    ],
)
def test_what_python_refuses_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(text)


def test_warnings_about_a_recipe_are_not_ours_to_give(recwarn: pytest.WarningsRecorder) -> None:
    assert read("x = '\\d'\ncfg.model.num_layers = 4 if 1 is 1 else 5\n") == {"model.num_layers": 4}
    assert not recwarn.list

"""The shipped models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.costmodel import presets
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.presets import list_presets, load_preset
from shardwise.hardware_profiles.errors import UnknownNameError

FOLDER = Path(presets.__file__).parent / "presets"
TRUTH = json.loads((Path(__file__).parents[1] / "data" / "model_params_truth.json").read_text())
REFERENCE = {name.lower(): entry for name, entry in TRUTH.items()}


def test_names() -> None:
    names = list_presets()
    assert names == sorted(names)
    assert len(names) >= 40
    wanted = {"llama-3.1-70b", "gpt-3-175b", "mixtral-8x22b", "deepseek-v3", "qwen3-235b-a22b", "bloom-176b"}
    assert wanted | {"llama-3.1-405b"} <= set(names)


@pytest.mark.parametrize("name", list_presets())
def test_every_preset(name: str) -> None:
    model = load_preset(name)
    assert model.name == name
    assert model.total_parameters > 0
    if name in REFERENCE:
        entry = REFERENCE[name]
        assert model.total_parameters == entry.get("total", entry.get("formula_total"))
        assert model.active_parameters == entry.get("active", entry.get("formula_active"))
    assert json.loads((FOLDER / f"{name}.json").read_text())["source"]


@pytest.mark.parametrize("spelling", ["LLAMA-3.1-70B", "llama_3_1_70b", "Llama 3.1 70B", "llama3.1-70b"])
def test_spelling_does_not_matter(spelling: str) -> None:
    assert ModelSpec.from_preset(spelling).name == "llama-3.1-70b"


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_preset("lama-3.1-70b")
    assert "llama-3.1-70b" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownNameError):
        load_preset("../../secret")


def test_one_preset_is_read_alone_and_without_heavy_imports() -> None:
    code = (
        "import sys, pathlib; read = pathlib.Path.read_text; seen = []\n"
        "pathlib.Path.read_text = lambda self, *a, **k: (seen.append(self.name), read(self, *a, **k))[1]\n"
        "from shardwise.costmodel.presets import load_preset; load_preset('gpt-3-175b')\n"
        "print(seen == ['gpt-3-175b.json'], sorted({'torch', 'transformers', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "[]"]

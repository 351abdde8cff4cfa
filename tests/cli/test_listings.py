import json
from collections import Counter

import pytest

from shardwise.cli.model_view import model_as_dict, ranges
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.presets import list_presets
from shardwise.costmodel.runtime import list_runtimes
from shardwise.hardware_profiles.load_cluster import list_clusters
from shardwise.launchers.base import list_launchers


@pytest.mark.parametrize(
    ("group", "names"),
    [("models", list_presets), ("clusters", list_clusters), ("runtimes", list_runtimes), ("launchers", list_launchers)],
)
def test_lists(run, group, names):
    result = run(group, "list")
    assert result.exit_code == 0
    assert result.stdout.split() == list(names())
    assert json.loads(run(group, "list", "--json").stdout) == list(names())


@pytest.mark.parametrize("name", list_presets())
def test_the_parts_of_every_preset_add_up(name):
    model = ModelSpec.from_preset(name)
    params = model_as_dict(model)["params"]
    layers = params["layers"]
    assert sum(g["count"] for g in layers) == model.num_layers
    body = sum(g["count"] * g["total"] for g in layers)
    head = 0 if params["tied"] else params["head"]  # a tied head is the embedding, counted once
    assert body + params["embedding"] + head + sum(params["other"].values()) == params["total"]
    parts = ["attention", "attention_norms", "dense_mlp", "router", "shared_experts", "shared_expert_gate", "experts"]
    parts += ["norms", "extras"]
    for group in layers:
        assert sum(group.get(part, 0) for part in parts) == group["total"]
        if "experts" in group:
            assert group["experts"] == group["num_experts"] * group["expert_each"]


def test_layers_are_grouped_by_their_counts():
    layers = model_as_dict(ModelSpec.from_preset("deepseek-v3"))["params"]["layers"]
    assert [(g["count"], g["layers"]) for g in layers] == [(3, "0-2"), (58, "3-60")]


def test_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert ranges([4]) == "4"


def test_show_a_model(run):
    result = run("models", "show", "DeepSeek_V3")
    assert result.exit_code == 0
    assert "671,026,404,352" in result.stdout
    assert "256 ×" in result.stdout


@pytest.mark.parametrize("name", list_clusters())
def test_show_every_cluster(run, name):
    assert run("clusters", "show", name).exit_code == 0
    shown = json.loads(run("clusters", "show", name, "--json").stdout)
    assert {"name", "accelerator", "tiers"} <= set(shown)


@pytest.mark.parametrize("name", list_runtimes())
def test_show_every_runtime(run, name):
    shown = json.loads(run("runtimes", "show", name, "--json").stdout)
    assert shown["name"] == name
    assert name in run("runtimes", "show", name).stdout


def test_help_of_every_command(run):
    for words in ([], ["plan"], ["estimate"], ["validate"], ["models"], ["models", "show"], ["clusters", "show"]):
        result = run(*words, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: ")


def test_version(run):
    assert run("--version").stdout.startswith("shardwise ")


def test_names_are_unique():
    for names in (list_presets(), list_clusters(), list_runtimes(), list_launchers()):
        assert max(Counter(names).values()) == 1

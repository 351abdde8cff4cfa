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


TOPOLOGY = """\
SwitchName=leaf1 Nodes=n[1-4] LinkSpeed=400
SwitchName=leaf2 Nodes=n[4-6]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf[1-2]
"""


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(TOPOLOGY)
    return path


def test_show_a_topology(run, topology):
    result = run("clusters", "show", "--topology", topology)
    assert result.exit_code == 0
    assert "6 nodes" in result.stdout
    assert "level 0: 2 domains of 2 to 4 nodes" in result.stdout
    assert "spine[1-2]" in result.stdout
    assert "leaf2  2 nodes n[5-6]" in result.stdout
    assert f"fault: {topology}:2: node 'n4' is under 'leaf1' (line 1) already" in result.stdout


def test_show_an_allocation_on_a_topology(run, topology):
    result = run("clusters", "show", "--topology", topology, "--nodes", "n[2-5],x", "--json")
    view = json.loads(result.stdout)
    assert view["num_nodes"] == 5
    assert [level["domains"] for level in view["levels"]] == [3, 2, 1]
    assert {s["name"]: s["nodes"] for s in view["switches"] if s["nodes"]} == {"leaf1": "n[2-4]", "leaf2": "n5"}
    assert "1 of the 5 nodes are not in the file (x)" in view["faults"][-1]["message"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "expected a cluster profile or --topology FILE"),
        (("dgx-h100", "--nodes", "n1"), "go with --topology"),
        (("--topology", "no.conf"), "no.conf: cannot be read"),
    ],
)
def test_what_to_show_must_be_said(run_process, args, said):
    result = run_process("clusters", "show", *args)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_broken_topology_is_refused_with_its_line(run_process, tmp_path):
    (tmp_path / "t.conf").write_text("SwitchName=a Nodes=n1\nSwitchName=b Switches=c\n")
    result = run_process("clusters", "show", "--topology", "t.conf")
    assert result.returncode == 2
    assert "t.conf:2: switch 'b' names switch 'c', which no line defines" in result.stderr

"""Counts equal those of the reference implementation, to the last parameter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel.hf import model_from_config, read_hf_config
from shardwise.costmodel.model import LayerKind, ModelSpec

DATA = Path(__file__).parents[1] / "data"
TRUTH: dict[str, dict[str, Any]] = json.loads((DATA / "model_params_truth.json").read_text())
FROM_MEMORY: dict[str, dict[str, Any]] = json.loads((DATA / "model_configs_from_memory.json").read_text())

# The truth books the residual-stream weights of V4 under attention and feed-forward, the latent projections of
# Nemotron 3 Ultra and the feed-forwards of Nemotron-H under attention.
BOOKED_ELSEWHERE = {"DeepSeek-V4-Flash", "Nemotron-3-Ultra-550B-A55B", "Nemotron-H-56B"}


def read(name: str) -> ModelSpec:
    return read_hf_config(DATA / "model_configs" / f"{name}.json")


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def breakdown(kind: LayerKind) -> dict[str, int]:
    mixer, moe = kind.mixer, kind.moe
    norms = sum(e.parameters for e in mixer.extras if e.norm) if mixer else 0
    parts = {
        "layer_total": kind.parameters,
        "attention": mixer.parameters - norms if mixer else 0,
        "attention_norms": norms,
        "norms": sum(e.parameters for e in kind.norms),
        "dense_mlp": kind.mlp.parameters if kind.mlp else 0,
    }
    if moe:
        parts |= {
            "experts": moe.expert_parameters,
            "expert_each": moe.expert.parameters,
            "num_experts": moe.num_experts,
            "experts_per_token": moe.top_k,
            "router": moe.router.parameters + sum(e.parameters for e in moe.extras),
            "shared_experts": moe.shared.parameters if moe.shared else 0,
            "shared_expert_gate": sum(e.parameters for e in moe.shared_extras),
        }
    return parts


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_whole_model(name: str) -> None:
    truth, model = TRUTH[name], read(name)
    assert model.total_parameters == truth.get("total", truth.get("formula_total"))
    assert model.active_parameters == truth.get("active", truth.get("formula_active"))
    if truth["built"]:
        assert model.embedding_parameters == truth["embedding"]
        assert model.tied_embeddings is truth["tied"]
        assert model.head_parameters == (0 if truth["tied"] else truth["embedding"])
        assert model.num_layers == truth["num_layers_built"]


@pytest.mark.parametrize("name", sorted(n for n in TRUTH if TRUTH[n]["built"]))
def test_every_layer(name: str) -> None:
    model = read(name)
    seen = []
    for group in TRUTH[name]["layers"]:
        seen += numbers(group["layers"])
        wanted = {key: value for key, value in group.items() if key not in ("count", "layers")}
        for number in numbers(group["layers"]):
            found = breakdown(model.kinds[model.layers[number]])
            assert found["layer_total"] == wanted["layer_total"], number
            if name not in BOOKED_ELSEWHERE:
                assert {k: v for k, v in found.items() if v} == wanted, number
    assert sorted(seen) == list(range(model.num_layers))


@pytest.mark.parametrize("name", sorted(n for n in TRUTH if "mtp_formula_per_layer" in TRUTH[n]))
def test_mtp(name: str) -> None:
    truth, model = TRUTH[name], read(name)
    assert len(model.mtp) == truth["mtp_layers_in_config"]
    assert model.mtp_parameters == truth["mtp_formula_per_layer"] * truth["mtp_layers_in_config"]


@pytest.mark.parametrize("name", sorted(n for n in TRUTH if TRUTH[n].get("mtp_layers_in_config")))
def test_mtp_layers_are_read(name: str) -> None:
    assert len(read(name).mtp) == TRUTH[name]["mtp_layers_in_config"]


@pytest.mark.parametrize("name", sorted(FROM_MEMORY))
def test_configs_from_memory(name: str) -> None:
    """Families and sizes that no file of the set covers; the wanted counts come from the reference all the same."""
    case = FROM_MEMORY[name]
    model = model_from_config(case["config"], name, f"{name}.json")
    found = (model.total_parameters, model.embedding_parameters, model.tied_embeddings, model.active_parameters)
    assert found == (case["total"], case["embedding"], case["tied"], case["active"])


def test_published_listing_of_kimi_linear() -> None:
    """The published tensor listing also holds the router biases, which are buffers."""
    assert read("Kimi-Linear-48B-A3B").total_parameters + 26 * 256 == 49_122_681_728


def test_what_is_left_out_or_assumed_is_said() -> None:
    assert any("vision_config" in note for note in read("Llama-4-Scout").assumptions)
    assert any("tie_word_embeddings" in note for note in read("Falcon-180B").assumptions)
    assert read("Llama-3.1-70B").assumptions == ()

"""What cannot be used is refused in one line that names the file and the key."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.costmodel import hf
from shardwise.costmodel.hf import model_from_config, parse_json_object, read_hf_config
from shardwise.costmodel.model import ModelSpec
from shardwise.hardware_profiles.errors import InputError

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs"


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return data


def refuse(data: Any, key: str) -> str:
    with pytest.raises(InputError) as caught:
        model_from_config(data, "model", "model.json")
    message = str(caught.value)
    assert message.startswith("model.json: ")
    assert key in message
    assert "expected" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("Llama-3.1-8B", "hidden_size", -4096),
        ("Llama-3.1-8B", "hidden_size", 0),
        ("Llama-3.1-8B", "hidden_size", "4096"),
        ("Llama-3.1-8B", "hidden_size", True),
        ("Llama-3.1-8B", "hidden_size", 4096.5),
        ("Llama-3.1-8B", "hidden_size", float("nan")),
        ("Llama-3.1-8B", "hidden_size", float("inf")),
        ("Llama-3.1-8B", "hidden_size", 10**13),
        ("Llama-3.1-8B", "hidden_size", [4096]),
        ("Llama-3.1-8B", "hidden_size", None),
        ("Llama-3.1-8B", "num_hidden_layers", 10**9),
        ("Llama-3.1-8B", "vocab_size", None),
        ("Llama-3.1-8B", "tie_word_embeddings", "no"),
        ("Llama-3.1-8B", "tie_word_embeddings", None),
        ("Llama-3.1-8B", "num_key_value_heads", 5),
        ("Llama-3.1-8B", "architectures", ["LlamaForSequenceClassification"]),
        ("Llama-3.1-8B", "architectures", ["OtherForCausalLM"]),
        ("Llama-3.1-8B", "architectures", "LlamaForCausalLM"),
        ("Llama-3.1-8B", "model_type", "gpt_unheard_of"),
        ("Llama-3.1-8B", "model_type", 3),
        # Keys of other families: the file describes another model than its model_type says.
        ("Llama-3.1-8B", "num_experts", 8),
        ("Llama-3.1-8B", "kv_lora_rank", 512),
        ("Llama-3.1-8B", "qkv_bias", True),
        ("Llama-3.1-8B", "sparse_attention_config", {"a": 1}),
        ("Mistral-7B", "mlp_bias", True),
        ("Phi-4", "attention_bias", True),
        ("GPT-2-XL", "n_head", 24),
        ("GPT-2-XL", "add_cross_attention", True),
        ("MPT-30B", "no_bias", False),
        ("MPT-30B", "expansion_ratio", 3),
        ("MPT-30B", "attn_config", {"alibi": False}),
        ("Mixtral-8x7B", "num_experts_per_tok", 9),
        ("Mixtral-8x7B", "num_local_experts", 10**9),
        ("DeepSeek-V3", "moe_layer_freq", 2),
        ("DeepSeek-V3", "n_group", 7),
        ("DeepSeek-V3", "topk_group", 9),
        ("DeepSeek-V3", "num_nextn_predict_layers", -1),
        ("DeepSeek-V3.2", "q_lora_rank", None),
        ("DeepSeek-V4-Flash", "compress_ratios", [0, 4, 64] * 20),
        ("DeepSeek-V4-Flash", "compress_ratios", [0, 4]),
        ("DeepSeek-V4-Flash", "num_key_value_heads", 8),
        ("Qwen3-235B-A22B", "mlp_only_layers", [200]),
        ("Qwen3-235B-A22B", "shared_expert_intermediate_size", 512),
        ("gpt-oss-20b", "layer_types", ["full_attention"]),
        ("gpt-oss-20b", "layer_types", ["full_attention", "other"] * 12),
        ("Hunyuan-A13B", "moe_topk", [8]),
        ("Hunyuan-A13B", "use_mla", True),
        ("Kimi-Linear-48B-A3B", "linear_attn_config", {"num_heads": 32, "head_dim": 128, "kda_layers": [1]}),
        ("MiniMax-M1", "attn_type_list", [0, 1]),
        ("MiniMax-M1", "attn_type_list", [2] * 80),
        ("MiniMax-M2.5", "shared_intermediate_size", 1024),
        ("Nemotron-H-56B", "hybrid_override_pattern", "MX"),
        ("Nemotron-H-56B", "num_hidden_layers", 7),
        ("Nemotron-Super-49B-NAS", "block_configs", [{}]),
        ("ERNIE-4.5-21B-A3B", "use_bias", True),
        ("Llama-3.1-8B", "rope_theta", 0),
        ("Llama-3.1-8B", "rope_theta", "500000"),
        ("Llama-3.1-8B", "rope_theta", [500000]),
        ("Llama-3.1-8B", "rope_theta", float("nan")),
        ("Llama-3.1-8B", "rope_parameters", {"rope_theta": 10000.0}),
        ("Llama-3.1-8B", "rope_parameters", {"rope_theta": -1}),
        ("Llama-3.1-8B", "rope_parameters", {"full_attention": {"rope_theta": 7.0}}),
        ("Llama-3.1-8B", "rms_norm_eps", -1e-5),
        ("Llama-3.1-8B", "rms_norm_eps", True),
        ("Llama-3.1-8B", "rms_norm_eps", float("inf")),
        ("Llama-3.1-8B", "rms_norm_eps", 5),
        ("Llama-3.1-8B", "hidden_act", "sillu"),
        ("Llama-3.1-8B", "hidden_act", 3),
        ("Llama-3.1-8B", "text_config", "none"),
        ("Llama-3.1-8B", "text_config", []),
        ("Qwen3.5-27B", "text_config", 3),
    ],
)
def test_bad_value(name: str, key: str, value: object) -> None:
    refuse(load(name) | {key: value}, key)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Llama-3.1-8B", "hidden_size"),
        ("Llama-3.1-8B", "num_hidden_layers"),
        ("Llama-3.1-8B", "num_attention_heads"),
        ("Llama-3.1-8B", "intermediate_size"),
        ("Llama-3.1-8B", "vocab_size"),
        ("Llama-3.1-8B", "model_type"),
        ("GPT-2-XL", "n_embd"),
        ("BLOOM-176B", "n_layer"),
        ("OPT-175B", "ffn_dim"),
        ("MPT-30B", "d_model"),
        ("DeepSeek-V2", "num_experts_per_tok"),
        ("GLM-4-9B", "ffn_hidden_size"),
        ("Nemotron-H-56B", "hybrid_override_pattern"),
        ("MiniMax-M1", "attn_type_list"),
        ("Kimi-Linear-48B-A3B", "linear_attn_config"),
        ("Qwen3.5-27B", "text_config"),
    ],
)
def test_missing_key(name: str, key: str) -> None:
    data = load(name)
    del data[key]
    assert "missing" in refuse(data, key)


def test_two_keys_that_disagree() -> None:
    refuse(load("gpt-oss-20b") | {"experts_per_token": 2}, "experts_per_token")


def test_inner_key_is_named_with_its_path() -> None:
    data = load("Qwen3.5-27B")
    data["text_config"]["num_attention_heads"] = "many"
    refuse(data, "text_config.num_attention_heads")
    data = load("Nemotron-Super-49B-NAS")
    data["block_configs"][3]["ffn"]["ffn_mult"] = -1
    refuse(data, "block_configs[3].ffn.ffn_mult")


def test_unknown_model_type_offers_the_nearest() -> None:
    assert "qwen3_moe" in refuse(load("Qwen3-30B-A3B") | {"model_type": "qwen3_moee"}, "model_type")


def test_null_false_and_zero_switch_nothing_on() -> None:
    plain = load("Llama-3.1-8B")
    more = plain | {"num_experts": None, "moe_gate": False, "n_shared_experts": 0, "mlp_only_layers": []}
    assert model_from_config(more, "a", "a") == model_from_config(plain, "a", "a")


def test_unknown_harmless_key_is_recorded() -> None:
    model = model_from_config(load("Llama-3.1-8B") | {"favourite_colour": "blue"}, "a", "a")
    assert any("favourite_colour" in note for note in model.assumptions)


def test_remote_code_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = load("Llama-3.1-8B") | {"auto_map": {"AutoConfig": "evil.Config"}}
    assert model_from_config(data, "a", "a").num_layers == 32


def test_outer_tie_wins_and_says_so() -> None:
    data = load("Qwen3.5-27B")
    data["text_config"]["tie_word_embeddings"] = True
    model = model_from_config(data, "a", "a")
    assert not model.tied_embeddings
    assert any("tie_word_embeddings differs" in note for note in model.assumptions)


# ---- files


def refuse_file(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_hf_config(path)
    message = str(caught.value)
    assert path.name in message
    assert "expected" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"3",
        b'"text"',
        b"null",
        b"\xff\xfe\x00",
        b'{"hidden_size": 1, "hidden_size": 2}',
        b"[" * 100_000,
        b'{"hidden_size": ' + b"9" * 5000 + b"}",
        b'{"model_type": "llama",}',
    ],
)
def test_broken_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    refuse_file(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert "No such file" in refuse_file(tmp_path / "nothing.json")
    assert "directory" in refuse_file(tmp_path)


def test_name_with_a_line_break(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_hf_config(tmp_path / "a\nb.json")
    assert "\n" not in str(caught.value)


def test_huge_file_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(hf.MAX_FILE_BYTES + 1)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("the file was read"))
    assert str(hf.MAX_FILE_BYTES + 1) in refuse_file(path)


def test_model_is_named_after_file_or_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_bytes((CONFIGS / "Llama-2-7B.json").read_bytes())
    assert ModelSpec.from_hf(folder / "config.json").name == "my-model"
    assert ModelSpec.from_hf(str(CONFIGS / "Llama-2-7B.json")).name == "Llama-2-7B"


def test_byte_order_mark_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"\xef\xbb\xbf" + (CONFIGS / "Llama-2-7B.json").read_bytes())
    assert read_hf_config(path).num_layers == 32


def test_infinity_in_a_harmless_key_is_allowed() -> None:
    data = parse_json_object('{"time_step_limit": [0.0, Infinity]}', "a")
    assert data["time_step_limit"][1] == float("inf")


POISON: list[object] = [-1, 0, 0.5, float("nan"), 10**15, "x", "", True, False, None, [], {}, [None], {"a": 1}, [[1]]]


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V4-Flash", "Nemotron-3-Ultra-550B-A55B", "Gemma-4-26B-A4B"])
def test_poison_in_every_key_is_refused_or_read(name: str) -> None:
    """Whatever stands under a key, the reader answers with a model or with InputError, never with anything else."""
    data = load(name)
    for outer in ([], ["text_config"]) if "text_config" in data else ([],):
        target = data["text_config"] if outer else data
        for key in target:
            for poison in POISON:
                mutant = copy.deepcopy(data)
                (mutant["text_config"] if outer else mutant)[key] = poison
                try:
                    model = model_from_config(mutant, "model", "model.json")
                except InputError as error:
                    assert "\n" not in str(error)
                else:
                    assert model.total_parameters > 0

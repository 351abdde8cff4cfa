"""Bad input: one clear line on standard error, exit code 2, nothing on standard output, never a traceback."""

import json
import os
from pathlib import Path

import pytest

GOOD_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def one_line(result, code=2):
    assert result.exit_code == code, (result.exit_code, result.stdout[-500:], result.stderr[-500:])
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("shardwise: error: ")
    assert len(lines[0]) < 1100
    return lines[0]


def config(tmp_path, text=None, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GOOD_CONFIG, **changes}) if text is None else text, encoding="utf-8")
    return path


BAD_OPTIONS = [
    ({"--gpus": "0"}, "--gpus"),
    ({"--gpus": "-8"}, "--gpus"),
    ({"--gpus": "nan"}, "--gpus"),
    ({"--gpus": "8.5"}, "--gpus"),
    ({"--gpus": "9" * 5000}, "--gpus"),
    ({"--gpus": "99999999999999"}, "--gpus"),
    ({"--gpus": None}, "--gpus"),
    ({"--global-batch": "0"}, "--global-batch"),
    ({"--global-batch": "inf"}, "--global-batch"),
    ({"--global-batch": "-1"}, "--global-batch"),
    ({"--seq-len": "0"}, "--seq-len"),
    ({"--seq-len": "1e400"}, "--seq-len"),
    ({"--model": None}, "--model"),
    ({"--model": "no/such/config.json"}, "no/such/config.json"),
    ({"--model": "no-such-file.sh"}, "no-such-file.sh"),
    ({"--model": "lama-3.1-70b"}, "llama-3.1-70b"),
    ({"--model": ""}, "--model"),
    ({"--model": "."}, "folder"),
    ({"--model": "a\nb\0c"}, "preset"),
    ({"--out": ""}, "--out"),
    ({"--trace": ""}, "--trace"),
    ({"--report": ""}, "--report"),
    ({"--figures": ""}, "--figures"),
    ({"--cluster": "dgx-h10"}, "dgx-h100"),
    ({"--cluster": "no-such.yaml"}, "no-such.yaml"),
    ({"--cluster": "."}, ""),
    ({"--model": "/dev/zero"}, "/dev/zero"),
    ({"--model": "a" * 5000 + ".json"}, "too long"),
    ({"--cluster": "/dev/zero"}, "/dev/zero"),
    ({"--cluster": "a" * 5000}, "system"),
    ({"--runtime": "/dev/zero"}, "/dev/zero"),
    ({"--runtime": "a" * 5000}, "runtime"),
    ({"--runtime": ""}, "runtime"),
    ({"--launcher": ""}, "launcher"),
    ({"--gpus": "12"}, "12"),
    ({"--gpus": "1000000000"}, "1000000000"),
    ({"--launcher": "megatrn"}, "megatron"),
    ({"--runtime": "megatron-cor"}, "megatron-core"),
    ({"--dtype": "int3"}, "--dtype"),
    ({"--optimizer": "lion"}, "--optimizer"),
    ({"--expert-imbalance": "nan"}, "expert_imbalance"),
    ({"--expert-imbalance": "0.5"}, "expert_imbalance"),
    ({"--expert-imbalance": "-inf"}, "expert_imbalance"),
    ({"--pin": "tp"}, "--pin"),
    ({"--pin": "tp=0"}, "tp"),
    ({"--pin": "tp=-8"}, "tp"),
    ({"--pin": "tp=nan"}, "tp"),
    ({"--pin": "tp=eight"}, "tp"),
    ({"--pin": "tq=8"}, "tq"),
    ({"--pin": "tp=" + "9" * 400}, "tp"),
    ({"--pin": "recompute=some"}, "recompute"),
    ({"--pin": "zero=4"}, "zero"),
    ({"--pin": "tp=3"}, "3"),
    ({"--pin": "tp=64"}, "64"),
    ({"--pin": "dp=7"}, "7"),
    ({"--global-batch": "64", "--pin": "mbs=5"}, "5"),
    ({"--ban": "schedule"}, "--ban"),
    ({"--min": "dp=x"}, "dp"),
    ({"--max": "recompute=full"}, "recompute"),
    ({"--top": "0"}, "--top"),
    ({"--seed": "-1"}, "--seed"),
    ({"--time-limit": "nan"}, "--time-limit"),
    ({"--time-limit": "-1"}, "--time-limit"),
    ({"--no-such-option": "1"}, "--no-such-option"),
    ({"--gpus": "1,024"}, "write 1024 for one number"),
    ({"--gpus": "8,16"}, "say by which --objective"),
    ({"--gpus": "16..8"}, "downwards"),
    ({"--gpus": "9..15"}, "whole number of nodes"),
    ({"--gpus": "8.."}, "--gpus"),
    ({"--gpus": "8,,16"}, "--gpus"),
    ({"--gpus": "8,12", "--objective": "step-time"}, "12"),
    ({"--gpus": "1..1000000"}, "expected 1 to 4096"),
    ({"--dtype": "bf16,int3"}, "int3"),
    ({"--dtype": "bf16,"}, "--dtype"),
    ({"--objective": "speed"}, "--objective"),
    ({"--objective": "cost"}, "--price-per-gpu-hour"),
    ({"--objective": "fewest-gpus"}, "--max-step-time"),
    ({"--deadline": "30d"}, "--tokens"),
    ({"--max-step-time": "12"}, "such as 12s"),
    ({"--max-step-time": "0s"}, "--max-step-time"),
    ({"--max-step-time": "1e3s"}, "--max-step-time"),
    ({"--max-step-time": "12 parsecs"}, "--max-step-time"),
    ({"--deadline": "30days", "--tokens": "1e12"}, "--deadline"),
    ({"--tokens": "inf"}, "--tokens"),
    ({"--tokens": "-1"}, "--tokens"),
    ({"--price-per-gpu-hour": "nan"}, "--price-per-gpu-hour"),
    ({"--price-per-gpu-hour": "$2"}, "--price-per-gpu-hour"),
    ({"--memory-margin": "1"}, "--memory-margin"),
    ({"--memory-margin": "-0.1"}, "--memory-margin"),
    ({"--memory-margin": "5%"}, "--memory-margin"),
]


@pytest.mark.parametrize(("changes", "named"), BAD_OPTIONS, ids=lambda v: str(v)[:60])
def test_bad_options(run, request_args, changes, named):
    assert named in one_line(run("plan", *request_args(changes)))


BAD_CONFIGS = {
    "broken JSON": ("{", "config.json"),
    "empty file": ("", "config.json"),
    "a list": ("[1, 2]", "config.json"),
    "a number": ("7", "config.json"),
    "NaN": ('{"model_type": "llama", "hidden_size": NaN}', "config.json"),
    "binary": ("\x00\x01\x02", "config.json"),
    "deeply nested": ("[" * 100_000, "config.json"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_broken_configs(run, request_args, tmp_path, name):
    text, named = BAD_CONFIGS[name]
    assert named in one_line(run("plan", *request_args({"--model": str(config(tmp_path, text))})))


BAD_KEYS = [
    ("hidden_size", 0),
    ("hidden_size", -4096),
    ("hidden_size", "big"),
    ("hidden_size", 1e300),
    ("hidden_size", 10**40),
    ("hidden_size", None),
    ("num_hidden_layers", 0),
    ("num_hidden_layers", -1),
    ("num_hidden_layers", True),
    ("num_hidden_layers", 10**9),
    ("num_attention_heads", 0),
    ("num_key_value_heads", 5),
    ("vocab_size", 0),
    ("intermediate_size", float("nan")),
    ("intermediate_size", float("inf")),
    ("model_type", "llamma"),
    ("model_type", 7),
]


@pytest.mark.parametrize(("key", "value"), BAD_KEYS, ids=str)
def test_bad_keys_are_named(run, tmp_path, key, value):
    path = config(tmp_path, **{key: value})
    line = one_line(run("models", "show", path, "--json"))
    assert key in line
    assert "config.json" in line


def test_unknown_architecture(run, tmp_path):
    path = config(tmp_path, architectures=["PerceiverForNothing"], model_type="perceiver")
    assert "perceiver" in one_line(run("models", "show", path)).lower()


def test_a_folder_is_not_a_file(run, request_args, tmp_path):
    config(tmp_path)
    assert "config.json" in one_line(run("plan", *request_args({"--model": str(tmp_path)})))


@pytest.mark.parametrize("name", ["config.json", "args.sh", "cluster.yaml", "runtime.yaml"])
def test_a_file_of_100_mb(run, request_args, tmp_path, name):
    path = tmp_path / name
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
    option = {"cluster.yaml": "--cluster", "runtime.yaml": "--runtime"}.get(name, "--model")
    assert name in one_line(run("plan", *request_args({option: str(path)})))


def test_an_unreadable_encoding(run, tmp_path):
    path = tmp_path / "args.sh"
    path.write_bytes(b"\xff\xfe--num-layers\xff")
    assert "args.sh" in one_line(run("models", "show", path))


PROFILE = """
name: x
source: ours
accelerator: H100-SXM5-80GB
gpus_per_node: {value: 8, origin: measured, source: ours}
host_memory_bytes_per_gpu: {value: 2.5e+11, origin: measured, source: ours}
"""
TIER = """
  - name: nvlink
    technology: nvlink4
    bytes_per_s: {value: 4.5e+11, origin: measured, source: ours}
    oversubscription: {value: 1.0, origin: measured, source: ours}
"""

BAD_PROFILES = {
    "missing tiers": (PROFILE, "tiers"),
    "no tier": (PROFILE + "tiers: []\n", "tiers"),
    "a tier without a size": (PROFILE + "tiers:" + TIER, "size"),
    "a tier of size zero": (PROFILE + "tiers:" + TIER + "    size: {value: 0, origin: measured, source: x}\n", "size"),
    "a tier of NaN": (
        PROFILE + "tiers:" + TIER.replace("4.5e+11", ".nan") + "    size: {value: 8, origin: measured, source: x}\n",
        "bytes_per_s",
    ),
    "broken YAML": ("name: [", "cluster.yaml"),
    "not a mapping": ("- 1\n- 2\n", "cluster.yaml"),
    "unknown key": ("name: x\nacelerator: H100-SXM5-80GB\n", "acelerator"),
    "empty": ("", "cluster.yaml"),
    "python object": ("!!python/object/apply:os.system [ls]\n", "cluster.yaml"),
}


@pytest.mark.parametrize("name", BAD_PROFILES)
def test_bad_profiles(run, request_args, tmp_path, name):
    text, named = BAD_PROFILES[name]
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    assert named in one_line(run("plan", *request_args({"--cluster": str(path)})))


def test_out_is_a_file(run, request_args, tmp_path):
    path = tmp_path / "taken"
    path.write_text("")
    assert "--out" in one_line(run("plan", *request_args(), "--out", path))


BAD_STRATEGIES = [
    ("tp", "key=value"),
    ("tp=8,tp=4", "twice"),
    ("tp=0", "tp"),
    ("tp=3", "3"),
    ("tp=8,dp=2,mbs=7", "7"),
    ("zp=8", "zp"),
    ("tp=8,recompute=maybe", "recompute"),
    ("offload=2", "offload"),
    ("offload=nan", "offload"),
    ("pp=64", "64"),
    ("pp=2,layers=1/2/3", "layers"),
]


@pytest.mark.parametrize(("strategy", "named"), BAD_STRATEGIES, ids=str)
def test_bad_strategies(run, request_args, strategy, named):
    assert named in one_line(run("estimate", *request_args(), "--strategy", strategy))


BAD_RUNS = {
    "broken JSON": ('{"id": \n', "line 1"),
    "not an object": ("7\n", "line 1"),
    "empty": ("", "runs.jsonl"),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_bad_runs(run, tmp_path, name):
    text, named = BAD_RUNS[name]
    path = tmp_path / "runs.jsonl"
    path.write_text(text, encoding="utf-8")
    assert named in one_line(run("validate", path, "--json"))


def test_a_report_does_not_take_the_place_of_a_device(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    runs = Path(__file__).parents[1] / "data" / "runs" / "published_subset.jsonl"
    assert "device or a pipe" in one_line(run("validate", runs, "--out", pipe))
    assert pipe.is_fifo()
    assert "too long" in one_line(run("validate", runs, "--out", "a" * 5000))


@pytest.mark.parametrize("path", ["missing.jsonl", ".", "/dev/zero", "a" * 5000], ids=lambda path: path[:20])
def test_runs_that_are_no_file(run, path):
    assert path[:100] in one_line(run("validate", path))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("models", "show", "deepseek-v33"), "deepseek-v3"),
        (("clusters", "show", "dgx-h101"), "dgx-h100"),
        (("runtimes", "show", "torch-titan"), "torchtitan"),
        (("frobnicate",), "frobnicate"),
    ],
    ids=str,
)
def test_unknown_names(run, args, named):
    assert named in one_line(run(*args))


def test_a_process_never_prints_a_traceback(run_process):
    result = run_process("models", "show", "nonsense")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1

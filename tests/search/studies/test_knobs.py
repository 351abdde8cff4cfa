"""A setting changes what it names and nothing else."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from shardwise.costmodel.model import ModelSpec
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster
from shardwise.search.studies.knobs import inputs
from shardwise.search.studies.study_file import make_study

BASE = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "global_batch": 512, "seq_len": 8192}


def problem(settings, **changes):
    file = make_study({**BASE, **changes, "vary": {"gpus": [8]}}, Path("study.yaml")).file
    return inputs(file, settings).problem


def test_without_settings_the_inputs_are_those_that_plan_would_read():
    found = problem({})
    assert found.model == ModelSpec.from_preset("llama-3.1-8b")
    assert found.cluster == load_cluster("dgx-h100", 64)


def test_layers_of_a_preset_are_those_of_the_changed_config():
    """Llama 3.1 8B has 32 layers of 218,112,000 parameters and 1,050,939,392 outside them (its published shapes)."""
    whole, half = problem({}).model, problem({"model.num_hidden_layers": "x0.5"}).model
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert half.num_layers == 16
    assert whole.total_parameters - half.total_parameters == 16 * layer


def test_a_megatron_argument_is_replaced(tmp_path):
    args = tmp_path / "gpt.sh"
    heads = "--num-attention-heads 4 --max-position-embeddings 64"
    args.write_text(f"--num-layers 4 --hidden-size 64 --seq-length 64 --vocab-size 128 {heads}\n")
    assert problem({"model.num-layers": 8}, model=str(args)).model.num_layers == 8


@pytest.mark.parametrize(
    ("selector", "changed"), [("nvlink", {0}), ("2", {2}), ("scale-up", {0}), ("scale-out", {1, 2, 3})]
)
def test_a_tier_changes_and_the_others_stay(selector, changed):
    before = problem({}).cluster.tiers
    after = problem({f"cluster.tiers.{selector}.bytes_per_s": "x2"}).cluster.tiers
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.bytes_per_s == old.bytes_per_s * (2 if at in changed else 1)
        assert new.latency_s == old.latency_s


def test_a_grown_domain_is_held_by_whole_larger_ones():
    cluster = problem({"cluster.tiers.nvlink.size": 72}).cluster
    sizes = [t.size for t in cluster.tiers]
    assert sizes[0] == 72
    assert all(outer % inner == 0 and outer > inner for inner, outer in pairwise(sizes))
    assert any("are taken as" in told for told in cluster.assumptions)


def test_the_batch_may_be_said_in_tokens_or_per_gpu():
    assert problem({"global_tokens": 2**22}).workload.global_batch_size == 2**22 // 8192
    assert problem({"batch_per_gpu": 4}).workload.global_batch_size == 4 * 64
    assert problem({"seq_len": 4096}, global_batch=None, global_tokens=2**22).workload.global_batch_size == 1024


def test_pins_of_a_point_join_those_of_the_study():
    file = make_study({**BASE, "pin": {"tp": 2}, "vary": {"gpus": [8]}}, Path("study.yaml")).file
    assert inputs(file, {"pin.pp": 4, "max.cp": 1}).wishes == {
        "pin": {"tp": 2, "pp": 4},
        "ban": {},
        "min": {},
        "max": {"cp": 1},
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster.tiers.nvlink.bytes_per_s", 1e300),
        ("cluster.tiers.nvlink.bytes_per_s", "x1e400"),
        ("cluster.tiers.nvlink.latency_s", "x1e300"),
        ("cluster.tiers.nvlink.size", 10**12),
        ("cluster.accelerator.peak_flops", "x1e308"),
        ("cluster.accelerator.peak_flops", "x1e-300"),
        ("cluster.accelerator.memory_bytes", 1e-300),
    ],
)
def test_figures_that_no_profile_may_hold_are_refused(path, value):
    with pytest.raises(InputError, match=f"^{re.escape(path)} = {re.escape(repr(value))}"):
        problem({path: value})

"""Study files: what they mean, and one clear line for what they cannot mean."""

from pathlib import Path

import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.search.studies.runner import read_points
from shardwise.search.studies.study_file import make_study

BASE = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "gpus": 64, "global_batch": 512, "seq_len": 8192}


def study(vary, **changes):
    return make_study({**BASE, **changes, "vary": vary}, Path("study.yaml"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 4, 2], (1, 4, 2)),
        ({"from": 8, "to": 64, "factor": 2}, (8, 16, 32, 64)),
        ({"from": 8, "to": 63, "factor": 2}, (8, 16, 32)),
        ({"from": 1, "to": 1.5, "step": 0.25}, (1, 1.25, 1.5)),
        ({"from": 0, "to": 1, "num": 3}, (0, 0.5, 1)),
        ({"times": [0.5, 2]}, ("x0.5", "x2")),
    ],
)
def test_values(values, expected):
    assert study({"seq_len": values}).axes == {"seq_len": expected}


def test_a_grid_has_every_combination_the_last_axis_quickest():
    points = study({"gpus": [8, 16], "seq_len": [1024, 2048]}).points
    assert points == tuple({"gpus": g, "seq_len": s} for g in (8, 16) for s in (1024, 2048))


def test_one_at_a_time_starts_from_the_study_itself():
    points = study({"gpus": [8], "seq_len": [1024, 2048]}, mode="one-at-a-time").points
    assert points == ({}, {"gpus": 8}, {"seq_len": 1024}, {"seq_len": 2048})


def test_zip_takes_values_side_by_side():
    points = study({"gpus": [8, 16], "seq_len": [1024, 2048]}, mode="zip").points
    assert points == ({"gpus": 8, "seq_len": 1024}, {"gpus": 16, "seq_len": 2048})


@pytest.mark.parametrize(
    ("vary", "changes", "words"),
    [
        ({}, {}, "vary"),
        ({"seq_len": []}, {}, "vary.seq_len"),
        ({"seq_len": {"from": 1, "to": 2}}, {}, "vary.seq_len: from 1 to 2: expected exactly one of"),
        ({"seq_len": {"from": 4, "to": 2, "step": 1}}, {}, "vary.seq_len: to = 2"),
        ({"seq_len": {"from": 1, "to": 1e9, "step": 1}}, {}, "vary.seq_len: 1000000000 values"),
        ({"seq_len": {"from": 0, "to": 9, "factor": 2}}, {}, "vary.seq_len: from = 0"),
        ({"seq_len": {"start": 1, "to": 2, "step": 1}}, {}, "vary.seq_len"),
        ({"seq_len": [8, 8]}, {}, "vary.seq_len: expected each value once"),
        ({"seq_len": [8, [9]]}, {}, "vary.seq_len"),
        ({"gpus": [8], "seq_len": [8, 16]}, {"mode": "zip"}, "mode = 'zip'"),
        ({"gpus": [8]}, {"mode": "all"}, "mode = 'all'"),
        ({"gpus": [8]}, {"gpu": 8}, "gpu: unknown key; did you mean 'gpus'"),
        ({"gpus": [8]}, {"dtype": "bf8"}, "dtype = 'bf8': expected one of"),
        ({"gpus": [8]}, {"seq_len": "long"}, "seq_len = 'long'"),
    ],
)
def test_a_bad_file_is_refused_with_the_path_to_the_key(vary, changes, words):
    with pytest.raises(InputError) as refused:
        study(vary, **changes)
    assert str(refused.value).startswith("study.yaml: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("vary", "changes", "words"),
    [
        ({"model.num_layers": [8]}, {}, "vary.model.num_layers"),
        ({"model": ["llama-9"]}, {}, "vary.model = 'llama-9': unknown preset"),
        ({"cluster": ["dgx-h10"]}, {}, "vary.cluster = 'dgx-h10'"),
        ({"gpus": [64, 12]}, {}, "vary.gpus = 12"),
        ({"cluster.tiers.nvswitch.size": [8]}, {}, "vary.cluster.tiers.nvswitch"),
        ({"cluster.tiers.nvlink.speed": [8]}, {}, "vary.cluster.tiers.nvlink.speed: unknown key"),
        ({"cluster.tiers.all.bytes_per_s": [-1]}, {}, "vary.cluster.tiers.all.bytes_per_s = -1"),
        ({"cluster.tiers.all.oversubscription": [0.5]}, {}, "expected 1 (non-blocking) or more"),
        ({"cluster.accelerator.peak_flops": [1e15]}, {}, "expected a multiple"),
        ({"dtype": {"times": [2]}}, {}, "vary.dtype = 'x2'"),
        ({"gpus": [64]}, {"seq_len": None}, "seq_len: missing"),
        ({"global_tokens": [8191]}, {}, "vary.global_tokens = 8191: expected whole sequences"),
        ({"gpus": [64]}, {"global_tokens": 8192}, "exactly one of global_batch"),
        ({"speed": [64]}, {}, "vary.speed: unknown key"),
    ],
)
def test_a_value_that_no_point_can_use_is_refused_before_anything_runs(vary, changes, words):
    with pytest.raises(InputError) as refused:
        read_points(study(vary, **changes))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_points_whose_settings_do_not_go_together_stay_and_say_so():
    points = read_points(study({"gpus": [64, 60], "cluster": ["dgx-h100", "gb200-nvl72"]}))
    faults = [p.fault for p in points]
    assert [bool(f) for f in faults] == [False, False, True, False]
    assert "whole nodes" in faults[2]

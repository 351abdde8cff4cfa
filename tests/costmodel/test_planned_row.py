"""A planned layout written as a row reads back as the same problem and strategy."""

import json
from dataclasses import replace

import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.planned_row import planned_row
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.runtime import load_runtime
from shardwise.costmodel.strategy import Strategy
from shardwise.costmodel.validation import validate_rows
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_cluster import load_cluster

WHOLE = Strategy(
    tp=2, sp=True, pp=2, vpp=2, schedule="interleaved", dp=4, zero_group=2, micro_batch_size=1, num_microbatches=16,
    recompute="full", offload_optimizer=0.25, dp_overlap=False, layers_per_stage=(7, 8, 8, 9),
    recompute_per_stage=(3, 2),
)  # fmt: skip


def written(tmp_path, problem, strategy):
    row = planned_row(problem, strategy, "r", "g", "t")
    (tmp_path / "in").mkdir(exist_ok=True)
    path = tmp_path / "in" / "runs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (result,) = validate_rows(path).rows
    return result


def problem(model, cluster="dgx-h100", **work):
    return Problem(model, load_cluster(cluster, 16), Workload(64, 4096, **work), load_runtime("megatron-core"))


@pytest.mark.parametrize("cluster", ["dgx-h100", "gb200-nvl72", "dgx-a100-80gb"])
@pytest.mark.parametrize("changes", [{}, {"layers_per_stage": None}, {"pp": 1, "vpp": 1, "dp": 8, "schedule": "1f1b"}])
def test_every_setting_of_a_dense_layout_comes_back(tmp_path, cluster, changes):
    p = problem(ModelSpec.from_preset("llama-3.1-8b"), cluster, optimizer="adam_bf16_moments")
    s = replace(WHOLE, **changes)
    if s.pp == 1:
        s = replace(s, layers_per_stage=None, recompute_per_stage=(3,), num_microbatches=8)
    result = written(tmp_path, p, s)
    assert result.skipped is None and result.predicted_step_time_s == estimate(p, s).step_time_s


@pytest.mark.parametrize("train_mtp", [True, False])
def test_mixtures_keep_imbalance_and_mtp(tmp_path, train_mtp):
    p = problem(ModelSpec.from_preset("deepseek-v3"), train_mtp=train_mtp, expert_imbalance=1.3)
    s = Strategy(dp=16, ep=16, num_microbatches=4)
    assert written(tmp_path, p, s).predicted_step_time_s == estimate(p, s).step_time_s


def test_a_model_from_a_file_is_found_again_or_told_by_its_plain_keys(tmp_path):
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
        "tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(config))
    p = problem(ModelSpec.from_hf(path))
    s = Strategy(tp=2, dp=8, num_microbatches=8)
    expected = estimate(p, s).step_time_s
    assert written(tmp_path, p, s).predicted_step_time_s == expected
    path.unlink()
    result = written(tmp_path, p, s)
    assert result.predicted_step_time_s == pytest.approx(expected, rel=1e-9) and not result.skipped


def test_a_strategy_reads_back_from_its_own_dict():
    assert Strategy.from_dict(WHOLE.as_dict()) == WHOLE
    assert Strategy.from_dict(json.loads(json.dumps(Strategy().as_dict()))) == Strategy()
    with pytest.raises(InputError, match="tq"):
        Strategy.from_dict({"tq": 1})


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("parallel", "strategy", {"tp": "two"}, "parallel.strategy: tp = 'two'"),
        ("parallel", "strategy", {"pp": 3}, "is not 16 GPUs"),
        ("parallel", "strategy", [], "expected a mapping"),
        ("parallel", "optimizer", "adamw9", "optimizer"),
        ("parallel", "expert_imbalance", 0.5, "expert_imbalance"),
        ("hardware", "system", "dgx-h1000", "hardware.system"),
        ("model", "preset", "llama-9", "model.preset"),
    ],
)
def test_a_bad_value_is_the_reason_that_the_row_is_skipped(tmp_path, section, key, value, said):
    row = planned_row(
        problem(ModelSpec.from_preset("llama-3.1-8b")), Strategy(dp=16, num_microbatches=4), "r", "g", "t"
    )
    row[section][key] = value
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (result,) = validate_rows(path).rows
    assert result.skipped is not None and said in result.skipped

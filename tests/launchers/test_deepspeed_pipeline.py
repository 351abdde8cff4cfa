"""DeepSpeed's pipelines: partitions against enumeration, the settings file, and files as people change them."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, get_launcher
from shardwise.launchers.deepspeed_pipeline import balanced, partition_method, partition_splits, uniform
from shardwise.launchers.parsed import Parsed

from .problems import fitted, problem

DEEPSPEED = get_launcher("deepspeed")
P = problem("llama-3.1-8b", gpus=16, batch=128, runtime="deepspeed-zero")
SPLIT = (7, 9, 9, 7)


def files(**changes: object) -> dict[str, str]:
    return DEEPSPEED.render(P, fitted(P, pp=4, dp_overlap=False, **{"layers_per_stage": SPLIT, **changes}))


def read(written: dict[str, str], **given: int) -> Parsed:
    return DEEPSPEED.parse(written, Given(model=P.model, **given))  # type: ignore[arg-type]


def spread(weights: tuple[int, ...], cuts: tuple[int, ...]) -> int:
    held = [sum(weights[a:b]) for a, b in pairwise(cuts)]
    return max(held) - min(held)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=9), st.data())
def test_no_partition_is_more_even_than_the_balanced_one(weights: list[int], data: st.DataObject) -> None:
    """Dynamic programming over the spread is exact for two stages; for more the cuts are in order and cover all."""
    fixed = tuple(weights)
    cuts = balanced(fixed, 2)
    if len(fixed) > 2:
        assert spread(fixed, cuts) == min(spread(fixed, (0, c, len(fixed))) for c in range(1, len(fixed)))
    parts = data.draw(st.integers(1, len(fixed)))
    cuts = balanced(fixed, parts)
    assert len(cuts) == parts + 1 and (cuts[0], cuts[-1]) == (0, len(fixed))
    assert all(a <= b for a, b in pairwise(cuts))


@pytest.mark.parametrize(("layers", "parts"), [(6, 3), (8, 4), (9, 3), (7, 3), (10, 4), (11, 5)])
def test_equal_layers_are_divided_as_evenly_as_can_be(layers: int, parts: int) -> None:
    best = min(spread((1,) * layers, (0, *inner, layers)) for inner in combinations(range(1, layers), parts - 1))
    assert spread((1,) * layers, balanced((1,) * layers, parts)) == best
    assert spread((1,) * layers, uniform(layers, parts)) == best


def test_more_layers_than_entries_leaves_stages_empty() -> None:
    assert uniform(2, 4) == (0, 1, 2, 2, 2) == balanced((5, 5), 4)


def test_every_split_has_the_method_that_makes_it() -> None:
    methods = {partition_method(P.model, split) for split in partition_splits(P, 1, 4)}
    assert methods == {"type:LlamaDecoderLayer", "parameters", "uniform"}
    assert len(set(partition_splits(P, 1, 8))) == len(partition_splits(P, 1, 8))


def test_the_settings_file_and_the_json_say_the_pipeline() -> None:
    written = files(recompute="full")
    names: dict[str, object] = {}
    exec(written["pipeline_settings.py"], names)
    assert names["NUM_STAGES"] == 4 and names["LAYERS_PER_STAGE"] == SPLIT and names["DATA_PARALLEL"] == 4
    assert names["PARTITION_METHOD"] == partition_method(P.model, SPLIT)
    config = json.loads(written["ds_config.json"])
    assert config["pipeline"]["activation_checkpoint_interval"] == 1 and config["pipeline"]["use_reentrant"] is False
    assert config["optimizer"]["type"] == "AdamW" and config["zero_optimization"]["overlap_comm"] is False
    assert "pipeline_settings.py" in written["launch.sh"] and "--gradient_checkpointing" not in written["launch.sh"]
    assert "TiedLayerSpec" not in written["pipeline_settings.py"]


def test_a_tied_head_is_said_to_be_one() -> None:
    p = problem("llama-3.2-1b", gpus=8, batch=64, runtime="deepspeed-zero")
    text = DEEPSPEED.render(p, fitted(p, pp=4, dp_overlap=False))["pipeline_settings.py"]
    assert "TiedLayerSpec" in text


def test_without_a_pipeline_nothing_of_it_is_written() -> None:
    written = DEEPSPEED.render(P, fitted(P, zero=3))
    assert "pipeline_settings.py" not in written and "pipeline" not in json.loads(written["ds_config.json"])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("NUM_STAGES = 4", "NUM_STAGES = 0", "NUM_STAGES = 0: expected a whole number of at least 1"),
        ("NUM_STAGES = 4", 'NUM_STAGES = int("4")', r"NUM_STAGES = int\('4'\): expected a whole number"),
        ("NUM_STAGES = 4", "NUM_STAGES = True", "NUM_STAGES = True: expected a whole number"),
        ("NUM_STAGES = 4", "STAGES = 4  # NUM_STAGES", "NUM_STAGES is missing: expected a whole number"),
        ("NUM_STAGES = 4", f"NUM_STAGES = 0x{'f' * 9000}", "NUM_STAGES = .*bits: expected a whole number"),
        ("DATA_PARALLEL = 4", "DATA_PARALLEL = 3", "DATA_PARALLEL = 3: expected 4, the GPUs over 4 stages"),
        ("DATA_PARALLEL = 4", "DATA_PARALLEL = 4.0", "DATA_PARALLEL = 4.0: expected a whole number"),
        ("METHOD = ", "METHOD = 'evenly'  # ", "PARTITION_METHOD = 'evenly': expected 'uniform', 'parameters' or"),
        ("METHOD = ", "METHOD = 3  # ", "PARTITION_METHOD = 3: expected 'uniform', 'parameters' or"),
        ("METHOD = ", "METHOD = 'TYPE:llamadecoderlayer'  # ", r"= \(7, 9, 9, 7\): expected \(8, 8, 8, 8\), which"),
        ("(7, 9, 9, 7)", "(8, 8, 8, 8)", r"= \(8, 8, 8, 8\): expected \(7, 9, 9, 7\), which PARTITION_METHOD"),
        ("NUM_STAGES = 4", "NUM_STAGES = 4\0", "pipeline_settings.py: not Python: "),
        ("NUM_STAGES = 4", "NUM_STAGES = 2", r"LAYERS_PER_STAGE = \(7, 9, 9, 7\): expected 2 whole numbers"),
        ("(7, 9, 9, 7)", "(7, 9, 9, -7)", "expected 4 whole numbers"),
        ("(7, 9, 9, 7)", "(7, 9, 9, 7", "pipeline_settings.py:.*: not Python"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(before: str, after: str, words: str) -> None:
    written = files()
    written["pipeline_settings.py"] = written["pipeline_settings.py"].replace(before, after, 1)
    with pytest.raises(InputError, match=words):
        read(written)


def test_constants_may_be_reckoned_from_others() -> None:
    written = files()
    changed = written["pipeline_settings.py"].replace("(7, 9, 9, 7)", "(7, 9, 9, NUM_STAGES + 3)")
    assert read({**written, "pipeline_settings.py": changed}).strategy == read(written).strategy


def test_another_number_of_stages_than_the_gpus_allow_is_refused() -> None:
    with pytest.raises(InputError, match="with 4 stages: expected a divisor of the 6 GPUs"):
        read(files(), num_gpus=6)


def test_keys_of_the_pipeline_are_sorted_like_the_others() -> None:
    written = files()
    config = json.loads(written["ds_config.json"])
    config["pipeline"] |= {"activation_checkpoint_intervall": 1, "grad_partitioned": True, "seed_layers": True}
    config["pipeline"]["activation_checkpoint_interval"] = 2
    parsed = read({**written, "ds_config.json": json.dumps(config)})
    assert [o.name for o in parsed.unknown] == ["pipeline.activation_checkpoint_intervall"]
    assert "did you mean activation_checkpoint_interval?" in parsed.unknown[0].note
    assert "pipeline.grad_partitioned" in [o.name for o in parsed.unmodelled]
    assert "pipeline.seed_layers" in [o.name for o in parsed.neutral]
    assert parsed.strategy.recompute == "full"
    assert any("interval = 2 is priced as 1" in note for note in parsed.assumptions)


def test_a_pipeline_without_the_settings_file_is_said_to_be_unread() -> None:
    written = files()
    del written["pipeline_settings.py"]
    parsed = read(written, num_gpus=4)
    assert parsed.strategy.pp == 1
    assert any("without pipeline_settings.py one stage is taken" in note for note in parsed.assumptions)


def test_the_batch_is_micro_batch_times_accumulation_times_data_parallel() -> None:
    written = files()
    config = json.loads(written["ds_config.json"])
    assert config["train_batch_size"] == 1 * config["gradient_accumulation_steps"] * 4 == 128
    with pytest.raises(InputError, match="train_batch_size = 130"):
        read({**written, "ds_config.json": json.dumps({**config, "train_batch_size": 130})})


def test_refusals_name_the_way_out() -> None:
    wrong = Strategy(pp=4, dp=4, num_microbatches=32, zero=3, dp_overlap=True)
    found = {r.rule: str(r) for r in DEEPSPEED.refusals(P, wrong)}
    assert {"pipeline-zero", "pipeline-dp-overlap"} <= set(found)
    assert "zero_optimization.stage 3" in found["pipeline-zero"]
    assert "nearest legal choice" in found["pipeline-zero"]

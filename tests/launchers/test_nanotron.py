"""nanotron: the division of the layers as published, and configurations as people write them."""

from __future__ import annotations

import pytest
import yaml

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, get_launcher
from shardwise.launchers.nanotron_model import divided
from shardwise.launchers.parsed import Parsed
from shardwise.launchers.reading import recognise

from .problems import LLAMA, fitted, problem

LAUNCHER = get_launcher("nanotron")

CONFIG = """\
general: {project: debug, run: test}
model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config: {is_llama_config: true, hidden_size: 4096, intermediate_size: 14336, num_attention_heads: 32,
                 num_hidden_layers: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 8192,
                 hidden_act: silu, tie_word_embeddings: false, rms_norm_eps: 1.0e-05, rope_theta: 500000.0}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}
parallelism: {dp: 2, pp: 8, tp: 4, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens: {sequence_length: 8192, micro_batch_size: 2, batch_accumulation_per_replica: 16, train_steps: 10}
"""


def read(config: str = CONFIG, script: str = "", **given: int) -> Parsed:
    files = {"config.yaml": config, **({"run.sh": script} if script else {})}
    return LAUNCHER.parse(files, Given(**given))  # type: ignore[arg-type]


def test_llama3_8b_over_eight_stages_is_divided_as_nanotron_printed_it() -> None:
    # A published walk through nanotron prints the blocks of every rank: 5 layers, 4 … 4, 4, then 2 with the head.
    stages = divided(layers=32, hidden=4096, width=14336, vocabulary=128256, pp=8)
    assert stages is not None and sum(stages) == 32
    assert (stages[:2], stages[5:]) == ((5, 4), (4, 4, 2))


def test_a_stage_without_layers_is_no_division() -> None:
    # Llama 3.2 1B: the head costs four of the sixteen layers, more than an eighth of everything.
    assert divided(layers=16, hidden=2048, width=8192, vocabulary=128256, pp=8) is None


def test_one_stage_holds_everything() -> None:
    assert divided(layers=7, hidden=64, width=128, vocabulary=100, pp=1) == (7,)


def test_a_configuration_is_read_with_its_own_division() -> None:
    parsed = read()
    assert parsed.strategy == Strategy(
        tp=4, sp=True, pp=8, dp=2, zero=1, micro_batch_size=2, num_microbatches=16, tp_overlap=True,
        layers_per_stage=(5, 4, 4, 5, 4, 4, 4, 2),
    )  # fmt: skip
    assert (parsed.workload.global_batch_size, parsed.num_gpus) == (64, 64)
    assert parsed.model is not None and parsed.model.total_parameters == 8_030_261_248
    assert parsed.unknown == () and recognise({"config.yaml": CONFIG}) == "nanotron"
    assert LAUNCHER.violations(problem("llama-3.1-8b", 64, 64, 8192, runtime="nanotron"), parsed.strategy) == []


def test_the_pipeline_engine_has_nanotrons_default() -> None:
    assert read(CONFIG.replace("pp_engine: 1f1b, ", "")).strategy.schedule == "gpipe"


def test_unknown_keys_are_listed_with_the_right_one() -> None:
    (option,) = read(CONFIG.replace("zero_stage: 1", "zero_stag: 1")).unknown
    assert option.name == "optimizer.zero_stag" and "did you mean optimizer.zero_stage?" in option.note


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("zero_stage: 1", "zero_stage: 3", "optimizer.zero_stage: 3: expected 0 or 1"),
        ("pp_engine: 1f1b", "pp_engine: zb", "parallelism.pp_engine: zb: expected one of 1f1b, afab"),
        ("REDUCE_SCATTER", "SCATTER", "expected one of ALL_REDUCE, REDUCE_SCATTER"),
        ("tp: 4", "tp: four", "parallelism.tp: four: expected a whole number of at least 1"),
        ("tp: 4", "tp: ²", "parallelism.tp: ²: expected a whole number of at least 1"),
        ("tp: 4", "tp: --4", "parallelism.tp: --4: expected a whole number of at least 1"),
        ("tp: 4", "tp: " + "9" * 9000, "9: expected a whole number of at least 1"),
        ("tp: 4", "tp: 0x" + "f" * 9000, "f: expected a whole number of at least 1"),
        ("tp: 4", "tp: 2020-13-45", "parallelism.tp: 2020-13-45: expected a whole number of at least 1"),
        ("dp: 2, ", "", "does not say how many replicas it has"),
        ("bfloat16", "bf8", "model.dtype: bf8: expected one of bfloat16"),
    ],
)
def test_what_cannot_be_meant_is_refused(before: str, after: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        read(CONFIG.replace(before, after))
    assert words in str(error.value)


def test_the_processes_that_torchrun_starts_must_be_the_product() -> None:
    script = "torchrun --nnodes 4 --nproc-per-node 8 run_train.py --config-file config.yaml"
    with pytest.raises(InputError, match=r"= 64, but torchrun starts 4·8 = 32 processes"):
        read(script=script)
    assert read(script=script.replace("--nnodes 4", "--nnodes 8")).num_gpus == 64


def test_experts_and_context_parallelism_are_read_and_refused_by_the_table() -> None:
    s = read(CONFIG.replace("pp: 8", "pp: 4, context_parallel_size: 2")).strategy
    assert s.cp == 2
    rules = [v.rule for v in LAUNCHER.violations(problem("llama-3.1-8b", 64, 64, 8192, runtime="nanotron"), s)]
    assert "nanotron-cp" in rules


def test_keys_that_are_written_are_those_of_the_published_examples() -> None:
    # Keys of huggingface/nanotron examples/config_qwen.yaml and config/models_config.py (LlamaConfig).
    p = problem(LLAMA, gpus=64, batch=128, runtime="nanotron")
    config = yaml.safe_load(LAUNCHER.render(p, fitted(p, tp=8, sp=True))["nanotron.yaml"])
    assert set(config) <= {
        "checkpoints", "data_stages", "general", "lighteval", "logging", "model", "optimizer", "parallelism",
        "profiler", "s3_upload", "tokenizer", "tokens",
    }  # fmt: skip
    assert set(config["parallelism"]) <= {
        "context_parallel_size", "dp", "expert_parallel_size", "moe_layer_recompute", "pp", "pp_engine",
        "recompute_layer", "tp", "tp_linear_async_communication", "tp_mode", "tp_recompute_allgather",
    }  # fmt: skip
    assert set(config["tokens"]) <= {
        "batch_accumulation_per_replica", "limit_test_batches", "limit_val_batches", "micro_batch_size",
        "sequence_length", "train_steps", "val_check_interval",
    }  # fmt: skip
    assert set(config["optimizer"]) <= {
        "accumulate_grad_in_fp32", "clip_grad", "learning_rate_scheduler", "optimizer_factory", "weight_decay",
        "weight_decay_exclude_named_params", "zero_stage",
    }  # fmt: skip
    needed = {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"}
    assert needed <= set(config["model"]["model_config"])

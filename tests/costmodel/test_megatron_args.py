"""Megatron-LM arguments give the same counts as the Hugging Face files of the same models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.costmodel.megatron_args import read_megatron_args
from shardwise.costmodel.megatron_shell import evaluate_integer, evaluate_pattern
from shardwise.costmodel.model import AttentionCore, ModelSpec
from shardwise.hardware_profiles.errors import InputError

DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "model_params_truth.json").read_text())
LISTS: dict[str, str] = json.loads((DATA / "megatron_args.json").read_text())

SMALL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --position-embedding-type rope "
    "--make-vocab-size-divisible-by 1 "
)


def small(more: str = "") -> ModelSpec:
    return read_megatron_args(SMALL + more)


@pytest.mark.parametrize("name", sorted(LISTS))
def test_published_lists(name: str) -> None:
    model, truth = read_megatron_args(LISTS[name], name), TRUTH[name]
    # GPT-3 runs with TP 8, which pads 50257 tokens to 51200.
    padding = (51200 - 50257) * 12288 if name == "GPT-3-175B" else 0
    assert model.total_parameters == truth["total"] + padding
    assert model.active_parameters == truth["active"] + padding
    assert model.tied_embeddings is truth["tied"]
    if "mtp_formula_per_layer" in truth and name == "DeepSeek-V3":
        assert model.mtp_parameters == truth["mtp_formula_per_layer"]


@pytest.mark.parametrize("spelling", ["'([0]*3+[1]*5)'", "[0]*3+[1]*5", '"[0, 0, 0, 1, 1, 1, 1, 1]"', "[0,0,0]+5*[1]"])
def test_spellings_of_the_layer_list(spelling: str) -> None:
    text = SMALL.replace("--num-layers 4", "--num-layers 8")
    model = read_megatron_args(f"{text} --num-experts 4 --moe-layer-freq {spelling}")
    assert model.layers == (0, 0, 0, 1, 1, 1, 1, 1)


def test_every_nth_layer() -> None:
    assert small("--num-experts 4 --moe-layer-freq 2").layers == (0, 1, 0, 1)
    assert small("--num-experts 4 --moe-layer-freq 2").kinds[0].moe is not None
    assert small("--num-experts 4").layers == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("vocab", "unit", "tp", "padded"),
    [(50257, 128, 8, 51200), (50257, 128, 1, 50304), (129280, 3232, 1, 129280), (129280, 3232, 8, 129280)],
)
def test_vocabulary_padding(vocab: int, unit: int, tp: int, padded: int) -> None:
    text = (
        f"--num-layers 1 --hidden-size 64 --num-attention-heads 4 --position-embedding-type rope --vocab-size {vocab} "
        f"--make-vocab-size-divisible-by {unit} --tensor-model-parallel-size {tp}"
    )
    assert read_megatron_args(text).vocab_size == padded
    assert read_megatron_args(f"{text} --padded-vocab-size 60000").vocab_size == 60000


def test_null_tokenizer_adds_a_token() -> None:
    assert small("--tokenizer-type NullTokenizer").vocab_size == 1001


def test_defaults() -> None:
    model = read_megatron_args(SMALL.replace("--position-embedding-type rope", "--max-position-embeddings 128"))
    kind = model.kinds[0]
    assert model.tied_embeddings
    assert [e.parameters for e in model.embedding_extras] == [128 * 64]
    assert kind.mlp is not None
    assert (kind.mlp.width, kind.mlp.gated, kind.mlp.bias) == (256, False, True)
    assert kind.mixer is not None
    assert all(op.bias for op in kind.mixer.linears)
    assert sum(e.parameters for e in kind.norms) == 4 * 64
    gated = small("--swiglu").kinds[0].mlp
    assert gated is not None
    assert gated.width == 128


def test_windows() -> None:
    model = small("--window-size 127,0 --window-attn-skip-freq 2")
    cores = [model.kinds[k].mixer for k in model.layers]
    assert [m.core.window for m in cores if m and isinstance(m.core, AttentionCore)] == [128, None, 128, None]


def test_query_groups_need_their_switch() -> None:
    mixer = small("--num-query-groups 2").kinds[0].mixer
    assert mixer is not None
    assert mixer.kind == "mha"


SCRIPT = r"""
#!/bin/bash
# Runs a mixture of experts; it's a comment with an apostrophe.
export CUDA_DEVICE_MAX_CONNECTIONS=1
NUM_LAYERS=32
HIDDEN=$((64 * 64))
NNODES=${NNODES:-"1"}
CHECKPOINT_PATH=$1
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --disable-bias-linear   # none
    --seq-length 4096
    --num-layers ${NUM_LAYERS}
    --hidden-size $HIDDEN
    --ffn-hidden-size=14336
    --num-attention-heads 32
    --normalization RMSNorm
    --position-embedding-type rope
    --group-query-attention
    --num-query-groups 8
    --untie-embeddings-and-output-weights
    --swiglu
)
MOE_ARGS="--num-experts 8 \
    --moe-router-topk 2"
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    $MOE_ARGS --vocab-size 32000 --tensor-model-parallel-size ${TP:-1} 2>&1 | tee log.txt
"""


def test_shell_script() -> None:
    model = read_megatron_args(SCRIPT, "script")
    assert model.total_parameters == TRUTH["Mixtral-8x7B"]["total"]
    assert any("--wandb-project" in note for note in model.assumptions)


def test_argument_lists() -> None:
    words = SMALL.split()
    assert read_megatron_args(words) == read_megatron_args(SMALL) == read_megatron_args(json.dumps(words))
    assert read_megatron_args("\n".join(words)) == read_megatron_args(SMALL)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "--flag"),
        ("hello there", "--flag"),
        ("--num-layers 2", "--hidden-size"),
        ("--hidden-size 64", "--num-layers"),
        (SMALL.replace("--vocab-size 1000", ""), "--vocab-size"),
        (SMALL.replace("rope", "alibi"), "--position-embedding-type"),
        (SMALL.replace("--position-embedding-type rope", ""), "--max-position-embeddings"),
        (SMALL.replace("--num-layers 4", "--num-layers $1"), "--num-layers"),
        (SMALL.replace("--num-layers 4", "--num-layers nan"), "--num-layers"),
        (SMALL.replace("--num-layers 4", "--num-layers -4"), "--num-layers"),
        (SMALL.replace("--num-layers 4", "--num-layers 99999999"), "--num-layers"),
        (SMALL.replace("--hidden-size 64", "--hidden-size 99999999999999"), "--hidden-size"),
        (SMALL.replace("--num-attention-heads 4", "--num-attention-heads 5"), "--num-attention-heads"),
        (SMALL + "--num-layers 5", "--num-layers"),
        (SMALL + "--group-query-attention --num-query-groups 3", "--num-query-groups"),
        (SMALL + "--num-experts 4 --moe-router-topk 5", "--moe-router-topk"),
        (SMALL + "--num-experts 4 --moe-layer-freq [1]*3", "--moe-layer-freq"),
        (SMALL + "--num-experts 4 --moe-layer-freq __import__('os').getpid()", "--moe-layer-freq"),
        (SMALL + "--num-experts 4 --moe-layer-freq [1]*99999999999", "--moe-layer-freq"),
        (SMALL + "--num-experts 4 --moe-shared-expert-intermediate-size 8", "--moe-shared-expert-intermediate-size"),
        (SMALL + "--normalization BatchNorm", "--normalization"),
        (SMALL + "--swiglu maybe", "--swiglu"),
        (SMALL + "--fancy-moe-dim 7", "--fancy-moe-dim"),
        (SMALL + "--hybrid-override-pattern M-M-", "--hybrid-override-pattern"),
        (SMALL + "--use-checkpoint-args", "--use-checkpoint-args"),
        (SMALL + "--experimental-attention-variant dsa", "--experimental-attention-variant"),
        (SMALL + "\nif $MOE; then\n  --num-experts 4\nfi\n", "--num-experts"),
    ],
)
def test_refused(text: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        read_megatron_args(text, "job")
    message = str(caught.value)
    assert named in message
    assert "job" in message
    assert "expected" in message
    assert "\n" not in message


def test_an_assignment_in_a_branch_is_not_trusted() -> None:
    script = "LAYERS=4\nif [ $BIG ]; then\nLAYERS=8\nfi\n" + SMALL.replace("--num-layers 4", "--num-layers $LAYERS")
    with pytest.raises(InputError, match="--num-layers"):
        read_megatron_args(script)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_pattern_of_a_plain_list(bits: list[int]) -> None:
    assert evaluate_pattern(str(bits)) == bits


@given(st.text(max_size=60))
def test_any_text_is_answered(text: str) -> None:
    assert evaluate_integer(text) is None or isinstance(evaluate_integer(text), int)
    assert evaluate_pattern(text) is None or isinstance(evaluate_pattern(text), list)
    try:
        read_megatron_args(SMALL + text)
    except InputError as error:
        assert "\n" not in str(error)


def test_arithmetic() -> None:
    assert evaluate_integer("(1408 * 2)") == 2816
    assert evaluate_integer("1/0") is None
    assert evaluate_integer("2**9999") is None

"""Megatron-LM launch scripts and argument lists read back, published ones among them."""

from __future__ import annotations

import pytest

from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, Parsed, get_launcher
from shardwise.launchers.megatron_layout import expand_layout
from shardwise.launchers.megatron_plan import layout_string
from shardwise.launchers.megatron_read import known_options

from .problems import fitted, problem

SMALL = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 --bf16 "
SMALL += "--max-position-embeddings 4096 --position-embedding-type rope "
MOE = SMALL + "--num-experts 8 --moe-grouped-gemm "


def read(text: str, gpus: int | None = 64, **given: object) -> Parsed:
    return get_launcher("megatron").parse(text, Given(num_gpus=gpus, **given))  # type: ignore[arg-type]


def strategy(text: str, gpus: int | None = 64, batch: int = 128) -> Strategy:
    return read(text + f" --global-batch-size {batch}", gpus).strategy


# NVIDIA/Megatron-LM@d98e8a6 examples/gpt3/train_gpt3_175b_distributed.sh, its model and layout
GPT3 = """
GPUS_PER_NODE=8
NUM_NODES=128
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_addr localhost)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288   # wide
    --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048 --attention-backend auto
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 1536 --fp16 --train-iters 500000)
MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size 8
\t--pipeline-model-parallel-size 16
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} --vocab-size 50257
"""


def test_gpt_3_of_megatrons_examples() -> None:
    found = read(GPT3, gpus=None)
    assert found.num_gpus == 1024
    assert found.strategy == Strategy(tp=8, pp=16, dp=8, num_microbatches=192, zero=0, dp_overlap=False)
    assert (found.workload.dtype, found.workload.sequence_length) == ("fp16", 2048)
    assert found.model is not None and found.model.vocab_size == 50257
    assert found.unknown == () and [o.name for o in found.unmodelled] == ["--attention-backend"]
    assert {(o.name, o.line) for o in found.read} >= {("--hidden-size", 7), ("--pipeline-model-parallel-size", 14)}
    assert found.runtime_changes["dropout"] is True  # Megatron's default


# NVIDIA/Megatron-LM@d98e8a6 examples/mixtral/train_mixtral_8x7b_distributed.sh, its model and layout
MIXTRAL = """
--use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32
--hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --normalization RMSNorm
--position-embedding-type rope --swiglu --untie-embeddings-and-output-weights --group-query-attention
--num-query-groups 8 --no-position-embedding --rotary-base 1000000 --num-experts 8 --moe-router-topk 2
--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm
--moe-token-dispatcher-type alltoall --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
--expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel --bf16 --overlap-grad-reduce
--overlap-param-gather --micro-batch-size 1 --global-batch-size 256 --vocab-size 32000
"""


def test_mixtral_of_megatrons_examples() -> None:
    found = read(MIXTRAL, gpus=64)
    assert found.strategy == Strategy(pp=4, dp=16, ep=8, num_microbatches=16)
    assert found.runtime_changes["moe_dispatcher"] == "alltoall"
    assert found.unknown == ()
    assert "--sequence-parallel has no effect without tensor parallelism" in found.assumptions


def test_the_published_layout_of_deepseek_v3() -> None:
    # yanring/Megatron-MoE-ModelZoo@e865051: PP 8, VPP 4; 61 layers and one prediction layer on 32 virtual stages
    text = "Et*2|(tt|)*22t|(tt|)*7mL"
    stages = expand_layout(text)
    assert stages is not None and len(stages) == 32
    split = tuple(stage.count("t") for stage in stages)
    assert sum(split) == 61 and split[0] == 2 and split[23] == 1 and split[-1] == 0 and stages[-1] == "mL"
    s = strategy(
        SMALL.replace("--num-layers 32", "--num-layers 61")
        + f'--pipeline-model-parallel-size 8 --mtp-num-layers 1 --pipeline-model-parallel-layout "{text}"'
    )
    assert (s.pp, s.vpp, s.layers_per_stage) == (8, 4, split)
    assert expand_layout(layout_string(split, 1)) == stages


@pytest.mark.parametrize(
    ("flags", "vpp", "split"),
    [
        ("--pipeline-model-parallel-size 4", 1, None),
        ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", 4, None),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2", 2, None),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 "
         "--decoder-last-pipeline-num-layers 7", 1, (5, 10, 10, 7)),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2", 1, (2, 10, 10, 10)),
        ("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 5", 1, (9, 9, 9, 5)),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6 "
         "--num-virtual-stages-per-pipeline-rank 2", 2, (3, 5, 5, 3) * 2),
        ("--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", 1, None),
        ("--pipeline-model-parallel-size 3 --account-for-loss-in-pipeline-split", 1, (11, 11, 10)),
        ("--pipeline-model-parallel-size 3 --account-for-embedding-in-pipeline-split", 1, None),  # 10, 11, 11 is even
    ],
)  # fmt: skip
def test_which_layers_a_stage_holds(flags: str, vpp: int, split: tuple[int, ...] | None) -> None:
    s = strategy(SMALL + flags, gpus=24, batch=48)
    assert (s.vpp, s.layers_per_stage) == (vpp, split)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"zero": 0, "dp_overlap": False}),
        ("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", {"zero": 1, "dp_overlap": True}),
        ("--use-megatron-fsdp", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", {"zero": 0}),
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 4", {"zero": 1, "zero_group": 16}),
        ("--context-parallel-size 4", {"cp": 4, "cp_comm": "p2p", "ulysses": 1}),
        ("--context-parallel-size 4 --cp-comm-type a2a", {"cp_comm": "a2a", "ulysses": 4}),
        ("--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4", {"ulysses": 2}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity selective --recompute-modules layernorm mlp", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
         {"recompute": "full", "recompute_layers": -1}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 5",
         {"recompute": "full", "recompute_layers": 5}),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 0.25",
         {"offload_optimizer": 0.25}),
        ("--fine-grained-activation-offloading --offload-modules core_attn attn_proj", {"offload_activations": True}),
        ("--offload-modules core_attn", {"offload_activations": False}),
        ("--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap", {"sp": True, "tp_overlap": True}),
        ("--tensor_model_parallel_size=2", {"tp": 2, "sp": False}),
    ],
)  # fmt: skip
def test_flags_mean_their_dimension(flags: str, expected: dict[str, object]) -> None:
    found = strategy(SMALL + flags).as_dict()
    assert {name: found[name] for name in expected} == expected


def test_experts_take_tps_degree_unless_told_otherwise() -> None:
    both = "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 8 "
    assert strategy(MOE + both).etp == 2
    assert strategy(MOE + both + "--expert-tensor-parallel-size 1").etp == 1
    assert strategy(SMALL + "--tensor-model-parallel-size 2").etp == 1


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ("--fp8-format hybrid", "fp8"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "fp8_block"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--fp4-format e2m1", "nvfp4"),
        ("", "bf16"),
    ],
)
def test_precisions(flags: str, dtype: str) -> None:
    assert read(SMALL + flags).workload.dtype == dtype


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size $TP: expected a whole number"),
        ("--pipeline-model-parallel-size 5", "--pipeline-model-parallel-size 5: expected a divisor of 32 layers"),
        ("--tensor-model-parallel-size 48", "tp·cp·pp = 48 does not divide the 64 GPUs"),
        ("--context-parallel-size 4 --cp-comm-type ring", "--cp-comm-type ring: expected one of p2p, all_gather"),
        (
            "--context-parallel-size 8 --cp-comm-type a2a+p2p",
            "--hierarchical-context-parallel-sizes is missing: expected two",
        ),
        ("--recompute-granularity full", "--recompute-granularity full: expected --recompute-method"),
        ("--optimizer soap", "--optimizer soap: expected one of adam"),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|tL'", "a multiple of 4 stages"),
        ("--micro-batch-size 3", "dp·mbs = 64·3 does not divide the global batch 128"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", "a divisor of dp·cp = 64·1"),
    ],
)
def test_what_cannot_be_used_is_named(flags: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        strategy(SMALL + flags)
    assert text in str(caught.value) and "the launch file" in str(caught.value)


def test_variables_of_the_shell_can_be_given() -> None:
    script = (
        "TP=${TP:-1}\n" + SMALL + "--tensor-model-parallel-size $TP --global-batch-size ${GBS} --micro-batch-size 2"
    )
    with pytest.raises(InputError, match=r"--global-batch-size \$\{GBS\}.*--var"):
        read(script)
    found = read(script, variables={"TP": "4", "GBS": "64"}).strategy
    assert (found.tp, found.dp, found.num_microbatches) == (4, 16, 2)


def test_every_option_is_in_one_list() -> None:
    found = read(
        SMALL + "--log-interval 1 --tensor-model-paralel-size 2 --delay-wgrad-compute --nnodes 8 --global-batch-size 64"
    )
    lists = (found.read, found.neutral, found.unmodelled, found.unknown)
    names = [o.name for one in lists for o in one]
    assert len(names) == len(set(names)) == len(SMALL.split("--")) - 1 + 5
    assert [o.name for o in found.unmodelled] == ["--delay-wgrad-compute"]
    (odd,) = found.unknown
    assert str(odd).endswith("did you mean --tensor-model-parallel-size?)")


def test_an_option_inside_a_branch_is_not_taken_and_listed() -> None:
    found = read(
        "if [ $X = 1 ]; then\n ARGS+=(--tensor-model-parallel-size 8)\nfi\n" + SMALL + "--global-batch-size 64"
    )
    assert found.strategy.tp == 1
    assert [(o.name, o.line) for o in found.unknown] == [("--tensor-model-parallel-size", 2)]
    assert "inside a branch" in found.unknown[0].note


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8 train.py ", 32),
        ("torchrun --nnodes=2:4 --nproc_per_node=8 train.py ", 32),
        ("N=2\ntorchrun --nnodes $N --nproc-per-node 4 train.py ", 8),
        ("#SBATCH --nodes=16\n#SBATCH --gpus-per-node=8\nsrun python train.py ", 128),
        ("#SBATCH -N 2\n#SBATCH --gres=gpu:h100:8\nsrun python train.py ", 16),
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun python train.py ", 32),
        ("WORLD_SIZE=$((8*4))\npython train.py ", 32),
        ("torchrun --nproc-per-node 8 train.py ", 8),
    ],
)
def test_the_number_of_gpus_comes_from_the_launcher(script: str, gpus: int) -> None:
    assert read(script + SMALL + "--global-batch-size 128", gpus=None).num_gpus == gpus


def test_without_a_number_of_gpus_it_is_asked_for() -> None:
    with pytest.raises(InputError, match="does not say how many GPUs the job has: give it with --gpus"):
        read(SMALL, gpus=None)


def test_an_argument_list_and_a_json_list_are_read_alike() -> None:
    words = (SMALL + "--global-batch-size 128 --tensor-model-parallel-size 2").split()
    megatron = get_launcher("megatron")
    assert megatron.parse(words, Given(num_gpus=64)).strategy == strategy(SMALL + "--tensor-model-parallel-size 2")


def test_the_list_of_options_is_megatrons() -> None:
    options = known_options()
    assert len(options) > 800 and options["sequence-parallel"] == "0" and options["recompute-modules"] == "+"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("", {"selective_recompute": "attention_core"}),
        ("core_attn", {"selective_recompute": "attention_core"}),
        ("layernorm mlp", {"selective_recompute": "norms_and_activations"}),
        ("mlp layernorm moe_act", {"selective_recompute": "norms_and_activations"}),
        ("layernorm", {"recompute_modules": ("layernorm",)}),
        ("mlp core_attn", {"recompute_modules": ("core_attn", "mlp")}),
        ("layernorm gdn_norm_out", {"recompute_modules": ("layernorm",)}),
    ],
)
def test_modules_of_selective_recomputation_are_taken_one_by_one(words: str, changes: dict[str, object]) -> None:
    named = f" --recompute-modules {words}" if words else ""
    parsed = read(f"{SMALL} --recompute-granularity selective{named}")
    assert {k: v for k, v in parsed.runtime_changes.items() if "recompute" in k} == changes
    assert any("gdn_norm_out is not priced" in note for note in parsed.assumptions) == ("gdn" in words)


def test_a_module_that_megatron_has_not_is_refused() -> None:
    with pytest.raises(InputError, match="--recompute-modules mlp norm: expected some of core_attn, layernorm"):
        read(f"{SMALL} --recompute-granularity selective --recompute-modules mlp norm")


def test_modules_that_are_named_are_written_again() -> None:
    p = problem("mixtral-8x22b", gpus=64, batch=64, changes={"recompute_modules": ("layernorm", "moe")})
    files = get_launcher("megatron").render(p, fitted(p, ep=8, recompute="selective"))
    assert "--recompute-modules layernorm moe\n" in files["launch.sh"]
    assert get_launcher("megatron").parse(files).runtime_changes["recompute_modules"] == ("layernorm", "moe")

"""Recipes of Megatron-Bridge and NeMo 2 in the styles that people write."""

from __future__ import annotations

import pytest

from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.base import Given, get_launcher
from shardwise.launchers.megatron_read import known_options
from shardwise.launchers.reading import recognise

from .problems import LLAMA, fitted, model, problem

BRIDGE = get_launcher("megatron-bridge")

STOCK = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

def llama3_70b_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.recompute_granularity = None
    cfg.dataset.seq_length = 8192
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    cfg.mixed_precision = "bf16_with_mxfp8_mixed"
    return cfg
"""

NEMO = """
import nemo_run as run
from nemo.collections import llm
from nemo import lightning as nl

def configure():
    recipe = llm.llama3_70b.pretrain_recipe(name="x", num_nodes=4, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.pipeline_model_parallel_size = 2
    recipe.trainer.strategy.sequence_parallel = True
    recipe.trainer.strategy.ddp = run.Config(DistributedDataParallelConfig, use_distributed_optimizer=True,
                                             overlap_grad_reduce=True, overlap_param_gather=True)
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    recipe.data.global_batch_size = 128
    recipe.data.micro_batch_size = 2
    recipe.data.seq_length = 4096
    recipe.model.config.recompute_granularity = "selective"
    recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
    return recipe
"""

PARTIAL = """
import nemo_run as run
from nemo import lightning as nl
from nemo.collections import llm

strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
trainer = run.Config(nl.Trainer, num_nodes=2, devices=8, strategy=strategy, plugins=bf16_mixed())
data = run.Config(llm.MockDataModule, seq_length=2048, global_batch_size=64, micro_batch_size=1)
config = run.Config(llm.GPTConfig, num_layers=24, hidden_size=1024, num_attention_heads=16, vocab_size=32000,
                    seq_length=2048, position_embedding_type="rope", recompute_granularity="full",
                    recompute_method="uniform", recompute_num_layers=1)
job = run.Partial(llm.pretrain, model=run.Config(llm.GPTModel, config=config), trainer=trainer, data=data)
"""


def test_a_stock_recipe() -> None:
    parsed = BRIDGE.parse({"r.py": STOCK}, Given(num_gpus=64))
    s = parsed.strategy
    assert (s.tp, s.sp, s.pp, s.vpp, s.cp, s.dp, s.micro_batch_size) == (4, True, 4, 5, 2, 2, 1)
    assert (s.zero, s.dp_overlap, s.tp_overlap, s.recompute) == (1, True, True, "none")
    work = parsed.workload
    assert (work.global_batch_size, work.sequence_length, work.dtype) == (512, 8192, "mxfp8")
    assert parsed.model is not None and parsed.model.name == "llama-3-70b" and parsed.unknown == ()
    assert any("is taken to be the shipped llama-3-70b" in note for note in parsed.assumptions)
    assert any("_pretrain_common()" in note for note in parsed.assumptions)
    assert recognise({"r.py": STOCK}) == "megatron-bridge"
    assert not BRIDGE.claim({"train.py": 'MODEL = "nvidia/nemotron-4-340b"'})


def test_a_nemo_recipe() -> None:
    parsed = BRIDGE.parse({"r.py": NEMO})
    s = parsed.strategy
    assert (s.tp, s.sp, s.pp, s.dp, s.micro_batch_size, s.num_microbatches) == (4, True, 2, 4, 2, 16)
    assert (s.tp_overlap, s.recompute, parsed.workload.dtype, parsed.num_gpus) == (True, "selective", "fp8", 32)
    assert parsed.model is not None and parsed.model.name == "llama-3-70b"
    assert recognise({"r.py": NEMO}) == "megatron-bridge"


def test_a_partial_of_configurations() -> None:
    parsed = BRIDGE.parse({"r.py": PARTIAL})
    s = parsed.strategy
    assert (s.tp, s.pp, s.dp, s.recompute, parsed.num_gpus) == (2, 2, 4, "full", 16)
    assert parsed.model is not None and parsed.model.num_layers == 24 and parsed.workload.sequence_length == 2048


def test_overrides_win_over_the_recipe_and_a_file_of_them_over_neither() -> None:
    files = {
        "r.py": STOCK,
        "o.yaml": "model:\n  tensor_model_parallel_size: 8\n  recompute_granularity: selective\n"
        "  recompute_modules: [core_attn]\n",
        "run.sh": "torchrun --nnodes 8 --nproc-per-node 8 r.py model.tensor_model_parallel_size=2 "
        "++train.micro_batch_size=2 model.cp_comm_type=all_gather\n",
    }
    parsed = BRIDGE.parse(files)
    s = parsed.strategy
    assert (s.tp, s.micro_batch_size, s.cp_comm, s.recompute, s.dp) == (2, 2, "all_gather", "selective", 4)
    again = [o for o in parsed.neutral if o.name.endswith("tensor_model_parallel_size")]
    assert [o.value for o in again] == ["4", "8"] and "set again on line 1 of run.sh" in str(again[1])


def test_nothing_is_dropped() -> None:
    text = STOCK.replace("cfg.model.sequence_parallel = True", "cfg.model.sequence_paralel = True\n"
                         "    cfg.optimiser.lr = 1\n    cfg.model.delay_wgrad_compute = True\n"
                         "    cfg.model.moe_shared_expert_overlap = False\n    cfg.peft = LoRA()\n"
                         "    if os.environ.get('X'):\n        cfg.model.tensor_model_parallel_size = 8")  # fmt: skip
    parsed = BRIDGE.parse({"r.py": text}, Given(num_gpus=64))
    unknown = {o.name: o.note for o in parsed.unknown}
    assert "did you mean model.sequence_parallel?" in unknown["cfg.model.sequence_paralel"]
    assert "cfg.optimiser.lr" in unknown
    assert "not taken" in unknown["cfg.model.tensor_model_parallel_size"] and parsed.strategy.tp == 4
    unmodelled = {o.name: o.note for o in parsed.unmodelled}
    assert {"cfg.model.delay_wgrad_compute", "cfg.peft"} <= set(unmodelled)
    assert "cfg.model.moe_shared_expert_overlap" in {o.name for o in parsed.neutral}
    everything = (*parsed.read, *parsed.neutral, *parsed.unmodelled, *parsed.unknown)
    lines = {o.line for o in everything}
    assert {i for i, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("cfg.")} <= lines


@pytest.mark.parametrize(
    ("lines", "strategy"),
    [
        ("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)\n    cfg.model.sequence_parallel = False",
         {"tp_overlap": False, "dp_overlap": True}),
        ("cfg.comm_overlap.overlap_grad_reduce = False\n    cfg.comm_overlap.overlap_param_gather = False",
         {"dp_overlap": False}),
        ("cfg.ddp.overlap_grad_reduce = False\n    cfg.ddp.overlap_param_gather = False", {"dp_overlap": True}),
        ("cfg.ddp.use_distributed_optimizer = False", {"zero": 0}),
        ("cfg.ddp.use_megatron_fsdp = True\n    cfg.ddp.data_parallel_sharding_strategy = 'optim_grads'", {"zero": 2}),
        ("cfg.model.num_moe_experts = 8\n    cfg.model.expert_model_parallel_size = 2", {"ep": 2, "etp": 1}),
        ("cfg.model.pipeline_model_parallel_layout = [['embedding'] + ['decoder'] * 3] + [['decoder'] * 4] * 18 + "
         "[['decoder'] * 5 + ['loss']]", {"vpp": 5, "layers_per_stage": (3, *(4,) * 18, 5)}),
    ],
)  # fmt: skip
def test_what_the_framework_changes_by_itself(lines: str, strategy: dict[str, object]) -> None:
    text = STOCK.replace("    return cfg", f"    {lines}\n    return cfg")
    parsed = BRIDGE.parse({"r.py": text}, Given(num_gpus=64, model=model("llama-3-70b")))
    assert {name: getattr(parsed.strategy, name) for name in strategy} == strategy


@pytest.mark.parametrize(
    "value",
    [
        "0x" + "f" * 9000,
        "9" * 9000,
        "[0x" + "f" * 9000 + "]",
        "2020-13-45",
        "'[[1,'",
        "[" * 3000,
        "'*x'",
        "!!python/x",
        "'&a [&b [x, x], *b, *a]'",
    ],
    ids=["hexadecimal", "digits", "in a list", "no date", "no list", "deep", "alias", "tag", "aliases"],
)
def test_an_override_that_is_no_number_is_refused_by_name(value: str) -> None:
    files = {"r.py": STOCK, "run.sh": f"torchrun r.py model.pipeline_model_parallel_size={value}\n"}
    with pytest.raises(InputError, match=r"run.sh:1 model.pipeline_model_parallel_size .*expected a "):
        BRIDGE.parse(files, Given(num_gpus=64))


def test_a_value_only_running_would_tell_is_asked_for() -> None:
    text = STOCK.replace("parallel_size = 2", "parallel_size = cp")
    with pytest.raises(
        InputError, match=r"r.py:11 cfg.model.context_parallel_size \$cp: expected a whole number .*--var"
    ):
        BRIDGE.parse({"r.py": text}, Given(num_gpus=64))
    reckoned = STOCK.replace("parallel_size = 2", "parallel_size = int(os.environ['CP'])")
    with pytest.raises(
        InputError, match=r"expected a whole number of at least 1; only running it would tell: write the"
    ):
        BRIDGE.parse({"r.py": reckoned}, Given(num_gpus=64))
    parsed = BRIDGE.parse({"r.py": text}, Given(num_gpus=64, variables={"cp": "2"}))
    assert parsed.strategy.cp == 2


def test_a_model_nobody_knows_is_asked_for() -> None:
    text = STOCK.replace("meta-llama/Meta-Llama-3-70B", "somebody/new")
    with pytest.raises(InputError, match="does not say how many layers: give it with --model"):
        BRIDGE.parse({"r.py": text}, Given(num_gpus=64))


def test_every_option_that_a_field_stands_for_is_megatrons() -> None:
    from shardwise.launchers import bridge_fields

    ours = set(bridge_fields._PLACES) | set(bridge_fields._ALSO.values())
    assert ours <= set(known_options()) | {"num-nodes", "num-gpus"}
    places = {bridge_fields.path_of(option) for option in bridge_fields._PLACES} | set(bridge_fields._ALSO)
    assert {p for p in places if not p.startswith("nodes.")} <= bridge_fields.known_fields()


def test_the_recipe_is_written_field_by_field() -> None:
    p = problem(LLAMA, gpus=64, batch=128)
    text = BRIDGE.render(p, fitted(p, tp=8, sp=True, pp=2))["recipe.py"]
    for line in (
        "tensor_model_parallel_size=8,",
        "sequence_parallel=True,",
        "global_batch_size=128,",
        "seq_length=4096,",
    ):
        assert f"        {line}\n" in text


def test_the_other_rank_order_is_written_and_read() -> None:
    p = problem(LLAMA, gpus=64, batch=128)
    s = fitted(p, tp=8, sp=True, pp=2, rank_order="tp-cp-ep-pp-dp")
    files = BRIDGE.render(p, s)
    assert "    dist = DistributedInitConfig(\n        use_tp_pp_dp_mapping=True,\n    )\n" in files["recipe.py"]
    assert BRIDGE.parse(files).strategy == s

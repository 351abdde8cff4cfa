"""Plans against the real Megatron-Core: accepted by its checks, with the degrees, layers and rank groups we mean.

Needs ``SHARDWISE_MEGATRON_PYTHON``, the interpreter of an environment with megatron-core 0.19 (``.ci/validators.sh``
makes one).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.costmodel.estimate import estimate as estimate_of
from shardwise.costmodel.presets import list_presets
from shardwise.costmodel.problem import Problem
from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import RANK_ORDERS, Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_topology import parse_topology
from shardwise.launchers.base import Given, get_launcher
from shardwise.launchers.megatron_files import megatron_arguments
from shardwise.launchers.megatron_plan import environment
from shardwise.launchers.megatron_read import known_options
from shardwise.launchers.megatron_rules import is_blackwell
from shardwise.launchers.ranks import rank_groups
from shardwise.search.placement import place

from ..bench import run
from ..problems import GPT, LLAMA, MIXTRAL, model, problem
from .asking import Case, ask
from .cases import plans, random_plans

pytestmark = pytest.mark.validators

MEGATRON = get_launcher("megatron")


def ask_megatron(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The answers of Megatron's own checks, all cases in one process (importing it takes seconds)."""
    return ask("megatron_runner.py", "SHARDWISE_MEGATRON_PYTHON", cases, folder)


def case_of(p: Problem, s: Strategy) -> Case:
    capability = 10 if is_blackwell(p) else 9
    world = p.cluster.num_gpus
    return {"args": megatron_arguments(p, s), "world": world, "env": environment(p, s), "capability": capability}


PLANS = plans()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ask_megatron([case_of(p, s) for p, s in PLANS], tmp_path_factory.mktemp("megatron"))


def test_there_are_enough_plans_and_our_rules_allow_them() -> None:
    assert len(PLANS) >= 50
    for p, s in PLANS:
        assert MEGATRON.violations(p, s) == [], (p.model.name, s)


@pytest.mark.parametrize("index", range(len(PLANS)))
def test_megatron_accepts_the_plan_and_means_the_same(index: int, answers: list[dict[str, Any]]) -> None:
    (p, s), answer = PLANS[index], answers[index]
    assert answer["accepted"], (p.model.name, s, answer["error"])
    assert degrees_of(answer) == {
        "tp": s.tp,
        "pp": s.pp,
        "vpp": s.vpp,
        "cp": s.cp,
        "dp": s.dp,
        "ep": s.ep,
        "sp": s.sp,
        "m": s.num_microbatches,
        "zero": s.zero > 0 and p.workload.optimizer != "muon",
        "fsdp": s.zero >= 2,
        "tp_overlap": s.tp_overlap,
    }
    assert tuple(answer["layers"]) == (s.layers_per_stage or even_split(p.model.num_layers, s.pp * s.vpp))
    if p.runtime.vocab_multiple > 1:
        assert answer["padded_vocabulary"] == p.padded_vocabulary(np.array([s.tp]))[0]
    check_groups(p, s, answer["groups"])


def test_megatron_accepts_whatever_our_rules_allow(tmp_path: Path) -> None:
    drawn = random_plans(100, seed=3)
    found = ask_megatron([{**case_of(p, s), "groups": False} for p, s in drawn], tmp_path)
    refused = [(p.model.name, s, a["error"]) for (p, s), a in zip(drawn, found, strict=True) if not a["accepted"]]
    assert refused == []


def test_groups_of_drawn_layouts_are_megatrons(tmp_path: Path) -> None:
    many = random_plans(400, seed=5)
    drawn = [*many[:90], *[pair for pair in many[90:] if pair[1].rank_order != RANK_ORDERS[0]][:30]]
    orders = [s.rank_order for p, s in drawn if s.pp > 1 and s.dp > 1]
    assert orders.count(RANK_ORDERS[0]) >= 20 and orders.count(RANK_ORDERS[1]) >= 20
    assert sum(s.ep > 1 for _, s in drawn) >= 20 and sum(s.cp > 1 for _, s in drawn) >= 10
    assert sum(s.etp > 1 for _, s in drawn) >= 5
    found = ask_megatron([case_of(p, s) for p, s in drawn], tmp_path)
    for (p, s), answer in zip(drawn, found, strict=True):
        assert answer["accepted"], (p.model.name, s, answer["error"])
        check_groups(p, s, answer["groups"])


AXES = {"tp": ("tp",), "cp": ("cp",), "dp": ("dp",), "dp_cp": ("dp", "cp"), "pp": ("pp",)}
EXPERT_AXES = {"ep": ("ep",), "etp": ("etp",), "edp": ("edp",)}


def test_a_placement_gives_each_of_megatrons_groups_the_nodes_it_says(tmp_path: Path) -> None:
    """Hosts by Megatron's own groups and the lines of hostfile, against the coordinates in ranks.csv."""
    drawn = [(p, s) for p, s in random_plans(160, seed=8) if p.cluster.num_gpus >= 64 and s.offload_optimizer == 0.0]
    drawn = [*drawn[:24], *[pair for pair in drawn[24:] if pair[1].rank_order != RANK_ORDERS[0]][:8]]
    assert {s.rank_order for _, s in drawn} == set(RANK_ORDERS)
    for (p, s), answer in zip(drawn, ask_megatron([case_of(p, s) for p, s in drawn], tmp_path), strict=True):
        files = _placed(p, s)
        hosts = files["hostfile"].split()
        rows = list(csv.DictReader(files["ranks.csv"].splitlines()))
        assert len(set(hosts)) == len(hosts) and [row["host"] for row in rows] == [h for h in hosts for _ in range(8)]
        dense, expert = ("pp", "dp", "cp", "tp"), ("pp", "edp", "ep", "etp")
        kinds = [(name, axes, dense) for name, axes in AXES.items()]
        kinds += [(name, axes, expert) for name, axes in EXPERT_AXES.items()] if p.model.is_moe else []
        for name, axes, mesh in kinds:
            ours: dict[tuple[str, ...], list[str]] = {}
            for row in rows:
                ours.setdefault(tuple(row[a] for a in mesh if a not in axes), []).append(row["host"])
            theirs = [[hosts[rank // 8] for rank in group] for group in answer["groups"][name]]
            assert sorted(map(sorted, ours.values())) == sorted(map(sorted, theirs)), (name, s)


def _placed(p: Problem, s: Strategy) -> dict[str, str]:
    """The files of a placement under leaves of three nodes, named across the leaves."""
    names = [f"n{i:02}" for i in range(p.cluster.num_gpus // 8)]
    wired = [*names[::2], *names[1::2]]
    lines = [f"SwitchName=l{at // 3} Nodes={','.join(wired[at : at + 3])}" for at in range(0, len(names), 3)]
    lines.append(f"SwitchName=s Switches=l[0-{len(lines) - 1}]")
    topology = parse_topology("\n".join(lines), "drawn.conf")
    return place(estimate_of(p, s), topology, names, time_limit_s=1.0).files()


def degrees_of(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "tp": answer["tensor_model_parallel_size"],
        "pp": answer["pipeline_model_parallel_size"],
        "vpp": answer["vpp"],
        "cp": answer["context_parallel_size"],
        "dp": answer["data_parallel_size"],
        "ep": answer["expert_model_parallel_size"],
        "sp": answer["sequence_parallel"],
        "m": answer["num_microbatches"],
        # Megatron moves a layer-wise optimizer's sharding to another switch.
        "zero": answer["use_distributed_optimizer"],
        "fsdp": answer["use_megatron_fsdp"],
        "tp_overlap": answer["tp_comm_overlap"],
    }


def check_groups(p: Problem, s: Strategy, theirs: dict[str, list[list[int]]]) -> None:
    ours = rank_groups(s)
    names = ["tp", "cp", "dp", "dp_cp", "pp"]
    if p.model.is_moe:
        # Without experts Megatron's expert mesh follows tp; nothing runs on it.
        names += ["ep", "etp", "edp"]
    if s.zero_group and s.zero_group < s.dp * s.cp:
        names.append("shard")
    for name in names:
        assert ours[name] == theirs[name], name


ONLY_WITH_TRANSFORMER_ENGINE = {"deepseek-v2-lite", "moonlight-16b-a3b"}
"""Latent attention without query compression: Megatron's own layers (without Transformer Engine) refuse its norms."""


def test_megatron_builds_exactly_our_parameters(tmp_path: Path) -> None:
    """The model arguments of every preset, cut to its first layers of each kind, build the same number of weights."""
    cases, wanted = [], []
    for name in list_presets():
        spec = replace(model(name), layers=model(name).layers[:5])
        p = problem(spec, gpus=8, batch=8, sequence=1024)
        p = replace(p, cluster=p.cluster.with_num_gpus(1))
        s = Strategy(num_microbatches=8)
        if name in ONLY_WITH_TRANSFORMER_ENGINE:
            continue
        try:
            cases.append({**case_of(p, s), "count": True})
        except InputError:
            continue
        wanted.append((name, spec.total_parameters + spec.mtp_parameters))
    assert {LLAMA, GPT, MIXTRAL} <= {name for name, _ in wanted}
    found = ask_megatron(cases, tmp_path)
    assert [(n, a.get("parameters", a["error"])) for (n, _), a in zip(wanted, found, strict=True)] == wanted


REFUSED: list[tuple[dict[str, Any], Strategy, str]] = [
    ({}, Strategy(tp=8, sp=True, pp=3, dp=16, num_microbatches=64), "world-size"),
    ({"batch": 1000}, Strategy(tp=8, sp=True, pp=4, dp=16, num_microbatches=62), "global-batch"),
    ({}, Strategy(tp=128, sp=True, dp=4, num_microbatches=256), "heads"),
    ({"sequence": 4100}, Strategy(tp=2, cp=4, dp=64, num_microbatches=16), "sequence-cp"),
    ({"sequence": 4100}, Strategy(tp=2, cp=4, cp_comm="a2a", ulysses=4, dp=64, num_microbatches=16), "sequence-2cp"),
    ({"optimizer": "muon"}, Strategy(zero=3, dp=512, num_microbatches=2), "fsdp-optimizer"),
    ({"name": MIXTRAL}, Strategy(ep=16, dp=512, num_microbatches=2), "experts"),
    ({"name": MIXTRAL}, Strategy(tp=2, sp=True, pp=8, ep=8, dp=32, num_microbatches=32, ep_overlap=True),
     "ep-overlap-pipeline"),
    ({"name": MIXTRAL}, Strategy(ep=8, dp=512, num_microbatches=2, ep_overlap=True, recompute="full"),
     "ep-overlap-recompute"),
    ({}, Strategy(tp=8, pp=4, dp=16, num_microbatches=64, tp_overlap=True), "tp-overlap-needs-sp"),
    ({"name": GPT, "sequence": 4096}, Strategy(tp=8, sp=True, pp=8, dp=8, num_microbatches=128), "learned-positions"),
    ({"name": MIXTRAL, "gpus": 8, "batch": 8}, Strategy(tp=4, sp=True, pp=2, ep=8, num_microbatches=8), "expert-mesh"),
]  # fmt: skip
"""Strategies that our rules refuse and the real Megatron refuses too, at parsing or when it makes its groups."""


def test_what_we_refuse_megatron_refuses(tmp_path: Path) -> None:
    cases = []
    for given, s, rule in REFUSED:
        p = problem(**given)
        assert rule in {v.rule for v in MEGATRON.violations(p, s)}, (rule, MEGATRON.violations(p, s))
        cases.append(case_of(p, s))
    answers = ask_megatron(cases, tmp_path)
    accepted = [rule for (_, _, rule), answer in zip(REFUSED, answers, strict=True) if answer["accepted"]]
    assert accepted == []


def test_torchrun_reads_the_command_line(bench: Path) -> None:
    p = problem(LLAMA, gpus=64, batch=128)
    s = Strategy(tp=8, sp=True, dp=8, num_microbatches=16)
    for name, text in MEGATRON.render(p, s).items():
        (bench / name).write_text(text)
    argv = run(bench, "launch.sh", NODE_RANK="3", MASTER_ADDR="n1")["argv"]
    (answer,) = ask_megatron([{"torchrun": argv, "world": 64}], bench)
    assert answer["accepted"], answer["error"]
    assert (answer["nnodes"], answer["nproc"], answer["rank"]) == (8, 8, 3)
    assert answer["script"][-len(megatron_arguments(p, s)) :] == megatron_arguments(p, s)


READ = [
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7",
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6 "
    "--num-virtual-stages-per-pipeline-rank 2",
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
    "--pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 2",
    "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    "--num-layers 30 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2 "
    "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    "--num-layers 31 --pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 4 "
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*7|t*9|t*8|t*8L --num-layers 32 "
    "--tensor-model-parallel-size 2",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*5|(tt|)*10,t*6,t,L",
    "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2 --use-megatron-fsdp "
    "--data-parallel-sharding-strategy optim_grads --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion",
    "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer "
    "--num-distributed-optimizer-instances 2 --micro-batch-size 2",
    "--tensor-model-parallel-size 1 --sequence-parallel --num-experts 8 --expert-model-parallel-size 4 "
    "--expert-tensor-parallel-size 2 --disable-bias-linear",
    "--tensor-model-parallel-size 2 --sequence-parallel --num-experts 8 --expert-model-parallel-size 4 "
    "--disable-bias-linear",
]
"""Argument lists of our own, beside sizes and batch: how Megatron itself reads what we read."""

_SIZES = (
    "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --bf16 --lr 1e-4 "
)
_SIZES += "--position-embedding-type rope --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --train-iters 1"


def test_megatron_reads_arguments_as_we_do(tmp_path: Path) -> None:
    lists = []
    for text in READ:
        words = [*_SIZES.split(), "--global-batch-size", "128", *text.split()]
        words += [] if "--num-layers" in words else ["--num-layers", "32"]
        words += [] if "--micro-batch-size" in words else ["--micro-batch-size", "1"]
        lists.append(words)
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    cases = [{"args": w, "world": 64, "env": {} if "--use-megatron-fsdp" in w else env} for w in lists]
    for words, answer in zip(lists, ask_megatron(cases, tmp_path), strict=True):
        assert answer["accepted"], (words, answer["error"])
        parsed = MEGATRON.parse(words, Given(num_gpus=64))
        s = parsed.strategy
        assert parsed.unknown == ()
        theirs = degrees_of(answer)
        ours = {"tp": s.tp, "pp": s.pp, "vpp": s.vpp, "cp": s.cp, "dp": s.dp, "ep": s.ep, "sp": s.sp}
        ours |= {"m": s.num_microbatches, "zero": s.zero == 1 or theirs["fsdp"], "fsdp": s.zero >= 2}
        assert theirs == {**theirs, **ours}
        assert answer["expert_tensor_parallel_size"] == (s.etp if "--num-experts" in words else s.tp)
        layers = int(words[words.index("--num-layers") + 1])
        assert tuple(answer["layers"]) == (s.layers_per_stage or even_split(layers, s.pp * s.vpp)), words
        shards = (s.dp * s.cp) // (s.zero_group or s.dp * s.cp)
        assert answer["num_distributed_optimizer_instances"] == shards


def test_our_table_of_options_is_megatrons(tmp_path: Path) -> None:
    (answer,) = ask_megatron([{"options": True, "world": 1, "args": []}], tmp_path)
    assert answer["accepted"], answer["error"]
    assert dict(known_options()) == answer["options"]

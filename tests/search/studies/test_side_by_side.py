"""Two jobs side by side: each as it is predicted alone, with what differs and whether that means anything."""

import math

import pytest

from shardwise.costmodel.estimate import half_width, tell_apart
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InfeasibleError, InputError
from shardwise.launchers.base import get_launcher
from shardwise.search.planner import estimate, plan
from shardwise.search.review import review
from shardwise.search.studies.side_by_side import Job, Place, side_by_side

SCRIPT = """\
ARGS=(--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
  --seq-length 2048 --max-position-embeddings 8192 --vocab-size 128256 --bf16 --attention-dropout 0.0
  --hidden-dropout 0.0 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer
  --tensor-model-parallel-size ${TP:-2} --recompute-granularty full)
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}"
"""
ON = Job(cluster="dgx-h100")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def wider(tmp_path):
    path = tmp_path / "wider.sh"
    path.write_text(SCRIPT.replace("TP:-2", "TP:-8"))
    return path


def test_a_job_beside_itself_is_the_same(script):
    found = side_by_side(script, script, ON)
    assert found.differences == ()
    assert found.ratio == 1.0
    assert found.same_problem and found.within_error


def test_each_side_is_what_it_is_alone(script, wider):
    found = side_by_side(script, wider, ON)
    for side, path in ((found.a, script), (found.b, wider)):
        assert side.estimate.step_time_s == review(path, "dgx-h100").estimate.step_time_s
        assert sum(side.estimate.time_parts_s.values()) == pytest.approx(side.estimate.step_time_s)
    assert found.ratio == pytest.approx(found.b.estimate.step_time_s / found.a.estimate.step_time_s)
    differing = {d.setting: (d.a, d.b) for d in found.differences}
    assert differing == {"tp": (2, 8), "dp": (8, 2), "num_microbatches": (8, 32)}
    assert found.told_apart_from == tell_apart(found.a.estimate.problem)


def test_no_option_is_dropped(script, wider):
    found = side_by_side(script, wider, ON).as_dict()
    for side in ("a", "b"):
        assert [o["name"] for o in found[side]["options"]["unknown"]] == ["--recompute-granularty"]
        assert found[side]["options"]["read"]


def test_a_cluster_is_planned_for_the_job_of_the_file(script):
    found = side_by_side(script, Place("dgx-a100", 16), ON)
    job = found.a.estimate.problem
    alone = plan(job.model, "dgx-a100", job.workload, num_gpus=16, top=1, refine_trials=0)
    assert found.b.estimate.step_time_s == alone.step_time_s
    assert {"cluster", "accelerator"} <= {d.setting for d in found.differences}
    assert not found.same_problem
    half = [half_width(s.estimate.problem) for s in (found.a, found.b)]
    assert found.told_apart_from == pytest.approx(math.hypot(*half))


def test_two_launchers_of_one_layout(tmp_path):
    steps = {}
    for name, layout in (("torchtitan", "tp=1,zero=3,mbs=1"), ("megatron", "tp=2,sp=on,zero=1,mbs=1")):
        launcher = get_launcher(name)
        runtime = launcher.runtime_for("bf16")
        one = estimate("llama-3.1-8b", "dgx-h100", Workload(64, 8192), layout, num_gpus=16, runtime=runtime)
        folder = tmp_path / name
        folder.mkdir()
        for file, text in launcher.render(one.problem, one.strategy).items():
            (folder / file).write_text(text)
        steps[name] = one.step_time_s
    found = side_by_side(tmp_path / "torchtitan", tmp_path / "megatron", ON)
    assert (found.a.launcher, found.b.launcher) == ("torchtitan", "megatron")
    assert {"launcher", "runtime", "tp", "zero"} <= {d.setting for d in found.differences}
    assert "parameters" not in {d.setting for d in found.differences}
    assert found.ratio == pytest.approx(steps["megatron"] / steps["torchtitan"], rel=0.02)


def test_a_side_where_nothing_fits_says_why(script):
    job = Job(model="llama-3.1-8b", global_batch=16, seq_len=2048, pins={"offload_optimizer": 0})
    found = side_by_side(Place("dgx-h100", 1), Place("dgx-h100", 8), job)
    assert found.a.estimate is None and "nothing fits in memory" in found.a.fault
    assert found.b.estimate is not None
    assert found.ratio is None and found.within_error is None
    with pytest.raises(InfeasibleError, match=r"dgx-h100:1: nothing fits in memory.*what would help"):
        side_by_side(Place("dgx-h100", 1), Place("dgx-h100", 1), job)


def test_what_is_nowhere_said_is_asked_for(script):
    for ask, words in (
        (lambda: side_by_side(script, script), "--cluster"),
        (lambda: side_by_side(Place("dgx-h100", 8), Place("dgx-h100", 8)), "--model"),
        (lambda: side_by_side(Place("dgx-h100", 8), Place("dgx-h100", 8), Job(model="llama-3.2-1b")), "--global-batch"),
        (lambda: side_by_side(script, Place("dgx-h10", 8), ON), "dgx-h10"),
    ):
        with pytest.raises(InputError) as refused:
            ask()
        assert words in str(refused.value)

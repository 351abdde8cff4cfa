"""Refinement: never worse, launchable, deterministic, resumable after a kill, shared by workers."""

import importlib.util
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import optuna
import pytest

from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.schedule import in_flight
from shardwise.costmodel.simulation import simulate, simulated_step_s
from shardwise.costmodel.simulation.orders import orders
from shardwise.costmodel.workload import Workload
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.rule import violations
from shardwise.search.constraints import Constraints
from shardwise.search.exact import search, with_split
from shardwise.search.planner import plan
from shardwise.search.refine import Refining, Variant, _Refiner, fingerprint, refine
from shardwise.search.space import Space
from shardwise.search.storage import journal_path, open_storage, shown
from shardwise.search.variants import knobs

from .small import dense_model, launcher, moe_model, problem

PIPELINE = {"pins": {"tp": 1, "cp": 1, "pp": 2, "micro_batch_size": 1, "zero": 1, "vpp": "1|2|4"}}


def pipeline(memory_gib=6.0):
    return problem(dense_model(10, 1024, 8), gpus=4, batch=16, sequence=2048, memory_gib=memory_gib)


def pressed():
    p = problem(dense_model(8, 1024, 8), gpus=4, batch=16, sequence=4096, memory_gib=2.0, fixed_s_per_step=0.0)
    return p, {"pins": {"tp": 1, "cp": 1, "micro_batch_size": 2, "zero": 1}}


def given(p, who="megatron", **wishes):
    space = Space(p, launcher(who), Constraints.of(**wishes))
    return space, estimate(p, with_split(p, search(space).best))


def refined(p, trials=24, seed=0, storage=None, who="megatron", near=(), prefer="closed-form", **wishes):
    space, best = given(p, who, **wishes)
    return best, *refine(space, best, near, Refining(trials, seed, storage, prefer))


CASES = [(pressed()[0], pressed()[1], "megatron"), (pipeline(), PIPELINE, "megatron"), (pipeline(), {}, "generic"),
         (problem(moe_model(8), gpus=8, batch=16, memory_gib=3.0), {}, "megatron")]  # fmt: skip


@pytest.mark.parametrize(("p", "wishes", "who"), CASES)
def test_never_worse_by_simulation_or_closed_form_and_launchable(p, wishes, who):
    best, answer, told = refined(p, who=who, **wishes)
    assert answer.fits and answer.step_time_s <= best.step_time_s * (1 + 1e-9)
    before = simulated_step_s(p, best.strategy)
    after = simulated_step_s(p, answer.strategy, microbatch_group=told.microbatch_group, buckets=told.buckets)
    assert (told.simulated_before_s, told.simulated_s) == (before, after) and after <= before
    assert told.gain_s == before - after and told.quickest_s <= after and told.trials == 24
    assert not launcher(who).violations(p, answer.strategy)
    assert not violations(p, answer.strategy, Constraints.of(**wishes).rules())


def test_a_group_of_micro_batches_that_fits_is_found_where_it_is_quicker():
    """Megatron's group of micro-batches: the simulation has it quicker, the closed form does not see it."""
    p = pipeline()
    space, best = given(p, pins={**PIPELINE["pins"], "vpp": 5})
    s = best.strategy
    quicker = [g for g in range(s.pp + 1, s.num_microbatches + 1)
               if s.num_microbatches % g in (0, *range(s.pp, g))
               and simulated_step_s(p, s, microbatch_group=g) < simulated_step_s(p, s) * (1 - 1e-6)]  # fmt: skip
    answer, told = refine(space, best, [], Refining(40))
    assert bool(quicker) <= (told.gain_s > 0)
    if told.microbatch_group:
        files = launcher("megatron").render(p, answer.strategy)
        assert "--microbatch-group-size" not in files["launch.sh"]


def test_what_it_finds_is_written_into_the_launch_files():
    found = plan("llama-3.1-8b", "dgx-h100", Workload(64, 4096), num_gpus=16, refine_trials=0)
    told = refined(pipeline(), trials=2, **PIPELINE)[2]
    tuned = replace(found, refinement=replace(told, microbatch_group=8, buckets=4))
    script = tuned.launch()["launch.sh"]
    assert "--microbatch-group-size-per-virtual-pipeline-stage 8" in script and "--ddp-num-buckets 4" in script
    own = [text for name, text in tuned.benchmark().items() if name.endswith("launch.sh") and "ddp-num-buckets" in text]
    assert len(own) == 1  # the plan's own; the other layouts were not tuned


@pytest.mark.parametrize(("pp", "vpp", "m", "group"), [(2, 2, 8, 4), (4, 3, 16, 8), (4, 2, 12, 12), (2, 4, 10, 6)])
def test_a_larger_group_keeps_as_many_micro_batches_as_the_order_of_passes_says(pp, vpp, m, group):
    for rank, order in enumerate(orders("interleaved", pp, vpp, m, group)):
        held = np.cumsum([1 if op.kind == "F" else -1 for op in order])
        assert held.max() / vpp == in_flight("interleaved", pp, vpp, np.array([m]), group)[rank, 0]


def test_the_same_seed_gives_the_same_answer_and_another_storage_too(tmp_path):
    p, wishes = pressed()
    first = refined(p, trials=10, seed=3, **wishes)[1:]
    assert first == refined(p, trials=10, seed=3, **wishes)[1:]
    assert first == refined(p, trials=10, seed=3, storage=f"journal:{tmp_path / 'j'}", **wishes)[1:]


def test_the_same_with_sqlite(tmp_path):
    p, wishes = pressed()
    stored = refined(p, trials=4, seed=3, storage=f"sqlite:///{tmp_path / 's.db'}", **wishes)[1:]
    assert stored == refined(p, trials=4, seed=3, **wishes)[1:]


def params_of(storage):
    (name,) = optuna.get_all_study_names(open_storage(storage))
    done = optuna.load_study(study_name=name, storage=open_storage(storage)).trials
    return [t.params for t in done if t.state == optuna.trial.TrialState.COMPLETE]


def test_a_stopped_study_continues_as_if_it_had_not_been(tmp_path):
    p, wishes = pressed()
    whole, parts = (f"journal:{tmp_path / name}" for name in ("whole", "parts"))
    expected = refined(p, trials=14, storage=whole, **wishes)[1:]
    assert refined(p, trials=7, storage=parts, **wishes)[2].trials == 7
    assert refined(p, trials=14, storage=parts, **wishes)[1:] == expected
    assert params_of(parts) == params_of(whole)
    assert refined(p, trials=14, storage=parts, **wishes)[1:] == expected  # nothing left to try


WORKER = """
import sys
sys.path.insert(0, {tests!r})
from search.test_refine import pressed, refined
import shardwise.search.refine as module
p, wishes = pressed()
judge = module._Refiner.judge
def slow(self, variant):
    import time
    time.sleep({pause})
    return judge(self, variant)
module._Refiner.judge = slow
print("ready", flush=True)
print(refined(p, trials={trials}, storage={storage!r}, **wishes)[2].trials, flush=True)
"""


def worker(storage, trials, pause=0.0):
    """The refinement of ``pressed()`` in a process of its own, each trial taking at least ``pause`` seconds."""
    code = WORKER.format(tests=str(Path(__file__).parent.parent), storage=storage, trials=trials, pause=pause)
    # Not from the clone: its folder shardwise/ would hide the installed package.
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=gettempdir())


@pytest.mark.parametrize("kind", ["journal", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_a_killed_worker_is_continued_and_the_answer_is_the_same(tmp_path, kind):
    p, wishes = pressed()
    storage = f"journal:{tmp_path / 'j.log'}" if kind == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    process = worker(storage, 14, pause=0.15)
    path, deadline = tmp_path / ("j.log" if kind == "journal" else "s.db"), time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and finished(storage) >= 4):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = finished(storage)
    assert 4 <= held < 14
    again = refined(p, trials=14, storage=storage, **wishes)[1:]
    assert again == refined(p, trials=14, **wishes)[1:]


def finished(storage):
    try:
        return len(params_of(storage))
    except Exception:  # the other process is just making it
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_workers_share_a_study(tmp_path, kind):
    p, wishes = pressed()
    storage = f"journal:{tmp_path / 'j.log'}" if kind == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    refined(p, trials=1, storage=storage, **wishes)
    pair = [worker(storage, 12, pause=0.1) for _ in range(2)]
    outs = [process.communicate(timeout=120)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0] and all(int(o.split()[-1]) >= 12 for o in outs)
    tried = params_of(storage)
    assert 12 <= len(tried) <= 14  # each worker may finish one more than was left
    best, answer, told = refined(p, trials=12, storage=storage, **wishes)
    assert told.trials == len(tried) and answer.step_time_s <= best.step_time_s * (1 + 1e-9)


def test_a_torn_last_line_of_a_journal_is_dropped(tmp_path):
    p, wishes = pressed()
    path = tmp_path / "j.log"
    refined(p, trials=5, storage=str(path), **wishes)
    with path.open("a") as stream:
        stream.write('{"op_code": 5, "worker_id"')
    assert refined(p, trials=8, storage=str(path), **wishes)[2].trials == 8


def test_different_questions_share_no_trials():
    p, wishes = pressed()
    space, best = given(p, **wishes)
    name = fingerprint(space, best, [], 0)
    assert name == fingerprint(*given(p, **wishes), [], 0)
    others = [
        fingerprint(space, best, [], 1),
        fingerprint(space, best, [best], 0),
        fingerprint(Space(p, launcher("megatron"), Constraints.of(wishes["pins"], {"sp": True})), best, [], 0),
        fingerprint(Space(p, launcher("generic"), Constraints.of(**wishes)), best, [], 0),
    ]
    for changed in (
        replace(p, workload=replace(p.workload, global_batch_size=32)),
        replace(p, workload=replace(p.workload, expert_imbalance=1.5)),
        replace(p, memory_margin=0.1),
        replace(p, cluster=p.cluster.with_num_gpus(8)),
        replace(p, runtime=p.runtime.model_copy(update={"fixed_s_per_step": 1.0})),
    ):
        others.append(fingerprint(Space(changed, launcher("megatron"), Constraints.of(**wishes)), best, [], 0))
    assert len({name, *others}) == 1 + len(others)


def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    p, wishes = pressed()
    judge, calls = _Refiner.judge, []

    def interrupted(self, variant):
        calls.append(variant)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return judge(self, variant)

    monkeypatch.setattr(_Refiner, "judge", interrupted)
    best, answer, told = refined(p, trials=20, **wishes)
    assert told.stopped_by == "interrupt" and told.trials == 4 and answer.step_time_s <= best.step_time_s


def test_a_time_limit_ends_it():
    p, wishes = pressed()
    space, best = given(p, **wishes)
    _, told = refine(space, best, [], Refining(20), stop=lambda: True)
    assert told.stopped_by == "time limit" and told.trials == 0 and told.gain_s == 0.0


def test_what_another_worker_told_is_not_believed_unseen(tmp_path):
    p, wishes = pressed()
    storage = f"journal:{tmp_path / 'j'}"
    space, best = given(p, **wishes)
    study = optuna.create_study(
        study_name=f"shardwise-{fingerprint(space, best, [], 0)}", storage=open_storage(storage)
    )
    study.enqueue_trial(knobs(space, best.strategy, 0).neutral())
    trial = study.ask()
    _Refiner(space, best, [knobs(space, best.strategy, 0)]).suggest(trial)
    study.tell(trial, 1e-9)
    answer, told = refine(space, best, [], Refining(10, 0, storage))
    assert told.simulated_s > 1e-9 and told.simulated_s == simulate(p, answer.strategy).step_time_s


def test_the_neutral_trial_is_the_base_itself():
    for p, wishes, who in CASES:
        space, best = given(p, who, **wishes)
        k = knobs(space, best.strategy, 0)
        refiner = _Refiner(space, best, [k])
        assert refiner.read(k.neutral()) == Variant(best.strategy)


def test_who_prefers_the_simulation_gets_what_is_quickest_there():
    found = plan("llama-3.1-405b", "dgx-h100", Workload(2048, 8192), num_gpus=16384, refine_trials=12)
    told = found.refinement
    assert found.step_time_s <= found.proof.incumbent_s * (1 + 1e-9)
    other = plan(
        "llama-3.1-405b", "dgx-h100", Workload(2048, 8192), num_gpus=16384, refine_trials=12, prefer="simulation"
    )
    assert other.refinement.simulated_s == told.quickest_s <= told.simulated_s
    assert other.refinement.quickest is None and other.short_list[0] == other.estimate
    with pytest.raises(InputError, match="prefer"):
        Refining(prefer="luck")


# ---- storages


@pytest.mark.parametrize(
    ("text", "path"),
    [("journal:a/b", "a/b"), ("journal:///x/y.log", "/x/y.log"), ("x.log", "x.log"), ("sqlite:///x.log", None)],
)
def test_which_texts_are_journals(text, path):
    found = journal_path(text)
    assert (None if found is None else str(found)) == path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("study", "expected journal:FILE"),
        ("journal:", "expected the name of a file"),
        ("journal:nowhere/x", "no such folder"),
        ("journal:.", "expected a file"),
        ("nosuchdb://u:secret@host/db", "nosuchdb"),
        ("postgresql+nodriver://u:secret@host/db", "nodriver"),
        ("sqlite:////nowhere/at/all.db", "unable to open"),
        ("sqlite:///text.db", "not a database"),
        ("text.log", "not an Optuna journal"),
        ("other.log", "not an Optuna journal"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("this is no database, but a text that is long enough to be taken for one " * 20)
    (tmp_path / "text.log").write_text("some log\nof another program\n")
    (tmp_path / "other.log").write_text('{"level": "info", "message": "started"}\n')
    with pytest.raises(InputError, match=said) as error:
        open_storage(text)
    assert (
        "\n" not in str(error.value) and "secret" not in str(error.value) and str(error.value).startswith("--storage")
    )


@pytest.mark.skipif(importlib.util.find_spec("psycopg2") is not None, reason="the driver is here")
def test_a_missing_driver_is_named():
    with pytest.raises(InputError, match="driver is not installed: pip install psycopg2"):
        open_storage("postgresql+psycopg2://user:secret@host/db")


def test_passwords_are_not_shown():
    assert shown("postgresql://me:hush@host:5432/db") == "postgresql://me:***@host:5432/db"
    assert shown("journal:a@b") == "journal:a@b"

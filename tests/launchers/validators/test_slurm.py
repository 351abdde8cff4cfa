"""What we write for Slurm under the real Slurm: jobs it accepts, who gets which rank, topologies it starts with.

Needs root and Debian's Slurm, which ``.ci/validators.sh`` installs; elsewhere these tests are skipped with the reason.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.load_topology import parse_topology
from shardwise.launchers.base import LaunchSettings, get_launcher
from shardwise.launchers.placement_files import placement_files

from ..drawn import drawn_plans
from ..problems import fitted, problem
from ..samples import WRITERS, sample
from .slurm_sandbox import Slurm, missing, sandbox, tree

pytestmark = pytest.mark.validators

NODES = 64
"""Made-up nodes, each with eight accelerators."""

_NAMES = ("TRAIN_SCRIPT", "MODEL", "DATA_PATH", "TOKENIZER", "MEGATRON_PATH", "NANOTRON_PATH", "HF_ASSETS")
YOURS = dict.fromkeys(_NAMES, "stub")
"""What the launch scripts leave to the person."""

PERMUTED = ("n5", "n2", "n8", "n3", "n1", "n7", "n4", "n6")

STUB = """#!{python}
import json, os, sys
from pathlib import Path
names = ("SLURM_PROCID", "SLURM_NODEID", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "SLURM_CPUS_ON_NODE", "NODE_RANK")
found = {{"argv": sys.argv[1:], "env": {{name: os.environ.get(name) for name in names}}}}
Path({folder!r}, f"{{os.environ['SLURMD_NODENAME']}}.{{os.environ['SLURM_PROCID']}}.json").write_text(json.dumps(found))
"""
"""A torchrun, accelerate or task that only says who it is."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with sandbox(NODES) as running:
        yield running


@dataclass(frozen=True)
class Started:
    """One process that a job started."""

    host: str
    node_rank: int
    nodes: int
    per_node: int
    master: str
    env: dict[str, str]


def run_job(slurm: Slurm, folder: Path, files: dict[str, str], state: str = "COMPLETED") -> list[dict[str, Any]]:
    """Run ``sbatch.sh`` of some launch files with stubs for what they launch; what each stub said."""
    for program in ("torchrun", "accelerate", "task"):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / program).write_text(STUB.format(python=sys.executable, folder=str(folder)))
        (folder / "bin" / program).chmod(0o755)
    for name, text in files.items():
        (folder / name).write_text(text)
    path = f"{folder / 'bin'}:{slurm.environment['PATH']}"
    ended, output = slurm.submit(folder / "sbatch.sh", {**YOURS, "PATH": path})
    assert ended == state, output
    return [json.loads(file.read_text()) for file in sorted(folder.glob("n*.*.json"))]


def started(found: list[dict[str, Any]], folder: Path) -> list[Started]:
    """The processes in the words of torchrun or Accelerate."""
    out = []
    for one in found:
        words = {name.lstrip("-").replace("_", "-"): i + 1 for i, name in enumerate(one["argv"]) if name[:2] == "--"}
        said = {name: one["argv"][i] for name, i in words.items() if i < len(one["argv"])}
        if "config-file" in said and "nnodes" not in said:
            config = yaml.safe_load(Path(said["config-file"]).read_text())
            nodes = config["num_machines"]
            sizes = (int(said["machine-rank"]), nodes, config["num_processes"] // nodes, said["main-process-ip"])
        else:
            sizes = (int(said["node-rank"]), int(said["nnodes"]), int(said["nproc-per-node"]), said["master-addr"])
        out.append(Started(one["env"]["SLURMD_NODENAME"], *sizes, one["env"]))
    return out


def plan_of(launcher: str) -> tuple[Problem, Strategy]:
    """A plan of a launcher on three to eight hosts."""
    plans = drawn_plans(get_launcher(launcher), sample(launcher), count=24, seed=5)
    fitting = [(p, s) for p, s in plans if 24 <= p.cluster.num_gpus <= 64]
    return max(fitting, key=lambda plan: (plan[0].cluster.num_gpus, plan[1].tp * plan[1].pp))


# ---- jobs


@pytest.mark.parametrize("launcher", WRITERS)
def test_slurm_accepts_the_job_of_every_plan(slurm: Slurm, launcher: str, tmp_path: Path) -> None:
    judged = set()
    for p, s in drawn_plans(get_launcher(launcher), sample(launcher), count=20, seed=7):
        nodes = p.cluster.num_gpus // 8
        for hosts in ((), tuple(f"n{i}" for i in range(nodes, 0, -1))):
            if nodes > NODES:
                continue
            files = get_launcher(launcher).render(p, s, LaunchSettings(hosts=hosts, time_limit="2-00:00:00"))
            (tmp_path / "sbatch.sh").write_text(files["sbatch.sh"])
            assert slurm.test_only(tmp_path / "sbatch.sh") == "", (p.cluster.num_gpus, hosts)
            judged.add(nodes)
    assert len(judged) >= 3


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("--nodes=2", f"--nodes={NODES + 1}", "not available"),
        ("--gpus-per-node=8", "--gpus-per-node=9", "not available"),
        ("--ntasks-per-node", "--ntask-per-node", "unrecognized option"),
        ("--exclusive", "--distribution=arbitary", "Invalid --distribution specification"),
        ("--exclusive", "--nodelist=n[1-3]", "invalid number of nodes"),
        ("--exclusive", "--nodelist=m[1-2]", "Invalid node name"),
        ("--time=04:00:00", "--time=four", "Invalid --time specification"),
    ],
)
def test_slurm_refuses_broken_jobs(slurm: Slurm, tmp_path: Path, before: str, after: str, words: str) -> None:
    p = problem("llama-3.1-8b", gpus=16, batch=64)
    script = get_launcher("megatron").render(p, fitted(p, tp=8, sp=True))["sbatch.sh"]
    (tmp_path / "sbatch.sh").write_text(script)
    assert before in script and slurm.test_only(tmp_path / "sbatch.sh") == ""
    (tmp_path / "sbatch.sh").write_text(script.replace(before, after))
    assert words in slurm.test_only(tmp_path / "sbatch.sh")


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a#b", "a/b", "a\\b", "é.1", "run+lr=3e-4", "a-b_c"])
def test_job_names_reach_slurm_whole_or_are_refused_by_us(slurm: Slurm, tmp_path: Path, name: str) -> None:
    script = f"#!/bin/bash\n#SBATCH --job-name={name}\n#SBATCH --output=%x-%j.log\n#SBATCH --begin=now+9hours\n"
    (tmp_path / "sbatch.sh").write_text(script)
    done = slurm.run(["sbatch", "--parsable", "sbatch.sh"], tmp_path)
    job = done.stdout.strip()
    shown = slurm.run(["scontrol", "--oneliner", "show", "job", job]).stdout if job else ""
    slurm.run(["scancel", job or "0"])
    whole = f"JobName={name} " in shown and f"StdOut={tmp_path}/{name}-{job}.log " in shown and "/" not in name
    try:
        LaunchSettings(job_name=name)
    except InputError:
        assert not whole
    else:
        assert whole, shown


@pytest.mark.parametrize("time", ["four", "4h", "1:2:3:4", "1-2:3:4:5", "10", "90:00", "2-0", "1-2:3:4", "UNLIMITED"])
def test_time_limits_that_we_take_are_slurms(slurm: Slurm, tmp_path: Path, time: str) -> None:
    (tmp_path / "sbatch.sh").write_text(f"#!/bin/bash\n#SBATCH --time={time}\n")
    accepted = slurm.test_only(tmp_path / "sbatch.sh") == ""
    try:
        LaunchSettings(time_limit=time)
    except InputError:
        assert not accepted
    else:
        assert accepted


# ---- ranks


@pytest.mark.parametrize("launcher", WRITERS)
def test_a_placed_job_gives_every_host_the_ranks_of_its_line(slurm: Slurm, launcher: str, tmp_path: Path) -> None:
    p, s = plan_of(launcher)
    hosts = PERMUTED[: p.cluster.num_gpus // 8]
    files = get_launcher(launcher).render(p, s, LaunchSettings(hosts=hosts))
    processes = started(run_job(slurm, tmp_path, files), tmp_path)
    assert {one.host: one.node_rank for one in processes} == {host: i for i, host in enumerate(hosts)}
    assert {(one.nodes, one.per_node, one.master) for one in processes} == {(len(hosts), 8, hosts[0])}
    table = placement_files(hosts, 8, s)["ranks.csv"]
    ranks = {(one.host, i): one.node_rank * one.per_node + i for one in processes for i in range(one.per_node)}
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {(row["host"], int(row["local_rank"])): int(row["rank"]) for row in rows} == ranks
    # Each torchrun sees all accelerators and all cores of its host.
    assert all(len(one.env["CUDA_VISIBLE_DEVICES"].split(",")) == 8 for one in processes)
    assert {one.env["SLURM_CPUS_ON_NODE"] for one in processes} == {"64"}


@pytest.mark.parametrize("launcher", WRITERS)
def test_a_job_without_named_hosts_counts_them_as_slurm_does(slurm: Slurm, launcher: str, tmp_path: Path) -> None:
    p, s = plan_of(launcher)
    processes = started(run_job(slurm, tmp_path, get_launcher(launcher).render(p, s)), tmp_path)
    first = sorted(processes, key=lambda one: one.node_rank)
    assert [one.host for one in first] == [f"n{i + 1}" for i in range(p.cluster.num_gpus // 8)]
    assert {one.master for one in processes} == {"n1"}


@pytest.mark.parametrize("hosts", [(), ("n4", "n2")])
@pytest.mark.parametrize("shape", ["-N2 --ntasks-per-node=8", "-N2 -n16", "-N2"])
def test_an_interactive_allocation_of_any_shape_starts_one_process_a_host(
    slurm: Slurm, tmp_path: Path, hosts: tuple[str, ...], shape: str
) -> None:
    p = problem("llama-3.1-8b", gpus=16, batch=64)
    files = get_launcher("megatron").render(p, fitted(p, tp=8, sp=True), LaunchSettings(hosts=hosts))
    for name, text in {**files, "launch.sh": 'echo "rank $NODE_RANK $SLURMD_NODENAME $MASTER_ADDR"\n'}.items():
        (tmp_path / name).write_text(text)
    asked = [f"--nodelist={','.join(hosts or ('n1', 'n2'))}", "--gpus-per-node=8", "--exclusive"]
    done = slurm.run(["salloc", *shape.split(), *asked, "bash", "sbatch.sh"], tmp_path)
    first, second = hosts or ("n1", "n2")
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert said == [f"rank 0 {first} {first}", f"rank 1 {second} {first}"], done.stderr


def test_the_rank_of_a_host_is_not_its_place_in_the_allocation(slurm: Slurm, tmp_path: Path) -> None:
    """Why the script takes SLURM_PROCID: under an arbitrary distribution SLURM_NODEID stays the allocation's."""
    p = problem("llama-3.1-8b", gpus=24, batch=96)
    hosts = PERMUTED[:3]
    files = get_launcher("megatron").render(p, fitted(p, tp=8, sp=True), LaunchSettings(hosts=hosts))
    files["sbatch.sh"] = files["sbatch.sh"].replace("$SLURM_PROCID", "$SLURM_NODEID")
    processes = started(run_job(slurm, tmp_path, files), tmp_path)
    assert {one.host: one.node_rank for one in processes} == {"n2": 0, "n5": 1, "n8": 2}
    assert {one.host: int(one.env["SLURM_PROCID"]) for one in processes} == {h: i for i, h in enumerate(hosts)}


def test_files_of_a_placement_start_the_job_in_its_order(slurm: Slurm, tmp_path: Path) -> None:
    hosts = PERMUTED[:4]
    p = problem("llama-3.1-8b", gpus=32, batch=128)
    s = fitted(p, tp=4, sp=True, pp=2)
    files = {**get_launcher("megatron").render(p, s), **placement_files(hosts, 8, s)}
    processes = started(run_job(slurm, tmp_path, files), tmp_path)
    assert {one.host: one.node_rank for one in processes} == {host: i for i, host in enumerate(hosts)}


def test_one_task_a_line_gives_each_task_its_rank(slurm: Slurm, tmp_path: Path) -> None:
    """``hostfile.tasks``, for jobs with a task for each accelerator."""
    hosts = PERMUTED[:3]
    s = Strategy(tp=8, sp=True, dp=3)
    files = placement_files(hosts, 8, s)
    head = files["sbatch.sh"].split("set -euo pipefail")[0].replace("--ntasks-per-node=1", "--ntasks-per-node=8")
    start = 'export SLURM_HOSTFILE="$SLURM_SUBMIT_DIR/hostfile.tasks"\nsrun --distribution=arbitrary task\n'
    found = run_job(slurm, tmp_path, {**files, "sbatch.sh": head + start})
    where = {int(one["env"]["SLURM_PROCID"]): one["env"]["SLURMD_NODENAME"] for one in found}
    rows = csv.DictReader(io.StringIO(files["ranks.csv"]))
    assert where == {int(row["rank"]): row["host"] for row in rows}


def test_the_job_ends_where_one_host_fails(slurm: Slurm, tmp_path: Path) -> None:
    p = problem("llama-3.1-8b", gpus=16, batch=64)
    files = get_launcher("megatron").render(p, fitted(p, tp=8, sp=True), LaunchSettings(hosts=("n2", "n1")))
    files["launch.sh"] = "#!/usr/bin/env bash\n[[ $NODE_RANK == 1 ]] && exit 3\nexec sleep 300\n"
    run_job(slurm, tmp_path, files, state="FAILED")


# ---- topologies

FINE = {
    "leaves under a spine": tree(NODES),
    "one leaf": f"SwitchName=a Nodes=n[1-{NODES}]\n",
    "any case, comments, continued lines": f"""\
switchname=a NODES=n[1-4] \\
  linkspeed=4  # leaf
SwitchName = "b" Nodes = n[5-{NODES}]

SwitchName=s Switches=a,b
""",
    "parents first": f"SwitchName=s Switches=a,b\nSwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-{NODES}]\n",
    "levels that differ": f"""\
SwitchName=s Switches=m,c
SwitchName=m Switches=a,b
SwitchName=a Nodes=n[1-2]
SwitchName=b Nodes=n[3-4]
SwitchName=c Nodes=n[5-{NODES}]
""",
    "parallel spines": f"""\
SwitchName=a Nodes=n[1-4]
SwitchName=b Nodes=n[5-{NODES}]
SwitchName=s[0-1] Switches=a,b
SwitchName=t Switches=a,b
""",
}
FAULTY = {
    "several roots": f"SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-{NODES}]\n",
    "a node under two leaves": f"""\
SwitchName=a Nodes=n[1-4]
SwitchName=b Nodes=n[4-{NODES}]
SwitchName=s Switches=a,b
""",
}
REFUSED = {
    "a switch twice": "SwitchName=a Nodes=n[1-4]\nSwitchName=a Nodes=n[5-8]\n",
    "a child that is nowhere": "SwitchName=a Nodes=n[1-8]\nSwitchName=s Switches=a,b\n",
    "a misspelled key": "SwitchName=a Node=n[1-8]\n",
    "neither nodes nor switches": "SwitchName=a Nodes=n[1-8]\nSwitchName=b\n",
    "both nodes and switches": "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8] Switches=a\n",
    "its own child": "SwitchName=a Nodes=n[1-8]\nSwitchName=s Switches=a,s\n",
    "a loop": "SwitchName=a Nodes=n[1-8]\nSwitchName=s Switches=a,t\nSwitchName=t Switches=s\n",
    "a loop apart": "SwitchName=a Nodes=n[1-8]\nSwitchName=s Switches=t\nSwitchName=t Switches=s\n",
    "a speed in words": "SwitchName=a Nodes=n[1-8] LinkSpeed=fast\n",
    "no value": "SwitchName=a Nodes=\n",
    "no key": "SwitchName=a n[1-8]\n",
    "a range backwards": "SwitchName=a Nodes=n[8-1]\n",
    "nested brackets": "SwitchName=a Nodes=n[1-2,[3-4]]\n",
}
DOUBTFUL = {
    "a bracket never closed": "SwitchName=a Nodes=n[1-\n",
    "a key twice on a line": "SwitchName=a Nodes=n[1-4] Nodes=n[5-8]\n",
    "nothing": "# no switches\n",
}
"""Slurm starts and loses nodes; we refuse."""


@pytest.mark.parametrize("name", FINE)
def test_what_we_read_without_a_fault_slurm_starts_with(slurm: Slurm, name: str) -> None:
    verdict = slurm.judge_topology(FINE[name])
    assert verdict.starts and verdict.complaints == ()
    assert parse_topology(FINE[name], "topology.conf").faults == ()


@pytest.mark.parametrize("name", FAULTY)
def test_what_we_read_with_a_fault_slurm_warns_of(slurm: Slurm, name: str) -> None:
    verdict = slurm.judge_topology(FAULTY[name])
    assert verdict.starts and verdict.complaints
    assert parse_topology(FAULTY[name], "topology.conf").faults


@pytest.mark.parametrize("name", [*REFUSED, *DOUBTFUL])
def test_what_we_refuse_slurm_dies_or_warns_of(slurm: Slurm, name: str) -> None:
    text = REFUSED.get(name) or DOUBTFUL[name]
    verdict = slurm.judge_topology(text)
    assert verdict.complaints and verdict.starts == (name in DOUBTFUL)
    with pytest.raises(InputError):
        parse_topology(text, "topology.conf")


def test_what_slurm_prints_of_its_topology_is_read_as_the_file_that_it_has(slurm: Slurm) -> None:
    printed = slurm.run(["scontrol", "show", "topology"]).stdout
    ours, theirs = parse_topology(tree(NODES), "topology.conf"), parse_topology(printed, "scontrol")
    assert theirs.faults == () and set(theirs.nodes) == set(ours.nodes)
    order = ours.nodes
    assert [list(level) for level in theirs.domains(order)] == [list(level) for level in ours.domains(order)]

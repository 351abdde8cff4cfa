"""``shardwise place`` and ``plan --topology``: what is printed, what is written, and what is refused."""

import csv
import json
import subprocess
from importlib.resources import files

import jsonschema
import pytest

import shardwise
from shardwise.cli.output import to_json
from shardwise.costmodel.strategy import Strategy
from shardwise.launchers.ranks import rank_groups

TOPOLOGY = """\
SwitchName=leaf1 Nodes=gpu[01,03,05,07]
SwitchName=leaf2 Nodes=gpu[02,04,06,08,10]
SwitchName=leaf3 Nodes=gpu09
SwitchName=spine Switches=leaf[1-3]
"""
SETTINGS = "tp=8,pp=2,mbs=1,recompute=full"


@pytest.fixture(scope="module")
def plan_text():
    workload = shardwise.Workload(64, 4096)
    estimate = shardwise.estimate("llama-3.1-8b", "llama3-24k-roce", workload, SETTINGS, num_gpus=64)
    return to_json({"launcher": "megatron", **estimate.as_dict()})


@pytest.fixture
def folder(tmp_path, plan_text):
    (tmp_path / "plan.json").write_text(plan_text)
    (tmp_path / "topology.conf").write_text(TOPOLOGY)
    return tmp_path


@pytest.fixture
def placed(run, folder):
    def call(*args):
        return run("place", "--plan", folder / "plan.json", "--topology", folder / "topology.conf", *args)

    return call


def test_the_answer_satisfies_its_schema(placed):
    result = placed("--nodes", "gpu[01-08]", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    schema = json.loads((files("shardwise") / "schemas" / "placement.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    assert document["sorted_hosts"] == [f"gpu{i:02}" for i in range(1, 9)]
    assert document["exposed_s"] < document["sorted_exposed_s"]
    assert document["proven"]
    assert document["levels"][0]["placed_bytes"] < document["levels"][0]["sorted_bytes"]


def test_a_person_reads_gain_proof_levels_and_faults(placed):
    result = placed("--nodes", "gpu[01-08,11]", "--exclude", "gpu08", "--degraded", "leaf1=0.5")
    assert result.exit_code == 0, result.stderr
    for words in ("exposed traffic", "in sorted order", "no order of hosts", "Bytes over uplinks a step", "fault: "):
        assert words in result.stdout, words


def test_every_file_names_the_hosts_in_rank_order(placed, folder):
    result = placed("--nodes", "gpu[01-10]", "--exclude", "gpu01", "--out", folder / "out")
    assert result.exit_code == 0, result.stderr
    out = folder / "out"
    document = json.loads((out / "placement.json").read_text())
    hosts = document["hosts"]
    assert "gpu01" not in hosts and len(document["unused"]) == 1
    assert (out / "hostfile").read_text().split() == hosts
    assert (out / "hostfile.tasks").read_text().split() == [h for h in hosts for _ in range(8)]
    assert (out / "hostfile.mpi").read_text().splitlines() == [f"{h} slots=8" for h in hosts]
    ranks = [line for line in (out / "rankfile").read_text().splitlines() if not line.startswith("#")]
    assert ranks[9] == f"rank 9={hosts[1]} slot=1"
    assert "<svg" in (out / "placement.svg").read_text()


def test_the_rank_table_has_the_groups_of_the_launcher(placed, folder):
    placed("--nodes", "gpu[01-08]", "--out", folder / "out")
    strategy = Strategy(**json.loads((folder / "out" / "placement.json").read_text())["strategy"])
    with (folder / "out" / "ranks.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["rank"]) for row in rows] == list(range(64))
    for name, axes in {"tp": ("tp",), "dp": ("dp",), "pp": ("pp",), "dp_cp": ("dp", "cp"), "edp": ("edp",)}.items():
        expert = name in ("edp",)
        others = [a for a in (("etp", "ep", "edp", "pp") if expert else ("tp", "cp", "dp", "pp")) if a not in axes]
        found = {}
        for row in rows:
            found.setdefault(tuple(row[a] for a in others), []).append(int(row["rank"]))
        assert sorted(found.values()) == rank_groups(strategy)[name], name


def test_each_host_finds_its_place_in_the_order(placed, folder):
    placed("--nodes", "gpu[01-08]", "--out", folder / "out")
    hosts = (folder / "out" / "hostfile").read_text().split()
    show = ["bash", str(folder / "out" / "node_rank.sh"), "bash", "-c", "echo $NODE_RANK $NNODES $MASTER_ADDR"]
    for rank, host in ((0, hosts[0]), (5, hosts[5])):
        done = subprocess.run(show, env={"HOST_NAME": host, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        assert done.stdout.split() == [str(rank), "8", hosts[0]]
    lost = subprocess.run(show, env={"HOST_NAME": "gpu0", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (lost.returncode, lost.stdout) == (2, "")
    assert "gpu0 is not in" in lost.stderr


def test_the_batch_script_asks_for_these_hosts_in_this_order(placed, folder):
    placed("--nodes", "gpu[01-08]", "--out", folder / "out")
    text = (folder / "out" / "sbatch.sh").read_text()
    assert "#SBATCH --nodelist=gpu[01-08]\n" in text
    assert 'export SLURM_HOSTFILE="$HERE/hostfile"' in text
    assert "--distribution=arbitrary" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--nodes", "gpu[01-07]"), "7 given; the plan needs 8 of 8 GPUs each"),
        (("--nodes", "gpu[1"), "a bracket is never closed"),
        (("--degraded", "gpu01"), "--degraded gpu01: expected NAME=SHARE"),
        (("--degraded", "gpu01=2"), "--degraded gpu01=2: expected NAME=SHARE"),
        (("--topology-name", "x"), "only a topology.yaml holds several"),
        (("--cluster", "dgx-h10"), "did you mean"),
    ],
)
def test_refusals_are_one_line(run_process, folder, args, said):
    result = run_process("place", "--plan", "plan.json", "--topology", "topology.conf", *args)
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_something_must_say_where(run_process, folder):
    result = run_process("place", "--plan", "plan.json")
    assert (result.returncode, "expected --topology FILE, --nodes LIST" in result.stderr) == (2, True)


def test_a_plan_is_placed_at_once(run, request_args, folder):
    args = request_args({"--gpus": "64", "--cluster": "llama3-24k-roce"})
    wishes = ("--pin", "tp=8", "--pin", "pp=2", "--no-refine", "--topology", folder / "topology.conf")
    result = run("plan", *args, *wishes, "--nodes", "gpu[01-08]", "--out", folder / "out", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    schema = json.loads((files("shardwise") / "schemas" / "plan.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    hosts = document["placement"]["hosts"]
    assert (folder / "out" / "hostfile").read_text().split() == hosts
    assert "SLURM_HOSTFILE" in (folder / "out" / "sbatch.sh").read_text()
    again = run("place", "--plan", folder / "out" / "plan.json", "--topology", folder / "topology.conf",
                "--nodes", "gpu[01-08]", "--json")  # fmt: skip
    assert json.loads(again.stdout)["hosts"] == hosts


def test_where_without_nodes_is_refused(run_process, request_args):
    result = run_process("plan", *request_args({"--gpus": "8"}), "--no-refine", "--exclude", "n1")
    assert result.returncode == 2
    assert "--exclude goes with --topology FILE or --nodes LIST" in result.stderr


def test_a_plan_of_a_later_schema_is_not_read_as_this_one(run_process, folder):
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    (folder / "later.json").write_text(json.dumps({**document, "schema_version": 99}), encoding="utf-8")
    result = run_process("place", "--plan", "later.json", "--topology", "topology.conf")
    assert (result.returncode, "later.json: schema_version" in result.stderr) == (2, True), result.stderr

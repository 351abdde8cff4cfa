"""Every shipped system loads and is sane; every way a user's file can be wrong is one line that says where."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

import shardwise.hardware_profiles as package
from shardwise.hardware_profiles.cluster_schema import json_schema
from shardwise.hardware_profiles.collectives import KINDS
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.load_cluster import list_clusters, list_technologies, load_cluster

FOLDER = Path(package.__file__).parent
SYSTEMS = FOLDER / "systems"


def fig(value, origin="assumed"):
    return {"value": value, "origin": origin, "source": "a test that needs a number"}


def own_file():
    file = {
        "name": "mine",
        "accelerator": "h100-sxm5-80gb",
        "gpus_per_node": fig(8),
        "host_memory_bytes_per_gpu": fig(1e11),
        "tiers": [
            {"name": "nv", "technology": "nvlink4", "size": fig(8), "bytes_per_s": fig(450e9), "nvls": True},
            {"name": "net", "technology": "ib-ndr", "size": fig(64), "bytes_per_s": fig(50e9)},
        ],
        "source": "our lab",
    }
    for tier in file["tiers"]:
        tier["oversubscription"] = fig(1.0)
    return file


def write(folder, content):
    path = folder / "mine.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("name", list_clusters())
def test_shipped_system(name):
    c = load_cluster(name)
    assert c.tiers[0].size >= c.node_size and c.num_gpus <= c.tiers[-1].size
    for kind in KINDS:
        for size, stride in ((2, 1), (c.tiers[0].size, 1), (2, c.tiers[0].size)):
            assert 0 < float(c.collective_time_s(kind, 1e6, size, stride)) < 10
    for tier in c.tiers:
        assert all(0 < share <= 1 for share in tier.efficiency.values())
    for key, figure in c.figures.items():
        assert math.isfinite(figure.value), key
        assert figure.origin in ("datasheet", "published", "fitted", "measured", "derived", "assumed"), key
        assert len(figure.source) > 3, key
    assert f"tiers.{len(c.tiers) - 1}.bytes_per_s" in c.figures and "tiers.0.efficiency.all_reduce" in c.figures


def test_names_and_aliases_lead_to_one_system():
    seen = {}
    for name in list_clusters():
        for alias in (name, *load_cluster(name).aliases, load_cluster(name).name):
            assert seen.setdefault(alias.lower(), name) == name, alias
            assert load_cluster(alias) is load_cluster(name), alias
    assert load_cluster("GB200").name == load_cluster("gb200_nvl72").name


def test_the_promised_systems_are_there():
    promised = (
        "dgx-v100 dgx-a100 dgx-h100 dgx-h200 dgx-h800 h800-mpft dgx-b200 dgx-b300 gb200-nvl72 gb300-nvl72 meta-rsc"
        " llama3-24k-roce megascale aws-p4d aws-p5 aws-p6-b200 gcp-a3-high gcp-a3-mega gcp-a3-ultra azure-nd-a100-v4"
        " azure-nd-h100-v5 tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu7x cloudmatrix384 ub-mesh atlas-800t-a2 mi300x-8x400g"
        " jean-zay-a100 jean-zay-v100"
    )
    assert set(promised.split()) <= set(list_clusters())
    for alias in ("mi300x-oci", "jean-zay", "H100-SXM5-80GB cluster"):
        load_cluster(alias)


def test_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'dgx-h100'"):
        load_cluster("dgx-h10")


def test_loading_is_quick_and_light():
    code = (
        "import time, sys, shardwise.hardware_profiles.load_cluster as m; t = time.perf_counter();"
        "m.load_cluster('dgx-h100'); print(time.perf_counter() - t);"
        "assert not {'scipy', 'ortools', 'optuna', 'jsonschema'} & set(sys.modules), 'heavy import'"
    )
    best = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    )
    assert best < 0.04


def test_a_shipped_system_is_read_once():
    load_cluster("dgx-b200")
    start = time.perf_counter()
    assert load_cluster("dgx-b200") is load_cluster("dgx-b200")
    assert time.perf_counter() - start < 0.005


def test_own_file(tmp_path):
    c = load_cluster(write(tmp_path, own_file()), num_gpus=16)
    assert (c.name, c.num_gpus, c.node_size, c.tiers[1].technology) == ("mine", 16, 8, "ib-ndr")
    assert c.figures["tiers.1.bytes_per_s"].value == 50e9
    assert load_cluster(str(tmp_path / "mine.yaml")).num_gpus == 64


def test_extends_overrides_key_by_key(tmp_path):
    text = {
        "extends": "dgx-h100",
        "name": "ours",
        "tiers": [
            {"name": "spine", "oversubscription": fig(3.0)},
            {"name": "su-leaf", "efficiency": {"p2p": fig(0.5)}},
        ],
    }
    c, base = load_cluster(write(tmp_path, text)), load_cluster("dgx-h100")
    assert c.tiers[2].oversubscription == 3.0 and c.tiers[1].efficiency["p2p"] == 0.5
    assert c.tiers[0] == base.tiers[0] and c.aliases == () and c.name == "ours"
    second = tmp_path / "second.yaml"
    second.write_text("extends: mine.yaml\nname: theirs\n")
    assert load_cluster(second).tiers == c.tiers


def test_extending_itself_and_unknown_base(tmp_path):
    with pytest.raises(InputError, match="none extending itself"):
        load_cluster(write(tmp_path, "extends: mine.yaml\n"))
    with pytest.raises(InputError, match=r"extends = 'dgx-h1000'.*did you mean"):
        load_cluster(write(tmp_path, "extends: dgx-h1000\n"))


def changed(path, value):
    file = own_file()
    where = file
    for part in path[:-1]:
        where = where[part]
    if value is None:
        del where[path[-1]]
    else:
        where[path[-1]] = value
    return file


WRONG = {
    "unknown key": (changed(["tier"], []), "tier: unknown key; did you mean 'tiers'?"),
    "unknown key deep": (changed(["tiers", 0, "bandwith"], 1), "tiers.0.bandwith: unknown key"),
    "no tiers": (changed(["tiers"], []), "tiers = []: expected"),
    "missing tiers": (changed(["tiers"], None), "tiers: missing; expected innermost first"),
    "negative": (
        changed(["tiers", 0, "bytes_per_s", "value"], -1.0),
        "tiers.0.bytes_per_s.value = -1.0: expected greater",
    ),
    "zero": (changed(["tiers", 1, "size", "value"], 0), "tiers.1.size.value = 0: expected greater than or equal to 1"),
    "nan": (changed(["tiers", 0, "bytes_per_s", "value"], float("nan")), "tiers.0.bytes_per_s.value = nan: expected"),
    "infinite": (
        changed(["host_memory_bytes_per_gpu", "value"], float("inf")),
        "host_memory_bytes_per_gpu.value = inf",
    ),
    "text": (changed(["tiers", 0, "size", "value"], "eight"), "tiers.0.size.value = 'eight': expected a valid integer"),
    "share": (
        changed(["tiers", 0, "efficiency"], {"p2p": fig(1.2)}),
        "tiers.0.efficiency.p2p.value = 1.2: expected less",
    ),
    "kind": (changed(["tiers", 0, "efficiency"], {"gather": fig(0.5)}), "tiers.0.efficiency.gather"),
    "undersubscribed": (
        changed(["tiers", 1, "oversubscription", "value"], 0.5),
        "tiers.1.oversubscription.value = 0.5",
    ),
    "shrinking": (changed(["tiers", 1, "size", "value"], 8), "tiers.1.size.value = 8: expected more than 8"),
    "not dividing": (changed(["tiers", 1, "size", "value"], 60), "tiers.1.size.value = 60: expected a multiple of 8"),
    "node": (changed(["gpus_per_node", "value"], 3), "gpus_per_node.value = 3: expected a divisor of 8"),
    "nvls outside": (changed(["tiers", 1, "nvls"], True), "tiers.1.nvls = True: expected only in the innermost"),
    "nvls unknown": (changed(["tiers", 0, "technology"], "nvlink3"), "tiers.0.efficiency.nvls: missing"),
    "technology": (changed(["tiers", 0, "technology"], "nvlink9"), "tiers.0.technology = 'nvlink9': expected one of"),
    "same names": (changed(["tiers", 1, "name"], "nv"), "tiers: names nv, nv: expected each name once"),
    "accelerator": (changed(["accelerator"], "h1000"), "accelerator = 'h1000'"),
    "origin": (changed(["gpus_per_node", "origin"], "guess"), "gpus_per_node.origin = 'guess': expected"),
    "no source": (changed(["gpus_per_node", "source"], None), "gpus_per_node.source: missing; expected who says so"),
    "too many": (
        changed(["num_gpus"], fig(1 << 21)),
        "num_gpus.value: mine: num_gpus = 2097152: expected 1 to 1048576",
    ),
    "list": ("- 1\n", "holds list; expected a system YAML file"),
    "broken": ("name: [\n", "broken YAML at line"),
    "twice": ("name: a\nname: b\n", "key 'name' twice"),
    "binary": ("\x00", "broken YAML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_file_is_one_line(tmp_path, case):
    content, wanted = WRONG[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and wanted in message and "\n" not in message


def test_unreadable_files(tmp_path):
    for path, wanted in ((tmp_path, "is a directory"), (tmp_path / "no.yaml", "cannot be read: No such file")):
        with pytest.raises(InputError, match=wanted):
            load_cluster(path)
    big = tmp_path / "big.yaml"
    with big.open("wb") as file:
        file.truncate(8 * 1024 * 1024 + 1)
    with pytest.raises(InputError, match="at most 8388608 bytes"):
        load_cluster(big)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: \xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        load_cluster(latin)


def test_shipped_schema_is_current_and_accepts_what_the_loader_accepts(tmp_path):
    shipped = json.loads((FOLDER / "cluster.schema.json").read_text())
    assert shipped == json_schema(), "rewrite cluster.schema.json from cluster_schema.json_schema()"
    validator = jsonschema.Draft202012Validator(shipped)
    validator.check_schema(shipped)
    for name in list_clusters():
        validator.validate(yaml.safe_load((SYSTEMS / f"{name}.yaml").read_text()))
    validator.validate(own_file())
    validator.validate({"extends": "dgx-h100", "tiers": [{"name": "spine", "oversubscription": fig(2.0)}]})
    for case in ("unknown key", "negative", "missing tiers"):
        assert not validator.is_valid(WRONG[case][0]), case


def test_every_technology_is_used_and_none_names_a_path():
    used = {tier.technology for name in list_clusters() for tier in load_cluster(name).tiers}
    assert set(list_technologies()) == used
    for path in SYSTEMS.glob("*.yaml"):
        assert "/work" not in path.read_text() and "/home" not in path.read_text(), path

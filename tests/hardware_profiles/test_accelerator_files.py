"""Reading accelerator files: names, aliases, and one clear line for everything that can be wrong in a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
import yaml

import shardwise.hardware_profiles.load_accelerator as loader
from shardwise.hardware_profiles.accelerator_schema import json_schema
from shardwise.hardware_profiles.errors import InputError, UnknownNameError
from shardwise.hardware_profiles.load_accelerator import list_accelerators, load_accelerator
from shardwise.hardware_profiles.yaml_files import MAX_FILE_BYTES, slug

SHIPPED = sorted((Path(loader.__file__).parent / "accelerators").glob("*.yaml"))
A100 = next(path for path in SHIPPED if path.stem == "a100-sxm4-80gb")


def test_names_are_listed_sorted_and_load():
    names = list_accelerators()
    assert len(names) == len(SHIPPED) >= 35
    assert list(names) == sorted(names)
    assert all(load_accelerator(name).name == name for name in names)


def test_file_names_follow_from_names():
    assert {path.stem for path in SHIPPED} == {slug(name) for name in list_accelerators()}


def test_no_two_devices_share_a_name_or_alias():
    spelled = [s for n in list_accelerators() for s in {slug(a) for a in (n, *load_accelerator(n).aliases)}]
    assert [slug for slug, count in Counter(spelled).items() if count > 1] == []


@pytest.mark.parametrize("spelling", ["h100", "H100-80GB-SXM", "h100_sxm5_80gb", "H100 SXM5 80GB"])
def test_spelling_does_not_matter(spelling):
    assert load_accelerator(spelling).name == "H100-SXM5-80GB"


def test_an_alias_with_a_slash_is_a_name_and_not_a_path():
    assert load_accelerator("V100-SXM2 (125 TFLOP/s; 4x8)").name == "V100-SXM2-32GB"


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="no accelerator 'H10O'; did you mean 'H100-SXM5-80GB'"):
        load_accelerator("H10O")
    with pytest.raises(KeyError):
        load_accelerator("nothing like it")


def test_a_path_reads_the_same_as_the_name():
    assert load_accelerator(A100) == load_accelerator(str(A100)) == load_accelerator("A100")


def test_one_profile_reads_fast():
    best = min(_timed(lambda: load_accelerator(A100)) for _ in range(5))
    assert best < 0.03


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_the_loader_imports_nothing_heavy():
    code = "import sys, shardwise.hardware_profiles.load_accelerator; print('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- the published schema -----------------------------------------------------------------------------------------


def test_the_shipped_json_schema_is_up_to_date():
    shipped = json.loads((Path(loader.__file__).parent / "accelerator.schema.json").read_text())
    assert shipped == json_schema()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_files_follow_the_json_schema(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


# --- bad files ----------------------------------------------------------------------------------------------------


def _set(tree: dict, key: str, value) -> None:
    *parents, last = key.split(".")
    for part in parents:
        tree = tree[part]
    if value is DELETE:
        del tree[last]
    else:
        tree[last] = value


DELETE = object()
BAD_VALUES = [
    ("vendor", DELETE, "vendor: missing"),
    ("gemm.bf16.m0", DELETE, "gemm.bf16.m0: missing"),
    ("memory_bytes.source", DELETE, "memory_bytes.source: missing"),
    ("peak_flop", {}, "peak_flop: unknown key; did you mean 'peak_flops'"),
    ("gemm.bf16.efficency", 1, "gemm.bf16.efficency: unknown key; did you mean 'efficiency'"),
    ("attention.fa2.skip", True, "attention.fa2.skip: unknown key"),
    ("memory_bytes.value", -1.0, "memory_bytes.value = -1.0: expected greater than"),
    ("memory_bytes.value", 0, "memory_bytes.value = 0: expected greater than"),
    ("memory_bytes.value", 1e300, "memory_bytes.value = 1e+300: expected less than"),
    ("memory_bytes_per_s.value", 1e-300, "memory_bytes_per_s.value = 1e-300: expected greater than"),
    ("gemm.bf16.overhead_s.value", 1e308, "gemm.bf16.overhead_s.value = 1e+308: expected less than"),
    ("memory_bytes.value", float("nan"), "memory_bytes.value = nan: expected a finite number"),
    ("memory_bytes.value", float("inf"), "memory_bytes.value = inf: expected a finite number"),
    ("memory_bytes.value", "80e9", "memory_bytes.value = '80e9': expected a valid number"),
    ("memory_bytes.value", True, "memory_bytes.value = True: expected a valid number"),
    ("memory_bytes.value", None, "memory_bytes.value = None: expected a valid number"),
    ("memory_bytes", 80e9, "memory_bytes = 80000000000.0: expected"),
    ("memory_bytes.origin", "guessed", "memory_bytes.origin = 'guessed': expected 'datasheet'"),
    ("memory_bytes.source", "", "memory_bytes.source = ''"),
    ("memory_efficiency.value", 1.5, "memory_efficiency.value = 1.5: expected less than or equal to 1"),
    ("gemm.bf16.efficiency.value", 1.01, "gemm.bf16.efficiency.value = 1.01: expected less than or equal to 1"),
    ("gemm.bf16.m0.value", -3, "gemm.bf16.m0.value = -3: expected greater than or equal to 0"),
    ("gemm", {}, "gemm = {}"),
    ("gemm", [], "gemm = []: expected a valid dictionary"),
    ("gemm.bf17", {}, "gemm.bf17 = 'bf17': expected 'fp32'"),
    ("attention.fa9", {}, "attention.fa9 = 'fa9': expected 'unfused'"),
    ("attention.fa2.causal_skip", "yes", "attention.fa2.causal_skip = 'yes': expected a valid boolean"),
    ("attention.unfused.softmax_passes_forward", DELETE, "attention.unfused needs both softmax_passes_forward"),
    ("scale_up.domain.value", 8.5, "scale_up.domain.value = 8.5: expected a valid integer"),
    ("scale_up.domain.value", 0, "scale_up.domain.value = 0: expected greater than or equal to 1"),
    ("aliases", "A100", "aliases = 'A100': expected a valid list"),
    ("name", 100, "name = 100: expected a valid string"),
    ("price_per_hour", 2.5, "price_per_hour = 2.5"),
    ("peak_flops.bf16", DELETE, "gemm.bf16 needs peak_flops.bf16"),
    ("gemm.fp16", DELETE, "sustained.fp16 needs gemm.fp16"),
]


@pytest.mark.parametrize(("key", "value", "says"), BAD_VALUES, ids=lambda x: str(x)[:40] if isinstance(x, str) else "")
def test_a_bad_value_is_named_in_one_line(tmp_path, key, value, says):
    tree = yaml.safe_load(A100.read_text())
    _set(tree, key, value)
    path = tmp_path / "bad.yaml"

    class NoAnchors(yaml.SafeDumper):
        def ignore_aliases(self, data):
            return True

    path.write_text(yaml.dump(tree, Dumper=NoAnchors))
    with pytest.raises(InputError) as error:
        load_accelerator(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ") and says in message
    assert "\n" not in message and len(message) < 500


BAD_TEXTS = [
    ("", "holds NoneType; expected an accelerator YAML file, a mapping"),
    ("- 1\n- 2\n", "holds list; expected an accelerator YAML file, a mapping"),
    ("just words", "holds str; expected an accelerator YAML file, a mapping"),
    ("name: [unclosed", "broken YAML at line"),
    ("name: a\nname: b\n", "broken YAML at line 2: key 'name' twice"),
    ("name: !!python/object:os.system {}\n", "broken YAML at line 1"),
    ("? [a, b]\n: 1\n", "broken YAML"),
    ("name: *nobody\n", "broken YAML at line 1"),
    ("a: " + "[" * 20_000, "broken YAML"),
    ("name: " + "9" * 5_000 + "\n", ""),
    ("name: 2024-13-45\n", ""),
    ("1: 2\n", ""),
    ("a: &a [*a]\n", ""),
    ("\x00\x01\x02", "broken YAML"),
]


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_a_broken_file_is_one_line(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_accelerator(path)
    message = str(error.value)
    assert str(path) in message and says in message
    assert "\n" not in message and len(message) < 700


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="is a directory; expected an accelerator YAML file"):
        load_accelerator(tmp_path)
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_accelerator(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match=r"nowhere\.yaml: cannot be read"):
        load_accelerator(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(InputError, match="not a file name"):
        load_accelerator("nul\0byte.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff\xfe")
    with pytest.raises(InputError, match="byte 6 is not UTF-8"):
        load_accelerator(binary)
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as handle:
        handle.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InputError, match="at most 8388608 bytes"):
        load_accelerator(huge)


def test_a_bomb_of_aliases_is_refused_quickly(tmp_path):
    lines = ["a0: &a0 {x: 1}"] + [
        f"a{i}: &a{i} {{x: [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]}}" for i in range(1, 40)
    ]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    start = time.perf_counter()
    with pytest.raises(InputError, match="unknown key"):
        load_accelerator(path)
    assert time.perf_counter() - start < 2.0


def test_json_is_read_as_well(tmp_path):
    path = tmp_path / "device.json"
    path.write_text(json.dumps(yaml.safe_load(A100.read_text())))
    assert load_accelerator(path) == load_accelerator("A100")


def test_profiles_name_no_machine_paths():
    text = "".join(path.read_text() for path in SHIPPED)
    assert "index id" not in text

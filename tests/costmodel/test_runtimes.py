"""Every shipped runtime profile loads, is named like its file, and says where its figures come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.costmodel import runtime as runtime_module
from shardwise.costmodel.runtime import Runtime, list_runtimes, load_runtime
from shardwise.hardware_profiles.errors import InputError, UnknownNameError

ORIGINS = ("published", "fitted", "measured", "derived", "assumed")
FOLDER = Path(runtime_module.__file__).parent / "runtimes"
NEEDED = {
    "megatron-2021",
    "megatron-2022",
    "megatron-deepspeed",
    "megatron-core",
    "nemo-24.07",
    "megatron-bridge-26.06",
    "pytorch-fsdp",
    "torchtitan",
    "llm-foundry-fsdp",
    "deepspeed-zero",
}


def test_the_frameworks_of_published_runs_have_profiles():
    assert set(list_runtimes()) >= NEEDED


@pytest.mark.parametrize("name", list_runtimes())
def test_profile_is_named_like_its_file_and_described(name: str):
    runtime = load_runtime(name)
    assert runtime.name == name
    assert len(runtime.description) > 20
    assert runtime.launcher


@pytest.mark.parametrize("name", list_runtimes())
def test_sources_name_fields_and_origins(name: str):
    for field, source in load_runtime(name).sources.items():
        assert field in Runtime.model_fields, field
        assert source.split(":")[0].split(" ")[0].rstrip(":") in ORIGINS, source


@pytest.mark.parametrize("name", list_runtimes())
def test_times_are_plausible(name: str):
    runtime = load_runtime(name)
    assert runtime.host_s_per_layer < 0.01
    assert runtime.host_s_per_moe_layer < 0.05
    assert runtime.fixed_s_per_step < 1.0
    assert runtime.grad_comm_bytes in (2.0, 4.0)
    assert 0.3 <= runtime.gemm_scale <= 1.5
    assert 0.3 <= runtime.grouped_gemm_scale <= 1.5


def test_every_figure_of_a_profile_that_others_extend_has_a_source():
    text = (FOLDER / "megatron-core.yaml").read_text(encoding="utf-8")
    assert "extends" not in text
    runtime = load_runtime("megatron-core")
    for field in ("host_s_per_layer", "attention_kernel", "tp_hidden", "grad_memory_bytes", "vocab_multiple"):
        assert field in runtime.sources


def test_a_profile_of_the_user_extends_a_shipped_one(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: torchtitan\nname: mine\ndescription: our fork of torchtitan\nhost_s_per_layer: 0.002\n")
    mine, base = load_runtime(path), load_runtime("torchtitan")
    assert mine.host_s_per_layer == 0.002
    assert mine.grad_comm_bytes == base.grad_comm_bytes
    assert mine.sources == base.sources


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: torchtitan\nname: x\ndescription: d\ntp_hidden: 1.5\n", "tp_hidden"),
        ("extends: torchtitan\nname: x\ndescription: d\nhost_s_per_layer: .nan\n", "host_s_per_layer"),
        ("extends: torchtitan\nname: x\ndescription: d\nspeed: 3\n", "speed"),
        ("extends: no-such-profile\nname: x\ndescription: d\n", "extends"),
        ("- 1\n", "holds list; expected a runtime profile, a mapping"),
        ("name: [\n", "broken YAML at line"),
        ("name: x\nname: y\n", "key 'name' twice"),
    ],
)
def test_bad_profiles_are_refused_in_one_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_runtime(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.yaml").write_text(f"extends: {other}\nname: {one}\ndescription: d\n")
    with pytest.raises(InputError, match="circle"):
        load_runtime(tmp_path / "a.yaml")


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'torchtitan'"):
        load_runtime("torchtitn")

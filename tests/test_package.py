"""The package as it is installed: everything it needs travels with it, and importing it is quick."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
FOLDERS = SETUPTOOLS["package-dir"]
HEAVY = {"numpy", "scipy", "ortools", "optuna", "pandas", "pydantic", "rich"}

pytestmark = pytest.mark.skipif(not (ROOT / "cli").is_dir(), reason="needs the source tree")


def folder_of(package):
    for parent in (package, *[package.rsplit(".", n)[0] for n in range(1, package.count(".") + 1)]):
        if parent in FOLDERS:
            return ROOT / FOLDERS[parent] / Path(*package.removeprefix(parent).strip(".").split("."))
    raise AssertionError(package)


def matching(folder, pattern):
    """Files under a folder, as setuptools reads a pattern: ``**`` reaches any depth."""
    return (p for p in folder.glob(pattern.replace("**", "**/*")) if p.is_file())


def python(*argv, cwd, executable=sys.executable):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([executable, *argv], cwd=cwd, capture_output=True, text=True, env=env, check=False)


def test_every_python_package_is_listed():
    found = set()
    for package, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *inner)))
    assert found == set(SETUPTOOLS["packages"])


def test_every_data_file_is_packaged():
    matched = {
        hit
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for hit in matching(folder_of(package), pattern)
    }
    present = {
        path
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and not path.name.startswith(".")
    }
    assert sorted(str(p.relative_to(ROOT)) for p in present - matched) == []


def test_data_files_are_small():
    big = [p for f in FOLDERS.values() for p in (ROOT / f).rglob("*") if p.is_file() and p.stat().st_size > 2 << 20]
    assert big == []


def test_the_command_line_loads_nothing_heavy(tmp_path):
    code = f"import sys, shardwise.cli.main; print(sorted({HEAVY!r} & set(sys.modules)))"
    # With the tests' own import path: this tree is the one in question, whichever is installed.
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_every_package_imports_from_anywhere(package, tmp_path):
    result = python("-c", f"import {package}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from an sdist built from the tracked and new files of this tree."""
    if not shutil.which("git"):
        pytest.skip("needs git")
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("needs a git clone")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("dist")
    result = python("-m", "build", "--outdir", str(out), str(source), cwd=out)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(Path(package.replace(".", "/")) / path.relative_to(ROOT / folder))
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    assert expected - names == set()
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    own = home / "bin" / "python"
    installed = python("-m", "pip", "install", "--no-deps", "--quiet", str(wheel), cwd=tmp_path, executable=str(own))
    assert installed.returncode == 0, installed.stderr
    # The dependencies come from the environment of the tests; an editable shardwise there is not switched on by a path.
    site = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = python("-c", "import shardwise.costmodel as m; print(m.__file__)", cwd=tmp_path, executable=str(own))
    assert str(home) in where.stdout, where.stderr
    for package in SETUPTOOLS["packages"]:
        result = python("-c", f"import {package}", cwd=tmp_path, executable=str(own))
        assert result.returncode == 0, result.stderr
    listed = subprocess.run(
        [home / "bin" / "shardwise", "models", "list"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "llama-3.1-70b" in listed.stdout.split(), listed.stderr
    shown = subprocess.run(
        [home / "bin" / "shardwise", "clusters", "list"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "dgx-h100" in shown.stdout.split(), shown.stderr


def test_there_is_one_version():
    import shardwise

    assert shardwise.__version__ == PYPROJECT["project"]["version"]
    assert importlib.metadata.version("shardwise") == shardwise.__version__


def test_every_error_has_the_one_root_and_a_builtin():
    import shardwise

    for name in shardwise.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(shardwise, name), shardwise.ShardwiseError)
    assert issubclass(shardwise.InputError, ValueError)
    assert shardwise.InputError.exit_code == 2
    assert shardwise.NothingFitsError.exit_code == 3

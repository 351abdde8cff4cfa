"""From a path to what its launch files say: which files, which framework, which job."""

from __future__ import annotations

from pathlib import Path

from shardwise.hardware_profiles.errors import InputError
from shardwise.hardware_profiles.text_files import is_there, read_text

from .base import get_launcher, list_launchers
from .parsed import Files, Given, Parsed

LARGEST_FILE_BYTES = 1 << 22
_SUFFIXES = frozenset({".sh", ".bash", ".sbatch", ".slurm", ".json", ".yaml", ".yml", ".toml", ".py", ".txt", ".args"})
_OURS = frozenset({"plan.json", "benchmark.sh"})


def read_launch(path: str | Path, launcher: str | None = None, given: Given | None = None) -> Parsed:
    """The job of a launch file, or of a folder of launch files; the framework is recognised unless it is named.

    Raises InputError naming file, option and value (UnknownNameError with the nearest launcher).
    """
    files = load_files(Path(path))
    return get_launcher(launcher or recognise(files)).parse(files, given)


def load_files(path: Path) -> dict[str, str]:
    """Texts by name: of one file, or of the launch files of a folder. Raises InputError for what cannot be read."""
    if not (is_there(path) and path.is_dir()):
        return {path.name: read_text(path, "a launch file", LARGEST_FILE_BYTES)}
    names = sorted(p for p in path.iterdir() if p.is_file() and p.name not in _OURS)
    found = [p for p in names if p.suffix.lower() in _SUFFIXES or p.name == "hostfile"]
    if not found:
        raise InputError(f"{path}: no launch file in it: expected a script, JSON, YAML or Python")
    return {p.name: read_text(p, "a launch file", LARGEST_FILE_BYTES) for p in found}


def recognise(files: Files) -> str:
    """The launcher that files are for. Raises InputError where none or several claim them."""
    claims = [name for name in list_launchers() if get_launcher(name).claim(files)]
    if len(claims) != 1:
        found = " and ".join(claims) if claims else "no launcher"
        raise InputError(f"{', '.join(files)}: {found} would read it: name the framework with --launcher, one of "
                         f"{', '.join(n for n in list_launchers() if n != 'generic')}")  # fmt: skip
    return claims[0]

"""A real Slurm on one machine: its controller, one daemon for each of a few made-up nodes, munge between them.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge (``.ci/validators.sh`` installs them). Everything it
writes is in one temporary directory; every process it starts knows that directory, and is gone when it closes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "munged")
_CAP_S = 60.0
"""Longest that one command may take, jobs included."""

_CONF = """\
ClusterName=sandbox
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
TopologyPlugin=topology/tree
GresTypes=gpu
MpiDefault=none
ReturnToService=2
KillWait=1
SchedulerParameters=sched_min_interval=1
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=64 SocketsPerBoard=2 CoresPerSocket=32 \
RealMemory=20000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What keeps Slurm from running here; empty where nothing does."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed: apt-get install slurmctld slurmd slurm-client munge"
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "Slurm's daemons run as root here"
    return ""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def tree(nodes: int, per_leaf: int = 4) -> str:
    """A ``topology.conf`` of leaves under one spine for nodes n1 and on."""
    leaves = range(0, nodes, per_leaf)
    lines = [f"SwitchName=leaf{i} Nodes=n[{a + 1}-{min(a + per_leaf, nodes)}]" for i, a in enumerate(leaves)]
    return "\n".join([*lines, f"SwitchName=spine Switches=leaf[0-{len(lines) - 1}]"]) + "\n"


@dataclass(frozen=True)
class Verdict:
    """Whether a controller starts under a ``topology.conf``, and the lines of its log that complain about it."""

    starts: bool
    complaints: tuple[str, ...]


_ABOUT_SWITCHES = re.compile(r"(fatal|error|warning).*(switch|topology|parsing)", re.IGNORECASE)


@dataclass(frozen=True)
class Slurm:
    """A running Slurm. ``hosts`` are its nodes, each with ``gpus`` accelerators that are /dev/null."""

    folder: Path
    hosts: tuple[str, ...]
    gpus: int

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a command that talks to it."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return {**clean, "PATH": _path(), "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self, arguments: Sequence[str], cwd: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command with Slurm's configuration; its output as text, whatever its exit status."""
        return subprocess.run(
            list(arguments), cwd=cwd, env={**self.environment, **(variables or {})}, capture_output=True, text=True,
            timeout=_CAP_S, check=False,
        )  # fmt: skip

    def test_only(self, script: Path) -> str:
        """The complaint of ``sbatch --test-only``; empty where the job is accepted."""
        done = self.run(["sbatch", "--test-only", script.name], cwd=script.parent)
        accepted = done.returncode == 0 and re.search(r"Job \d+ to start at", done.stderr)
        return "" if accepted else done.stderr.strip() or "no answer"

    def submit(self, script: Path, variables: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Run a batch script to its end, for ``_CAP_S`` at most; the state of the job and what it printed."""
        done = self.run(["sbatch", "--parsable", script.name], script.parent, variables)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        deadline = time.monotonic() + _CAP_S
        while (state := self._state(job)) in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            if time.monotonic() > deadline:
                self.run(["scancel", "--signal=KILL", job])
                break
            time.sleep(0.1)
        return state, "".join(log.read_text() for log in script.parent.glob(f"*-{job}.log"))

    def _state(self, job: str) -> str:
        shown = self.run(["scontrol", "--oneliner", "show", "job", job]).stdout
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else "UNKNOWN"

    def judge_topology(self, text: str) -> Verdict:
        """What a controller of its own makes of a ``topology.conf`` over the same nodes."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "state").mkdir()
        (port,) = _free_ports(1)
        conf = (self.folder / "slurm.conf").read_text().replace(f"{self.folder}/munge", "\0")
        conf = conf.replace(str(self.folder), str(folder)).replace("\0", f"{self.folder}/munge")
        (folder / "slurm.conf").write_text(re.sub(r"SlurmctldPort=\d+", f"SlurmctldPort={port}", conf))
        (folder / "gres.conf").write_text((self.folder / "gres.conf").read_text())
        (folder / "topology.conf").write_text(text)
        log = folder / "slurmctld.log"
        daemon = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "slurmctld", "-D", "-i", "-c"],
            cwd=folder, env={**self.environment, "SLURM_CONF": str(folder / "slurm.conf")},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _until(lambda: daemon.poll() is not None or "Running as primary" in _text(log), log)
            started = daemon.poll() is None
        finally:
            daemon.kill()
            daemon.wait()
        lines = [line.split("] ", 1)[-1] for line in _text(log).splitlines()]
        return Verdict(started, tuple(line for line in lines if _ABOUT_SWITCHES.search(line)))

    def processes(self) -> list[int]:
        """Every process that was started under its configuration."""
        mark, found = f"SLURM_CONF={self.folder}/slurm.conf".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


@contextlib.contextmanager
def sandbox(nodes: int = 8, gpus: int = 8) -> Iterator[Slurm]:
    """Start Slurm with nodes n1 and on; stop all of it in the end."""
    # Sockets' paths are short, which pytest's own folders are not.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    slurm = Slurm(folder, tuple(f"n{i + 1}" for i in range(nodes)), gpus)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _write(slurm)
        _start(slurm, daemons)
        yield slurm
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            slurm.run(["scancel", "--signal=KILL", "--user=root"])
        left = _stop(slurm, daemons)
        shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes of the sandbox are left: {left}"


def _write(slurm: Slurm) -> None:
    folder, count = slurm.folder, len(slurm.hosts)
    ports = _free_ports(count + 1)
    (folder / "state").mkdir()
    for index in range(slurm.gpus):
        (folder / f"gpu{index}").symlink_to("/dev/null")
    text = _CONF.format(
        folder=folder, host=socket.gethostname().split(".")[0], port=ports[0], nodes=f"n[1-{count}]", gpus=slurm.gpus,
        ports=f"[{','.join(map(str, ports[1:]))}]",
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    # A count alone gives no accelerators in 22.05: each has a file.
    (folder / "gres.conf").write_text(f"NodeName=n[1-{count}] Name=gpu File={folder}/gpu[0-{slurm.gpus - 1}]\n")
    (folder / "topology.conf").write_text(tree(count))
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, ascending."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return sorted(each.getsockname()[1] for each in held)


def _start(slurm: Slurm, daemons: list[subprocess.Popen[bytes]]) -> None:
    """Start every daemon as a child that ends with its parent, and wait for the nodes."""
    folder = slurm.folder
    words = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={folder}/munge.{end}" for option, end in words.items()]
    munge = ["munged", "--foreground", "--force", *files]
    for command in (munge, ["slurmctld", "-D", "-i", "-c"], *(["slurmd", "-D", "-N", host] for host in slurm.hosts)):
        daemons.append(
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], cwd=folder, env=slurm.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        if command is munge:
            _until((folder / "munge.socket").exists, folder / "munge.log")
    idle = ["idle"] * len(slurm.hosts)
    _until(
        lambda: slurm.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split() == idle,
        folder / "slurmctld.log",
    )


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def _until(ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _CAP_S
    while not ready():
        assert time.monotonic() < deadline, _text(log)[-2000:]
        time.sleep(0.1)


def _stop(slurm: Slurm, daemons: list[subprocess.Popen[bytes]]) -> list[int]:
    """End the daemons, munge last, then whatever is left of their jobs. Returns what is left all the same."""
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in reversed(daemons):
        try:
            daemon.wait(10.0)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    deadline = time.monotonic() + 10.0
    while (left := slurm.processes()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return left

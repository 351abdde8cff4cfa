"""One Optuna study that several workers may share and that survives a killed one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

_WORKER = "worker"
_STARTUP = 8
"""Finished trials below which the sampler draws at random."""


@dataclass(slots=True)
class Study:
    """Trials are counted when they are finished; those of a killed worker on this host are given up.

    What is asked depends on the seed and on the finished trials only (and on how many others are running), so one
    worker asks the same whether or not it was stopped on its way.
    """

    study: optuna.Study
    seed: int

    @classmethod
    def open(cls, storage: BaseStorage, name: str, seed: int) -> Study:
        """The study of that name, made if there is none."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        made = optuna.create_study(study_name=f"shardwise-{name}", storage=storage, load_if_exists=True)
        return cls(made, seed)

    @property
    def finished(self) -> int:
        """Finished trials of all workers."""
        return len(self.values())

    def values(self) -> list[FrozenTrial]:
        """Finished trials, in the order they were asked for."""
        from optuna.trial import TrialState

        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @contextlib.contextmanager
    def asked(self, first: Sequence[dict[str, Any]]) -> Iterator[optuna.Trial]:
        """A trial: the first of ``first`` that nobody tried or is trying, else the sampler's. Given up if it fails."""
        import optuna
        from optuna.trial import TrialState

        running = self._running()
        tried = [t.params for t in self.values()] + [_fixed(t) for t in running]
        ahead = next((params for params in first if params not in tried), None)
        text = f"{self.seed}:{len(tried) - len(running)}:{len(running)}"
        draw = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        self.study.sampler = optuna.samplers.TPESampler(seed=draw, n_startup_trials=_STARTUP)
        # The worker's name goes in with the trial, so that none is ever left without one. What a killed worker left
        # waiting is what is next here too.
        if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.study.enqueue_trial(ahead or {}, user_attrs={_WORKER: _me()})
        trial = self.study.ask()
        try:
            if trial.user_attrs.get(_WORKER) != _me():
                trial.set_user_attr(_WORKER, _me())
            yield trial
        except BaseException:
            with contextlib.suppress(Exception):
                self.study.tell(trial, state=TrialState.FAIL)
            raise

    def tell(self, trial: optuna.Trial, value: float) -> None:
        """The trial's result."""
        self.study.tell(trial, value)

    def _running(self) -> list[FrozenTrial]:
        """Trials that others are at; those of workers that are gone are marked as failed."""
        from optuna.trial import TrialState

        alive = []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _gone(str(trial.user_attrs.get(_WORKER, ""))):
                with contextlib.suppress(Exception):
                    self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                alive.append(trial)
        return alive


def _fixed(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters that a trial was given before it was asked for."""
    return dict(trial.system_attrs.get("fixed_params", {}))


def _me() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _gone(worker: str) -> bool:
    """Whether a worker ran on this host and does not any more; of other hosts nothing is known."""
    host, _, pid = worker.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    if int(pid) == os.getpid():
        return True  # an earlier trial of this very process
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False

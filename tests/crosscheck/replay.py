"""The action tables of ``torch.distributed.pipelining``, replayed with given durations.

``torch`` is imported where a table is asked for: everyday collection of the tests must not load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Op:
    """One pass of one stage: ``F``, ``B`` (whole backward), ``I`` (data gradient) or ``W`` (weight gradient)."""

    kind: str
    stage: int
    microbatch: int

    @property
    def result(self) -> tuple[str, int, int]:
        """What others wait for: a whole backward and a data gradient both hand over the input's gradient."""
        return ("B" if self.kind == "I" else self.kind, self.stage, self.microbatch)

    def awaited(self, last_stage: int) -> tuple[str, int, int] | None:
        """The result this pass needs, None if it needs none."""
        if self.kind == "W" or (self.kind == "F" and self.stage == 0):
            return None
        if self.kind == "F":
            return ("F", self.stage - 1, self.microbatch)
        return ("F" if self.stage == last_stage else "B", min(self.stage + 1, last_stage), self.microbatch)


Task = tuple[Op, ...]
"""Passes that start and end together: one, or the overlapped forward and backward of DualPipe."""


@dataclass(frozen=True)
class Durations:
    """Seconds of one stage's forward, data gradient and weight gradient."""

    forward: float
    backward: float
    weight: float

    def of(self, task: Task) -> float:
        """Seconds of a task; overlapped passes take the sum of both."""
        whole = self.backward + self.weight
        each = {"F": self.forward, "B": whole, "I": self.backward, "W": self.weight}
        return sum(each[op.kind] for op in task)


def torch_schedule(schedule: str, pp: int, chunks: int, microbatches: int) -> Any:
    """A schedule of torch's, by class name, over stages that hold nothing."""
    from torch.distributed.pipelining import schedules

    def stage(index: int) -> SimpleNamespace:
        return SimpleNamespace(stage_index=index, num_stages=pp * chunks, group_rank=0, group_size=pp, submod=None)

    build = getattr(schedules, schedule)
    single = schedule in ("ScheduleGPipe", "Schedule1F1B")
    return build(stage(0), microbatches) if single else build([stage(c * pp) for c in range(chunks)], microbatches)


def action_table(schedule: str, pp: int, chunks: int, microbatches: int) -> list[list[Task]]:
    """What each rank runs, in order, as the named torch schedule lists it."""
    made = torch_schedule(schedule, pp, chunks, microbatches)
    return [renumbered(compute_tasks(made.pipeline_order[rank])) for rank in range(pp)]


def messages_sent(schedule: str, pp: int, chunks: int, microbatches: int) -> list[int]:
    """Activations and gradients that each rank sends to another in one step, as torch lowers the schedule."""
    lowered = torch_schedule(schedule, pp, chunks, microbatches).pipeline_order_with_comms
    return [sum(a.computation_type.name in ("SEND_F", "SEND_B") for a in lowered[rank]) for rank in range(pp)]


def compute_tasks(actions: Iterable[Any]) -> Iterable[Task]:
    """Torch's actions without waits and reductions."""
    names = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    for action in actions:
        parts = () if action is None else (action.sub_actions or (action,))
        if parts and parts[0].computation_type.name in names:
            yield tuple(Op(names[p.computation_type.name], p.stage_index, p.microbatch_index) for p in parts)


def renumbered(tasks: Iterable[Task]) -> list[Task]:
    """Micro-batches by order of arrival: torch 2.13's 1F1B table calls the last rank's first forward number 1."""
    seen: dict[tuple[str, int], int] = {}
    out = []
    for task in tasks:
        ops = []
        for op in task:
            key = op.result[:2]
            ops.append(Op(op.kind, op.stage, seen.get(key, 0)))
            seen[key] = seen.get(key, 0) + 1
        out.append(tuple(ops))
    return out


@dataclass(frozen=True)
class Replay:
    """When each rank started, ended, and how long it worked."""

    start_s: list[float]
    end_s: list[float]
    busy_s: list[float]

    @property
    def bubble_s(self) -> float:
        """Step time beyond the work of the busiest rank, all ranks meeting at the end of the step."""
        return max(self.end_s) - max(self.busy_s)

    @property
    def bubble_within_ranks_s(self) -> float:
        """The same where a rank may begin its next step as soon as it is done, whatever the others do."""
        return max(e - s for s, e in zip(self.start_s, self.end_s, strict=True)) - max(self.busy_s)


def replay(table: list[list[Task]], times: Durations) -> Replay:
    """Run every rank's list in order, each task as soon as the rank is free and its inputs are there."""
    last = max(op.stage for tasks in table for task in tasks for op in task)
    ranks = range(len(table))
    done: dict[tuple[str, int, int] | None, float] = {None: 0.0}
    clock, begin = [0.0 for _ in ranks], [-1.0 for _ in ranks]
    todo = [list(reversed(tasks)) for tasks in table]
    while any(todo):
        ready = [r for r in ranks if todo[r] and all(op.awaited(last) in done for op in todo[r][-1])]
        assert ready, "the action table deadlocks"
        for rank in ready:
            task = todo[rank].pop()
            start = max(clock[rank], *(done[op.awaited(last)] for op in task))
            begin[rank] = start if begin[rank] < 0 else begin[rank]
            clock[rank] = start + times.of(task)
            done.update({op.result: clock[rank] for op in task})
    return Replay(begin, clock, [sum(times.of(task) for task in tasks) for tasks in table])


def peak_chunks(tasks: list[Task], freed_by: str = "BW") -> int:
    """Most stage activations a rank holds: taken by a forward, given back by the passes named."""
    held = peak = 0
    for op in (op for task in tasks for op in task):
        held += (op.kind == "F") - (op.kind in freed_by)
        peak = max(peak, held)
    return peak

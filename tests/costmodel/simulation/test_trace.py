"""Traces against the Trace Event Format: which keys each kind of event must have, and what they mean."""

from __future__ import annotations

import json
from itertools import pairwise
from numbers import Real

import pytest

from shardwise.costmodel.simulation import simulate

from .test_simulate import REAL, real

COMMON = {"name", "ph", "ts", "pid", "tid"}
KEYS = {"X": {"cat", "dur", "args"}, "M": {"args"}, "s": {"cat", "id"}, "f": {"cat", "id", "bp"}}
METADATA = {
    "process_name": ("name", str), "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int), "thread_sort_index": ("sort_index", int),
}  # fmt: skip
SMALL = {
    "1f1b": ("llama-3.1-8b", 64, 128, "pp=4"),
    "interleaved": ("llama-3.1-8b", 64, 128, "tp=2,sp=on,pp=4,vpp=2,schedule=interleaved,recompute=full"),
    "zb-h1": ("llama-3.1-8b", 64, 128, "pp=4,cp=2,schedule=zb-h1,zero=3"),
    "moe dualpipe": ("deepseek-v3", 2048, 4096, "pp=16,ep=64,schedule=dualpipe"),
    "moe zb-v": ("mixtral-8x7b", 64, 128, "tp=2,sp=on,pp=4,vpp=2,schedule=zb-v,ep=8"),
    "one stage": ("llama-3.1-8b", 64, 128, "tp=2,sp=on,zero=1"),
}


def check_event(event) -> None:
    """Required keys and their types, nothing unknown, times in microseconds that are finite and not negative."""
    assert set(event) == COMMON | KEYS[event["ph"]], event
    assert isinstance(event["name"], str)
    assert event["name"]
    for key in ("pid", "tid"):
        assert type(event[key]) is int
    for key in {"ts", "dur"} & set(event):
        assert isinstance(event[key], Real)
        assert 0 <= event[key] < 1e12
    if event["ph"] == "M":
        key, kind = METADATA[event["name"]]
        assert set(event["args"]) == {key}
        assert type(event["args"][key]) is kind
    if event["ph"] in "sf":
        assert type(event["id"]) in (int, str)
    assert event.get("bp", "e") == "e"


def check_threads(events) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Slices of one thread follow each other, and every thread and process that has one is named."""
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for (pid, tid), slices in threads.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        for (_, end), (begin, _) in pairwise(sorted(slices)):
            assert begin >= end - 1e-3  # a nanosecond
    return threads


def check_flows(events, threads) -> None:
    """Each arrow has one start and one end, forward in time, and both are on a slice."""
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) + len(ends) == sum(e["ph"] in "sf" for e in events)
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        for e in (start, ends[number]):
            assert any(a <= e["ts"] <= b for a, b in threads[e["pid"], e["tid"]])


PASS = {"name": "forward 0", "ph": "X", "ts": 0, "pid": 0, "tid": 0, "cat": "compute", "dur": 5, "args": {}}
NAMED = [
    {"name": f"{what}_name", "ph": "M", "ts": 0, "pid": 0, "tid": 0, "args": {"name": "x"}}
    for what in ("process", "thread")
]


@pytest.mark.parametrize(
    "change", [{"ts": "0"}, {"dur": -1}, {"pid": 0.5}, {"ph": "Q"}, {"name": ""}, {"color": "red"}]
)
def test_the_validator_refuses_bad_events(change):
    check_event(PASS)
    with pytest.raises((AssertionError, KeyError)):
        check_event({**PASS, **change})


def test_the_validator_refuses_overlaps_and_loose_arrows():
    arrow = [{**PASS, "ph": "s", "id": 1, "ts": 1}, {**PASS, "ph": "f", "bp": "e", "id": 1, "ts": 4}]
    check_flows([*NAMED, PASS, *arrow], check_threads([*NAMED, PASS]))
    with pytest.raises(AssertionError):
        check_threads([*NAMED, PASS, {**PASS, "ts": 4}])
    with pytest.raises(AssertionError):
        check_threads([PASS])
    with pytest.raises(AssertionError):
        check_flows([PASS, arrow[0]], {(0, 0): [(0, 5)]})


@pytest.mark.parametrize("name", SMALL)
def test_a_trace_keeps_to_the_format(name):
    document = json.loads(json.dumps(simulate(*real(*SMALL[name])).trace(), allow_nan=False))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        check_event(event)
    times = [e["ts"] for e in events if e["ph"] == "X"]
    assert times == sorted(times)
    check_flows(events, check_threads(events))


@pytest.mark.parametrize("name", SMALL)
def test_a_trace_shows_the_whole_step(name):
    problem, strategy = real(*SMALL[name])
    simulation = simulate(problem, strategy)
    slices = [e for e in simulation.trace()["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(simulation.step_time_s * 1e6, abs=0.01)
    assert {e["pid"] for e in slices} == set(range(strategy.pp))
    for rank, parts in enumerate(simulation.parts_by_rank_s):
        drawn = sum(e["dur"] for e in slices if e["pid"] == rank and e["cat"] == "compute")
        inside = (
            float((simulation.durations.forward_traffic + simulation.durations.backward_traffic)[rank].sum())
            * strategy.num_microbatches
            * (0.5 if strategy.schedule == "dualpipe" else 1.0)
        )
        assert drawn / 1e6 == pytest.approx(parts["compute"] + parts["recompute"] + inside, rel=1e-6)
    passes = [e for e in slices if e["cat"] == "compute"]
    assert len(passes) == len(simulation.graph)
    assert {"op", "microbatch", "chunk", "stage"} == set(passes[0]["args"])


def test_messages_say_what_and_how_much():
    """One per boundary, pass and micro-batch: 2 (p·v - 1) m messages of micro-batch · sequence · hidden · 2 bytes."""
    problem, strategy = real(*SMALL["interleaved"])
    received = [e for e in simulate(problem, strategy).trace()["traceEvents"] if e.get("cat") == "p2p receive"]
    assert len(received) == 2 * (4 * 2 - 1) * strategy.num_microbatches
    assert {e["args"]["bytes"] for e in received} == {1 * 4096 * 4096 * 2.0 / 2}  # sequence parallel over tp = 2


def test_expert_traffic_has_its_own_stream():
    events = simulate(*real(*REAL["deepseek 1f1b"])).trace()["traceEvents"]
    streams = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "p2p receive", "ep all-to-all", "dp traffic", "optimizer"} == streams

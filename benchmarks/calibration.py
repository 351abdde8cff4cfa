"""How often calibration helps: on the logs that ship as rows, and on groups of published runs.

    python benchmarks/calibration.py RUNS.jsonl [RUNS.jsonl ...]

Logs: fitted on every other message size, judged on the rest. Runs: fitted on five of a group, judged on the others;
five draws of each group of seven and more.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from shardwise.costmodel.calibrate_runs import FACTORS, fit_factors, interval_after, step_times
from shardwise.costmodel.estimate import published_half_width
from shardwise.costmodel.fit_runs import Run, batches_of
from shardwise.costmodel.validation import read_rows
from shardwise.hardware_profiles.calibrate_collectives import fit_cluster, predict
from shardwise.hardware_profiles.fit_collectives import read_rows as read_links
from shardwise.hardware_profiles.load_cluster import load_cluster

FIVE, DRAWS, LEAST, MOST = 5, 5, 7, 40


def logs() -> None:
    """Median error on the sizes that were left out, the worse half of each log."""
    groups = defaultdict(list)
    for row in read_links():
        if row.group.startswith("log-"):
            groups[row.group, row.system, row.kind, row.ranks, row.nodes].append(row)
    worst = []
    for (name, system, kind, ranks, _), rows in sorted(groups.items()):
        sizes = sorted({row.nbytes for row in rows})
        if len(sizes) < 4:
            continue
        cluster, medians = load_cluster(system), []
        for part in (set(sizes[::2]), set(sizes[1::2])):
            rest = [row for row in rows if row.nbytes not in part]
            fitted = fit_cluster(cluster, [row for row in rows if row.nbytes in part]).cluster
            medians.append(float(np.median(np.abs(predict(rest, fitted) / [r.seconds for r in rest] - 1.0))))
        before = float(np.median(np.abs(predict(rows, cluster) / [r.seconds for r in rows] - 1.0)))
        worst.append(max(medians))
        print(f"{name.removeprefix('log-'):52s} {kind:14s} {ranks:4d} ranks  {before:6.1%} -> {worst[-1]:6.1%}")
    within = sum(w <= 0.10 for w in worst)
    print(f"{within} of {len(worst)} logs within 10 %, median {np.median(worst):.1%}\n")


def runs(paths: Sequence[str]) -> None:
    """Errors on the rest of each group before and after, and how often the calibrated interval holds."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for path in paths:
        for entry in read_rows(path):
            seconds = entry.row.get("step_time_s")
            if entry.inputs is not None and seconds and not entry.row.get("suspect"):
                group = str(entry.row.get("group") or entry.row_id)
                groups[group].append(Run(entry.inputs, group, float(seconds)))
    found = []
    for name, members in sorted(groups.items()):
        if len(members) >= LEAST:
            draws = np.array([_draw(members, seed) for seed in range(DRAWS)])
            found.append(draws)
            before, after, inside, width, was = draws.mean(axis=0)
            print(
                f"{name[:44]:44s} {len(members):4d} runs  {before:6.1%} -> {after:6.1%}  inside {inside:4.0%}"
                f"  interval {was:4.0%} -> {width:4.0%}"
            )
    every = np.concatenate(found)
    moved = every[:, 1] - every[:, 0]
    print(
        f"{len(found)} groups, {len(every)} draws: mean of the medians {every[:, 0].mean():.2%}"
        f" -> {every[:, 1].mean():.2%}; better {np.mean(moved < -0.001):.0%}, the same"
        f" {np.mean(np.abs(moved) <= 0.001):.0%}, worse {np.mean(moved > 0.001):.0%} (by more than a point:"
        f" {np.mean(moved > 0.01):.0%}); inside the interval {every[:, 2].mean():.0%}, half-width"
        f" {every[:, 4].mean():.1%} -> {every[:, 3].mean():.1%}"
    )


def _draw(members: Sequence[Run], seed: int) -> tuple[float, float, float, float, float]:
    order = np.random.default_rng(seed).permutation(len(members))
    five, rest = [members[i] for i in order[:FIVE]], [members[i] for i in order[FIVE : FIVE + MOST]]
    fit = fit_factors(five)
    batches, measured = batches_of(rest), np.array([run.measured_s for run in rest])
    plain = step_times(rest, batches, dict.fromkeys(FACTORS, 1.0)) / measured - 1.0
    error = step_times(rest, batches, fit.values) / measured - 1.0
    was = published_half_width(five[0].inputs.problem)
    half = interval_after(fit.left_out, was)
    inside = float(np.mean(np.abs(1.0 / (1.0 + error) - 1.0) <= half))
    return float(np.median(np.abs(plain))), float(np.median(np.abs(error))), inside, half, was


if __name__ == "__main__":
    logs()
    if sys.argv[1:]:
        runs(sys.argv[1:])

"""``benchmark.sh``: runs every layout of a short list for a few steps and prints measured beside predicted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.costmodel.problem import Problem
from shardwise.costmodel.strategy import Strategy
from shardwise.hardware_profiles.errors import InputError

from .base import Launcher
from .settings import LaunchSettings
from .shell import comment, file_of
from .short_run import ShortRun
from .slurm import hosts_of

SCRIPT = "benchmark.sh"
FOLDER = "candidates"
"""Holds one folder of launch files for each layout."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout to try. ``row`` is its line of a measured-runs file, with nulls where measurements belong."""

    strategy: Strategy
    predicted_s: float
    row: Mapping[str, Any]
    tuned: Mapping[str, int] = field(default_factory=dict)
    """Fields of ``LaunchSettings`` that a refinement found for this layout."""


def benchmark_files(
    launcher: Launcher, problem: Problem, candidates: Sequence[Candidate], settings: LaunchSettings | None = None
) -> dict[str, str]:
    """``benchmark.sh`` and under ``candidates/`` the launch files and ``run.json`` of every layout, by path.

    Raises InputError where the launcher cannot write one of the layouts, or has no way to run a few steps only.
    """
    if launcher.short_run is None:
        raise InputError(f"launcher {launcher.name!r} knows no way to run a few steps only: choose another launcher")
    settings = settings or LaunchSettings(train_iters=launcher.short_run.most)
    files: dict[str, str] = {}
    names = [_name(i, c.strategy) for i, c in enumerate(candidates, start=1)]
    for name, candidate in zip(names, candidates, strict=True):
        own = settings.tuned(launcher.tunable, candidate.tuned)
        for file, text in launcher.render(problem, candidate.strategy, own).items():
            files[f"{FOLDER}/{name}/{file}"] = text
        files[f"{FOLDER}/{name}/run.json"] = json.dumps(candidate.row) + "\n"
    nodes = hosts_of(problem, settings).nodes
    return {SCRIPT: _script(launcher, problem, names, candidates, nodes), **files}


def _name(index: int, s: Strategy) -> str:
    """A folder's name: ``2-tp8-pp4x5-mbs1``."""
    parts = [f"tp{s.tp}"]
    parts += [f"{key}{value}" for key, value in (("cp", s.cp), ("ep", s.ep)) if value > 1]
    parts += [f"pp{s.pp}" + (f"x{s.vpp}" if s.vpp > 1 else "")] if s.pp > 1 else []
    return "-".join([str(index), *parts, f"mbs{s.micro_batch_size}"])


def _words(s: Strategy) -> str:
    """The settings in which layouts of a short list differ, as ``shardwise estimate --strategy`` takes them."""
    names = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp", "micro_batch_size", "zero", "recompute")
    differ = {name: getattr(s, name) for name in names if getattr(s, name) != getattr(Strategy(), name)}
    layers = "" if s.layers_per_stage is None else ",layers=" + "/".join(map(str, s.layers_per_stage))
    text = ",".join(f"{name}={value}" for name, value in differ.items())
    return (text or "tp=1").replace("micro_batch_size", "mbs") + layers


def _script(
    launcher: Launcher, problem: Problem, names: Sequence[str], candidates: Sequence[Candidate], nodes: int
) -> str:
    short = launcher.short_run
    assert short is not None
    work = problem.workload
    head = (
        f"{problem.model.name} on {problem.cluster.num_gpus} x {problem.cluster.accelerator.name}, "
        f"{work.global_batch_size} sequences of {work.sequence_length} tokens a step: layouts whose predicted steps "
        f"lie within the error of each other. Runs each for a few steps with {launcher.title}, prints measured beside "
        "predicted, and writes runs.jsonl, which 'shardwise validate' reads."
    )
    blocks = ["#!/usr/bin/env bash\n" + comment(head) + "\n" + _USAGE, "set -euo pipefail\nexport LC_ALL=C"]
    blocks.append(_table(names, candidates))
    blocks.append(_settings(short, nodes))
    body = _BODY.replace("@STEP@", short.step).replace("@PEAK@", short.peak)
    return file_of([*blocks, body.replace("@ARGUMENTS@", " ".join(short.arguments))])


def _table(names: Sequence[str], candidates: Sequence[Candidate]) -> str:
    rows = [
        f"  {shlex.quote(name)} {c.predicted_s:.6g} '{_words(c.strategy)}'"
        for name, c in zip(names, candidates, strict=True)
    ]
    return "# Folder, predicted seconds of a step, layout.\nLAYOUTS=(\n" + "\n".join(rows) + "\n)"


def _settings(short: ShortRun, nodes: int) -> str:
    folders = "\n".join(f"absolute {name}" for name in short.folders)
    return _SETTINGS.replace("@NODES@", str(nodes)).replace("@FOLDERS@", folders).replace("@MOST@", str(short.most))


_USAGE = """\
#
#   bash benchmark.sh [ARGUMENT...]    arguments are passed on to the training script of every layout
#
#   START=bash      on this host; with several hosts run it on each, with NODE_RANK and MASTER_ADDR set
#   START=srun      inside a Slurm allocation;  START=sbatch submits one job after the other and waits for each
#   START=none      runs nothing, prints what the logs of earlier runs say
#   ITERATIONS=20   steps of each layout, of which the first WARMUP=5 are left out
#   ONLY="1 3"      some of the layouts, by number
#   TIMEOUT=1800    seconds after which a layout is given up (not with sbatch, which has a limit of its own)"""

_SETTINGS = r"""
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
LOGS="$HERE/logs"
NODES=@NODES@
ITERATIONS="${ITERATIONS:-20}"
WARMUP="${WARMUP:-5}"
TIMEOUT="${TIMEOUT:-1800}"
if [[ -n "${SLURM_JOB_ID:-}" ]]; then default=srun; else default=bash; fi
if [[ $default == bash && $NODES -gt 1 && -z "${NODE_RANK:-}" ]] && command -v sbatch >/dev/null; then
  default=sbatch
fi
START="${START:-$default}"

fail() { echo "benchmark.sh: $1" >&2; exit 2; }

[[ $ITERATIONS =~ ^[0-9]+$ && $WARMUP =~ ^[0-9]+$ && $TIMEOUT =~ ^[0-9]+$ ]] ||
  fail "ITERATIONS, WARMUP and TIMEOUT: expected whole numbers"
((ITERATIONS <= @MOST@)) || fail "ITERATIONS=$ITERATIONS: expected @MOST@ at most, the steps of launch.sh"
((WARMUP < ITERATIONS)) || fail "WARMUP=$WARMUP: expected fewer than the $ITERATIONS steps"
[[ $START =~ ^(bash|srun|sbatch|none)$ ]] || fail "START=$START: expected bash, srun, sbatch or none"
absolute() {  # absolute NAME: jobs start in other folders
  local path="${!1:-.}"
  [[ -d $path ]] || fail "$1=$path: no such folder"
  printf -v "$1" '%s' "$(cd "$path" && pwd)"
  export "${1?}"
}
@FOLDERS@
""".strip()

_BODY = r"""
wanted() {  # wanted NUMBER: whether ONLY asks for it
  [[ -z "${ONLY:-}" || " $ONLY " == *" $1 "* ]]
}

run() {  # run FOLDER LOG ARGUMENT...: the few steps of one layout, its output in LOG
  local folder=$1 log=$2
  shift 2
  set -- "$@" @ARGUMENTS@
  case $START in
    bash) timeout -k 30 "$TIMEOUT" bash "$folder/launch.sh" "$@" >"$log" 2>&1 ;;
    srun) (cd "$folder" && SLURM_SUBMIT_DIR="$folder" timeout -k 30 "$TIMEOUT" bash sbatch.sh "$@") >"$log" 2>&1 ;;
    sbatch) (cd "$folder" && sbatch --wait --output="$log" sbatch.sh "$@") ;;
  esac
}

step_times() {  # step_times LOG: seconds of every step after the warm-up
  sed -n -E 's/.*@STEP@.*/\1 \2/p' "$1" | awk -v skip="$WARMUP" 'NR > skip { print ($1 == "ms" ? $2 / 1000 : $2) }'
}

median() {
  sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.6g", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

peak_gb() {  # peak_gb LOG: the fullest rank's allocator, in 10^9 bytes
  { grep -a -o -E '@PEAK@' "$1" || true; } |
    awk '{ if ($NF + 0 > most) most = $NF + 0 } END { if (most) printf "%.3f", most * 1.048576 / 1000 }'
}

ran_out() { grep -a -q -i -E 'out of ?memory' "$1"; }

mkdir -p "$LOGS"
for ((i = 0; i < ${#LAYOUTS[@]}; i += 3)); do
  number=$((i / 3 + 1)) name=${LAYOUTS[i]}
  if [[ $START == none ]] || ! wanted "$number"; then continue; fi
  echo "benchmark.sh: $name, $ITERATIONS steps with $START ..." >&2
  if run "$HERE/candidates/$name" "$LOGS/$name.log" "$@"; then continue; fi
  echo "benchmark.sh: $name did not finish: see $LOGS/$name.log" >&2
done

if [[ $START == bash && -n "${NODE_RANK:-}" && ${NODE_RANK} -ne $((NODES - 1)) ]]; then
  echo "benchmark.sh: the last host, NODE_RANK=$((NODES - 1)), has the step times" >&2
  exit 0
fi

measured=0 best="" best_name=""
runs="$(mktemp "$HERE/.runs.XXXXXX")"
trap 'rm -f "$runs"' EXIT
printf '%-28s %12s %12s %8s %6s %9s  %s\n' folder predicted measured error steps "peak GB" layout
for ((i = 0; i < ${#LAYOUTS[@]}; i += 3)); do
  name=${LAYOUTS[i]} predicted=${LAYOUTS[i + 1]} words=${LAYOUTS[i + 2]} log="$LOGS/${LAYOUTS[i]}.log"
  [[ -f $log ]] || continue
  step="$(step_times "$log" | median)" count="$(step_times "$log" | wc -l)" peak="$(peak_gb "$log")"
  if [[ -n $step ]]; then
    measured=$((measured + 1)) oom=false shown="$step s"
    error="$(awk -v p="$predicted" -v m="$step" 'BEGIN { printf "%+.1f%%", 100 * (p / m - 1) }')"
    if [[ -z $best ]] || awk -v a="$step" -v b="$best" 'BEGIN { exit !(a < b) }'; then best=$step best_name=$name; fi
  elif ran_out "$log"; then
    oom=true shown="no memory" error=""
  else
    oom=null shown=failed error=""
  fi
  printf '%-28s %12s %12s %8s %6d %9s  %s\n' "$name" "$predicted s" "$shown" "$error" "$count" "${peak:--}" "$words"
  [[ $oom != null ]] || continue
  sed -e "s/\"step_time_s\": null/\"step_time_s\": ${step:-null}/g" -e "s/\"oom\": null/\"oom\": $oom/" \
    -e "s/\"peak_memory_gb\": null/\"peak_memory_gb\": ${peak:-null}/" "$HERE/candidates/$name/run.json" >>"$runs"
done
chmod a+r "$runs"
mv "$runs" "$HERE/runs.jsonl"
((measured)) || { echo "benchmark.sh: no layout was measured: see $LOGS" >&2; exit 1; }
echo "quickest: $best_name, $best s a step; measurements in $HERE/runs.jsonl"
""".strip()

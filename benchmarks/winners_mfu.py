"""MFU of plans on the shipped hardware beside the highest that anybody has published on that accelerator.

``python benchmarks/winners_mfu.py [RUNS.jsonl]``: measured runs in the format of ``shardwise validate`` (default: those
of the tests). A plan above every published run of its accelerator, precision and kind of model is marked ``!``: where
it is far above, some term of the cost model may be too hopeful there. About a minute on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import shardwise
from shardwise.costmodel.estimate import estimate
from shardwise.costmodel.model import ModelSpec
from shardwise.costmodel.validation import ReadRow, read_rows

RUNS = Path(__file__).parent.parent / "tests" / "data" / "runs" / "published_subset.jsonl"

SAME_DIE = {
    "H800-SXM": "H100-SXM5-80GB",
    "GH200": "H100-SXM5-80GB",
    "A800-SXM4-80GB": "A100-SXM4-80GB",
    "A100-SXM4-40GB": "A100-SXM4-80GB",
}
"""Accelerators whose tensor cores are another's: its runs count for them where they have none."""

CASES = (
    ("gpt-3-175b", "dgx-a100", 1024, 1536, 2048, "bf16"),
    ("llama-2-70b", "dgx-a100", 256, 512, 4096, "bf16"),
    ("llama-2-13b", "a800-8x200g", 64, 256, 4096, "bf16"),
    ("mixtral-8x7b", "dgx-a100", 64, 256, 4096, "bf16"),
    ("llama-3.1-8b", "dgx-h100", 64, 256, 8192, "bf16"),
    ("llama-3.1-70b", "dgx-h100", 512, 1024, 8192, "bf16"),
    ("llama-3.1-405b", "llama3-24k-roce", 16384, 2048, 8192, "bf16"),
    ("llama-3.1-70b", "dgx-h100", 256, 256, 8192, "fp8"),
    ("mixtral-8x22b", "dgx-h100", 128, 256, 4096, "bf16"),
    ("qwen3-30b-a3b", "dgx-h100", 64, 512, 4096, "bf16"),
    ("deepseek-v3", "dgx-h100", 1024, 8192, 4096, "fp8"),
    ("deepseek-v3", "h800-mpft", 2048, 15360, 4096, "fp8"),
    ("minimax-m1", "dgx-h800", 512, 1024, 8192, "bf16"),
    ("llama-3.1-70b", "aws-p5en", 256, 512, 8192, "bf16"),
    ("qwen2.5-72b", "h20-8x400g", 256, 512, 4096, "bf16"),
    ("llama-3.1-405b", "dgx-b200", 512, 1024, 8192, "bf16"),
    ("llama-3.1-70b", "gb200-nvl72", 256, 512, 8192, "bf16"),
    ("llama-3.1-405b", "gb200-nvl72", 256, 256, 8192, "fp8"),
    ("deepseek-v3", "gb200-nvl72", 256, 2048, 4096, "mxfp8"),
    ("llama-3.1-405b", "gb300-nvl72", 256, 256, 8192, "mxfp8"),
    ("llama-3.1-70b", "mi300x-8x400g", 64, 256, 8192, "bf16"),
    ("llama-3.1-8b", "mi355x-8x400g", 8, 128, 8192, "bf16"),
    ("llama-2-70b", "tpu-v5p", 512, 1024, 4096, "bf16"),
    ("mixtral-8x7b", "tpu-v5p", 256, 1024, 4096, "bf16"),
    ("mixtral-8x22b", "tpu-v5p", 256, 512, 4096, "bf16"),
    ("llama-3.1-70b", "tpu-v6e", 256, 512, 8192, "bf16"),
    ("mixtral-8x22b", "tpu-v6e", 256, 512, 4096, "bf16"),
    ("llama-2-70b", "gaudi2-hls2", 512, 1024, 4096, "bf16"),
    ("llama-3.1-70b", "trn2-efa", 256, 512, 8192, "bf16"),
    ("gpt-3-175b", "jean-zay-v100", 512, 1024, 2048, "fp16"),
)
"""Model, system, accelerators, sequences of a step, tokens of a sequence, precision."""

Key = tuple[str, str, str]

_TIERS = "MaxText 0.2, optimized models tiering (maxtext.readthedocs.io), MFU as stated there"
STATED: dict[Key, tuple[float, str, str]] = {
    ("TPUv5p", "bf16", "dense"): (0.654, "Llama 2 70B, 512 chips, 4,096 tokens", _TIERS),
    ("TPUv5p", "bf16", "moe"): (
        0.5489, "Mixtral 8x7B, v5p-128", "MaxText end_to_end/tpu/mixtral/Run_Mixtral.md, MFU as stated there",
    ),
    ("TPUv6e", "bf16", "dense"): (0.5033, "Llama 3.1 70B, 256 chips, 8,192 tokens", _TIERS),
    ("TPUv6e", "bf16", "moe"): (0.362, "Mixtral 8x22B, 256 chips, 4,096 tokens", _TIERS),
}  # fmt: skip
"""Utilisations that a source states without a step time, where no run of the file tells more."""


@dataclass(frozen=True)
class Record:
    """The published run with the highest MFU of its kind."""

    mfu: float
    row_id: str
    title: str
    runs: int


def kind_of(model: ModelSpec) -> str:
    """Dense models and mixtures are told apart: their utilisation differs by far."""
    return "moe" if model.is_moe else "dense"


def measured_mfu(entry: ReadRow) -> tuple[Key, float] | None:
    """What the run's measured step makes of the accelerator's peak, FLOPs counted as plans count them."""
    step_s, inputs = entry.row.get("step_time_s"), entry.inputs
    if inputs is None or not step_s or entry.row.get("suspect"):
        return None
    e, p = estimate(inputs.problem, inputs.strategy), inputs.problem
    key = (p.cluster.accelerator.name, p.gemm_dtype, kind_of(p.model))
    return key, e.mfu * e.step_time_s / float(step_s)


def records(entries: Iterable[ReadRow]) -> dict[Key, Record]:
    """The best run of each accelerator, precision and kind of model."""
    best: dict[Key, Record] = {}
    for entry in entries:
        if (found := measured_mfu(entry)) is None:
            continue
        key, mfu = found
        before = best.get(key)
        runs = before.runs + 1 if before else 1
        title = str(entry.row["source"].get("title", "not stated"))
        best[key] = (
            Record(mfu, entry.row_id, title, runs)
            if before is None or mfu > before.mfu
            else Record(before.mfu, before.row_id, before.title, runs)
        )
    return best


def line(case: tuple[str, str, int, int, int, str], best: dict[Key, Record]) -> str:
    """One plan and the record it is held against."""
    model, system, gpus, batch, sequence, dtype = case
    workload = shardwise.Workload(batch, sequence, dtype=dtype)
    try:
        plan = shardwise.plan(model, system, workload, num_gpus=gpus, time_limit_s=20.0, refine_trials=0)
    except shardwise.ShardwiseError as error:
        return f"  {model:15} {system:16} {gpus:6} {dtype:6} no plan: {str(error)[:90]}"
    p = plan.problem
    name = p.cluster.accelerator.name
    record = next(
        (
            best[key]
            for device in (name, SAME_DIE.get(name, name))
            if (key := (device, p.gemm_dtype, kind_of(p.model))) in best
        ),
        None,
    )
    mark = "!" if record and plan.estimate.mfu > record.mfu else " "
    held = "nothing published" if record is None else f"{record.mfu:5.1%} of {record.runs:3}  {record.row_id}"
    return f"{mark} {model:15} {system:16} {gpus:6} {dtype:6} {plan.estimate.mfu:6.1%}  {held}  [{p.runtime.name}]"


def main() -> None:
    """Print the table."""
    stated = {key: Record(mfu, run, source, 1) for key, (mfu, run, source) in STATED.items()}
    best = {**stated, **records(read_rows(sys.argv[1] if len(sys.argv) > 1 else RUNS))}
    print("  model           system             GPUs dtype    plan   published (highest, of so many runs)")
    for case in CASES:
        print(line(case, best), flush=True)
    titles = sorted({f"{r.row_id}: {r.title}" for r in best.values()})
    print("\nPublished runs named above:\n" + "\n".join(titles))


if __name__ == "__main__":
    main()

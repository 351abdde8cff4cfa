"""Seven published training layouts beside what shardwise plans for the same model, cluster and batch.

``python benchmarks/published_layouts.py > docs/cases.md`` writes the page; about half a minute on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import shardwise
from shardwise.costmodel.strategy import Strategy

HEADER = """# Published layouts, and what shardwise plans instead

Each row: a layout that somebody published, estimated by the cost model, and the plan for the same model, cluster, batch
and sequence under the same runtime profile. A measured step is given where the source states one for this very run; the
plan's own step is a prediction. `python benchmarks/published_layouts.py` writes this page.

| model and cluster | layout | step | memory | MFU |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Case:
    title: str
    model: str
    cluster: str
    num_gpus: int
    batch: int
    sequence: int
    layout: str
    source: str
    dtype: str = "bf16"
    optimizer: str = "adam"
    runtime: str | None = None
    measured_s: float | None = None
    remark: str = ""


CASES = (
    Case(
        "Llama 3.1 70B, 512 H100, 1,024 x 8,192 tokens",
        "llama-3.1-70b",
        "dgx-h100",
        512,
        1024,
        8192,
        "tp=4,sp=on,pp=4,vpp=5,schedule=interleaved,cp=2,mbs=1,zero=1,tp_overlap=on",
        "DGX Cloud benchmarking, Llama 3 70B on 512 H100, release 25.04.02",
        measured_s=14.67,
    ),
    Case(
        "GPT-3 175B, 1,024 A100, 1,536 x 2,048 tokens",
        "gpt-3-175b",
        "dgx-a100",
        1024,
        1536,
        2048,
        "tp=8,sp=off,pp=16,mbs=1,zero=0,recompute=full,dp_overlap=off",
        "Megatron-LM examples/gpt3 (175B: tensor 8, pipeline 16, micro-batch 1) and its README (about 32 s)",
        measured_s=32.0,
        remark="The published run used the software of 2021 (unfused attention, nothing overlapped); the estimate "
        "is for megatron-core",
    ),
    Case(
        "Mixtral 8x22B, 128 H100, 256 x 4,096 tokens",
        "mixtral-8x22b",
        "dgx-h100",
        128,
        256,
        4096,
        "tp=2,sp=on,pp=8,vpp=7,schedule=interleaved,ep=8,etp=1,mbs=1,zero=1,tp_overlap=off",
        "MoE parallel folding (arXiv 2504.14960), table 3, folded layout; micro-batch and virtual stages not stated",
        measured_s=4.19,
    ),
    Case(
        "DeepSeek-V3, 2,048 H800, 15,360 x 4,096 tokens",
        "deepseek-v3",
        "h800-mpft",
        2048,
        15360,
        4096,
        "tp=1,pp=16,schedule=dualpipe,ep=64,mbs=1,zero=1,recompute=selective,ep_overlap=on",
        "DeepSeek-V3 technical report (arXiv 2412.19437), section 3.2: PP 16, EP 64, ZeRO-1, DualPipe; 180 K GPU-hours "
        "per trillion tokens give 19.9 s",
        dtype="fp8",
        optimizer="adam_bf16_moments",
        runtime="megatron-core-deepep",
        measured_s=19.9,
        remark="DualPipe is beyond Megatron-Core, so the plan competes without it; Adam's moments are BF16, as in the "
        "report (section 3.3.3), which also keeps FP8 copies of activations that the estimate counts in BF16",
    ),
    Case(
        "Qwen3 235B-A22B, 256 H200, 2,048 x 4,096 tokens",
        "qwen3-235b-a22b",
        "dgx-h200",
        256,
        2048,
        4096,
        "tp=2,sp=on,pp=8,vpp=4,schedule=interleaved,ep=32,etp=1,mbs=1,zero=1,recompute=selective,tp_overlap=off",
        "Megatron-MoE-ModelZoo, Qwen3-235B-A22B, published for H100 with DeepEP",
        runtime="megatron-core-deepep",
    ),
    Case(
        "Llama 3.1 405B, 8,192 H100, 64 x 131,072 tokens",
        "llama-3.1-405b",
        "llama3-24k-roce",
        8192,
        64,
        131072,
        "tp=8,sp=on,cp=16,cp_comm=all_gather,pp=16,vpp=4,schedule=interleaved,mbs=1,zero=1,tp_overlap=off",
        "Llama 3 (arXiv 2407.21783), table 4: TP 8, CP 16, PP 16 for 131,072 tokens on 16,384 H100 (DP 8 there, 4 "
        "here); virtual stages not stated",
    ),
    Case(
        "BLOOM 176B, 384 A100, 2,048 x 2,048 tokens",
        "bloom-176b",
        "jean-zay-a100",
        384,
        2048,
        2048,
        "tp=4,pp=12,mbs=2,zero=1,recompute=full,dp_overlap=off",
        "BLOOM (arXiv 2211.05100) and the BigScience chronicles: tensor 4, pipeline 12, micro-batch 2",
        measured_s=102.0,
    ),
)


def short(s: Strategy) -> str:
    """A layout in a few words."""
    words = [f"TP {s.tp}" + (" + SP" if s.sp else "")]
    words += [f"CP {s.cp}"] if s.cp > 1 else []
    words += [f"PP {s.pp}" + (f" x {s.vpp}" if s.vpp > 1 else "") + f" ({s.schedule})"] if s.pp > 1 else []
    words += [f"EP {s.ep}"] if s.ep > 1 else []
    words += [f"DP {s.dp}", f"ZeRO-{s.zero}", f"micro-batch {s.micro_batch_size} x {s.num_microbatches}"]
    words += ["no recompute" if s.recompute == "none" else f"{s.recompute} recompute"]
    return ", ".join(words)


def row(title: str, layout: str, estimate: shardwise.Estimate, measured_s: float | None = None) -> str:
    """One line of the table."""
    step = f"{estimate.step_time_s:.1f} s" + (f" (measured {measured_s:.1f} s)" if measured_s else "")
    gib = f"{estimate.peak_memory_bytes / 2**30:.0f} GiB" + ("" if estimate.fits else ", over the limit")
    return f"| {title} | {layout} | {step} | {gib} | {100 * estimate.mfu:.1f} % |"


def main() -> None:
    """Print the page."""
    print(HEADER)
    notes = []
    for number, case in enumerate(CASES, 1):
        workload = shardwise.Workload(case.batch, case.sequence, dtype=case.dtype, optimizer=case.optimizer)
        cluster = shardwise.load_cluster(case.cluster, case.num_gpus)
        plan = shardwise.plan(case.model, cluster, workload, runtime=case.runtime)
        problem = plan.estimate.problem
        layout = Strategy.parse(case.layout).with_batch(case.num_gpus, case.batch)
        published = shardwise.estimate(case.model, cluster, workload, layout, runtime=problem.runtime)
        print(row(f"{number}. {case.title}: published", short(layout), published, case.measured_s))
        print(row(f"{number}. shardwise", short(plan.estimate.strategy), plan.estimate))
        notes.append(f"{number}. {case.source}." + (f" {case.remark}." if case.remark else ""))
    print("\n## Sources and remarks\n")
    print("\n".join(notes))


if __name__ == "__main__":
    main()

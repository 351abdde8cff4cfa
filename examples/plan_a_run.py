"""A training launcher that plans before it starts: the layout, what it costs, and the launch files in a folder.

python plan_a_run.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import shardwise


def main() -> None:
    """Plan Llama-3.1-8B on 64 GPUs and write the launch files."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "job")
    plan = shardwise.plan(
        "llama-3.1-8b", "dgx-h100", shardwise.Workload(global_batch_size=256, sequence_length=8192), num_gpus=64
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plan.launch().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{folder / name}: {len(text.splitlines())} lines")
    s = plan.strategy
    print(f"tp={s.tp} cp={s.cp} pp={s.pp} dp={s.dp} mbs={s.micro_batch_size}: {plan.step_time_s:.2f} s per step")


if __name__ == "__main__":
    main()

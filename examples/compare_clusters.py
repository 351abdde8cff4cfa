"""The same run on several clusters: step time of the best layout on each."""

from __future__ import annotations

import shardwise

CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-h200")


def main() -> None:
    """Plan Mixtral-8x7B on 128 accelerators of each cluster."""
    workload = shardwise.Workload(global_batch_size=256, sequence_length=4096)
    for name in CLUSTERS:
        try:
            plan = shardwise.plan("mixtral-8x7b", name, workload, num_gpus=128, refine_trials=0)
        except shardwise.InfeasibleError as error:
            print(f"{name:<10} {error}")
            continue
        s = plan.strategy
        layout = f"tp={s.tp} cp={s.cp} pp={s.pp} ep={s.ep} dp={s.dp} zero={s.zero}"
        print(f"{name:<10} {plan.step_time_s:6.2f} s  {plan.estimate.mfu:6.1%} MFU  {layout}")


if __name__ == "__main__":
    main()

"""A strategy in the words of the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .units import plural

if TYPE_CHECKING:
    from shardwise.costmodel.strategy import Strategy

_CP_WORDS = {"p2p": "ring", "all_gather": "all-gather", "a2a": "Ulysses", "a2a+p2p": "Ulysses × ring"}
_SCHEDULE_WORDS = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "zb-v": "ZB-V",
    "dualpipe": "DualPipe",
}


def layout(strategy: Strategy, moe: bool = False) -> str:
    """``TP 8 + SP · CP 2 (ring) · PP 8 × VPP 3 (interleaved 1F1B) · DP 4 · ZeRO-1 · micro-batch 1 × 64 · …``."""
    words = [f"TP {strategy.tp}{' + SP' if strategy.sp else ''}"]
    words.append(f"CP {strategy.cp}{_context(strategy)}")
    words.append(f"PP {strategy.pp}{_pipeline(strategy)}")
    words.append(f"DP {strategy.dp}")
    if moe or strategy.ep > 1:
        words.append(f"EP {strategy.ep} × ETP {strategy.etp} (EDP {strategy.edp})")
    words.append(_sharding(strategy))
    words.append(f"micro-batch {strategy.micro_batch_size} × {strategy.num_microbatches}")
    words.append(recompute(strategy))
    if _reordered(strategy):
        words.append(f"ranks {strategy.rank_order}")
    if strategy.offload_activations:
        words.append("activations on the host")
    if strategy.offload_optimizer:
        words.append(f"{strategy.offload_optimizer:.0%} of the optimizer on the host")
    return " · ".join(words)


def short_layout(strategy: Strategy, moe: bool = False) -> str:
    """One table cell: ``TP8 CP1 PP4×5 DP16 ZeRO-1 mbs 1 selective``."""
    virtual = f"×{strategy.vpp}" if strategy.vpp > 1 else ""
    expert = f" EP{strategy.ep}" + (f" ETP{strategy.etp}" if strategy.etp > 1 else "") if moe or strategy.ep > 1 else ""
    context = f" CP{strategy.cp}" if strategy.cp > 1 else ""
    host = f" {strategy.offload_optimizer:.0%} offload" if strategy.offload_optimizer else ""
    order = f" {strategy.rank_order}" if _reordered(strategy) else ""
    return (
        f"TP{strategy.tp}{'+SP' if strategy.sp else ''}{context} PP{strategy.pp}{virtual} DP{strategy.dp}{expert} "
        f"{_sharding(strategy)} mbs {strategy.micro_batch_size} {recompute(strategy)}{host}{order}"
    )


def recompute(strategy: Strategy) -> str:
    """``no recompute``, ``selective recompute``, ``full recompute of 3/3/2/2 layers``."""
    if strategy.recompute != "full":
        return f"{'no' if strategy.recompute == 'none' else strategy.recompute} recompute"
    if strategy.recompute_per_stage is not None:
        return f"full recompute of {split(strategy.recompute_per_stage)} layers"
    if strategy.recompute_layers >= 0:
        return f"full recompute of {plural(strategy.recompute_layers, 'layer')} per rank"
    return "full recompute"


def overlaps(strategy: Strategy) -> str:
    """Which traffic is hidden under compute: ``DP``, ``TP, DP``, ``none``."""
    kinds = [("TP", strategy.tp_overlap), ("DP", strategy.dp_overlap), ("EP", strategy.ep_overlap)]
    return ", ".join(name for name, on in kinds if on) or "none"


def split(layers: tuple[int, ...]) -> str:
    """Layers per stage with repeats folded: ``7, 8 × 14, 7``."""
    folded: list[list[int]] = []
    for number in layers:
        if folded and folded[-1][0] == number:
            folded[-1][1] += 1
        else:
            folded.append([number, 1])
    return ", ".join(f"{n} × {times}" if times > 1 else f"{n}" for n, times in folded)


def _context(strategy: Strategy) -> str:
    if strategy.cp == 1:
        return ""
    words = _CP_WORDS[strategy.cp_comm]
    inner = f" {strategy.ulysses} × {strategy.cp // strategy.ulysses}" if strategy.cp_comm == "a2a+p2p" else ""
    return f" ({words}{inner})"


def _pipeline(strategy: Strategy) -> str:
    if strategy.pp == 1:
        return ""
    virtual = f" × VPP {strategy.vpp}" if strategy.vpp > 1 else ""
    return f"{virtual} ({_SCHEDULE_WORDS[strategy.schedule]})"


def _sharding(strategy: Strategy) -> str:
    name = "FSDP (ZeRO-3)" if strategy.zero == 3 else f"ZeRO-{strategy.zero}" if strategy.zero else "no ZeRO"
    return f"{name} in groups of {strategy.zero_group}" if strategy.zero_group else name


def _reordered(strategy: Strategy) -> bool:
    """Whether ranks stand in another order than the usual one."""
    from shardwise.costmodel.strategy import RANK_ORDERS  # brings numpy, which a command loads when it runs

    return strategy.rank_order != RANK_ORDERS[0]

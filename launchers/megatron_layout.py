"""Which layers Megatron-Core gives each virtual stage, from the options that say so."""

from __future__ import annotations

import re

from shardwise.hardware_profiles.errors import InputError

from .flag_reader import FlagReader

Split = tuple[int, ...]

_FIRST, _LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
_EMBEDDING, _LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
_PER_CHUNK, _CHUNKS = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
_LAYOUT = "pipeline-model-parallel-layout"
MOST_STAGES = 10_000


def read_split(flags: FlagReader, num_layers: int, pp: int) -> tuple[int, Split | None]:
    """Virtual stages per rank, and the layers of each in model order; None where every stage holds the same.

    Raises InputError naming the option where the layers do not divide as Megatron asks.
    """
    if flags.has(_LAYOUT):
        return _from_layout(flags, num_layers, pp)
    embedding, loss = int(flags.switch(_EMBEDDING)), int(flags.switch(_LOSS))
    vpp = _virtual_stages(flags, num_layers + embedding + loss, pp)
    held = _held(flags, num_layers, pp, embedding, loss)
    if any(n % vpp for n in held):
        raise flags.fail(_CHUNKS if flags.has(_CHUNKS) else _PER_CHUNK, f"a divisor of the layers of a rank, {held}")
    split = [n // vpp for n in held] * vpp
    split[0] -= embedding
    split[-1] -= loss
    if min(split) < 0:
        raise flags.fail(_EMBEDDING if split[0] < 0 else _LOSS, "a stage that holds a layer")
    return vpp, None if len(set(split)) == 1 else tuple(split)


def _virtual_stages(flags: FlagReader, slots: int, pp: int) -> int:
    if flags.has(_CHUNKS):
        return flags.integer(_CHUNKS) or 1
    per_chunk = flags.integer(_PER_CHUNK)
    if per_chunk is None:
        return 1
    if slots % pp or slots // pp % per_chunk:
        raise flags.fail(_PER_CHUNK, f"a divisor of the {slots}/{pp} layers of a pipeline rank")
    return slots // pp // per_chunk


def _held(flags: FlagReader, num_layers: int, pp: int, embedding: int, loss: int) -> list[int]:
    """Slots of each rank: its layers, and those that stand for the embedding and the loss."""
    first, last = flags.integer(_FIRST), flags.integer(_LAST)
    if first is None and last is None:
        slots = num_layers + embedding + loss
        if slots % pp:
            counted = " with the embedding and the loss" if embedding or loss else ""
            raise flags.fail("pipeline-model-parallel-size", f"a divisor of {slots} layers{counted}, or a layout")
        return [slots // pp] * pp
    if embedding or loss:
        raise flags.fail(_FIRST if first is not None else _LAST, f"no --{_EMBEDDING if embedding else _LOSS} beside it")
    rest, stages = num_layers - (first or 0) - (last or 0), pp - (first is not None) - (last is not None)
    if rest < 0 or (rest % stages if stages > 0 else rest):
        raise flags.fail(_FIRST if first is not None else _LAST, f"a count that leaves {stages} stages equal layers")
    middle = [rest // stages] * stages if stages > 0 else []
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _from_layout(flags: FlagReader, num_layers: int, pp: int) -> tuple[int, Split | None]:
    text = flags.word(_LAYOUT, "")
    stages = expand_layout(text)
    if stages is None:
        raise flags.fail(_LAYOUT, "stages of E, t, m and L between |, such as Et*2|t*4|t*2L")
    if len(stages) % pp:
        raise flags.fail(_LAYOUT, f"a multiple of {pp} stages (the pipeline size), not {len(stages)}")
    split = tuple(stage.count("t") for stage in stages)
    if sum(split) != num_layers:
        raise flags.fail(_LAYOUT, f"{num_layers} layers t, not {sum(split)}")
    if "m" in "".join(stages[:-1]):
        flags.notes.append(f"{flags.where(_LAYOUT)}: multi-token prediction is counted on the last stage")
    return len(stages) // pp, None if len(set(split)) == 1 else split


def expand_layout(text: str) -> list[str] | None:
    """The stages of a layout string: ``Et*2|(t|)*2L`` is ``["Ett", "t", "t", "L"]``; None for another text."""
    flat = text.replace(",", "").replace(" ", "")
    if not re.fullmatch(r"[EtmL|()*\d]{1,20000}", flat):
        return None
    for pattern in (r"\(([^()]+)\)\*(\d{1,5})", r"([EtmL|])\*(\d{1,5})"):
        if sum(len(m.group(1)) * int(m.group(2)) for m in re.finditer(pattern, flat)) > 20 * MOST_STAGES:
            raise InputError(f"--{_LAYOUT} = {text[:60]!r}: expected at most {MOST_STAGES} stages")
        flat = re.sub(pattern, lambda m: m.group(1) * int(m.group(2)), flat)
    return flat.split("|") if re.fullmatch(r"[EtmL|]+", flat) else None

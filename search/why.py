"""Why each dimension is what it is: the price of the next value up and down, everything else chosen anew."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.costmodel.estimate import Estimate, estimate
from shardwise.costmodel.evaluate import capacity_bytes
from shardwise.costmodel.problem import Array, Ints
from shardwise.costmodel.strategy import ENUMS, RANK_ORDERS, Strategy, enum_code
from shardwise.hardware_profiles.errors import InputError
from shardwise.launchers.rule import divisors, violations

from .axes import SWITCHES, offered_names
from .bounds import room_for_layers, split_bounds
from .closing import best_split
from .exact import Found, take_opened
from .opening import Candidates, Opened, can_fit, evaluate_chunked, open_candidates
from .plan import Binding, Notch
from .proof import TOLERANCE, Clock

_MESH = ("tp", "cp", "pp", "ep", "micro_batch_size", "vpp", "etp", "zero_group")
_CHOICES = ("sp", "cp_comm", "zero", "schedule", "rank_order")
_MODES = ("recompute", "offload_optimizer", "offload_activations")

_LOOK = 16
"""Candidates opened for each price: those of the least bounds that have room for their layers."""

_MOST_EVIDENCE = 1024
"""Opened strategies looked at for prices, at most: those of the least bounds."""

_WORTH_SOLVING = 0.01
"""CP-SAT is asked for a price's layer split where it may shorten the step by this share."""

_MOST_SPLITS = 3
"""Layer splits solved for prices, at most: the mesh first. Prices beyond are those of even splits."""

_FAR = 4.0
"""A split is not looked for when its step would be so many times the best one's: even splits do for such prices."""

_SPLIT_GAP = 0.005
"""How close to the best those splits are."""

_MOST_LOOKED = 8192
"""Candidates looked at for a value of which nothing was found to fit, at most: those of the least memory."""

_FURTHER = 256
"""Of those, the ones opened: those of the least bounds among what fits at its lightest."""

_GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class _Question:
    dimension: str
    other: Any
    rows: Ints
    """Candidates with the other value, by bound."""


@dataclass(slots=True)
class _Evidence:
    """What was opened to answer the questions, with bounds over splits, and the splits solved so far."""

    opened: Opened
    tight_s: Array
    """A step that no split of each undercuts, infinite where none fits."""
    misfits: Ints
    """Candidates that no setting and no split can make fit."""
    clock: Clock
    solved: dict[Strategy, Estimate | None]


def reasons(found: Found, best: Estimate, clock: Clock | None = None) -> tuple[Notch, ...]:
    """The price of one notch in each direction of every dimension, in the order of their importance.

    Once the clock's limit has passed no layer split is solved for a price.
    """
    questions = _questions(found, best.strategy)
    evidence = _gather(found, best, [q.rows for q in questions], clock or Clock(None))
    notches = [_answer(found, best, q, evidence) for q in questions]
    notches += [_mode_notch(found, best, *choice) for choice in _mode_choices(found, best.strategy)]
    switches = [_switch_notch(found, best, name) for name in SWITCHES]
    if not any(q.dimension == "rank_order" for q in questions):
        switches.append(_order_notch(found, best))
    order = {name: i for i, name in enumerate((*_MESH, *_CHOICES, *_MODES, *SWITCHES))}
    return tuple(sorted((n for n in (*notches, *switches) if n is not None), key=lambda n: order[n.dimension]))


# ---- what to ask


def _questions(found: Found, s: Strategy) -> list[_Question]:
    out = []
    for name in (*_MESH, *_CHOICES):
        column = getattr(found.candidates.strategies, name)
        for other in _others(found, s, name):
            code = enum_code(name, other) if name in ENUMS else other
            rows = np.flatnonzero(column == code)
            out.append(_Question(name, other, rows[np.argsort(found.candidates.bound_s[rows], kind="stable")]))
    return out


def _others(found: Found, s: Strategy, name: str) -> list[Any]:
    """The neighbours of a degree, or every other value of a choice, as far as they mean anything here."""
    value = getattr(s, name)
    present = np.unique(getattr(found.candidates.strategies, name)).tolist()
    if name in ENUMS:
        names = [ENUMS[name][int(c)] for c in present]
        return [] if name == "cp_comm" and s.cp == 1 else [n for n in names if n != value and _applies(s, name, n)]
    if name in _CHOICES:
        return [v for v in present if v != value and _applies(s, name, v)]
    if name == "zero_group" and value == 0:
        return [v for v in present if v > 0][-1:] if s.zero else []
    lower, upper = [v for v in present if v < value], [v for v in present if v > value]
    beyond = _beyond(found, name, value) if not upper else []
    return [*lower[-1:], *upper[:1], *beyond]


def _applies(s: Strategy, name: str, value: Any) -> bool:
    if name == "sp":
        return s.tp > 1
    if name == "schedule":
        return s.pp > 1
    return True


def _beyond(found: Found, name: str, value: int) -> list[int]:
    """The next value of a degree that the space does not hold, to say what keeps it out."""
    problem = found.problem
    whole = {"ep": problem.cluster.num_gpus, "micro_batch_size": problem.workload.global_batch_size}
    if (name == "ep" and not problem.model.is_moe) or name in ("etp", "vpp", "zero_group"):
        return []
    return [d for d in divisors(whole.get(name, problem.cluster.num_gpus)) if d > value][:1]


# ---- answering


def _gather(found: Found, best: Estimate, groups: list[Ints], clock: Clock) -> _Evidence | None:
    """Open the most promising candidates of every question at once."""
    c = found.candidates
    known = _marked(c, [o.parent for o in found.opened])
    likely = [_likely(found, rows, known) for rows in groups]
    every = roomy = np.flatnonzero(_marked(c, likely))
    if len(every):
        roomy = every[can_fit(found.space, c.strategies.take(every))]
        room = _marked(c, [roomy])
        chosen = np.flatnonzero(_marked(c, [rows[room[rows]][:_LOOK] for rows in likely]))
        take_opened(found, open_candidates(found.space, c, chosen))
    if not found.opened:
        return None
    opened = Opened.concatenate(found.opened)
    opened = opened.take(_marked(c, groups)[opened.parent])
    opened = opened.take(np.argsort(opened.bound_s, kind="stable"))
    return _Evidence(opened, _floors(found, opened, 2.0 * best.step_time_s), np.setdiff1d(every, roomy), clock, {})


def _floors(found: Found, opened: Opened, limit_s: float) -> Array:
    """A step that no split of each opened strategy undercuts; above the limit only the limit is sure."""
    floors = opened.bound_s.copy()
    head = opened.take(np.arange(min(len(opened), _MOST_EVIDENCE)))
    floors[: len(head)] = split_bounds(found.problem, head.strategies, head.bound_s, limit_s).bound_s
    finite = np.isfinite(floors)
    floors[finite] = np.maximum(np.minimum(floors[finite], limit_s), opened.bound_s[finite])
    alone = opened.strategies.pp == 1  # one split, and the fewest recomputed layers that fit it
    floors[alone] = np.where(opened.fits, opened.step_s, np.inf)[alone]
    return floors


def _likely(found: Found, rows: Ints, known: NDArray[np.bool_]) -> Ints:
    """The first unopened of some candidates (sorted by bound) whose bound is under the best of them that fits."""
    c = found.candidates
    least = float(c.step_s[rows[c.fits[rows]]].min(initial=math.inf))
    rows = rows[c.bound_s[rows] < least]
    return rows[~known[rows]][: 4 * _LOOK]


def _marked(candidates: Candidates, groups: list[Ints]) -> NDArray[np.bool_]:
    """Which candidates some group of indices names."""
    out = np.zeros(len(candidates), dtype=np.bool_)
    for rows in groups:
        out[rows] = True
    return out


def _answer(found: Found, best: Estimate, q: _Question, evidence: _Evidence | None) -> Notch:
    value = getattr(best.strategy, q.dimension)
    if not len(q.rows):
        reason, sure = _absent(found, best.strategy, q)
        return Notch(q.dimension, value, q.other, None, None, reason, exact=sure)
    c = found.candidates
    real = q.rows[c.fits[q.rows]]
    options: list[tuple[float, Strategy]] = []
    if len(real):
        i = int(real[np.argmin(c.step_s[real])])
        options.append((float(c.step_s[i]), c.strategies[i]))
    if evidence is not None:
        mine = np.flatnonzero(np.isin(evidence.opened.parent, q.rows))
        options += _best_of(evidence.opened.take(mine))
        options += _uneven(found, evidence, mine, min((o[0] for o in options), default=math.inf))
    options += [(t, s) for t, s in found.splits if getattr(s, q.dimension) == q.other]
    whole = _is_whole(found, q)
    if not options:
        options, sure = _further(found, q.rows)
        if not options:
            sure &= whole
            return Notch(q.dimension, value, q.other, None, None, _unfit(found, q.rows, sure), exact=sure)
    step, strategy = min(options, key=lambda o: o[0])
    bound = _least(found, q.rows, evidence, step) if whole else 0.0
    return _priced(best, q.dimension, q.other, step, strategy, bound)


def _is_whole(found: Found, q: _Question) -> bool:
    """Whether a pin on the value would find no layouts that the space leaves out: some axes name it for some meshes."""
    partial = {"vpp": 1, "zero_group": 0, "rank_order": RANK_ORDERS[0]}
    if not found.space.breadth.any_etp:
        partial["etp"] = 1
    default = partial.get(q.dimension, q.other)
    return q.other == default or found.space.constraints.touches(q.dimension)


def _further(found: Found, rows: Ints, **fixed: Any) -> tuple[list[tuple[float, Strategy]], bool]:
    """The best of some candidates that fits with some knobs given, where the most promising ones showed none.

    Without one: whether that is sure, because no setting of the other knobs and no split has room for the layers.
    """
    c, space = found.candidates, found.space
    knobs = {name: space.axes.knob_values(name) for name in _MODES}
    if not len(rows) or not all(map(len, knobs.values())):
        return [], True
    looked = rows[np.argsort(c.peak_bytes[rows], kind="stable")[:_MOST_LOOKED]]
    lightest = c.strategies.take(looked).replace(**{**{name: v.max() for name, v in knobs.items()}, **fixed})
    room = room_for_layers(found.problem, lightest)
    if not room.any():
        return [], len(looked) == len(rows)
    looked, peak = looked[room], evaluate_chunked(found.problem, lightest.take(room)).peak_memory_bytes
    light = np.argsort(np.where(peak <= capacity_bytes(found.problem), c.bound_s[looked], peak + _GIB), kind="stable")
    opened = open_candidates(space, c, looked[light[:_FURTHER]])
    for name, value in fixed.items():
        opened = opened.take(getattr(opened.strategies, name) == value)
    take_opened(found, opened)
    return _best_of(opened) or _own_splits(found, opened), False


def _own_splits(found: Found, opened: Opened) -> list[tuple[float, Strategy]]:
    """The best split of the lightest pipelines where the launcher divides the layers by itself."""
    if found.space.launcher.own_splits is None:
        return []
    lightest = np.argsort(opened.peak_bytes, kind="stable")[:_LOOK]
    answers = [best_split(found.problem, found.space.launcher, opened.strategies[int(i)], _SPLIT_GAP) for i in lightest]
    return [(e.step_time_s, e.strategy) for e in answers if e is not None]


def _priced(best: Estimate, name: str, other: Any, step: float, strategy: Strategy, bound_s: float = 0.0) -> Notch:
    price = max(0.0, step - best.step_time_s)
    share = price / best.step_time_s
    exact = bound_s >= step * (1.0 - TOLERANCE)
    reason = "as fast" if share < 5e-4 else f"{'' if exact else 'at most '}{share:.1%} slower"
    return Notch(name, getattr(best.strategy, name), other, step, price, reason, strategy, exact)


def _least(found: Found, rows: Ints, evidence: _Evidence | None, step_s: float) -> float:
    """No layout of these candidates is faster than this, as far as what was opened shows."""
    c = found.candidates
    open_ = rows[c.bound_s[rows] < step_s]
    # Without a pipeline, what fits with its knobs at the fastest is the best of its settings.
    open_ = open_[~(c.fits[open_] & (c.strategies.pp[open_] == 1) & (c.step_s[open_] >= step_s))]
    least = step_s
    if evidence is not None:
        mine = np.isin(evidence.opened.parent, rows)
        least = min(least, float(evidence.tight_s[mine].min(initial=math.inf)))
        open_ = np.setdiff1d(open_, np.concatenate([evidence.opened.parent[mine], evidence.misfits]))
    return min(least, float(c.bound_s[open_].min(initial=math.inf)))


def _best_of(opened: Opened) -> list[tuple[float, Strategy]]:
    fits = np.flatnonzero(opened.fits)
    if not len(fits):
        return []
    i = int(fits[np.argmin(opened.step_s[fits])])
    return [(float(opened.step_s[i]), opened.strategies[i])]


def _uneven(found: Found, evidence: _Evidence, mine: Ints, step_s: float) -> list[tuple[float, Strategy]]:
    """The most promising pipeline with its layer split solved, where that may shorten the step noticeably."""
    pipes = mine[evidence.opened.strategies.pp[mine] > 1]
    if not len(pipes):
        return []
    i = int(pipes[np.argmin(evidence.tight_s[pipes])])
    if not evidence.tight_s[i] < step_s * (1.0 - _WORTH_SOLVING):
        return []
    strategy = evidence.opened.strategies[i]
    wanted = strategy not in evidence.solved and len(evidence.solved) < _MOST_SPLITS
    if wanted and not evidence.clock.expired:
        answer = best_split(found.problem, found.space.launcher, strategy, _SPLIT_GAP, _FAR * found.step_s)
        evidence.solved[strategy] = answer
        if answer is not None:
            found.splits.append((answer.step_time_s, answer.strategy))
    solved = evidence.solved.get(strategy)
    return [] if solved is None else [(solved.step_time_s, solved.strategy)]


def _absent(found: Found, s: Strategy, q: _Question) -> tuple[str, bool]:
    """Which rule removes a value that no candidate has; judged on the plan with that one dimension changed.

    Sure unless the axis does not reach as far.
    """
    changed = {q.dimension: q.other, "tp_overlap": False, "ep_overlap": False}
    if q.dimension == "vpp":
        changed["schedule"] = "interleaved" if q.other > 1 else "1f1b"
    problem, sure = found.problem, not _is_beyond(found, q)
    try:
        bare = replace(s, layers_per_stage=None, recompute_per_stage=None, zero_group=0, **changed)
        other = bare.with_batch(problem.cluster.num_gpus, problem.workload.global_batch_size)
    except InputError as error:
        return str(error).removeprefix("strategy: "), sure
    broken = violations(problem, other, found.space.rules)
    return (str(broken[0]), sure) if broken else ("beyond the searched axis; pin it to look there", False)


def _is_beyond(found: Found, q: _Question) -> bool:
    """Whether a value is past the largest that is searched unless a pin asks for it."""
    axes, space = found.space.axes, found.space
    if q.dimension == "micro_batch_size":
        limit = space.breadth.micro_batch_size
    elif q.dimension in ("tp", "cp"):
        limit = axes.degree_limit(q.dimension)
    else:
        return False
    return bool(q.other > limit) and not space.constraints.touches(q.dimension)


def _unfit(found: Found, rows: Ints, sure: bool) -> str:
    c = found.candidates
    least = float(c.peak_bytes[rows].min())
    over = least - capacity_bytes(found.problem)
    what = "does not fit" if sure else "nothing found that fits"
    return what if over <= 0 else f"{what}: {over / _GIB:.1f} GiB too much without recomputation"


# ---- knobs and switches


def _mode_choices(found: Found, s: Strategy) -> list[tuple[str, Any]]:
    modes = [ENUMS["recompute"][int(c)] for c in found.space.axes.knob_values("recompute")]
    out: list[tuple[str, Any]] = [("recompute", m) for m in modes if m != s.recompute]
    for name in _MODES[1:]:
        values = found.space.axes.knob_values(name)  # the least and the most: between them there is little to tell
        out += [(name, v) for v in np.unique(values[[0, -1]]).tolist() if v != getattr(s, name)]
    return out


def _mode_notch(found: Found, best: Estimate, name: str, other: Any) -> Notch:
    """The best opened strategy with another mode of recomputation or share offloaded."""
    code = enum_code(name, other) if name in ENUMS else other
    value = getattr(best.strategy, name)
    options: list[tuple[float, Strategy]] = [(t, s) for t, s in found.splits if getattr(s, name) == other]
    for part in found.opened:
        options += _best_of(part.take(getattr(part.strategies, name) == code))
    if (name == "recompute" and other == "none") or (name != "recompute" and not other):
        c = found.candidates
        fits = np.flatnonzero(c.fits)
        if len(fits):
            i = int(fits[np.argmin(c.step_s[fits])])
            options.append((float(c.step_s[i]), c.strategies[i]))
    if not options:
        options, sure = _further(found, np.arange(len(found.candidates)), **{name: code})
        if not options:
            reason = "no layout has room for it" if sure else "nothing found that fits with it"
            return Notch(name, value, other, None, None, reason, exact=sure)
    return _priced(best, name, other, *min(options, key=lambda o: o[0]))


def _switch_notch(found: Found, best: Estimate, name: str) -> Notch | None:
    """The plan with one overlap switch flipped alone; where a rule refuses that, the best found with it."""
    s = best.strategy
    if (name == "tp_overlap" and s.tp == 1) or (name == "ep_overlap" and s.ep == 1):
        return None
    other = not getattr(s, name)
    notch = _flipped_notch(found, best, name, other)
    if notch.step_time_s is not None:
        return notch
    c = found.candidates
    rows = np.flatnonzero(getattr(c.strategies, name) == other)
    real = rows[c.fits[rows]]
    options = [(float(c.step_s[i]), c.strategies[i]) for i in real[np.argsort(c.step_s[real])[:1]]]
    options = options or _further(found, rows)[0]
    # Candidates have all switches on that rules allow: what none of them has on, none can.
    if options:
        return _priced(best, name, other, *min(options, key=lambda o: o[0]))
    return replace(notch, exact=not len(rows))


def _order_notch(found: Found, best: Estimate) -> Notch | None:
    """The plan in the launcher's other rank order, where a pipeline and replicas make it another."""
    s = best.strategy
    orders = offered_names(found.space.launcher.capabilities, "rank_order", RANK_ORDERS)
    others = [name for name in orders if name != s.rank_order]
    return _flipped_notch(found, best, "rank_order", others[0]) if others and min(s.pp, s.dp) > 1 else None


def _flipped_notch(found: Found, best: Estimate, name: str, other: Any) -> Notch:
    """The plan with another value of one dimension and nothing else changed."""
    changed: dict[str, Any] = {name: other}
    flipped = replace(best.strategy, **changed)
    broken = violations(found.problem, flipped, found.space.rules)
    if broken:
        return Notch(name, getattr(best.strategy, name), other, None, None, str(broken[0]))
    return _priced(best, name, other, estimate(found.problem, flipped).step_time_s, flipped)


# ---- what binds


def binding(found: Found, best: Estimate) -> Binding:
    """Whether memory keeps a faster strategy of the space out, by how much, and what it costs."""
    c = found.candidates
    real = np.flatnonzero(c.real)
    if len(real):
        i = int(real[np.argmin(c.step_s[real])])
        gain = best.step_time_s - float(c.step_s[i])
        if gain > 1e-3 * best.step_time_s:
            over = (float(c.peak_bytes[i]) - capacity_bytes(found.problem)) / _GIB
            s = c.strategies[i]
            where = f"tp={s.tp} cp={s.cp} pp={s.pp} ep={s.ep} mbs={s.micro_batch_size} zero={s.zero}"
            return Binding(
                "memory",
                f"memory binds: {where} without recomputation would be {gain / best.step_time_s:.1%} faster and needs "
                f"{over:.1f} GiB more per GPU on its fullest rank",
                gain,
            )
    return Binding("nothing", "no constraint binds: no layout of the space is faster, whether it fits or not")

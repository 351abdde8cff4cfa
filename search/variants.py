"""What a refinement varies around a layout, as parameters of Optuna trials, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardwise.costmodel.splits import even_split
from shardwise.costmodel.strategy import SCHEDULES, Strategy
from shardwise.launchers.rule import divisors

from .axes import offered_names, offers
from .exact import with_split
from .space import Space

if TYPE_CHECKING:
    import optuna

_OFFLOAD_STEPS = 100
"""Shares of the optimizer on the host are tried in hundredths, as fine as the space's own."""

_BUCKETS = (0, 2, 4, 8, 16, 32)
"""Gradient buckets of a rank that are tried; 0 is one a layer."""

_MOST_CHUNKS = 16
"""Most virtual stages a rank is given by a variation."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A layout with what the closed form has no word for; 0 leaves the framework's default."""

    strategy: Strategy
    microbatch_group: int = 0
    """Micro-batches that an interleaved rank runs through one chunk before the next; 0 for pp."""
    buckets: int = 0
    """Gradient buckets of each rank; 0 for one a layer."""


@dataclass(slots=True)
class Knobs:
    """What may be varied around one base; what is empty or 0 is not. The first value of a list is the base's own."""

    base: Strategy
    index: int
    groups: list[int] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    vpps: list[int] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)
    zero_groups: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    offload: bool = False
    chunks: int = 0
    """Virtual stages between which layers may be moved."""
    ranks: int = 0
    """Pipeline ranks whose own number of recomputed layers may be changed."""

    @property
    def names(self) -> list[str]:
        """The dimensions varied."""
        pairs = (
            ("microbatch_group", self.groups), ("buckets", self.buckets), ("vpp", self.vpps),
            ("schedule", self.schedules), ("zero_group", self.zero_groups), ("recompute_layers", self.layers),
            ("offload_optimizer", self.offload), ("layers_per_stage", self.chunks),
            ("recompute_per_stage", self.ranks),
        )  # fmt: skip
        return [name for name, on in pairs if on]

    # ---- parameters

    def neutral(self) -> dict[str, Any]:
        """The parameters that leave the base as it is."""
        params: dict[str, Any] = {"base": self.index}
        lists: dict[str, Sequence[Any]] = {
            "group": self.groups,
            "buckets": self.buckets,
            "vpp": self.vpps,
            "schedule": self.schedules,
        }
        params |= {self._key(name): values[0] for name, values in lists.items() if values}
        if self.zero_groups:
            params[self._key("zero_group")] = self.zero_groups[0]
        if self.offload:
            params[self._key("offload")] = round(self.base.offload_optimizer * _OFFLOAD_STEPS)
        if self.layers:
            params[self._key("layers")] = self.layers[0]
        for name in ("from", "to", "from2", "to2") if self.chunks else ():
            params[self._key(name)] = 0
        if self.ranks:
            params |= {self._key("again_rank"): 0, self._key("again_step"): 0}
        return params

    def notches(self) -> Iterator[dict[str, Any]]:
        """The neutral parameters, then with one of them changed, what gains most often first."""
        start = self.neutral()
        yield start
        lists: dict[str, Sequence[Any]] = {
            "group": self.groups[::-1], "vpp": self.vpps, "schedule": self.schedules, "buckets": self.buckets[::-1],
            "zero_group": self.zero_groups,
        }  # fmt: skip
        for name, values in lists.items():
            for value in values:
                if value != start[self._key(name)]:
                    yield {**start, self._key(name): value}

    def suggest(self, trial: optuna.Trial) -> Variant:
        """The variant of a trial; what the base has nothing of is not asked."""
        changed: dict[str, Any] = {}
        group = trial.suggest_categorical(self._key("group"), self.groups) if self.groups else 0
        buckets = trial.suggest_categorical(self._key("buckets"), self.buckets) if self.buckets else 0
        for name, values in (("vpp", self.vpps), ("schedule", self.schedules), ("zero_group", self.zero_groups)):
            if values:
                changed[name] = trial.suggest_categorical(self._key(name), values)
        if self.offload:
            changed["offload_optimizer"] = trial.suggest_int(self._key("offload"), 0, _OFFLOAD_STEPS) / _OFFLOAD_STEPS
        if self.layers:
            layers = trial.suggest_categorical(self._key("layers"), self.layers)
            if layers != self.layers[0]:
                changed |= {"recompute_layers": layers, "recompute_per_stage": None}
        moves = [
            (trial.suggest_int(self._key(a), 0, self.chunks - 1), trial.suggest_int(self._key(b), 0, self.chunks - 1))
            for a, b in ((("from", "to"), ("from2", "to2")) if self.chunks else ())
        ]
        if self.ranks:
            rank = trial.suggest_int(self._key("again_rank"), 0, self.ranks - 1)
            changed |= self._recomputed(rank, trial.suggest_int(self._key("again_step"), -1, 1), changed)
        return Variant(self._applied(changed, moves), int(group), int(buckets))

    def _key(self, name: str) -> str:
        return f"{name}_{self.index}"

    def _recomputed(self, rank: int, step: int, changed: dict[str, Any]) -> dict[str, Any]:
        """One layer more or less recomputed on one rank."""
        held = self.base.recompute_per_stage
        if not step or held is None or "recompute_per_stage" in changed:
            return {}
        return {"recompute_per_stage": tuple(max(0, n + step * (r == rank)) for r, n in enumerate(held))}

    def _applied(self, changed: dict[str, Any], moves: Sequence[tuple[int, int]]) -> Strategy:
        """The base with its changes; layers stay where they are unless the number of virtual stages changes."""
        new = replace(self.base, **changed)
        if new.vpp != self.base.vpp:
            total = sum(self.base.layers_per_stage or ())
            return replace(new, layers_per_stage=even_split(total, new.pp * new.vpp), recompute_per_stage=None)
        layers = list(new.layers_per_stage or ())
        for source, target in moves:
            if source != target and layers and layers[source]:
                layers[source] -= 1
                layers[target] += 1
        if tuple(layers) == (new.layers_per_stage or ()):
            return new
        again = None if new.recompute_per_stage == self.base.recompute_per_stage else new.recompute_per_stage
        return replace(new, layers_per_stage=tuple(layers), recompute_per_stage=again)


def knobs(space: Space, base: Strategy, index: int) -> Knobs:
    """What may be varied around a strategy, within the launcher's abilities and the request."""
    base = with_split(space.problem, base)
    out = Knobs(base, index)
    whole, free = base.dp * base.cp, _free(space)
    if base.pp > 1:
        out.chunks = 0 if base.schedule == "dualpipe" else base.pp * base.vpp
        _vary_schedule(out, space, free)
    if "buckets" in space.launcher.tunable and whole > 1 and base.dp_overlap and base.zero < 2:
        out.buckets = list(_BUCKETS)
    if base.zero > 0 and "zero_group" in free:
        own = base.zero_group if base.zero_group != whole else 0
        others = [0, *(d for d in divisors(whole) if 1 < d < whole)]
        out.zero_groups = [own, *(d for d in others if d != own)] if len(others) > 1 else []
    most = -(-space.problem.model.num_layers // base.pp)
    if base.recompute == "full" and "recompute_layers" in free and most > 1:
        own = base.recompute_layers
        out.layers = [own, *(n for n in (-1, *range(1, most)) if n != own)]
    if base.recompute == "full" and base.recompute_per_stage is not None and base.pp > 1:
        out.ranks = base.pp
    out.offload = (base.recompute != "none" or base.offload_optimizer > 0) and "offload_optimizer" in free
    return out


def _vary_schedule(out: Knobs, space: Space, free: frozenset[str]) -> None:
    """Groups of micro-batches, virtual stages and schedules of a pipeline."""
    base, m = out.base, out.base.num_microbatches
    if base.schedule == "interleaved":
        if "microbatch_group" in space.launcher.tunable:
            sizes = sorted({2 * base.pp, 4 * base.pp, 8 * base.pp, m})
            out.groups = [0, *(g for g in sizes if base.pp < g <= m and (m % g == 0 or m % g >= base.pp))]
            out.groups = out.groups if len(out.groups) > 1 else []
        if "vpp" in free:
            most = min(_MOST_CHUNKS, space.problem.model.num_layers // base.pp)
            near = [v for v in (base.vpp - 1, base.vpp + 1, base.vpp - 2, base.vpp + 2) if 1 < v <= most]
            out.vpps = [base.vpp, *near] if near else []
    elif "schedule" in free:
        offered = [s for s in offered_names(space.launcher.capabilities, "schedule", SCHEDULES) if s != "interleaved"]
        out.schedules = [base.schedule, *(s for s in offered if s != base.schedule)] if len(offered) > 1 else []


def _free(space: Space) -> frozenset[str]:
    """Dimensions of which the launcher offers more than one value and the request says nothing."""
    wished = {c.dimension for c in space.constraints.items}
    return frozenset(name for name in space.launcher.capabilities if offers(space.launcher.capabilities, name)) - wished

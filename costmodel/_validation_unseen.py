"""Each source predicted as if it had never been seen: without the runtime profiles whose figures rest on its own rows.

Figures of devices and networks stay: they rest on several sources each, and leaving one out moves them little.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ._nearest_runtime import family_of
from ._validation_model import RowSkippedError
from ._validation_stats import Facts, coverage, spread
from .rows import RowReader
from .runtime import list_runtimes

if TYPE_CHECKING:
    from .validation import ReadRow


def struck_profiles(uses: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Profiles to leave out for each source, from the (source, profile) pair of every timed row.

    A profile is left out for a source that gave more than half of its rows, and all profiles of a family for one that
    gave more than half of the family's: they share most figures.
    """
    by_profile: dict[str, Counter[str]] = defaultdict(Counter)
    by_family: dict[str, Counter[str]] = defaultdict(Counter)
    for source, profile in uses:
        by_profile[profile][source] += 1
        by_family[family_of(profile)][source] += 1
    out: dict[str, set[str]] = defaultdict(set)
    for profile in list_runtimes():
        for counts in (by_profile[profile], by_family[family_of(profile)]):
            for source, count in counts.items():
                if 2 * count > counts.total():
                    out[source].add(profile)
    return {source: frozenset(profiles) for source, profiles in out.items()}


def title(row: Mapping[str, Any]) -> str:
    """Title of a row's source."""
    source = row.get("source")
    return str(source.get("title") or "not stated") if isinstance(source, Mapping) else "not stated"


def as_unseen(rows: Sequence[ReadRow], facts: Sequence[Facts], reader: RowReader) -> list[ReadRow]:
    """The timed, unsuspected rows of ``facts`` with the inputs they would have if their source were new."""
    timed = {f.row_id for f in facts if f.measured_s and not f.suspect}
    kept = [entry for entry in rows if entry.inputs is not None and entry.row_id in timed]
    struck = struck_profiles((title(e.row), e.inputs.problem.runtime.name) for e in kept if e.inputs is not None)
    out = []
    for entry in kept:
        try:
            inputs = reader.read(entry.row, struck.get(title(entry.row), frozenset()))
        except RowSkippedError:
            continue  # the nearest profile does not state what this row leaves open
        out.append(replace(entry, inputs=inputs))
    return out


def unseen_summary(facts: Sequence[Facts]) -> dict[str, Any]:
    """Errors and interval coverage of rows predicted as of unseen sources."""
    kinds: dict[str, list[Facts]] = defaultdict(list)
    sources: dict[str, list[Facts]] = defaultdict(list)
    for f in facts:
        kinds[f"{f.kind}, {'fully' if f.complete else 'partly'} stated"].append(f)
        sources[f"{f.source} · {f.device} · {f.kind}"].append(f)
    return {
        "by_kind": {name: _cell(cell) for name, cell in _ordered(kinds)},
        "by_source": {name: _cell(cell) for name, cell in _ordered(sources)},
        "interval_coverage": coverage(facts),
    }


def _ordered(cells: Mapping[str, list[Facts]]) -> list[tuple[str, list[Facts]]]:
    return sorted(cells.items(), key=lambda kv: (-len(kv[1]), kv[0]))


def _cell(facts: Sequence[Facts]) -> dict[str, Any]:
    return {**spread(f.error for f in facts if f.error is not None), "runtimes": sorted({f.runtime for f in facts})}

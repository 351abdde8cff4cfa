"""The summary of a validation as markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

UNSEEN = (
    "How well a source is predicted that the figures of its software never saw. For each source the runtime profiles"
    " are left out that rest on it: those that it gave more than half of the rows of, and whole families by the same"
    " rule. Its rows then take the nearest profile that is left, by family and release or by device and precision."
    " Figures of devices and networks stay, as each rests on several sources (the Omni-Path of Jean Zay excepted)."
)


def render(source: str, summary: Mapping[str, Any]) -> str:
    """One document: step time, memory, fits, ranking, baseline, suspect rows, rows left out."""
    step = summary["step_time"]
    parts = [
        f"# Predictions against the measured runs of {source}",
        f"{summary['predicted']} rows predicted, {summary['skipped']} left out (listed at the end). Errors are"
        " predicted over measured minus 1; suspect rows are kept apart.",
        "## Step time",
        _errors([(name.replace("_", " "), step[name]) for name in ("all", "fully_stated", "partly_stated")], "rows"),
        *_step_sections(step),
        "## As an unseen source",
        UNSEEN,
        _unseen(summary["unseen"]["by_kind"], "kind of model"),
        "### By source",
        _unseen(summary["unseen"]["by_source"], "source"),
        "## Intervals",
        "Each prediction carries a range that is meant to hold 80 % of measurements. First the rows as predicted"
        " above, then as of unseen sources, where a profile that is only the nearest widens the range.",
        _coverage(summary["interval_coverage"]),
        "### As unseen sources",
        _coverage(summary["unseen"]["interval_coverage"]),
        "## Peak memory",
        _errors(summary["memory"].items(), "kind of figure · source"),
        "## Fits or runs out of memory",
        _confusion(summary["fits"]),
        "## Ranking",
        "Within rows of one group with the same accelerators, batch and precision: Kendall's tau, and how much slower"
        " the layout predicted fastest is than the one measured fastest.",
        _ranking(summary["ranking"]),
        "## Against one constant MFU",
        "The constant is fitted to each source, device and precision, on the same rows. Where it does as well as the"
        " model, a low error is weak evidence.",
        _baseline(summary["baseline"]),
        "## Suspect rows",
        _errors(summary["suspect"].items(), "why doubted"),
        "## Rows left out",
        _skipped(summary["skipped_rows"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _step_sections(step: Mapping[str, Any]) -> list[str]:
    titles = {
        "by_kind": "By kind of model",
        "by_device": "By device",
        "by_precision": "By precision",
        "by_source": "By source",
        "by_runtime": "By runtime profile",
    }
    out = []
    for key, title in titles.items():
        out += [f"### {title}", _errors(step[key].items(), title.removeprefix("By ").lower())]
    return out


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) if len(lines) > 2 else "None."


def _percent(value: Any, sign: bool = False) -> str:
    return "" if value is None else f"{100 * value:{'+' if sign else ''}.1f} %"


def _errors(cells: Iterable[tuple[str, Mapping[str, Any]]], label: str) -> str:
    rows = [
        (name, str(c["n"]), _percent(c.get("median")), _percent(c.get("p90")), _percent(c.get("bias"), sign=True))
        for name, c in cells
        if c["n"]
    ]
    return _table((label, "n", "median", "P90", "bias"), rows)


def _unseen(cells: Mapping[str, Any], label: str) -> str:
    rows = [
        (
            name,
            str(c["n"]),
            _percent(c.get("median")),
            _percent(c.get("p90")),
            _percent(c.get("bias"), sign=True),
            ", ".join(c["runtimes"]),
        )
        for name, c in cells.items()
        if c["n"]
    ]
    return _table((label, "n", "median", "P90", "bias", "predicted with"), rows)


def _coverage(cells: Mapping[str, Any]) -> str:
    rows = [(n, str(c["n"]), _percent(c["inside"]), f"± {_percent(c['half_width'])}") for n, c in cells.items()]
    return _table(("rows", "n", "inside the range", "mean range"), rows)


def _confusion(fits: Mapping[str, Any]) -> str:
    rows = [
        ("ran out of memory", str(fits["oom_called_fitting"]), str(fits["oom_called_oom"])),
        ("ran", str(fits["ran_called_fitting"]), str(fits["ran_called_oom"])),
    ]
    return _table(("measured", "predicted to fit", "predicted not to fit"), rows)


def _ranking(ranking: Mapping[str, Any]) -> str:
    cells = [("all", ranking), *ranking["by_source"].items()]
    rows = [
        (
            name,
            str(c["num_groups"]),
            str(c["rows"]),
            f"{c['mean_tau']:.2f}",
            _percent(c["mean_regret"]),
            _percent(c["mean_random_regret"]),
            f"{c['mean_listed']:.1f}",
            _percent(c["mean_listed_regret"]),
            _percent(c["listed_best_within_1_percent"]),
        )
        for name, c in cells
        if c["num_groups"]
    ]
    head = ("source", "groups", "rows", "mean tau", "mean regret", "regret of a random pick")
    return _table((*head, "short list", "its regret", "best on it"), rows)


def _baseline(cells: Mapping[str, Any]) -> str:
    rows = []
    for name, pair in cells.items():
        trivial, ours = pair["constant_mfu"], pair["shardwise"]
        words = [f"{_percent(c['median'])} / {_percent(c['p90'])}" for c in (trivial, ours)]
        rows.append((name, str(ours["n"]), *words, "no better" if trivial["median"] <= ours["median"] else ""))
    return _table(("source", "n", "constant MFU, median / P90", "shardwise, median / P90", ""), rows)


def _skipped(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "None."
    counts = Counter(str(r["reason"]).partition(": ")[2] or str(r["reason"]) for r in rows)
    head = _table(("reason", "rows"), [(reason, str(n)) for reason, n in counts.most_common()])
    names = "\n".join(f"- `{r['id']}`" for r in rows)
    return f"{head}\n\n<details><summary>All {len(rows)} rows</summary>\n\n{names}\n\n</details>"

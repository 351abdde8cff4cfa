"""A study's rows as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from typing import Any

from shardwise.hardware_profiles.errors import InputError

from .runner import StudyResult


def to_csv(result: StudyResult) -> str:
    """The table as CSV with a header line; what a row does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, result.columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in result.rows)
    return text.getvalue()


def to_parquet(result: StudyResult) -> bytes:
    """The table as Parquet, every column of one type. Raises InputError where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("Parquet needs pyarrow: pip install 'shardwise[study]'") from None
    columns = {name: _column([row[name] for row in result.rows]) for name in result.columns}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: whole numbers beside others become floats, anything else mixed becomes text."""
    kinds = {type(v) for v in values if v is not None}
    if len(kinds) < 2:
        return values
    if kinds == {int, float}:
        return [None if v is None else float(v) for v in values]
    return [None if v is None else str(v) for v in values]

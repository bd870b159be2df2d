"""Tables of instants and lengths: the CSV of Azure's LLM inference traces and that of Vidur."""

import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from traces.exporters.exported import Exported, ToExport, lost, prompt_tokens
from traces.text_file import writing

_FIRST_DAY = datetime(2000, 1, 1, tzinfo=UTC)


def azure(given: ToExport) -> Exported:
    """Write Azure's columns; arrivals are counted from the first midnight of 2000, with microseconds."""
    lines = (
        (
            (_FIRST_DAY + timedelta(microseconds=row.arrival_time_us)).strftime("%Y-%m-%d %H:%M:%S.%f"),
            prompt_tokens(row),
            row.output_tokens,
        )
        for row in given.rows
    )
    return _written(given, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), lines)


def vidur(given: ToExport) -> Exported:
    """Write Vidur's columns; arrivals are seconds."""
    lines = ((f"{row.arrival_time_us / 1e6:.6f}", prompt_tokens(row), row.output_tokens) for row in given.rows)
    return _written(given, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"), lines)


def _written(given: ToExport, titles: Sequence[str], lines: Iterable[Sequence[object]]) -> Exported:
    with writing(given.path) as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(titles)
        table.writerows(lines)
    return Exported(notes=lost(given.rows))

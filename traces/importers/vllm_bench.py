"""Results of `vllm bench serve --save-result --save-detailed`: a recording, with the times of each request.

A file of `--append-result` has a line for each run: each becomes a client, at the time of day of its run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from traces.importers.reading import Unread, at, check_times, expect, json_documents
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.trace_v2 import TraceHeader


def convert(options: ConvertOptions) -> Imported:
    """The requests of all runs with all they experienced; each was due when it was sent. Raises TraceError.

    The times of the file count from some start; `date` is when a run was written.
    """
    runs = [(place, expect(place, "an object", results)) for place, results in json_documents(options.path)]
    unread = Unread()
    found: list[tuple[TraceRow, list[int]]] = []
    for number, (place, results) in enumerate(runs):
        client = f"run-{number}" if len(runs) > 1 else ""
        found += [(replace(row, client_id=client), times) for row, times in _requests(place, results, unread)]
    imported = recording(options, found, unread.note())
    began_us = min((row.send_time_us - row.arrival_time_us for row in imported.rows), default=0)
    models = dict.fromkeys(str(results.get("model_id", "")) for _, results in runs)
    header = TraceHeader(
        time_unit="us",
        mode="real",
        created_at=datetime.fromtimestamp(began_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        server={"type": "vllm", "model": next(iter(models)) if len(models) == 1 else ""},
    )
    return replace(imported, header=header)


def _requests(source: str, results: Mapping[str, Any], unread: Unread) -> list[tuple[TraceRow, list[int]]]:
    """The rows of a run, each with its chunk times."""
    entries = entries_of(source, results, ("start_times", *LISTS), "--save-detailed", unread)
    starts = [
        expect(f"{source} request {place} key start_times", "a time in seconds", each["start_times"])
        for place, each in enumerate(entries)
    ]
    try:
        written = datetime.strptime(str(results.get("date")), "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise TraceError(f"{source} key date: expected a time like 20260131-235959") from None
    duration_s = at(source, results, "duration", "a time in seconds")
    first_s, origin_us = min(starts, default=0.0), round((written.timestamp() - float(duration_s)) * 1e6)
    found = []
    for place in sorted(range(len(starts)), key=lambda place: float(starts[place])):
        where, sent_us = f"{source} request {place}", origin_us + round((starts[place] - first_s) * 1e6)
        found.append(request_of(where, entries[place], offsets_us(where, entries[place]), sent_us))
    return found


# What the benchmark of SGLang writes, too.

LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
"""Keys of lists with a value for each request."""


def entries_of(
    place: str, results: Mapping[str, Any], names: Sequence[str], flag: str, unread: Unread
) -> list[dict[str, Any]]:
    """The values of lists of these names, side by side for each request. Other lists as long are counted as unread.

    Raises TraceError; where all lists are missing it names the flag that saves them.
    """
    missing = [name for name in names if name not in results]
    if missing:
        hint = f", save results with {flag}" if len(missing) == len(names) else " beside other lists"
        raise TraceError(f"{place}: the key {missing[0]} is missing{hint}")
    lists = [expect(f"{place} key {name}", "a list", results[name]) for name in names]
    if len(set(map(len, lists))) != 1:
        lengths = ", ".join(f"{name} {len(each)}" for name, each in zip(names, lists, strict=True))
        raise TraceError(f"{place}: expected lists of one length, got {lengths}")
    for name, values in results.items():
        if name not in names and isinstance(values, list) and len(values) == len(lists[0]):
            for value in values:
                unread.add({name: value}, ())
    return [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def offsets_us(place: str, entry: Mapping[str, Any]) -> list[int]:
    """The times of the chunks after sending; none for a request that failed. Raises TraceError."""
    ttft_s = expect(f"{place} key ttfts", "a time in seconds", entry["ttfts"])
    gaps = expect(f"{place} key itls", "a list", entry["itls"])
    gaps_s = [expect(f"{place} key itls", "a time in seconds", each) for each in gaps]
    return [] if entry["errors"] or not ttft_s else [round(each * 1e6) for each in accumulate(gaps_s, initial=ttft_s)]


def request_of(place: str, entry: Mapping[str, Any], offsets: list[int], sent_us: int) -> tuple[TraceRow, list[int]]:
    """The row of a request that was sent at this time, and its chunk times. Raises TraceError."""
    times = [sent_us + each for each in offsets]
    row = TraceRow(
        request_id=0,
        streaming=True,
        input_tokens=expect(f"{place} key input_lens", "a whole number", entry["input_lens"]),
        output_tokens=expect(f"{place} key output_lens", "a whole number", entry["output_lens"]),
        arrival_time_us=0,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0,
        last_chunk_time_us=times[-1] if times else 0,
        num_chunks=len(times),
        status="ok" if times else "error",
        error_message=str(entry["errors"] or ""),
    )
    if not times and not entry["errors"] and row.output_tokens:
        raise TraceError(f"{place} key ttfts: expected a time above 0, as output_lens has {row.output_tokens}, got 0")
    check_times(place, row)
    return row, times

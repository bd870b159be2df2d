"""CSV and JSON files of a run that are written row by row, and its timeline of events."""

import csv
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import orjson

from blis_sim.engine.units import Micros
from replay.report_options import METRICS_CONFIG
from traces.text_file import cannot_write, naming_write_errors, open_for_writing, write_content

if TYPE_CHECKING:
    from _csv import Writer as CsvWriter

# CSV and JSON files that are written row by row and never held in memory; request_metrics.csv and config.json.
#
# The columns of request_metrics.csv are those of Vidur and SimAI; config.json has the settings of a run, nested as
# they are in the program. Nothing here depends on a run, so other commands write the same files: make a
# `RequestMetrics` for each request and give `request_row(facts)` to a `csv_writer` with `REQUEST_COLUMNS`.

Cell: TypeAlias = str | float | None
"""A value of a CSV table; None leaves the cell empty."""
_ROWS_AT_ONCE = 4096
"""Rows that are held before they are written: system calls are the largest cost of a row."""


class RowFile:
    """A text file of lines, written in large pieces. Raises TraceError when the system refuses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces: list[str] = []
        with naming_write_errors(path):
            self._file = open_for_writing(path)

    def write(self, text: str) -> None:
        """Append `text`."""
        self._pieces.append(text)
        if len(self._pieces) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Hand all text to the system."""
        pieces, self._pieces = self._pieces, []
        try:
            self._file.write("".join(pieces))
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Write the rest and close the file."""
        self.flush()
        with naming_write_errors(self.path):
            self._file.close()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def csv_writer(file: RowFile, columns: Sequence[str]) -> "CsvWriter":
    """Return the writer of the rows of a CSV file, whose header it has written. None leaves a cell empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    return writer


class JsonItems:
    """A JSON array inside of a text file, with one item on each line."""

    def __init__(self, file: RowFile, before: str = "[", after: str = "]\n") -> None:
        """`before` and `after` are the text around the items, brackets included."""
        self._file = file
        self._separator = before + "\n"
        self._empty = before
        self._after = after
        self._has_items = False

    def add(self, item: object) -> None:
        """Append one item of plain values."""
        self._has_items = True
        self._file.write(self._separator + orjson.dumps(item).decode())
        self._separator = ",\n"

    def end(self) -> None:
        """Close the array."""
        self._file.write(("\n" if self._has_items else self._empty) + self._after)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Cell]]) -> None:
    """Write a whole CSV file. Raises TraceError."""
    with RowFile(path) as file:
        csv_writer(file, columns).writerows(rows)


_VIDUR_TIMES = (
    "request_e2e_time",
    "request_e2e_time_normalized",
    "request_execution_time",
    "request_execution_time_normalized",
    "request_model_execution_time",
    "request_model_execution_time_normalized",
    "request_preemption_time",
    "request_scheduling_delay",
    "request_execution_plus_preemption_time",
    "request_execution_plus_preemption_time_normalized",
    "prefill_e2e_time",
    "prefill_time_execution_plus_preemption",
    "prefill_time_execution_plus_preemption_normalized",
    "decode_time_execution_plus_preemption_normalized",
)
_SIMAI_TIMES = (
    "arrived_at",
    "prefill_arrived_at",
    "scheduled_at",
    "prefill_completed_at",
    "decode_arrived_at",
    "completed_at",
    "preempted_time",
    "decode_time",
    "prefill_replica_id",
    "decode_replica_id",
    "pd_p2p_comm_size",
    "pd_p2p_comm_time",
    "pd_p2p_comm_bandwidth",
    "pd_p2p_bytes_per_token",
    "pd_p2p_comm_dtype",
)
_LENGTHS = (
    "request_inter_arrival_delay",
    "request_num_tokens",
    "request_num_prefill_tokens",
    "request_num_decode_tokens",
    "request_pd_ratio",
    "request_num_restarts",
)
VIDUR_COLUMNS = ("Request Id", *_VIDUR_TIMES, *_LENGTHS)
"""The 21 columns of Vidur."""
SIMAI_COLUMNS = ("Request Id", *_VIDUR_TIMES, *_SIMAI_TIMES, *_LENGTHS)
"""The 36 columns of SimAI."""
REQUEST_COLUMNS = (*SIMAI_COLUMNS, "tbt")
"""The columns of SimAI and the time between tokens, for which both simulators have no column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """The way of a prompt's KV cache from one instance to another."""

    size_bytes: float
    duration_s: float
    bytes_per_s: float
    bytes_per_value: float
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """One request: instants and durations in seconds; None for what never happened."""

    number: int
    """The position among all arrivals, from 0."""
    arrived_at_s: float
    inter_arrival_s: float | None
    """Since the arrival before; None for the first request."""
    prompt_tokens: int
    output_tokens: int
    num_restarts: int = 0
    scheduled_at_s: float | None = None
    """When it first joined a batch."""
    first_token_at_s: float | None = None
    completed_at_s: float | None = None
    execution_s: float = 0.0
    """The time of all batches that computed it."""
    preempted_s: float = 0.0
    """The time after its first batch in which no batch computed it."""
    itl_mean_s: float | None = None
    """Mean time between two tokens; None derives it from the first and the last token."""
    normalized_by_tokens: int | None = None
    """The output tokens that a total is divided by, where these are not `output_tokens`."""
    prefill_replica: int | None = None
    """The instance that computed the prompt for another one; None where one instance did everything."""
    decode_replica: int | None = None
    decode_arrived_at_s: float | None = None
    transfer: KVTransfer | None = None


def request_row(facts: RequestMetrics) -> dict[str, Cell]:
    """Return the cells of `REQUEST_COLUMNS`, in that order."""
    row: dict[str, Cell] = {"Request Id": facts.number}
    row.update(zip(_VIDUR_TIMES, _times(facts), strict=True))
    row.update(zip(_SIMAI_TIMES, _instants(facts), strict=True))
    prompt, output = facts.prompt_tokens, facts.output_tokens
    ratio = prompt / output if output else None
    lengths = (facts.inter_arrival_s, prompt + output, prompt, output, ratio, facts.num_restarts)
    row.update(zip(_LENGTHS, lengths, strict=True))
    row["tbt"] = _time_between_tokens(facts)
    return row


def _times(facts: RequestMetrics) -> tuple[Cell, ...]:
    """Durations of a request that has completed; others only waited and perhaps had a first token."""
    arrived_at, scheduled_at, first_at = facts.arrived_at_s, facts.scheduled_at_s, facts.first_token_at_s
    delay = None if scheduled_at is None else scheduled_at - arrived_at
    ttft = None if first_at is None else first_at - arrived_at
    prefill = None if first_at is None or scheduled_at is None else first_at - scheduled_at
    prefill_each = None if prefill is None else _divided(prefill, facts.prompt_tokens)
    completed_at = facts.completed_at_s
    if completed_at is None or first_at is None:
        return (*[None] * 7, delay, None, None, ttft, prefill, prefill_each, None)
    tokens = facts.output_tokens if facts.normalized_by_tokens is None else facts.normalized_by_tokens
    e2e, execution, preempted = completed_at - arrived_at, facts.execution_s, facts.preempted_s
    both = execution + preempted
    return (
        e2e,
        _divided(e2e, tokens),
        execution,
        _divided(execution, tokens),
        execution,
        _divided(execution, tokens),
        preempted,
        delay,
        both,
        _divided(both, tokens),
        ttft,
        prefill,
        prefill_each,
        _divided(completed_at - first_at, tokens),
    )


def _instants(facts: RequestMetrics) -> tuple[Cell, ...]:
    first_at, completed_at, transfer = facts.first_token_at_s, facts.completed_at_s, facts.transfer
    decode = None if first_at is None or completed_at is None else completed_at - first_at
    decode_arrived_at = inf if facts.decode_arrived_at_s is None else facts.decode_arrived_at_s
    instants = (
        facts.arrived_at_s,
        facts.arrived_at_s,
        facts.scheduled_at_s,
        first_at,
        decode_arrived_at,
        completed_at,
        facts.preempted_s if completed_at is not None else None,
        decode,
        facts.prefill_replica,
        facts.decode_replica,
    )
    if transfer is None:
        return (*instants, inf, inf, 0, None, None)
    moved = (transfer.size_bytes, transfer.duration_s, transfer.bytes_per_s)
    return (*instants, *moved, transfer.bytes_per_value, transfer.dtype)


def _time_between_tokens(facts: RequestMetrics) -> float | None:
    if facts.completed_at_s is None or facts.first_token_at_s is None:
        return None
    if facts.itl_mean_s is not None:
        return facts.itl_mean_s
    return (facts.completed_at_s - facts.first_token_at_s) / max(facts.output_tokens - 1, 1)


def _divided(value: float, count: int) -> float | None:
    return value / count if count else None


def plain(value: Any) -> Any:
    """Return settings as values that JSON has: dataclasses become objects, other types their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write config.json into a folder. Raises TraceError."""
    write_content(folder / METRICS_CONFIG, orjson.dumps(plain(config), option=orjson.OPT_INDENT_2) + b"\n")


# chrome_trace.json, for Perfetto and chrome://tracing, and event_trace.json, with every event in order of time.
#
# Format: the JSON object format of "Trace Event Format". A process is an instance, a thread a pipeline stage. A slice
# (X) is a batch in a stage; flows (s, t, f) lead from a request's first batch over that of its first token to its
# last; and nested asynchronous events (b, e) of the category `request` show when a request waited, was prefilled and
# decoded.

FIRST_THREAD = 1
"""The thread of the first stage; Perfetto takes thread 0 for the one whose number is that of its process."""
MOST_IDS = 64
"""Most request ids that a batch lists; a batch of more has their number."""


class Place(NamedTuple):
    """The beginning of a batch in the first stage of an instance."""

    replica: int
    at: Micros


class ChromeTrace:
    """The events of one run, written as they come."""

    def __init__(self, file: RowFile) -> None:
        self._items = JsonItems(file, '{"displayTimeUnit":"ms","traceEvents":[', "]}\n")
        self._declared: set[int] = set()
        self._free_at: dict[int, list[Micros]] = {}
        """When the latest batch left each stage, by instance."""

    def without_overlap(self, replica: int, stages: Sequence[tuple[Micros, Micros]]) -> list[tuple[Micros, Micros]]:
        """Return when a batch is in each stage, without the time in which the one before is still drawn there.

        BLIS begins a step before the end of one that completed everything, and slices of a thread must not overlap.
        """
        free_at = self._free_at.setdefault(replica, [0] * len(stages))
        drawn = [(max(start, free), max(end, free)) for (start, end), free in zip(stages, free_at, strict=True)]
        self._free_at[replica] = [end for _, end in drawn]
        return drawn

    def batch(
        self,
        replica: int,
        number: int,
        stages: Sequence[tuple[Micros, Micros]],
        ids: Sequence[int],
        num_ids: int,
        sizes: tuple[int, int, int],
        tokens: Sequence[int] = (),
    ) -> None:
        """Draw a batch that was in each stage between two instants.

        `ids` are the first of `num_ids`; `sizes` are its requests, prompt tokens and decode tokens; `tokens` are those
        of each request, where they are known.
        """
        if replica not in self._declared:
            self._declare(replica, len(stages))
        num_requests, num_prefill_tokens, num_decode_tokens = sizes
        args: dict[str, object] = {
            "batch_id": number,
            "batch_size": num_requests,
            "num_prefill_tokens": num_prefill_tokens,
            "num_decode_tokens": num_decode_tokens,
            "request_ids": ids[:MOST_IDS],
        }
        if tokens:
            args["num_tokens"] = tokens[:MOST_IDS]
        if num_ids > MOST_IDS:
            args["num_more_requests"] = num_ids - MOST_IDS
        kind = "mixed" if num_prefill_tokens and num_decode_tokens else "prefill" if num_prefill_tokens else "decode"
        for stage, (start, end) in enumerate(stages):
            self._items.add(
                {
                    "name": f"{kind} {num_requests}",
                    "cat": "batch",
                    "ph": "X",
                    "ts": start,
                    "dur": end - start,
                    "pid": replica,
                    "tid": FIRST_THREAD + stage,
                    "args": args,
                }
            )

    def request(self, number: int, phases: Sequence[tuple[str, Micros, Micros]], way: Sequence[Place]) -> None:
        """Draw a request: its phases with their beginnings and ends, and the batches to connect."""
        if not phases or not way:
            return
        pid = way[0].replica
        common = {"cat": "request", "id": number, "pid": pid, "tid": FIRST_THREAD}
        name = f"request {number}"
        self._items.add({"name": name, "ph": "b", "ts": phases[0][1], **common})
        for phase, start, end in phases:
            self._items.add({"name": phase, "ph": "b", "ts": start, **common})
            self._items.add({"name": phase, "ph": "e", "ts": end, **common})
        self._items.add({"name": name, "ph": "e", "ts": phases[-1][2], **common})
        places = sorted(set(way), key=lambda place: place.at)
        if len(places) < 2:
            return
        for index, place in enumerate(places):
            last = index == len(places) - 1
            kind = "s" if not index else "f" if last else "t"
            flow = {"name": "request", "cat": "flow", "id": number, "pid": place.replica, "tid": FIRST_THREAD}
            self._items.add({**flow, "ts": place.at, "ph": kind, **({"bp": "e"} if last else {})})

    def end(self) -> None:
        """Close the file's array."""
        self._items.end()

    def _declare(self, replica: int, num_stages: int) -> None:
        """Name the process and the threads of an instance when it first computes."""
        self._declared.add(replica)
        names = [("process_name", 0, f"replica {replica}")]
        names += [("thread_name", FIRST_THREAD + stage, f"stage {stage}") for stage in range(num_stages)]
        for name, tid, text in names:
            self._items.add({"name": name, "ph": "M", "pid": replica, "tid": tid, "args": {"name": text}})


class EventTrace:
    """The events of one run. Arrivals are known before their instants and wait for those of other events."""

    def __init__(self, file: RowFile) -> None:
        self._items = JsonItems(file)
        self._arrivals: deque[tuple[Micros, int]] = deque()

    def add_arrival(self, at: Micros, number: int) -> None:
        """Note an arrival, which is not before those noted so far."""
        self._arrivals.append((at, number))

    def add_event(self, at: Micros, event_type: str, **details: object) -> None:
        """Write an event, after the arrivals up to its instant."""
        self._write_arrivals(at)
        self._items.add({"time": at / 1e6, "event_type": event_type, **details})

    def end(self, until: Micros) -> None:
        """Write the arrivals up to the end of the run, and close the array."""
        self._write_arrivals(until)
        self._items.end()

    def _write_arrivals(self, until: Micros) -> None:
        arrivals = self._arrivals
        while arrivals and arrivals[0][0] <= until:
            at, number = arrivals.popleft()
            self._items.add({"time": at / 1e6, "event_type": "request_arrival", "request_id": number})

"""Files of aiperf: records of requests (`profile_export.jsonl`), and graphs of sessions (dag_jsonl)."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import orjson

from traces.graph import ids_text
from traces.importers.messages import words_of
from traces.importers.reading import (
    Unread,
    at,
    check_order,
    check_times,
    drawn_arrivals_us,
    expect,
    json_lines,
    sendable_rows,
    token_counter,
)
from traces.importers.registry import ConvertOptions, Imported, recording, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_UNITS_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "sec": 1e6, "s": 1e6}


_METADATA_KEYS = (
    "benchmark_phase",
    "request_start_ns",
    "request_end_ns",
    "credit_issued_ns",
    "was_cancelled",
    "x_request_id",
    "x_correlation_id",
    "conversation_id",
    "turn_index",
)
_METRICS = (
    "time_to_first_token",
    "inter_chunk_latency",
    "request_latency",
    "usage_completion_tokens",
    "output_sequence_length",
    "input_sequence_length",
    "error_isl",
    "usage_prompt_tokens",
    "reasoning_token_count",
)
_ONLY_OF_STREAMS = ("inter_chunk_latency", "inter_token_latency", "time_to_second_token")


def convert(options: ConvertOptions) -> Imported:
    """The requests that were measured, due when their credit was issued. Raises TraceError."""
    found, num_warmup, unread = [], 0, Unread()
    for place, entry in json_lines(options.path):
        about = at(place, entry, "metadata", "an object")
        if about.get("benchmark_phase", "profiling") != "profiling":
            num_warmup += 1
            continue
        metrics = expect(f"{place} key metrics", "an object", entry.get("metrics") or {})
        unread.add(entry, ("metadata", "metrics", "error"))
        unread.add(about, _METADATA_KEYS, "metadata ")
        unread.add(metrics, _METRICS, "metric ")
        found.append(_request(place, about, metrics, entry))
    if not found:
        raise TraceError(f"{options.path}: expected records of the phase profiling, got none")
    conversations = {row.session_id for row, _ in found if row.round_index}
    note = ("how much of the conversation before it the prompt of a round repeats is not in the file",)
    kept = [
        (row if row.session_id in conversations else replace(row, session_id="", round_index=0), times)
        for row, times in found
    ]
    notes = (*(note if conversations else ()), *unread.note())
    return recording(options, kept, notes, requests_of_the_warmup=num_warmup)


def _request(
    place: str, about: Mapping[str, Any], metrics: Mapping[str, Any], entry: Mapping[str, Any]
) -> tuple[TraceRow, list[int]]:
    """The row, and the chunk times."""
    sent_us, ended_us = _ns(place, about, "request_start_ns"), _ns(place, about, "request_end_ns")
    due_us = _ns(place, about, "credit_issued_ns") if about.get("credit_issued_ns") is not None else 0
    check_order(place, ("request_start_ns", sent_us), ("request_end_ns", ended_us))
    error = entry.get("error")
    status = "incomplete" if about.get("was_cancelled") else "ok" if error is None else "error"
    needs = status == "ok"
    ttft_us = _duration_us(place, metrics, "time_to_first_token")
    if needs and ttft_us is None and any(name in metrics for name in _ONLY_OF_STREAMS):
        raise TraceError(f"{place}: the metric time_to_first_token is missing, which others of a stream are there")
    num_output_tokens = _count(place, metrics, "usage_completion_tokens", "output_sequence_length", is_needed=needs)
    gaps_us = _durations_us(place, metrics, "inter_chunk_latency")
    times: list[int] = []
    if ttft_us is not None and error is None:
        times = [sent_us + round(each) for each in accumulate(gaps_us, initial=ttft_us)]
    ends = times or ([ended_us] if needs else [])
    if len(times) == 1 and num_output_tokens > 1:  # of the chunks behind the first nothing is said but their end
        latency_us = _duration_us(place, metrics, "request_latency")
        ends, times = [times[0], ended_us if latency_us is None else sent_us + round(latency_us)], []
    row = TraceRow(
        request_id=0,
        session_id=str(about.get("x_correlation_id") or about.get("conversation_id") or ""),
        round_index=_turn(place, about),
        streaming=ttft_us is not None,
        input_tokens=_count(
            place, metrics, "input_sequence_length", "error_isl", "usage_prompt_tokens", is_needed=needs
        ),
        output_tokens=num_output_tokens,
        server_input_tokens=_count(place, metrics, "usage_prompt_tokens"),
        reason_ratio=_share(_count(place, metrics, "reasoning_token_count"), num_output_tokens),
        arrival_time_us=due_us,
        send_time_us=sent_us,
        first_chunk_time_us=ends[0] if ends else 0,
        last_chunk_time_us=ends[-1] if ends else 0,
        num_chunks=len(times) or int(ttft_us is None and bool(ends)),
        status=status,
        error_message=str(error.get("message", "")) if isinstance(error, dict) else str(error or ""),
        x_request_id=str(about.get("x_request_id") or ""),
    )
    check_times(place, row)
    return row, times


def _turn(place: str, about: Mapping[str, Any]) -> int:
    turn = about.get("turn_index")
    return 0 if turn is None else int(expect(f"{place} key turn_index", "a whole number", turn))


def _ns(place: str, about: Mapping[str, Any], key: str) -> int:
    """A Unix time in nanoseconds, as microseconds."""
    return int(at(f"{place} key metadata", about, key, "a time in nanoseconds")) // 1000


def _metric(place: str, metrics: Mapping[str, Any], name: str) -> tuple[Any, str] | None:
    found = metrics.get(name)
    if found is None:
        return None
    expect(f"{place} metric {name}", "an object", found)
    return found.get("value"), str(found.get("unit", ""))


def _duration_us(place: str, metrics: Mapping[str, Any], name: str) -> float | None:
    found = _metric(place, metrics, name)
    return None if found is None else _in_us(f"{place} metric {name}", *found)


def _durations_us(place: str, metrics: Mapping[str, Any], name: str) -> list[float]:
    found = _metric(place, metrics, name)
    if found is None:
        return []
    values = expect(f"{place} metric {name}", "a list", found[0])
    return [_in_us(f"{place} metric {name}", each, found[1]) for each in values]


def _in_us(place: str, value: Any, unit: str) -> float:
    if unit not in _UNITS_US:
        raise TraceError(f"{place}: expected a unit out of {', '.join(_UNITS_US)}, got {unit!r}")
    return float(expect(place, "a number", value)) * _UNITS_US[unit]


def _count(place: str, metrics: Mapping[str, Any], *names: str, is_needed: bool = False) -> int:
    """The first of these metrics that is there, else 0. Raises TraceError where none is and one is needed."""
    for name in names:
        found = _metric(place, metrics, name)
        if found is not None:
            return round(float(expect(f"{place} metric {name}", "a number", found[0])))
    if is_needed:
        raise TraceError(f"{place}: the metric {' or '.join(names)} is missing, found {', '.join(metrics) or 'none'}")
    return 0


def _share(part: int, whole: int) -> float:
    return min(1.0, part / whole) if whole else 0.0


_UNREAD = ("orchestrator", "spawns", "rounds", "pre_session_spawns")
_MAX_DEPTH = 100
_MAX_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn: the tokens of its own messages, and the sessions that it starts."""

    own_tokens: int
    output_tokens: int
    pause_us: int
    forks: tuple[str, ...]
    ends_with_forks: bool
    spawns: tuple[tuple[str, int], ...]
    """Sessions, each with the turn that waits for its end."""
    model: str


def convert_dag(options: ConvertOptions) -> Imported:
    """The sessions that no other one starts, with all that they start; several begin at --rate. Raises BlisError."""
    count_tokens, how = token_counter(options)
    sessions: dict[str, list[_Turn]] = {}
    left_out: Counter[str] = Counter()
    unread = Unread()
    for place, entry in json_lines(options.path):
        session_id = at(place, entry, "session_id", "text")
        if session_id in sessions:
            raise TraceError(f"{place} key session_id: expected a name that no line before has, got {session_id!r}")
        unread.add(entry, ("session_id", "turns", *_UNREAD))
        for key in _UNREAD:
            if entry.get(key):
                raise TraceError(f"{place} key {key}: expected none, sessions without turns of their own are not read")
        turns = at(place, entry, "turns", "a list")
        sessions[session_id] = [
            _dag_turn(f"{place} turn {number}", number, each, count_tokens, left_out, unread)
            for number, each in enumerate(turns)
        ]
    started = {child for turns in sessions.values() for turn in turns for child in _children(turn)}
    if missing := sorted(started - set(sessions)):
        raise TraceError(f"{options.path}: a turn starts the session {missing[0]!r}, which no line has")
    roots = [name for name in sessions if name not in started]
    if not roots:
        raise TraceError(f"{options.path}: expected a session that no other one starts, got none")
    starts_us = [0] if len(roots) == 1 else drawn_arrivals_us(options, len(roots))
    graph = _Rows(options, sessions)
    for name, start_us in zip(roots, starts_us, strict=True):
        graph.add(name, name, start_us, None, 0)
    first = sendable_rows(options, graph.rows, left_out)
    notes = (how, *unread.note())
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


class _Rows:
    """The rows of the sessions that have been started so far."""

    def __init__(self, options: ConvertOptions, sessions: dict[str, list[_Turn]]) -> None:
        self._path = options.path
        self._sessions = sessions
        self.rows: list[TraceRow] = []

    def add(self, name: str, root: str, at_us: int, forked: TraceRow | None, depth: int, parent: int = -1) -> int:
        """Add a session started at this time; `forked` is the turn whose text it goes on from. Returns its last row.

        The session of a row is the root. Times of arrival take 1 us for each token of a reply.
        """
        if depth > _MAX_DEPTH:
            raise TraceError(
                f"{self._path}: sessions start each other more than {_MAX_DEPTH} deep, {name!r} among them"
            )
        joins: dict[int, list[int]] = {}
        before, parents = forked, [] if parent < 0 else [parent]
        for number, turn in enumerate(self._sessions[name]):
            if len(self.rows) >= _MAX_ROWS:
                raise TraceError(f"{self._path}: expected at most {_MAX_ROWS} turns with all sessions that are started")
            parents = list(dict.fromkeys([*parents, *joins.get(number, ())]))
            ready_us = max((_ended_us(self.rows[each]) for each in parents), default=at_us)
            context = 0 if before is None else before.input_tokens + before.output_tokens
            row = TraceRow(
                request_id=len(self.rows),
                session_id=root,
                round_index=len(self.rows),
                model=turn.model,
                arrival_time_us=ready_us + turn.pause_us,
                input_tokens=context + turn.own_tokens,
                output_tokens=turn.output_tokens,
                parents=ids_text(parents),
                think_time_us=turn.pause_us if parents else 0,
                context_of="" if before is None else str(before.request_id),
                context_tokens=context,
            )
            self.rows.append(row)
            for child in turn.forks:
                self.add(child, root, _ended_us(row), row, depth + 1, row.request_id)
            for child, join_at in turn.spawns:
                joins.setdefault(join_at, []).append(
                    self.add(child, root, _ended_us(row), None, depth + 1, row.request_id)
                )
            before, parents = row, [row.request_id]
            if turn.ends_with_forks:
                break
        return parents[0] if parents else parent


def _ended_us(row: TraceRow) -> int:
    return row.arrival_time_us + row.output_tokens


def _children(turn: _Turn) -> Iterator[str]:
    yield from turn.forks
    yield from (child for child, _ in turn.spawns)


_TURN_KEYS = ("messages", "tools", "forks", "max_tokens", "delay", "spawns", "model")


def _dag_turn(
    place: str, number: int, given: Any, count_tokens: Callable[[str], int], left_out: Counter[str], unread: Unread
) -> _Turn:
    entry = expect(place, "an object", given)
    unread.add(entry, _TURN_KEYS, "turn ")
    messages = at(place, entry, "messages", "a list")
    tools = expect(f"{place} key tools", "a list", entry.get("tools") or [])
    forks, ends = [], False
    for each in expect(f"{place} key forks", "a list", entry.get("forks") or []):
        is_object = isinstance(each, dict)
        forks.append(at(f"{place} fork", each, "child", "text") if is_object else expect(f"{place} fork", "text", each))
        ends = ends or not (is_object and each.get("background"))
    return _Turn(
        own_tokens=sum(count_tokens(words_of(f"{place} message", each, left_out)) for each in messages)
        + (count_tokens(orjson.dumps(tools).decode()) if tools else 0),
        output_tokens=at(place, entry, "max_tokens", "a whole number"),
        pause_us=round(expect(f"{place} key delay", "a time in milliseconds", entry.get("delay") or 0) * 1000),
        forks=tuple(forks),
        ends_with_forks=ends,
        spawns=tuple(_spawns(place, number, expect(f"{place} key spawns", "a list", entry.get("spawns") or []))),
        model=expect(f"{place} key model", "text", entry.get("model") or ""),
    )


def _spawns(place: str, number: int, entries: list[Any]) -> Iterator[tuple[str, int]]:
    for each in entries:
        if not isinstance(each, dict):
            yield expect(f"{place} spawn", "text", each), number + 1
            continue
        join_at = each.get("join_at")
        join = number + 1 if join_at is None else expect(f"{place} key join_at", "a whole number", join_at)
        for child in at(f"{place} spawn", each, "children", "a list"):
            yield expect(f"{place} spawn", "text", child), join

"""Sessions of agents and chats: OpenTelemetry spans, Weka's traces and Bailian's.

OpenTelemetry spans stand in OTLP's JSON, or flat as traces are published. Flat spans are in a list `spans`, or one a
line, their attributes an object and their times as text. Weka's KV-cache tester has a JSON object per session, with
requests, helpers and block hashes. Bailian has JSON lines with seconds, lengths and hashes of blocks of 16 tokens; a
request names the one whose conversation it continues.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from traces.importers.agent_calls import BlockHashTree, Call, rows_of
from traces.importers.messages import words_of
from traces.importers.reading import (
    MAX_S,
    OTHER_BLOCKS,
    Unread,
    at,
    block_hashes,
    check_order,
    drawn_arrivals_us,
    expect,
    first_at,
    json_files,
    json_lines,
    json_objects,
    seconds_us,
    token_counter,
    unix_us,
    workload,
)
from traces.importers.registry import ConvertOptions, Imported
from traces.rows import TraceRow
from traces.text_file import TraceError

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_INPUT_TEXT, _OUTPUT_TEXT = "gen_ai.input.messages", "gen_ai.output.messages"
_MODELS = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
"""Names of OpenTelemetry's conventions, and behind them those of OpenInference."""
_CALLS = ("chat", "text_completion", "generate_content", "generate")
_NO_CALLS = ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "embeddings", "retrieval")
_FAILED = (2, "STATUS_CODE_ERROR", "ERROR")
_KNOWN = (
    *_INPUT,
    *_OUTPUT,
    "gen_ai.operation.name",
    "gen_ai.conversation.id",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "gen_ai.response.time_to_first_chunk",
)


class _Span(NamedTuple):
    place: str
    trace_id: str
    span_id: str
    parent_id: str
    start_us: int
    end_us: int
    attributes: Mapping[str, Any]
    has_failed: bool

    @property
    def is_call(self) -> bool:
        """Whether the span is one call of a model: spans of agents have the sums of their calls."""
        operation = self.attributes.get("gen_ai.operation.name")
        return operation not in _NO_CALLS and (operation in _CALLS or self.has_any(_INPUT))

    def has_any(self, names: tuple[str, ...]) -> bool:
        return any(self.attributes.get(name) is not None for name in names)


def convert_spans(options: ConvertOptions) -> Imported:
    """The calls of a file, or of all JSON files of a folder. Raises TraceError."""
    spans = list(_spans(options))
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    sessions: dict[str, list[Call]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    reader = _Reader(*token_counter(options), left_out)
    for span in spans:
        if not span.is_call:
            left_out["spans that are no calls of a model"] += 1
        elif span.has_failed and not (span.has_any(_INPUT) and span.has_any(_OUTPUT)):
            left_out["calls that failed"] += 1
        else:
            session_id = str(span.attributes.get("gen_ai.conversation.id") or span.trace_id)
            sessions[session_id].append(reader.call(span, (session_id, *_ancestors(span, by_id))))
    rows: list[TraceRow] = []
    for session_id, calls in sessions.items():
        rows += rows_of(calls, session_id, len(rows), 0, 1)
    if not rows:
        raise TraceError(f"{options.path}: expected spans with gen_ai.usage.input_tokens, got none")
    notes = ("what calls waited for is worked out from their times and parent spans", *reader.notes())
    return workload(options, rows, left_out, notes)


def _spans(options: ConvertOptions) -> Iterator[_Span]:
    for path in json_files(options.path):
        for place, document in json_objects(path):
            yield from _spans_of(place, document)


def _spans_of(place: str, document: dict[str, Any]) -> Iterator[_Span]:
    """The spans of an export request, of an object with spans, or the one span that the object is."""
    if "spans" in document:
        yield from _flat(place, at(place, document, "spans", "a list"), document)
    elif "span_id" in document or "context" in document:
        yield _span(place, document, {})
    else:
        for of_resource in first_at(place, document, ("resourceSpans", "resource_spans"), "a list"):
            resource = expect(place, "an object", of_resource)
            for of_scope in first_at(place, resource, ("scopeSpans", "scope_spans"), "a list"):
                yield from _flat(place, at(place, expect(place, "an object", of_scope), "spans", "a list"), {})


def _flat(place: str, spans: list[Any], around: Mapping[str, Any]) -> Iterator[_Span]:
    for number, each in enumerate(spans):
        yield _span(f"{place} span {number}", expect(f"{place} span {number}", "an object", each), around)


def _span(place: str, given: dict[str, Any], around: Mapping[str, Any]) -> _Span:
    """A span; `around` is the object that has it, which may name the trace."""
    context = expect(f"{place} key context", "an object", given.get("context") or {})
    entry = {**context, **given}
    named = {**entry, "session_id": around.get("trace_id") or around.get("session_id")}
    start_us = _time_us(place, entry, ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"))
    end_us = _time_us(place, entry, ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime"))
    check_order(place, ("its begin", start_us), ("its end", end_us))
    given_status = entry.get("status") or {}
    is_word = isinstance(given_status, str)
    status = {"code": given_status} if is_word else expect(f"{place} key status", "an object", given_status)
    parent = next((entry[key] for key in ("parentSpanId", "parent_span_id", "parent_id") if entry.get(key)), "")
    return _Span(
        place=place,
        trace_id=first_at(place, named, ("traceId", "trace_id", "session_id"), "text"),
        span_id=first_at(place, entry, ("spanId", "span_id"), "text"),
        parent_id=expect(f"{place} parent span", "text", parent),
        start_us=start_us,
        end_us=end_us,
        attributes=_attributes(place, entry.get("attributes") or {}),
        has_failed=any(status.get(key) in _FAILED for key in ("code", "status_code")),
    )


def _time_us(place: str, entry: dict[str, Any], keys: tuple[str, ...]) -> int:
    """A time: nanoseconds, which OTLP's JSON has as text, seconds with a fraction, or a time of day as text."""
    key = next((key for key in keys if entry.get(key) is not None), None)
    if key is None:
        raise TraceError(f"{place}: the key {' or '.join(keys)} is missing, found {', '.join(entry)}")
    given = entry[key]
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)
    if isinstance(given, float):
        return round(float(expect(f"{place} key {key}", "a time in seconds", given)) * 1e6)
    if not isinstance(given, str):
        return int(expect(f"{place} key {key}", "a time in nanoseconds", given)) // 1000
    try:
        return unix_us(given)
    except ValueError:
        raise TraceError(f"{place} key {key}: expected a time in nanoseconds or of a day, got {given[:60]!r}") from None


def _attributes(place: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, dict):
        return given
    return dict(_attribute(place, each) for each in expect(f"{place} key attributes", "a list", given))


def _attribute(place: str, entry: Any) -> tuple[str, Any]:
    inside = f"{place} attribute"
    key = at(inside, expect(inside, "an object", entry), "key", "text")
    value = expect(f"{inside} {key}", "an object", entry.get("value") or {})
    return key, next(iter(value.values()), None)


def _ancestors(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> list[str]:
    """The ids of the spans around a span, the outermost first."""
    found: dict[str, None] = {}
    above = by_id.get((span.trace_id, span.parent_id))
    while above is not None and above.span_id not in found:
        found[above.span_id] = None
        above = by_id.get((span.trace_id, above.parent_id))
    return list(found)[::-1]


class _Reader:
    """Reads calls; knows whether tokens were counted here, and what else has no place."""

    def __init__(self, count_tokens: Callable[[str], int], how: str, left_out: Counter[str]) -> None:
        self._count_tokens = count_tokens
        self._how = how
        self._left_out = left_out
        self._unread = Unread()
        self._num_counted = 0

    def notes(self) -> tuple[str, ...]:
        """Return notes on counts that are not in the file, and on attributes that were not read."""
        counted = (
            (f"{self._num_counted} counts of tokens are not in the file: {self._how}",) if self._num_counted else ()
        )
        return (*counted, *self._unread.note())

    def call(self, span: _Span, path: tuple[str, ...]) -> Call:
        """The call that a span is. Raises TraceError for one of which neither tokens nor text is there."""
        self._unread.add(span.attributes, _KNOWN)
        model = next((found for name in _MODELS if (found := span.attributes.get(name))), "")
        return Call(
            start_us=span.start_us,
            end_us=span.end_us,
            path=path,
            input_tokens=self._tokens(span, _INPUT, _INPUT_TEXT),
            output_tokens=self._tokens(span, _OUTPUT, _OUTPUT_TEXT),
            model=str(model),
            streaming="gen_ai.response.time_to_first_chunk" in span.attributes,
        )

    def _tokens(self, span: _Span, names: tuple[str, ...], text: str) -> int:
        """A count of tokens, which OTLP's JSON has as text like all integers of 64 bits; else that of the messages."""
        for name in names:
            given = span.attributes.get(name)
            if given is not None:
                is_text = isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 16
                return int(expect(f"{span.place} attribute {name}", "a whole number", int(given) if is_text else given))
        if span.attributes.get(text) is None:
            raise TraceError(f"{span.place}: the attribute {names[0]} is missing, and there is no {text} to count")
        self._num_counted += 1
        return sum(
            map(self._count_tokens, _message_texts(f"{span.place} attribute {text}", span, text, self._left_out))
        )


def _message_texts(place: str, span: _Span, name: str, left_out: Counter[str]) -> list[str]:
    given = span.attributes[name]
    if isinstance(given, str):
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{place}: expected JSON, {error.msg}") from error
    messages = expect(place, "a list", given)
    return [words_of(place, _with_content(place, each), left_out) for each in messages]


def _with_content(place: str, message: Any) -> dict[str, Any]:
    """A message whose parts, as OpenTelemetry has them, stand in `content` as those of other messages do."""
    known: dict[str, Any] = expect(place, "an object", message)
    parts = known.get("parts")
    if not isinstance(parts, list):
        return known
    return {"content": [_part(each) for each in parts]}


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") in ("text", "reasoning") and isinstance(part.get("content"), str):
        return {"type": "text", "text": part["content"]}
    if part.get("type") == "tool_call_response":
        result = part.get("result", part.get("response"))
        return {"type": "text", "text": result if isinstance(result, str) else orjson.dumps(result).decode()}
    return part


_CALL_TYPES = ("n", "s")


_TRACE_KEYS = ("id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests", "totals")
_CALL_KEYS = ("t", "type", "in", "out", "hash_ids", "api_time", "think_time")
_AGENT_KEYS = ("t", "type", "agent_id", "subagent_type", "requests", "models", "tool_tokens", "system_tokens", "status")
_TOLERANCE_S = 0.01


def convert_weka(options: ConvertOptions) -> Imported:
    """The sessions of a file, or of all JSON files of a folder; several begin at --rate. Raises BlisError."""
    path = options.path
    sessions = [session for each in json_files(path) for session in json_objects(each)]
    starts_us = [0] if len(sessions) == 1 else drawn_arrivals_us(options, len(sessions))
    rows: list[TraceRow] = []
    left_out: Counter[str] = Counter()
    unread = Unread()
    num_relative = 0
    for (place, entry), start_us in zip(sessions, starts_us, strict=True):
        unread.add(entry, _TRACE_KEYS)
        session_id = at(place, entry, "id", "text")
        block_tokens = at(place, entry, "block_size", "a whole number")
        if not block_tokens:
            raise TraceError(f"{place} key block_size: expected a whole number above 0, got 0")
        scope = entry.get("hash_id_scope", "local")
        if scope != "local":
            raise TraceError(f"{place} key hash_id_scope: expected local, hashes of its own session, got {scope!r}")
        reader = _Session(block_tokens, left_out, unread)
        calls = list(reader.calls(place, at(place, entry, "requests", "a list"), (session_id,), 0.0))
        rows += rows_of(calls, session_id, len(rows), start_us, block_tokens)
        num_relative += reader.num_relative
    how = (f"times of {num_relative} helpers count from the start of their helper",) if num_relative else ()
    return workload(options, rows, left_out, (*how, *unread.note()))


class _Session:
    """Reads the calls of a session, and counts what has no place."""

    def __init__(self, block_tokens: int, left_out: Counter[str], unread: Unread) -> None:
        self._block_tokens = block_tokens
        self._left_out = left_out
        self._unread = unread
        self.num_relative = 0

    def calls(self, place: str, entries: list[Any], path: tuple[str, ...], origin_s: float) -> Iterator[Call]:
        """The calls of a session, or of a helper in it; their times count from `origin_s`."""
        for number, each in enumerate(entries):
            inside = f"{place} request {number}"
            entry = expect(inside, "an object", each)
            kind = at(inside, entry, "type", "text")
            if kind == "subagent":
                yield from self._calls_of_helper(inside, entry, number, path, origin_s)
            elif kind in _CALL_TYPES:
                self._unread.add(entry, _CALL_KEYS)
                call = _call(inside, entry, path, origin_s, self._block_tokens, is_streaming=kind == "s")
                if call.input_tokens and call.output_tokens:
                    yield call
                else:
                    self._left_out["requests without prompt or output tokens"] += 1
            else:
                raise TraceError(f"{inside} key type: expected n, s or subagent, got {kind!r}")

    def _calls_of_helper(
        self, place: str, entry: dict[str, Any], number: int, path: tuple[str, ...], origin_s: float
    ) -> Iterator[Call]:
        """The calls of a helper: a first one before the helper starts shows that times count from that start."""
        self._unread.add(entry, _AGENT_KEYS, "subagent ")
        agent = f"{number}-{at(place, entry, 'agent_id', 'text')}"
        requests = at(place, entry, "requests", "a list")
        start_s = at(place, entry, "t", "a time in seconds")
        times_s = [each["t"] for each in requests if isinstance(each, dict) and isinstance(each.get("t"), int | float)]
        is_relative = bool(times_s) and min(times_s) < start_s - _TOLERANCE_S
        self.num_relative += is_relative
        yield from self.calls(place, requests, (*path, agent), origin_s + start_s if is_relative else origin_s)


def _call(
    place: str, entry: dict[str, Any], path: tuple[str, ...], origin_s: float, block_tokens: int, *, is_streaming: bool
) -> Call:
    start_us = round((origin_s + at(place, entry, "t", "a time in seconds")) * 1e6)
    took_us = seconds_us(place, entry, "api_time")
    input_tokens = at(place, entry, "in", "a whole number")
    return Call(
        start_us=min(start_us, MAX_S * 1_000_000),
        end_us=min(start_us + took_us, MAX_S * 1_000_000),
        path=path,
        input_tokens=input_tokens,
        output_tokens=at(place, entry, "out", "a whole number"),
        streaming=is_streaming,
        hash_ids=tuple(block_hashes(place, entry, input_tokens, block_tokens)),
    )


_BAILIAN_BLOCK_TOKENS = 16
_BAILIAN_KEYS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn", "hash_ids")


def convert_bailian(options: ConvertOptions) -> Imported:
    """The requests of a trace; those of one conversation have its first chat as their session. Raises TraceError."""
    block_tokens = options.block_tokens or _BAILIAN_BLOCK_TOKENS
    of_chat: dict[int, TraceRow] = {}
    rows: list[TraceRow] = []
    shared = BlockHashTree()
    unread = Unread()
    num_orphans = 0
    for place, entry in json_lines(options.path):
        unread.add(entry, _BAILIAN_KEYS)
        chat = at(place, entry, "chat_id", "a whole number")
        if chat in of_chat:
            raise TraceError(f"{place} key chat_id: expected a chat that no line before has, got {chat}")
        before = _before(place, entry, of_chat)
        turn = _turn(place, entry, before)
        num_orphans += before is None and turn > 1
        input_tokens = at(place, entry, "input_length", "a whole number")
        hash_ids = block_hashes(place, entry, input_tokens, block_tokens, OTHER_BLOCKS)
        arrival_us = _arrival_us(place, entry, before)
        other, tokens = shared.repeated(len(rows), hash_ids, input_tokens, block_tokens)
        of_chat[chat] = TraceRow(
            request_id=len(rows),
            tenant_id=expect(f"{place} key type", "text", entry.get("type") or ""),
            session_id=str(chat) if before is None else before.session_id,
            round_index=turn - 1,
            arrival_time_us=arrival_us,
            input_tokens=input_tokens,
            output_tokens=at(place, entry, "output_length", "a whole number"),
            parents="" if before is None else str(before.request_id),
            think_time_us=0 if before is None else arrival_us - before.arrival_time_us,
            context_of="" if other is None else str(other),
            context_tokens=tokens,
        )
        rows.append(of_chat[chat])
    left_out = Counter({"parent_chat_id of requests whose parents are not in the file": num_orphans})
    notes = (
        "the type of a request stands in tenant_id",
        "the pause before a turn is the time since the turn before arrived: replies have no times in the file",
        *unread.note(),
    )
    return workload(options, rows, left_out, notes)


def _before(place: str, entry: dict[str, Any], of_chat: dict[int, TraceRow]) -> TraceRow | None:
    """The request whose conversation this one continues; -1 names none."""
    if entry.get("parent_chat_id") == -1:
        return None
    return of_chat.get(at(place, entry, "parent_chat_id", "a whole number"))


def _turn(place: str, entry: dict[str, Any], before: TraceRow | None) -> int:
    turn: int = at(place, entry, "turn", "a whole number")
    expected = max(1, turn) if before is None else before.round_index + 2
    if turn != expected:
        raise TraceError(f"{place} key turn: expected {expected}, as parent_chat_id says, got {turn}")
    return turn


def _arrival_us(place: str, entry: dict[str, Any], before: TraceRow | None) -> int:
    arrival_us = seconds_us(place, entry, "timestamp")
    if before is not None and arrival_us < before.arrival_time_us:
        raise TraceError(f"{place} key timestamp: expected none below that of its parent")
    return arrival_us

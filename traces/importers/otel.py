"""OpenTelemetry spans of generative AI: the calls of models that each trace or conversation made.

Spans stand in OTLP's JSON, or flat as traces are published: in a list `spans`, or one a line, their attributes an
object and their times as text.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from traces.importers.agent_calls import Call, rows_of
from traces.importers.messages import words_of
from traces.importers.reading import (
    Unread,
    at,
    check_order,
    expect,
    first_at,
    json_documents,
    json_files,
    sendable_rows,
    token_counter,
)
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_INPUT_TEXT, _OUTPUT_TEXT = "gen_ai.input.messages", "gen_ai.output.messages"
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


def convert(options: ConvertOptions) -> Imported:
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
    first = sendable_rows(options, rows, left_out)
    notes = ("what calls waited for is worked out from their times and parent spans", *reader.notes())
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


def _spans(options: ConvertOptions) -> Iterator[_Span]:
    for path in json_files(options.path):
        for place, document in json_documents(path):
            for number, each in enumerate(document if isinstance(document, list) else [document]):
                inside = f"{place} entry {number}" if isinstance(document, list) else place
                yield from _spans_of(inside, expect(inside, "an object", each))


def _spans_of(place: str, document: dict[str, Any]) -> Iterator[_Span]:
    """The spans of an export request, of an object with spans, or the one span that the object is."""
    if "spans" in document:
        yield from _flat(place, at(place, document, "spans", "a list"), document)
    elif "span_id" in document or "context" in document:
        yield _span(place, document, {})
    else:
        for of_resource in at(place, document, "resourceSpans", "a list"):
            scopes = at(place, expect(place, "an object", of_resource), "scopeSpans", "a list")
            for of_scope in scopes:
                yield from _flat(place, at(place, expect(place, "an object", of_scope), "spans", "a list"), {})


def _flat(place: str, spans: list[Any], around: Mapping[str, Any]) -> Iterator[_Span]:
    for number, each in enumerate(spans):
        yield _span(f"{place} span {number}", expect(f"{place} span {number}", "an object", each), around)


def _span(place: str, given: dict[str, Any], around: Mapping[str, Any]) -> _Span:
    """A span; `around` is the object that has it, which may name the trace."""
    context = expect(f"{place} key context", "an object", given.get("context") or {})
    entry = {**context, **given}
    named = {**entry, "session_id": around.get("trace_id") or around.get("session_id")}
    start_us = _time_us(place, entry, ("startTimeUnixNano", "start_time"))
    end_us = _time_us(place, entry, ("endTimeUnixNano", "end_time"))
    check_order(place, ("its begin", start_us), ("its end", end_us))
    status = expect(f"{place} key status", "an object", entry.get("status") or {})
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
    """A time: nanoseconds, which OTLP's JSON has as text, or a time of day as text."""
    key = next((key for key in keys if entry.get(key) is not None), keys[0])
    given = entry.get(key)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20:
        given = int(given)
    if not isinstance(given, str):
        return int(expect(f"{place} key {key}", "a time in nanoseconds", given)) // 1000
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        raise TraceError(f"{place} key {key}: expected a time in nanoseconds or of a day, got {given[:60]!r}") from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


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
        model = span.attributes.get("gen_ai.request.model") or span.attributes.get("gen_ai.response.model")
        return Call(
            start_us=span.start_us,
            end_us=span.end_us,
            path=path,
            input_tokens=self._tokens(span, _INPUT, _INPUT_TEXT),
            output_tokens=self._tokens(span, _OUTPUT, _OUTPUT_TEXT),
            model=str(model or ""),
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

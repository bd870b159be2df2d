"""OpenTelemetry spans of generative AI, in OTLP's JSON: the calls of models that each trace or conversation made."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from traces.importers.agent_calls import Call, rows_of
from traces.importers.reading import at, expect, json_lines, sendable_rows
from traces.importers.registry import ConvertOptions, Imported, workload_header
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


class _Span(NamedTuple):
    place: str
    trace_id: str
    span_id: str
    parent_id: str
    start_us: int
    end_us: int
    attributes: Mapping[str, Any]


def convert(options: ConvertOptions) -> Imported:
    """The calls of a file of the collector's file exporter, or of one export request. Raises TraceError."""
    spans = list(_spans(options))
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    sessions: dict[str, list[Call]] = defaultdict(list)
    num_others = 0
    for span in spans:
        if any(name in span.attributes for name in _INPUT):
            session_id = str(span.attributes.get("gen_ai.conversation.id") or span.trace_id)
            sessions[session_id].append(_call(span, (session_id, *_ancestors(span, by_id))))
        else:
            num_others += 1
    rows: list[TraceRow] = []
    for session_id, calls in sessions.items():
        rows += rows_of(calls, session_id, len(rows), 0, 1)
    if not rows:
        raise TraceError(f"{options.path}: expected spans with gen_ai.usage.input_tokens, got none")
    left_out = Counter({"spans that are no calls of a model with its token counts": num_others})
    first = sendable_rows(options, rows, left_out)
    notes = ("what calls waited for is worked out from their times and parent spans",)
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


def _spans(options: ConvertOptions) -> Iterator[_Span]:
    path = options.path
    if path.suffix == ".json":
        documents: list[tuple[str, Any]] = [(str(path), expect(str(path), "an object", read_json(path)))]
    else:
        documents = list(json_lines(path))
    for place, document in documents:
        for of_resource in at(place, document, "resourceSpans", "a list"):
            scopes = at(place, expect(place, "an object", of_resource), "scopeSpans", "a list")
            for of_scope in scopes:
                spans = at(place, expect(place, "an object", of_scope), "spans", "a list")
                for number, each in enumerate(spans):
                    yield _span(f"{place} span {number}", expect(f"{place} span {number}", "an object", each))


def _span(place: str, entry: dict[str, Any]) -> _Span:
    attributes = expect(f"{place} key attributes", "a list", entry.get("attributes") or [])
    return _Span(
        place=place,
        trace_id=at(place, entry, "traceId", "text"),
        span_id=at(place, entry, "spanId", "text"),
        parent_id=expect(f"{place} key parentSpanId", "text", entry.get("parentSpanId") or ""),
        start_us=_time_us(place, entry, "startTimeUnixNano"),
        end_us=_time_us(place, entry, "endTimeUnixNano"),
        attributes=dict(_attribute(place, each) for each in attributes),
    )


def _time_us(place: str, entry: dict[str, Any], key: str) -> int:
    """A time in nanoseconds, which OTLP's JSON has as text."""
    given = entry.get(key)
    number = int(given) if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 20 else given
    return int(expect(f"{place} key {key}", "a time in nanoseconds", number)) // 1000


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


def _call(span: _Span, path: tuple[str, ...]) -> Call:
    return Call(
        start_us=span.start_us,
        end_us=max(span.start_us, span.end_us),
        path=path,
        input_tokens=_count(span, _INPUT),
        output_tokens=_count(span, _OUTPUT),
        model=str(span.attributes.get("gen_ai.request.model") or span.attributes.get("gen_ai.response.model") or ""),
        streaming="gen_ai.response.time_to_first_chunk" in span.attributes,
    )


def _count(span: _Span, names: tuple[str, ...]) -> int:
    """A count of tokens, which OTLP's JSON has as text like all integers of 64 bits."""
    for name in names:
        if name in span.attributes:
            given = span.attributes[name]
            is_text = isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 16
            return int(expect(f"{span.place} attribute {name}", "a whole number", int(given) if is_text else given))
    return 0

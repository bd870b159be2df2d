"""NVIDIA's programs: records and session graphs of AIPerf, and profiles of genai-perf.

A genai-perf request has the body that was sent, or the inputs of a Triton server: a text, or ids of tokens."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from blis_sim.options.file_fields import shortened
from traces.graph import ids_text
from traces.importers.messages import content_words, tool_call_words, words_of
from traces.importers.reading import (
    Unread,
    at,
    check_order,
    check_times,
    count_at,
    drawn_arrivals_us,
    expect,
    json_lines,
    json_value,
    token_counter,
    workload,
)
from traces.importers.registry import ConvertOptions, Imported, recording
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


def convert_records(options: ConvertOptions) -> Imported:
    """The requests that were measured, due when their credit was issued. Raises TraceError."""
    found, unread = [], Unread()
    left_out: Counter[str] = Counter()
    for place, entry in json_lines(options.path):
        about = at(place, entry, "metadata", "an object")
        phase = expect(f"{place} key benchmark_phase", "text", about.get("benchmark_phase") or "profiling")
        if phase != "profiling":
            left_out[f"requests of the phase {shortened(phase)}"] += 1
            continue
        metrics = expect(f"{place} key metrics", "an object", entry.get("metrics") or {})
        unread.add(entry, ("metadata", "metrics", "error"))
        unread.add(about, _METADATA_KEYS, "metadata ")
        unread.add(metrics, _METRICS, "metric ")
        found.append(_request(place, about, metrics, entry))
    if not found:
        raise TraceError(f"{options.path}: expected records of the phase profiling, got none")
    is_talk = any(row.round_index for row, _ in found)
    note = ("how much of the conversation before it the prompt of a round repeats is not in the file",)
    return recording(options, found, (*(note if is_talk else ()), *unread.note()), left_out)


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
        round_index=count_at(place, about, "turn_index"),
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
    check_times(place, row, end_us=ended_us)
    return row, times


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
    return workload(options, graph.rows, left_out, (how, *unread.note()))


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


CountTokens = Callable[[str], int]
_INPUT_KEYS = ("payload", "text_input", "input_ids", "stream", "session_id")
_PROMPTS = ("prompt", "text_input", "inputs", "input")


class _Prompt(NamedTuple):
    """A prompt: texts to be counted, or the number of its tokens; and whether the reply is a stream, if known."""

    texts: Sequence[str] = ()
    num_tokens: int = 0
    is_stream: bool | None = None


class _Piece(NamedTuple):
    """A piece of a reply: its time, its text, the tokens that it has as ids, and the body that it came in."""

    at_us: int
    text: str = ""
    num_tokens: int = 0
    body: Mapping[str, Any] = {}


def convert_profile(options: ConvertOptions) -> Imported:
    """The requests of all experiments, each a client. Raises TraceError.

    Tokens are those that the server reported, else those of --tokenizer, else a quarter of the characters.
    """
    source = str(options.path)
    reader = _Reader(*token_counter(options))
    profile = expect(source, "an object", json_value(options.path))
    found = []
    for number, experiment in enumerate(at(source, profile, "experiments", "a list")):
        place = f"{source} experiment {number}"
        for index, entry in enumerate(at(place, expect(place, "an object", experiment), "requests", "a list")):
            inside = f"{place} request {index}"
            row, times = reader.request(inside, expect(inside, "an object", entry))
            found.append((replace(row, client_id=f"experiment-{number}"), times))
    if not found:
        raise TraceError(f"{source}: expected requests in its experiments, got none")
    return recording(options, _numbered(found), reader.notes(), reader.left_out)


def _numbered(found: Sequence[tuple[TraceRow, list[int]]]) -> Iterator[tuple[TraceRow, list[int]]]:
    """The rows by time, those of a session numbered in this order."""
    rounds: Counter[tuple[str, str]] = Counter()
    for row, times in sorted(found, key=lambda each: each[0].send_time_us):
        session = (row.client_id, row.session_id)
        yield replace(row, round_index=rounds[session] if row.session_id else 0), times
        rounds[session] += 1


class _Reader:
    """Reads requests; knows whether tokens were counted here, and what else has no place."""

    def __init__(self, count_tokens: CountTokens, how: str) -> None:
        self._count_tokens = count_tokens
        self._how = how
        self._has_counted = False
        self._unread = Unread()
        self.left_out: Counter[str] = Counter()

    def notes(self) -> tuple[str, ...]:
        """Return notes on counts of tokens, and on values that were not read."""
        return (*((self._how,) if self._has_counted else ()), *self._unread.note())

    def request(self, place: str, entry: Mapping[str, Any]) -> tuple[TraceRow, list[int]]:
        """The row, and the times of chunks that brought text."""
        sent_us = at(place, entry, "timestamp", "a time in nanoseconds") // 1000
        pieces = list(_pieces(place, entry))
        said = [piece for piece in pieces if piece.text or piece.num_tokens]
        usage = _usage(pieces)
        inputs = at(place, entry, "request_inputs", "an object")
        prompt = self._prompt(f"{place} key request_inputs", inputs, is_needed=usage is None)
        times = [piece.at_us for piece in said] or [piece.at_us for piece in pieces]
        problem = "" if said or usage else _problem(pieces)
        row = TraceRow(
            request_id=0,
            session_id=str(inputs.get("session_id") or ""),
            streaming=len(times) > 1 if prompt.is_stream is None else prompt.is_stream,
            input_tokens=usage[0] if usage else prompt.num_tokens + sum(map(self._counted, prompt.texts)),
            output_tokens=usage[1] if usage else self._replied(said),
            server_input_tokens=usage[0] if usage else 0,
            arrival_time_us=0,
            send_time_us=sent_us,
            first_chunk_time_us=times[0] if times else 0,
            last_chunk_time_us=times[-1] if times else 0,
            num_chunks=len(times),
            status="error" if problem else "ok",
            error_message=problem,
        )
        check_times(place, row)
        return row, times if said else []

    def _replied(self, said: Sequence[_Piece]) -> int:
        """The tokens of a reply, those of whose text are counted as a whole."""
        return sum(piece.num_tokens for piece in said) + self._counted("".join(piece.text for piece in said))

    def _counted(self, text: str) -> int:
        self._has_counted = self._has_counted or bool(text)
        return self._count_tokens(text) if text else 0

    def _prompt(self, place: str, inputs: Mapping[str, Any], *, is_needed: bool) -> _Prompt:
        """The prompt; one that is not needed may be in a form that is not known."""
        self._unread.add(inputs, _INPUT_KEYS, "request_inputs ")
        stream = inputs["stream"] if isinstance(inputs.get("stream"), bool) else None
        if "text_input" in inputs:
            return _Prompt(_texts(f"{place}.text_input", inputs["text_input"], self.left_out)[0], 0, stream)
        if "input_ids" in inputs:
            return _Prompt((), _num_ids(f"{place}.input_ids", inputs["input_ids"]), stream)
        body = _body(place, at(place, inputs, "payload", "text"))
        stream = body["stream"] if isinstance(body.get("stream"), bool) else None
        texts, num_tokens = self._of_body(f"{place}.payload", body, is_needed=is_needed)
        return _Prompt(texts, num_tokens, stream)

    def _of_body(self, place: str, body: Mapping[str, Any], *, is_needed: bool) -> tuple[Sequence[str], int]:
        if isinstance(body.get("messages"), list):
            texts = [words_of(f"{place} message", each, self.left_out) for each in body["messages"]]
            tools = [orjson.dumps(body["tools"]).decode()] if body.get("tools") else []
            return ("\n".join(texts), *tools), 0
        key = next((key for key in _PROMPTS if key in body), None)
        if key is not None:
            return _texts(f"{place} key {key}", body[key], self.left_out)
        if is_needed:
            raise TraceError(f"{place}: expected messages or {', '.join(_PROMPTS)}, found {', '.join(body) or 'none'}")
        return (), 0


def _body(place: str, text: str) -> Mapping[str, Any]:
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{place} key payload: expected JSON, {error.msg}") from error
    found: Mapping[str, Any] = expect(f"{place} key payload", "an object", body)
    return found


def _texts(place: str, given: Any, others: Counter[str]) -> tuple[Sequence[str], int]:
    """The texts of a prompt, and the number of tokens that it has as ids."""
    if given is None:
        raise TraceError(f"{place}: expected text, got None")
    if isinstance(given, list) and given and all(isinstance(each, int | list) for each in given):
        return (), _num_ids(place, given)
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return given, 0
    if isinstance(given, list) and all(isinstance(each, dict) and "content" in each for each in given):
        return [words_of(place, each, others) for each in given], 0
    return (content_words(place, given, others),), 0


def _num_ids(place: str, given: Any) -> int:
    """The number of ids in lists of lists of them; one id may stand alone."""
    if isinstance(given, list):
        return sum(_num_ids(place, each) for each in given)
    expect(place, "a whole number", given)
    return 1


def _pieces(place: str, entry: Mapping[str, Any]) -> Iterator[_Piece]:
    """The pieces of a reply; an event that came in several chunks counts when it was whole."""
    stamps = at(place, entry, "response_timestamps", "a list")
    outputs = at(place, entry, "response_outputs", "a list")
    if len(outputs) != len(stamps):
        raise TraceError(
            f"{place}: expected as many response_outputs as response_timestamps, got {len(outputs)} and {len(stamps)}"
        )
    rest, at_us = "", 0
    for number, (stamp, given) in enumerate(zip(stamps, outputs, strict=True)):
        inside = f"{place} response {number}"
        at_us = expect(f"{place} response_timestamps", "a time in nanoseconds", stamp) // 1000
        output = expect(inside, "an object", given)
        if "output_ids" in output:
            ids = output["output_ids"]
            yield _Piece(at_us, num_tokens=0 if ids == "" else _num_ids(f"{inside} key output_ids", ids))
        elif "text_output" in output:
            yield _Piece(at_us, "".join(_texts(f"{inside} key text_output", output["text_output"], Counter())[0]))
        else:
            bodies, rest = _bodies(rest + at(inside, output, "response", "text"))
            yield from (_piece(inside, at_us, body) for body in bodies)
            if not bodies:
                yield _Piece(at_us)
    if rest.strip():
        yield _Piece(at_us, body={"error": rest.strip()[:200]})


def _bodies(text: str) -> tuple[list[Mapping[str, Any]], str]:
    """The JSON objects of a whole body or of server-sent events, and what is left of an event that is not whole."""
    whole = _json(text)
    if whole is not None:
        return whole, ""
    found: list[Mapping[str, Any]] = []
    *lines, last = text.split("\n")
    pending = ""
    for line in lines:
        value = _event(pending + line)
        pending = pending + line if value is None else ""
        found += value or []
    value = _event(pending + last)
    return found + (value or []), pending + last if value is None else ""


def _event(line: str) -> list[Mapping[str, Any]] | None:
    """The objects of a line of server-sent events, none of one without data; None of one that is not whole."""
    text = line.strip()
    if not text or text.startswith((":", "event:", "id:", "retry:")):
        return []
    data = text.removeprefix("data:").strip()
    return [] if data in ("", "[DONE]") else _json(data)


def _json(text: str) -> list[Mapping[str, Any]] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(each, dict) for each in values) else None


_FORMS = ("choices", "output", "text_output", "generated_text", "token", "error", "output_ids", "details")


def _piece(place: str, at_us: int, body: Mapping[str, Any]) -> _Piece:
    """The text that a chunk or a body brings, reasoning and calls of tools included."""
    if not (any(key in body for key in _FORMS) or _counts(body)):
        raise TraceError(f"{place}: expected one of {', '.join(_FORMS)}, found {', '.join(body) or 'none'}")
    choices = body.get("choices")
    parts = (
        [_choice_words(place, each) for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    )
    output = body.get("output")
    parts += [_item_words(place, each) for each in output if isinstance(each, dict)] if isinstance(output, list) else []
    token = body.get("token")
    if isinstance(token, dict):  # a stream that repeats the whole text at its end
        parts.append(str(token.get("text") or ""))
    else:
        parts += [str(body[key]) for key in ("text_output", "generated_text") if body.get(key)]
    return _Piece(at_us, "".join(parts), 0, body)


def _item_words(place: str, item: Mapping[str, Any]) -> str:
    """The words of an item of the Responses API: a message, reasoning, or a call of a tool."""
    if "arguments" in item:
        return tool_call_words({"function_call": item})
    return content_words(place, item.get("content"), Counter())


def _choice_words(place: str, choice: Mapping[str, Any]) -> str:
    inner = choice.get("delta") or choice.get("message")
    holder = inner if isinstance(inner, dict) else choice
    reasoning = holder.get("reasoning") or holder.get("reasoning_content")
    words = [each for each in (reasoning, *map(holder.get, ("refusal", "text"))) if isinstance(each, str)]
    return "".join([*words, content_words(place, holder.get("content"), Counter()), tool_call_words(holder)])


def _usage(pieces: Sequence[_Piece]) -> tuple[int, int] | None:
    """Prompt and reply tokens as the server reported them last."""
    return next((found for piece in reversed(pieces) if (found := _counts(piece.body))), None)


_COUNTS = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
"""Names of the tokens of prompt and reply in a report of usage."""


def _counts(body: Mapping[str, Any]) -> tuple[int, int] | None:
    """Prompt and reply tokens as a body reports them."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    for names in _COUNTS:
        prompt, reply = map(usage.get, names)
        if isinstance(prompt, int) and isinstance(reply, int) and prompt >= 0 and reply >= 0:
            return prompt, reply
    return None


def _problem(pieces: Sequence[_Piece]) -> str:
    """Say what went wrong with a reply without text."""
    for piece in pieces:
        error = piece.body.get("error")
        if error:
            return str(error.get("message") or error) if isinstance(error, dict) else str(error)
    return "the reply has no text"

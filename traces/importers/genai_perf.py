"""A profile of genai-perf (`profile_export.json`): a recording, with the times of each request and of its chunks.

Requests have the body that was sent, or the inputs of a Triton server: a text, or ids of tokens.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from traces.importers.messages import content_words, tool_call_words, words_of
from traces.importers.reading import Unread, at, check_times, expect, token_counter
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

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


def convert(options: ConvertOptions) -> Imported:
    """The requests of all experiments, each a client. Raises TraceError.

    Tokens are those that the server reported, else those of --tokenizer, else a quarter of the characters.
    """
    source = str(options.path)
    reader = _Reader(*token_counter(options))
    profile = expect(source, "an object", read_json(options.path))
    found = []
    for number, experiment in enumerate(at(source, profile, "experiments", "a list")):
        place = f"{source} experiment {number}"
        for index, entry in enumerate(at(place, expect(place, "an object", experiment), "requests", "a list")):
            inside = f"{place} request {index}"
            row, times = reader.request(inside, expect(inside, "an object", entry))
            found.append((replace(row, client_id=f"experiment-{number}"), times))
    if not found:
        raise TraceError(f"{source}: expected requests in its experiments, got none")
    imported = recording(options, _numbered(found), reader.notes())
    return replace(imported, left_out={**reader.left_out, **imported.left_out})


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


_FORMS = ("choices", "text_output", "generated_text", "token", "usage", "error", "output_ids", "details")


def _piece(place: str, at_us: int, body: Mapping[str, Any]) -> _Piece:
    """The text that a chunk or a body brings, reasoning and calls of tools included."""
    if not any(key in body for key in _FORMS):
        raise TraceError(f"{place}: expected one of {', '.join(_FORMS)}, found {', '.join(body) or 'none'}")
    choices = body.get("choices")
    parts = [_choice_words(each) for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
    token = body.get("token")
    if isinstance(token, dict):  # a stream that repeats the whole text at its end
        parts.append(str(token.get("text") or ""))
    else:
        parts += [str(body[key]) for key in ("text_output", "generated_text") if body.get(key)]
    return _Piece(at_us, "".join(parts), 0, body)


def _choice_words(choice: Mapping[str, Any]) -> str:
    inner = choice.get("delta") or choice.get("message")
    holder = inner if isinstance(inner, dict) else choice
    reasoning = holder.get("reasoning") or holder.get("reasoning_content")
    words = [each for each in (reasoning, *map(holder.get, ("content", "refusal", "text"))) if isinstance(each, str)]
    return "".join([*words, tool_call_words(holder)])


def _usage(pieces: Sequence[_Piece]) -> tuple[int, int] | None:
    """Prompt and reply tokens as the server reported them last."""
    for piece in reversed(pieces):
        usage = piece.body.get("usage")
        if isinstance(usage, dict):
            prompt, reply = usage.get("prompt_tokens"), usage.get("completion_tokens")
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

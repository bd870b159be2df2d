"""A profile of genai-perf (`profile_export.json`): a recording, with the times of each request and of its chunks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from traces.importers.reading import at, expect, token_counter
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.rows import TraceRow
from traces.text_file import TraceError, read_json

CountTokens = Callable[[str], int]


def convert(options: ConvertOptions) -> Imported:
    """The requests of all experiments, each a client. Raises TraceError.

    Tokens are those that the server reported, else those of --tokenizer, else a quarter of the characters.
    """
    source = str(options.path)
    count_tokens, how = token_counter(options)
    profile = expect(source, "an object", read_json(options.path))
    found, has_estimate = [], False
    for number, experiment in enumerate(at(source, profile, "experiments", "a list")):
        place = f"{source} experiment {number}"
        for index, entry in enumerate(at(place, expect(place, "an object", experiment), "requests", "a list")):
            inside = f"{place} request {index}"
            row, times, is_counted = _request(inside, expect(inside, "an object", entry), count_tokens)
            found.append((replace(row, client_id=f"experiment-{number}"), times))
            has_estimate = has_estimate or is_counted
    if not found:
        raise TraceError(f"{source}: expected requests in its experiments, got none")
    return recording(options, found, (how,) if has_estimate else ())


def _request(place: str, entry: Mapping[str, Any], count_tokens: CountTokens) -> tuple[TraceRow, list[int], bool]:
    """The row, the times of chunks that brought text, and whether its tokens were counted here."""
    sent_us = at(place, entry, "timestamp", "a time in nanoseconds") // 1000
    stamps = [
        expect(f"{place} response_timestamps", "a time in nanoseconds", each) // 1000
        for each in at(place, entry, "response_timestamps", "a list")
    ]
    outputs = at(place, entry, "response_outputs", "a list")
    if len(outputs) != len(stamps):
        raise TraceError(
            f"{place}: expected as many response_outputs as response_timestamps, got {len(outputs)} and {len(stamps)}"
        )
    messages = [(at_us, each) for at_us, output in zip(stamps, outputs, strict=True) for each in _messages(output)]
    texts = [(at_us, text) for at_us, message in messages if (text := _text(message))]
    usage: Mapping[str, Any] = {}
    for _, message in messages:
        usage = message["usage"] if isinstance(message.get("usage"), dict) else usage
    times = [at_us for at_us, _ in texts] or stamps
    is_reported = isinstance(usage.get("prompt_tokens"), int) and isinstance(usage.get("completion_tokens"), int)
    prompt, payload = _prompt(place, entry)
    row = TraceRow(
        request_id=0,
        streaming=bool(payload.get("stream", len(stamps) > 1)),
        input_tokens=usage["prompt_tokens"] if is_reported else count_tokens(prompt),
        output_tokens=usage["completion_tokens"] if is_reported else count_tokens("".join(text for _, text in texts)),
        server_input_tokens=usage["prompt_tokens"] if is_reported else 0,
        arrival_time_us=0,
        send_time_us=sent_us,
        first_chunk_time_us=times[0] if times else 0,
        last_chunk_time_us=times[-1] if times else 0,
        num_chunks=len(times),
        status="ok" if texts else "error",
        error_message="" if texts else "the reply has no text",
    )
    return row, times if texts else [], not is_reported


def _messages(output: Any) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of one piece of a reply: a whole body, or server-sent events."""
    text = output.get("response") if isinstance(output, dict) else None
    for line in str(text or "").splitlines():
        try:
            value = orjson.loads(line.removeprefix("data:").strip())
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            yield value


def _text(message: Mapping[str, Any]) -> str:
    """The text that a chunk or a body brings, reasoning included."""
    parts = []
    choices = message.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            inner = choice.get("delta") or choice.get("message")
            holder = inner if isinstance(inner, dict) else choice
            parts += [
                str(holder[key]) for key in ("reasoning", "reasoning_content", "content", "text") if holder.get(key)
            ]
    return "".join(parts)


def _prompt(place: str, entry: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The text of a prompt, and the body it was sent in."""
    inputs = expect(f"{place} key request_inputs", "an object", entry.get("request_inputs") or {})
    try:
        payload = orjson.loads(inputs.get("payload") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        payload = {}
    payload = payload if isinstance(payload, dict) else {}
    if "prompt" in payload:
        return str(payload["prompt"]), payload
    messages = payload.get("messages")
    texts = (
        [str(each.get("content", "")) for each in messages if isinstance(each, dict)]
        if isinstance(messages, list)
        else []
    )
    return "\n".join(texts), payload

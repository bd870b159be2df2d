"""The columns of a trace: the fields of `TraceRow`, with bounds and meaning, feed reader, writer and docs."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from blis_sim.options.option import LATEST_US, MOST_TOKENS
from traces.table import Column
from traces.text_file import TraceError, read_json, write_json

_METADATA_KEY = "column"
STATUSES = ("ok", "error", "timeout", "incomplete")
_WHERE_SET = (
    "slo_target_us",
    "adapter",
    "think_time_us",
    "context_tokens",
    "slo_e2e_us",
    "parents",
    "context_of",
    "is_part",
    "first_event_time_us",
)
"""Optional columns that are written as soon as a row has a value in them."""


def _column(
    default: Any = MISSING,
    help: str = "",  # the word every command-line library uses
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    trimmed: bool = False,
    on_request: bool = False,
    choices: tuple[str, ...] = (),
) -> Any:
    known = {
        "default": default,
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "trimmed": trimmed,
        "on_request": on_request,
        "choices": choices,
    }
    return dataclasses.field(default=default, metadata={_METADATA_KEY: known})


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of a trace. Times are whole microseconds, and 0 where nothing was recorded.

    Fields stand in the order in which columns are written; those written on request keep their place.
    """

    request_id: int = _column(help="the request's number")
    client_id: str = _column("", "the client of the workload that sent it")
    tenant_id: str = _column("", "the tenant it is accounted to")
    slo_class: str = _column("", "critical, standard, sheddable, batch or background")
    vllm_priority: int | None = _column(
        None, "the priority sent to the server, 0 is the most urgent", at_least=0, on_request=True
    )
    session_id: str = _column("", "the conversation it belongs to")
    round_index: int = _column(0, "its place in the conversation, from 0", at_least=0)
    prefix_group: str = _column("", "requests of one group share the start of their prompts")
    prefix_length: int = _column(0, "tokens of that shared start", at_least=0, at_most=MOST_TOKENS)
    streaming: bool | None = _column(None, "whether the reply was streamed, or is to be, which it is unless said")
    input_tokens: int = _column(help="tokens of the prompt behind the shared prefix", at_least=0, at_most=MOST_TOKENS)
    output_tokens: int = _column(help="tokens of the reply", at_least=0, at_most=MOST_TOKENS)
    text_tokens: int = _column(0, "text tokens of a multimodal prompt", at_least=0, at_most=MOST_TOKENS)
    image_tokens: int = _column(0, "image tokens of a multimodal prompt", at_least=0, at_most=MOST_TOKENS)
    audio_tokens: int = _column(0, "audio tokens of a multimodal prompt", at_least=0, at_most=MOST_TOKENS)
    video_tokens: int = _column(0, "video tokens of a multimodal prompt", at_least=0, at_most=MOST_TOKENS)
    reason_ratio: float = _column(0.0, "share of the reply that is reasoning", at_least=0, at_most=1)
    model: str = _column("", "the requested model, empty for the default one")
    deadline_us: int = _column(
        0, "when the client gives up, on the clock of arrivals, 0 for never", at_least=0, at_most=LATEST_US
    )
    slo_target_us: int = _column(
        0, "the target time to the first token, 0 for none", at_least=0, at_most=LATEST_US, on_request=True
    )
    server_input_tokens: int = _column(
        0, "prompt tokens as the server counted them, 0 if unknown", at_least=0, at_most=MOST_TOKENS
    )
    arrival_time_us: int = _column(
        help="when it was due, counted from the start of the run", at_least=-LATEST_US, at_most=LATEST_US
    )
    send_time_us: int = _column(0, "when it was sent", at_least=-LATEST_US, at_most=LATEST_US)
    first_chunk_time_us: int = _column(
        0,
        "when the first chunk with a token came, on the clock of send_time_us; 0 for none",
        at_least=-LATEST_US,
        at_most=LATEST_US,
    )
    last_chunk_time_us: int = _column(
        0, "when the last chunk came, on the clock of send_time_us", at_least=-LATEST_US, at_most=LATEST_US
    )
    num_chunks: int = _column(0, "data events of the stream, 1 for a reply in one piece", at_least=0)
    status: str = _column("", "ok, error, timeout or incomplete", choices=("", *STATUSES))
    error_message: str = _column("", "what went wrong", trimmed=True)
    finish_reason: str = _column("", "why the reply ended: stop, length, abort", trimmed=True)
    x_request_id: str = _column("", "the identity sent along with the request", on_request=True)
    adapter: str = _column("", "the requested LoRA adapter", on_request=True)
    think_time_us: int = _column(
        0, "pause before it, after the reply or replies it waits for", at_least=0, at_most=LATEST_US, on_request=True
    )
    context_tokens: int = _column(
        0,
        "tokens its prompt begins with that repeat another one and its reply: context_of, else the round before",
        at_least=0,
        at_most=MOST_TOKENS,
        on_request=True,
    )
    slo_e2e_us: int = _column(
        0, "the target time to the last token, 0 for none", at_least=0, at_most=LATEST_US, on_request=True
    )
    parents: str = _column(
        "", "ids of the requests that must be answered before it is sent, with a blank between them", on_request=True
    )
    context_of: str = _column(
        "", "id of the request whose text its prompt repeats first, empty for the first parent", on_request=True
    )
    is_part: bool | None = _column(
        None,
        "whether it is one of several prompts or choices of a request, whose times are in a later row",
        on_request=True,
    )
    first_event_time_us: int = _column(
        0,
        "when the first event of any kind came, such as one that only names the role, on the clock of send_time_us",
        at_least=-LATEST_US,
        at_most=LATEST_US,
        on_request=True,
    )


_KINDS: dict[Any, type] = {int | None: int, bool | None: bool}


def _columns_of_rows() -> tuple[Column, ...]:
    hints = typing.get_type_hints(TraceRow)
    return tuple(
        Column(
            name=field.name,
            kind=_KINDS.get(hints[field.name], hints[field.name]),
            required=field.default is MISSING,
            **{**field.metadata[_METADATA_KEY], **({"default": None} if field.default is MISSING else {})},
        )
        for field in dataclasses.fields(TraceRow)
    )


TRACE_COLUMNS = _columns_of_rows()


def columns_worth_writing(rows: Iterable[TraceRow], mode: str) -> tuple[str, ...]:
    """The columns written on request that these rows give a reason to write, by the rules of the format.

    A trace of mode `real` always has x_request_id, and vllm_priority as soon as a row has an SLO class.
    """
    real = mode == "real"
    written = {"x_request_id"} if real else set()
    for row in rows:
        if row.vllm_priority or (real and row.slo_class):
            written.add("vllm_priority")
        written |= {name for name in _WHERE_SET if getattr(row, name)}
    return tuple(column.name for column in TRACE_COLUMNS if column.name in written)


# Results of a simulation per request: a JSON array, the input of a calibration.


class ResultRow(NamedTuple):
    """The latencies of one finished request, in microseconds. `input_tokens` counts the shared prefix too.

    `itl_mean_us` is the mean time between tokens, None where there is none. `sent_at_us` is when the simulation sent
    the request, on its own clock; None if the results do not have it.
    """

    request_id: int
    ttft_us: float
    e2e_us: float
    input_tokens: int
    output_tokens: int
    slo_class: str = ""
    model: str = ""
    itl_mean_us: float | None = None
    sent_at_us: float | None = None


def read_results(path: Path | str) -> list[ResultRow]:
    """Read results, in the order of the file; keys it has besides are ignored. Raises TraceError."""
    path = Path(path)
    loaded = read_json(path)
    if not isinstance(loaded, list):
        raise TraceError(f"{path}: expected a JSON array of results, got {_kind(loaded)}")
    return [_row(path, place, item) for place, item in enumerate(loaded)]


def write_results(path: Path | str, rows: Iterable[ResultRow]) -> None:
    """Write results in the order given, one by one, what is empty left out. Raises TraceError."""
    write_json(path, map(_item, rows))


def _item(row: ResultRow) -> dict[str, Any]:
    item: dict[str, Any] = {
        "request_id": row.request_id,
        "ttft_us": row.ttft_us,
        "e2e_us": row.e2e_us,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
    }
    for key in ("slo_class", "model", "itl_mean_us"):
        if getattr(row, key):
            item[key] = getattr(row, key)
    if row.sent_at_us is not None:
        item["sent_at_us"] = row.sent_at_us
    return item


def _row(path: Path, place: int, item: Any) -> ResultRow:
    if not isinstance(item, Mapping):
        raise TraceError(f"{path} item {place}: expected an object with request_id and latencies, got {_kind(item)}")

    def number(key: str) -> float:
        value = item.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise _value_error(path, place, key, "a number of at least 0", item)
        return value

    def count(key: str, default: int | None = None, negative: bool = False) -> int:
        value = item.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
            raise _value_error(path, place, key, "a whole number", item)
        if value < 0 and not negative:
            raise _value_error(path, place, key, "a whole number of at least 0", item)
        return int(value)

    def text(key: str) -> str:
        value = item.get(key)
        if value is not None and not isinstance(value, str):
            raise _value_error(path, place, key, "text", item)
        return value or ""

    return ResultRow(
        request_id=count("request_id", negative=True),
        ttft_us=number("ttft_us"),
        e2e_us=number("e2e_us"),
        input_tokens=count("input_tokens", 0),
        output_tokens=count("output_tokens", 0),
        slo_class=text("slo_class"),
        model=text("model"),
        itl_mean_us=None if item.get("itl_mean_us") is None else number("itl_mean_us"),
        sent_at_us=None if item.get("sent_at_us") is None else number("sent_at_us"),
    )


def _value_error(path: Path, place: int, key: str, expected: str, item: Mapping[str, Any]) -> TraceError:
    got = f"got {item[key]!r}" if key in item else "but the key is missing"
    return TraceError(f"{path} item {place} key {key}: expected {expected}, {got}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

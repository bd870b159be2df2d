"""The columns of a trace: the fields of `TraceRow`, with bounds and meaning, feed reader, writer and docs."""

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from typing import Any

from blis_sim.options.option import LATEST_US, MOST_TOKENS
from traces.table import Column

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
        "whether it is one of several prompts of a request, whose times and last prompt are in a later row",
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

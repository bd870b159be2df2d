"""SGLang's `agentic-trace`: conversations of an agent, each a list of turns with the messages that are new in them.

A turn may have `prompt_tokens`, the length of its whole prompt. Replies are in no turn: where both prompts have a
length a reply is what the next one has more besides its own messages, else it has as many tokens as SGLang asks for.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from traces.importers.aiperf_dag import text_of
from traces.importers.arrivals import drawn_arrivals_us, taken
from traces.importers.counting import token_counter
from traces.importers.imported import Imported, workload_header
from traces.importers.json_fields import at, expect
from traces.importers.settings import ConvertOptions
from traces.rows import TraceRow
from traces.text_file import read_json

DEFAULT_OUTPUT_TOKENS = 220
"""Tokens of each reply that SGLang asks for unless it is given another number."""


def convert(options: ConvertOptions) -> Imported:
    """A session for each conversation, begun at --rate. Raises BlisError."""
    count_tokens, how = token_counter(options)
    loaded = expect(str(options.path), "an object", read_json(options.path))
    conversations = at(str(options.path), loaded, "conversations", "a list")
    left_out: Counter[str] = Counter()
    sessions = []
    for number, given in enumerate(conversations):
        turns = [*_turns(f"{options.path} conversation {number}", given, count_tokens)]
        if turns:
            sessions.append((f"conversation-{number}", turns))
        else:
            left_out["conversations without messages"] += 1
    starts_us = [0] if len(sessions) == 1 else drawn_arrivals_us(options, len(sessions))
    rows: list[TraceRow] = []
    for (name, turns), start_us in zip(sessions, starts_us, strict=True):
        rows += _rows(name, turns, start_us, len(rows))
    notes = (how, f"replies without two lengths of prompts have {DEFAULT_OUTPUT_TOKENS} tokens, as SGLang asks for")
    first = taken(options, rows, left_out)
    return Imported(header=workload_header(options.path.name), rows=first, left_out=left_out, notes=notes)


def _turns(place: str, given: Any, count_tokens: Callable[[str], int]) -> Iterator[tuple[int, int]]:
    """The tokens of the new messages of each turn that has any, and of its whole prompt; 0 where that is not said."""
    for number, each in enumerate(expect(place, "a list", given)):
        inside = f"{place} turn {number}"
        turn = expect(inside, "an object", each)
        messages = expect(f"{inside} key messages", "a list", turn.get("messages") or [])
        if messages:
            own = sum(count_tokens(text_of(f"{inside} message", message)) for message in messages)
            yield own, expect(f"{inside} key prompt_tokens", "a whole number", turn.get("prompt_tokens") or 0)


def _rows(session_id: str, turns: list[tuple[int, int]], start_us: int, first_id: int) -> Iterator[TraceRow]:
    """The rows of one conversation. Times of arrival take 1 us for each token of a reply."""
    said, at_us = 0, start_us
    for number, (own, counted) in enumerate(turns):
        prompt = counted or said + own
        own_next, counted_next = turns[number + 1] if number + 1 < len(turns) else (0, 0)
        more = counted_next - prompt - own_next if counted else 0
        reply = more if more > 0 else DEFAULT_OUTPUT_TOKENS
        repeated = min(said, max(0, prompt - 1))
        yield TraceRow(
            request_id=first_id + number,
            session_id=session_id,
            round_index=number,
            arrival_time_us=at_us,
            input_tokens=prompt,
            output_tokens=reply,
            parents=str(first_id + number - 1) if number else "",
            context_of=str(first_id + number - 1) if repeated else "",
            context_tokens=repeated,
        )
        said = prompt + reply
        at_us += reply

"""ShareGPT: a JSON list of conversations between a human and a model. Texts become token counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from traces.importers.messages import content_words
from traces.importers.reading import Unread, drawn_arrivals_us, expect, first_at, json_objects, token_counter
from traces.importers.registry import ConvertOptions, Imported, in_order, workload_header
from traces.rows import TraceRow

_TURNS = ("conversations", "conversation", "messages", "items")
_HUMAN = ("human", "user")
_MODEL = ("gpt", "assistant", "chatgpt", "bard", "bing")


def convert(options: ConvertOptions) -> Imported:
    """Return a session per conversation, begun at --rate; each prompt has the whole conversation before it. Raises
    BlisError."""
    path = options.path
    entries = list(json_objects(path))
    count_tokens, how = token_counter(options)
    left_out: Counter[str] = Counter()
    unread = Unread()
    conversations = []
    for number, (place, entry) in enumerate(entries):
        rounds = list(_rounds(place, entry, count_tokens, left_out, unread))
        if rounds:
            conversations.append((str(entry.get("id", number)), rounds))
        else:
            left_out["conversations without a question and its answer"] += 1
    kept = conversations[: options.num_requests]
    left_out["conversations beyond --num-requests"] += len(conversations) - len(kept)
    starts_us = drawn_arrivals_us(options, len(kept))
    think_us = round(options.think_time_ms * 1000)
    rows = [
        row
        for number, (name, rounds) in enumerate(kept)
        for row in _rows(f"{number}-{name}", rounds, starts_us[number], think_us)
    ]
    how_timed = "rounds of a conversation follow each other by --think-time-ms and 1 us per output token"
    notes = (how, how_timed, *unread.note())
    return Imported(header=workload_header(path.name), rows=in_order(rows), left_out=left_out, notes=notes)


def _rounds(
    place: str, entry: dict[str, Any], count_tokens: Callable[[str], int], left_out: Counter[str], unread: Unread
) -> Iterator[tuple[int, int]]:
    """The tokens of each question and of the answer right behind it."""
    unread.add(entry, ("id", *_TURNS))
    turns = first_at(place, entry, _TURNS, "a list")
    question: int | None = None
    for number, turn in enumerate(turns):
        inside = f"{place} turn {number}"
        speaker = first_at(inside, expect(inside, "an object", turn), ("from", "role"), "text")
        unread.add(turn, ("from", "role", "value", "content"), "turn ")
        said = turn.get("value", turn.get("content"))
        if not isinstance(said, list):
            said = first_at(inside, turn, ("value", "content"), "text")
        length = count_tokens(content_words(inside, said, left_out))
        if speaker in _HUMAN and question is None and length:
            question = length
        elif speaker in _MODEL and question is not None and length:
            yield question, length
            question = None
        else:
            left_out["turns that are no question with an answer behind it"] += 1
    left_out["turns that are no question with an answer behind it"] += question is not None


def _rows(session: str, rounds: list[tuple[int, int]], start_us: int, think_us: int) -> Iterator[TraceRow]:
    at_us, context = start_us, 0
    for number, (question, answer) in enumerate(rounds):
        yield TraceRow(
            request_id=0,
            session_id=session if len(rounds) > 1 else "",
            round_index=number,
            arrival_time_us=at_us,
            input_tokens=context + question,
            output_tokens=answer,
            think_time_us=think_us if number else 0,
            context_tokens=context,
        )
        context += question + answer
        at_us += think_us + answer

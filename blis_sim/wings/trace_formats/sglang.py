"""Files of SGLang: results of `sglang.bench_serving`, and conversations of agents (`agentic-trace`).

A turn of an agent may have `prompt_tokens`, the length of its whole prompt. Replies are in no turn. Where both prompts
have a length a reply is what the next one has more besides its own messages. Else it has as many tokens as SGLang asks
for.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from blis_sim.options import OptionError
from traces.importers.messages import words_of
from traces.importers.reading import (
    Unread,
    at,
    drawn_arrivals_us,
    expect,
    json_lines,
    json_value,
    token_counter,
    workload,
)
from traces.importers.registry import ConvertOptions, Imported, recording
from traces.importers.vllm_bench import LISTS, entries_of, offsets_us, request_of
from traces.rows import TraceRow

_BEGIN_US = 1_000_000
"""Time of the first sending: the file has none, and a time of 0 stands for none in a trace."""


def convert_bench(options: ConvertOptions) -> Imported:
    """The requests of the last run in the file. Raises TraceError.

    Sending times are not in the file. With an unlimited rate they follow from the ends of earlier requests and the
    greatest concurrency. Otherwise arrivals are drawn at the rate of the file or of --rate.
    """
    runs = list(json_lines(options.path))
    last = runs[-1] if runs else (str(options.path), {})
    place, results = next((each for each in reversed(runs) if LISTS[0] in each[1]), last)
    unread = Unread()
    entries = entries_of(place, results, LISTS, "--output-details", unread)
    offsets = [offsets_us(f"{place} request {number}", each) for number, each in enumerate(entries)]
    starts_us, note = _starts(options, place, results, [each[-1] if each else 0 for each in offsets])
    found = [
        request_of(f"{place} request {number}", *each)
        for number, each in enumerate(zip(entries, offsets, starts_us, strict=True))
    ]
    return recording(options, found, (note, *unread.note()), {"earlier runs in the file": len(runs) - 1})


def _starts(
    options: ConvertOptions, place: str, results: Mapping[str, Any], durations_us: Sequence[int]
) -> tuple[list[int], str]:
    """Return when each request was sent, and a note about that."""
    rate, most = results.get("request_rate"), results.get("max_concurrency")
    if options.rate is None and isinstance(rate, float) and math.isinf(rate):
        if most is None:
            return [_BEGIN_US] * len(durations_us), "sending times are not in the file: all requests were sent at once"
        most = expect(f"{place} key max_concurrency", "a whole number", most)
        note = f"sending times are not in the file: worked out from {most} requests at a time"
        return _closed_loop(durations_us, max(1, most)), note
    if options.rate is None:
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0:
            raise OptionError(f"--rate is required, as {place} has no arrival times and the request_rate {rate!r}")
        options = replace(options, rate=float(rate))
    note = f"sending times are not in the file: drawn at {options.rate:g} requests/s with --seed {options.seed}"
    return [_BEGIN_US + each for each in drawn_arrivals_us(options, len(durations_us))], note


def _closed_loop(durations_us: Sequence[int], most: int) -> list[int]:
    """Return the start times of requests of which at most `most` are under way, in their order. O(n log n)."""
    ends_us: list[int] = []
    starts = []
    for duration_us in durations_us:
        at_us = _BEGIN_US if len(ends_us) < most else heappop(ends_us)
        starts.append(at_us)
        heappush(ends_us, at_us + duration_us)
    return starts


DEFAULT_OUTPUT_TOKENS = 220
"""Tokens of each reply that SGLang asks for unless it is given another number."""


def convert_agentic(options: ConvertOptions) -> Imported:
    """A session for each conversation, begun at --rate. Raises BlisError."""
    count_tokens, how = token_counter(options)
    loaded = expect(str(options.path), "an object", json_value(options.path))
    conversations = at(str(options.path), loaded, "conversations", "a list")
    left_out: Counter[str] = Counter()
    unread = Unread()
    unread.add(loaded, ("conversations", "metadata"))
    sessions = []
    for number, given in enumerate(conversations):
        turns = [*_turns(f"{options.path} conversation {number}", given, count_tokens, left_out, unread)]
        if turns:
            sessions.append((f"conversation-{number}", turns))
        else:
            left_out["conversations without messages"] += 1
    starts_us = [0] if len(sessions) == 1 else drawn_arrivals_us(options, len(sessions))
    rows: list[TraceRow] = []
    for (name, turns), start_us in zip(sessions, starts_us, strict=True):
        rows += _rows(name, turns, start_us, len(rows))
    notes = (how, f"replies without two lengths of prompts have {DEFAULT_OUTPUT_TOKENS} tokens, as SGLang asks for")
    return workload(options, rows, left_out, (*notes, *unread.note()))


def _turns(
    place: str, given: Any, count_tokens: Callable[[str], int], left_out: Counter[str], unread: Unread
) -> Iterator[tuple[int, int]]:
    """The tokens of the new messages of each turn that has any, and of its whole prompt; 0 where that is not said."""
    for number, each in enumerate(expect(place, "a list", given)):
        inside = f"{place} turn {number}"
        turn = expect(inside, "an object", each)
        unread.add(turn, ("messages", "prompt_tokens"), "turn ")
        messages = at(inside, turn, "messages", "a list")
        if messages:
            own = sum(count_tokens(words_of(f"{inside} message", message, left_out)) for message in messages)
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

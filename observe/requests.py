"""Requests to send, independent of the server: their schedule, their prompts, and their sending on time."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Any

import orjson

from observe.balancer import Balancer
from observe.client import Client, Outcome
from observe.errors import ObserveError
from observe.event_loop import Nanos, sleep_until
from traces import TraceRow
from traces.text_file import read_text
from traces.workload.request import WorkloadRequest

# Requests to send, independent of the server: their schedule and their prompts.

_MAX_SPARE_CONNECTIONS = 32
_SPARE_WINDOW_US = 100_000


@dataclass(frozen=True, slots=True)
class RepeatedPrefix:
    """The start of a prompt that repeats the first `num_tokens` tokens of request `number`.

    `parts` has, for each request whose own words are repeated: its number, and the begin and the end of these words in
    prompts, in tokens.
    """

    number: int
    num_tokens: int
    parts: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to be. `at_us` counts from the start of the run.

    Its prompt is the shared start of `prefix_group`, `prefix_tokens` long, and `input_tokens` of its own. Where it has
    a `prompt` already, `input_tokens` are an estimate. The rest labels the row it becomes.
    """

    at_us: int
    input_tokens: int
    output_tokens: int
    prompt: str = ""
    prefix_group: str = ""
    prefix_tokens: int = 0
    image_tokens: int = 0
    """Of `input_tokens`; so are `audio_tokens`. They are sent as words unless the run sends files."""
    audio_tokens: int = 0
    client_id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    session_id: str = ""
    round_index: int = 0
    think_time_us: int = 0
    earlier: tuple[str, ...] = ()
    """Earlier prompts and replies of the conversation, in turn; `turn_tokens` then counts the request's own words."""
    earlier_tokens: tuple[int, ...] = ()
    """Planned numbers of tokens of `earlier`, for requests of a graph."""
    begins_with: str = ""
    """Words of another prompt that the last turn repeats at its start."""
    turn_tokens: int = 0
    context_tokens: int = 0
    """Tokens of `earlier`, or of a prompt that is repeated, which the server's prefix cache can find."""
    number: int | None = None
    """The number in the recording; None counts requests as they are sent."""
    parents: tuple[int, ...] = ()
    """The numbers of requests that must be answered before it is sent."""
    context_of: int | None = None
    """The number of the request that `context_tokens` are of; None for the round before."""
    repeats: RepeatedPrefix | None = None
    model: str = ""
    adapter: str = ""
    """LoRA adapter, which is requested as its model where the server lists it."""
    timeout_us: int = 0
    """After how long it is given up; 0 leaves that to the run."""
    cancel_us: int = 0
    """How long after its sending the client hangs up; 0 for one that stays."""
    priority: int | None = None
    """vLLM's: the smaller the more urgent; None for a request without one."""
    slo_e2e_us: int = 0
    """Target time to its last token; 0 leaves that to its SLO class."""
    streaming: bool | None = None
    """Whether it asks for a stream; None leaves that to the run."""


_KEPT = (
    *("image_tokens", "audio_tokens", "client_id", "tenant_id", "slo_class", "session_id", "round_index"),
    *("slo_e2e_us", "streaming"),
)


def _kept(source: TraceRow | WorkloadRequest) -> dict[str, Any]:
    """The fields of a planned request that its source has under the same names."""
    return {name: getattr(source, name) for name in _KEPT}


def plan_from_trace(rows: Sequence[TraceRow]) -> list[PlannedRequest]:
    """The requests of a recording at their own times, the first at 0, in the order in which they arrived.

    The prompt is as long as the server counted it, else as long as it was meant to be. A request that never got an
    output requests one token.
    """
    in_order = sorted(rows, key=lambda row: row.arrival_time_us)
    return [_planned(row, row.arrival_time_us - in_order[0].arrival_time_us) for row in in_order]


def plan_from_requests(requests: Sequence[WorkloadRequest]) -> list[PlannedRequest]:
    """The requests that a workload spec generates, at their own times."""
    return [
        PlannedRequest(
            at_us=request.arrival_us,
            input_tokens=max(1, request.input_tokens),
            output_tokens=max(1, request.output_tokens),
            prefix_group=request.prefix_group if request.prefix_tokens else "",
            prefix_tokens=request.prefix_tokens,
            model=request.model,
            adapter=request.adapter,
            timeout_us=max(0, request.deadline_us - request.arrival_us) if request.deadline_us else 0,
            priority=request.priority,
            **_kept(request),
        )
        for request in requests
    ]


def peak_arrivals(plan: Sequence[PlannedRequest], window_us: int) -> int:
    """The most arrivals that any stretch of time of this length holds; the plan is in order of time."""
    return max(_arrivals_in_window([planned.at_us for planned in plan], window_us), default=0)


def num_spare_connections(plan: Sequence[PlannedRequest]) -> int:
    """Return the number of spare connections: enough for the densest moment of the plan, up to a limit."""
    return min(peak_arrivals(plan, _SPARE_WINDOW_US) + 1, _MAX_SPARE_CONNECTIONS)


def mean_rate(plan: Sequence[PlannedRequest]) -> float:
    """Requests per second from the first arrival to the last; 0 when that takes no time."""
    span_us = plan[-1].at_us - plan[0].at_us
    return (len(plan) - 1) * 1e6 / span_us if span_us else 0.0


def _planned(row: TraceRow, at_us: int) -> PlannedRequest:
    prefix_tokens = row.prefix_length if row.prefix_group else 0
    total = row.server_input_tokens or row.prefix_length + row.input_tokens
    return PlannedRequest(
        at_us=at_us,
        input_tokens=max(1, total - prefix_tokens),
        output_tokens=max(1, row.output_tokens),
        prefix_group=row.prefix_group if prefix_tokens else "",
        prefix_tokens=prefix_tokens,
        timeout_us=max(1, row.deadline_us - row.arrival_time_us) if row.deadline_us else 0,
        priority=row.vllm_priority,
        **_kept(row),
    )


def _arrivals_in_window(arrivals_us: Sequence[int], window_us: int) -> Iterator[int]:
    """For each arrival the number of those in the window that ends with it."""
    oldest = 0
    for place, at_us in enumerate(arrivals_us):
        while arrivals_us[oldest] <= at_us - window_us:
            oldest += 1
        yield place - oldest + 1


# Short, common words: almost every tokenizer has each of them, with the space before it, as one token.
_TEXT = """
    time year people way day man thing woman life child world school state family group country hand part place case
    week company system program question work night point home water room mother area money story fact month lot right
    book eye job word business side kind head house service friend father power hour game line end member law car city
    name team minute idea body back face others level office door health person art war history party result change
    morning reason girl boy moment air force food land tree river music paper light table street stone
    road song fire ship
"""
WORDS = tuple(_TEXT.split())

_FILLER_WORDS = 1 << 16
_DISTINCT_WORDS = 16


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Number of tokens per word, and of tokens around the words (chat template, start of text)."""

    tokens_per_word: float = 1.0
    tokens_around: float = 0.0

    def words(self, tokens: int) -> int:
        """Return the number of words of a whole prompt with this many tokens, at least one."""
        return max(1, self.words_inside(tokens - self.tokens_around))

    def words_inside(self, tokens: float) -> int:
        """Return the number of words for this many tokens in the middle of a prompt."""
        return max(0, round(tokens / self.tokens_per_word))


def calibration_text(num_rounds: int) -> str:
    """Return all the words, repeated `num_rounds` times."""
    return " ".join(WORDS * num_rounds)


def scale_from_counts(once: int | None, twice: int | None) -> TokenScale | None:
    """The scale behind what the server counted for one and for two rounds of all the words.

    The difference is free of what surrounds the words; without the second count they are taken as one. None when
    the result is outside 1 to 3 tokens per word, which only a wrong count explains.
    """
    if once is None:
        return None
    num_words = len(WORDS)
    scale = TokenScale(once / num_words)
    if twice is not None:
        scale = TokenScale((twice - once) / num_words, max(0, 2 * once - twice))
    return scale if 1 <= scale.tokens_per_word <= 3 else None


class PromptGenerator:
    """The text of each prompt, the same for the same seed, whatever the order in which they are requested.

    A prompt begins with words of its own, so that prompts share blocks of a prefix cache through a prefix group only.
    The rest is cut from one long random text, which costs next to nothing.
    """

    def __init__(self, seed: int, scale: TokenScale) -> None:
        self._seed = seed
        self.scale = scale
        self._filler_text = Random(f"{seed}/river").choices(WORDS, k=_FILLER_WORDS)
        self._prefix = cache(self._make_prefix)

    def __reduce__(self) -> tuple[type["PromptGenerator"], tuple[int, TokenScale]]:
        return PromptGenerator, (self._seed, self.scale)

    def text(self, request_id: int, *, input_tokens: int, prefix_group: str = "", prefix_tokens: int = 0) -> str:
        """The prompt of one request: the shared start of its group, then `input_tokens` of its own."""
        if not prefix_group:
            return " ".join(self._own_words(request_id, self.scale.words(input_tokens)))
        num_shared = self.scale.words_inside(prefix_tokens)
        num_own = max(1, self.scale.words(prefix_tokens + input_tokens) - num_shared)
        return " ".join([*self._prefix(prefix_group, num_shared), *self._own_words(request_id, num_own)])

    def text_after_prefix(
        self,
        request_id: int,
        repeated: Sequence[tuple[int, int, int]],
        *,
        num_tokens: int,
        prefix_group: str = "",
        prefix_tokens: int = 0,
    ) -> str:
        """A prompt of this many tokens that begins with words of other requests, as `RepeatedPrefix` has them."""
        words = self._prefix(prefix_group, self.scale.words_inside(prefix_tokens))[:] if prefix_group else []
        num_shared = len(words)
        for number, start, end in repeated:
            begins, ends = (self.scale.words_inside(each - self.scale.tokens_around) for each in (start, end))
            begins = max(num_shared, begins)
            if ends > len(words):
                words += self._own_words(number, ends - begins)[len(words) - begins :]
        num_own = max(1, self.scale.words(num_tokens) - len(words))
        return " ".join([*words, *self._own_words(request_id, num_own)])

    def _own_words(self, request_id: int, count: int) -> list[str]:
        random = Random(f"{self._seed}/request/{request_id}")
        words = random.choices(WORDS, k=min(count, _DISTINCT_WORDS))
        while len(words) < count:
            start = random.randrange(_FILLER_WORDS)
            words += self._filler_text[start : start + count - len(words)]
        return words

    def _make_prefix(self, group: str, count: int) -> list[str]:
        return Random(f"{self._seed}/prefix/{group}").choices(WORDS, k=count)


_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt, and the number of output tokens if the file has one."""

    text: str
    output_tokens: int | None = None


def read_prompts(path: Path | str) -> list[FilePrompt]:
    """The prompts of a file, in its order. Raises BlisError.

    Each line of a file that ends in `.jsonl` is an object with `prompt` and perhaps `output_tokens`; its other keys are
    for other programs.
    """
    path = Path(path)
    # Only line feeds end a line: prompts may have any other separator.
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(read_text(path).split("\n"), start=1)]
    filled = [(number, line) for number, line in lines if line.strip()]
    if not filled:
        raise ObserveError(f"{path}: expected a prompt per line, got none")
    if path.suffix != ".jsonl":
        return [FilePrompt(line) for _, line in filled]
    return [_parsed(f"{path} line {number}", line) for number, line in filled]


def with_prompts(plan: Sequence[PlannedRequest], prompts: Sequence[FilePrompt]) -> list[PlannedRequest]:
    """The plan with these prompts in turn, from the first one again after the last one.

    How many tokens they have is only known from answers; until then it is estimated by their characters.
    """
    return [_with_prompt(planned, prompts[place % len(prompts)]) for place, planned in enumerate(plan)]


def _with_prompt(planned: PlannedRequest, given: FilePrompt) -> PlannedRequest:
    return replace(
        planned,
        prompt=given.text,
        input_tokens=max(1, round(len(given.text) / _CHARACTERS_PER_TOKEN)),
        output_tokens=given.output_tokens or planned.output_tokens,
    )


def _parsed(place: str, line: str) -> FilePrompt:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ObserveError(f"{place}: expected a JSON object with the key prompt, {error.msg}") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ObserveError(f"{place}: expected a JSON object with text under the key prompt, got {line[:60]}")
    output_tokens = entry.get("output_tokens")
    if output_tokens is not None and (type(output_tokens) is not int or output_tokens < 1):
        raise ObserveError(f"{place} key output_tokens: expected a whole number above 0, got {output_tokens!r}")
    return FilePrompt(prompt, output_tokens)


# Send requests on time: each at its own instant, independent of the outcome of earlier requests.

_BUILT_AHEAD_BYTES = 256 << 20
_NO_BUILDING_BEFORE_SEND_NS = 3_000_000
_LONGEST_BURST_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A planned request with all its bytes. `request_id` is its place in the whole schedule."""

    request_id: int
    planned: PlannedRequest
    x_request_id: str
    request: bytes
    streaming: bool
    turn: str = ""
    """The last turn of its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request that has ended. Any delay after `allowed` was caused by the client itself."""

    prepared: PreparedRequest
    due: Nanos
    allowed: Nanos
    outcome: Outcome


class Dispatcher:
    """An open loop of absolute send times that calls `finished` with each request that has ended.

    With `max_concurrency` above 0, requests beyond it wait in line and are sent as others end. The times at which they
    were due stay what they are. `follow` may give other requests for one that has ended, by the instant of the schedule
    at which it did. They are sent when they are due.
    """

    def __init__(
        self,
        client: Client | Balancer,
        plan: Sequence[PlannedRequest],
        prepare: Callable[[int, PlannedRequest], PreparedRequest],
        finished: Callable[[SentRequest], None],
        *,
        max_concurrency: int = 0,
        follow: Callable[[SentRequest, int], Sequence[PlannedRequest]] | None = None,
    ) -> None:
        self._follow = follow
        self._following: set[asyncio.TimerHandle] = set()
        self._origin: Nanos = 0
        self.num_planned = len(plan)
        """Number of requests sent or to be sent, as far as planned."""
        self._client = client
        self._plan = plan
        self._prepare = prepare
        self._finished = finished
        self._max_concurrency = max_concurrency
        self._ahead: deque[PreparedRequest] = deque()
        self._ahead_bytes = 0
        self._num_prepared = 0
        self._in_line: deque[tuple[PreparedRequest, Nanos]] = deque()
        self._all_due = False
        self._drained = asyncio.Event()
        self.num_sent = 0
        self.num_in_flight = 0

    @property
    def num_in_line(self) -> int:
        """Requests that are due and wait for others to end."""
        return len(self._in_line)

    def build_ahead(self, until: Nanos | None = None) -> None:
        """Build requests before their time, as many as memory is set aside for, or as there is time for."""
        while self._ahead_bytes < _BUILT_AHEAD_BYTES and self._num_prepared < len(self._plan):
            if until is not None and perf_counter_ns() >= until:
                return
            self._build_one()

    async def run(self, origin: Nanos) -> None:
        """Send everything, at times counted from `origin`, and wait until all has ended."""
        self._origin = origin
        last_pause = perf_counter_ns()
        for planned in self._plan:
            due = origin + planned.at_us * 1000
            self.build_ahead(due - _NO_BUILDING_BEFORE_SEND_NS)
            now = perf_counter_ns()
            # Behind the schedule, or in a burst, answers must be read all the same.
            if now < due or now - last_pause > _LONGEST_BURST_NS:
                await (sleep_until(due) if now < due else asyncio.sleep(0))
                last_pause = perf_counter_ns()
            if not self._ahead:
                self._build_one()
            prepared = self._ahead.popleft()
            self._ahead_bytes -= len(prepared.request)
            self._send_or_queue(prepared, due)
        self._all_due = True
        if self.num_in_flight or self._following:
            await self._drained.wait()

    def stop(self) -> int:
        """Send no more, and return how many were not sent. Requests in flight are left to the client."""
        self._in_line.clear()
        self._follow = None
        for timer in self._following:
            timer.cancel()
        return self.num_planned - self.num_sent

    def _build_one(self) -> None:
        prepared = self._prepare(self._num_prepared, self._plan[self._num_prepared])
        self._ahead.append(prepared)
        self._ahead_bytes += len(prepared.request)
        self._num_prepared += 1

    def _send_or_queue(self, prepared: PreparedRequest, due: Nanos) -> None:
        if 0 < self._max_concurrency <= self.num_in_flight:
            self._in_line.append((prepared, due))
        else:
            self._send(prepared, due, due)

    def _send(self, prepared: PreparedRequest, due: Nanos, allowed: Nanos) -> None:
        self.num_in_flight += 1
        self.num_sent += 1
        self._client.send(
            prepared.request,
            streaming=prepared.streaming,
            timeout_s=prepared.planned.timeout_us / 1e6 or None,
            hang_up_s=prepared.planned.cancel_us / 1e6 or None,
            finished=partial(self._ended, prepared, due, allowed),
        )

    def _ended(self, prepared: PreparedRequest, due: Nanos, allowed: Nanos, outcome: Outcome) -> None:
        self.num_in_flight -= 1
        sent = SentRequest(prepared=prepared, due=due, allowed=allowed, outcome=outcome)
        if self._follow is not None:
            for following in self._follow(sent, (outcome.ended - self._origin) // 1000):
                place = self.num_planned
                self.num_planned += 1
                self._wait_and_send(place, following, self._origin + following.at_us * 1000)
        if self._in_line:
            waited, its_due = self._in_line.popleft()
            self._send(waited, its_due, outcome.ended)
        elif self._all_due and not self.num_in_flight and not self._following:
            self._drained.set()
        self._finished(sent)

    def _wait_and_send(self, place: int, planned: PlannedRequest, due: Nanos) -> None:
        def look_at_clock() -> None:
            self._following.discard(timer)
            # Timers count from when the loop last looked at its clock, and so may be early.
            if perf_counter_ns() < due:
                self._wait_and_send(place, planned, due)
            else:
                self._send_or_queue(self._prepare(place, planned), due)

        delay_s = max(0, due - perf_counter_ns()) / 1e9
        timer = asyncio.get_running_loop().call_later(delay_s, look_at_clock)
        self._following.add(timer)

"""The workload of a run: its plan from settings or a recording, and closed loops in which requests wait for replies."""

import base64
import math
import struct
import uuid
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

from blis_sim.options.option import MOST_TOKENS
from observe.body import RequestStyle
from observe.client import CANCELLED
from observe.errors import ObserveError, print_message, warn
from observe.http import SEND_TIME_HEADER, Server, post_bytes_of, post_head
from observe.options import FILES, ObserveOptions
from observe.requests import (
    PlannedRequest,
    PreparedRequest,
    PromptGenerator,
    RepeatedPrefix,
    SentRequest,
    mean_rate,
    plan_from_requests,
    plan_from_trace,
    read_prompts,
    with_prompts,
)
from observe.spans import traceparent
from traces import SloTargets, TraceHeader, TraceRow, number_text, read_cut_itl, read_cut_rows, read_header, read_trace
from traces.graph import (
    Dependencies,
    SessionPool,
    accumulated,
    context_of,
    dependencies_of,
    ids_in,
    renumbered,
    repeated_places,
)
from traces.load import FIXED, FIXED_ACCUMULATE, Load, SpeedOptions, has_deltas, load_of
from traces.redaction import Redactor
from traces.slo import class_name
from traces.workload.generate import generate, read_spec_at
from traces.workload.presets import users_spec
from traces.workload.request import Session, SessionProgress, WorkloadRequest
from traces.workload.request import Workload as GeneratedWorkload
from traces.workload.spec import WorkloadSpec

# Images and sounds as files: PNG and WAV of a size that vision and audio models count as so many tokens.

_TILE_PIXELS = 28
"""Side of the square of an image that is a token in Qwen2-VL and Qwen2.5-VL: two patches of 14 pixels."""
_SAMPLES_PER_S = 16_000
_SAMPLES_PER_TOKEN = 640
"""Qwen2-Audio has 25 tokens for a second of sound."""


def png(num_tokens: int, random: Random) -> bytes:
    """Return an image of about so many tiles, each of a colour of its own."""
    rows = max(1, math.isqrt(num_tokens))
    columns = max(1, round(num_tokens / rows))
    lines = []
    for _ in range(rows):
        tiles = random.randbytes(columns)
        lines.append(b"\0" + b"".join(tiles[place : place + 1] * _TILE_PIXELS for place in range(columns)))
    pixels = b"".join(line * _TILE_PIXELS for line in lines)
    size = struct.pack(">IIBBBBB", columns * _TILE_PIXELS, rows * _TILE_PIXELS, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"PLTE", random.randbytes(768)), (b"IDAT", zlib.compress(pixels, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def wav(num_tokens: int, random: Random) -> bytes:
    """Return a sound of so many tones, each as long as a token."""
    tones = []
    for _ in range(max(1, num_tokens)):
        half = random.randint(8, 80)
        period = struct.pack("<h", 8000) * half + struct.pack("<h", -8000) * half
        tones.append((period * (1 + _SAMPLES_PER_TOKEN // half))[: 2 * _SAMPLES_PER_TOKEN])
    samples = b"".join(tones)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _SAMPLES_PER_S, 2 * _SAMPLES_PER_S, 2, 16)  # mono, 16 bits
    return struct.pack("<4sI4s", b"RIFF", 36 + len(samples), b"WAVE") + form + _sized(b"data", samples)


def _sized(kind: bytes, data: bytes) -> bytes:
    return struct.pack("<4sI", kind, len(data)) + data


def parts_of(image_tokens: int, audio_tokens: int, seed: str) -> list[dict[str, Any]]:
    """Return the parts of a chat message for an image and a sound of so many tokens, of those that have any."""
    random, parts = Random(seed), list[dict[str, Any]]()
    if image_tokens:
        image = base64.b64encode(png(image_tokens, random)).decode()
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}})
    if audio_tokens:
        sound = base64.b64encode(wav(audio_tokens, random)).decode()
        parts.append({"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}})
    return parts


# The workload of a run: its plan from settings or a recording, and closed loops in which requests wait for replies.

# The requests of a trace with what they repeat of each other, and a closed loop in which they wait for replies.

GRAPH_COLUMNS = frozenset({"think_time_us", "context_tokens", "parents", "context_of"})


@dataclass(frozen=True, slots=True)
class _CompletedTurns:
    """Turns and reply of a request that was answered, with their tokens, for those that repeat it."""

    turns: tuple[str, ...]
    tokens: tuple[int, ...]
    repeats_whole: int
    """Tokens that a prompt begins with which goes on behind the reply."""
    prompt_tokens: int
    """Tokens of its prompt as planned."""


class Graph:
    """A closed loop: a request is sent when all that it waits for have been answered, and its pause is over.

    One that is not answered drops all that wait for it, and none is sent that would be due after `horizon_us`; None
    limits nothing. With `keeps_times` none is sent before its own time, which leaves it its pause. Sessions of a `pool`
    begin when others are over.
    """

    columns = GRAPH_COLUMNS

    def __init__(
        self,
        plan: Sequence[PlannedRequest],
        waits: Mapping[int, Dependencies],
        horizon_us: int | None = None,
        *,
        keeps_times: bool = False,
        pool: SessionPool | None = None,
    ) -> None:
        self._plan = [replace(planned, number=place) for place, planned in enumerate(plan)]
        self._horizon_us = horizon_us
        self._waits = waits
        self._keeps_times = keeps_times
        self._pool = pool
        self._left = {place: len(its.places) for place, its in waits.items()}
        self._ready_us: dict[int, int] = {}
        self._followers: dict[int, list[int]] = {}
        for place, its in waits.items():
            for each in its.places:
                self._followers.setdefault(each, []).append(place)
        self._completed_turns: dict[int, _CompletedTurns] = {}
        self._repeaters: dict[int, int] = {}
        for planned in plan:
            if planned.repeats is not None:
                self._repeaters[planned.repeats.number] = self._repeaters.get(planned.repeats.number, 0) + 1
        self._num_replies_missing = len(self._left)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for replies, or for the end of other sessions."""
        return self._num_replies_missing + (0 if self._pool is None else self._pool.num_waiting)

    @property
    def first(self) -> list[PlannedRequest]:
        """The requests that wait for nothing; sessions of a pool begin at once."""
        free = [(place, planned) for place, planned in enumerate(self._plan) if place not in self._waits]
        if self._pool is None:
            return [planned for _, planned in free]
        begun = [
            replace(planned, at_us=0 if planned.session_id else planned.at_us)
            for place, planned in free
            if self._pool.begins_at_once(place)
        ]
        return sorted(begun, key=lambda planned: planned.at_us)

    def follow_up(self, sent: SentRequest, ended_us: int) -> list[PlannedRequest]:
        """The requests that have waited for this reply alone, with the instants of the schedule at which they are due.

        Nothing follows a request that failed.
        """
        place = sent.prepared.request_id
        ready = []
        if sent.outcome.status == "ok":
            if place in self._repeaters:
                self._completed_turns[place] = _completed_turns(sent)
            for each in self._followers.get(place, ()):
                self._ready_us[each] = max(self._ready_us.get(each, 0), ended_us)
                self._left[each] -= 1
                if not self._left[each] and (self._horizon_us is None or self._due_us(each) <= self._horizon_us):
                    ready.append(each)
        self._num_replies_missing -= len(ready)
        begun = [] if self._pool is None else self._pool.ended(place, ready)
        if self._horizon_us is not None and ended_us > self._horizon_us:
            begun = []
        return [
            *(self._due(each) for each in ready),
            *(replace(self._plan[each], at_us=ended_us) for each in begun),
        ]

    def _due_us(self, place: int) -> int:
        due_us = self._ready_us[place] + self._waits[place].pause_us
        return max(due_us, self._plan[place].at_us) if self._keeps_times else due_us

    def _due(self, place: int) -> PlannedRequest:
        at_us = self._due_us(place)
        planned = replace(self._plan[place], at_us=at_us, think_time_us=at_us - self._ready_us[place])
        repeats = planned.repeats
        content = None if repeats is None else self._completed_turns.get(repeats.number)
        if repeats is None or content is None:
            return planned
        self._repeaters[repeats.number] -= 1
        if not self._repeaters[repeats.number]:
            del self._completed_turns[repeats.number]
        return _after_repeated_prefix(planned, repeats, content)


def _completed_turns(sent: SentRequest) -> _CompletedTurns:
    planned, outcome = sent.prepared.planned, sent.outcome
    prompt_tokens = planned.prefix_tokens + planned.input_tokens
    own_tokens = prompt_tokens - sum(planned.earlier_tokens)
    counted = outcome.reply.prompt_tokens or prompt_tokens
    return _CompletedTurns(
        turns=(*planned.earlier, sent.prepared.turn, outcome.reply.content),
        tokens=(*planned.earlier_tokens, own_tokens, planned.output_tokens),
        repeats_whole=counted + (outcome.output_tokens if outcome.reply.is_all_content else 0),
        prompt_tokens=prompt_tokens,
    )


def _after_repeated_prefix(
    planned: PlannedRequest, repeats: RepeatedPrefix, content: _CompletedTurns
) -> PlannedRequest:
    """The request with the words that were really said before it, and words of its own to its length."""
    total = planned.prefix_tokens + planned.input_tokens
    *prompt, reply = content.tokens
    if repeats.num_tokens >= content.prompt_tokens + reply / 2:
        return replace(
            planned,
            earlier=content.turns,
            earlier_tokens=content.tokens,
            turn_tokens=max(1, total - sum(content.tokens)),
            context_tokens=content.repeats_whole,
        )
    # Of a prompt that is repeated in part, the turns are kept that fit, the last one cut between words.
    left, place = repeats.num_tokens, 0
    while place + 2 < len(prompt) and left >= prompt[place] + prompt[place + 1]:
        left -= prompt[place] + prompt[place + 1]
        place += 2
    words = content.turns[place].split(" ")
    num_words = min(len(words), round(len(words) * left / max(1, prompt[place])))
    kept = min(left, prompt[place])
    return replace(
        planned,
        earlier=content.turns[:place],
        earlier_tokens=content.tokens[:place],
        begins_with=" ".join(words[:num_words]),
        turn_tokens=max(1, total - sum(content.tokens[:place]) - kept),
        context_tokens=sum(content.tokens[:place]) + kept,
    )


def requests_of_trace(
    rows: Sequence[TraceRow], num_requests: int | None
) -> tuple[list[TraceRow], list[PlannedRequest]]:
    """The first requests of a trace, each numbered by its place, and what is to be sent for them."""
    in_order = sorted(rows, key=lambda row: row.arrival_time_us)[:num_requests]
    ids = {row.request_id: place for place, row in enumerate(in_order)}
    if any(row.parents or row.context_of for row in in_order):
        in_order = [renumbered(row, place, ids) for place, row in enumerate(in_order)]
    else:
        in_order = [replace(row, request_id=place) for place, row in enumerate(in_order)]
    repeated = repeated_places(in_order)
    plan = plan_from_trace(in_order)
    if not repeated and not any(row.parents for row in in_order):
        return in_order, plan
    for place in _in_repeat_order(repeated, len(plan)):
        row, planned, before = in_order[place], plan[place], repeated.get(place)
        planned = replace(planned, number=place, parents=ids_in(row.parents), think_time_us=row.think_time_us)
        plan[place] = planned if before is None else _repeating(planned, row, plan[before], before)
    return in_order, plan


def _in_repeat_order(repeated: Mapping[int, int], count: int) -> Iterator[int]:
    """All places, each behind the one that it repeats."""
    done: set[int] = set()
    for place in range(count):
        chain: dict[int, None] = {}
        at: int | None = place
        while at is not None and at not in done and at not in chain:
            chain[at] = None
            at = repeated.get(at)
        yield from reversed(chain)
        done.update(chain)


def _repeating(planned: PlannedRequest, row: TraceRow, other: PlannedRequest, number: int) -> PlannedRequest:
    """The request with the start of its prompt as that of another one."""
    total = planned.prefix_tokens + planned.input_tokens
    num_tokens = min(row.context_tokens, total - 1)
    if not planned.prefix_tokens and other.prefix_tokens:
        shared = min(other.prefix_tokens, num_tokens)
        planned = replace(planned, prefix_group=other.prefix_group, prefix_tokens=shared, input_tokens=total - shared)
    starts = 0 if other.repeats is None else other.repeats.num_tokens
    parts = () if other.repeats is None else other.repeats.parts
    kept = tuple((owner, start, min(end, num_tokens)) for owner, start, end in parts if start < num_tokens)
    if starts < num_tokens:
        kept = (*kept, (number, starts, num_tokens))
    return replace(
        planned,
        repeats=RepeatedPrefix(number, num_tokens, kept),
        context_of=context_of(row),
        context_tokens=min(num_tokens, other.prefix_tokens + other.input_tokens),
    )


def graph_of(
    rows: Sequence[TraceRow],
    plan: Sequence[PlannedRequest],
    *,
    is_real: bool,
    think_time_us: int | Iterator[int] | None = None,
    fixed_sessions: Container[str] = frozenset(),
    horizon_us: int | None = None,
    speed: SpeedOptions | None = None,
    keeps_times: bool = False,
    pool_size: int = 0,
) -> Graph | None:
    """The closed loop of these requests; None where none waits for another."""
    waits = dependencies_of(rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions)
    if speed is not None:
        waits = speed.waits(waits)
    pool = SessionPool(rows, waits, pool_size) if pool_size else None
    return Graph(plan, waits, horizon_us, keeps_times=keeps_times, pool=pool) if waits or pool else None


# From the settings of a run to its requests: a plan, and closed-loop sessions in which each request awaits a reply.


class Conversations:
    """Sends the next request of a session after a reply. A session ends after its rounds, or with a failed request.

    At most `max_follow_ups` requests follow, and none that would be due after `horizon_us`; None limits nothing.
    """

    columns = frozenset({"think_time_us", "context_tokens"})

    def __init__(
        self,
        sessions: Sequence[Session],
        max_follow_ups: int | None,
        horizon_us: int | None,
        think_times_us: Iterator[int] | None = None,
    ) -> None:
        """`think_times_us` are the pauses one after the other; None takes those of the rounds."""
        self._active_sessions = {each.first.session_id: SessionProgress(each) for each in sessions}
        self._num_left = max_follow_ups
        self._horizon_us = horizon_us
        self._think_times_us = think_times_us

    def follow_up(self, sent: SentRequest, ended_us: int) -> list[PlannedRequest]:
        """The request after one that ended at this instant of the schedule; none when the session is over."""
        planned = sent.prepared.planned
        talk = self._active_sessions.get(planned.session_id)
        if talk is None:
            return []
        coming = talk.next_round if sent.outcome.status == "ok" and self._num_left != 0 else None
        if coming is not None and self._think_times_us is not None:
            coming = talk.next_round = coming._replace(think_time_us=next(self._think_times_us))
        due_us = ended_us + (coming.think_time_us if coming is not None else 0)
        if coming is None or (self._horizon_us is not None and due_us > self._horizon_us):
            del self._active_sessions[planned.session_id]
            return []
        if self._num_left is not None:
            self._num_left -= 1
        (following,) = plan_from_requests([talk.next_request(due_us, sent.outcome.output_tokens)])
        if not talk.previous.keeps_context:
            return [replace(following, think_time_us=coming.think_time_us)]
        prompt_tokens = sent.outcome.reply.prompt_tokens or planned.prefix_tokens + planned.input_tokens
        behind = replace(
            following,
            think_time_us=coming.think_time_us,
            earlier=(*planned.earlier, sent.prepared.turn, sent.outcome.reply.content),
            turn_tokens=coming.input_tokens,
            # Models are not shown what they thought before, so a prompt after thoughts repeats the prompt alone.
            context_tokens=prompt_tokens + (sent.outcome.output_tokens if sent.outcome.reply.is_all_content else 0),
        )
        return [behind]


COLUMNS = frozenset({"x_request_id", "first_event_time_us"})
"""Columns written on request that every recording has."""
SESSION_COLUMNS = COLUMNS | {"think_time_us", "context_tokens"}
URGENCY_COLUMNS = frozenset({"vllm_priority", "slo_e2e_us"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRecording:
    """The part of a recording that exists: its rows, and the chunk times in Unix microseconds of each of them."""

    header: TraceHeader
    rows: Sequence[TraceRow]
    chunks: Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests with known send times, in order of time, and the conversations that continue from them."""

    requests: Sequence[PlannedRequest]
    conversations: Conversations | Graph | None = None
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)
    seed: int | None = None
    """The seed of the spec that the plan is of; None where the flag or its default decides."""
    request_ids: Sequence[int] = ()
    """The numbers of the requests in the whole schedule, from `remaining_plan`."""
    earlier: EarlierRecording | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The columns written on request that a recording of these requests has."""
        columns = COLUMNS if self.conversations is None else COLUMNS | self.conversations.columns
        if any(planned.number is not None for planned in self.requests):
            columns |= GRAPH_COLUMNS
        is_urgent = any(planned.priority or planned.slo_e2e_us for planned in self.requests)
        return columns | URGENCY_COLUMNS if is_urgent else columns

    @property
    def starts_at_us(self) -> int:
        """The instant of the schedule at which this run begins: where the earlier one left off, else its start."""
        return self.requests[0].at_us if self.earlier is not None and self.requests else 0


def _users_of(options: ObserveOptions) -> WorkloadSpec:
    """Return the spec of --concurrency."""
    return users_spec(
        options.lengths,
        num_users=options.concurrency,
        think_time_us=(options.think_time_ms or 0) * 1000,
        num_requests=options.num_requests or 0,
        seed=options.prompt_seed,
        prefix_tokens=options.prefix_tokens,
    )


def _think_times_us(options: ObserveOptions) -> Iterator[int] | None:
    think_time = options.think_time
    return None if think_time is None else think_time.draws(Random(f"{options.prompt_seed}/think times"))


def _plan_from_spec(options: ObserveOptions, spec: WorkloadSpec, path: str) -> Plan:
    options.check_files(*spec.files)
    settings = {"seed": options.seed, "num_requests": options.num_requests, "horizon": options.horizon}
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    workload = generate(replace(spec, **given))
    for note in workload.notes:
        warn(f"{path}: {note}")
    requests = sorted(
        [*workload.requests, *(each.first for each in workload.sessions)], key=lambda each: each.arrival_us
    )
    num_requests = len(requests) + len(workload.rows)
    if num_requests <= options.warmup_requests:
        raise ObserveError(
            f"{path}: expected more requests than --warmup-requests ({options.warmup_requests}), got {num_requests}"
        )
    _warn_of_replaced([*requests, *workload.rows], path, options.media)
    if workload.rows:
        return _plan_of_rows(workload)
    if any(request.keeps_context and request.round_index for request in requests):
        warn(f"{path}: prompts of later rounds have the length of their context, but words of their own")
    plan = plan_from_requests(requests)
    if not workload.sessions:
        return Plan(plan, goodput_slo_targets=workload.goodput_slo_targets)
    for session in workload.sessions:
        if isinstance(session.later, tuple):  # the rounds of a user have no end
            longest = max((each.input_tokens for each in session.later), default=0)
            _check_prompt(f"{path} {session.first.session_id}", session.first.prefix_tokens + longest)
    most = None if workload.max_requests is None else max(0, workload.max_requests - len(plan))
    conversations = Conversations(workload.sessions, most, workload.horizon_us, _think_times_us(options))
    return Plan(plan, conversations, workload.goodput_slo_targets)


def _warn_of_replaced(requests: Sequence[WorkloadRequest | TraceRow], path: str, media: str) -> None:
    """Name what requests of a spec have and what is sent in its place."""
    if media == FILES:
        if any(request.video_tokens for request in requests):
            warn(f"{path}: video is sent as text of as many tokens")
    elif any(map(_has_media, requests)):
        warn(f"{path}: images, audio and video are sent as text of as many tokens (--media files sends files)")


def _has_media(request: WorkloadRequest | TraceRow) -> bool:
    return bool(request.image_tokens or request.audio_tokens or request.video_tokens)


def _plan_of_rows(workload: GeneratedWorkload) -> Plan:
    """The plan of a workload with agents."""
    rows, plan = requests_of_trace(workload.rows, None)
    plan = [replace(each, model=row.model, adapter=row.adapter) for each, row in zip(plan, rows, strict=True)]
    fixed = workload.fixed_sessions
    graph = graph_of(rows, plan, is_real=False, fixed_sessions=fixed, horizon_us=workload.horizon_us)
    return Plan(plan if graph is None else graph.first, graph, workload.goodput_slo_targets)


def plan_of(options: ObserveOptions) -> Plan:
    """Return the plan of the options. Raises BlisError when the recording to send cannot be used."""
    plan = _until_horizon(options, _plan(options))
    if not plan.requests:
        raise ObserveError("the workload has no requests: nothing arrives before its end")
    if options.stages and len(plan.requests) <= options.warmup_requests:
        given = f"{len(plan.requests)} requests of --stages"
        raise ObserveError(f"--warmup-requests must be below the {given}, got {options.warmup_requests}")
    _note_streaming(options, plan.requests)
    for number, planned in enumerate(plan.requests):
        if not planned.prompt:
            place = f"{options.source or '--prompt-tokens'} request {number}"
            _check_prompt(place, planned.prefix_tokens + planned.input_tokens)
    return plan


def _until_horizon(options: ObserveOptions, plan: Plan) -> Plan:
    """Return the plan without the requests that are due after --horizon. Raises ObserveError where none is left."""
    if options.horizon is None:
        return plan
    requests = [planned for planned in plan.requests if planned.at_us <= options.horizon]
    if len(requests) <= options.warmup_requests:
        raise ObserveError(
            f"{options.end} must leave more requests than --warmup-requests"
            f" ({options.warmup_requests}), got {len(requests)}"
        )
    return replace(plan, requests=requests)


def _note_streaming(options: ObserveOptions, plan: Sequence[PlannedRequest]) -> None:
    """Name the requests that are not streamed, and those whose own wish a flag overrides."""
    total = len(plan)
    if options.streaming is None:
        count = sum(planned.streaming is False for planned in plan)
        if count:
            print_message(
                f"note: {count} of {total} requests are sent without streaming, as {options.source} says; their first"
                " token comes with the last (--streaming streams all)"
            )
        return
    count = sum(planned.streaming is (not options.streaming) for planned in plan)
    if count:
        flag, theirs = ("--streaming", "false") if options.streaming else ("--no-streaming", "true")
        print_message(f"note: {flag} overrides streaming: {theirs} of {count} of {total} requests of {options.source}")


def _check_prompt(place: str, num_tokens: int) -> None:
    if num_tokens > MOST_TOKENS:
        raise ObserveError(f"{place}: expected a prompt of at most {MOST_TOKENS} tokens, got {num_tokens}")


def _plan_from_trace(options: ObserveOptions, path: str) -> Plan:
    trace = read_trace(path)
    if has_deltas(options.session_mode, trace.header.session_context_growth):
        trace = trace._replace(rows=accumulated(trace.rows))
    rows, plan = requests_of_trace(trace.rows, options.num_requests)
    if len(plan) <= options.warmup_requests:
        raise ObserveError(
            f"{path}: expected more requests than --warmup-requests ({options.warmup_requests}), got {len(plan)}"
        )
    if len(plan) < (options.num_requests or 0):
        warn(f"{path} has {len(plan)} requests, fewer than --num-requests {options.num_requests}")
    # Name models and adapters of a trace that are not requested again.
    names = sorted({row.adapter or row.model for row in rows} - {"", options.model})
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        aim = options.model or "the server's first model"
        print_message(f"note: requests of {options.trace} that name {shown} are sent to {aim}")
    num_empty = sum(not row.output_tokens for row in rows)
    if num_empty and not options.unconstrained_output:
        warn(f"{num_empty} requests of {path} got no output; they ask for one token")
    targets, speed = trace.header.goodput_slo_targets, options.speed
    plan = [replace(each, at_us=speed.instant_us(each.at_us, 0)) for each in plan]
    if options.session_mode == FIXED:
        return Plan(plan, goodput_slo_targets=targets)
    keeps_times = options.session_mode == FIXED_ACCUMULATE
    think_time_us = None if options.think_time_ms is None else options.think_time_ms * 1000
    graph = graph_of(
        rows,
        plan,
        is_real=trace.header.mode == "real",
        think_time_us=1 if keeps_times else _think_times_us(options) if think_time_us is None else think_time_us,
        horizon_us=options.horizon,
        speed=speed,
        keeps_times=keeps_times,
        pool_size=options.session_pool,
    )
    return Plan(plan if graph is None else graph.first, graph, targets)


def _plan(options: ObserveOptions) -> Plan:
    if options.trace is not None:
        return _plan_from_trace(options, options.trace)
    if options.workload_spec is not None:
        spec = read_spec_at(options.workload_spec, options.rate)
        seeded = replace(options, seed=spec.seed if options.seed is None else options.seed)
        return replace(_plan_from_spec(seeded, spec, options.workload_spec), seed=seeded.seed)
    if options.concurrency:
        return _plan_from_spec(options, _users_of(options), "--concurrency")
    spec = options.synthetic_spec(num_requests=options.num_requests or 0, seed=options.prompt_seed)
    workload = generate(spec if options.horizon is None else replace(spec, horizon=options.horizon))
    for note in workload.notes:
        warn(note)
    plan = plan_from_requests(workload.requests)
    if options.prompts is None:
        return Plan(plan)
    prompts = read_prompts(options.prompts)
    if len(prompts) < len(plan):
        warn(f"the {len(prompts)} prompts of {options.prompts} are sent more than once; prefix caches find them again")
    return Plan(with_prompts(plan, prompts))


# The workload of a run: its plan once the server has been queried, or the rest of an interrupted recording.


def remaining_plan(options: ObserveOptions, whole: Plan) -> Plan:
    """All of the plan, or with `--resume` what the recording lacks. Raises BlisError when it is of another plan.

    Rows that the end of the earlier run cut are sent again; those that failed by themselves are measurements.
    """
    plan = whole.requests
    if options.shared_by and whole.conversations is not None:
        raise ObserveError(
            f"{options.shared_by} needs requests with times of their own; conversations wait for replies in one process"
        )
    if options.resume and whole.conversations is not None:
        raise ObserveError("--resume needs requests with times of their own; conversations cannot be taken up again")
    earlier = _earlier_recording(options) if options.resume else None
    if earlier is None:
        return replace(whole, request_ids=range(len(plan)))
    _check_same_run(options, plan, earlier)
    there = {row.request_id for row in earlier.rows}
    left = [number for number in range(options.warmup_requests, len(plan)) if number not in there]
    return replace(whole, requests=[plan[number] for number in left], request_ids=left, earlier=earlier)


def check_same_model(options: ObserveOptions, earlier: EarlierRecording, model: str) -> None:
    """Raise ObserveError when the recording is of another model."""
    recorded = earlier.header.server.get("model")
    if recorded != Redactor(options.proxying.redact).text(model):
        raise ObserveError(f"{options.paths.header}: recorded from model {recorded}, cannot be resumed with {model}")


def _earlier_recording(options: ObserveOptions) -> EarlierRecording | None:
    """Return the earlier part of the recording; None where nothing has been recorded."""
    paths = options.paths
    if not (paths.header.is_file() and paths.data.is_file()):
        return None
    rows = [row for row in read_cut_rows(paths.data) if row.error_message != CANCELLED]
    if not rows:
        return None
    chunks: dict[int, list[int]] = {}
    if paths.itl is not None:
        if not paths.itl.is_file():
            raise ObserveError(f"--resume with --record-itl needs {paths.itl}, the recording has been made without")
        there = {row.request_id for row in rows}
        chunks = {number: times for number, times in read_cut_itl(paths.itl).items() if number in there}
    return EarlierRecording(header=read_header(paths.header), rows=rows, chunks=chunks)


def _check_same_run(options: ObserveOptions, plan: Sequence[PlannedRequest], earlier: EarlierRecording) -> None:
    """Raise ObserveError unless the recording came from the same schedule."""
    paths, header, redactor = options.paths, earlier.header, Redactor(options.proxying.redact)
    for flag, recorded, asked in (
        ("--seed", header.workload_seed, options.prompt_seed),
        ("--warmup-requests", header.warm_up_requests, options.warmup_requests),
        ("the workload", header.workload_spec, redactor.text(options.source)),
    ):
        if recorded != asked:
            raise ObserveError(f"{paths.header}: recorded with {flag} {recorded}, cannot be resumed with {asked}")
    for row in earlier.rows:
        number = row.request_id
        if not 0 <= number < len(plan):
            raise ObserveError(f"{paths.data}: has request {number}, the schedule to resume ends at {len(plan) - 1}")
        planned = plan[number]
        input_tokens = row.input_tokens if planned.prompt else planned.input_tokens
        recorded_as = (row.arrival_time_us, row.prefix_length, row.input_tokens)
        if recorded_as != (planned.at_us, planned.prefix_tokens, input_tokens):
            raise ObserveError(
                f"{paths.data}: request {number} is of another schedule, with {row.input_tokens} input tokens at"
                f" {row.arrival_time_us} us; the one to resume has {planned.input_tokens} at {planned.at_us} us"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """State of a run that is fixed before the first request."""

    options: ObserveOptions
    plan: Plan
    style: RequestStyle
    prompts: PromptGenerator
    rtt_ms: float | None

    @property
    def requested_per_s(self) -> float:
        """The request rate that is requested."""
        return self.options.rate or mean_rate(self.plan.requests)

    @property
    def load(self) -> Load:
        """The load that is requested, as far as it is known before any reply."""
        requests = self.plan.requests
        prompts = [each.prefix_tokens + each.input_tokens for each in requests]
        return load_of(self.requested_per_s, prompts, [each.output_tokens for each in requests])

    @property
    def slo_targets(self) -> Mapping[str, SloTargets]:
        """SLO targets for goodput: those of the options, else those of the workload."""
        return self.options.slo_targets or self.plan.goodput_slo_targets


def preparer(server: Server, workload: Workload) -> Callable[[int, PlannedRequest], PreparedRequest]:
    """Return a function from a position in the agenda to the bytes of that request."""
    headers = {name: text for name, text in workload.options.headers.items() if name != "x-request-id"}
    style, has_spans = workload.style, bool(workload.options.tracing.otlp_traces_endpoint)
    request_ids = workload.plan.request_ids

    targets_us = {name: round(each.e2e_ms * 1000) for name, each in workload.slo_targets.items()}

    @lru_cache(maxsize=256)
    def head(slo_class: str, tenant_id: str, slo_e2e_us: int) -> bytes:
        labels = _labels(slo_class, tenant_id, slo_e2e_us or targets_us.get(class_name(slo_class), 0))
        return post_head(server, style.path, {**SEND_TIME_HEADER, **labels, **headers})

    def prepare(place: int, planned: PlannedRequest) -> PreparedRequest:
        # Requests that follow others have numbers behind the plan.
        request_id = request_ids[place] if place < len(request_ids) else place
        if planned.number is not None:
            request_id = planned.number
        model = style.model_of(planned.model, planned.adapter)
        if model != planned.model:
            planned = replace(planned, model=model)
        if workload.options.cancel_rate and _is_cancelled(request_id, workload.options):
            planned = replace(planned, cancel_us=workload.options.cancel_delay_us)
        media: Sequence[Mapping[str, Any]] = ()
        if workload.options.media == FILES and (planned.image_tokens or planned.audio_tokens):
            media = parts_of(planned.image_tokens, planned.audio_tokens, f"{workload.options.prompt_seed}/{request_id}")
        prompt = planned.prompt or _prompt(workload.prompts, request_id, _without_media(planned) if media else planned)
        x_request_id = str(uuid.uuid4())
        is_traced = has_spans and request_id >= workload.options.warmup_requests
        body = style.body(
            prompt,
            planned.output_tokens,
            planned.model,
            planned.earlier,
            planned.priority or 0,
            streaming=planned.streaming,
            media=media,
        )
        labels = head(planned.slo_class, planned.tenant_id, planned.slo_e2e_us)
        return PreparedRequest(
            request_id=request_id,
            planned=planned,
            x_request_id=x_request_id,
            request=post_bytes_of(labels, x_request_id, body, traceparent(x_request_id) if is_traced else ""),
            streaming=style.streams(planned.streaming),
            turn=prompt,
        )

    return prepare


def _is_cancelled(request_id: int, options: ObserveOptions) -> bool:
    """Return whether the client of a request hangs up, whichever process sends it."""
    return Random(f"{options.prompt_seed}/cancelled/{request_id}").random() < options.cancel_rate


def _without_media(planned: PlannedRequest) -> PlannedRequest:
    """The request with the words beside its images and sounds."""
    num_tokens = planned.image_tokens + planned.audio_tokens
    return replace(
        planned,
        input_tokens=max(1, planned.input_tokens - num_tokens),
        turn_tokens=max(1, planned.turn_tokens - num_tokens),
    )


def _prompt(prompts: PromptGenerator, request_id: int, planned: PlannedRequest) -> str:
    """The last turn of a prompt."""
    if planned.earlier or planned.begins_with:
        own = prompts.text(request_id, input_tokens=planned.turn_tokens)
        return f"{planned.begins_with} {own}" if planned.begins_with else own
    group, prefix_tokens = planned.prefix_group, planned.prefix_tokens
    if planned.repeats is None:
        return prompts.text(
            request_id, input_tokens=planned.input_tokens, prefix_group=group, prefix_tokens=prefix_tokens
        )
    return prompts.text_after_prefix(
        request_id,
        planned.repeats.parts,
        num_tokens=prefix_tokens + planned.input_tokens,
        prefix_group=group,
        prefix_tokens=prefix_tokens,
    )


def _labels(slo_class: str, tenant_id: str, slo_e2e_us: int) -> dict[str, str]:
    """Return headers that describe a request to inference gateways, and its deadline to `blis serve`."""
    labels = {
        "x-gateway-inference-objective": slo_class,
        "x-gateway-inference-fairness-id": tenant_id,
        "x-slo-e2e-ms": number_text(slo_e2e_us / 1000) if slo_e2e_us else "",
    }
    return {name: text for name, text in labels.items() if text and text.isascii() and text.isprintable()}

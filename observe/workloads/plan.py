"""From the settings of a run to its requests: a plan, and closed-loop sessions in which each request awaits a reply."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from blis_sim.options.limits import MOST_TOKENS
from observe.connection import Outcome
from observe.dispatch import SentRequest
from observe.errors import ObserveError, print_message, warn
from observe.options import ObserveOptions
from observe.requests import (
    PlannedRequest,
    constant_arrivals_us,
    plan_from_requests,
    plan_synthetic,
    poisson_arrivals_us,
    read_prompts,
    with_prompts,
)
from observe.workloads.graph import Graph, graph_of, requests_of_trace
from traces import SloTargets, TraceRow, read_trace
from traces.workload import Round, Session, Workload, WorkloadRequest, read_spec
from traces.workload.generate import generate


@dataclass(slots=True)
class _ActiveSession:
    """A session under way: the request that was sent last, and the rounds after it."""

    session: Session
    previous: WorkloadRequest
    later: Iterator[Round]


class Conversations:
    """Sends the next request of a session after a reply. A session ends after its rounds, or with a failed request.

    At most `max_follow_ups` requests follow, and none that would be due after `horizon_us`; None limits nothing.
    """

    columns = frozenset({"think_time_us", "context_tokens"})

    def __init__(self, sessions: Sequence[Session], max_follow_ups: int | None, horizon_us: int | None) -> None:
        self._active_sessions = {
            each.first.session_id: _ActiveSession(each, each.first, iter(each.later)) for each in sessions
        }
        self._num_left = max_follow_ups
        self._horizon_us = horizon_us

    def follow_up(self, sent: SentRequest, ended_us: int) -> list[PlannedRequest]:
        """The request after one that ended at this instant of the schedule; none when the session is over."""
        planned = sent.prepared.planned
        talk = self._active_sessions.get(planned.session_id)
        if talk is None:
            return []
        coming = next(talk.later, None) if sent.outcome.status == "ok" and self._num_left != 0 else None
        due_us = ended_us + (coming.think_time_us if coming is not None else 0)
        if coming is None or (self._horizon_us is not None and due_us > self._horizon_us):
            del self._active_sessions[planned.session_id]
            return []
        if self._num_left is not None:
            self._num_left -= 1
        talk.previous = talk.session.next_request(talk.previous, sent.outcome.output_tokens, coming, due_us)
        (following,) = plan_from_requests([talk.previous])
        if not talk.previous.keeps_context:
            return [replace(following, think_time_us=coming.think_time_us)]
        behind = replace(
            following,
            think_time_us=coming.think_time_us,
            earlier=(*planned.earlier, sent.prepared.turn, sent.outcome.reply.content),
            turn_tokens=coming.input_tokens,
            context_tokens=_repeated_tokens(planned, sent.outcome),
        )
        return [behind]


def _repeated_tokens(planned: PlannedRequest, outcome: Outcome) -> int:
    """Return the number of tokens at the start of the next prompt that repeat this prompt and its reply.

    Models are not shown what they thought before, so a prompt after a reply with thoughts goes on another way.
    """
    prompt_tokens = outcome.reply.prompt_tokens or planned.prefix_tokens + planned.input_tokens
    return prompt_tokens + (outcome.output_tokens if outcome.reply.is_all_content else 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests with known send times, and the conversations that continue from them."""

    requests: Sequence[PlannedRequest]
    conversations: Conversations | Graph | None = None
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)


def _plan_from_spec(options: ObserveOptions, path: str) -> Plan:
    spec = read_spec(path)
    options.check_files(*spec.files)
    if options.num_requests is not None:
        spec = replace(spec, num_requests=options.num_requests)
    workload = generate(spec)
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
    _warn_of_replaced([*requests, *workload.rows], path)
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
    return Plan(plan, Conversations(workload.sessions, most, workload.horizon_us), workload.goodput_slo_targets)


def _warn_of_replaced(requests: Sequence[WorkloadRequest | TraceRow], path: str) -> None:
    """Name what requests of a spec have and what is sent in its place."""
    if any(map(_has_media, requests)):
        warn(f"{path}: images, audio and video are sent as text of as many tokens")
    if any(request.adapter for request in requests):
        warn(f"{path}: adapters are not requested, their clients' requests go to the base model")


def _has_media(request: WorkloadRequest | TraceRow) -> bool:
    return bool(request.image_tokens or request.audio_tokens or request.video_tokens)


def _plan_of_rows(workload: Workload) -> Plan:
    """The plan of a workload with agents."""
    rows, plan = requests_of_trace(workload.rows, None)
    plan = [replace(each, model=row.model) for each, row in zip(plan, rows, strict=True)]
    fixed = workload.fixed_sessions
    graph = graph_of(rows, plan, is_real=False, fixed_sessions=fixed, horizon_us=workload.horizon_us)
    return Plan(plan if graph is None else graph.first, graph, workload.goodput_slo_targets)


def plan_of(options: ObserveOptions) -> Plan:
    """Return the plan of the options. Raises BlisError when the recording to send cannot be used."""
    plan = _plan(options)
    _note_streaming(options, plan.requests)
    for number, planned in enumerate(plan.requests):
        if not planned.prompt:
            place = f"{options.source or '--prompt-tokens'} request {number}"
            _check_prompt(place, planned.prefix_tokens + planned.input_tokens)
    return plan


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


def _note_models(options: ObserveOptions, rows: Sequence[TraceRow]) -> None:
    """Name models and adapters of a trace that are not requested again."""
    names = sorted({row.adapter or row.model for row in rows} - {"", options.model})
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        aim = options.model or "the server's first model"
        print_message(f"note: requests of {options.trace} that name {shown} are sent to {aim}")


def _check_prompt(place: str, num_tokens: int) -> None:
    if num_tokens > MOST_TOKENS:
        raise ObserveError(f"{place}: expected a prompt of at most {MOST_TOKENS} tokens, got {num_tokens}")


def _plan(options: ObserveOptions) -> Plan:
    if options.trace is not None:
        trace = read_trace(options.trace)
        rows, plan = requests_of_trace(trace.rows, options.num_requests)
        if len(plan) <= options.warmup_requests:
            raise ObserveError(
                f"{options.trace}: expected more requests than --warmup-requests"
                f" ({options.warmup_requests}), got {len(plan)}"
            )
        if len(plan) < (options.num_requests or 0):
            warn(f"{options.trace} has {len(plan)} requests, fewer than --num-requests {options.num_requests}")
        _note_models(options, rows)
        num_empty = sum(not row.output_tokens for row in rows)
        if num_empty and not options.unconstrained_output:
            warn(f"{num_empty} requests of {options.trace} got no output; they ask for one token")
        targets = trace.header.goodput_slo_targets
        if options.session_mode == "fixed":
            return Plan(plan, goodput_slo_targets=targets)
        think_time_us = None if options.think_time_ms is None else options.think_time_ms * 1000
        graph = graph_of(rows, plan, is_real=trace.header.mode == "real", think_time_us=think_time_us)
        return Plan(plan if graph is None else graph.first, graph, targets)
    if options.workload_spec is not None:
        return _plan_from_spec(options, options.workload_spec)
    assert options.rate is not None
    assert options.num_requests is not None
    if options.arrival == "poisson":
        arrivals_us = poisson_arrivals_us(options.rate, options.num_requests, Random(f"{options.seed}/arrivals"))
    else:
        arrivals_us = constant_arrivals_us(options.rate, options.num_requests)
    plan = plan_synthetic(
        arrivals_us,
        options.prompt_lengths,
        options.output_lengths,
        prefix_tokens=options.prefix_tokens,
        random=Random(f"{options.seed}/lengths"),
    )
    if options.prompts is None:
        return Plan(plan)
    prompts = read_prompts(options.prompts)
    if len(prompts) < len(plan):
        warn(f"the {len(prompts)} prompts of {options.prompts} are sent more than once; prefix caches find them again")
    return Plan(with_prompts(plan, prompts))

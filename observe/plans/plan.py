"""From the settings of a run to what it sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from blis_sim.options.room import MOST_TOKENS
from observe.errors import ObserveError
from observe.messages import warn
from observe.options import ObserveOptions
from observe.plans.conversations import Conversations
from observe.requests.prompt_file import read_prompts, with_prompts
from observe.requests.schedule import (
    Planned,
    constant_arrivals_us,
    plan_from_requests,
    plan_from_trace,
    plan_synthetic,
    poisson_arrivals_us,
)
from traces import SloTargets, read_trace
from traces.workload import read_spec
from traces.workload.generate import generate


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send at times that are known, and the conversations that go on from there."""

    requests: Sequence[Planned]
    conversations: Conversations | None = None
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
    if len(requests) <= options.warmup_requests:
        raise ObserveError(
            f"{path}: expected more requests than --warmup-requests ({options.warmup_requests}), got {len(requests)}"
        )
    if any(request.image_tokens or request.audio_tokens or request.video_tokens for request in requests):
        warn(f"{path}: images, audio and video are sent as text of as many tokens")
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


def plan_of(options: ObserveOptions) -> Plan:
    """What the options ask to send. Raises BlisError when the recording to send cannot be used."""
    plan = _plan(options)
    for number, planned in enumerate(plan.requests):
        if not planned.prompt:
            place = f"{options.source or '--prompt-tokens'} request {number}"
            _check_prompt(place, planned.prefix_tokens + planned.input_tokens)
    return plan


def _check_prompt(place: str, num_tokens: int) -> None:
    if num_tokens > MOST_TOKENS:
        raise ObserveError(f"{place}: expected a prompt of at most {MOST_TOKENS} tokens, got {num_tokens}")


def _plan(options: ObserveOptions) -> Plan:
    if options.trace is not None:
        trace = read_trace(options.trace)
        rows = trace.rows
        plan = plan_from_trace(rows)[: options.num_requests]
        if len(plan) <= options.warmup_requests:
            raise ObserveError(
                f"{options.trace}: expected more requests than --warmup-requests"
                f" ({options.warmup_requests}), got {len(plan)}"
            )
        num_empty = sum(not row.output_tokens for row in rows)
        if num_empty and not options.unconstrained_output:
            warn(f"{num_empty} requests of {options.trace} got no output; they ask for one token")
        return Plan(plan, goodput_slo_targets=trace.header.goodput_slo_targets)
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

"""The workload of a run: its plan once the server has been queried, or the rest of an interrupted recording."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from observe.body import RequestStyle
from observe.connection import CANCELLED
from observe.dispatch import PreparedRequest
from observe.errors import ObserveError
from observe.http import SEND_TIME_HEADER, Server, post_bytes_of, post_head
from observe.options import ObserveOptions
from observe.requests import PlannedRequest, PromptGenerator, mean_rate
from observe.spans import traceparent
from observe.workloads.graph import GRAPH_COLUMNS, Graph
from observe.workloads.plan import Conversations, Plan
from traces import SloTargets, TraceHeader, TraceRow, number_text, read_cut_itl, read_cut_rows, read_header
from traces.redaction import Redactor
from traces.slo import class_name

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSchedule:
    """The requests of this run in order of time, with their numbers in the whole schedule."""

    plan: Sequence[PlannedRequest]
    request_ids: Sequence[int]
    earlier: EarlierRecording | None = None
    conversations: Conversations | Graph | None = None
    goodput_slo_targets: Mapping[str, SloTargets] = field(default_factory=dict)

    @property
    def columns(self) -> frozenset[str]:
        """The columns written on request that a recording of these requests has."""
        columns = COLUMNS if self.conversations is None else COLUMNS | self.conversations.columns
        if any(planned.number is not None for planned in self.plan):
            columns |= GRAPH_COLUMNS
        is_urgent = any(planned.priority or planned.slo_e2e_us for planned in self.plan)
        return columns | URGENCY_COLUMNS if is_urgent else columns

    @property
    def starts_at_us(self) -> int:
        """The instant of the schedule at which this run begins: where the earlier one left off, else its start."""
        return self.plan[0].at_us if self.earlier is not None and self.plan else 0


def remaining_schedule(options: ObserveOptions, whole: Plan) -> RequestSchedule:
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
        return RequestSchedule(
            plan=plan,
            request_ids=range(len(plan)),
            conversations=whole.conversations,
            goodput_slo_targets=whole.goodput_slo_targets,
        )
    _check_same_run(options, plan, earlier)
    there = {row.request_id for row in earlier.rows}
    left = [number for number in range(options.warmup_requests, len(plan)) if number not in there]
    return RequestSchedule(
        plan=[plan[number] for number in left],
        request_ids=left,
        earlier=earlier,
        goodput_slo_targets=whole.goodput_slo_targets,
    )


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
        ("--seed", header.workload_seed, options.seed),
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
    request_schedule: RequestSchedule
    style: RequestStyle
    prompts: PromptGenerator
    rtt_ms: float | None

    @property
    def requested_per_s(self) -> float:
        """The request rate that is requested."""
        return self.options.rate or mean_rate(self.request_schedule.plan)

    @property
    def slo_targets(self) -> Mapping[str, SloTargets]:
        """SLO targets for goodput: those of the options, else those of the workload."""
        return self.options.slo_targets or self.request_schedule.goodput_slo_targets


def preparer(server: Server, workload: Workload) -> Callable[[int, PlannedRequest], PreparedRequest]:
    """Return a function from a position in the agenda to the bytes of that request."""
    headers = {name: text for name, text in workload.options.headers.items() if name != "x-request-id"}
    style, has_spans = workload.style, bool(workload.options.tracing.otlp_traces_endpoint)
    request_ids = workload.request_schedule.request_ids

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
        prompt = planned.prompt or _prompt(workload.prompts, request_id, planned)
        x_request_id = str(uuid.uuid4())
        is_traced = has_spans and request_id >= workload.options.warmup_requests
        body = style.body(
            prompt,
            planned.output_tokens,
            planned.model,
            planned.earlier,
            planned.priority or 0,
            streaming=planned.streaming,
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

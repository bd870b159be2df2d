"""The requests of a generated workload as arrivals at an engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.conversation_blocks import ConversationBlocks
from traces.workload import Workload, WorkloadRequest


def first_requests(workload: Workload) -> Iterator[WorkloadRequest]:
    """Every request that is known before any reply."""
    yield from workload.requests
    yield from (session.first for session in workload.sessions)


@dataclass(frozen=True, slots=True)
class GeneratedArrivals:
    """Requests, ascending by arrival, as arrivals numbered in this order; each is made when it is its turn."""

    requests: Sequence[WorkloadRequest]
    config: EngineConfig

    def __iter__(self) -> Iterator[Arrival]:
        for number, request in enumerate(self.requests):
            yield arrival_of(request, number, self.config)


def served_by(model: str, workload: Workload) -> tuple[Workload, int]:
    """The workload without requests that name another model, whatever the case of letters, and how many those are.

    Model names are in small letters then.
    """
    if {request.model for request in first_requests(workload)} <= {"", model.lower()}:
        return workload, 0
    requests = [_in_small_letters(request) for request in workload.requests if _asks_for(model, request)]
    sessions = [
        replace(session, first=_in_small_letters(session.first))
        for session in workload.sessions
        if _asks_for(model, session.first)
    ]
    num_left_out = len(workload.requests) - len(requests) + len(workload.sessions) - len(sessions)
    return replace(workload, requests=requests, sessions=sessions), num_left_out


def _asks_for(model: str, request: WorkloadRequest) -> bool:
    return request.model.lower() in ("", model.lower())


def _in_small_letters(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.model.islower() or not request.model else request._replace(model=request.model.lower())


def arrival_of(request: WorkloadRequest, number: int, config: EngineConfig) -> Arrival:
    """A generated request as the engine takes it."""
    request_id, output_tokens = f"request_{number}", request.output_tokens
    simulated = Request(  # by position, for there are millions
        request_id,
        request.prefix_tokens + request.input_tokens,
        output_tokens,
        _blocks(request, request_id, config),
        output_tokens,
        request.deadline_us,
        request.slo_class,
        None,
        True,
        request.adapter,
        None,
        request.tenant_id,
        request.slo_target_us,
    )
    return Arrival(request.arrival_us, simulated, request)


def _blocks(request: WorkloadRequest, request_id: str, config: EngineConfig) -> BlockIdentities:
    group = request.prefix_group
    if not group and not request.keeps_context:
        return UniqueBlocks(request_id)
    shared_blocks = config.num_identified_blocks(request.prefix_tokens) if group else 0
    if request.keeps_context:
        num_tokens = request.prefix_tokens + request.input_tokens + max(0, request.output_tokens - 1)
        num_blocks = num_tokens // config.block_size_tokens
        return ConversationBlocks(
            request_id,
            num_shareable=num_blocks,
            owners=(request.session_id,),
            ends=(num_blocks,),
            group=group,
            shared_blocks=shared_blocks,
        )
    return PrefixGroupBlocks(request_id, group, shared_blocks)

"""The requests of a generated workload as arrivals at an engine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from operator import add
from typing import Any

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from replay.arrivals import Arrival, ConversationBlocks
from traces import TraceRow
from traces.graph import restricted_to
from traces.workload import Workload, WorkloadRequest

CHUNK_SIZE = 256
"""How many requests are made when it is the turn of the first: enough to be cheap, few enough to be forgotten soon."""

_DEFAULTS = Request._field_defaults


def first_requests(workload: Workload) -> Iterator[WorkloadRequest | TraceRow]:
    """Every request that is known before any reply, and all of a workload of rows."""
    return chain(workload.requests, (session.first for session in workload.sessions), workload.rows)


@dataclass(frozen=True, slots=True)
class GeneratedArrivals:
    """Requests, ascending by arrival, as arrivals numbered in this order; they are made when it is their turn."""

    requests: Sequence[WorkloadRequest]
    config: EngineConfig

    def __iter__(self) -> Iterator[Arrival]:
        requests, config = self.requests, self.config
        return chain.from_iterable(
            arrivals_of_chunk(requests[first : first + CHUNK_SIZE], first, config)
            for first in range(0, len(requests), CHUNK_SIZE)
        )


def requests_for_model(model: str, workload: Workload) -> tuple[Workload, int]:
    """The workload without requests that name another model, whatever the case of letters, and how many those are.

    Model names are in small letters then.
    """
    if {request.model for request in first_requests(workload)} <= {"", model.lower()}:
        return workload, 0
    requests = [_in_small_letters(request) for request in workload.requests if _requests_model(model, request)]
    sessions = [
        replace(session, first=_in_small_letters(session.first))
        for session in workload.sessions
        if _requests_model(model, session.first)
    ]
    rows = [row for row in workload.rows if _requests_model(model, row)]
    num_left_out = len(workload.requests) - len(requests) + len(workload.sessions) - len(sessions)
    num_left_out += len(workload.rows) - len(rows)
    rows = [replace(row, model=row.model.lower()) for row in restricted_to(workload.rows, rows)]
    return replace(workload, requests=requests, sessions=sessions, rows=rows), num_left_out


def _requests_model(model: str, request: WorkloadRequest | TraceRow) -> bool:
    return request.model.lower() in ("", model.lower())


def _in_small_letters(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.model.islower() or not request.model else request._replace(model=request.model.lower())


def arrival_of(request: WorkloadRequest, number: int, config: EngineConfig) -> Arrival:
    """A generated request as the engine takes it."""
    (arrival,) = arrivals_of_chunk([request], number, config)
    return arrival


def arrivals_of_chunk(requests: Sequence[WorkloadRequest], number: int, config: EngineConfig) -> Iterator[Arrival]:
    """Generated requests as the engine takes them, numbered from `number` on.

    There are millions, so this goes by columns, and no function is called for each.
    """
    given = dict(zip(WorkloadRequest._fields, zip(*requests, strict=True), strict=True))
    ids = [f"request_{each}" for each in range(number, number + len(requests))]
    if any(given["prefix_group"]) or any(given["keeps_context"]):
        blocks = iter([_blocks(request, request_id, config) for request, request_id in zip(requests, ids, strict=True)])
    else:
        blocks = map(partial(tuple.__new__, UniqueBlocks), zip(ids, strict=True))
    columns: dict[str, Iterable[Any]] = {
        "id": ids,
        "input_tokens": map(add, given["prefix_tokens"], given["input_tokens"]),
        "output_tokens": given["output_tokens"],
        "blocks": blocks,
        "max_output_tokens": given["output_tokens"],
        "deadline_us": given["deadline_us"],
        "slo_class": given["slo_class"],
        "adapter": given["adapter"],
        "tenant": given["tenant_id"],
        "slo_target_us": given["slo_target_us"],
        "priority": given["priority"],
        "slo_e2e_us": given["slo_e2e_us"],
    }
    rows = zip(*(columns.get(name) or repeat(_DEFAULTS[name]) for name in Request._fields), strict=False)
    # What _make does, without its call per request.
    simulated = map(partial(tuple.__new__, Request), rows)
    return map(partial(tuple.__new__, Arrival), zip(given["arrival_us"], simulated, requests, strict=True))


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

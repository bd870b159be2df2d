"""From the rows of a trace to requests with arrival times on the engine's clock."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.units import Micros
from replay.arrivals.arrival import Arrival
from replay.arrivals.contexts import blocks_of_conversations, prompt_tokens_of_conversations
from traces import Trace, TraceRow
from traces.graph import without_others

FAILED_STATUSES = frozenset({"error", "timeout"})
"""Statuses of a real recording whose rows do not show the server's full work for them."""


class Arrivals(NamedTuple):
    """A trace made ready: arrivals ascending by instant, in file order where equal, and what was left out."""

    arrivals: list[Arrival]
    num_failed_left_out: int
    num_other_models_left_out: int


def arrivals_of(
    trace: Trace, model: str, config: EngineConfig, include_failed: bool = False, as_scheduled: bool = False
) -> Arrivals:
    """The requests of a trace.

    A row is injected when it was sent, or at its scheduled arrival if it never was, or if `as_scheduled`. Clocks that
    start elsewhere, such as the Unix epoch of a recording, are shifted so that the first one sent is sent at the first
    arrival. Rounds of a conversation find the context that they repeat, by their own count, in the KV cache. In
    recordings of mode "real", rows that failed are left out unless `include_failed`. Rows that name another model than
    `model`, whatever the case of letters, are left out too. Rows that wait for one that is left out wait for what it
    waits for.
    """
    leave_failed = trace.header.mode == "real" and not include_failed
    present = [row for row in trace.rows if not (leave_failed and row.status in FAILED_STATUSES)]
    served = without_others(trace.rows, [row for row in present if _is_served(row, model)])
    arrivals = arrivals_of_rows(served, config, as_scheduled)
    return Arrivals(arrivals, len(trace.rows) - len(present), len(present) - len(served))


def arrivals_of_rows(served: Sequence[TraceRow], config: EngineConfig, as_scheduled: bool = False) -> list[Arrival]:
    """All of these requests, ascending by instant, in their order where equal."""
    offset = _clock_offset(served)
    prefix_tokens = _prefix_tokens(served)
    ids = _unique_ids(served)
    prompt_tokens = prompt_tokens_of_conversations(served)
    conversations = blocks_of_conversations(served, ids, prompt_tokens, config)
    arrivals = [
        Arrival(
            at=row.send_time_us - offset if row.send_time_us > 0 and not as_scheduled else row.arrival_time_us,
            request=_request(row, ids[place], _priority(row, config), prompt_tokens[place], conversations[place])
            if place in conversations
            else _request(row, ids[place], _priority(row, config), *_prompt(row, ids[place], prefix_tokens, config)),
            row=row,
        )
        for place, row in enumerate(served)
    ]
    arrivals.sort(key=lambda arrival: arrival.at)
    return arrivals


def _is_served(row: TraceRow, model: str) -> bool:
    return not row.model or row.model.lower() == model.lower()


def _clock_offset(rows: Sequence[TraceRow]) -> Micros:
    """How far the sending clock is ahead of the arrival clock, by the rows that were sent."""
    sent = [row for row in rows if row.send_time_us > 0]
    if not sent:
        return 0
    return min(row.send_time_us for row in sent) - min(row.arrival_time_us for row in sent)


def _prefix_tokens(rows: Iterable[TraceRow]) -> dict[str, int]:
    """Length of each group's shared prefix: the group's first row decides."""
    lengths: dict[str, int] = {}
    for row in rows:
        if row.prefix_group:
            lengths.setdefault(row.prefix_group, row.prefix_length)
    return lengths


def _unique_ids(rows: Iterable[TraceRow]) -> list[str]:
    """Return `request_<id>` for each row; a repeated id gets a number, because requests of an engine need different
    ids."""
    seen: Counter[int] = Counter()
    ids = []
    for row in rows:
        seen[row.request_id] += 1
        repeated = seen[row.request_id]
        ids.append(f"request_{row.request_id}" + (f"#{repeated}" if repeated > 1 else ""))
    return ids


def _prompt(
    row: TraceRow, request_id: str, prefix_tokens: dict[str, int], config: EngineConfig
) -> tuple[int, BlockIdentities]:
    """Return tokens and blocks of a prompt that stands for itself, or is shared with a group.

    A prompt is as long as the server counted it, for its tokenizer makes more or fewer tokens of a text than were
    requested. With a shared start BLIS adds what was requested.
    """
    if not row.prefix_group:
        return row.server_input_tokens or row.input_tokens, UniqueBlocks(request_id)
    shared = prefix_tokens[row.prefix_group]
    counted = 0 if config.engine == "blis" else row.server_input_tokens
    total = counted or shared + row.input_tokens
    blocks = PrefixGroupBlocks(request_id, row.prefix_group, config.num_identified_blocks(min(shared, total)))
    return total, blocks


def _priority(row: TraceRow, config: EngineConfig) -> int | None:
    """The priority of a request as a server takes it: 0 means none where its SLO class has one.

    BLIS goes by the SLO class alone.
    """
    if row.vllm_priority is None or (config.engine == "blis" and not config.uses_deadlines):
        return None
    return row.vllm_priority or (None if row.slo_class else 0)


def _request(
    row: TraceRow, request_id: str, priority: int | None, input_tokens: int, blocks: BlockIdentities
) -> Request:
    return Request(  # by position, for there are millions
        request_id,
        input_tokens,
        row.output_tokens,
        blocks,
        row.output_tokens,
        row.deadline_us,
        row.slo_class,
        priority,
        True,
        row.adapter,
        None,
        row.tenant_id,
        row.slo_target_us,
        row.slo_e2e_us,
    )

"""From the rows of a trace to requests with arrival times on the engine's clock.

Prompts that go on where an earlier one and its reply ended, or that repeat them, share their KV blocks.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.units import Micros
from traces import Trace, TraceRow
from traces.graph import context_of, repeated_places, restricted_to

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from traces.load import SpeedOptions
    from traces.workload.request import WorkloadRequest  # a replay does not wait for the generators to be loaded


class ConversationBlocks(NamedTuple):
    """A request whose prompt begins with earlier prompts and replies, or whose reply is part of a later prompt.

    Blocks below `ends[i]`, from `ends[i - 1]` on, hold the text of `owners[i]`: an earlier request, or all that is said
    in a session. The first `shared_blocks` are those of `group`. `num_shareable` counts the full blocks of prompt and
    reply without the last token, which is sampled but never computed.
    """

    request_id: str
    num_shareable: int
    owners: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    group: str = ""
    shared_blocks: int = 0

    def identity(self, index: int) -> object:
        if index < self.shared_blocks:
            return (0, self.group, index)
        place = bisect_right(self.ends, index)
        return (self.owners[place] if place < len(self.owners) else self.request_id, index)

    def first(self, num_blocks: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Owners and ends of these blocks alone, for a prompt that begins with them."""
        owners: list[str] = []
        ends: list[int] = []
        for owner, end in zip((*self.owners, self.request_id), (*self.ends, num_blocks), strict=True):
            if not ends or ends[-1] < num_blocks:
                owners.append(owner)
                ends.append(min(end, num_blocks))
        return tuple(owners), tuple(ends)


Origin: TypeAlias = Union[TraceRow, "WorkloadRequest"]
"""The row or generated request that an arrival is made from; both have fields of equal names for its labels."""


def known_labels(rows: Sequence[Origin], name: str) -> "tuple[list[str], npt.NDArray[np.int64]] | None":
    """The values of a field of rows, and for each row the index of its value.

    None where rows would have to be made for this, which are made only when they are asked for.
    """
    labels_of = getattr(rows, "labels_of", None)
    return None if labels_of is None else labels_of(name)


class Arrival(NamedTuple):
    """An arriving request: its instant, the request for the engine, and its origin."""

    at: Micros
    request: Request
    row: Origin


def prompt_tokens_of_conversations(rows: Iterable[TraceRow]) -> dict[int, int]:
    """Tokens of the whole prompt of each row that repeats another one or may be repeated, by its place among `rows`.

    The numbers are the server's counts, which include the tokens around each turn.
    """
    given = list(rows)
    repeating = [row for row in given if row.context_tokens]
    growing = {row.session_id for row in repeating if row.session_id}
    named = {row.request_id: context_of(row) for row in repeating}
    repeated = {each for each in named.values() if each is not None}
    return {
        place: row.server_input_tokens or row.prefix_length + row.input_tokens
        for place, row in enumerate(given)
        if row.session_id in growing or row.request_id in repeated or named.get(row.request_id) is not None
    }


def blocks_of_conversations(
    rows: Sequence[TraceRow], ids: Sequence[str], prompt_tokens: Mapping[int, int], config: EngineConfig
) -> dict[int, ConversationBlocks]:
    """The blocks of these prompts, by the same places.

    A row shares its `context_tokens` with the row that it names, else with the round before it. Where that one is
    missing, it shares them with no row.
    """
    before = repeated_places(rows)
    found: dict[int, ConversationBlocks] = {}
    for place in prompt_tokens:
        chain: dict[int, None] = {}
        at: int | None = place
        while at is not None and at not in found and at not in chain:
            chain[at] = None
            at = before.get(at)
        for each in reversed(chain):
            parent = found.get(before.get(each, -1)) or ConversationBlocks(f"before {ids[each]}", 0)
            found[each] = _blocks_of_row(rows[each], ids[each], prompt_tokens[each], parent, config)
    return found


def _blocks_of_row(
    row: TraceRow, request_id: str, prompt_tokens: int, parent: ConversationBlocks, config: EngineConfig
) -> ConversationBlocks:
    num_before = config.num_identified_blocks(min(row.context_tokens, prompt_tokens))
    owners, ends = parent.first(num_before) if num_before else ((), ())
    return ConversationBlocks(
        request_id,
        num_shareable=(prompt_tokens + max(0, row.output_tokens - 1)) // config.block_size_tokens,
        owners=owners,
        ends=ends,
        group=row.prefix_group,
        shared_blocks=config.num_identified_blocks(row.prefix_length) if row.prefix_group else 0,
    )


FAILED_STATUSES = frozenset({"error", "timeout"})
"""Statuses of a real recording whose rows do not show the server's full work for them."""


class Arrivals(NamedTuple):
    """A trace made ready: arrivals ascending by instant, in file order where equal, and what was left out."""

    arrivals: list[Arrival]
    num_failed_left_out: int
    num_other_models_left_out: int
    clock_offset_us: Micros = 0
    """How far the clock of send times is ahead of that of arrivals."""


def arrivals_of(
    trace: Trace,
    model: str,
    config: EngineConfig,
    include_failed: bool = False,
    as_scheduled: bool = False,
    alias: str = "",
) -> Arrivals:
    """The requests of a trace.

    A row is injected when it was sent, or at its scheduled arrival if it never was, or if `as_scheduled`. Clocks that
    start elsewhere, such as the Unix epoch of a recording, are shifted. The first request sent is sent at the first
    arrival. Rounds of a conversation find the context that they repeat, by their own count, in the KV cache. In
    recordings of mode "real", rows that failed are left out unless `include_failed`. Rows that name another model than
    `model`, whatever the case of letters, its `alias`, or an adapter of it, are left out too. Rows that wait for one
    that is left out wait for what it waits for.
    """
    leave_failed = trace.header.mode == "real" and not include_failed
    present = [row for row in trace.rows if not (leave_failed and row.status in FAILED_STATUSES)]
    names = frozenset((model.lower(), alias.lower()))
    served = restricted_to(trace.rows, [row for row in present if _is_served(row, names, config)])
    if trace.header.mode == "real":
        served = [_without_end(row, config) for row in served]
    arrivals = arrivals_of_rows(served, config, as_scheduled, model, alias)
    left_out = len(trace.rows) - len(present), len(present) - len(served)
    return Arrivals(arrivals, *left_out, _clock_offset(served))


def arrivals_of_rows(
    served: Sequence[TraceRow],
    config: EngineConfig,
    as_scheduled: bool = False,
    model: str = "",
    alias: str = "",
) -> list[Arrival]:
    """Return the arrivals of all rows, ascending by instant; equal instants keep the order of rows.

    Names of models other than `model` and `alias` are those of adapters where these are simulated.
    """
    base = frozenset(("", model.lower(), alias.lower()))
    offset = _clock_offset(served)
    prefix_tokens = _prefix_tokens(served)
    ids = _unique_ids(served)
    prompt_tokens = prompt_tokens_of_conversations(served)
    conversations = blocks_of_conversations(served, ids, prompt_tokens, config)

    def request_of(place: int, row: TraceRow) -> Request:
        labels = _request_priority(row, config), _request_adapter(row, base, config)
        if place in conversations:
            return _new_request(row, ids[place], *labels, prompt_tokens[place], conversations[place])
        return _new_request(row, ids[place], *labels, *_prompt_blocks(row, ids[place], prefix_tokens, config))

    arrivals = [
        Arrival(
            at=row.send_time_us - offset if row.send_time_us > 0 and not as_scheduled else row.arrival_time_us,
            request=request_of(place, row),
            row=row,
        )
        for place, row in enumerate(served)
    ]
    arrivals.sort(key=lambda arrival: arrival.at)
    return arrivals


def sped_up(arrivals: Sequence[Arrival], speed: "SpeedOptions") -> list[Arrival]:
    """Return the arrivals of a trace at another speed; deadlines keep their distance to the arrival."""
    if not arrivals or speed.speedup == 1:
        return list(arrivals)
    first = min(each.at for each in arrivals)
    return [_moved_arrival(each, speed.instant_us(each.at, first)) for each in arrivals]


def in_phase(arrivals: Arrivals, origin_us: int, period_us: Micros) -> Arrivals:
    """Move all arrivals by less than a period, to where they were between the ticks of the recorded server's timer.

    `origin_us` is the instant 0 of that server, on the clock of send times.
    """
    shift_us = (arrivals.clock_offset_us - origin_us) % period_us
    moved = [_moved_arrival(each, each.at + shift_us) for each in arrivals.arrivals]
    return arrivals._replace(arrivals=moved, clock_offset_us=arrivals.clock_offset_us - shift_us)


def _moved_arrival(arrival: Arrival, at: Micros) -> Arrival:
    shift, request, row = at - arrival.at, arrival.request, arrival.row
    if request.deadline_us:
        request = request._replace(deadline_us=request.deadline_us + shift)
    assert isinstance(row, TraceRow)
    deadline_us = row.deadline_us + shift if row.deadline_us else 0
    row = replace(row, arrival_time_us=row.arrival_time_us + shift, deadline_us=deadline_us)
    return Arrival(at, request, row)


def _without_end(row: TraceRow, config: EngineConfig) -> TraceRow:
    """Return the row with a reply as long as any, if its client hung up at its deadline, before the reply was over."""
    if row.status != "incomplete" or not row.deadline_us:
        return row
    prompt_tokens = row.server_input_tokens or row.prefix_length + row.input_tokens
    return replace(row, output_tokens=max(row.output_tokens, config.limit_tokens - prompt_tokens))


def _is_served(row: TraceRow, names: Collection[str], config: EngineConfig) -> bool:
    if not row.model or row.model.lower() in names:
        return True
    return config.lora is not None and config.lora.serves(row.model)


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


def _prompt_blocks(
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


def _request_priority(row: TraceRow, config: EngineConfig) -> int | None:
    """The priority of a request as a server takes it: 0 means none where its SLO class has one.

    BLIS goes by the SLO class alone.
    """
    if row.vllm_priority is None or (config.engine == "blis" and not config.uses_deadlines):
        return None
    return row.vllm_priority or (None if row.slo_class else 0)


def _request_adapter(row: TraceRow, base: Collection[str], config: EngineConfig) -> str:
    """The adapter of a request, which clients may name as its model."""
    if row.adapter or config.lora is None or row.model.lower() in base:
        return row.adapter
    return row.model


def _new_request(
    row: TraceRow, request_id: str, priority: int | None, adapter: str, input_tokens: int, blocks: BlockIdentities
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
        adapter,
        None,
        row.tenant_id,
        row.slo_target_us,
        row.slo_e2e_us,
    )

"""From the rows of a trace to requests with arrival times on the engine's clock.

Prompts that go on where an earlier one and its reply ended, or that repeat them, share their KV blocks.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union, overload

import numpy as np
import numpy.typing as npt

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.units import Micros
from traces import Trace, TraceRow
from traces.graph import named_context, places_repeated, restricted_to
from traces.packed import ROWS_AT_ONCE, PackedRows

if TYPE_CHECKING:
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

    def sent_at(self, at: Micros) -> "Arrival":
        """Return the arrival at the instant at which it is sent. Its deadline keeps its distance to when it was due."""
        deadline_us, row = self.request.deadline_us, self.row
        if not deadline_us or not isinstance(row, TraceRow):
            return self._replace(at=at)
        deadline_us += at - row.arrival_time_us
        return Arrival(at, self.request._replace(deadline_us=deadline_us), replace(row, deadline_us=deadline_us))


class Conversations:
    """Prompts that repeat others or may be repeated, by places of rows: their tokens, and whose text they begin with.

    A row shares its `context_tokens` with the row that it names, else with the round before it. It shares
    with no other row where that one is missing. Tokens are the server's counts, which include those around each turn.
    """

    def __init__(self, rows: PackedRows[TraceRow]) -> None:
        self._members = _conversing(rows)
        self._before = places_repeated(rows)
        self._cut_circles()

    def __contains__(self, place: int) -> bool:
        return bool(self._members) and bool(self._members[place])

    def moved(self, order: npt.NDArray[np.int64]) -> "Conversations":
        """Return them for rows in another order, which says for each place the one that its row had."""
        other = copy(self)
        if self._members:
            place_of = np.empty_like(order)
            place_of[order] = np.arange(len(order))
            other._members = bytes(np.frombuffer(self._members, np.uint8)[order])
            before = self._before[order]
            other._before = np.where(before >= 0, place_of[before], -1)
        return other

    def before(self, place: int) -> int | None:
        """The place of the row that a row repeats."""
        before = int(self._before[place])
        return None if before < 0 else before

    def num_repeating(self) -> npt.NDArray[np.int64]:
        """How many rows repeat each row."""
        if not self._members:
            return np.zeros(0, np.int64)
        return np.bincount(self._before[self._before >= 0], minlength=len(self._before))

    def _cut_circles(self) -> None:
        """Let no row repeat itself by way of others."""
        before = self._before
        if not self._members or (before < np.arange(len(before))).all():
            return
        done: set[int] = set()
        for place in range(len(before)):
            chain: dict[int, None] = {}
            at, last = (place, -1) if self._members[place] else (-1, -1)
            while at >= 0 and at not in done and at not in chain:
                chain[at] = None
                last, at = at, int(before[at])
            if at in chain:
                before[last] = -1
            done.update(chain)


def _conversing(rows: PackedRows[TraceRow]) -> bytes:
    """Which rows repeat another one or may be repeated; empty where none does."""
    if not any(rows.distinct("context_tokens")) and not any(rows.distinct("parents") | rows.distinct("context_of")):
        return b""
    labels = zip(
        *map(rows.values, ("request_id", "session_id", "context_tokens", "context_of", "parents")), strict=True
    )
    growing: set[str] = set()
    repeated: set[int] = set()
    for _, session, tokens, context, parents in labels:
        if tokens:
            growing.add(session)
            named = named_context(context, parents)
            if named is not None:
                repeated.add(named)
    growing.discard("")
    labels = zip(
        *map(rows.values, ("request_id", "session_id", "context_tokens", "context_of", "parents")), strict=True
    )
    return bytes(
        session in growing or request_id in repeated or (tokens > 0 and bool(context or parents))
        for request_id, session, tokens, context, parents in labels
    )


class _Blocks:
    """The blocks of conversations in one pass over their rows; those are kept that a later row may repeat."""

    def __init__(self, arrivals: "RowArrivals") -> None:
        self._arrivals = arrivals
        self._conversations = arrivals.conversations
        self._num_repeating = self._conversations.num_repeating()
        self._found: dict[int, ConversationBlocks] = {}

    def of(self, place: int, row: TraceRow) -> ConversationBlocks:
        """Return the blocks of the row at a place."""
        found, arrivals = self._found, self._arrivals
        chain = [place]
        while (at := self._conversations.before(chain[-1])) is not None and at not in found:
            chain.append(at)
        blocks = ConversationBlocks(f"before {arrivals.ids[chain[-1]]}", 0) if at is None else found[at]
        for each in reversed(chain):
            its = row if each == place else arrivals.rows[each]
            blocks = _blocks_of_row(its, arrivals.ids[each], _counted_tokens(its), blocks, arrivals.config)
            if self._num_repeating[each]:
                found[each] = blocks
        before = self._conversations.before(place)
        if before is not None:
            self._num_repeating[before] -= 1
            if not self._num_repeating[before]:
                found.pop(before, None)
        return blocks


def _counted_tokens(row: TraceRow) -> int:
    return row.server_input_tokens or row.prefix_length + row.input_tokens


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


class RowArrivals(Sequence[Arrival]):
    """Rows of a trace as arrivals, ascending by instant; each is made when it is asked for."""

    def __init__(
        self,
        rows: PackedRows[TraceRow],
        instants: npt.NDArray[np.int64],
        ids: "RequestIds",
        conversations: Conversations,
        prefix_tokens: Mapping[str, int],
        base: Collection[str],
        config: EngineConfig,
    ) -> None:
        """`base` are the names of the model itself, in small letters. All is in the order of arrival."""
        self.rows, self.instants, self.ids, self.conversations = rows, instants, ids, conversations
        self.config = config
        self._prefix_tokens, self._base = prefix_tokens, base
        self._are_followers = _followers(rows, instants)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Arrival: ...

    @overload
    def __getitem__(self, place: slice) -> list[Arrival]: ...

    def __getitem__(self, place: int | slice) -> Arrival | list[Arrival]:
        if isinstance(place, slice):
            return list(self)[place]
        return self.maker()(range(len(self))[place])

    def __iter__(self) -> Iterator[Arrival]:
        blocks = _Blocks(self)
        for place, (at, row) in enumerate(zip(_in_portions(self.instants), self.rows, strict=True)):
            yield Arrival(at, self._request(place, row, blocks), row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def maker(self) -> Callable[[int], Arrival]:
        """Return a function that makes the arrival of a place, and keeps the blocks that later ones may repeat."""
        blocks = _Blocks(self)

        def made(place: int) -> Arrival:
            row = self.rows[place]
            return Arrival(int(self.instants[place]), self._request(place, row, blocks), row)

        return made

    def moved_to(self, instants: npt.NDArray[np.int64]) -> "RowArrivals":
        """Return the arrivals at other instants in the same order; deadlines keep their distance to the arrival."""
        shift_us, deadlines_us = instants - self.instants, self.rows.ints("deadline_us")
        moved = copy(self)
        moved.instants = instants
        moved.rows = self.rows.with_columns(
            arrival_time_us=(self.rows.ints("arrival_time_us") + shift_us).tolist(),
            deadline_us=np.where(deadlines_us > 0, deadlines_us + shift_us, 0).tolist(),
        )
        return moved

    def _request(self, place: int, row: TraceRow, blocks: _Blocks) -> Request:
        request = self._alone(place, row, blocks)
        if self._are_followers and self._are_followers[place]:
            return request._replace(follows=self.ids[self._are_followers.rfind(0, 0, place)])
        return request

    def _alone(self, place: int, row: TraceRow, blocks: _Blocks) -> Request:
        config = self.config
        labels = _request_priority(row, config), _request_adapter(row, self._base, config)
        if place in self.conversations:
            return _new_request(row, self.ids[place], *labels, _counted_tokens(row), blocks.of(place, row))
        request_id = self.ids[place]
        return _new_request(row, request_id, *labels, *_prompt_blocks(row, request_id, self._prefix_tokens, config))


def _followers(rows: PackedRows[TraceRow], instants: npt.NDArray[np.int64]) -> bytes:
    """Which rows came in one message with the row before, as prompts or choices of one request.

    Empty where none did.
    """
    if not any(rows.distinct("is_part")):
        return b""
    are_parts = np.array([bool(each) for each in rows.values("is_part")])
    return bytes(np.concatenate(([False], are_parts[:-1] & (instants[1:] == instants[:-1]))))


def _in_portions(values: npt.NDArray[np.int64]) -> Iterator[int]:
    """Yield numbers, of which there are millions, without a list of all of them."""
    for first in range(0, len(values), ROWS_AT_ONCE):
        yield from values[first : first + ROWS_AT_ONCE].tolist()


class Arrivals(NamedTuple):
    """A trace made ready: arrivals ascending by instant, in file order where equal, and what was left out."""

    arrivals: RowArrivals
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
    rows = PackedRows.of(TraceRow, trace.rows)
    is_real = trace.header.mode == "real"
    failed = FAILED_STATUSES if is_real and not include_failed else frozenset()
    names = frozenset((model.lower(), alias.lower()))
    others = {name for name in rows.distinct("model") if not _is_served(name, names, config)}
    has_failed = bool(rows.distinct("status") & failed)
    num_failed = sum(status in failed for status in rows.values("status")) if has_failed else 0
    served = rows
    if num_failed or others:
        labels = zip(rows.values("status"), rows.values("model"), strict=True)
        kept = [place for place, (status, name) in enumerate(labels) if status not in failed and name not in others]
        served = PackedRows.of(TraceRow, restricted_to(rows, rows.those(kept)))
    if is_real:
        served = _without_ends(served, config)
    arrivals = arrivals_of_rows(served, config, as_scheduled, model, alias)
    return Arrivals(arrivals, num_failed, len(rows) - num_failed - len(served), _clock_offset(served))


def arrivals_of_rows(
    served: Sequence[TraceRow],
    config: EngineConfig,
    as_scheduled: bool = False,
    model: str = "",
    alias: str = "",
) -> RowArrivals:
    """Return the arrivals of all rows, ascending by instant; equal instants keep the order of rows.

    Names of models other than `model` and `alias` are those of adapters where these are simulated.
    """
    rows = PackedRows.of(TraceRow, served)
    base = frozenset(("", model.lower(), alias.lower()))
    instants, sent = rows.ints("arrival_time_us"), rows.ints("send_time_us")
    if not as_scheduled:
        instants = np.where(sent > 0, sent - _clock_offset(rows), instants)
    ids, conversations, prefix_tokens = RequestIds.of(rows), Conversations(rows), _prefix_tokens(rows)
    if (instants[1:] < instants[:-1]).any():
        order = np.argsort(instants, kind="stable")
        rows, instants, ids = rows.those(order.tolist()), instants[order], ids.moved(order)
        conversations = conversations.moved(order)
    return RowArrivals(rows, instants, ids, conversations, prefix_tokens, base, config)


def sped_up(arrivals: RowArrivals, speed: "SpeedOptions") -> RowArrivals:
    """Return the arrivals of a trace at another speed; deadlines keep their distance to the arrival."""
    if not len(arrivals) or speed.speedup == 1:
        return arrivals
    first = int(arrivals.instants[0])
    instants = [speed.instant_us(at, first) for at in arrivals.instants.tolist()]
    return arrivals.moved_to(np.array(instants, np.int64))


def in_phase(arrivals: Arrivals, origin_us: int, period_us: Micros) -> Arrivals:
    """Move all arrivals by less than a period, to where they were between the ticks of the recorded server's timer.

    `origin_us` is the instant 0 of that server, on the clock of send times.
    """
    shift_us = (arrivals.clock_offset_us - origin_us) % period_us
    moved = arrivals.arrivals.moved_to(arrivals.arrivals.instants + shift_us)
    return arrivals._replace(arrivals=moved, clock_offset_us=arrivals.clock_offset_us - shift_us)


def _without_ends(rows: PackedRows[TraceRow], config: EngineConfig) -> PackedRows[TraceRow]:
    """Return the rows, with a reply as long as any where the client hung up at its deadline, before it was over."""
    if "incomplete" not in rows.distinct("status") or not any(rows.distinct("deadline_us")):
        return rows
    return rows.with_columns(output_tokens=[_without_end(row, config).output_tokens for row in rows])


def _without_end(row: TraceRow, config: EngineConfig) -> TraceRow:
    """Return the row with a reply as long as any, if its client hung up at its deadline, before the reply was over."""
    if row.status != "incomplete" or not row.deadline_us:
        return row
    return replace(row, output_tokens=max(row.output_tokens, config.limit_tokens - _counted_tokens(row)))


def _is_served(model: str, names: Collection[str], config: EngineConfig) -> bool:
    if not model or model.lower() in names:
        return True
    return config.lora is not None and config.lora.serves(model)


def _clock_offset(rows: PackedRows[TraceRow]) -> Micros:
    """How far the sending clock is ahead of the arrival clock, by the rows that were sent."""
    sent_us = rows.ints("send_time_us")
    is_sent = sent_us > 0
    if not is_sent.any():
        return 0
    return int(sent_us[is_sent].min() - rows.ints("arrival_time_us")[is_sent].min())


def _prefix_tokens(rows: PackedRows[TraceRow]) -> dict[str, int]:
    """Length of each group's shared prefix: the group's first row decides."""
    lengths: dict[str, int] = {}
    if any(rows.distinct("prefix_group")):
        for group, tokens in zip(rows.values("prefix_group"), rows.values("prefix_length"), strict=True):
            if group:
                lengths.setdefault(group, tokens)
    return lengths


class RequestIds(Sequence[str]):
    """`request_<id>` for each row; a repeated id gets a number, because requests of an engine need different ids."""

    def __init__(self, numbers: npt.NDArray[np.int64], repeats: npt.NDArray[np.int64] | None = None) -> None:
        """`repeats` says how often each number has occurred, this time included; None where none is repeated."""
        self._numbers, self._repeats = np.ascontiguousarray(numbers), repeats
        self._view = self._numbers.data  # gives numbers of Python in a tenth of the time

    @classmethod
    def of(cls, rows: PackedRows[TraceRow]) -> "RequestIds":
        """Return the ids of rows."""
        numbers = rows.ints("request_id")
        if rows.are_distinct("request_id"):
            return cls(numbers)
        seen: Counter[int] = Counter()
        repeats = np.empty_like(numbers)
        for place, number in enumerate(numbers.tolist()):
            seen[number] += 1
            repeats[place] = seen[number]
        return cls(numbers, repeats)

    def moved(self, order: npt.NDArray[np.int64]) -> "RequestIds":
        """Return the ids of rows in another order."""
        return RequestIds(self._numbers[order], None if self._repeats is None else self._repeats[order])

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> "RequestIds": ...

    def __getitem__(self, place: "int | slice") -> "str | RequestIds":
        if isinstance(place, slice):
            return RequestIds(self._numbers[place], None if self._repeats is None else self._repeats[place])
        repeated = 1 if self._repeats is None else self._repeats[place]
        return f"request_{self._view[place]}" + (f"#{repeated}" if repeated > 1 else "")

    def order(self) -> npt.NDArray[np.int64]:
        """The places of all ids in the order of their text."""
        if self._repeats is None:
            return np.argsort(self._numbers.astype("S"), kind="stable")
        return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)


def numbers_of(ids: Iterable[str]) -> list[int] | None:
    """The numbers in ids of the form `request_<number>`; None where another id is among them."""
    numbers: list[int] = []
    for each in ids:
        digits = each.removeprefix("request_")
        if len(digits) == len(each) or not digits.isdecimal() or len(digits) > 18 or f"{int(digits)}" != digits:
            return None
        numbers.append(int(digits))
    return numbers


def _prompt_blocks(
    row: TraceRow, request_id: str, prefix_tokens: Mapping[str, int], config: EngineConfig
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


def takes_priorities(config: EngineConfig) -> bool:
    """Return whether requests have priorities of their own. BLIS goes by the SLO class alone."""
    return config.engine != "blis" or config.uses_deadlines


def priority_as_served(priority: int | None, slo_class: str) -> int | None:
    """Return the priority of a request as a server takes it: 0 means none where its SLO class has one."""
    return None if slo_class and not priority else priority


def _request_priority(row: TraceRow, config: EngineConfig) -> int | None:
    return priority_as_served(row.vllm_priority, row.slo_class) if takes_priorities(config) else None


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

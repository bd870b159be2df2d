"""Our engine on a workload, with a record of its actions."""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.context import EngineContext
from blis_sim.engine.core import Engine
from blis_sim.engine.data_parallel import RankGroup, new_ranks
from blis_sim.engine.events import CacheChanged, Event, Finished, Preempted, Scheduled, StepDone
from blis_sim.engine.kv_cache.grouped_cache import GroupedKVCache
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.request import HashedBlocks, Request
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.sequence import NOWHERE, Outcome, Sequence
from blis_sim.engine.units import Micros
from workshop.vllm_oracle.content import Contents
from workshop.vllm_oracle.workload import (
    MANY_LINES,
    AbortedRequest,
    Arrival,
    Choice,
    ProcessedOutputs,
    Ranks,
    RunRecord,
    ScheduledStep,
    Workload,
    joined,
)


def simulated_story(workload: Workload) -> RunRecord:
    """Return our engine's record, from the first arrival until it is idle."""
    if workload.ranks is not None:
        return _story_of_ranks(workload, workload.ranks)
    engine = _engine(workload, reports_steps=True)
    scheduler = ReportingScheduler(engine._context, workload)
    engine._scheduler = scheduler
    contents = Contents()
    story = scheduler.story
    while not story.is_endless and (due_at := engine.next_event_at()) is not None:
        for event in engine.advance(due_at):
            if isinstance(event, CacheChanged):
                for change in event.changes:
                    contents.reported(change, workload.config.block_size_tokens)
            story.changes += _changes_of(event)
        engine.check_integrity()
    story.content = contents.changes
    story.changes += _steps_of(engine)
    return story


def changes(workload: Workload, reports_steps: bool) -> list[tuple[object, ...]]:
    """Changes of each request, and all steps: the same whether steps are reported or leapt over.

    Data-parallel ranks report their steps always; here their requests may decode in cohorts.
    """
    if workload.ranks is not None:
        return _changes_of_ranks(_ranks(workload, workload.ranks, None), [])
    engine = _engine(workload, reports_steps)
    reported: list[tuple[object, ...]] = []
    while (due_at := engine.next_event_at()) is not None and len(engine.steps) < MANY_LINES:
        for event in engine.advance(due_at):
            reported += _changes_of(event)
        engine.check_integrity()
    return [] if len(engine.steps) >= MANY_LINES else [*reported, *_steps_of(engine)]


def _ranks(workload: Workload, ranks: Ranks, reporting: list["ReportingScheduler"] | None) -> RankGroup:
    """Return our ranks with all requests. Their schedulers report to `reporting`, unless that is None."""

    def new_engine(config: EngineConfig, latency: LatencyModel) -> Engine:
        engine = Engine(config, latency, reports_steps=True)
        if reporting is not None:
            scheduler = ReportingScheduler(engine._context, workload)
            engine._scheduler = scheduler
            reporting.append(scheduler)
        return engine

    group = new_ranks(workload.config, workload.latency, ranks.number, new_engine, ranks.share_experts)
    for request, at in requests_of(workload):
        group.submit(request, at)
    for at, request_id in workload.hang_ups:
        group.abort(request_id, at)
    return group


def _story_of_ranks(workload: Workload, ranks: Ranks) -> RunRecord:
    reporting: list[ReportingScheduler] = []
    group = _ranks(workload, ranks, reporting)
    sequences = list(group.live.values())
    contents = [Contents() for _ in reporting]
    changed = _changes_of_ranks(group, reporting, contents)
    for scheduler, each in zip(reporting, contents, strict=True):
        scheduler.story.content = each.changes
    choices = [Choice(each.request.id, each.instance) for each in sequences if each.instance != NOWHERE]
    story = joined([each.story for each in reporting], choices)
    story.changes = changed
    return story


def _changes_of_ranks(
    group: RankGroup, reporting: list["ReportingScheduler"], contents: SequenceOf[Contents] = ()
) -> list[tuple[object, ...]]:
    """Advance ranks until they are idle, or one seems endless. Returns the changes of each request, and all steps."""
    reported: list[tuple[object, ...]] = []
    while (due_at := group.next_event_at()) is not None:
        for rank, event in group.advance_each(due_at):
            if isinstance(event, CacheChanged) and contents:
                for change in event.changes:
                    contents[rank].reported(change, group.config.block_size_tokens)
            reported += _changes_of(event)
        if any(each.story.is_endless for each in reporting) or max(len(e.steps) for e in group.instances) >= MANY_LINES:
            return []
    for engine in group.instances:
        engine.check_integrity()
    return [*reported, *(step for engine in group.instances for step in _steps_of(engine))]


def _changes_of(event: Event) -> Iterator[tuple[object, ...]]:
    """Yield what an event tells of a request."""
    if isinstance(event, Scheduled | Preempted | Finished):
        yield type(event).__name__, event.at, event.sequence.request.id
    if isinstance(event, Finished):
        yield event.outcome, event.sequence.first_token_at, *map(tuple, event.sequence.token_runs)


def _steps_of(engine: Engine) -> list[tuple[object, ...]]:
    return [(engine.steps.start(index), engine.steps.end(index)) for index in range(len(engine.steps))]


class ReportingScheduler(VllmScheduler):
    """Our scheduling, with a line written after each composition and each processing of outputs."""

    def __init__(self, instance: EngineContext, workload: Workload) -> None:
        super().__init__(instance, has_cohort=False)
        self.story = RunRecord()
        self._workload = workload
        self._num_failures = 0
        """Blocks that CPU memory had no room for when a device had them, but for those of an idle core."""

    def schedule(self, at: Micros) -> bool:
        owned = {sequence: len(self._table(sequence)) for sequence in self.explicit}
        queried, hit = self.kv.queried_tokens, self.kv.hit_tokens
        loaded = self._num_loaded()
        num_failures = self._context.counters.offload.num_promotion_failures
        is_scheduled = super().schedule(at)
        if self.in_flight:
            self._num_failures += self._context.counters.offload.num_promotion_failures - num_failures
        loaded = self._num_loaded() - loaded
        if not is_scheduled and not self.preempted and not loaded:
            return False
        grants = self.in_flight[-1][2] if is_scheduled else []
        new_from = {grant.sequence: owned[grant.sequence] for grant in grants if grant.sequence not in self.admitted}
        blocks = [
            (grant.sequence.request.id, self._blocks_of(grant.sequence, new_from.get(grant.sequence, 0)))
            for grant in grants
        ]
        self.story.lines.append(
            ScheduledStep(
                at,
                tuple((grant.sequence.request.id, grant.num_tokens) for grant in grants),
                tuple(blocks),
                tuple(sorted(sequence.request.id for sequence in self.preempted)),
                *self._queues(),
                self.kv.num_blocks - self.kv.num_used_blocks,
                self.kv.queried_tokens - queried,
                self.kv.hit_tokens - hit,
                loaded,
                0 if self._offloader is None else self._offloader.num_blocks,
                () if self._offloader is None else (*self._offloader.num_behind, *self._num_lookups()),
            )
        )
        return is_scheduled

    def _num_lookups(self) -> Iterator[int]:
        """Yield the blocks for which CPU memory had no room, then the look-ups and hits of each tier, if any."""
        offload = self._context.counters.offload
        if offload.tiers:
            yield self._num_failures
        for tier in offload.tiers:
            yield from (tier.num_queries, tier.num_hits)

    def _blocks_of(self, sequence: Sequence, first: int) -> tuple[int, ...]:
        """Blocks from the place `first` on, numbered as vLLM does; with groups all blocks, group after group."""
        if self._workload.config.kv_groups:
            assert isinstance(self.kv, GroupedKVCache)
            return tuple(block for table in self.kv.tables[sequence] for block in table.blocks)
        return tuple(self._table(sequence)[first:])

    def _table(self, sequence: Sequence) -> list[int]:
        """Return the blocks of a sequence in the first group, numbered as vLLM does."""
        if isinstance(self.kv, GroupedKVCache):
            return self.kv.tables[sequence][0].blocks
        return [block + 1 for block in sequence.block_ids]

    def _num_loaded(self) -> int:
        return 0 if self._offloader is None else self._offloader.num_loaded_tokens

    def update(self, at: Micros) -> list[Event]:
        before = _drafts(self._context)
        events = super().update(at)
        tokens: dict[str, int] = {}
        reasons: dict[str, str] = {}
        for event in events:
            if isinstance(event, StepDone):
                tokens |= {s.request.id: s.tokens_at(event.index) - s.tokens_at(event.index - 1) for s in event.emitted}
            elif isinstance(event, Finished) and event.outcome in (Outcome.COMPLETED, Outcome.LENGTH_CAPPED):
                reasons[event.sequence.request.id] = _reason(event)
        counted = tuple(now - then for now, then in zip(_drafts(self._context), before, strict=True))
        self.story.lines.append(
            ProcessedOutputs(
                at,
                tuple((name, count, reasons.get(name)) for name, count in tokens.items()),
                self._queues()[0],
                self.kv.num_blocks - self.kv.num_used_blocks,
                counted if any(counted) else (),
            )
        )
        return events

    def _take_out(self, sequence: Sequence, outcome: Outcome, at: Micros) -> None:
        super()._take_out(sequence, outcome, at)
        self.story.aborted.append(AbortedRequest(at, sequence.request.id))

    def _queues(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        waiting = list(self.waiting)
        if self._workload.by_priority:
            waiting.sort(key=lambda sequence: (sequence.priority, sequence.arrived_at, sequence.request.id))
        waiting.sort(key=lambda sequence: not sequence.num_computed_tokens)
        return tuple(s.request.id for s in self.explicit), tuple(s.request.id for s in waiting)


def _drafts(instance: EngineContext) -> tuple[int, ...]:
    counters = instance.counters
    return (
        counters.num_drafts,
        counters.num_draft_tokens,
        counters.num_accepted_tokens,
        *counters.num_accepted_per_position,
    )


def _engine(workload: Workload, reports_steps: bool) -> Engine:
    engine = Engine(workload.config, workload.latency, reports_steps)
    for request, at in requests_of(workload):
        engine.submit(request, at)
    for at, request_id in workload.hang_ups:
        engine.abort(request_id, at)
    return engine


def requests_of(workload: Workload) -> list[tuple[Request, Micros]]:
    """Requests with their instants of arrival. What no other request has is marked so."""
    hashes = [_block_hashes(arrival, workload.config) for arrival in workload.arrivals]
    num_holders = Counter(name for names in hashes for name in names)
    requests: list[tuple[Request, Micros]] = []
    for arrival, names in zip(workload.arrivals, hashes, strict=True):
        shared = tuple(name for name in names if num_holders[name] > 1)  # the leading ones: each stands for all before
        requests.append((_request(arrival, shared), arrival.at))
    return requests


def _reason(event: Finished) -> str:
    """Return vLLM's word: a request that produces the whole budget ends by length, one that ends earlier by a stop
    token."""
    sequence = event.sequence
    cut = event.outcome is Outcome.LENGTH_CAPPED or sequence.num_output_tokens == sequence.max_output_tokens
    return "length" if cut else "stop"


def _block_hashes(arrival: Arrival, config: EngineConfig) -> tuple[int, ...]:
    """Return the names of the content of each full block and all before it, of an adapter and under a salt."""
    tokens, size = arrival.tokens, config.block_size_tokens
    ahead, keys = config.num_hash_lookahead_tokens, (arrival.salt, arrival.adapter)
    return tuple(hash((keys, tokens[: end + ahead])) for end in range(size, len(tokens) - ahead + 1, size))


def _request(arrival: Arrival, shared_hashes: tuple[int, ...]) -> Request:
    return Request(
        id=arrival.id,
        input_tokens=len(arrival.prompt),
        output_tokens=arrival.output_tokens,
        max_output_tokens=arrival.max_tokens,
        blocks=HashedBlocks(arrival.id, shared_hashes),
        deadline_us=arrival.deadline_us,
        priority=arrival.priority,
        reads_prefix_cache=arrival.reads_prefix_cache,
        adapter=arrival.adapter,
        media=arrival.media,
        reports_found_blocks=arrival.reports_found_blocks,
    )

"""The unfinished requests of a run, with the state that their metrics need.

Sequences that an instance decodes are held once for all batches that decode the same ones. The facts of a sequence's
latest batch are derived when the sequence leaves: noting them for each sequence of each batch takes more time than the
simulation.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import accumulate, repeat

from blis_sim.engine.core import Engine
from blis_sim.engine.delivery import OutputQueue
from blis_sim.engine.events import BatchDone
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.sequence import NOWHERE, Sequence
from blis_sim.engine.units import Micros
from replay.metrics_dir.tables import KVTransfer, RequestMetrics
from replay.metrics_dir.timeline import MOST_IDS, Place
from replay.simulation.measure import COMPLETED, NEVER, ClientView, Latencies


@dataclass(slots=True)
class TrackedRequest:
    """One request, or the part of one that computes its prompt elsewhere."""

    number: int
    inter_arrival_s: float | None = None
    scheduled_at: Micros | None = None
    """When it first joined a batch."""
    executed_us: Micros = 0
    """The time of its batches, those in which its cohort decoded excepted. While a group has the sequence, the time of
    the group's batches before is subtracted, and all of the group's time is to be added."""
    first: Place | None = None
    prompt: Place | None = None
    """The batch that completed its prompt."""
    prompt_end_us: Micros = 0
    last: Place | None = None
    first_wait_us: Micros = 0
    """Wait of the first token of a request for the others of its step."""
    last_wait_us: Micros = 0
    group: "DecodeGroup | None" = None
    """The group that has the sequence now."""


class DecodeGroup:
    """The sequences that the latest batch of one instance decoded."""

    __slots__ = (
        "_first_wait_us",
        "_members",
        "_place",
        "_positions",
        "_sequences",
        "_waits_us",
        "counts_time",
        "executed_us",
        "numbers",
        "queue",
    )

    def __init__(self, latency: LatencyModel, *, counts_time: bool) -> None:
        self.queue = OutputQueue(latency)
        """The API server process of the instance."""
        self.counts_time = counts_time
        """Whether lives count the time of these batches; where a cohort decodes, the log of steps has it."""
        self.executed_us: Micros = 0
        """The time of all batches so far."""
        self.numbers: list[int] = []
        """Numbers of the first requests, as many as a timeline shows."""
        self._sequences: SequenceOf[Sequence] = []
        self._members: dict[Sequence, int] = {}
        """Sequences of `_sequences` that have not left since, with the numbers of their requests."""
        self._positions: dict[Sequence, int] = {}
        """Positions in `_sequences`; empty until one leaves."""
        self._place: Place | None = None
        self._first_wait_us: float | None = None
        """Wait of the tokens of the latest batch for those before them; None while its tokens are not known."""
        self._waits_us: list[float] = []
        """Waits of these tokens, from none to all of them; empty until one is needed."""

    def compute(
        self,
        sequences: SequenceOf[Sequence],
        place: Place,
        duration_us: Micros,
        tracked_of: Callable[[Sequence], TrackedRequest],
    ) -> None:
        """Note that the next batch decoded `sequences`."""
        members = self._members
        if len(members) != len(sequences) or sequences != self._sequences:
            remaining = set(sequences)
            for sequence in members.keys() - remaining:
                self.leave(sequence, tracked_of(sequence))
            for sequence in remaining - members.keys():
                self._join(sequence, tracked_of(sequence))
            self._sequences, self._positions = sequences, {}
            self.numbers = list(map(members.__getitem__, sequences[:MOST_IDS]))
        self._place = place
        self._first_wait_us, self._waits_us = None, []
        if self.counts_time:
            self.executed_us += duration_us

    def emit(self, wait_us: float) -> None:
        """Note how long the tokens of the latest batch wait before the first of them is handed out."""
        self._first_wait_us = wait_us

    def waits_us(self) -> list[float]:
        """Return the waits of the tokens of the latest batch: before the first, and after each of them."""
        if not self._waits_us and self._first_wait_us is not None:
            turns_us = repeat(self.queue.turn_us, len(self._sequences))
            self._waits_us = list(accumulate(turns_us, initial=self._first_wait_us))
        return self._waits_us

    def leave(self, sequence: Sequence, tracked: TrackedRequest) -> None:
        """Store the facts of the latest batch with a sequence that leaves the group."""
        tracked.group, tracked.last = None, self._place
        tracked.executed_us += self.executed_us
        self._members.pop(sequence, None)
        waits_us = self.waits_us()
        if waits_us:
            if not self._positions:
                self._positions = {each: position for position, each in enumerate(self._sequences)}
            tracked.last_wait_us = int(waits_us[self._positions[sequence] + 1])

    def _join(self, sequence: Sequence, tracked: TrackedRequest) -> None:
        if tracked.group is not None:
            tracked.group.leave(sequence, tracked)
        tracked.group = self
        self._members[sequence] = tracked.number
        tracked.executed_us -= self.executed_us


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTraffic:
    """How prompts travel from the instances that compute them to those that decode."""

    bytes_per_block: float
    bytes_per_value: float
    dtype: str


class RequestTracker:
    """All requests under way, by sequence."""

    def __init__(self, engines: SequenceOf[Engine], traffic: KVTraffic | None) -> None:
        self._engines = engines
        self._traffic = traffic
        self._views: dict[int, ClientView] = {}
        self._requests: dict[Sequence, TrackedRequest] = {}
        self._parts: dict[str, Sequence] = {}
        """Requests whose prompts other instances may compute, by id; empty without such instances."""
        self._num_arrived = 0
        self._latest_arrival: Micros | None = None
        self._groups: dict[int, DecodeGroup] = {}
        self._batches: dict[int, BatchDone] = {}
        """The latest batch of each instance."""

    def begin(self, sequence: Sequence) -> int:
        """Note an arrival. Returns the number of the request."""
        latest, at = self._latest_arrival, sequence.arrived_at
        tracked = TrackedRequest(self._num_arrived, None if latest is None else (at - latest) / 1e6)
        self._requests[sequence] = tracked
        if self._traffic is not None:
            self._parts[sequence.request.id] = sequence
        self._latest_arrival = at
        self._num_arrived += 1
        return tracked.number

    def number(self, sequence: Sequence) -> int:
        """Return the number of a request."""
        return self._tracked(sequence).number

    def scheduled(self, sequence: Sequence, at: Micros) -> None:
        """Note that a request joined the running batch."""
        tracked = self._tracked(sequence)
        if tracked.scheduled_at is None:
            tracked.scheduled_at = at

    def computed(self, place: Place, event: BatchDone, duration_us: Micros) -> list[int]:
        """Note which requests were computed in a batch that took so long in all stages.

        Returns the numbers of those with their prompts in it, and of as many others as a timeline shows.
        """
        instance = place.replica
        self._batches[instance] = event
        numbers: list[int] = []
        for sequence, _ in event.prompts:
            tracked = self._tracked(sequence)
            tracked.executed_us += duration_us
            tracked.first = tracked.first or place
            tracked.prompt, tracked.prompt_end_us = place, event.at
            if tracked.scheduled_at is None:  # a part of a request, whose admission is not reported
                tracked.scheduled_at = event.started_at
            numbers.append(tracked.number)
        group = self._group(instance)
        group.compute(event.decoding, place, duration_us, self._tracked)
        return numbers + group.numbers

    def emitted(self, instance: int, num_tokens: int) -> None:
        """Note how many tokens the latest batch of an instance brought: each waits until all are handed out."""
        batch = self._batches.get(instance)
        if batch is None or not self._view(instance).serializes_tokens:
            return
        group, step_us = self._group(instance), num_tokens * self._engines[instance].latency.output_sequence_time
        group.emit(step_us + group.queue.enter(batch.at, num_tokens))
        if not batch.prompts:
            return
        wait_us = group.waits_us()[-1]
        for sequence, _ in batch.prompts:
            wait_us += group.queue.turn_us
            tracked = self._tracked(sequence)
            tracked.first_wait_us = tracked.last_wait_us = int(wait_us)

    def unfinished(self) -> Iterator[Sequence]:
        """Yield the requests that have not ended, in order of arrival."""
        yield from [sequence for sequence in self._requests if not sequence.is_prefill_subrequest]

    def end(self, sequence: Sequence) -> None:
        """Forget a request."""
        self._settle(sequence)
        self._requests.pop(sequence, None)
        self._parts.pop(sequence.request.id, None)
        if sequence.prompt_part is not None:
            self._requests.pop(sequence.prompt_part, None)

    def way(self, sequence: Sequence) -> list[Place]:
        """Return the first batch of a request, that of its first token and its last one."""
        self._settle(sequence)
        lives = [self._requests.get(sequence.prompt_part)] if sequence.prompt_part is not None else []
        lives.append(self._requests[sequence])
        places = [
            place for tracked in lives if tracked is not None for place in (tracked.first, tracked.prompt, tracked.last)
        ]
        return [place for place in places if place is not None]

    def phases(self, sequence: Sequence, ended_at: Micros) -> list[tuple[str, Micros, Micros]]:
        """Return what a request went through, on the engine's clock."""
        scheduled_at, first_at = self._scheduled_at(sequence), sequence.first_token_at
        arrived_at = sequence.arrived_at
        if scheduled_at is None:
            return [("waiting", arrived_at, ended_at)]
        phases = [("waiting", arrived_at, scheduled_at)]
        prompt = sequence.prompt_part
        if prompt is not None and prompt.first_token_at is not None and sequence.queued_at is not None:
            phases.append(("prefill", scheduled_at, prompt.first_token_at))
            moved_at = max(sequence.queued_at, prompt.first_token_at)  # BLIS moves a prompt during its last step
            return [*phases, ("KV transfer", prompt.first_token_at, moved_at), ("decode", moved_at, ended_at)]
        if first_at is None:
            return [*phases, ("prefill", scheduled_at, ended_at)]
        return [*phases, ("prefill", scheduled_at, first_at), ("decode", first_at, ended_at)]

    def facts(self, sequence: Sequence, at: Micros, ended_at: Micros | None) -> RequestMetrics:
        """Return the metrics of a request at `at`, by which it may have ended."""
        self._settle(sequence)
        tracked, prompt = self._tracked(sequence), sequence.prompt_part
        arrived_us, request = sequence.arrived_at, sequence.request
        ttft_us, e2e_us, itl_us, num_tokens = self._latencies(sequence, at, tracked)
        scheduled_at, executed_us = self._scheduled_at(sequence), self._executed_us(sequence)
        is_completed = ended_at is not None and sequence.outcome in COMPLETED and e2e_us != NEVER
        waited_us = 0 if scheduled_at is None else max(0, at - scheduled_at - executed_us)
        transfer = self._transfer(sequence)
        moved_at = None if transfer is None or sequence.queued_at is None else sequence.queued_at / 1e6
        return RequestMetrics(
            number=tracked.number,
            arrived_at_s=arrived_us / 1e6,
            inter_arrival_s=tracked.inter_arrival_s,
            prompt_tokens=request.input_tokens,
            output_tokens=num_tokens if is_completed else request.output_tokens,
            num_restarts=sequence.num_preemptions + (0 if prompt is None else prompt.num_preemptions),
            scheduled_at_s=None if scheduled_at is None else scheduled_at / 1e6,
            first_token_at_s=None if ttft_us == NEVER else (arrived_us + ttft_us) / 1e6,
            completed_at_s=(arrived_us + e2e_us) / 1e6 if is_completed else None,
            execution_s=executed_us / 1e6,
            preempted_s=waited_us / 1e6,
            itl_mean_s=itl_us / 1e6,
            prefill_replica=prompt.instance if prompt is not None else None,
            decode_replica=sequence.instance if prompt is not None else None,
            decode_arrived_at_s=moved_at,
            transfer=transfer,
        )

    def _latencies(self, sequence: Sequence, at: Micros, tracked: TrackedRequest) -> tuple[Micros, Micros, float, int]:
        """Return TTFT, E2E and mean ITL as the client of a request sees them, and its output tokens."""
        if sequence.instance == NOWHERE:
            return NEVER, NEVER, 0.0, 0
        view, prompt = self._view(sequence.instance), sequence.prompt_part
        found: Latencies
        if prompt is None:
            found = view.latencies(sequence, at)
        else:
            found = view.latencies_with_remote_prefill(sequence, prompt, at)
        ttft_us, e2e_us, itl_us, _, num_tokens = found
        if ttft_us != NEVER:
            ttft_us += tracked.first_wait_us
        if e2e_us != NEVER:
            e2e_us += tracked.last_wait_us
            itl_us += (tracked.last_wait_us - tracked.first_wait_us) / max(num_tokens - 1, 1)
        return ttft_us, e2e_us, itl_us, num_tokens

    def _scheduled_at(self, sequence: Sequence) -> Micros | None:
        tracked = self._tracked(sequence)
        if sequence.prompt_part is not None and (part := self._requests.get(sequence.prompt_part)) is not None:
            return part.scheduled_at
        return tracked.scheduled_at

    def _executed_us(self, sequence: Sequence) -> Micros:
        """Return the time of all batches that computed a request."""
        total = 0
        for each in (sequence, sequence.prompt_part):
            tracked = None if each is None else self._requests.get(each)
            if each is None or tracked is None:
                continue
            total += tracked.executed_us
            if each.instance == NOWHERE or self._engines[each.instance].config.pipeline is not None:
                continue
            run_time = self._engines[each.instance].steps.run_time
            for runs in (each.token_runs, *(runs for _, runs in each.superseded_runs)):
                total += sum(run_time(first, count) for first, count in runs)
        return total

    def _transfer(self, sequence: Sequence) -> KVTransfer | None:
        prompt, traffic = sequence.prompt_part, self._traffic
        if prompt is None or traffic is None or sequence.queued_at is None:
            return None
        tracked = self._requests.get(prompt)
        if tracked is None or not tracked.prompt_end_us:
            return None
        num_blocks = self._engines[sequence.instance].config.num_prompt_blocks(sequence.request.input_tokens)
        size_bytes = num_blocks * traffic.bytes_per_block
        duration_us = max(1, sequence.queued_at - tracked.prompt_end_us)
        return KVTransfer(
            size_bytes=size_bytes,
            duration_s=duration_us / 1e6,
            bytes_per_s=size_bytes / duration_us * 1e6,
            bytes_per_value=traffic.bytes_per_value,
            dtype=traffic.dtype,
        )

    def _tracked(self, sequence: Sequence) -> TrackedRequest:
        """Return the life of a request; that of a part begins when it is first seen."""
        tracked = self._requests.get(sequence)
        if tracked is None:
            from blis_sim.engine.cluster.handover import PROMPT_SUFFIX  # few runs have parts

            whole = self._parts[sequence.request.id.removesuffix(PROMPT_SUFFIX)]
            tracked = self._requests[sequence] = TrackedRequest(self._requests[whole].number)
        return tracked

    def _settle(self, sequence: Sequence) -> None:
        """Store the facts of the latest batches with a request and its prefill sub-request."""
        for each in (sequence, sequence.prompt_part):
            tracked = None if each is None else self._requests.get(each)
            if each is not None and tracked is not None and tracked.group is not None:
                tracked.group.leave(each, tracked)

    def _group(self, instance: int) -> DecodeGroup:
        group = self._groups.get(instance)
        if group is None:
            engine = self._engines[instance]
            counts_time = engine.config.pipeline is not None
            group = self._groups[instance] = DecodeGroup(engine.latency, counts_time=counts_time)
        return group

    def _view(self, instance: int) -> ClientView:
        view = self._views.get(instance)
        if view is None:
            view = self._views[instance] = ClientView(self._engines[instance])
        return view
